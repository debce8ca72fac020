"""Two of our brokers at name servers of both kinds, and a Java consumer that reads from the slave."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from java_peer import SIZES, java_member, java_name_server, wait_for_route
from patience import until

from tailrace import Message, Producer, PullConsumer, kernels
from tailrace.errors import RemotingError
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]

TOPIC = "clustered"
PAIR = {**SIZES, "slaveReadEnable": "true", "registerNameServerPeriod": 10_000}


def members(namesrv):
    try:
        return set(wait_for_route(namesrv, TOPIC)["brokerDatas"][0]["brokerAddrs"])
    except (KeyError, IndexError):
        return set()


def send(namesrv, numbers):
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in numbers:
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)


def created(namesrv):
    try:
        with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
            producer.create_topic(TOPIC, queues=1)
    except RemotingError:
        return False
    return True


def read(broker):
    try:
        with PullConsumer(broker=broker, group="all") as reader:
            return [int(one.body) for one in reader.messages(TOPIC, start="first", follow=False)]
    except RemotingError:
        return []


def test_name_servers_of_both_kinds_and_a_java_consumer_at_the_slave(reference, tmp_path):
    names = TailraceBroker(tmp_path / "names", settings={**SIZES, "brokerName": "names"})
    names.start()
    running = [names]
    try:
        with java_name_server(reference, tmp_path) as java:
            settings = {**PAIR, "namesrvAddr": f"{java};{names.namesrv}"}
            master = TailraceBroker(
                tmp_path / "master", "--namesrv-listen", "none", settings={**settings, "brokerRole": "ASYNC_MASTER"})
            slave = TailraceBroker(
                tmp_path / "slave", "--namesrv-listen", "none",
                settings={**settings, "brokerRole": "SLAVE", "brokerId": 1})
            for one in (master, slave):
                one.start()
                running.append(one)
            until(lambda: created(java))
            for namesrv in (java, names.namesrv):
                until(lambda namesrv=namesrv: members(namesrv) == {"0", "1"})
            send(java, range(20))
            until(lambda: read(slave.broker) == list(range(20)))
            with java_member(reference, java, "early", TOPIC) as early:
                until(lambda: len(early) == 20)
                running.remove(master)
                master.kill()
                with java_member(reference, java, "late", TOPIC) as late:
                    until(lambda: len(late) >= 20)
                    assert sorted(number for _, number in late) == list(range(20))
                    until(lambda: committed(slave.broker, "late") == 20)
                    master.start()
                    running.append(master)
                    until(lambda: members(java) == {"0", "1"})
                    send(java, range(20, 25))
                    until(lambda: len(late) >= 25)
                    assert sorted(number for _, number in late) == list(range(25)), "nothing comes twice"
                until(lambda: len(early) >= 25)
        # The Java name server is gone. The brokers and their clients use the other one.
        send(names.namesrv, range(25, 30))
        until(lambda: read(slave.broker) == list(range(30)))
        assert members(names.namesrv) == {"0", "1"}
    finally:
        for one in reversed(running):
            print(one.log[-3000:])
            one.stop()


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_a_java_consumer_of_old_messages_is_sent_to_the_slave(reference, tmp_path):
    """With slaveReadEnable a master sends readers there whose messages are only on its disk."""
    settings = {**PAIR, "brokerName": "broker-a"}
    master = TailraceBroker(tmp_path / "master", settings={**settings, "brokerRole": "ASYNC_MASTER"})
    master.start()
    running = [master]
    try:
        assert created(master.namesrv)
        with Producer(namesrv=master.namesrv, timeout_ms=10_000) as producer:
            for number in range(2000):
                producer.send(Message(topic=TOPIC, body=b"%02000d" % number), queue_id=0)
        port = master.namesrv
        master.stop()
        running.remove(master)
        master = TailraceBroker(  # its files are not mapped now
            tmp_path / "master", "--namesrv-listen", port, settings={**settings, "brokerRole": "ASYNC_MASTER"})
        master.start()
        running.append(master)
        slave = TailraceBroker(
            tmp_path / "slave", "--namesrv-listen", "none",
            settings={**settings, "brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": master.namesrv})
        slave.start()
        running.append(slave)
        until(lambda: lacks(master, slave) == 0)
        until(lambda: invoke(slave.broker, 351, topic=TOPIC).code == 0)
        until(lambda: members(master.namesrv) == {"0", "1"})
        assert found_per_s(slave) == 0
        for path in (tmp_path / "master" / "commitlog").iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with java_member(reference, master.namesrv, "old", TOPIC) as old:
            until(lambda: len(old) >= 2000)
            assert sorted(number for _, number in old) == list(range(2000))
            until(lambda: found_per_s(slave) > 0)
    finally:
        for one in reversed(running):
            print(one.log[-3000:])
            one.stop()


def found_per_s(broker):
    """How many pulls of the last ten minutes have found messages, per second."""
    return float(json.loads(invoke(broker.broker, 28).body)["table"]["getFoundTps"].split()[-1])


def lacks(master, slave):
    ends = (json.loads(invoke(one.broker, 907).body) for one in (master, slave))
    return next(ends)["masterCommitLogMaxOffset"] - next(ends)["haClientRuntimeInfo"]["maxOffset"]


def invoke(address, code, **ext):
    async def asked():
        client = RemotingClient()
        try:
            return await client.invoke(address, code, ext)
        finally:
            await client.close()

    return asyncio.run(asked())


def committed(address, group):
    try:
        with PullConsumer(broker=address, group=group) as reader:
            return reader.committed(reader.queues(TOPIC)[0])
    except (RemotingError, IndexError):
        return None
