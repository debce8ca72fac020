"""A broker of ours registers at a released Java name server, and its clients find it there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from java_peer import free_port, java_name_server, wait_for_route

from tailrace import Message
from tailrace.client import Producer, PullConsumer

pytestmark = [pytest.mark.slow, pytest.mark.interop]
PATIENCE_S = 90


@pytest.fixture
def namesrv(reference, tmp_path):
    """The address of a Java name server."""
    with java_name_server(reference, tmp_path) as address:
        yield address


def test_clients_of_a_java_name_server_find_our_broker(namesrv, tmp_path):
    (tmp_path / "broker.conf").write_text(
        f"brokerName=ours\nbrokerClusterName=C\nlistenPort={free_port()}\nnamesrvAddr={namesrv}\n")
    command = [
        sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "store", "--namesrv-listen", "none",
        "--config", tmp_path / "broker.conf"]
    with open(tmp_path / "serve.log", "w") as log, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True
    ) as ours:
        try:
            broker = ours.stdout.readline().split()[1].partition("=")[2]
            with Producer(broker=broker) as producer:
                producer.create_topic("orders", 3)
                # The name server may have come after the first registration; a change makes another.
                until = time.monotonic() + PATIENCE_S
                while "registered at a name server" not in (tmp_path / "serve.log").read_text():
                    assert time.monotonic() < until
                    producer.create_topic("again", 1)
                    time.sleep(1)
            found = wait_for_route(namesrv, "orders")
            assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker}
            assert found["brokerDatas"][0]["cluster"] == "C"
            assert found["queueDatas"][0]["writeQueueNums"] == 3
            with Producer(namesrv=namesrv) as producer:
                assert producer.send(Message(topic="orders", body=b"x")).status == "SEND_OK"
            with PullConsumer(namesrv=namesrv, group="g") as consumer:
                assert [m.body for m in consumer.messages("orders", follow=False)] == [b"x"]
            os.kill(ours.pid, signal.SIGTERM)
            assert ours.wait(30) == 0
            assert wait_for_route(namesrv, "orders", wanted=False) is None
        finally:
            ours.kill()
