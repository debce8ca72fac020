"""PyPI rocketmq-python-client, unmodified, with `tailrace serve --grpc`, plain and over TLS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from grpc_world import SETTINGS, grpc_broker
from java_peer import free_port

from tailrace.env.clock import SystemClock
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.tls_certificate import self_signed

pytestmark = [pytest.mark.slow, pytest.mark.integration]
PROGRAM = Path(__file__).parents[1] / "support" / "grpc_python_client.py"


def told(broker, tmp_path, tls, **environment):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), broker.grpc_endpoint, tls], capture_output=True, text=True, timeout=240,
        check=False, env={**os.environ, "HOME": str(tmp_path), **environment})  # it logs below its home
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_every_kind_of_message_and_consumer(tmp_path):
    with grpc_broker(tmp_path) as broker:
        broker.create_group("py-ordered", consumeMessageOrderly=True)
        lines = told(broker, tmp_path, "plain")
    assert lines[1:] == [
        "tag m1/1,m3/1", "sql m3/1", "later kept/1 True", "ordered o0,o1,o2,o3,o4", "push m0/1,m1/2,m2/1,m3/1",
        "half commit/1,orphan/1 orphan"]
    # One message was given back, and was redelivered.
    assert sorted(part.partition("/")[2] for part in lines[0].split(" ")[1].split(",")) == ["1", "1", "1", "2"]


def test_clients_outlive_a_kill_of_the_server_and_lose_nothing(tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    with grpc_broker(tmp_path) as other:  # only for its topics
        del other
    broker = TailraceBroker(tmp_path / "store", "--grpc", endpoint, settings=SETTINGS)
    broker.start()
    try:
        child = subprocess.Popen(
            [sys.executable, str(PROGRAM), endpoint, "outlives"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "HOME": str(tmp_path)})
        assert child.stdout.readline() == "kill me\n", child.communicate(timeout=60)
        broker.kill()
        broker.start()
        out, err = child.communicate(timeout=200)
    finally:
        broker.stop()
    assert out == "all 300 were consumed\n", err[-3000:]


def test_tls_with_a_certificate_of_ours(tmp_path):
    certificate, key = self_signed(SystemClock(), "127.0.0.1")
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    with grpc_broker(
        tmp_path, "--grpc-tls", str(tmp_path / "certificate.pem"), "--grpc-tls-key", str(tmp_path / "key.pem"),
    ) as broker:
        lines = told(
            broker, tmp_path, "tls", GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(tmp_path / "certificate.pem"))
    assert lines[1:] == ["tag m1/1,m3/1", "sql m3/1"]
