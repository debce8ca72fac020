"""A slave of ours at a Java master: the whole log is copied, and stays the same byte for byte."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time

import pytest
from java_peer import (
    SIZES,
    ask,
    free_port,
    java_name_server,
    log_of,
    properties,
    start_java_broker,
    wait_for_route,
)
from patience import until

from tailrace import Message, Producer
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]

TOPIC = "replicated"
MASTER = {"brokerIP2": "127.0.0.1", "autoCreateTopicEnable": "true", "brokerRole": "ASYNC_MASTER"}
SLAVE = {
    **SIZES, "brokerRole": "SLAVE", "brokerId": 1, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster",
    "slaveReadEnable": "true", "registerNameServerPeriod": 10_000, "haHousekeepingInterval": 5000}


class OurSlave:
    """``tailrace serve`` as a slave."""

    def __init__(self, root, namesrv, **more):
        self.port, self.log = free_port(), root.with_name(f"{root.name}.log")
        conf = properties(root.with_name(f"{root.name}.conf"), {
            **SLAVE, "namesrvAddr": namesrv, "listenPort": self.port, **more})
        self.address = f"127.0.0.1:{self.port}"
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.cli", "serve", root, "--config", conf, "--namesrv-listen", "none"],
                stdout=subprocess.PIPE, stderr=out)
        assert b"ready" in self.process.stdout.readline(), self.log.read_text()

    def said(self):
        return self.log.read_text()

    def end(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        self.process.wait(60)
        self.process.stdout.close()


def end_of(address):
    return int(json.loads(ask(address, 28).body)["table"]["commitLogMaxOffset"])


def send(namesrv, count, size=100):
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        until(lambda: _create(producer, namesrv), 90)
        for number in range(count):
            producer.send(Message(topic=TOPIC, body=(b"%06d" % number).ljust(size, b"."), keys=[f"k{number}"]))


def _create(producer, namesrv):
    """Create the topic; without a registered broker nothing is created, and nothing fails."""
    with contextlib.suppress(RemotingError):
        producer.create_topic(TOPIC, queues=2)
        return ask(namesrv, 105, {"topic": TOPIC}).code == 0
    return False


@pytest.fixture
def pair(reference, tmp_path):
    """A name server, the place of a Java master, and what must be stopped at the end."""
    (tmp_path / "master").mkdir()
    running = []
    with java_name_server(reference, tmp_path) as namesrv:
        def start_master(**more):
            peer = start_java_broker(
                reference, tmp_path / "master" / "store", {**MASTER, "namesrvAddr": namesrv, **more})
            running.append(peer)
            return peer

        def start_slave(**more):
            peer = OurSlave(tmp_path / "slave", namesrv, **more)
            running.append(peer)
            return peer

        try:
            yield namesrv, start_master, start_slave
        finally:
            for peer in running:
                if peer.process.poll() is None:
                    peer.end(signal.SIGKILL)


def wait_same(master, slave, seconds=60):
    try:
        until(lambda: end_of(slave.address) == end_of(master.address) > 0, seconds)
    except AssertionError:
        ends = end_of(slave.address), end_of(master.address)
        raise AssertionError(f"ends {ends}\n{slave.said()[-3000:]}") from None


@pytest.mark.long
def test_the_whole_log_of_a_java_master_is_copied_and_followed_across_kills(pair, tmp_path):
    namesrv, start_master, start_slave = pair
    master = start_master()
    send(namesrv, 300, size=9000)  # more than two files of 1 MiB
    slave = start_slave()
    wait_same(master, slave)
    send(namesrv, 50)
    wait_same(master, slave)
    status = json.loads(ask(slave.address, 907).body)
    assert (status["master"], status["haClientRuntimeInfo"]["maxOffset"]) == (False, end_of(slave.address))
    (seen,) = json.loads(ask(master.address, 907).body)["haConnectionInfo"]
    assert (seen["inSync"], seen["diff"]) == (True, 0)
    assert ask(slave.address, 10, {"producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}).code == 2
    assert "Can't modify topic" in ask(slave.address, 17, {
        "topic": "x", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false"}).remark
    route = wait_for_route(namesrv, TOPIC)
    assert set(route["brokerDatas"][0]["brokerAddrs"]) == {"0", "1"}
    slave.end(signal.SIGKILL)
    send(namesrv, 50)
    slave = start_slave()
    wait_same(master, slave)
    master.end(signal.SIGKILL)
    master = start_master()
    send(namesrv, 50)
    wait_same(master, slave)
    slave.end()
    master.end()
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master" / "store")
    assert "quarantine" not in {one.name for one in (tmp_path / "slave" / "tailrace").iterdir()}


def test_a_slave_that_does_not_fit_stops_and_one_that_fits_has_the_log_of_a_java_master(pair, tmp_path):
    namesrv, start_master, start_slave = pair
    master = start_master()
    send(namesrv, 100)
    slave = start_slave(mappedFileSizeCommitLog=2 << 20)
    until(lambda: "the slave has stopped" in slave.said(), 30)
    assert "kind=file_size" in slave.said()
    assert end_of(slave.address) == 0
    slave.end()
    slave = start_slave()
    wait_same(master, slave)
    slave.end()
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master" / "store")


@pytest.mark.long
def test_a_slave_that_has_more_than_its_java_master_stops_and_changes_nothing(pair, tmp_path):
    namesrv, start_master, start_slave = pair
    master = start_master()
    send(namesrv, 100)
    slave = start_slave()
    wait_same(master, slave)
    whole = end_of(master.address)
    master.end(signal.SIGKILL)
    # The master loses its last records, as a power loss takes them, and gets others.
    file = min((tmp_path / "master" / "store" / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    at, places = 0, []
    while int.from_bytes(data[at : at + 4], "big"):
        places.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    starts = places[-10]
    data[starts:at] = bytes(at - starts)
    file.write_bytes(data)
    before = log_of(tmp_path / "slave")
    master = start_master()
    until(lambda: "kind=longer" in slave.said() or "kind=different" in slave.said(), 60)
    assert f"phy_offset={starts}" in slave.said()
    send(namesrv, 40)
    assert end_of(master.address) > whole
    slave.end()
    slave = start_slave()
    until(lambda: "kind=different" in slave.said(), 60)
    assert slave.said().count(f"phy_offset={starts}") >= 1
    time.sleep(1)
    slave.end()
    assert log_of(tmp_path / "slave") == before
