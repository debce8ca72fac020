"""Topics with batch queues are not popped, and what a Java broker popped from one ends nothing else."""

from __future__ import annotations

import json
import re

import pytest
from broker_kit import wired
from pop_client import pop_fields

from tailrace.broker.pop.query_assignment import QueryAssignmentProcessor
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.pop import Ack, PopCheckPoint
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig

REFUSED = (r"topic\[B\] has queue.type=BatchCQ, and its messages can be pulled, not popped: use a consumer of the "
           "remoting protocol in mode PULL")


@pytest.fixture
def batches(world):
    """The world with a topic B whose queue 0 has inner batches at the offsets 0, 5 and 10."""
    world.store.topics.update(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
    for number in range(3):
        body = encode_batch([(0, b"%d-%d" % (number, at), b"") for at in range(5)])
        names = encode_properties({"UNIQ_KEY": f"u{number}", "INNER_NUM": "5"})
        assert world.store.put_inner(MessageExtBrokerInner("B", 0, body, names, 0, 0xC0, 1)).ok
    world.store.wait_dispatched()
    return world


@pytest.mark.parametrize("order", ["false", "true"])
@pytest.mark.parametrize("queue_id", [-1, 0])
def test_a_pop_is_refused_by_name_and_changes_nothing(batches, order, queue_id):
    with pytest.raises(RefusalError, match=REFUSED) as caught:
        batches.ask(batches.pop_part.service.pop_message, pop_fields(
            "B", "g", batches.clock.now_ms(), queueId=queue_id, order=order))
    assert caught.value.code == 16
    assert batches.broker.offsets.entries() == []
    assert batches.records() == []


def test_a_peek_and_a_notification_are_refused_by_name(batches):
    fields = {"consumerGroup": "g", "topic": "B", "queueId": -1, "maxMsgNums": 32, "pollTime": 0, "bornTime": 0}
    for serve, code in ((batches.pop_part.inspect.peek, 200_052), (batches.pop_part.inspect.notification, 200_054)):
        with pytest.raises(RefusalError, match=REFUSED) as caught:
            batches.ask(serve, fields, code=code)
        assert caught.value.code == 16


def test_mode_pop_is_refused_and_a_stored_one_is_answered_with_pull(batches, kit):
    modes = batches.broker.state.modes
    served = wired(QueryAssignmentProcessor, batches.broker)

    def set_mode(mode):
        body = json.dumps({"topic": "B", "consumerGroup": "g", "mode": mode}).encode()
        return served.set_mode(batches.channel, kit.request(401, body=body))

    refused = set_mode("POP")
    assert refused.code == 16
    assert re.search(REFUSED, refused.remark)
    assert set_mode("PULL").code == 0
    modes._decode({"messageRequestModeMap": {"B": {"g": {"mode": "POP", "popShareQueueNum": 1}}}})
    asked = {"topic": "B", "consumerGroup": "g", "clientId": "c", "strategyName": "AVG",
             "messageModel": "BROADCASTING"}
    answer = served.query(batches.channel, kit.request(400, body=json.dumps(asked).encode()))
    found = json.loads(answer.body)["messageQueueAssignments"]
    assert found
    assert {one["mode"] for one in found} == {"PULL"}


def test_what_a_java_broker_popped_is_kept_and_ends_nothing_else(batches, caplog):
    """Its checkpoint has one entry for each record: the queue offset of the first message."""
    name, now = batches.broker_config.broker_name, batches.clock.now_ms()
    put = batches.pop_part.revive._revive_log.put_checkpoint(
        PopCheckPoint(0, now, 10_000, 0, "B", "g", name, (0, 5, 10), 3), 0)
    assert put.status.appended
    for offset in (0, 10):
        acknowledged = batches.pop_part.revive._revive_log.put_ack(Ack((offset,), 0, now, 0, "B", "g", name), 10_000, 0)
        assert acknowledged.status.appended
    batches.send(b"other")
    assert len(batches.pop(invisibleTime=10_000)) == 1
    batches.run(30_000)
    assert [one.body for one in batches.pop()] == [b"other"], "the message of another topic has come back"
    later = [line.getMessage() for line in caplog.records if "B" in line.getMessage()]
    assert later
    assert all("an inner batch needs a topic with queue.type=BatchCQ" in line for line in later)
    assert batches.pop_part.revive.lost == 0
    left = [json.loads(one.body) for one in batches.records() if one.properties["TAGS"] == "ck"]
    again = [one for one in left if one["t"] == "B" and one.get("rp")]
    assert again, "its checkpoint is put again, as a Java broker does"
    assert {one["so"] for one in again} == {5}, "acknowledged inner batches are finished"
