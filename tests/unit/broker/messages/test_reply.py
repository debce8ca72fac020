"""Replies of request-reply: which producer gets them, what is stored, and which answers their senders get."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tailrace.broker import wiring
from tailrace.broker.messages import reply as reply_module
from tailrace.broker.messages.reply import ReplyMessageProcessor
from tailrace.config import BrokerConfig
from tailrace.errors import RemotingTimeoutError, StoreError
from tailrace.formats.commitlog import decode_message, decode_properties
from tailrace.formats.remoting import RemotingCommand
from tailrace.model import PutMessageStatus
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.reply import memory_of

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = (
    "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02"
    "UNIQ_KEY\x01U1\x02WAIT\x01true\x02")
SET_BY_BROKER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode"}


def ext(**changes):
    fields = {
        "a": "answerers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "7", "i": PROPERTIES, "j": "0", "k": "false", **changes}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def asker(broker, kit):
    """The connection of the producer that waits; ``results`` are what its requests give, in turn."""

    class Asker(kit.FakeChannel):
        pushes = ()
        results = (RemotingCommand(0),)
        gate = None

        async def request(self, command, timeout_ms):
            assert timeout_ms == 10_000
            self.pushes += (command,)
            if self.gate is not None:
                await self.gate.wait()
            result, *rest = self.results
            self.results = rest or (result,)
            if isinstance(result, Exception):
                raise result
            return result

    made = Asker("10.0.0.9:4000")
    broker.clients.producers.register(made, kit.request(34), "asker", "askers")
    return made


class Replier:
    """Sends replies to a processor; ``channel`` has the answers."""

    def __init__(self, broker, channel, kit, durable=None):
        self.broker, self.channel, self.kit = broker, channel, kit
        send = wiring.sends(
            broker, durable or DurableAnswers(broker.loop, broker.store), wait_durable=durable is not None)
        self.processor = broker.make(ReplyMessageProcessor, messages=send.messages, durable=durable)

    def start(self, fields, body=b"pong", code=325, **options):
        request = self.kit.request(code, fields, body, opaque=9, **options)
        processor = self.kit.served(self.processor)
        serve = processor.reply_v2 if code == 325 else processor.reply
        answer = self.kit.decoded(serve(self.channel, request))
        if answer is not None:
            self.channel.sent.append(answer)

    def finish(self):
        loop = self.broker.loop
        loop.run_until_complete(asyncio.wait_for(self.processor.stop(), 5))
        loop.run_until_complete(asyncio.sleep(0))

    def __call__(self, *args, **options):
        self.start(*args, **options)
        self.finish()
        return self.channel.sent[-1] if self.channel.sent else None


@pytest.fixture
def reply(broker, channel, kit):
    return Replier(broker, channel, kit)


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_is_pushed_to_the_producer_and_stored(reply, asker, store, broker, code):
    fields = ext() if code == 325 else {LONG[name]: value for name, value in ext().items()}
    answer = reply(fields, code=code)
    assert (answer.code, answer.opaque, answer.flag, answer.remark) == (0, 9, 1, None)
    assert answer.ext == {
        "msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    push, = asker.pushes
    now = str(store.clock.now_ms())
    assert (push.code, push.body) == (326, b"pong")
    pushed = decode_properties(push.ext.pop("properties").encode())
    assert pushed == {
        **decode_properties(PROPERTIES.encode()), **SET_BY_BROKER, "PUSH_REPLY_TIME": now}
    assert push.ext == {
        "producerGroup": "answerers", "topic": TOPIC, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000",
        "flag": "7", "reconsumeTimes": "0", "unitMode": "false", "bornHost": "127.0.0.1:50000",
        "storeHost": "127.0.0.1:10911", "storeTimestamp": now}
    stored = decode_message(store.log[0])
    assert (stored.topic, stored.queue_id, stored.body, stored.flag) == (TOPIC, 0, b"pong", 7)
    assert stored.properties == {**decode_properties(PROPERTIES.encode()), **SET_BY_BROKER}
    assert stored.born_host == ("127.0.0.1", 50000)
    assert broker.traffic.came_in[TOPIC, "normal"].messages == 1


def test_a_reply_need_not_be_stored(store, loop, channel, kit, asker, broker):
    without = kit.make_broker(store, loop, BrokerConfig(store_reply_message_enable=False))
    without.producers = broker.producers
    answer = Replier(without, channel, kit)(ext(e="-1"))
    assert (answer.code, answer.ext["msgId"], answer.ext["queueId"]) == (0, "0", "0")
    assert answer.ext["queueOffset"] == "0"
    assert (len(asker.pushes), store.log) == (1, [])
    assert asker.pushes[0].ext["queueId"] == "-1"


def test_a_compressed_reply_keeps_its_flag(reply, asker, store):
    assert reply(ext(f="1")).code == 0
    assert asker.pushes[0].ext["sysFlag"] == "1"
    assert decode_message(store.log[0]).sys_flag & 1


@pytest.mark.parametrize("short", "abcdefgh")
def test_a_missing_field_is_named(reply, asker, store, short):
    answer = reply(ext(**{short: None}))
    assert (answer.code, answer.remark) == (1, f"the custom field <{short}> is null")
    assert (asker.pushes, store.log) == ((), [])


@pytest.mark.parametrize("short", "defghj")
@pytest.mark.parametrize("value", ["x", "9223372036854775808", "-9223372036854775809", "1" * 5000])
def test_a_wrong_number_is_named(reply, asker, store, short, value):
    answer = reply(ext(**{short: value}))
    assert answer.code == 1
    assert answer.remark == (
        f"the custom field <{short}> is not a whole number in its range: {value[:40]!r}")
    assert len(answer.remark) < 150
    assert (asker.pushes, store.log) == ((), [])


@pytest.mark.parametrize(("changes", "code", "remark"), [
    ({"b": "none", "c": "none"}, 17, "topic[none] not exist, apply first please!"),
    ({"b": "a b"}, 29, "illegal"),
    ({"b": "SELF_TEST_TOPIC"}, 16, "Sending message to topic[SELF_TEST_TOPIC] is forbidden."),
    ({"e": "5"}, 29, "request queueId[5] is illegal"),
    ({"f": "4"}, 13, "transaction type"),
    ({"i": "x" * 32_768}, 13, "over the limit of 32767"),
    ({"i": f"a\x01{'x' * 32_764}\x02"}, 13, "over the limit of 32767"),
    ({"i": None}, 1, "reply message properties[REPLY_TO_CLIENT] is null"),
    ({"i": "REPLY_TO_CLIENT\x01\x02"}, 1, "reply message properties[REPLY_TO_CLIENT] is null"),
    ({"i": "REPLY_TO_CLIENT\x01nobody\x02"}, 1, "push reply message fail, channel of <nobody> not found."),
])
def test_a_bad_reply_is_refused_and_not_stored(reply, asker, store, changes, code, remark):
    answer = reply(ext(**changes))
    assert remark in answer.remark
    assert (answer.code, asker.pushes, store.log) == (code, (), [])
    assert answer.ext == SET_BY_BROKER


def test_an_empty_reply_is_refused(reply, asker, store):
    assert reply(ext(), b"").code == 13
    assert (asker.pushes, store.log) == ((), [])


def test_a_missing_topic_is_created_as_for_a_send(reply, asker, broker):
    assert reply(ext(b="answers")).code == 0
    assert broker.topics.select("answers") is not None
    assert asker.pushes[0].ext["topic"] == "answers"


@pytest.mark.parametrize("result", [
    RemotingTimeoutError("10.0.0.9:4000", 10_000), RemotingCommand(1, remark="process reply\nmessage fail")])
def test_a_reply_that_a_producer_does_not_take_is_stored_and_its_sender_told(
    reply, asker, store, result, caplog
):
    asker.results = (result,)
    answer = reply(ext())
    assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
    assert answer.ext["msgId"] == "7F00000100002A9F0000000000000000"
    assert len(store.log) == 1
    line, = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith("reply not pushed client=asker peer=10.0.0.9:4000 reason=")
    assert "\n" not in line


def test_a_pushed_reply_that_cannot_be_stored_is_a_success_without_a_place(reply, asker, store, caplog):
    store.next_status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    answer = reply(ext())
    assert (answer.code, answer.ext["msgId"], len(asker.pushes)) == (0, "0", 1)
    assert "reply not stored" in caplog.text


def test_a_store_that_fails_is_told(reply, asker, store):
    def failing(message):
        raise StoreError("the store is closed")

    store.put_inner = failing
    answer = reply(ext())
    assert (answer.code, answer.remark) == (1, "StoreError: the store is closed")


def test_a_topic_deleted_during_the_push_gets_nothing(reply, asker, store, broker):
    asker.gate = asyncio.Event()
    assert reply.start(ext(b="answers")) is None
    broker.loop.run_until_complete(asyncio.sleep(0))
    broker.topics.delete("answers")
    asker.gate.set()
    reply.finish()
    answer = reply.channel.sent[-1]
    assert (answer.code, answer.ext["msgId"], store.log) == (0, "0", [])


def test_under_sync_flush_the_answer_waits_for_the_disk(broker, store, channel, kit, asker):
    store.durable_later = True
    replier = Replier(broker, channel, kit, DurableAnswers(broker.loop, store))
    assert replier(ext()) is None
    assert len(asker.pushes) == 1
    store.sync()
    broker.loop.run_until_complete(asyncio.sleep(0))
    assert [a.code for a in channel.sent] == [0]


def test_a_reply_that_waits_for_no_disk_is_answered_after_its_push(broker, store, channel, kit, asker):
    store.durable_later = True
    replier = Replier(broker, channel, kit, DurableAnswers(broker.loop, store))
    assert replier(ext(i=PROPERTIES.replace("WAIT\x01true", "WAIT\x01false"))).code == 0


def test_a_oneway_reply_is_pushed_and_not_answered(reply, asker, store, channel):
    assert reply(ext(), flag=2) is None
    assert (len(asker.pushes), len(store.log), channel.sent) == (1, 1, [])


def test_a_producer_that_does_not_answer_takes_no_room_from_others(
    asker, broker, channel, kit, monkeypatch
):
    monkeypatch.setattr(reply_module, "PUSHES_OF_CHANNEL_MAX", 2)
    monkeypatch.setattr(reply_module, "BYTES_OF_CHANNEL_MAX", 6_500)
    reply = Replier(broker, channel, kit)
    asker.gate = asyncio.Event()
    reply.start(ext(), bytes(2500))
    reply.start(ext(), bytes(2500))
    reply.start(ext(c="x" * 2500))  # fields also count
    size = memory_of(kit.request(325, ext(), bytes(2500)))
    assert [(a.code, a.remark) for a in reply.channel.sent] == [(
        2, f"1 replies with {size} bytes wait already, 1 of them of the same connection; try again later")] * 2
    reply.start(ext(), bytes(10))
    reply.start(ext(), b"x")
    assert [a.code for a in reply.channel.sent] == [2, 2, 2]
    other = type(asker)("10.0.0.8:4000")
    broker.clients.producers.register(other, kit.request(34), "other", "askers")
    reply.start(ext(i="REPLY_TO_CLIENT\x01other\x02"), bytes(20_000))
    broker.loop.run_until_complete(asyncio.sleep(0.01))
    assert len(other.pushes) == 1
    asker.gate.set()
    reply.finish()
    assert sorted(a.code for a in reply.channel.sent) == [0, 0, 0, 2, 2, 2]
    waiting = reply.processor._under_way
    assert (waiting.count, waiting.size_bytes, reply.processor.pending) == (0, 0, 0)


def test_all_replies_under_way_are_bounded(asker, broker, channel, kit, monkeypatch):
    monkeypatch.setattr(reply_module, "BYTES_MAX", 5_000)
    reply = Replier(broker, channel, kit)
    asker.gate = asyncio.Event()
    reply.start(ext(), bytes(2500))
    reply.start(ext(), bytes(2500))
    assert reply.channel.sent[0].code == 2
    asker.gate.set()
    reply.finish()


def test_the_latest_connection_of_a_client_counts(broker, kit):
    producers, request = broker.clients.producers, kit.request(34)
    old, new = kit.FakeChannel("10.0.0.9:1"), kit.FakeChannel("10.0.0.9:2")
    for channel, groups in ((old, "pq"), (new, "pq")):
        for group in groups:
            producers.register(channel, request, "asker", group)
    producers.register(old, request, "asker", "p")  # a heartbeat more
    assert producers.find_channel("asker") is new
    producers.unregister(new, "p")
    assert producers.find_channel("asker") is new
    producers.unregister(new, "q")
    assert producers.find_channel("asker") is old
    producers.closed(old)
    assert producers.find_channel("asker") is None
    assert producers._clients == {}
