"""Sends: what is stored, what is refused, and which answers producers get."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.broker import wiring
from tailrace.errors import FatalStorageError, RefusalError
from tailrace.formats.commitlog import decode_message, encode_batch
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX
from tailrace.formats.remoting import encode
from tailrace.model import PutMessageStatus
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.reply import Reply
from tailrace.store.replication import Replication

HOST = b"\x7f\0\0\1\0\0*\x9f"


def processor(broker, *, wait_durable=False, limit=100):
    made = wiring.sends(
        broker, DurableAnswers(broker.loop, broker.store, limit), wait_durable=wait_durable)
    made.set_store_host(HOST)
    return made


def ext(topic="orders", **changes):
    fields = {
        "a": "group", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0",
        "g": "1700000000000", "h": "7", "i": "UNIQ_KEY\x01U1\x02TAGS\x01t\x02", "j": "0", "k": "false",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def send(broker, channel, kit):
    made = processor(broker)

    def call(fields, body=b"hello", code=310, **options):
        request = kit.request(code, fields, body, opaque=9, **options)
        return kit.decoded(made.send_v2(channel, request))

    return call


@pytest.mark.parametrize("kind", [0, 1])
def test_a_send_is_stored_and_its_place_is_told(send, store, kind):
    answer = send(ext(), serialize_type=kind)
    assert (answer.code, answer.opaque, answer.flag, answer.serialize_type) == (0, 9, 1, kind)
    assert answer.ext == {
        "msgId": "7F00000100002A9F0000000000000000", "queueId": "1", "queueOffset": "0",
        "transactionId": "U1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }
    message = decode_message(store.log[0])
    assert (message.topic, message.queue_id, message.body, message.flag) == ("orders", 1, b"hello", 7)
    assert message.properties == {
        "UNIQ_KEY": "U1", "TAGS": "t", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert message.born_host == ("127.0.0.1", 50000)
    assert message.born_timestamp == 1_700_000_000_000


def test_the_long_names_mean_the_same(broker, channel, kit, store):
    request = kit.request(
        10,
        {
            "producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": "2", "sysFlag": "0", "bornTimestamp": "5",
            "flag": "0", "properties": "KEYS\x01k\x02",
        },
        b"x",
    )
    answer = kit.decoded(processor(broker).send(channel, request))
    assert (answer.code, answer.ext["queueId"]) == (0, "2")
    assert decode_message(store.log[0]).keys == ["k"]


def test_a_send_creates_its_topic_with_the_queues_asked_for(send, broker):
    send(ext("fresh"))
    assert broker.topics.select("fresh").write_queue_nums == 4


def test_a_message_without_unique_key_gets_one(send, store):
    first, second = send(ext(i="TAGS\x01t")), send(ext(i=None))
    keys = [decode_message(record).unique_key for record in store.log]
    assert [first.ext["transactionId"], second.ext["transactionId"]] == keys
    assert len(set(keys)) == 2
    assert all(len(key) == 32 for key in keys)
    assert decode_message(store.log[0]).tags == "t"


def test_what_the_broker_writes_replaces_what_a_copied_message_brings(send, store):
    send(ext(i="CLUSTER\x01other\x02UNIQ_KEY\x01U\x02MSG_REGION\x01far\x02POP_CK\x01c\x02"))
    properties = store.log[0]
    assert properties.count(b"CLUSTER\x01") == properties.count(b"MSG_REGION\x01") == 1
    assert b"POP_CK" not in properties
    assert decode_message(properties).properties["CLUSTER"] == "DefaultCluster"


def test_a_key_that_only_ends_in_the_name_is_no_unique_key(send):
    assert send(ext(i="MY_UNIQ_KEY\x01x\x02")).ext["transactionId"] != "x"


def test_a_negative_queue_means_any(send):
    queues = {int(send(ext(e="-1")).ext["queueId"]) for _ in range(8)}
    assert queues == {0, 1, 2, 3}


@pytest.mark.parametrize(("properties", "queue_id", "keeps"), [
    ("_SYS_MSG_PRIORITY_\x010\x02", 0, True),
    ("_SYS_MSG_PRIORITY_\x013\x02", 3, True),
    ("_SYS_MSG_PRIORITY_\x01900\x02", 3, True),
    ("_SYS_MSG_PRIORITY_\x01-1\x02", 1, True),
    ("_SYS_MSG_PRIORITY_\x01high\x02", 1, True),
    ("_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01k\x02", 1, False),
    ("_SYS_MSG_PRIORITY_\x012\x02TIMER_DELAY_MS\x011\x02", 1, False),
])
def test_a_priority_is_the_queue_of_a_message_without_another_type(send, store, properties, queue_id, keeps):
    send(ext(i=f"UNIQ_KEY\x01U1\x02{properties}"))
    message = decode_message(store.log[-1])
    assert int(message.properties.get("REAL_QID", message.queue_id)) == queue_id
    assert ("_SYS_MSG_PRIORITY_" in message.properties) == keeps


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "bad topic"}, 29, "illegal characters"),
        ({"topic": "x" * 128}, 29, "127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "SCHEDULE_TOPIC_XXXX"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "is forbidden"),
        ({"c": "nothing"}, 17, "topic[orders] not exist, apply first please!"),
        ({"e": "4"}, 29, "queueId[4]"),
        ({"f": "4"}, 13, "sysFlag has a transaction type"),
        ({"f": "12"}, 13, "TRAN_MSG=true"),
        ({"f": "128"}, 13, "inner batches"),
        ({"f": "-1"}, 29, "sysFlag -1 is below 0"),
        ({"i": "TRAN_MSG\x01true\x02"}, 2, "still reading its half messages"),
    ],
)
def test_what_cannot_be_stored_right_is_refused_and_not_stored(send, store, changes, code, remark):
    answer = send(ext(**changes))
    assert answer.code == code
    assert remark in answer.remark
    assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert store.log == []


def test_an_empty_body_is_illegal(send, store):
    assert send(ext(), body=b"").code == 13
    assert store.log == []


@pytest.mark.parametrize("properties", ["DELAY\x010\x02", "TRAN_MSG\x01false\x02", "NO_DELAY\x012\x02"])
def test_properties_that_ask_for_nothing_are_taken(send, properties):
    assert send(ext(i=properties)).code == 0


def test_limits_are_named(send):
    answer = send(ext(), body=bytes(4 * 1024 * 1024 + 1))
    assert answer.code == 13
    assert "msg body length limit 4194304B, msg properties length limit 32KB." in answer.remark
    assert send(ext(i="A\x01" + "b" * 32767 + "\x02")).code == 13


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutMessageStatus.CREATE_MAPPED_FILE_FAILED, 1),
        (PutMessageStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutMessageStatus.UNKNOWN_ERROR, 1),
    ],
)
def test_a_store_that_refuses_is_told_as_it_is(send, store, status, code):
    store.next_status = status
    answer = send(ext())
    assert (answer.code, answer.remark) == (code, "as the test wants it")


def test_a_topic_without_the_write_bit_is_refused(send, broker):
    send(ext())
    broker.topics.select("orders").perm = 4
    assert send(ext()).code == 16


WITHOUT = {"LITE": " without enableLmq=true and enableMultiDispatch=true"}


@pytest.mark.parametrize("attributes", [
    {"message.type": "LITE"}, {"cleanup.policy": "OfTomorrow"},
    {"queue.type": "OfTomorrow"},
])
def test_a_topic_of_a_type_that_cannot_be_honoured_takes_nothing(send, broker, store, attributes):
    broker.topics.update(TopicConfig(topic_name="typed", attributes=attributes))
    answer = send(ext("typed"))
    (name, value), = attributes.items()
    why = WITHOUT.get(value, "")
    assert (answer.code, answer.remark) == (
        16, f"the topic[typed] has {name}={value}{why}, which this broker does not support; sending message is refused")
    assert not store.log
    broker.topics.update(TopicConfig(topic_name="typed", attributes={"message.type": "MIXED"}))
    assert send(ext("typed")).code == 0


def test_a_message_of_a_topic_with_compaction_needs_keys(send, broker, store):
    broker.topics.update(TopicConfig(topic_name="kept", attributes={"cleanup.policy": "COMPACTION"}))
    for properties in ("UNIQ_KEY\x01U1\x02", "UNIQ_KEY\x01U1\x02KEYS\x01 \x02"):
        answer = send(ext("kept", i=properties))
        assert (answer.code, answer.remark) == (13, "Required message key is missing")
    assert not store.log
    assert send(ext("kept", i="UNIQ_KEY\x01U1\x02KEYS\x01k\x02")).code == 0
    batch = [(0, b"x", b"KEYS\x01k\x02"), (0, b"y", b"")]
    assert send(ext("kept", m="true"), encode_batch(batch)).code == 13
    assert send(ext("kept", m="true"), encode_batch(batch[:1])).code == 0


@pytest.mark.parametrize("short", "abcdefgh")
def test_a_missing_field_is_named(send, store, short):
    with pytest.raises(RefusalError, match=f"the custom field <{short}> is null"):
        send(ext(**{short: None}))
    assert store.log == []


@pytest.mark.parametrize("short", "defghjl")
def test_a_number_that_is_none_or_out_of_its_range_is_named(send, store, short):
    for wrong in ("x", "9223372036854775808", "1" * 5000, "1_0"):
        with pytest.raises(RefusalError, match=f"the custom field <{short}> is not a whole number"):
            send(ext(**{short: wrong}))
    assert store.log == []


@pytest.mark.parametrize("kind", [0, 1])
def test_a_batch_is_stored_message_by_message(send, store, kind):
    items = [(0, b"one", b"TAGS\x01a\x02"), (3, b"two", b"UNIQ_KEY\x01U\x02")]
    answer = send(ext(m="true", i="WAIT\x01true\x02"), encode_batch(items), code=320, serialize_type=kind)
    assert (answer.code, answer.opaque, answer.flag, answer.serialize_type) == (0, 9, 1, kind)
    first, second = map(decode_message, store.log)
    assert answer.ext == {
        "msgId": f"{first.msg_id},{second.msg_id}", "queueId": "1", "queueOffset": "0",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }
    assert first.msg_id == "7F00000100002A9F0000000000000000"
    assert (first.body, first.properties) == (b"one", {"TAGS": "a"})
    assert (second.flag, second.unique_key, second.queue_offset) == (3, "U", 1)


def test_a_batch_to_a_retry_topic_is_refused(send, store):
    answer = send(ext("%RETRY%g", m="true"), encode_batch([(0, b"x", b"")]), code=320)
    assert answer.code == 13
    assert store.log == []


def test_a_resend_goes_to_its_retry_topic_and_after_too_many_to_the_dead_letters(send, store):
    assert send(ext("%RETRY%g", e="0", j="16")).code == 0
    assert send(ext("%RETRY%g", e="0", j="17")).code == 0
    asked = {"fields": ext("%RETRY%g", e="0", j="3", l="2", i="DELAY\x016\x02")}
    assert send(**asked, version=120).code == 0  # so old a client says nothing about it
    assert send(**asked, version=121).code == 0
    found = [decode_message(r) for r in store.log]
    assert [m.properties.get("REAL_TOPIC", m.topic) for m in found] == ["%RETRY%g", "%DLQ%g", "%RETRY%g", "%DLQ%g"]
    assert [m.properties.get("DELAY") for m in found] == [None, "-1", "6", "-1"]


def test_a_resend_of_a_group_that_holds_locks_is_a_dead_letter(send, store, broker, clock):
    queue = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}
    broker.clients.locks.try_lock("g", "client", [queue])
    assert send(ext("%RETRY%g", e="0", j="1")).code == 0
    assert send(ext("%RETRY%other", e="0", j="1")).code == 0
    clock.ms += 60_001
    assert send(ext("%RETRY%g", e="0", j="1")).code == 0
    assert [decode_message(r).topic for r in store.log] == ["%DLQ%g", "%RETRY%other", "%RETRY%g"]


def test_a_batch_with_a_delay_level_is_refused(send, store):
    body = encode_batch([(0, b"x", b"")])
    assert send(ext(m="true", i="DELAY\x013\x02"), body, code=320).code == 13
    assert store.log == []
    assert send(ext(m="true", i="DELAY\x010\x02"), body, code=320).code == 0


def test_a_one_way_send_is_stored_and_not_answered(send, store):
    assert send(ext(), flag=2) is None
    assert len(store.log) == 1


def test_under_sync_flush_the_answer_waits_for_the_disk(store, kit, channel):
    async def test():
        store.durable_later = True
        store.topics.create_if_missing("orders", 4)
        broker = kit.make_broker(store, asyncio.get_running_loop())
        made = processor(broker, wait_durable=True)
        for opaque in range(3):
            assert made.send_v2(channel, kit.request(310, ext(), b"x", opaque=opaque)) is None
        lazy = kit.request(310, ext(i="WAIT\x01false\x02"), b"x", opaque=7)
        assert kit.decoded(made.send_v2(channel, lazy)).code == 0
        await asyncio.sleep(0)
        assert len(store.waiting) == 1  # one call for all of them
        assert channel.sent == []
        store.sync()
        await asyncio.sleep(0)
        assert [(c.opaque, c.code) for c in channel.sent] == [(0, 0), (1, 0), (2, 0)]

    asyncio.run(test())


@pytest.mark.parametrize("kind", [0, 1])
def test_a_sync_that_fails_changes_the_answer_and_keeps_its_place(store, kit, channel, kind):
    async def test():
        store.durable_later = True
        store.topics.create_if_missing("orders", 4)
        made = processor(kit.make_broker(store, asyncio.get_running_loop()), wait_durable=True)
        for status, code in (
            (PutMessageStatus.FLUSH_DISK_TIMEOUT, 10),
            (PutMessageStatus.SERVICE_NOT_AVAILABLE, 14),
        ):
            made.send_v2(channel, kit.request(310, ext(), b"x", serialize_type=kind))
            await asyncio.sleep(0)
            store.sync(status)
            await asyncio.sleep(0)
            answer = channel.sent.pop()
            assert (answer.code, answer.serialize_type) == (code, kind)
            assert "msgId" in answer.ext
            assert answer.remark

    asyncio.run(test())


def test_too_many_waiting_sends_are_told_to_slow_down(store, kit, channel):
    async def test():
        store.durable_later = True
        store.topics.create_if_missing("orders", 4)
        broker = kit.make_broker(store, asyncio.get_running_loop())
        made = processor(broker, wait_durable=True, limit=2)
        for _ in range(2):
            made.send_v2(channel, kit.request(310, ext(), b"x"))
        answer = kit.decoded(made.send_v2(channel, kit.request(310, ext(), b"x")))
        assert (answer.code, answer.remark) == (
            2, "[OVERLOAD]system busy, start flow control for a while",
        )
        assert len(store.log) == 2

    asyncio.run(test())


def test_a_store_that_cannot_wait_for_its_disk_leaves_no_send_without_an_answer(
    store, kit, channel, caplog
):
    def broken(until, callback):
        raise FatalStorageError("commitlog/0", "EIO")

    async def test():
        store.inner.when_durable = broken
        store.topics.create_if_missing("orders", 4)
        broker = kit.make_broker(store, asyncio.get_running_loop())
        durable = DurableAnswers(broker.loop, store)
        made = wiring.sends(broker, durable, wait_durable=True)
        made.send_v2(channel, kit.request(310, ext(), b"x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [c.code for c in channel.sent] == [14]
        assert durable.pending == 0

    asyncio.run(test())


def test_an_answer_may_wait_for_a_second_sync_or_become_another_one(store, kit, channel):
    """``then`` runs after the first sync: it says what to wait for next, or raises the answer."""
    waits = []
    store.inner.when_durable = lambda until, callback: waits.append((until, callback))

    def turn():
        return asyncio.sleep(0)

    async def test():
        durable = DurableAnswers(asyncio.get_running_loop(), store)
        request, seen = kit.request(310, {}, b""), []
        ok = encode(request.answer())

        def refuse(status):
            raise RefusalError(2, "no")

        durable.add(Reply(channel, request), ok, 10, lambda status: (seen.append(status), 20)[1])
        durable.add(Reply(channel, request), b"", 10, seen.append)  # a oneway request
        await turn()
        [(until, callback)] = waits
        assert until == 10
        callback(PutMessageStatus.PUT_OK)
        await turn()
        await turn()
        assert seen == [PutMessageStatus.PUT_OK] * 2
        assert (channel.sent, waits[1][0]) == ([], 20)
        waits[1][1](PutMessageStatus.PUT_OK)
        await turn()
        assert [answer.code for answer in channel.sent] == [0]
        durable.add(Reply(channel, request), ok, 30, refuse)
        await turn()
        waits[2][1](PutMessageStatus.PUT_OK)
        await turn()
        assert [answer.code for answer in channel.sent] == [0, 2]
        assert not durable.pending

    asyncio.run(test())


def test_a_name_that_ends_in_uniq_key_hides_no_unique_key(send, store):
    answer = send(ext(i="MY_UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02"))
    assert answer.ext["transactionId"] == "b"
    assert decode_message(store.log[0]).unique_key == "b"


@pytest.mark.parametrize(("properties", "waits"), [
    ("WAIT\x01false\x02", False), ("UNIQ_KEY\x01U1\x02WAIT\x01false", False),
    ("NO_WAIT\x01false\x02", True), ("WAIT\x01true\x02A\x01WAIT\x02", True), ("", True),
])
def test_only_wait_false_waits_not_for_the_disk(store, kit, channel, properties, waits):
    async def run():
        store.durable_later = True
        store.topics.create_if_missing("orders", 4)
        made = processor(kit.make_broker(store, asyncio.get_running_loop()), wait_durable=True)
        answer = made.send_v2(channel, kit.request(310, ext(i=properties), b"x", opaque=1))
        assert (answer is None) == waits

    asyncio.run(run())


@pytest.mark.parametrize("properties", [
    "DELAY\x013\x02", "TIMER_DELAY_SEC\x0160\x02", "TIMER_DELAY_MS\x0160000\x02",
    "TIMER_DELIVER_MS\x0199999999999999\x02", "TRAN_MSG\x01true\x02", "__LITE_TOPIC\x01one\x02",
    "_SYS_MSG_PRIORITY_\x011\x02"])
@pytest.mark.parametrize(("code", "batch"), [(320, "true"), (320, "false"), (310, "true")])
def test_the_header_of_a_batch_may_not_ask_for_what_a_batch_cannot_honour(send, store, properties, code, batch):
    answer = send(ext(m=batch, i=properties), encode_batch([(0, b"x", b"")]), code=code)
    assert answer.code == 13
    assert properties.partition("\x01")[0] in answer.remark
    assert not store.log


@pytest.mark.parametrize("character", ["x", "ü"])
def test_a_send_leaves_room_for_the_properties_of_a_retry(send, store, character):
    size = len(character.encode())
    low, high = 1, 40_000
    while low + 1 < high:
        middle = (low + high) // 2
        taken = send(ext(i=f"p\x01{character * middle}\x02")).code == 0
        low, high = (middle, high) if taken else (low, middle)
    assert SENT_PROPERTIES_MAX - 200 < low * size <= SENT_PROPERTIES_MAX
    answer = send(ext(i=f"p\x01{character * high}\x02"))
    assert answer.code == 13
    assert f"over the limit of {SENT_PROPERTIES_MAX}" in answer.remark
    item = b"p\x01" + b"x" * SENT_PROPERTIES_MAX + b"\x02"
    answer = send(ext(m="true"), encode_batch([(0, b"x", item)]), code=320)
    assert answer.code == 13
    assert f"limit of {SENT_PROPERTIES_MAX}" in answer.remark


@pytest.mark.parametrize("times", [0, 17])
def test_what_a_consumer_sends_to_its_retry_topic_always_fits(send, store, times):
    text = f"RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01id\x02DELAY\x013\x02p\x01{'x' * 32_740}\x02"
    assert send(ext("%RETRY%g", j=str(times), i=text, l="16")).code == 0
    found = decode_message(store.log[-1])
    assert found.properties.get("REAL_TOPIC", found.topic) == ("%DLQ%g" if times else "%RETRY%g")
    assert found.properties["TAILRACE_LEFT_OUT"] == "p"
    assert found.properties["RETRY_TOPIC"] == "orders"
    assert found.properties["DELAY"] == ("-1" if times else "3")


def test_too_few_replicas_refuse_what_waits_for_them_and_nothing_else(send, store, monkeypatch):
    monkeypatch.setattr(Replication, "refusal", "in-sync replicas not enough: 1 of minInSyncReplicas=2")
    answer = send(ext())
    assert (answer.code, answer.remark[:27]) == (1, "in-sync replicas not enough")
    assert store.log == []
    assert store.refused_puts.counts["few_replicas"] == 1
    assert send(ext(i="UNIQ_KEY\x01U1\x02WAIT\x01false\x02")).code == 0
