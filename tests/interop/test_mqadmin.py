"""The reference's mqadmin against `tailrace serve`: commands of operators, and their output."""

from __future__ import annotations

import subprocess

import pytest

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.fixture
def mqadmin(reference, tailrace_session_broker):
    def run(command, *arguments):
        done = subprocess.run(
            [reference, "admin", command, "-n", tailrace_session_broker.namesrv, *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout + done.stderr
        assert "Exception" not in said, said
        return [line.split() for line in done.stdout.splitlines()]

    return run


def test_the_queues_of_a_topic_are_shown(mqadmin, tailrace_session_broker):
    with Producer(broker=tailrace_session_broker.broker) as producer:
        producer.create_topic("shown", 2)
        for number in range(10):
            producer.send(Message(topic="shown", body=b"x"), queue_id=number % 2)
    status = [line[:4] for line in mqadmin("topicStatus", "-t", "shown") if line[:1] == ["broker-a"]]
    assert status == [["broker-a", "0", "0", "5"], ["broker-a", "1", "0", "5"]]


@pytest.mark.long
def test_topics_offsets_and_messages_are_administered(mqadmin, tailrace_session_broker):
    """Two commands, since each starts a JVM."""
    with Producer(broker=tailrace_session_broker.broker) as producer:
        producer.create_topic("administered", 2)
        for number in range(10):
            sent = producer.send(
                Message(topic="administered", body=b"x", keys=[f"k{number}"]), queue_id=number % 2)
    with PullConsumer(broker=tailrace_session_broker.broker, group="administrators") as consumer:
        queues = consumer.queues("administered")
        for queue in queues:
            consumer.commit(queue, 3)
        reset = mqadmin("resetOffsetByTime", "-g", "administrators", "-t", "administered", "-s", 0)
        assert sorted(line for line in reset if line[:1] == ["broker-a"]) == [
            ["broker-a", "0", "0"], ["broker-a", "1", "0"]]
        assert [consumer.committed(queue) for queue in queues] == [0, 0]
    assert sent.msg_id in [line[0] for line in mqadmin("queryMsgByKey", "-t", "administered", "-k", "k9") if line]


@pytest.mark.long
def test_a_master_without_slaves_is_shown(mqadmin, tailrace_session_broker):
    """A Java broker without a controller answers the same."""
    broker = tailrace_session_broker.broker
    status = mqadmin("haStatus", "-b", broker)
    assert ["#SlaveNum", "0"] in status
    assert [line[0] for line in status if line][:2] == ["#MasterAddr", "#MasterCommitLogMaxOffset"]
    names = {line[0] for line in mqadmin("brokerStatus", "-b", broker) if line}
    assert {"putLatency99", "getMessageEntireTimeMax", "brokerVersionDesc"} <= names
