"""Wrong arguments of clients are refused when a client is made, with what to write instead."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta

import pytest

from tailrace import Message
from tailrace.client import (
    AsyncPullConsumer,
    AsyncPushConsumer,
    Credentials,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    Sql,
)
from tailrace.client.admin import AdminClient
from tailrace.client.arguments import in_ms, in_s
from tailrace.client.subscription import Subscription
from tailrace.errors import ConfigError

MAKERS = {
    "producer": lambda **more: Producer(**more),
    "pull": lambda **more: PullConsumer(**more),
    "push": lambda **more: PushConsumer("g", print, topics="orders", **more),
    "admin": lambda **more: AdminClient(**more),
}


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("given", "text"), [
    ({"namesrv": "localhost"}, "namesrv='localhost' has no port; write localhost:9876"),
    ({"namesrv": "a:1;b"}, "namesrv='a:1;b' has no port; write b:9876"),
    ({"namesrv": "localhost:"}, "namesrv='localhost:': '' is not a port; write localhost:9876"),
    ({"namesrv": "localhost:98765"}, "namesrv='localhost:98765': '98765' is not a port; write localhost:9876"),
    ({"namesrv": "[::1]"}, "namesrv='[::1]' has no port; write [::1]:9876"),
    ({"namesrv": "http://localhost:9876"}, "namesrv='http://localhost:9876' is not HOST:PORT; write it without http://"),
    ({"broker": "localhost"}, "broker='localhost' has no port; write localhost:10911"),
    ({"namesrv": 9876}, "namesrv=9876 is not a text; write namesrv='HOST:9876'"),
    ({}, "set either namesrv or broker, as HOST:PORT"),
    ({"namesrv": "n:1", "timeout_ms": "5"}, "timeout_ms '5' has no unit; write 5s or 5ms"),
    ({"namesrv": "n:1", "timeout_ms": -5},
     "timeout_ms=-5 is not a duration: give ms, a timedelta or a text such as '5s'"),
])
def test_a_wrong_server_or_time_is_refused(maker, given, text):
    with pytest.raises(ConfigError) as error:
        maker(**given)
    assert str(error.value) == text


def test_the_first_argument_may_be_the_name_server():
    for maker in (Producer, PullConsumer):
        assert next(iter(inspect.signature(maker).parameters)) == "namesrv"
        with maker("n:1;m:2") as made:
            assert made._awaited._share._target.namesrv == "n:1;m:2"
    with pytest.raises(ConfigError, match=r"group='127.0.0.1:9876' is an address"):
        PushConsumer("127.0.0.1:9876", print, topics="orders")


@pytest.mark.parametrize(("value", "ms"), [
    ("5s", 5000), ("1m30s", 90_000), (timedelta(seconds=2), 2000), (7, 7), (0.5, 0.5)])
def test_a_duration_is_a_number_a_text_or_a_timedelta(value, ms):
    assert in_ms("x", value) == ms
    assert in_s("x", value) == (value if isinstance(value, int | float) else ms / 1000)


@pytest.mark.parametrize("value", [None, True, float("nan"), float("inf"), -1, [], b"5s"])
def test_what_is_no_duration_is_refused(value):
    for read in (in_ms, in_s):
        with pytest.raises(ConfigError, match=r"^wait="):
            read("wait", value)


def test_durations_of_a_push_consumer():
    made = AsyncPushConsumer(
        "g", print, namesrv="n:1", topics="orders", commit_interval_s="2s", suspend_s=timedelta(seconds=3),
        consume_timeout_s="15m", pop_invisible_s="1m", timeout_ms="5s", close_timeout_s="1m",
        start_time_ms="2026-01-31T12:00:00Z")
    assert (made._settings.commit_interval_s, made._retries.suspend_s, made._retries.timeout_s) == (2, 3, 900)
    assert (made._pop_invisible_s, made._close_timeout_s, made._share._target.timeout_ms) == (60, 60, 5000)
    assert made._settings.start.time_ms == 1_769_860_800_000
    for name in ("commit_interval_s", "suspend_s", "consume_timeout_s", "pop_invisible_s", "close_timeout_s"):
        with pytest.raises(ConfigError, match=f"{name} 'soon' is not a duration"):
            AsyncPushConsumer("g", print, namesrv="n:1", topics="orders", **{name: "soon"})
    with pytest.raises(ConfigError, match="start_time_ms 'noon' is not a time"):
        AsyncPushConsumer("g", print, namesrv="n:1", topics="orders", start_time_ms="noon")
    assert AsyncPushConsumer("g", print, namesrv="n:1", topics="t", start_time_ms=datetime(
        2026, 1, 31, tzinfo=UTC))._settings.start.time_ms == 1_769_817_600_000


def test_the_time_of_a_retry_has_the_same_spellings():
    values = ("5m", timedelta(seconds=1), 2.5, None)
    assert [RetryLater(after_s=value).after_s for value in values] == [300, 1, 2.5, None]
    with pytest.raises(ConfigError, match="after_s '5' has no unit; write 5s or 5ms"):
        RetryLater(after_s="5")


@pytest.mark.parametrize("topics", [(), [], {}])
def test_a_consumer_without_topics_does_not_start(topics):
    with pytest.raises(ConfigError, match="g consumes no topic: write topics='orders', or call subscribe first"):
        PushConsumer("g", print, namesrv="n:1", topics=topics).start()


@pytest.mark.parametrize(("tags", "text"), [
    ("new or paid", "tags='new or paid' looks like SQL; write \"new || paid\""),
    ("new AND paid", "tags='new AND paid' looks like SQL; write \"new || paid\""),
    ("new, paid", "tags='new, paid' looks like SQL; write \"new || paid\""),
    ("new | paid", "tags='new | paid' looks like SQL; write \"new || paid\""),
    ("price > 100", "tags='price > 100' looks like SQL; write Sql('price > 100'), or give it as sql"),
    ("a || color = 'red'", "looks like SQL; write Sql("),
    ("region IN ('eu')", "looks like SQL; write Sql("),
    ("a is not null", "looks like SQL; write Sql("),
])
def test_tags_that_look_like_sql_are_refused(tags, text):
    for make in (
        lambda: Subscription.of("orders", tags),
        lambda: AsyncPushConsumer("g", print, namesrv="n:1", topics={"orders": tags}),
    ):
        with pytest.raises(ValueError, match="looks like SQL") as error:
            make()
        assert text in str(error.value)


@pytest.mark.parametrize("tags", ["*", "new", "new || paid", "or", "a=b", "x,y", "order or", "big order", "k=1||in"])
def test_tags_that_are_tags_are_accepted(tags):
    assert Subscription.of("orders", tags).expression == tags


def test_topics_and_tags_are_texts():
    with pytest.raises(TypeError, match=r"tags is one text such as \"new \|\| paid\", not \['new'\]"):
        Subscription.of("orders", ["new"])
    for topic in (None, "", 5):
        with pytest.raises(ValueError, match="topic is the name of a topic, not"):
            AsyncPushConsumer("g", print, namesrv="n:1", topics=[topic])
    assert Subscription.of("orders", sql=Sql("a = 'b'").expression).is_sql


def test_an_unknown_start_is_refused():
    async def read():
        async with AsyncPullConsumer("n:1") as consumer:
            await consumer._offset(None, "earliest")

    with pytest.raises(ValueError, match="start='earliest' is neither 'committed', 'first', 'last' nor an offset"):
        asyncio.run(read())


@pytest.mark.parametrize(("make", "text"), [
    (lambda: Producer("n:1", group=None), "group is the name of a group, not None"),
    (lambda: PullConsumer("n:1", group="h:1"), "group='h:1' is an address, not a name; write namesrv='h:1' and name"),
    (lambda: Producer("n:1", check="x"), "check='x' is not a function"),
    (lambda: Producer("n:1", retries=-1), "retries=-1 is not a whole number from 0 on"),
    (lambda: Producer("n:1", batch_bytes="5"), "batch_bytes='5' is not above 0"),
    (lambda: PushConsumer("g", print, namesrv="n:1", max_reconsume_times="3"),
     "max_reconsume_times='3' is not a whole number from 0 on"),
    (lambda: PushConsumer("g", print, namesrv="n:1", concurrency="20"), "concurrency='20' is not above 0"),
    (lambda: PushConsumer("g", print, namesrv="n:1", topics=None).start(), "g consumes no topic"),
    (lambda: Credentials("u", b"p"), "secret_key of Credentials is a text that is not empty, not bytes"),
    (lambda: Credentials("", "p"), "access_key of Credentials is a text that is not empty, not str"),
])
def test_other_arguments_are_checked_when_a_client_is_made(make, text):
    with pytest.raises(ConfigError) as error:
        make()
    assert text in str(error.value)


def test_a_list_is_not_a_single_one():
    one = Message(topic="orders", body=b"x")
    with Producer("n:1") as producer, PullConsumer("n:1") as consumer:
        for call, text in (
            (lambda: producer.send("text"), "message is a Message(topic=..., body=...), not 'text'"),
            (lambda: producer.send_batch(one), "messages is a list of Message; write send_batch([...]), not Message("),
            (lambda: consumer.assign(MessageQueue("t", "b", 0)), "queues is a list of MessageQueue; write assign("),
        ):
            with pytest.raises(TypeError) as error:
                call()
            assert text in str(error.value)
        with pytest.raises(ConfigError, match="subscribe needs a topic: write subscribe"):
            consumer.subscribe([])
