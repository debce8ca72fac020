"""Retry topics whose name belongs to two pairs of a topic and a group, or to a pair and to a group that pulls."""

from __future__ import annotations

import pytest
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.filters.retry_owner import own_messages
from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import (
    ExtraInfo,
    normal_topic,
    pop_retry_topic,
    pop_retry_topics,
    retry_owner,
    retry_topic_users,
)
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

PAIRS = (("g_a", "x"), ("g", "a_x"))
SHARED = "%RETRY%g_a_x"


@pytest.fixture
def pairs(open_world):
    """A broker with two topics whose groups share the name of their retry topic."""
    world = open_world()
    for _, topic in PAIRS:
        world.store.topics.create_if_missing(topic, 1)
    return world


def send(world, topic, count=5):
    for n in range(count):
        world.send(b"%s:%d" % (topic.encode(), n), topic)


def pop(world, group, topic, **changes):
    return world.pop(consumerGroup=group, topic=topic, **changes)


def bodies(ones):
    return [one.body for one in ones]


def own(topic, count=5):
    return [b"%s:%d" % (topic.encode(), n) for n in range(count)]


def put(world, topic, body, **properties):
    world.store.topics.create_if_missing(topic, 1)
    result = world.store.put_inner(MessageExtBrokerInner(
        topic, 0, body, encode_properties({"UNIQ_KEY": f"K{body.decode()}", **properties}),
        born_timestamp=world.clock.now_ms()))
    assert result.status.appended
    world.store.wait_dispatched()


def test_names_of_two_pairs_are_one_name():
    assert {pop_retry_topic(topic, group) for group, topic in PAIRS} == {SHARED}
    assert len({pop_retry_topic(topic, group, v2=True) for group, topic in PAIRS}) == 2
    for group, topic in PAIRS:
        assert pop_retry_topics(topic, group) == (f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")
        assert {normal_topic(name, group) for name in pop_retry_topics(topic, group)} == {topic}


def test_the_users_of_a_name_are_all_pairs_and_the_group():
    assert set(retry_topic_users(SHARED)) == {("g", "a_x"), ("g_a", "x"), ("g_a_x", "")}
    assert set(retry_topic_users("%RETRY%g_a+x_y")) == {("g_a", "x_y")}
    assert set(retry_topic_users("%RETRY%g")) == {("g", "")}
    assert set(retry_topic_users("%RETRY%h_i_%RETRY%g+x")) == {("h_i", "%RETRY%g+x"), ("h_i_%RETRY%g", "x")}
    assert set(retry_topic_users("%RETRY%_g_")) == {("_g_", "")}  # no empty names
    assert set(retry_topic_users("orders")) == set()


@pytest.mark.parametrize(("name", "properties", "owner"), [
    (SHARED, {"ORIGIN_GROUP": "g"}, "g"),
    (SHARED, {"ORIGIN_GROUP": "g_a"}, "g_a"),
    (SHARED, {"RETRY_TOPIC": "t"}, "g_a_x"),
    (SHARED, {"RETRY_TOPIC": "t", "REAL_TOPIC": SHARED, "ORIGIN_GROUP": "g"}, "g_a_x"),  # a dead letter sent back
    (SHARED, {"RETRY_TOPIC": "t", "REAL_TOPIC": "t", "ORIGIN_GROUP": "g"}, "g"),  # a dead letter popped
    (SHARED, {"ORIGIN_GROUP": "g_"}, None),
    (SHARED, {"ORIGIN_GROUP": "h"}, None),
    (SHARED, {"ORIGIN_GROUP": ""}, None),
    (SHARED, {}, None),
    (SHARED, {"ORIGIN_GROUP": "g_a_x"}, "g_a_x"),
    ("%RETRY%g_a+x", {"ORIGIN_GROUP": "h"}, "g_a"),
    ("%RETRY%g_a+x", {}, "g_a"),
])
def test_a_record_says_whose_it_is(name, properties, owner):
    assert retry_owner(name, *map(properties.get, ("ORIGIN_GROUP", "REAL_TOPIC", "RETRY_TOPIC"))) == owner


def test_each_pair_gets_its_own_messages_however_often_they_are_retried(pairs):
    for _, topic in PAIRS:
        send(pairs, topic)
    for group, topic in PAIRS:
        assert bodies(pop(pairs, group, topic)) == own(topic)
    for times in (1, 2, 3):
        pairs.run(14_000)
        for group, topic in PAIRS:
            ones = pop(pairs, group, topic)
            assert bodies(ones) == own(topic)
            assert {(one.topic, one.reconsume_times, one.message.topic) for one in ones} == {(SHARED, times, topic)}
            if times == 3:
                assert [pairs.ack(one, group).code for one in ones[:2]] == [0, 0]
                assert pairs.change(ones[2], 2_000, group)[0].code == 0
                assert pairs.ack_all(ones[3:], group, t=topic).code == 0
    pairs.run(14_000)
    for group, topic in PAIRS:
        one, = pop(pairs, group, topic)
        assert one.body == own(topic)[2]
        pairs.ack(one, group)
    pairs.run(30_000)
    assert [pop(pairs, group, topic) for group, topic in PAIRS] == [[], []]
    for group, _ in PAIRS:  # nothing of the other pair is left in front of a group
        assert pairs.broker.offsets.query(group, SHARED, 0) == pairs.store.queue_of(SHARED, 0).max


def test_a_pop_for_few_messages_passes_over_many_of_the_other_pair(pairs):
    send(pairs, "a_x", 90)
    send(pairs, "x", 1)
    while pop(pairs, "g", "a_x"):
        pass
    pop(pairs, "g_a", "x")
    pairs.run(14_000)
    found = []
    for _ in range(20):
        found += pop(pairs, "g_a", "x", maxMsgNums=1)
    assert bodies(found) == [b"x:0"]


def test_a_kill_after_the_retries_mixes_nothing(pairs):
    for _, topic in PAIRS:
        send(pairs, topic)
    for group, topic in PAIRS:
        pop(pairs, group, topic)
    pairs.run(14_000)
    pairs.kill()
    pairs.open()
    pairs.run(6_000)
    for group, topic in PAIRS:
        assert set(bodies(pop(pairs, group, topic))) == set(own(topic))


def test_peeks_and_notifications_see_the_messages_of_their_own_pair(pairs):
    send(pairs, "a_x")
    pop(pairs, "g", "a_x")
    pairs.run(14_000)
    pop(pairs, "g_a", "x")

    def has_message(group, topic):
        answer = pairs.ask(pairs.pop_part.inspect.notification, {
            "consumerGroup": group, "topic": topic, "queueId": -1, "pollTime": 0, "bornTime": pairs.clock.now_ms()},
            code=200_054)
        return answer.ext["hasMsg"]

    def peeked(group, topic):
        pairs.opaque += 1
        answer = pairs.pop_part.inspect._peeked(pairs.channel, RemotingCommand(200_052, {
            "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32"}, opaque=pairs.opaque))
        found, at = [], 0
        while at < len(answer.body):
            size = int.from_bytes(answer.body[at : at + 4], "big")
            found.append(decode_message(answer.body[at : at + size]).body)
            at += size
        return found

    pairs.broker.offsets.commit("g_a", SHARED, 0, 0)
    assert (has_message("g_a", "x"), peeked("g_a", "x")) == ("false", [])
    assert (has_message("g", "a_x"), peeked("g", "a_x")) == ("true", own("a_x"))


def test_each_held_pop_is_woken_by_its_own_message(pairs, turns):
    opaques = {}
    for group, topic in PAIRS:
        send(pairs, topic, 1)
        pop(pairs, group, topic, invisibleTime=4_000)
    for group, topic in PAIRS:
        assert pairs.pop_answer(consumerGroup=group, topic=topic, pollTime=60_000) is None
        opaques[pairs.request.opaque] = [b"%s:0" % topic.encode()]
    pairs.run(8_000)
    pairs.pop_part.arriving(SHARED, 0, pairs.store.queue_of(SHARED, 0).max, [0, 0], 200)
    turns()
    assert {answer.opaque: [decode_message(answer.body).body] for answer in pairs.channel.sent} == opaques


def test_a_held_pop_that_ends_leaves_the_other_pair_awake(pairs, turns):
    for group, topic in PAIRS:
        send(pairs, topic, 1)
        pop(pairs, group, topic, invisibleTime=4_000)
    (ended, _), (stays, topic) = PAIRS
    assert pairs.pop_answer(consumerGroup=stays, topic=topic, pollTime=60_000) is None
    waits = pairs.request.opaque
    gone = pairs.channel
    pairs.channel = pairs.kit.FakeChannel()
    assert pairs.pop_answer(consumerGroup=ended, topic="x", pollTime=60_000) is None
    pairs.channel.closed = True
    pairs.pop_part.polling.closed(pairs.channel)
    pairs.run(8_000)
    pairs.pop_part.arriving(SHARED, 0, pairs.store.queue_of(SHARED, 0).max, [0], 100)
    turns()
    assert [(answer.opaque, decode_message(answer.body).body) for answer in gone.sent] == [(waits, b"a_x:0")]


def test_retries_of_a_group_that_pulls_are_not_popped_and_the_reverse(pairs):
    put(pairs, SHARED, b"classic", RETRY_TOPIC="t", ORIGIN_MESSAGE_ID="1", REAL_TOPIC=SHARED)
    send(pairs, "x", 1)
    pop(pairs, "g_a", "x")
    pairs.run(14_000)
    assert bodies(pop(pairs, "g_a", "x")) == [b"x:0"]
    assert pop(pairs, "g", "a_x") == []
    for group, expected in (("g_a_x", [b"classic"]), ("g_a", [b"x:0"]), ("g", []), ("reader", [b"classic", b"x:0"])):
        wanted = own_messages(SHARED, group)
        result = pairs.store.get_message(
            SHARED, 0, 0, 32, codes=wanted.codes, property_filter=wanted.properties)
        assert [decode_message(record).body for record in result.records] == expected, group


@pytest.mark.parametrize(("group", "expected", "end"), [
    ("g_a_x", [b"classic"], 2), ("g_a", [b"x:0"], 2), ("reader", [b"classic", b"x:0"], 2), ("g", [], 2)])
@pytest.mark.parametrize("subscription", ["*", "t"])
def test_a_pull_of_a_shared_topic_returns_the_messages_of_its_group(pairs, group, expected, end, subscription):
    put(pairs, SHARED, b"classic", RETRY_TOPIC="t", REAL_TOPIC=SHARED, TAGS="t")
    pairs.send(b"x:0", "x", TAGS="t")
    pop(pairs, "g_a", "x")
    pairs.run(14_000)
    answer = pairs.ask(wiring.pulls(pairs.broker).pull, {
        "consumerGroup": group, "topic": SHARED, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": subscription}, code=11)
    found, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        found.append(decode_message(answer.body[at : at + size]).body)
        at += size
    assert (found, int(answer.ext["nextBeginOffset"])) == (expected, end)


@pytest.mark.parametrize(("user", "group", "found"), [
    ("third", "g_a_x", []), ("third", "mine", []), ("root", "mine", [b"x:0"]), ("first", "g_a", [b"x:0"])])
def test_a_user_of_one_group_does_not_get_the_retries_of_another_one_with_this_name(pairs, user, group, found):
    """Access to the group `g_a_x` is not access to the messages of group `g_a` with topic `x`."""
    people = People(third=[("Group:g_a_x", "Sub"), ("Group:mine", "Sub"), ("Topic:own", "Sub")],
                    first=[("Group:g_a", "Sub"), ("Topic:x", "Sub")])
    pairs.send(b"x:0", "x")
    pop(pairs, "g_a", "x")
    pairs.run(14_000)
    pairs.broker.control = pairs.broker.pop_requests._control = people.control
    fields = {"consumerGroup": group, "topic": SHARED, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
              "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}

    def serve(processor):
        return lambda channel, request: processor(channel, sent_by(user, request))

    answer = pairs.ask(serve(wiring.pulls(pairs.broker).pull), fields, code=11)
    assert [m.body for m in map(decode_message, [answer.body] if answer.body else [])] == found
    assert found or answer.code != 0
    if group == "mine":
        asked = pairs.pop_request(consumerGroup="mine", topic=SHARED)
        inspect = pairs.pop_part.inspect
        for code, processor in ((200_050, pairs.pop_part.service.pop_message), (200_052, inspect.peek),
                                (200_054, inspect.notification), (200_055, inspect.polling_info)):
            if user == "root":
                assert pairs.ask(serve(processor), asked, code=code).code != 16
                continue
            with pytest.raises(RefusalError, match="no permission to pop the retries of other groups") as refused:
                pairs.ask(serve(processor), asked, code=code)
            assert refused.value.code == 16


def test_messages_without_an_origin_are_delivered_as_before(pairs):
    put(pairs, SHARED, b"old", **{"1ST_POP_TIME": "1"})
    assert bodies(pop(pairs, "g_a", "x")) == bodies(pop(pairs, "g", "a_x")) == [b"old"]


def test_a_property_of_a_producer_does_not_give_a_retry_to_another_group(pairs):
    put(pairs, "x", b"mine", REAL_TOPIC=SHARED, ORIGIN_GROUP="g", RETRY_TOPIC="t")
    assert bodies(pop(pairs, "g_a", "x")) == [b"mine"]
    pairs.run(14_000)
    assert pop(pairs, "g", "a_x") == []
    assert bodies(pop(pairs, "g_a", "x")) == [b"mine"]


def test_a_receipt_of_a_foreign_record_brings_nothing_back(pairs):
    send(pairs, "x", 1)
    pop(pairs, "g_a", "x")
    pop(pairs, "g", "a_x")
    pairs.run(14_000)
    one, = pop(pairs, "g_a", "x")
    answer, _ = pairs.change(one, 2_000, "g")  # the same queue and offset, named by the other group
    assert answer.code == 0
    assert pairs.ack(one, "g_a").code == 0
    pairs.run(14_000)
    assert [pop(pairs, group, topic) for group, topic in PAIRS] == [[], []]
    assert pairs.store.queue_of(SHARED, 0).max == 1


@pytest.mark.parametrize("v2", [True, False])
def test_messages_of_both_forms_are_popped_whatever_is_set(open_world, v2):
    world = open_world(broker_config=BrokerConfig(enable_retry_topic_v2=v2))
    for name in pop_retry_topics("orders", "g"):
        put(world, name, name.encode(), ORIGIN_GROUP="g")
    ones = world.pop()
    assert sorted(bodies(ones)) == sorted(name.encode() for name in pop_retry_topics("orders", "g"))
    assert sorted(ExtraInfo.decode(one.receipt).flag for one in ones) == ["1", "2"]
    for one in ones:
        assert one.topic.encode() == one.body
    world.ack(ones[0])
    world.run(14_000)
    again, = world.pop()
    assert (again.body, again.topic) == (ones[1].body, ones[1].topic)


def test_a_pop_with_the_second_form_off_is_woken_by_it(open_world, turns):
    world = open_world()
    assert world.pop_answer(pollTime=60_000) is None
    put(world, "%RETRY%g+orders", b"second", ORIGIN_GROUP="g")
    world.pop_part.arriving("%RETRY%g+orders", 0, 1, [0], 100)
    turns()
    assert [answer.code for answer in world.channel.sent] == [0]


def test_what_a_foreign_group_pops_from_a_retry_topic_comes_back_to_itself(pairs):
    put(pairs, SHARED, b"classic", RETRY_TOPIC="t", ORIGIN_MESSAGE_ID="1", REAL_TOPIC=SHARED)
    for _ in range(2):
        answer = pairs.pop_answer(consumerGroup="h", topic=SHARED)
        assert decode_message(answer.body).body == b"classic"
        pairs.run(14_000)
    assert pairs.store.queue_of(SHARED, 0).max == 1
    assert pairs.store.queue_of(f"%RETRY%h_{SHARED}", 0).max == 2
