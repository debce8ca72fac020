"""Our consumers at a master and a slave of the reference: reads that the master refers, and its death."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from java_peer import java_name_server, start_java_broker, wait_for_route
from patience import until

from tailrace import Message, Producer, PullConsumer, PushConsumer
from tailrace.errors import RemotingError
from tailrace.formats.remoting import RequestCode
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]

TOPIC, COUNT = "replicated", 400
SETTINGS = {"brokerIP2": "127.0.0.1", "slaveReadEnable": "true", "autoCreateTopicEnable": "true"}
MASTER = {**SETTINGS, "brokerRole": "ASYNC_MASTER", "accessMessageInMemoryMaxRatio": 0}
"""It refers each reader that is not at the end to the slave."""
SLAVE = {**SETTINGS, "brokerRole": "SLAVE", "brokerId": 1, "accessMessageInMemoryMaxRatio": 0}
"""It keeps the readers that it gets; with the ratio of 40 % it refers each of them back to the master."""


@pytest.fixture
def asked(monkeypatch):
    """Addresses of pulls that were answered, with their number."""
    found = Counter()
    invoke = RemotingClient.invoke

    async def noted(self, address, code, *arguments, **options):
        answer = await invoke(self, address, code, *arguments, **options)
        if code == RequestCode.PULL_MESSAGE and answer.body:
            found[address] += 1
        return answer

    monkeypatch.setattr(RemotingClient, "invoke", noted)
    return found


def brokers(namesrv):
    route = wait_for_route(namesrv, TOPIC)
    return {int(number): address for number, address in route["brokerDatas"][0]["brokerAddrs"].items()}


def test_a_slave_is_read_from_when_its_master_says_so_and_when_it_is_dead(reference, tmp_path, asked):
    homes = {name: tmp_path / name for name in ("master", "slave")}
    for home in homes.values():
        home.mkdir()
    with java_name_server(reference, tmp_path) as namesrv:
        running = []

        def start(name, settings):
            peer = start_java_broker(reference, homes[name] / "store", {**settings, "namesrvAddr": namesrv})
            running.append(peer)
            return peer

        try:
            master = start("master", MASTER)
            with Producer(namesrv=namesrv) as producer:
                until(lambda: created(producer))
                until(lambda: 0 in brokers(namesrv))
                for number in range(COUNT):
                    producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)
            slave = start("slave", SLAVE)
            until(lambda: set(brokers(namesrv)) == {0, 1})
            until(lambda: has_all(slave.address))
            seen = []
            with PushConsumer("fast", lambda one: seen.append(int(one.body)), namesrv=namesrv, topics=TOPIC,
                              start="first"):
                until(lambda: len(seen) >= COUNT)
            assert sorted(seen) == list(range(COUNT))
            assert asked[slave.address] > 5 * asked[master.address]
            with PullConsumer(namesrv=namesrv, group="late", max_cached_messages=20) as late:
                late.subscribe(TOPIC)
                polled = []
                until(lambda: poll(late, polled) >= 20)
                running.remove(master)
                master.end(signal.SIGKILL)
                asked.clear()
                until(lambda: poll(late, polled) >= COUNT)
                assert polled == list(range(COUNT))
                assert set(asked) == {slave.address}
                master = start("master", MASTER)
                until(lambda: poll(late, polled) and committed(master.address, "late") == COUNT)
            assert polled == list(range(COUNT))
        finally:
            for peer in running:
                peer.end(signal.SIGKILL)


def created(producer):
    try:
        producer.create_topic(TOPIC, queues=1)
    except RemotingError:
        return False
    return True


def has_all(address):
    try:
        with PullConsumer(broker=address) as reader:
            return reader.max_offset(reader.queues(TOPIC)[0]) == COUNT
    except (RemotingError, IndexError):
        return False


def poll(reader, polled):
    polled += [int(one.body) for one in reader.poll(timeout_ms=100)]
    return len(polled)


def committed(address, group):
    try:
        with PullConsumer(broker=address, group=group) as reader:
            return reader.committed(reader.queues(TOPIC)[0])
    except RemotingError:
        return None
