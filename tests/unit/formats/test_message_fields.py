"""A message that is decoded field by field equals one that is decoded in one call."""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.formats.commitlog import decode_message, pack_host
from tailrace.formats.message_fields import decode_when_used
from tailrace.kernels import record
from tailrace.model import DecodedWhenUsed, MessageExt

FIELDS = [field.name for field in dataclasses.fields(MessageExt)]
hosts = st.sampled_from([pack_host("10.1.2.3", 4660), pack_host("fe80::1", 10911)])
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)


@st.composite
def records(draw):
    body = draw(st.binary(max_size=50))
    properties = draw(st.sampled_from([
        b"", b"a\1b\2", b"KEYS\1x y\2TAGS\1t", b"UNIQ_KEY\1\xff\2a\1\2\1b\2", "é\1ü\2".encode()]))
    room = bytearray(1024)
    size = record.encode(
        room, 0, len(room), draw(st.integers(0, 1 << 50)), draw(st.integers(0, 9)), draw(int32), draw(int64),
        0, draw(int64), draw(hosts), draw(int64), draw(hosts), draw(int32), draw(int64), body,
        record.crc32(body, 0, len(body)) & 0x7FFFFFFF, draw(st.sampled_from([b"T", b"t" * 127, b"%RETRY%" * 20])),
        properties, draw(st.booleans()))
    return bytes(room[:size])


@settings(max_examples=100, deadline=None)
@given(records(), st.permutations(FIELDS))
def test_every_field_is_the_same_in_any_order(stored, names):
    whole, late = decode_message(stored), decode_when_used(stored)
    for name in names:
        assert getattr(late, name) == getattr(whole, name), name
    for name in ("tags", "keys", "unique_key"):
        assert getattr(decode_when_used(stored), name) == getattr(whole, name)
    assert decode_when_used(stored) == whole
    assert repr(decode_when_used(stored)) == repr(whole)


@settings(max_examples=20, deadline=None)
@given(records())
def test_such_a_message_can_be_copied_changed_and_pickled(stored):
    whole, late = decode_message(stored), decode_when_used
    assert type(late(stored)) is MessageExt
    for made in (
        copy.copy(late(stored)), copy.deepcopy(late(stored)), pickle.loads(pickle.dumps(late(stored))),
        pickle.loads(pickle.dumps(whole)), dataclasses.replace(late(stored))):
        assert made == whole
    assert dataclasses.replace(late(stored), body=b"other") == dataclasses.replace(whole, body=b"other")
    assert dataclasses.asdict(late(stored)) == dataclasses.asdict(whole)


def record_of(body):
    room = bytearray(512)
    size = record.encode(
        room, 0, len(room), 5, 6, 0, 7, 0, 8, pack_host("::1", 1), 9, pack_host("10.0.0.1", 2), 0, 0, body,
        record.crc32(body, 0, len(body)) & 0x7FFFFFFF, b"T", b"a\1b\2", False)
    return bytes(room[:size])


def test_what_was_set_is_not_decoded_over_and_a_field_is_decoded_once(monkeypatch):
    message = decode_when_used(record_of(b"hello"))
    message.body = b"mine"
    assert (message.topic, message.queue_offset, message.body) == ("T", 7, b"mine")
    assert message.properties is message.properties
    monkeypatch.setattr(DecodedWhenUsed, "decoders", {})
    assert message.properties == {"a": "b"}
    with pytest.raises(AttributeError):
        _ = message.flag


@pytest.mark.parametrize("message", [
    decode_when_used(record_of(b"x")), decode_message(record_of(b"x"))], ids=["late", "whole"])
def test_an_unknown_attribute_raises_attribute_error(message):
    with pytest.raises(AttributeError, match="'MessageExt' object has no attribute 'sise'"):
        _ = message.sise
    assert not hasattr(message, "__nothing__")
    with pytest.raises(AttributeError):
        message.sise = 1
