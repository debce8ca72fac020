"""Lite topics of the reference with ours: its client, its admin tool, and directories that are handed over."""

from __future__ import annotations

import subprocess

import pytest
from grpc_world import grpc_broker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.mark.long
def test_the_lite_consumer_of_java(reference, tmp_path):
    with grpc_broker(tmp_path, enableLmq=True, enableMultiDispatch=True) as broker:
        broker.create_topic("lite", "LITE")
        for group, more in (("lite-g", {}), ("lite-x", {"+lite.sub.model": "Exclusive"})):
            broker.create_group(group, attributes={"+lite.bind.topic": "lite", **more})
        done = subprocess.run(
            [reference, "lite-clients", broker.grpc_endpoint], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        said = [line for line in done.stdout.splitlines() if line.split(" ")[0] in {"shared", "after", "exclusive"}]
        assert said == [
            "shared a:0/1,a:1/1,a:1/2,a:2/1,a:3/1,b:0/1,b:1/1,b:2/1,b:3/1,early:e0/1",
            "after [a:last/1] of [a, early]", "exclusive [x:1/1] then [x:2/1] left []"]
        assert "Traceback" not in broker.log
