"""A message that cannot be sent is refused when it is made, with what to write instead."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from tailrace import Message, MessageExt
from tailrace.errors import MessageIllegalError
from tailrace.formats.recall_handle import parse_handle
from tailrace.model import GetMessageResult, GetMessageStatus


@pytest.mark.parametrize(("fields", "text"), [
    ({"body": "text"}, "body: must be bytes, not str; encode a text first: body=text.encode()"),
    ({"body": None}, "body: must be bytes, not NoneType; encode a text first: body=text.encode()"),
    ({"keys": "42"}, "keys: must be a list of strings, not '42'; write keys=['42']"),
    ({"keys": [42]}, "keys: must be a list of strings, not [42]"),
    ({"tags": ["new"]}, "tags: is one text, not ['new']"),
    ({"properties": {"price": 5}}, "properties: 'price': 5: names and values are texts; use str()"),
    ({"delay": "5"}, "delay: '5' has no unit; write 5s or 5ms"),
    ({"delay": "soon"}, "delay: 'soon' is not a duration; write 500ms, 5s, 10m, 1h30m or 2d"),
    ({"delay": -1}, "delay: -1 is negative"),
    ({"delay": float("nan")}, "delay: nan is not a finite number"),
    ({"delay": [5]}, "delay: [5] is not a finite number"),
    ({"delay": timedelta(seconds=-1)}, "delay: datetime.timedelta(days=-1, seconds=86399) is not a duration from 0 on"),
    ({"deliver_at": "tomorrow"},
     "deliver_at: 'tomorrow' is not a time; write 2026-01-31T12:00 or milliseconds since 1970"),
    ({"deliver_at": 1_795_733_410.5},
     "deliver_at: 1795733410.5 looks like seconds; give milliseconds, a datetime or ISO 8601"),
    ({"deliver_at": -1}, "deliver_at: -1 is negative"),
    ({"delay": 5, "delay_level": 3}, "delay: delay and delay_level are given; give one of them"),
    ({"delay": 0, "deliver_at": 0}, "delay: delay and deliver_at are given; give one of them"),
    ({"delay_level": -1}, "delay_level: must be a whole number from 0 on, not -1"),
    ({"delay_level": "3"}, "delay_level: must be a whole number from 0 on, not '3'"),
    ({"flag": 1 << 31}, "flag: must be a whole number of 32 bits, not 2147483648"),
    ({"flag": 0.0}, "flag: must be a whole number of 32 bits, not 0.0"),
    ({"flag": "x"}, "flag: must be a whole number of 32 bits, not 'x'"),
])
def test_a_wrong_field_is_refused_with_what_to_write(fields, text):
    with pytest.raises(MessageIllegalError) as error:
        Message(**{"topic": "orders", "body": b"x", **fields})
    assert str(error.value) == text


@pytest.mark.parametrize(("given", "seconds"), [
    ("5s", 5), ("1h30m", 5400), ("500ms", 0.5), (timedelta(minutes=2), 120), (5, 5), (0.25, 0.25), (0, 0)])
def test_a_delay_has_several_spellings(given, seconds):
    assert Message(topic="orders", body=b"x", delay=given).delay == seconds


@pytest.mark.parametrize("given", [
    1_769_860_800_000, 1_769_860_800_000.0, "1769860800000", "2026-01-31T12:00:00Z",
    datetime(2026, 1, 31, 12, tzinfo=UTC)])
def test_a_time_has_several_spellings(given):
    assert Message(topic="orders", body=b"x", deliver_at=given).deliver_at == 1_769_860_800_000


def test_fields_that_may_be_given_are_kept():
    for body in (b"x", bytearray(b"x"), memoryview(b"x")):
        made = Message(topic="t", body=body, keys=("a", "b"), properties={"p": "1"}, flag=-(1 << 31), delay_level=3)
        assert dataclasses.replace(made, tags="new") == Message(
            topic="t", body=body, keys=("a", "b"), properties={"p": "1"}, flag=-(1 << 31), delay_level=3, tags="new")
    assert pickle.loads(pickle.dumps(Message(topic="t", body=b"x", delay="5s"))).delay == 5


def test_the_text_of_a_message_has_the_beginning_of_a_long_body():
    assert repr(Message(topic="orders", body=b"42 apples", keys=["42"])) == (
        "Message(topic='orders', body=b'42 apples', keys=['42'])")
    shown = repr(Message(topic="orders", body=b"x" * 1_000_000, tags="new"))
    assert shown == f"Message(topic='orders', body={b'x' * 64!r}... (1,000,000 bytes), tags='new')"
    stored = MessageExt(*["orders", 0, 7, 100, 1_000_100, b"y" * 1_000_000, 0, 0, 0, 5, ("h", 1), 6, ("h", 1), 0, 0])
    assert "body=b'yyyy" in repr(stored)
    assert "(1,000,000 bytes)" in repr(stored)
    assert len(repr(stored)) < 600
    assert len(repr(GetMessageResult(GetMessageStatus.FOUND, data=b"z" * 1_000_000))) < 400


@pytest.mark.parametrize("handle", [None, "", 5, b"x"])
def test_what_is_no_recall_handle_is_refused(handle):
    with pytest.raises(MessageIllegalError, match="give the recall_handle of the result"):
        parse_handle(handle)
