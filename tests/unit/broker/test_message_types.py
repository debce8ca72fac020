"""The type of a message, from its properties: as metrics count it, and as a topic with priorities requires it."""

from __future__ import annotations

import pytest

from tailrace.broker.traffic import message_type


@pytest.mark.parametrize(("properties", "kind"), [
    ("", "normal"),
    ("TAGS\x01DELAY\x02", "normal"),
    ("TRAN_MSG\x01true\x02__SHARDINGKEY\x01k\x02", "transaction"),
    ("TRAN_MSG\x01TRUE\x02", "transaction"),
    ("TRAN_MSG\x01false\x02", "normal"),
    ("TRAN_MSG\x01trueish\x02", "normal"),
    ("__SHARDINGKEY\x01k\x02DELAY\x013\x02", "fifo"),
    ("MY__SHARDINGKEY\x01k\x02", "normal"),
    ("A\x01b\x02DELAY\x013\x02", "delay"),
    ("MY_DELAY\x013\x02", "normal"),
    ("TIMER_DELIVER_MS\x011\x02", "delay"),
    ("TIMER_DELAY_SEC\x011\x02", "delay"),
    ("TIMER_DELAY_MS\x011", "delay"),  # the last separator may be missing
    ("__STARTDELIVERTIME\x011\x02", "delay"),
    ("NOTE\x01about TIMER_DELAY_MS\x02", "normal"),
])
def test_the_type_of_a_message(properties, kind):
    assert message_type(properties) == kind


@pytest.mark.parametrize("others", [
    "", "TAGS\x01TRAN_MSG\x02", "TRAN_MSG\x01true\x02", "TRAN_MSG\x01false\x02", "__SHARDINGKEY\x01k\x02",
    "MY__SHARDINGKEY\x01k\x02"])
def test_the_type_is_the_same_if_the_message_is_known_to_wait(others):
    properties = f"{others}TIMER_DELIVER_MS\x015\x02"
    assert message_type(properties, waits=True) == message_type(properties)
