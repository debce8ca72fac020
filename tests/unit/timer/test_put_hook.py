"""A timer that the broker itself puts has the same bytes as any other timer, with fewer checks."""

from __future__ import annotations

import dataclasses

import pytest
from timer_world import CONFIG, START, World

from tailrace.formats.commitlog import decode_properties
from tailrace.formats.names import TIMER_TOPIC
from tailrace.model import MessageExtBrokerInner
from tailrace.timer.put_hook import ScheduledMessage


def message(deliver, key="K"):
    stored = f"TAGS\1ack\2UNIQ_KEY\1{key}\2TIMER_DELIVER_MS\1{deliver}\2".encode()
    return MessageExtBrokerInner("revive", 3, b"body", stored, born_timestamp=START)


@pytest.mark.parametrize("config", [CONFIG, dataclasses.replace(CONFIG, timer_wheel_enable=False)])
@pytest.mark.parametrize("deliver", [
    START - 1, START, START + 1, START + 1000, START + 1001, START + 50_000, START + (1 << 40)])
@pytest.mark.parametrize("key", ["K", "x" * 32_600])
def test_a_due_time_that_is_known_gives_the_same_message(config, deliver, key):
    hook = World(config=config).hook
    known, looked_up = message(deliver, key), message(deliver, key)
    assert hook.handle_due(known, deliver, key) == hook.handle(looked_up)
    assert known == looked_up


@pytest.mark.parametrize("stored", [
    f"TAGS\1a\2UNIQ_KEY\1K\2TIMER_DELIVER_MS\1{START + 5000}",
    f"TIMER_DELIVER_MS\1{START - 1}\2UNIQ_KEY\1K\2TAGS\1a\2TIMER_DELIVER_MS\1{START + 5000}\2",
    f"REAL_TOPIC\1forged\2UNIQ_KEY\1K\2REAL_QID\0017\2TAGS\1a\2TIMER_DELIVER_MS\1{START + 5000}\2",
    "TIMER_OUT_MS\1\2DELAY\1x\2TAGS\1a\2TIMER_DELAY_MS\0015000\2UNIQ_KEY\1K",
    "TIMER_DELIVER_MS\1x\2UNIQ_KEY\1K\2TIMER_DELAY_SEC\0015\2TIMER_DELAY_MS\1y\2TAGS\1a\2",
])
def test_odd_properties_of_a_producer_give_a_timer_with_the_broker_s_own(stored):
    """No separator at the end, repeated and empty properties, those that only the broker sets."""
    made = MessageExtBrokerInner("orders", 3, b"body", stored.encode(), born_timestamp=START)
    waiting = World().hook.handle(made)
    assert waiting == ScheduledMessage("orders", 3, START + 4000, "K")
    found = decode_properties(made.properties)
    assert made.properties.endswith(b"\2")
    assert (made.topic, made.queue_id, found["TAGS"], found["UNIQ_KEY"]) == (TIMER_TOPIC, 0, "a", "K")
    assert (found["REAL_TOPIC"], found["REAL_QID"], found["TIMER_OUT_MS"]) == ("orders", "3", str(START + 4000))


@pytest.mark.parametrize(("stored", "status"), [
    ("TIMER_DELIVER_MS\1soon\2", "WHEEL_TIMER_MSG_ILLEGAL"),
    (f"TIMER_DEL_UNIQKEY\1K\2TIMER_DELIVER_MS\1{START - 1}\2", "WHEEL_TIMER_MSG_ILLEGAL"),
    ("TIMER_OUT_MS\0015\2TIMER_DELAY_MS\0015000\2", None), ("XTIMER_DELAY_MS\0015000\2", None),
    ("TIMER_DELAY_MS\1\2", None), (f"TIMER_DELIVER_MS\1{START}\2", None)])
def test_what_is_no_timer_stays_as_it_is(stored, status):
    made = MessageExtBrokerInner("orders", 3, b"body", stored.encode(), born_timestamp=START)
    found = World().hook.handle(made)
    assert (found is None) if status is None else (found.status.name == status)
    assert (made.topic, made.properties) == ("orders", stored.encode())
