"""npm rocketmq-client-nodejs with `tailrace serve --grpc`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from grpc_world import grpc_broker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
PACKAGE = "rocketmq-client-nodejs@1.0.8"
PROGRAM = Path(__file__).parent / "reference" / "node" / "grpc_clients.js"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A folder with the client."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("the Node client needs node and npm, and they are not on the PATH")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"private": true}')
    try:
        got = subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", PACKAGE], cwd=folder,
            capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install the Node client in 180 s")
    if got.returncode:
        pytest.skip(f"npm cannot install the Node client: {got.stderr.strip()[-200:]}")
    shutil.copy(PROGRAM, folder)
    return folder


@pytest.mark.long
def test_the_node_client_sends_receives_filters_delays_and_settles_transactions(node, tmp_path):
    with grpc_broker(tmp_path) as broker:
        done = subprocess.run(
            ["node", PROGRAM.name, broker.grpc_endpoint, "plain"], cwd=node, capture_output=True, text=True,
            timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "simple n0,n1,n2,n3", "tag n1,n3", "sql n3", "later true kept", "push o0,o1,o2,o3,o4",
        "half orphan commit,orphan"]
