"""Two of our brokers at name servers of both kinds, and a Java consumer that reads from the slave."""

from __future__ import annotations

import pytest
from java_peer import SIZES, java_member, java_name_server, wait_for_route
from patience import until

from tailrace import Message, Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.pytest_plugin import TailraceBroker

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


def committed(address, group):
    try:
        with PullConsumer(broker=address, group=group) as reader:
            return reader.committed(reader.queues(TOPIC)[0])
    except (RemotingError, IndexError):
        return None
