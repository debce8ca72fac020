"""The Dramatiq broker without a server."""

from __future__ import annotations

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueNotFound

from tailrace.errors import ConfigError
from tailrace.model import Message, MessageExt
from tailrace.testing.sim_clock import SimClock
from tailrace_dramatiq import DramatiqBroker
from tailrace_dramatiq.delays import DUE, STEP_MS, at_its_time, later, left_ms


@pytest.fixture
def broker():
    made = DramatiqBroker(broker="127.0.0.1:1", timeout_ms=500, retries=0)
    yield made
    made.close()


def test_a_queue_is_a_topic_and_has_no_delay_queue(broker):
    @dramatiq.actor(broker=broker, queue_name="mails")
    def mail():
        pass

    assert broker.get_declared_queues() == {"mails"}
    assert broker.get_declared_delay_queues() == set()
    assert broker.topic_of("mails") == "dramatiq_mails"


@pytest.mark.parametrize("name", ["a.b", "x" * 120, "ü"])
def test_a_name_that_rocketmq_does_not_allow_is_refused(broker, name):
    with pytest.raises(ConfigError, match="give the actors another queue_name"):
        broker.declare_queue(name)
    assert broker.get_declared_queues() == set()


def test_what_is_not_declared_is_refused(broker):
    message = dramatiq.Message("other", "mail", (), {}, {})
    for call in (lambda: broker.enqueue(message), lambda: broker.consume("other"), lambda: broker.join("other"),
                 lambda: broker.flush("other")):
        with pytest.raises(QueueNotFound):
            call()


def test_a_priority_of_rabbitmq_is_refused(broker):
    broker.declare_queue("mails")
    message = dramatiq.Message("mails", "mail", (), {}, {"broker_priority": 5})
    with pytest.raises(ConfigError, match="broker_priority is an option of RabbitMQ"):
        broker.enqueue(message)


def test_a_broker_that_cannot_be_reached_is_an_error_that_dramatiq_knows(broker):
    broker.declare_queue("mails")
    with pytest.raises(ConnectionClosed):
        broker.enqueue(dramatiq.Message("mails", "mail", (), {}, {}))
    with pytest.raises(ConnectionClosed):
        broker.consume("mails")


@pytest.mark.parametrize(("option", "value"), [
    ("invisible_s", 4), ("invisible_s", 301), ("topic_queues", 0), ("timeout_ms", -1)])
def test_wrong_options_are_refused(option, value):
    with pytest.raises(ConfigError, match=option):
        DramatiqBroker(broker="127.0.0.1:1", **{option: value})
    with pytest.raises(ConfigError, match="either namesrv or broker"):
        DramatiqBroker()


def stored(message):
    return MessageExt(message.topic, 0, 0, 0, 0, message.body, 0, 0, 0, 0, ("", 0), 0, ("", 0), 0, 0, {
        **message.properties, "KEYS": " ".join(message.keys), "TAGS": message.tags or ""})


def test_a_long_delay_goes_in_steps_and_a_short_one_at_once():
    clock = SimClock(1_000_000)
    message = Message(topic="t", body=b"x", tags="actor", keys=["id"])
    now = clock.now_ms()
    assert later(message, now - 1, clock) == message
    assert later(message, now + 5, clock).deliver_at == now + 5
    due = now + 2 * STEP_MS + 7
    first = later(message, due, clock)
    assert (first.deliver_at, first.properties) == (now + STEP_MS, {DUE: str(due)})
    arrived = stored(first)
    assert left_ms(arrived, clock) == due - now
    assert left_ms(stored(message), clock) == 0
    second = at_its_time(arrived, clock)
    assert (second.body, second.tags, second.keys) == (b"x", "actor", ["id"])
