"""Batches of clients to a topic with batch queues, over a kill: one record each, read message by message."""

from __future__ import annotations

import pytest
from inner_batches import TOPIC, ask, read_when, send_batch
from patience import until

from tailrace import Message
from tailrace.client import MessageQueue, Producer, PullConsumer
from tailrace.errors import RemotingCommandError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.pytest_plugin import TailraceBroker
from tailrace.store.directory import StoreDirectory

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_batches_are_one_record_and_survive_a_kill(tmp_path):
    server = TailraceBroker(tmp_path / "s")
    server.start()
    try:
        with Producer(broker=server.broker) as producer:
            producer.create_topic(TOPIC, 1, {"queue.type": "BatchCQ"})
            with pytest.raises(RemotingCommandError, match=r"unchangeable attribute. key: queue.type"):
                producer.create_topic(TOPIC, 1, {"queue.type": "SimpleCQ"})
            empty = ask(server.broker, RequestCode.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": "0"})
            assert empty.ext["offset"] == "-1", "as a Java broker says"
            number = 0
            for round_ in range(2):
                for count in (5, 1, 9, 3):
                    answer = send_batch(server.broker, number, count)
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
                    assert answer.ext["queueOffset"] == str(number)
                    assert answer.ext["batchUniqId"] == f"batch{number}"
                    assert len(answer.ext["msgId"].split(",")) == 1
                    number += count
                assert producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0).queue_offset == number
                number += 1
                if not round_:
                    server.kill()
                    server.start()
                    producer.close()
                    producer = Producer(broker=server.broker)
        assert read_when(server.broker, number) == list(range(number))
        producer.close()
    finally:
        assert server.stop() == 0
    (queue,) = [queue for queue in StoreDirectory(str(tmp_path / "s")).queues() if queue.topic == TOPIC]
    assert queue.is_batch
    assert queue.unit_bytes() == 46 * 10


def test_what_is_refused_is_refused_by_name(tailrace_session_broker):
    address = tailrace_session_broker.broker
    with Producer(broker=address) as producer:
        producer.create_topic(TOPIC, 1, {"queue.type": "BatchCQ"})
        producer.create_topic("Plain", 1)
    plain = send_batch(address, 0, 3, topic="Plain")
    assert "batchUniqId" not in plain.ext
    assert len(plain.ext["msgId"].split(",")) == 3
    delayed = send_batch(address, 0, 3, TIMER_DELAY_MS="5000")
    assert delayed.code == ResponseCode.MESSAGE_ILLEGAL
    assert "an inner batch cannot have TIMER_DELAY_MS" in delayed.remark
    assert send_batch(address, 0, 3).code == ResponseCode.SUCCESS
    single = {"a": "g", "b": "Plain", "c": "TBW102", "d": "4", "e": "0", "g": "1", "h": "0"}
    flagged = ask(address, RequestCode.SEND_MESSAGE_V2, {**single, "f": "192", "i": ""}, b"x")
    assert flagged.code == ResponseCode.MESSAGE_ILLEGAL
    assert "only topics of queue.type=BatchCQ" in flagged.remark
    named = ask(address, RequestCode.SEND_MESSAGE_V2, {**single, "f": "0", "i": "INNER_NUM\x011\x02"}, b"x")
    assert named.code == ResponseCode.MESSAGE_ILLEGAL
    assert "INNER_NUM and is not an inner batch" in named.remark
    popped = ask(address, RequestCode.POP_MESSAGE, {
        "consumerGroup": "g", "topic": TOPIC, "queueId": "0", "maxMsgNums": "8", "invisibleTime": "60000",
        "pollTime": "0", "bornTime": "0", "initMode": "0", "exp": "*", "expType": "TAG"})
    assert popped.code == ResponseCode.NO_PERMISSION
    assert "queue.type=BatchCQ" in popped.remark
    with PullConsumer(broker=address, group="g") as consumer:
        # the first message of a queue makes its file
        until(lambda: consumer.max_offset(MessageQueue(TOPIC, address, 0)) >= 3)
        found = consumer.pull(MessageQueue(TOPIC, address, 0), 1).messages
        assert [one.queue_offset for one in found] == [1, 2]
        consumer.commit(MessageQueue(TOPIC, address, 0), 3)
    back = ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, {
        "offset": str(found[0].phy_offset), "group": "g", "delayLevel": "0", "originTopic": TOPIC,
        "unitMode": "false", "maxReconsumeTimes": "16"})
    assert (back.code, back.remark) == (ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL")
