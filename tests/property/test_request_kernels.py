"""Both twins of the kernels that requests need give the same results, on good and on damaged bytes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import kernels
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.remoting import encode_binary_header
from tailrace.model import create_message_id

RECORD, HEADER = map(interpreted, ("record", "header"))
pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="no compiled kernels to compare with")
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1,
                max_size=12)


ODD = [b"INNER_MULTI_", b"DELAY\1", b"TIMER_D", b"TRAN_", b"__LI", b"_SYS"]


@quick
@given(st.lists(st.lists(st.sampled_from([
    b"a\1", b"\2", b"b", b"INNER_MULTI_DISPATCH\1", b"XINNER_MULTI_DISPATCH\1", b"INNER_", b"\1", b"DELAY", b"DELA",
    b"TIMER_OUT_MS\1", b"TRACE_ON\1", b"__SHARDINGKEY\1", b"_SYS_MSG_PRIORITY_\1", b"T", b"_", *ODD]),
    max_size=6).map(b"".join), min_size=1, max_size=4), st.sampled_from([b"", b"INNER_MULTI_DISPATCH\1q\2"]))
def test_a_batch_whose_messages_may_have_a_property_that_it_cannot_honour_is_found(properties, body):
    data = encode_batch([(0, body, stored) for stored in properties])
    found = RECORD.check_batch(data)
    assert found == kernels.record.check_batch(data)
    assert found[0] == len(properties)
    starts = [part for stored in properties for part in stored.replace(b"\1", b"\1\2").split(b"\2")]
    assert found[4] == any(start.startswith(odd) for start in starts for odd in ODD)


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
