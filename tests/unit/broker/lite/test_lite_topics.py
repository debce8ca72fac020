"""Lite topics: creation, sends, and pops of what clients subscribe to."""

from __future__ import annotations

import pytest
from broker_kit import wired
from pop_client import batch_ack_body

from tailrace.broker import wiring
from tailrace.broker.messages.query import QueryProcessor
from tailrace.config import StoreConfig

QUEUE = "%LMQ%$parent$a"


def bodies(ones):
    return [one.body for one in ones]


@pytest.mark.parametrize("config", [StoreConfig(), StoreConfig(enable_lmq=True)])
def test_without_the_settings_of_lmq_sends_are_refused(open_world, config, caplog):
    world = open_world(config=config)
    assert world.topic().code == 0
    assert "enableLmq and enableMultiDispatch" in caplog.text
    answer = world.send("a")
    assert answer.code == 16
    assert "enableLmq=true and enableMultiDispatch=true" in answer.remark
    assert world.store.queue_of("parent", 0).max == 0


@pytest.mark.parametrize(("value", "code"), [("-1", 0), ("43200", 0), ("43201", 1), ("-2", 1), ("x", 1)])
def test_the_expiration_is_a_number_of_minutes(open_world, value, code):
    world = open_world()
    assert world.topic(attributes=f"+message.type=LITE,+lite.topic.expiration={value}").code == code
    if not code:
        assert world.broker.topics.select("parent").lite_expiration_min == int(value)


def test_a_message_gets_a_place_in_its_lite_topic(world):
    assert world.send("a", b"1").code == 0
    assert world.send("b", b"2").code == 0
    assert world.send("a", b"3").code == 0
    assert world.send(None, b"4").code == 0
    found = list(world.store.read(QUEUE))
    assert [m.body for m in found] == [b"1", b"3"]
    assert [m.properties["INNER_MULTI_QUEUE_OFFSET"] for m in found] == ["0", "1"]
    assert {m.properties["INNER_MULTI_DISPATCH"] for m in found} == {QUEUE}
    assert [m.body for m in world.store.read("parent", 0)] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("name", ["a$b", "a,%LMQ%$other$x", "a/b", "a@b", "é", "a b"])
def test_a_name_that_reaches_other_queues_is_refused(world, name):
    answer = world.send(name)
    assert answer.code == 13
    assert "__LITE_TOPIC" in answer.remark


def test_a_client_gets_the_messages_of_its_lite_topics_only(world):
    assert world.subscribe("a", "b").code == 0
    for name in "abc":
        world.send(name, name.encode())
    assert sorted(bodies(world.pop())) == [b"a", b"b"]
    assert world.pop() == []


def test_a_waiting_pop_is_answered_when_a_message_comes(world):
    world.subscribe("a")
    assert world.pop_answer(pollTime=15_000) is None
    world.send("b")
    assert world.channel().sent == []
    world.send("a", b"now")
    assert [answer.code for answer in world.channel().sent] == [0]
    assert b"now" in world.channel().sent[0].body


def test_a_waiting_pop_is_answered_when_its_time_is_over(world):
    world.subscribe("a")
    assert world.pop_answer(pollTime=5_000) is None
    world.run(5_000)
    assert [(answer.code, answer.ext["reviveQid"]) for answer in world.channel().sent] == [(210, "999")]


def test_messages_from_before_the_subscription_come_too(world):
    for n in range(3):
        world.send("a", b"%d" % n)
    world.subscribe("a")
    assert bodies(world.pop()) == [b"0", b"1", b"2"]


def test_a_lite_topic_is_consumed_in_order(world):
    world.subscribe("a")
    for n in range(4):
        world.send("a", b"%d" % n)
    first, second = world.pop(maxMsgNum=2)
    assert world.pop() == []
    assert world.ack(second).code == 0
    assert world.offset("a") == 0
    assert world.pop() == []
    assert world.ack(first).code == 0
    assert world.offset("a") == 2
    assert bodies(world.pop()) == [b"2", b"3"]


def test_unacknowledged_messages_come_again_and_are_counted(world):
    world.subscribe("a")
    for n in range(2):
        world.send("a", b"%d" % n)
    world.pop()
    assert world.pop_answer(pollTime=15_000) is None
    world.run(9_500)
    assert world.channel().sent == []
    world.run(1_000)
    answer, = world.channel().sent
    assert answer.ext["orderCountInfo"] == "1;1"


def test_a_changed_time_is_waited_for(world):
    world.subscribe("a")
    for n in range(2):
        world.send("a", b"%d" % n)
    first, second = world.pop()
    answer = world.change(first, 1_000)
    assert (answer.code, answer.ext["popTime"]) == (0, str(first.info.pop_time))
    assert world.change(second, 30_000).code == 0
    world.run(11_000)
    assert world.pop() == []
    world.run(20_000)
    assert [(one.body, one.reconsume_times) for one in world.pop()] == [(b"0", 1), (b"1", 1)]


def test_a_suspended_message_is_not_counted(world):
    world.subscribe("a")
    world.send("a")
    world.pop()
    world.run(10_500)
    again, = world.pop()
    assert again.reconsume_times == 1
    assert world.change(again, 1_000, suspend="true").code == 0
    world.run(1_500)
    assert [one.reconsume_times for one in world.pop()] == [1]


@pytest.mark.parametrize(("changes", "code"), [
    ({"offset": 9}, 208), ({"queueId": 1}, 29), ({"extraInfo": "x"}, 29), ({"topic": "none"}, 17),
    ({"consumerGroup": "other"}, 26), ({"offset": 1}, 13), ({"extraInfo": "0 1 1 2 0 broker-a 0 0"}, 29)])
def test_a_wrong_acknowledgement_is_refused(world, changes, code):
    world.subscribe("a")
    for _ in range(2):
        world.send("a")
    one, = world.pop(maxMsgNum=1)
    assert world.ack(one, **changes).code == code
    assert world.ack(one).code == 0
    assert world.ack(one).code == 0
    assert world.offset("a") == 1


def test_an_acknowledgement_from_before_a_restart_changes_nothing(world):
    world.subscribe("a")
    for n in range(2):
        world.send("a", b"%d" % n)
    _, second = world.pop()
    world.close()
    world.open().subscribe("a")
    assert world.ack(second).code == 0
    assert world.offset("a") == 0
    assert bodies(world.pop()) == [b"0", b"1"]


@pytest.mark.parametrize(("changes", "code"), [
    ({"maxMsgNum": 33}, 29), ({"maxMsgNum": 0}, 29), ({"topic": "none"}, 17), ({"consumerGroup": "none"}, 26),
    ({"topic": "plain"}, 29), ({"consumerGroup": "plain"}, 29), ({"invisibleTime": 0}, 29)])
def test_a_wrong_pop_is_refused(world, changes, code):
    world.topic("plain", "")
    world.group("plain", "other")
    world.subscribe("a")
    world.send("a")
    assert world.pop_answer(**changes).code == code
    assert bodies(world.pop()) == [b"x"]


def test_a_client_cannot_take_the_messages_of_another_group(world):
    world.group("second")
    world.subscribe("a", client="c")
    world.send("a")
    assert world.pop_answer(consumerGroup="second").code == 29
    assert bodies(world.pop()) == [b"x"]


def test_batches_of_acknowledgements_are_refused(world):
    world.subscribe("a")
    world.send("a")
    one, = world.pop()
    body = batch_ack_body([one], "parent", "lite", "broker-a")
    answer = world.ask(world.acks.ack_messages, {}, body, 200_151)
    assert (answer.code, answer.remark) == (604, "batch ack lite is not supported.")


def test_members_of_two_groups_both_get_a_message(world):
    world.group("second")
    world.subscribe("a", client="c")
    world.subscribe("a", client="d", group="second")
    world.send("a")
    assert bodies(world.pop("c")) == bodies(world.pop("d", consumerGroup="second")) == [b"x"]


def test_members_of_a_group_share_a_lite_topic(world):
    world.subscribe("a", client="c")
    world.subscribe("a", client="d")
    world.send("a")
    got = world.pop("c") + world.pop("d")
    assert bodies(got) == [b"x"]
    world.ack(got[0])
    world.send("a", b"y")
    assert bodies(world.pop("c") + world.pop("d")) == [b"y"]


def test_messages_of_the_disk_are_read_by_a_thread(world, monkeypatch):
    world.subscribe("a", "b")
    world.send("a", b"1")
    world.send("b", b"2")
    reads, plain = [], world.store.get_message

    def get_message(topic, *args, only_cached=False, **more):
        found = plain(topic, *args, **more)
        if only_cached and topic not in reads:
            found.is_cold = True
        return found

    monkeypatch.setattr(type(world.store), "get_message", lambda self, *a, **k: get_message(*a, **k))
    submitted = []
    world.broker.cold_reads.submit = lambda *cold: submitted.append(cold)
    assert world.pop_answer() is None
    (reply, read, then, _), = submitted
    reply.finish(lambda: then(read()))
    answer, = world.channel().sent
    assert answer.code == 0
    reads += ["%LMQ%$parent$a", "%LMQ%$parent$b"]
    assert bodies(world.pop()) == [b"2"]


def test_pulls_and_searches_may_name_a_lite_topic(world):
    times = []
    for n in range(3):
        times.append(world.clock.now_ms())
        world.send("a", b"%d" % n)
        world.clock.advance(1_000)
    world.send("b", b"other")
    pull = {"consumerGroup": "p", "topic": "parent", "liteTopic": "a", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 1, "subscription": "*", "subVersion": 0}
    world.broker.groups.find_or_create("p")
    answer = world.ask(wiring.pulls(world.broker).pull, pull, code=11)
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (0, "3", "3")
    assert b"other" not in answer.body
    search = {"topic": "parent", "liteTopic": "a", "queueId": 0, "timestamp": times[2]}
    assert world.ask(wired(QueryProcessor, world.broker).search_offset, search, code=29).ext["offset"] == "2"
    assert world.ask(wired(QueryProcessor, world.broker).search_offset, {**search, "liteTopic": "z"}, code=29).ext == {
        "offset": "0"}


@pytest.mark.parametrize("number", [5, 24])
def test_a_read_that_fails_keeps_the_event_of_its_queue(world, monkeypatch, number):
    """The event was taken before the read, so the queue was not popped again until its next message."""
    world.subscribe("a", client="c1")
    world.send("a", b"0")
    world.turn()
    get_message = world.store.get_message

    def fails(*args, **more):
        raise OSError(number, "the read failed")

    with monkeypatch.context() as broken:
        broken.setattr(world.store, "get_message", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="the read failed"):
                world.pop("c1")
    assert world.store.get_message == get_message
    assert [one.body for one in world.pop("c1")] == [b"0"]


@pytest.mark.parametrize("ends", ["fails", "closes"])
def test_a_read_from_the_disk_that_ends_without_messages_keeps_the_event(world, monkeypatch, ends):
    world.subscribe("a", client="c1")
    world.send("a", b"0")
    plain, cold = world.store.get_message, [True]

    def get_message(self, topic, *args, only_cached=False, **more):
        found = plain(topic, *args, **more)
        found.is_cold = only_cached and cold[0]
        return found

    monkeypatch.setattr(type(world.store), "get_message", get_message)
    submitted = []
    world.broker.cold_reads.submit = lambda *cold: submitted.append(cold)
    assert world.pop_answer("c1") is None
    if ends == "fails":
        submitted[0][0].fail(OSError(5, "the read failed"))
        answer, = world.channel("c1").sent
        assert answer.code == 1
    cold[0] = False
    assert bodies(world.pop("c1")) == [b"0"]
    assert world.pop("c1") == []
