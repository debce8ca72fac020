"""Notifications that carry an expression (200054), and pops of more queues than one turn looks at."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.broker.pop import polling
from tailrace.broker.statistics.traffic import CountedArrivals
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.filters import compilation
from tailrace.node.topic_config import TopicConfig
from tailrace.requests import reply

SQL = BrokerConfig(enable_property_filter=True)


@pytest.fixture
def world(open_world):
    made = open_world(broker_config=SQL)
    made.store.set_message_arriving_listener(CountedArrivals(made.broker.traffic, made.pop_part))
    return made


@pytest.fixture
def notify(world):
    def asked(**changes):
        ext = {"consumerGroup": "g", "topic": "orders", "queueId": -1, "pollTime": 15_000,
               "bornTime": world.clock.now_ms(), **changes}
        answer = world.ask(world.pop_part.inspect.notification, ext, code=200_054)
        return answer and answer.ext["hasMsg"]

    return asked


def test_only_wanted_tags_count_and_wake(world, notify, turns):
    world.send(TAGS="a")
    assert notify(expType="TAG", exp="a") == "true"
    assert notify(expType="TAG", exp="b || c") is None
    turns()
    assert world.channel.sent == []
    world.send(TAGS="a")
    turns()
    assert world.channel.sent == []
    world.send(TAGS="c")
    turns()
    assert [answer.ext["hasMsg"] for answer in world.channel.sent] == ["true"]


def test_a_long_queue_is_not_searched_for_tags(world, notify):
    for _ in range(64):
        world.send(TAGS="a")
    assert notify(expType="TAG", exp="b") == "true"  # maxMessageFilterNumForNotification
    world.pop()
    assert notify(expType="TAG", exp="b") is None


def test_only_wanted_properties_wake(world, notify, turns):
    assert notify(expType="SQL92", exp="price > 5") is None
    world.send(price="1")
    turns()
    assert world.channel.sent == []
    world.send(price="9")
    turns()
    assert [answer.ext["hasMsg"] for answer in world.channel.sent] == ["true"]
    # As in RocketMQ, a queue that has messages is not searched for properties.
    assert notify(expType="SQL92", exp="price > 100") == "true"


def test_an_expression_that_cannot_be_parsed_is_refused(world, notify):
    with pytest.raises(RefusalError, match="parse the consumer's subscription failed") as refused:
        notify(expType="SQL92", exp="price >")
    assert refused.value.code == 23
    with pytest.raises(RefusalError, match="exp has 10000 characters, over the limit of 8192"):
        notify(expType="SQL92", exp="x" * 10_000)


@pytest.mark.parametrize("ext", [{"exp": "b"}, {"expType": "TAG"}, {"expType": "TAG", "exp": "b"}])
def test_without_type_or_expression_or_setting_nothing_is_filtered(open_world, kit, ext):
    world = open_world(broker_config=BrokerConfig(use_message_filter_for_notification=len(ext) == 1))
    world.send(TAGS="a")
    answer = world.ask(world.pop_part.inspect.notification, {
        "consumerGroup": "g", "topic": "orders", "queueId": -1, "pollTime": 0, "bornTime": 0, **ext}, code=200_054)
    assert answer.ext["hasMsg"] == "true"


def test_few_expressions_are_evaluated_for_an_arrival(world, notify, turns, monkeypatch):
    monkeypatch.setattr(polling, "EVALUATED_MAX", 2)
    for price in range(4):
        assert notify(expType="SQL92", exp=f"price > {10 + price}") is None
    world.send(price="1")
    turns()
    assert len(world.channel.sent) == 1  # the third one is woken without a look


@pytest.mark.parametrize("serve", ["pop", "notification"])
def test_other_requests_are_served_while_many_queues_are_looked_at(world, loop, monkeypatch, serve):
    world.store.topics.update(TopicConfig(topic_name="wide", read_queue_nums=500, write_queue_nums=500))
    if not world.broker.groups.select("g"):
        world.pop()
    for queue_id in (3, 499):
        world.send(b"%d" % queue_id, topic="wide", queue_id=queue_id)
    monkeypatch.setattr(reply, "TURN_S", 0.0)
    others = []

    async def ask():
        ext = world.pop_request(topic="wide", pollTime=100)
        if serve == "pop":
            assert world.ask(world.pop_part.service.pop_message, ext) is None
        else:
            assert world.ask(world.pop_part.inspect.notification, ext, code=200_054) is None
        assert world.channel.held == 1
        while not world.channel.sent:
            others.append(1)
            await asyncio.sleep(0)

    loop.run_until_complete(asyncio.wait_for(ask(), 60))
    answer = world.channel.sent[0]
    if serve == "pop":
        assert answer.ext["restNum"] == "0"
        assert sorted(answer.ext["msgOffsetInfo"].split(";")) == ["0 3 0", "0 499 0"]
        assert len(others) > 400
    else:
        assert answer.ext["hasMsg"] == "true"
    assert (world.channel.held, world.channel.held_bytes) == (0, 0)


def test_a_pop_of_a_connection_that_has_closed_takes_no_more_messages(world, loop, monkeypatch):
    world.store.topics.update(TopicConfig(topic_name="wide", read_queue_nums=100, write_queue_nums=100))
    world.pop()
    for queue_id in range(100):
        world.send(topic="wide", queue_id=queue_id)
    monkeypatch.setattr(reply, "TURN_S", 0.0)

    async def ask():
        assert world.pop_answer(topic="wide", maxMsgNums=32) is None
        world.channel.closed = True
        for _ in range(10):
            await asyncio.sleep(0)

    loop.run_until_complete(ask())
    assert world.channel.sent == []
    assert world.channel.held == 0
    assert world.broker.pop_metrics.records_put.get(("g", "wide", "CK", "PUT_OK"), 0) <= 1


def test_a_long_expression_is_compiled_beside_the_event_loop(world, loop, monkeypatch):
    text = " or ".join(f"price = {n}" for n in range(500, 1000, 3))
    assert len(text) > compilation.AT_ONCE_MAX
    threads, real = [], compilation._compile

    def compiled(one, *more):
        threads.append(asyncio._get_running_loop())
        return real(one, *more)

    monkeypatch.setattr(compilation, "_compile", compiled)
    world.send(price="503")

    async def ask():
        assert world.pop_answer(expType="SQL92", exp=text) is None
        while not world.channel.sent:
            await asyncio.sleep(0.001)

    loop.run_until_complete(asyncio.wait_for(ask(), 60))
    assert world.channel.sent[0].code == 0
    assert threads[0] is None  # first in a thread, then it is known


def test_pops_and_notifications_with_sql_need_no_setting(open_world):
    world = open_world()  # enablePropertyFilter=false, which is about pulls, as in RocketMQ
    world.send(price="9")
    world.send(price="1")
    assert [one.message.properties["price"] for one in world.pop(expType="SQL92", exp="price > 5")] == ["9"]
    with pytest.raises(RefusalError, match="parse the consumer's subscription failed") as refused:
        world.pop(expType="NOPE", exp="price")
    assert refused.value.code == 23
