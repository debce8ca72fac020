"""The FastStream broker without a server, and its test broker."""

from __future__ import annotations

import asyncio

import pytest
from faststream import AckPolicy
from faststream.exceptions import (
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    SetupError,
    SubscriberNotFound,
)
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from tailrace.errors import ConfigError, MessageIllegalError
from tailrace.model import MessageExt
from tailrace_faststream import (
    RocketmqBroker,
    RocketmqMessage,
    RocketmqResponse,
    RocketmqRouter,
    TestRocketmqBroker,
    message,
)


class Order(BaseModel):
    number: int


@pytest.fixture
def broker():
    return RocketmqBroker(namesrv="127.0.0.1:1", timeout_ms=300)


def test_handlers_get_decoded_messages_by_topic_group_and_tags(broker):
    seen = []

    @broker.subscriber("orders", group="stock", tags="new || paid")
    async def stock(order: Order, message: RocketmqMessage):
        seen.append(("stock", order.number, message.headers, message.message.tags, message.message.keys))

    @broker.subscriber("orders", group="audit")
    def audit(order: dict):
        seen.append(("audit", order["number"]))

    @broker.subscriber("orders", group="audit")
    async def another_member(order: dict):
        seen.append(("audit twice", order["number"]))

    async def test():
        async with TestRocketmqBroker(broker) as tested:
            await tested.publish(Order(number=1), "orders", tags="new", keys=["1"], headers={"shop": "north"})
            await tested.publish(Order(number=2), "orders", tags="other")
            stock.mock.assert_called_once_with({"number": 1})

    asyncio.run(test())
    assert sum(one[0].startswith("audit") for one in seen) == 2
    assert ("stock", 1, {"shop": "north"}, "new", ["1"]) in seen


def test_results_are_published_and_routers_have_prefixes(broker):
    router = RocketmqRouter("shop_")
    got = []

    @router.subscriber("questions", group="g")
    @router.publisher("answers", tags="t", headers={"from": "here"})
    async def answer(text: str):
        return RocketmqResponse(text.upper(), keys=["k"])

    @broker.subscriber("shop_answers", group="g")
    async def read(text: str, message: RocketmqMessage):
        got.append((text, message.message.tags, message.message.keys, message.headers))

    broker.include_router(router)

    async def test():
        async with TestRocketmqBroker(broker) as tested:
            await tested.publish("why?", "shop_questions")
            reply = await tested.request("how?", "shop_questions")
            assert await reply.decode() == "HOW?"
            with pytest.raises(SubscriberNotFound):
                await tested.request("how?", "other")

    asyncio.run(test())
    assert got[0] == ("WHY?", "t", ["k"], {"from": "here"})


def test_an_exception_of_a_handler_is_raised_by_the_test_broker_and_its_decisions_are_seen(broker):
    states = []

    @broker.subscriber("failing", group="g")
    async def fail(text: str):
        raise ValueError(text)

    @broker.subscriber("later", group="g")
    async def later(text: str, message: RocketmqMessage):
        states.append(message.raw_message)
        raise NackMessage(delay=5)

    @broker.subscriber("manual", group="g", ack_policy=AckPolicy.MANUAL)
    async def manual(text: str, message: RocketmqMessage):
        states.append(message.raw_message)
        if text == "no":
            await message.reject()

    async def test():
        async with TestRocketmqBroker(broker) as tested:
            with pytest.raises(ValueError, match="boom"):
                await tested.publish("boom", "failing")
            await tested.publish("x", "later")
            await tested.publish("no", "manual")
            await tested.publish("yes", "manual")
        assert states[0].settled.result().after_s == 5
        assert states[1].settled.result().delay_level == -1
        assert not states[2].settled.done()

    asyncio.run(test())


@pytest.mark.parametrize(("options", "problem"), [
    ({"group": ""}, "topic and group"), ({"max_workers": 0}, "max_workers=0"), ({"start": "now"}, "neither"),
    ({"invisible_s": 1}, "invisible_s=1"), ({"max_reconsume_times": -1}, "negative"),
    ({"in_order": True, "ack_policy": AckPolicy.ACK_FIRST}, "ACK_FIRST"), ({"topic_queues": 0}, "topic_queues"),
])
def test_wrong_options_of_subscribers_are_refused(broker, options, problem):
    with pytest.raises(SetupError, match=problem):
        broker.subscriber("orders", **{"group": "g", **options})


def test_what_is_not_supported_says_so(broker):
    subscriber = broker.subscriber("orders", group="g")
    sql = broker.subscriber("priced", group="g", sql="price > 1")

    @sql
    async def handle(text: str):
        pass

    async def test():
        with pytest.raises(FeatureNotSupportedException):
            await subscriber.get_one()
        with pytest.raises(FeatureNotSupportedException, match="AsyncPullConsumer"):
            async for _ in subscriber:
                pass
        async with TestRocketmqBroker(broker) as tested:
            with pytest.raises(FeatureNotSupportedException, match="sql"):
                await tested.publish("x", "priced")
            with pytest.raises(MessageIllegalError, match="KEYS, UNIQ_KEY: RocketMQ uses"):
                await tested.publish("x", "orders", headers={"UNIQ_KEY": "1", "KEYS": "2"})
            with pytest.raises(MessageIllegalError, match="delay and deliver_at"):
                await tested.publish("x", "orders", delay=1, deliver_at=1)

    asyncio.run(test())
    with pytest.raises(ConfigError, match="either namesrv or broker"):
        RocketmqBroker()
    with pytest.raises(TypeError, match="RocketmqRouter"):
        broker.include_router(object())


def test_a_negative_delay_is_refused_by_nack():
    async def test():
        stored = MessageExt("t", *[0] * 4, b"", *[0] * 4, ("", 0), 0, ("", 0), 0, 0)
        parsed = await message.parse(message.Incoming(stored))
        with pytest.raises(ValueError, match="delay=-1"):
            await parsed.nack(-1)
        assert parsed.committed is None

    asyncio.run(test())


def test_a_broker_without_connection_says_so(broker):
    async def test():
        with pytest.raises(IncorrectState, match="not connected"):
            await broker.publish("x", "orders")
        assert await broker.ping(timeout=1) is False

    asyncio.run(test())


def test_the_schema_names_topics_and_payloads(broker):
    @broker.subscriber("orders", group="stock")
    @broker.publisher("shipments")
    async def ship(order: Order) -> str:
        """Ship an order."""
        return "shipped"

    for version in ("2.6.0", "3.0.0"):
        text = str(AsyncAPI(broker, schema_version=version).to_specification().to_jsonable())
        assert "rocketmq" in text
        assert "orders:Ship" in text
        assert "shipments" in text
        assert "number" in text
        assert "Ship an order." in text


def test_a_batch_subscriber_gets_lists(broker):
    seen = []

    @broker.subscriber("orders", group="stock", batch=True)
    async def stock(orders: list[Order], message: RocketmqMessage):
        seen.append((orders, message.batch_headers, [one.keys for one in message.messages]))

    async def test():
        async with TestRocketmqBroker(broker) as tested:
            await tested.publish({"number": 1}, "orders", keys=["1"], headers={"shop": "north"})

    asyncio.run(test())
    assert seen == [([Order(number=1)], [{"shop": "north"}], [["1"]])]


def test_a_published_batch_comes_as_a_list_or_one_by_one(broker):
    lists, ones = [], []

    @broker.subscriber("orders", group="lists", batch=True)
    async def take_all(orders: list[Order]):
        lists.append([one.number for one in orders])

    @broker.subscriber("orders", group="ones", tags="new")
    async def take_one(order: Order, message: RocketmqMessage):
        ones.append((order.number, message.headers, message.correlation_id))

    async def test():
        async with TestRocketmqBroker(broker) as tested:
            await tested.publish_batch(
                Order(number=1), {"number": 2}, topic="orders", tags="new", headers={"a": "b"}, correlation_id="c")
            await tested.publish_batch(Order(number=3), topic="orders")
            with pytest.raises(MessageIllegalError, match="has no message"):
                await tested.publish_batch(topic="orders")

    asyncio.run(test())
    assert lists == [[1, 2], [3]]
    assert ones == [(1, {"a": "b"}, "c"), (2, {"a": "b"}, "c")]


@pytest.mark.parametrize("topic", ["logs.{level}", "logs-*", "logs.#", "a,b"])
def test_patterns_and_paths_of_topics_are_refused(broker, topic):
    with pytest.raises(SetupError, match="no pattern or path"):
        broker.subscriber(topic, group="g")


def test_a_batch_has_at_least_one_message(broker):
    with pytest.raises(SetupError, match="max_records=0 is not above 0"):
        broker.subscriber("t", group="g", batch=True, max_records=0)
