"""Column buffers: both twins are equal, and agree with the room `formats`."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import kernels
from tailrace.formats.commitlog import decode_properties, unpack_host
from tailrace.kernels import record
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import create_message_id

TWINS = [interpreted("columns"), kernels.columns]
ROWS = {TWINS[0]: interpreted("record"), TWINS[1]: record}
PACKED = {TWINS[0]: interpreted("unit_records"), TWINS[1]: kernels.unit_records}
PACKED_FIELDS = np.array([
    C.QUEUE_ID, C.BODY_CRC, C.PHY, C.BORN_HOST_POS, C.STORE_HOST_POS,
    C.SYS_FLAG,
    *(getattr(C, f"{name}_{place}") for name in ("BODY", "TOPIC", "PROPS", "KEYS", "UNIQ", "TAGS")
      for place in ("POS", "LEN"))])
NUMBERS = (
    np.array([C.QUEUE_ID, C.PHY]), np.zeros((1, 99), dtype=np.int32), np.zeros((1, 99), dtype=np.int64))
quick = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
words = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9)
names = st.one_of(words, st.sampled_from(["KEYS", "TAGS", "TIMER_OUT_MS", "TIMER_DELIVER_MS"]))
values = st.one_of(words, st.integers(-5, 10**18).map(str), st.just("a  b c "))
stored = st.one_of(
    st.dictionaries(names, values, max_size=4).map(encode_properties),
    st.lists(st.sampled_from([b"a", b"b", b"\1", b"\2", b"KEYS\1x y", b"TIMER_OUT_MS\0017\2", b"\xff"]),
             max_size=12).map(b"".join),
)
messages = st.lists(
    st.tuples(st.binary(max_size=40), stored, st.binary(min_size=8, max_size=8),
              st.sampled_from([8, 20])), min_size=1, max_size=9)


def scanned(items):
    log = bytearray(1 << 14)
    at = 0
    for number, (body, properties, host, length) in enumerate(items):
        at += record.encode(
            log, at, len(log), at, number, 0, number, 0, 0, host, 5, host.rjust(length, b"\1"), 0, 0,
            body, record.crc32(body, 0, len(body)) & 0x7FFFFFFF, b"Topic", properties, False)
    rows = np.zeros((len(items), C.COLUMNS), dtype=np.int64)
    assert record.scan(log, 0, at, 0, 7, rows)[0] == len(items)
    return bytes(log[:at]), rows


def fields_of(rows, *names):
    return [np.ascontiguousarray(rows[:, getattr(C, name)]) for name in names]


def made(module, data, rows):
    """Everything that one twin makes of the rows, errors too."""
    count = len(rows)
    room = int(np.clip(rows[:, C.PROPS_LEN], 0, 70_000).sum()) + count + 4

    def offsets(size=count):
        return np.zeros(size + 1, dtype=np.int32)

    def run(call, *buffers):
        try:
            result = call()
        except ValueError as error:
            return str(error)
        return result, *(bytes(memoryview(b)) for b in buffers)

    found = []
    for name in ("BODY", "TAGS"):
        at, length = (rows[:, getattr(C, f"{name}_{part}")] for part in ("POS", "LEN"))  # not contiguous
        o, v, out = offsets(), bytearray((count + 7) // 8), bytearray(room + 4096)
        found.append(run(lambda: module.copy_parts(data, at, length, o, v, out), o, v, out))  # noqa: B023
    for bodies in (bytearray(0), bytearray(20), bytearray(len(data))):
        row, texts = np.zeros((1, C.COLUMNS), dtype=np.int64), bytearray(len(data))
        short, long = np.zeros((2, count + 2), dtype=np.int32), np.zeros((len(PACKED_FIELDS) - 2, count + 3), np.int64)
        found.append(run(
            lambda: PACKED[module].Packer(
                count, row, texts, bodies, len(bodies) > 0, PACKED_FIELDS, short, long  # noqa: B023
            ).put_rows(data, rows, 0),
            short, long, texts, bodies))
    short, long = np.zeros((2, count + 2), dtype=np.int32), np.zeros((1, count + 1), dtype=np.int64)
    numbers = np.array([C.KEYS_POS, C.PHY, C.BODY_POS])
    found.append(run(lambda: ROWS[module].take_numbers(rows, numbers, short, long), short, long))
    properties, keys = fields_of(rows, "PROPS_POS", "PROPS_LEN"), fields_of(rows, "KEYS_POS", "KEYS_LEN")
    texts = [offsets(), offsets(room), np.zeros(room, np.uint8), offsets(room), np.zeros(room, np.uint8)]
    found.append(run(lambda: module.property_texts(data, *properties, *texts), *texts))
    for limit in (0, 1, 3, 9):
        small = [offsets(), offsets(limit), bytearray(2 * limit), offsets(limit), bytearray(limit)]
        found.append(run(lambda: module.property_texts(data, *properties, *small), *small))  # noqa: B023
        found.append(run(lambda: module.key_texts(data, *keys, *small[:3]), *small[:3]))  # noqa: B023
    times, v = np.zeros(count, dtype=np.int64), bytearray((count + 7) // 8)
    found.append(run(lambda: module.deliver_times(*texts, times, v), times, v))
    of_keys = [offsets(), offsets(room), np.zeros(room, np.uint8)]
    found.append(run(lambda: module.key_texts(data, *keys, *of_keys), *of_keys))
    out, o3 = bytearray(count * module.HOST_BYTES), offsets()
    found.append(run(
        lambda: module.host_texts(data, *fields_of(rows, "BORN_HOST_POS", "SYS_FLAG"), 0x10, o3, out), out, o3))
    out2, o4 = bytearray(count * module.ID_BYTES), offsets()
    found.append(run(
        lambda: module.message_ids(data, *fields_of(rows, "STORE_HOST_POS", "SYS_FLAG", "PHY"), o4, out2), out2, o4))
    return found


@quick
@given(messages)
def test_twins_are_equal_on_records(items):
    data, rows = scanned(items)
    assert made(TWINS[0], data, rows) == made(TWINS[1], data, rows)


@quick
@given(messages, st.data())
def test_twins_are_equal_on_damage(items, draw):
    data, rows = scanned(items)
    data = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    for _ in range(draw.draw(st.integers(0, 3))):
        row = draw.draw(st.integers(0, len(rows) - 1))
        column = draw.draw(st.integers(12, C.COLUMNS - 1))
        rows[row, column] = draw.draw(st.sampled_from(
            [-1, 0, 1, 70_000, len(data), len(data) - 1, (1 << 62), -(1 << 62)]))
    cut = bytes(data[: draw.draw(st.integers(0, len(data)))])
    assert made(TWINS[0], cut, rows) == made(TWINS[1], cut, rows)


@quick
@given(messages)
def test_they_mean_what_the_formats_room_says(items):
    module = kernels.columns
    data, rows = scanned(items)
    count = len(rows)
    properties = fields_of(rows, "PROPS_POS", "PROPS_LEN")
    room = (int(properties[1].sum()) + count) // 4  # as in arrow.columns
    offsets, name_ends, value_ends = (np.zeros(size + 1, dtype=np.int32) for size in (count, room, room))
    names, texts = bytearray(len(data)), bytearray(len(data))
    assert 0 <= module.property_texts(data, *properties, offsets, name_ends, names, value_ends, texts) <= room
    times, valid = np.zeros(count, dtype=np.int64), bytearray((count + 7) // 8)
    module.deliver_times(offsets, name_ends, names, value_ends, texts, times, valid)
    out, ends = bytearray(count * module.ID_BYTES), np.zeros(count + 1, dtype=np.int32)
    module.message_ids(data, *fields_of(rows, "STORE_HOST_POS", "SYS_FLAG", "PHY"), ends, out)
    hosts, host_ends = bytearray(count * module.HOST_BYTES), np.zeros(count + 1, dtype=np.int32)
    assert module.host_texts(data, *fields_of(rows, "BORN_HOST_POS", "SYS_FLAG"), 0x10, host_ends, hosts) >= 0
    keys = fields_of(rows, "KEYS_POS", "KEYS_LEN")
    key_room = (int(keys[1].sum()) + count) // 2
    of_keys, key_ends, key_texts = np.zeros(count + 1, np.int32), np.zeros(key_room + 1, np.int32), bytearray(len(data))
    assert 0 <= module.key_texts(data, *keys, of_keys, key_ends, key_texts) <= key_room
    for n, (_, properties, host, length) in enumerate(items):
        pairs = [
            (bytes(names[name_ends[k] : name_ends[k + 1]]), bytes(texts[value_ends[k] : value_ends[k + 1]]))
            for k in range(offsets[n], offsets[n + 1])]
        text = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in pairs}
        want = decode_properties(properties)
        assert text == want
        assert len({k for k, _ in pairs}) == len(pairs)
        assert [bytes(key_texts[key_ends[k] : key_ends[k + 1]]) for k in range(of_keys[n], of_keys[n + 1])] == [
            key for key in dict(pairs).get(b"KEYS", b"").split(b" ") if key]
        due = want.get("TIMER_DELIVER_MS") or want.get("TIMER_OUT_MS") or ""
        numeric = due.isascii() and due.isdigit() and len(due) < 16
        assert bool(valid[n >> 3] >> (n & 7) & 1) == numeric
        assert times[n] == (int(due) if numeric else 0)
        assert out[ends[n] : ends[n + 1]].decode() == create_message_id(
            host.rjust(length, b"\1"), int(rows[n, C.PHY]))
        ip, port = unpack_host(host)
        assert hosts[host_ends[n] : host_ends[n + 1]].decode() == f"{ip}:{port}"
        assert module.queue_hash(b"Topic", n) == rows[n, C.QUEUE_HASH]


@pytest.mark.parametrize("module", TWINS)
@pytest.mark.parametrize(("stored", "values"), [
    (b"A\1long value\2B\1b\2A\1x\2", b"xb"),
    (b"A\1x\2B\1b\2A\1long value\2C\1c", b"long valuebc"),
    (b"A\1x\2A\1y\2A\1\2", b"y"),
])
def test_the_last_value_of_a_repeated_name_is_at_its_first_place(module, stored, values):
    count, names, texts = stored.count(b"\2") + 1, bytearray(20), bytearray(40)
    offsets, name_ends, value_ends = (np.zeros(size, np.int32) for size in (3, 2 * count + 1, 2 * count + 1))
    rows = np.array([0, 0]), np.array([len(stored), len(stored)])  # the second row must not change the first one
    found = module.property_texts(stored, *rows, offsets, name_ends, names, value_ends, texts)
    assert offsets.tolist() == [0, found // 2, found]
    assert bytes(texts[: value_ends[found]]) == 2 * values
    assert bytes(names[: name_ends[found]]) == 2 * b"ABC"[: found // 2]


@pytest.mark.parametrize("module", TWINS)
def test_room_is_compared(module):
    data, rows = scanned([(b"abc", b"KEYS\1x y\2A\1b", bytes(8), 8)])
    offsets, one, row = np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.int32), np.zeros_like(rows)
    properties, keys = fields_of(rows, "PROPS_POS", "PROPS_LEN"), fields_of(rows, "KEYS_POS", "KEYS_LEN")
    body, host = fields_of(rows, "BODY_POS", "BODY_LEN"), fields_of(rows, "STORE_HOST_POS", "SYS_FLAG")
    nothing, two = np.zeros(0, dtype=np.int64), np.zeros(2, dtype=np.int64)
    assert module.property_texts(data, *properties, offsets, one, bytearray(9), one, bytearray(9)) == module.NO_ROOM
    assert module.property_texts(
        data, *properties, offsets, np.zeros(3, np.int32), bytearray(4), np.zeros(3, np.int32), bytearray(9)
    ) == module.NO_ROOM
    assert module.property_texts(
        data, *properties, offsets, np.zeros(3, np.int32), bytearray(5), np.zeros(3, np.int32), bytearray(3)
    ) == module.NO_ROOM
    assert module.key_texts(data, *keys, offsets, one, bytearray(9)) == module.NO_ROOM
    assert module.key_texts(data, *keys, offsets, np.zeros(3, np.int32), bytearray(1)) == module.NO_ROOM
    assert module.copy_parts(data, *body, offsets, bytearray(1), bytearray(2)) == (module.NO_ROOM, 0)

    def pack(source, first, work, room, numbers=NUMBERS):
        return PACKED[module].Packer(
            room, work, bytearray(9), bytearray(9), True, *numbers).put_rows(data, source, first)

    for call in (
        lambda: module.property_texts(data, *properties, offsets[:1], one, bytearray(9), one, bytearray(9)),
        lambda: module.property_texts(data, properties[0], nothing, offsets, one, bytearray(9), one, bytearray(9)),
        lambda: module.property_texts(data, *properties, offsets, one, bytearray(9), one[:0], bytearray(9)),
        lambda: module.key_texts(data, *keys, offsets[:1], one, bytearray(9)),
        lambda: module.key_texts(data, *keys, offsets, one[:0], bytearray(9)),
        lambda: module.key_texts(data, two, keys[1], np.zeros(3, np.int32), one, bytearray(9)),
        lambda: module.message_ids(data, *host, two, offsets, bytearray(10)),
        lambda: module.message_ids(data, *host, nothing, offsets, bytearray(99)),
        lambda: module.message_ids(data, host[0], nothing, two[:1], offsets, bytearray(99)),
        lambda: module.host_texts(data, *host, 16, offsets, bytearray(10)),
        lambda: module.host_texts(data, *host, 16, offsets[:1], bytearray(99)),
        lambda: module.copy_parts(data, body[0], nothing, offsets, bytearray(1), bytearray(9)),
        lambda: module.copy_parts(data, two[:0], body[1], offsets, bytearray(1), bytearray(9)),
        lambda: module.copy_parts(data, *body, offsets[:1], bytearray(1), bytearray(9)),
        lambda: module.copy_parts(data, *body, offsets, bytearray(0), bytearray(9)),
        lambda: pack(rows, -1, row, 1),
        lambda: pack(rows, 0, row[:0], 1),
        lambda: pack(rows, 0, np.zeros((1, 4), np.int64), 1),
        lambda: pack(np.zeros((1, 4), np.int64), 0, row, 1),
        lambda: pack(rows, 0, row, 100),
        lambda: pack(rows, 0, row, 1, (np.array([0, C.COLUMNS]), *NUMBERS[1:])),
        lambda: ROWS[module].take_numbers(
            rows, np.array([0, 99]), np.zeros((1, 1), dtype=np.int32), np.zeros((1, 1), dtype=np.int64)),
        lambda: ROWS[module].take_numbers(
            rows, np.array([0, 1]), np.zeros((1, 0), dtype=np.int32), np.zeros((1, 2), dtype=np.int64)),
        lambda: module.deliver_times(
            np.array([0, 5], dtype=np.int32), one, b"", one, b"", np.zeros(1, dtype=np.int64), bytearray(1)),
        lambda: module.deliver_times(
            np.array([0, 1], dtype=np.int32), np.array([0, 12], np.int32), b"TIMER_OUT_M", one, b"",
            np.zeros(1, dtype=np.int64), bytearray(1)),
        lambda: module.deliver_times(offsets, one, b"", one, b"", np.zeros(0, dtype=np.int64), bytearray(1)),
        lambda: module.deliver_times(offsets[:0], one, b"", one, b"", np.zeros(1, dtype=np.int64), bytearray(1)),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("twin", TWINS)
def test_packed_rows_give_the_same_columns(twin):
    module = PACKED[twin]
    data, rows = scanned([
        (bytes([n]) * n, encode_properties({"KEYS": f"k{n}", "TAGS": "t" * n, "UNIQ_KEY": "u", "X": "y" * n}),
         bytes([n] * 8), 8 + 12 * (n % 2)) for n in range(1, 40)])
    texts, bodies, row = bytearray(len(data)), bytearray(len(data)), np.zeros((1, C.COLUMNS), np.int64)
    fields = PACKED_FIELDS, np.zeros((2, len(rows)), np.int32), np.zeros((len(PACKED_FIELDS) - 2, len(rows)), np.int64)

    def packer(room, texts, bodies):
        made = module.Packer(room, row, texts, bodies, True, *fields)
        assert made.put_rows(data, rows[:5], 0) == made.count == 5
        return made

    made = packer(len(rows), texts, bodies)
    assert packer(len(rows), texts[: made.texts_end + 100], bodies).put_rows(data, rows, 5) < len(rows)
    assert packer(len(rows), texts, bodies[: made.bodies_end + 100]).put_rows(data, rows, 5) < len(rows)
    assert packer(9, texts, bodies).put_rows(data, rows, 5) == 9
    made = packer(len(rows), texts, bodies)
    assert made.put_rows(data, rows, 5) == made.count == len(rows)
    assert made.bodies_end == rows[:, C.BODY_LEN].sum()
    kept = np.zeros_like(rows)
    kept[:, PACKED_FIELDS[:2]], kept[:, PACKED_FIELDS[2:]] = fields[1].T, fields[2].T
    same = PACKED_FIELDS[:3]
    assert (kept[:, same] == rows[:, same]).all()

    def parts(source, table, at, length):
        return [bytes(source[p : p + size]) for p, size in table[:, [at, length]].tolist()]

    assert parts(bodies, kept, C.BODY_POS, C.BODY_LEN) == parts(
        data, rows, C.BODY_POS, C.BODY_LEN)
    for at in (C.TOPIC_POS, C.PROPS_POS, C.KEYS_POS, C.UNIQ_POS, C.TAGS_POS):
        assert parts(texts, kept, at, at + 1) == parts(data, rows, at, at + 1)
    for at, v6 in ((C.BORN_HOST_POS, 0x10), (C.STORE_HOST_POS, 0x20)):
        lengths = np.where(rows[:, C.SYS_FLAG] & v6, 20, 8)
        assert [bytes(texts[p : p + size]) for p, size in zip(kept[:, at], lengths, strict=True)] == [
            data[p : p + size] for p, size in zip(rows[:, at], lengths, strict=True)]
    short, long = np.zeros((1, 50), dtype=np.int32), np.zeros((1, 50), dtype=np.int64)
    rows[0, C.FLAG] = 3 << 31
    ROWS[twin].take_numbers(rows, np.array([C.FLAG, C.PHY]), short, long)
    assert short[0, 0] == -1 << 31
    assert (long[0, : len(rows)] == rows[:, C.PHY]).all()


def test_a_walk_may_leave_properties_alone():
    data, full = scanned([
        (b"body", encode_properties({"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "u", "DELAY": "3"}), b"\1" * 8, 8)])
    rows = np.zeros((1, C.COLUMNS), dtype=np.int64)
    assert record.scan(data, 0, len(data), 0, 7 | C.LEAVE_PROPERTIES, rows)[0] == 1
    found = [C.KEYS_POS, C.TAGS_POS, C.UNIQ_POS]
    assert (full[:, found] > 0).all()
    assert (rows[:, found] == -1).all()
    of_properties = [
        *found, C.KEYS_LEN, C.TAGS_LEN, C.UNIQ_LEN, C.TAGS_CODE,
        C.DELAY_LEVEL, C.KIND]
    others = np.setdiff1d(np.arange(C.COLUMNS), of_properties)
    assert (rows[:, others] == full[:, others]).all()
