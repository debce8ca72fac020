"""The type of a message, from its properties: as metrics count it, and as a topic with priorities requires it."""

from __future__ import annotations

import pytest

from tailrace.broker.statistics.traffic import message_type
from tailrace.kernels.properties import kind_and_key


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
    raw = properties.encode()
    assert message_type(kind_and_key(raw)[0], raw) == kind
