"""Pulls: checks, codes, filters, and waiting for messages."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.broker import wiring
from tailrace.broker.messages import long_polling
from tailrace.formats.requests.message_headers import PullMessageRequestHeader
from tailrace.model import GetMessageResult, GetMessageStatus, MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.caller import RemotingCaller

SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1


def put(store, body=b"x", tag=None, queue_id=0, topic="orders"):
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    store.put_inner(MessageExtBrokerInner(topic, queue_id, body, properties))


def ext(**changes):
    return {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": str(SUBSCRIPTION), "commitOffset": "0",
        "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG", **changes,
    }


@pytest.fixture
def pulls(broker):
    broker.topics.update(TopicConfig(topic_name="orders"))
    return wiring.pulls(broker)


@pytest.fixture
def pull(pulls, channel, kit):
    serve = kit.served(pulls).pull
    return lambda **changes: serve(channel, kit.request(11, ext(**changes), opaque=4))


def register(broker, kit, channel, subscription="*", version=1, model="CLUSTERING"):
    broker.groups.find_or_create("g")
    broker.clients.consumers.register(
        channel, kit.request(34), "c1",
        {
            "groupName": "g", "messageModel": model,
            "subscriptionDataSet": [
                {"topic": "orders", "subString": subscription, "subVersion": version}
            ],
        },
    )


def test_messages_come_back_to_back_with_all_offsets(pull, store):
    put(store)
    put(store, b"yy")
    answer = pull()
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.body == b"".join(store.log)
    assert answer.ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2",
        "topicSysFlag": "0", "groupSysFlag": "0",
    }


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (GetMessageStatus.FOUND, 0, 0),
        (GetMessageStatus.NO_MATCHED_MESSAGE, 0, 20),
        (GetMessageStatus.MESSAGE_WAS_REMOVING, 0, 20),
        (GetMessageStatus.OFFSET_OVERFLOW_ONE, 0, 19),
        (GetMessageStatus.OFFSET_FOUND_NULL, 0, 19),
        (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 19),
        (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 7, 21),
        (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 19),
        (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 7, 21),
        (GetMessageStatus.OFFSET_TOO_SMALL, 7, 21),
        (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 7, 21),
        (GetMessageStatus.OFFSET_RESET, 7, 21),
    ],
)
def test_every_status_has_its_code_and_all_offsets(pull, store, monkeypatch, status, offset, code):
    monkeypatch.setattr(
        store, "get_message", lambda *args, **kwargs: GetMessageResult(status, 5, 1, 9)
    )
    answer = pull(queueOffset=str(offset))
    assert (answer.code, answer.remark) == (code, status.name)
    assert (answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == ("5", "1")
    assert (answer.ext["maxOffset"], answer.ext["suggestWhichBrokerId"]) == ("9", "0")


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "nothing"}, 17, "topic[nothing] not exist"),
        ({"queueId": "4"}, 29, "queueId[4]"),
        ({"queueId": "-1"}, 29, "queueId[-1]"),
        ({"subscription": "||"}, 23, "parse"),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1, "SQL92"),
        ({"consumerGroup": "bad group"}, 26, "does not exist"),
        ({"sysFlag": "0"}, 24, "group info not exist"),
    ],
)
def test_refusals_have_their_codes(pull, changes, code, remark):
    answer = pull(**changes)
    assert answer.code == code
    assert remark in answer.remark
    assert answer.ext == {}


def test_permissions_of_group_and_topic_are_kept(pull, broker):
    broker.topics.select("orders").perm = 2
    assert pull().code == 16
    broker.groups.find_or_create("g").consume_enable = False
    broker.topics.select("orders").perm = 6
    assert pull().code == 16


def test_the_subscription_of_the_heartbeat_counts(pull, broker, kit, channel, store):
    register(broker, kit, channel, "a || b", version=5)
    put(store, b"1", "a")
    put(store, b"2", "c")
    put(store, b"3", "b")
    answer = pull(sysFlag="0")
    assert answer.body == store.log[0] + store.log[2]
    assert answer.ext["nextBeginOffset"] == "3"
    assert pull(sysFlag="0", subVersion="6").code == 25
    broker.topics.update(TopicConfig(topic_name="other"))
    assert pull(sysFlag="0", topic="other").code == 24


def test_broadcasting_can_be_forbidden(pull, broker, kit, channel):
    register(broker, kit, channel, model="BROADCASTING")
    broker.groups.select("g").consume_broadcast_enable = False
    assert pull(sysFlag="0").code == 16


def test_a_group_that_a_java_broker_has_forbidden_a_topic_gets_nothing_of_it(pull, broker, kit, channel):
    register(broker, kit, channel)
    for table, code in (
        ({"g": {"orders": 4}}, 16), ({"g": {"orders": 6}}, 16), ({"g": {"orders": 2}}, 0),
        ({"g": {"orders": -1}}, 0), ({"g": {"other": 4}}, 0), ({"h": {"orders": 4}}, 0), ({"g": 4}, 0), ({}, 0),
    ):
        broker.groups._decode({
            "forbiddenTable": table, "subscriptionGroupTable": {"g": {"groupName": "g"}}})
        answer = pull(sysFlag="0")
        assert (answer.code == 16) == (code == 16), table
    broker.groups._decode({"forbiddenTable": [1], "subscriptionGroupTable": {"g": {"groupName": "g"}}})
    assert pull(sysFlag="0").code != 16
    broker.groups._decode({"forbiddenTable": {"g": {"orders": 4}}})
    assert pull(sysFlag="0").remark == "the consumer group[g] is forbidden for topic[orders]"


def test_numbers_that_no_store_holds_are_refused_and_commit_nothing(pull, broker, store):
    for name in ("queueOffset", "commitOffset"):
        answer = pull(**{"sysFlag": str(SUBSCRIPTION | COMMIT), name: str(1 << 63)})
        assert (answer.code, answer.remark) == (
            1, f"the custom field <{name}> is not a whole number in its range: '9223372036854775808'")
    assert broker.offsets.query("g", "orders", 0) == -1


def test_a_pull_looks_at_no_more_messages_than_one_answer_may_hold(pull, store, monkeypatch):
    asked = []
    original = store.get_message

    def counting(*args, **kwargs):
        asked.append(args[3])
        return original(*args, **kwargs)

    put(store)
    monkeypatch.setattr(store, "get_message", counting)
    for number in ("2147483647", "0", "-5"):
        assert pull(maxMsgNums=number).code == 0
    assert asked == [32, 1, 1]


def test_a_pull_may_carry_an_offset_to_commit(pull, broker, store, caplog):
    for _ in range(3):
        put(store)
    pull(sysFlag=str(SUBSCRIPTION), commitOffset="3")
    assert broker.offsets.query("g", "orders", 0) == -1
    pull(sysFlag=str(SUBSCRIPTION | COMMIT), commitOffset="-1")
    assert broker.offsets.query("g", "orders", 0) == -1
    for offset, known in (("3", 3), ("4", 3), ("2", 2), (str((1 << 63) - 1), 2)):
        assert pull(sysFlag=str(SUBSCRIPTION | COMMIT), commitOffset=offset).code == 0
        assert broker.offsets.query("g", "orders", 0) == known
    assert broker.offsets.query_pull("g", "orders", 0) == 3
    assert caplog.text.count("committed offset is refused group=g topic=orders queue=0 offset=4") == 1
    assert "offset=9223372036854775807" not in caplog.text, "one line a minute"


class Waiting:
    """A pull processor on a running loop, with its channel."""

    def __init__(self, store, kit, channel):
        self.broker = kit.make_broker(store, asyncio.get_running_loop())
        self.broker.topics.update(TopicConfig(topic_name="orders"))
        self.broker.groups.find_or_create("g")
        self.processor = wiring.pulls(self.broker)
        self.hold = self.processor.service.hold
        store.set_message_arriving_listener(self.hold)
        self.kit, self.channel = kit, channel

    def pull(self, **changes):
        fields = ext(sysFlag=str(SUBSCRIPTION | SUSPEND), **changes)
        return self.processor.pull(self.channel, self.kit.request(11, fields, opaque=6))

    async def answer(self):
        for _ in range(400):
            if self.channel.sent:
                return self.channel.sent.pop()
            await asyncio.sleep(0.005)
        return None


def waiting(test):
    def run(store, kit, channel):
        async def inner():
            await test(Waiting(store, kit, channel), store)

        asyncio.run(inner())

    run.__name__ = test.__name__
    return run


@waiting
async def test_a_pull_waits_and_an_arrival_answers_it(wait, store):
    assert wait.pull() is None
    await asyncio.sleep(0.01)
    assert wait.channel.sent == []
    put(store)
    answer = await wait.answer()
    assert (answer.code, answer.opaque, answer.body) == (0, 6, store.log[0])
    assert len(wait.hold) == 0


@waiting
async def test_the_service_returns_a_struct_at_once_or_through_the_reply_of_its_caller(wait, store):
    got = []
    request = wait.kit.request(11, ext(sysFlag=str(SUBSCRIPTION | SUSPEND)))
    header, asked = (request.read(PullMessageRequestHeader) for _ in range(2))
    caller = RemotingCaller(wait.channel, request, lambda _, __, pulled: got.append(pulled))
    pull = wait.processor.service.pull
    assert pull(header, caller) is None
    put(store)
    for _ in range(400):
        if got:
            break
        await asyncio.sleep(0.005)
    [pulled] = got
    assert pulled == pull(header, caller)
    assert (pulled.code, pulled.place, pulled.body) == (0, (1, 0, 1), store.log[0])
    assert (header, wait.channel.sent) == (asked, []), "a header is not changed, and an edge makes the answer"


@waiting
async def test_a_pull_that_waits_counts_with_all_its_bytes_until_it_is_answered(wait, store):
    assert wait.pull(comment="c" * 100_000) is None
    assert wait.channel.held == 1
    assert 100_000 < wait.channel.held_bytes < 110_000
    put(store)
    await wait.answer()
    assert (wait.channel.held, wait.channel.held_bytes) == (0, 0)
    assert wait.pull(queueOffset="1", comment="c" * 100_000) is None
    assert len(wait.hold.release_all()) == 1
    assert (wait.channel.held, wait.channel.held_bytes) == (0, 0)


@waiting
async def test_an_arrival_with_another_tag_wakes_nobody(wait, store):
    put(store, tag="b")
    assert wait.pull(subscription="a", queueOffset="1") is None
    put(store, tag="b")
    await asyncio.sleep(0.02)
    assert wait.channel.sent == []
    put(store, tag="a")
    answer = await wait.answer()
    assert (answer.code, answer.body) == (0, store.log[2])


@waiting
async def test_an_arrival_in_another_queue_wakes_nobody(wait, store):
    assert wait.pull() is None
    put(store, queue_id=1)
    await asyncio.sleep(0.02)
    assert len(wait.hold) == 1


@waiting
async def test_a_pull_that_waited_long_enough_gets_19(wait, store):
    assert wait.pull(suspendTimeoutMillis="20") is None
    answer = await wait.answer()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "0")
    assert len(wait.hold) == 0


@waiting
async def test_a_message_between_looking_and_parking_is_not_missed(wait, store):
    original = store.get_message

    def racing(*args, **kwargs):
        result = original(*args, **kwargs)
        store.get_message = original
        put(store)  # arrives after the look, before the pull is held
        return result

    put(store)
    store.get_message = racing
    assert wait.pull(queueOffset="1") is None
    answer = await wait.answer()
    assert (answer.code, answer.body) == (0, store.log[1])


@waiting
async def test_nor_is_it_when_the_pull_wants_some_tags_only(wait, store):
    original = store.get_message

    def racing(*args, **kwargs):
        result = original(*args, **kwargs)
        store.get_message = original
        put(store, tag="a")
        return result

    put(store, tag="b")
    store.get_message = racing
    assert wait.pull(queueOffset="1", subscription="a") is None
    answer = await wait.answer()
    assert (answer.code, answer.body) == (0, store.log[1])


@waiting
async def test_a_held_pull_whose_answer_cannot_be_sent_stops_no_other(wait, store):
    assert wait.pull(suspendTimeoutMillis="20") is None
    assert wait.pull(suspendTimeoutMillis="500") is None
    original = wait.channel.answer

    def failing(request, response):
        wait.channel.answer = original
        raise ValueError("too long for a frame")

    wait.channel.answer = failing
    assert (await wait.answer()).remark == "ValueError: too long for a frame"
    assert (await wait.answer()).code == 19


@waiting
async def test_a_filtered_pull_is_looked_at_again_now_and_then(wait, store):
    put(store, tag="b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_polling, "RECHECK_S", 0.01)
        assert wait.pull(subscription="a", queueOffset="1") is None
    put(store, tag="b")
    answer = await wait.answer()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "2")


@waiting
async def test_a_pull_that_waits_is_answered_when_its_topic_is_deleted_or_loses_its_queue(wait, store):
    for queue_id in (0, 3):
        assert wait.pull(queueId=str(queue_id)) is None
    wait.broker.topics.update(TopicConfig(topic_name="others"))
    await asyncio.sleep(0.02)
    assert len(wait.hold) == 2
    wait.broker.topics.update(TopicConfig(topic_name="orders", read_queue_nums=3))
    answer = await wait.answer()
    assert (answer.code, "readQueueNums:[3]" in answer.remark) == (29, True)
    await asyncio.to_thread(wait.broker.topics.delete, "orders")
    answer = await wait.answer()
    assert (answer.code, len(wait.hold), wait.channel.held) == (17, 0, 0)


@waiting
async def test_a_pull_whose_client_has_gone_is_dropped(wait, store):
    assert wait.pull() is None
    assert wait.pull(queueId="1") is None
    wait.channel.closed = True
    put(store)
    await asyncio.sleep(0.02)
    assert wait.channel.sent == []
    assert (len(wait.hold), wait.channel.held) == (1, 1)
    wait.hold.closed(wait.channel)
    assert (len(wait.hold), wait.channel.held) == (0, 0)


@waiting
async def test_without_long_polling_the_hold_is_short(wait, store):
    object.__setattr__(wait.broker.config, "long_polling_enable", False)
    object.__setattr__(wait.broker.config, "short_polling_time_mills", 10)
    assert wait.pull() is None
    assert (await wait.answer()).code == 19


@waiting
async def test_a_held_pull_that_fails_is_answered(wait, store):
    assert wait.pull() is None

    def broken(*args, **kwargs):
        raise OSError("disk")

    store.get_message = broken
    put(store)
    answer = await wait.answer()
    assert (answer.code, answer.remark) == (1, "OSError: disk")
