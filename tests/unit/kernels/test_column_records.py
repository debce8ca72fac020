"""Records from columns: both twins are equal, give back what was scanned, and stay inside buffers."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace.kernels import column_records as compiled
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C

MAGIC = {False: 0xDAA320A7, True: 0xDAA320AB}
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


TWINS = [interpreted("column_records"), compiled]
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
items = st.lists(st.tuples(
    st.binary(max_size=80), st.binary(min_size=1, max_size=140), st.binary(max_size=50),
    st.sampled_from([8, 20]), st.sampled_from([8, 20]), int32, int64, int64), min_size=1, max_size=6)


def column(parts):
    offsets = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return offsets, b"".join(parts)


def log_of(made):
    """A log of records, and the columns that should give it back."""
    out, at = bytearray(1 << 14), 0
    numbers = np.zeros((len(made), C.N_COLUMNS), dtype=np.int64)
    parts = [[], [], [], [], []]
    for n, (body, topic, props, born, store, flag, time, offset) in enumerate(made):
        size = record.encode(
            out, at, len(out), at, n, flag, offset, 0, time, bytes(born), time ^ 5, bytes([n]) * store,
            n, -n, body, n * 7, topic, props, False)
        assert size > 0
        numbers[n, [
            C.N_PHY, C.N_SIZE, C.N_MAGIC, C.N_BODY_CRC,
            C.N_QUEUE_ID, C.N_FLAG, C.N_QUEUE_OFFSET, C.N_SYS_FLAG,
            C.N_BORN_TIMESTAMP, C.N_STORE_TIMESTAMP, C.N_RECONSUME_TIMES,
            C.N_PREPARED,
        ]] = (at, size, MAGIC[len(topic) > 127], n * 7, n, flag, offset,
              (0x10 if born == 20 else 0) | (0x20 if store == 20 else 0), time, time ^ 5, n, -n)
        for held, part in zip(
            parts, (bytes(born), bytes([n]) * store, body, topic, props), strict=True):
            held.append(part)
        at += size
    return bytes(out[:at]), numbers, [one for part in parts for one in column(part)]


@quick
@given(items)
def test_records_come_back(made):
    data, numbers, parts = log_of(made)
    for twin in TWINS:
        out, fits = bytearray(len(data)), np.zeros(len(made), dtype=np.uint8)
        assert twin.encode_rows(numbers, *parts, 0, out, fits) == len(made)
        assert bytes(out) == data
        assert fits.all()


@quick
@given(items, st.data())
def test_twins_are_equal_on_damage_and_write_nothing_outside(made, draw):
    data, numbers, parts = log_of(made)
    for _ in range(draw.draw(st.integers(1, 4))):
        n = draw.draw(st.integers(0, len(made) - 1))
        numbers[n, draw.draw(st.integers(0, C.N_COLUMNS - 1))] = draw.draw(int64)
        offsets = parts[2 * draw.draw(st.integers(0, 4))]
        offsets[draw.draw(st.integers(0, len(made)))] = draw.draw(
            st.one_of(st.integers(-3, 200), int32))
    base, room = draw.draw(st.integers(0, 300)), draw.draw(st.integers(0, len(data)))
    found = []
    for twin in TWINS:
        out, fits = bytearray(b"\xa5" * (room + 64)), np.zeros(len(made), dtype=np.uint8)
        count = twin.encode_rows(numbers, *parts, base, memoryview(out)[:room], fits)
        assert out[room:] == b"\xa5" * 64
        found.append((count, bytes(out), fits.tolist()))
    assert found[0] == found[1]


def test_buffers_that_are_too_short_are_refused():
    _, numbers, parts = log_of([(b"", b"t", b"", 8, 8, 0, 0, 0)])
    for twin in TWINS:
        with pytest.raises(ValueError, match="need more"):
            twin.encode_rows(numbers, *parts, 0, bytearray(200), np.zeros(0, dtype=np.uint8))
        with pytest.raises(ValueError, match="position -1"):
            twin.encode_rows(numbers, *parts, -1, bytearray(200), np.zeros(1, dtype=np.uint8))
        with pytest.raises(ValueError, match="columns"):
            twin.encode_rows(
                np.ascontiguousarray(numbers[:, :5]), *parts, 0, bytearray(200),
                np.zeros(1, dtype=np.uint8))
        with pytest.raises(ValueError, match="need more"):
            twin.differing_rows(numbers, *parts, 0, b"", bytearray(200), bytearray())
        with pytest.raises(ValueError, match="position -1"):
            twin.differing_rows(numbers, *parts, -1, b"", bytearray(200), bytearray(1))


@quick
@given(items, st.data())
def test_rows_that_differ_from_the_log_are_found(made, draw):
    data, numbers, parts = log_of(made)
    log, longest = bytearray(data), int(numbers[:, C.N_SIZE].max())
    starts = numbers[:, C.N_PHY].tolist()
    changed = set()
    for at in draw.draw(st.lists(st.integers(0, len(log) - 1), max_size=3, unique=True)):
        log[at] ^= 1 << (at % 8)
        changed.add(sum(start <= at for start in starts) - 1)
    base = draw.draw(st.sampled_from([0, 3]))
    numbers[:, C.N_PHY] += base  # the position is in the record, too
    expected = [base > 0 or n in changed for n in range(len(made))]
    for twin in TWINS:
        differ = np.full(len(made), 7, dtype=np.uint8)
        assert twin.differing_rows(numbers, *parts, base, log, bytearray(longest), differ) == sum(expected)
        assert differ.tolist() == expected


@quick
@given(items, st.data())
def test_twins_find_the_same_differences_on_damage(made, draw):
    data, numbers, parts = log_of(made)
    longest = int(numbers[:, C.N_SIZE].max())
    for _ in range(draw.draw(st.integers(0, 4))):
        n = draw.draw(st.integers(0, len(made) - 1))
        numbers[n, draw.draw(st.integers(0, C.N_COLUMNS - 1))] = draw.draw(int64)
        parts[2 * draw.draw(st.integers(0, 4))][draw.draw(st.integers(0, len(made)))] = draw.draw(
            st.one_of(st.integers(-3, 200), int32))
    base, size = draw.draw(st.integers(0, 300)), draw.draw(st.integers(0, len(data)))
    short = draw.draw(st.integers(0, longest))
    found = []
    for twin in TWINS:
        room, differ = bytearray(b"\xa5" * (longest + 64)), np.full(len(made), 7, dtype=np.uint8)
        count = twin.differing_rows(numbers, *parts, base, data[:size], memoryview(room)[:short], differ)
        assert room[short:] == b"\xa5" * (longest + 64 - short)
        assert count == differ.sum()
        found.append(differ.tolist())
    assert found[0] == found[1]
