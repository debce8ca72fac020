"""A timer that the broker itself puts has the same bytes as any other timer, with fewer checks."""

from __future__ import annotations

import dataclasses

import pytest
from timer_world import CONFIG, START, World

from tailrace.model import MessageExtBrokerInner


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
