"""Both twins of the kernels that requests need give the same results, on good and on damaged bytes."""

import functools
import itertools
import operator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import kernels
from tailrace.formats import names
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.names import MARKS
from tailrace.formats.remoting import RemotingCommand, encode, encode_binary_header
from tailrace.kernels.properties import kind_and_key
from tailrace.kernels.shared import constants as C
from tailrace.model import create_message_id

RECORD, HEADER, PROPERTIES = map(interpreted, ("record", "header", "properties"))
pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="no compiled kernels to compare with")
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1,
                max_size=12)


PARTS = [
    *(name.encode() + b"\1" for name in MARKS), b"UNIQ_KEY\1", b"WAIT\1", b"false\2", b"true\2", b"TAGS\1",
    b"a\1", b"XDELAY\1", b"\2", b"b", b"DELA", b"Y\1", b"\1", b"TIMER_D", b"_", b"\0", b"\xff"]
stored_properties = st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join)


def kind_by_reading(stored):
    """The classification by words of the table, as slow as it is plain."""
    kind, pieces = 0, stored.split(b"\2")
    for number, piece in enumerate(pieces):
        name, separator, value = piece.partition(b"\1")
        if not (name and separator and value):
            kind |= 0 if number == len(pieces) - 1 and not piece else C.IRREGULAR
        elif name == b"WAIT":
            kind |= C.NO_WAIT if value == b"false" else 0
        else:
            kind |= getattr(C, MARKS.get(name.decode("latin-1"), ""), 0)
    return kind if pieces[-1] == b"" else kind | C.IRREGULAR


@quick
@given(stored_properties)
def test_the_kind_of_a_message_is_that_of_the_table(stored):
    for module in (PROPERTIES, kernels.properties):
        kind, key = module.kind_and_key(stored)
        assert kind == kind_by_reading(stored)
        keys = [piece[9:] for piece in stored.split(b"\2") if piece.startswith(b"UNIQ_KEY\1") and len(piece) > 9]
        assert key == (keys[0] if keys else b"")


def test_a_plain_message_has_no_name_that_is_not_known_to_be_plain():
    declared = itertools.takewhile(lambda name: name != "SYSTEM_PROPERTIES", vars(names))
    known = {getattr(names, one) for one in declared if one.isupper()} | names.SYSTEM_PROPERTIES
    assert known - MARKS.keys() == {"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "INSTANCE_ID"}
    assert kind_and_key(b"TAGS\1a\2KEYS\1b\2UNIQ_KEY\1c\2WAIT\1true\2INSTANCE_ID\1d\2MINE\1e\2") == (0, b"c")
    for name, mark in MARKS.items():
        assert kind_and_key(name.encode() + b"\1x\2") == (getattr(C, mark), b"")


@quick
@given(st.lists(stored_properties, min_size=1, max_size=4), st.sampled_from([b"", b"INNER_MULTI_DISPATCH\1q\2"]))
def test_a_batch_whose_messages_may_have_a_property_that_it_cannot_honour_is_found(properties, body):
    data = encode_batch([(0, body, stored) for stored in properties])
    found = RECORD.check_batch(data)
    assert found == kernels.record.check_batch(data)
    assert found[0] == len(properties)
    assert found[4] == functools.reduce(operator.or_, map(kind_by_reading, properties))


@quick
@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=40), st.sampled_from([8, 20]))
def test_message_ids_are_those_of_the_model(positions, length):
    host = bytes(range(0xE0, 0xE0 + length))
    wanted = ",".join(create_message_id(host, position) for position in positions).encode()
    for module in (HEADER, kernels.header):
        assert module.message_ids(host.hex().upper().encode(), positions) == wanted


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


@quick
@given(st.integers(-32768, 32767), st.dictionaries(words, words, max_size=4), st.none() | words,
       st.data())
def test_headers_are_the_same(code, ext, remark, data):
    good = encode_binary_header(code, 3, 479, 7, 1, remark, ext)
    assert kernels.header.decode_header(good, 0, len(good)) == (code, 3, 479, 7, 1, remark, ext)
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    bad = bytes(bad[: data.draw(st.integers(0, len(bad)))])
    assert outcome(HEADER.decode_header, bad, 0, len(bad)) == outcome(
        kernels.header.decode_header, bad, 0, len(bad))


@quick
@given(st.integers(0, 32767), words, st.sampled_from([0, 1]), st.binary(max_size=30), st.integers(-1, 40))
def test_the_first_bytes_of_a_frame_tell_its_code(code, value, kind, odd, at):
    frame = encode(RemotingCommand(code, {"field": value}, b"body", serialize_type=kind))
    for module in (HEADER, kernels.header):
        assert module.code_at(odd + frame, len(odd)) == code
        assert module.code_at(frame[:16], 0) == module.code_at(b"", 0) == -1
    assert kernels.header.code_at(odd + frame[:at], at) == HEADER.code_at(odd + frame[:at], at)
    mixed = frame[:8] + odd + frame[8 + len(odd):]
    assert kernels.header.code_at(mixed, 0) == HEADER.code_at(mixed, 0)
