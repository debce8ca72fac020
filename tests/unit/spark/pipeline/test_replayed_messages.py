"""Messages that a replay sends: what fits, and what is sent by itself."""

from __future__ import annotations

from tailrace import Message
from tailrace.formats.copied_properties import LEFT_OUT, SENT_PROPERTIES_MAX
from tailrace.kernels.properties import message_properties
from tailrace.spark.pipeline.replay import REPLAY_PROPERTY, BrokerTarget, Replay, _message

WANTED = Replay(path="/s", topics=("t",))


def row(properties, keys=("k",), tags="a"):
    return {"topic": "t", "body": b"x", "tags": tags, "keys": list(keys), "properties": properties, "flag": 0,
            "commitLogOffset": 77, "sysFlag": 0, "queueOffset": 1}


def test_a_message_near_the_limit_of_a_record_is_sent_without_what_does_not_fit(caplog):
    made = _message(row({"p": "x" * 32_000, "q": "1", "UNIQ_KEY": "u"}, keys=["k" * 500]), WANTED)
    assert made.properties == {"q": "1", "UNIQ_KEY": "u", REPLAY_PROPERTY: "77", LEFT_OUT: "p"}
    assert "properties left out of a copy topic=t message=77" in caplog.text


def test_the_longest_message_of_a_send_is_replayed_whole_or_fits():
    for size in range(SENT_PROPERTIES_MAX - 800, SENT_PROPERTIES_MAX, 50):
        made = _message(row({"p": "x" * size, "UNIQ_KEY": "u"}), WANTED)
        assert len(message_properties(made, "u")) + 110 <= SENT_PROPERTIES_MAX


class FakeProducer:
    def __init__(self):
        self.sent = []

    def send(self, message, queue_id):
        self.sent.append(message.body.decode())

    def send_batch(self, messages, queue_id):
        self.sent.append([message.body.decode() for message in messages])


def test_what_a_batch_cannot_honour_is_sent_by_itself_in_its_place():
    target = object.__new__(BrokerTarget)
    target._producer = FakeProducer()
    target.put(0, [
        Message(topic="t", body=b"%d" % n, properties=properties) for n, properties in enumerate([
            {}, {"a": "b"}, {"_SYS_MSG_PRIORITY_": "1"}, {}, {"__LITE_TOPIC": "one"}, {"__LITE_TOPIC": "two"}, {},
            {}])])
    assert target._producer.sent == [["0", "1"], "2", "3", "4", "5", ["6", "7"]]
