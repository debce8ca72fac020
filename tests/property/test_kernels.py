"""Both twins of every kernel give the same results, on good and on damaged bytes."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import kernels
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import places_of

RECORD, HASHES, UNITS, INDEX, CHAINS, UNIT_RECORDS = map(
    interpreted, ("record", "hashes", "queue_units", "index_entries", "index_chains", "unit_records"))
pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="no compiled kernels to compare with")
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

words = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1,
                max_size=12)
messages = st.lists(
    st.tuples(
        st.binary(max_size=60), st.dictionaries(words, words, max_size=3), words,
        st.lists(words, max_size=3), st.integers(0, 3), st.sampled_from([8, 20])),
    min_size=1, max_size=6)


def log_of(module, items, *, crc=False):
    out = bytearray(1 << 16)
    at = 0
    for number, (body, properties, tag, keys, queue_id, host) in enumerate(items):
        stored = encode_properties(
            {**properties, "TAGS": tag, "KEYS": " ".join(keys) or "k", "UNIQ_KEY": f"U{number}",
             "DELAY": str(number)})
        size = module.encode(
            out, at, len(out), at, queue_id, -number, number, 0, number, bytes(host), 1000 + number,
            bytes(8), number, 0, body, RECORD.crc32(body, 0, len(body)) & 0x7FFFFFFF, b"Topic",
            stored, crc)
        assert size > 0
        at += size
    return out, at


def scan(module, data, base=0, check=7):
    rows = np.zeros((8, C.COLUMNS), dtype=np.int64)
    result = module.scan(memoryview(bytes(data)), 0, len(data), base, check, rows)
    return result, rows[: result[0]].tolist()


@quick
@given(messages, st.booleans())
def test_records_are_written_the_same(items, crc):
    assert log_of(RECORD, items, crc=crc) == log_of(kernels.record, items, crc=crc)


@quick
@given(messages, st.booleans(), st.data())
def test_damaged_logs_are_walked_the_same(items, crc, data):
    log, end = log_of(kernels.record, items, crc=crc)
    for _ in range(data.draw(st.integers(0, 3))):
        log[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, end + 16))
    for check in (0, 7):
        assert scan(RECORD, log[:cut], check=check) == scan(kernels.record, log[:cut], check=check)


def numbers_of(places):
    """The ends and the queue offsets."""
    numbers = np.frombuffer(places, np.int64)
    return numbers[::2].tolist(), numbers[1::2].tolist()


def is_served(module, data, topic, queue_id, queue_offset):
    """Whether a read serves these bytes as the record of a queue's unit."""
    window = module.UnitWindow(queue(topic, queue_id), CQ_UNIT.pack(0, len(data), 0), queue_offset, 0, 1)
    window.enter(data, 0, len(data), bytearray())
    window.find(1, 0, False)
    assert (*window.copied(0), window.count) in [
        (b"", b"", 0), (bytes(data), places_of([data], [queue_offset]), 1)]
    return bool(window.count)


def queue(topic, queue_id):
    return SimpleNamespace(record_topic=topic, queue_id=queue_id)


def read(module, buffer, units, first, most, room, started, **more):
    """Return a window after one look, and what it copies."""
    window = module.UnitWindow(queue(b"", 0), units, 5, first, len(units), **more)
    window.enter(*buffer, bytearray())
    window.find(most, room, started)
    return window, (*window.copied(7), window.count, window.at, window.why)


@quick
@given(messages, st.booleans(), st.data())
def test_units_are_read_the_same(items, crc, data):
    """Both forms of the kernel stop at the same unit for the same reason, whatever units say."""
    log, end = log_of(kernels.record, items, crc=crc)
    rows = np.zeros((len(items), C.COLUMNS), dtype=np.int64)
    count, _, _ = kernels.record.scan(log, 0, end, 0, 0, rows)
    names = [C.PHY, C.SIZE, C.TAGS_CODE]
    units = [CQ_UNIT.pack(*row) for row in rows[:count, names].tolist()]
    for _ in range(data.draw(st.integers(0, 2))):
        odd = data.draw(st.sampled_from([
            PRE_BLANK, CQ_UNIT.pack(end + 8, 100, 0), CQ_UNIT.pack(-1, 100, 0),
            CQ_UNIT.pack(max(end - 50, 0), 100, 0), CQ_UNIT.pack(0, -5, 0), CQ_UNIT.pack(0, 90, 0),
            CQ_UNIT.pack(-(1 << 63), 100, 0), CQ_UNIT.pack((1 << 63) - 1, 100, 0)]))
        units.insert(data.draw(st.integers(0, len(units))), odd)
    for _ in range(data.draw(st.integers(0, 2))):
        log[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    codes = np.array(data.draw(st.lists(st.sampled_from([0, *rows[:count, names[2]].tolist()]), max_size=2)),
                     dtype=np.int64)
    most, room = data.draw(st.integers(0, 4)), data.draw(st.sampled_from([0, 150, 400, 1 << 40]))
    base, until = data.draw(st.sampled_from([
        (0, end), (0, end // 2), (7, end), (-(1 << 63) + 20, 0), (-(1 << 63) + 20, end), (-1, end),
        ((1 << 63) - 1, end)]))
    first = data.draw(st.integers(0, len(units)))
    arguments = (bytes(log), base, until), b"".join(units), first, most, room, data.draw(st.booleans())
    windows, found = zip(*[
        read(module, *arguments, codes=codes) for module in (UNIT_RECORDS, kernels.unit_records)], strict=True)
    assert found[0] == found[1]
    served, places, count, at, _ = found[0]
    ends, offsets = numbers_of(places)
    assert len(ends) == len(offsets) == count <= most
    assert (ends or [7])[-1] == 7 + len(served)
    assert all(5 + first <= offset < 5 + at for offset in offsets)
    check_places(windows, log, base, [end - 7 for end in ends], offsets, served)
    check_packed(
        arguments, found[0], [end - 7 for end in ends], data.draw(st.integers(0, 4)),
        data.draw(st.sampled_from([0, 90, 300, 1 << 14])), data.draw(st.sampled_from([0, 40, 1 << 14])),
        codes=codes, with_bodies=data.draw(st.booleans()))
    check_matching(arguments, data.draw(st.sampled_from([1, 3000, 1 << 40])))


@quick
@given(st.lists(st.sampled_from(
    [b"\x01", b"\x02", b"a", b"ab", b"\xc3\xa9", b"\xe2", b"TAGS", b"a\x01x\x02"]), max_size=20))
def test_properties_are_found_as_a_decoder_finds_them(parts):
    stored = b"".join(parts)
    names = (b"a", b"ab", b"TAGS", b"x", b"\xc3\xa9")
    expected = {}
    for part in stored.decode("utf-8", "replace").split("\x02"):  # as MessageDecoder of the reference
        name, separator, value = part.partition("\x01")
        if separator and name and value:
            expected[name] = value
    for module in (UNIT_RECORDS, kernels.unit_records):
        assert module.property_values(stored, names) == tuple(
            expected.get(name.decode()) for name in names)


def check_matching(arguments, look):
    """Both forms find the same records, which are those that a read of all units finds and the filter keeps."""
    asked = []

    def matches(values):
        asked.append(values)
        return values[0] is None or len(values[0]) % 2 == 0

    keep, found = SimpleNamespace(names=(b"TAGS", b"KEYS"), matches=matches), []
    for module in (UNIT_RECORDS, kernels.unit_records):
        asked.clear()
        window, result = read(module, *arguments, keep=keep, look=look)
        found.append((result, window.look, tuple(asked)))
    assert found[0] == found[1]
    (served, places, count, at, _), left, _ = found[0]
    ends, offsets = numbers_of(places)
    assert len(ends) == len(offsets) == count <= arguments[3]
    assert (ends or [7])[-1] == 7 + len(served)
    assert all(5 + arguments[2] <= offset < 5 + at for offset in offsets)
    assert left >= 0 or at <= len(arguments[1]) // 20


def check_packed(arguments, read, ends, room, texts, bodies, *, codes, with_bodies):
    """Both forms pack the same records: those that a read of any size copies, as far as there is room."""
    buffer, units, first, most, *_ = arguments
    made = []
    for module in (UNIT_RECORDS, kernels.unit_records):
        row, copies = np.full((1, C.COLUMNS), -7, np.int64), (bytearray(texts), bytearray(bodies))
        short, long = np.zeros((1, room), np.int32), np.zeros((C.COLUMNS, room), np.int64)
        fields = np.array([C.QUEUE_ID, *range(C.COLUMNS)])
        packer = module.Packer(room, row, *copies, with_bodies, fields, short, long)
        window = module.UnitWindow(queue(b"", 0), units, 5, first, len(units), codes=codes)
        window.enter(*buffer, bytearray())
        window.pack(packer, most)
        kept = long[:, : packer.count].T.copy()
        assert kept[:, C.QUEUE_ID].tolist() == short[0, : packer.count].tolist()
        kept[:, [C.QUEUE_HASH, C.TAGS_CODE]] = 0  # not filled
        made.append((packer.count, packer.texts_end, packer.bodies_end, window.at, window.why, kept.tolist(), *copies))
    assert made[0] == made[1]
    count, t, b, at, why, kept, *copies = made[0]
    assert count <= min(room, most)
    assert (t <= texts, b <= bodies) == (True, True)
    for row, start, end in zip(kept, [0, *ends], ends, strict=False):
        record = read[0][start:end]
        alone = np.zeros((1, C.COLUMNS), np.int64)
        assert RECORD.scan(record, 0, len(record), row[C.PHY], 0, alone)[0] == 1
        for name in ("TOPIC", "PROPS", "KEYS", "UNIQ", "TAGS", *(["BODY"] if with_bodies else [])):
            place, length = getattr(C, f"{name}_POS"), getattr(C, f"{name}_LEN")
            wanted = alone[0, place]
            source = copies[1] if name == "BODY" else copies[0]
            assert row[length] == alone[0, length]
            assert (row[place] < 0) == (wanted < 0)
            if wanted >= 0:
                assert source[row[place] : row[place] + row[length]] == record[wanted : wanted + row[length]]


def check_places(windows, log, base, ends, offsets, served):
    """Both forms of the kernel note the places of what a read copies, and both make the same rows of them."""
    for window, walk in zip(windows, (RECORD, kernels.record), strict=True):
        places = np.full((len(ends) + 1, C.PLACE_COLUMNS), -1, np.int64)
        window.take_places(places)
        found = places[: len(ends)]
        assert found[:, C.PLACE_OFFSET].tolist() == offsets
        assert np.cumsum(found[:, C.PLACE_SIZE]).tolist() == ends
        assert b"".join(log[start : start + size] for start, size, _ in found.tolist()) == served
        rows = np.zeros((len(found), C.COLUMNS), np.int64)
        walk.fill_rows(log, base, found, rows)
        for row, (start, size, _) in zip(rows, found.tolist(), strict=True):
            alone = np.zeros((1, C.COLUMNS), np.int64)
            assert walk.scan(log, start, start + size, base, 0, alone)[0] == 1
            assert row.tolist() == alone[0].tolist()


@pytest.mark.parametrize("place", [(-1, 100), (0, 90), (0, -5), (5, 100), (1 << 40, 100), (0, 1 << 40), (1, 95)])
def test_a_place_without_a_record_makes_no_row(place):
    log, end = log_of(kernels.record, [(b"body", {}, "T", [], 0, 8)], crc=False)
    rows = np.zeros((1, C.COLUMNS), np.int64)
    for module in (RECORD, kernels.record):
        with pytest.raises(ValueError, match="no record at place 0"):
            module.fill_rows(bytes(log[:100]), 0, np.array([[*place, 0]], np.int64), rows)
        with pytest.raises(ValueError, match="1 places of 3, 0 rows"):
            module.fill_rows(bytes(log[:100]), 0, np.array([[*place, 0]], np.int64), rows[:0])


@quick
@given(messages, st.booleans(), st.data())
def test_what_is_served_is_a_record_of_its_place(items, crc, data):
    """The check of a read says what a walk and the record's own words say, also of damaged bytes."""
    log, end = log_of(kernels.record, items, crc=crc)
    size = int.from_bytes(log[:4], "big")
    assert is_served(kernels.unit_records, log[:size], b"Topic", items[0][4], 0)
    for _ in range(data.draw(st.integers(0, 2))):
        log[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(log[: data.draw(st.sampled_from([size, size - 1, min(size + 1, end), 0, 60, 91]))])
    topic = data.draw(st.sampled_from([b"Topic", b"Topit", b"Topic2", b""]))
    place = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 1))
    (count, stop, _), rows = scan(RECORD, cut)
    right = count == 1 and stop == len(cut)
    if right and topic:
        at, length = rows[0][C.TOPIC_POS], rows[0][C.TOPIC_LEN]
        right = cut[at : at + length] == topic and place == (
            rows[0][C.QUEUE_ID], rows[0][C.QUEUE_OFFSET])
    for module in (UNIT_RECORDS, kernels.unit_records):
        assert is_served(module, cut, topic, *place) == right


@quick
@given(st.binary(max_size=300))
def test_random_bytes_are_walked_the_same(data):
    assert scan(RECORD, data) == scan(kernels.record, data)


@quick
@given(messages)
def test_a_whole_log_is_found_again(items):
    log, end = log_of(kernels.record, items)
    (count, stop, reason), rows = scan(kernels.record, log[:end])
    assert (count, stop, reason) == (len(items), end, C.REASON_END)
    for row, (body, _, tag, _, queue_id, _) in zip(rows, items, strict=True):
        at, length = row[C.BODY_POS], row[C.BODY_LEN]
        assert log[at : at + length] == body
        assert row[C.QUEUE_ID] == queue_id
        assert row[C.TAGS_CODE] == java_string_hash(tag)


@quick
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(
    lambda t: t.encode("utf-8", "ignore"))))
def test_hashes_are_the_same(data):
    assert HASHES.java_hash(data) == kernels.hashes.java_hash(data)
    assert HASHES.index_hash(data, data) == kernels.hashes.index_hash(data, data)


@quick
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_the_hash_is_javas(text):
    assert kernels.hashes.java_hash(text.encode()) == java_string_hash(text)


@quick
@given(messages, st.integers(2, 40))
def test_index_files_are_the_same(items, entries):
    log, end = log_of(kernels.record, items)
    rows = np.zeros((8, C.COLUMNS), dtype=np.int64)
    count, _, _ = kernels.record.scan(log, 0, end, 0, 0, rows)
    files = [bytearray(40 + 4 * 7 + 20 * entries) for _ in range(2)]
    results = []
    for module, file in zip((INDEX, kernels.index_entries), files, strict=True):
        key_hashes, ends = np.zeros(100, dtype=np.int32), np.zeros(count, dtype=np.int64)
        _, total = module.hash_keys(log, rows[:count], 0, key_hashes, 0, ends)
        key = module.put_keys(
            memoryview(file), 7, entries, rows, ends, key_hashes, 0, np.empty(module.WORK, dtype=np.int64))
        assert key == min(total, entries - 1)
        results.append((key, key_hashes[:total].tolist(), ends.tolist()))
    assert results[0] == results[1]
    assert files[0] == files[1]
    made = int.from_bytes(files[0][36:40], "big")
    for before, flips in ((1 << 62, 0), (end // 2, 0), (1 << 62, 1)):
        chained = bytearray(files[0][40 + 28 :])
        if flips and made > 1:
            chained[20 + (end * 7) % (20 * (made - 1))] ^= 1 << (end % 8)
        heads = [np.ones(7, dtype=np.int32) for _ in range(2)]
        followed = [
            module.follow(memoryview(bytes(chained)), made, before, head)
            for module, head in zip((CHAINS, kernels.index_chains), heads, strict=True)
        ]
        assert followed[0] == followed[1]
        assert heads[0].tolist() == heads[1].tolist()
        if before == 1 << 62 and not flips:
            assert followed[0][0] == max(made, 1)
            slots = np.frombuffer(bytes(files[0][40:68]), dtype=">i4")
            assert heads[0].tolist() == slots.tolist(), "the entries tell the slots"
    wanted = kernels.hashes.index_hash(b"Topic", b"U0")
    rooms = [np.zeros(4, dtype=np.int64) for _ in range(2)]
    found = [
        module.search(memoryview(bytes(files[0])), 7, entries, wanted, 0, 1 << 60, room)
        for module, room in zip((INDEX, kernels.index_entries), rooms, strict=True)
    ]
    assert found[0] == found[1]
    assert rooms[0].tolist() == rooms[1].tolist()


@quick
@given(st.binary(min_size=40 + 28 + 200, max_size=40 + 28 + 200), st.integers(0, 2**31 - 1))
def test_a_damaged_index_is_searched_the_same_and_safely(data, wanted):
    rooms = [np.zeros(16, dtype=np.int64) for _ in range(2)]
    found = [
        module.search(memoryview(data), 7, 10, wanted, 0, 1 << 60, room)
        for module, room in zip((INDEX, kernels.index_entries), rooms, strict=True)
    ]
    assert found[0] == found[1]
    assert rooms[0].tolist() == rooms[1].tolist()


@quick
@given(messages, st.data())
def test_units_are_built_the_same(items, data):
    log, end = log_of(kernels.record, items)
    rows = np.zeros((8, C.COLUMNS), dtype=np.int64)
    count, _, _ = kernels.record.scan(log, 0, end, 0, 0, rows)
    for row, offset in enumerate(data.draw(st.lists(st.sampled_from([0, 4, 5, 6, -(1 << 63), (1 << 63) - 1])))[:count]):
        rows[row, C.QUEUE_OFFSET] = offset
    order = np.array(data.draw(st.permutations(range(count))), dtype=np.int64)
    cut = data.draw(st.integers(0, count))
    bounds = np.array([0, cut, cut, count], dtype=np.int64)
    found = []
    for module in (UNITS, kernels.queue_units):
        out = bytearray(20 * count)
        runs = module.build_units(rows[:count], order, bounds, memoryview(out), True)
        found.append((runs, out))
        assert [(*run[:9], []) for run in runs] == module.build_units(rows[:count], order, bounds, memoryview(out))
    assert found[0] == found[1]
    runs, out = found[0]
    units = [CQ_UNIT.unpack_from(out, 20 * place) for place in range(count)]
    assert [unit.phy_offset for unit in units] == rows[order, C.PHY].tolist()
    offsets = rows[order, C.QUEUE_OFFSET].tolist()
    expected: list = []
    for place, offset in enumerate(offsets):
        queue = 0 if place < cut else 2
        if expected and expected[-1][0] == queue and expected[-1][4] + 1 == offset:
            expected[-1] = (*expected[-1][:2], place + 1, expected[-1][3], offset)
        else:
            expected.append((queue, place, place + 1, offset, offset))
    assert [run[:5] for run in runs] == expected
    for run, following in zip(runs, [*runs[1:], (-1,)], strict=True):
        first, last = run[1:3]
        assert run[5] == (following[3] if following[0] == run[0] else -1)
        assert run[6:8] == tuple(rows[order[last - 1], [C.PHY, C.STORE_TIMESTAMP]].tolist())
        assert run[8:] == (sum(unit.size for unit in units[first:last]), [unit.tags_code for unit in units[first:last]])
    for wrong in ([0, count + 1], [1, count], [0, count, 0, count]) if count else ():
        for module in (UNITS, kernels.queue_units):
            with pytest.raises(ValueError, match=r"rows of|bounds"):
                module.build_units(rows[:count], order, np.array(wrong, dtype=np.int64), bytearray(20 * count))


@pytest.mark.parametrize(("stored", "sys_flag", "kind"), [
    (b"TAGS\1a\2INNER_MULTI_DISPATCH\1b\2", 8, 0), (b"DELAY\0013\2", 0, C.WAITS),
    (b"INNER_MULTI_QUEUE_OFFSET\0017\2", 0, C.LMQ), (b"", 0x80, C.INNER_BATCH), (b"", 0xC, C.ROLLED_BACK)])
def test_a_row_tells_what_dispatch_does_besides_a_unit(stored, sys_flag, kind):
    out = bytearray(500)
    size = RECORD.encode(
        out, 0, 500, 0, 0, 0, 0, sys_flag, 0, bytes(8), 0, bytes(8), 0, 0, b"", 0, b"T", stored, False)
    for module in (RECORD, kernels.record):
        assert scan(module, out[:size])[1][0][C.KIND] == kind


@quick
@given(messages)
def test_rows_are_sorted_by_queue_the_same(items):
    log, end = log_of(kernels.record, items)
    rows = np.zeros((8, C.COLUMNS), dtype=np.int64)
    count, _, _ = kernels.record.scan(log, 0, end, 0, 0, rows)
    rows = rows[:count]
    rows[:, C.QUEUE_HASH] = 5  # different queues may have one hash
    rows[count // 3, C.SYS_FLAG] = 4  # a half message
    found = []
    for module in (UNITS, kernels.queue_units):
        numbers, order = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        kept, known = np.zeros((count, 4), dtype=np.int64), np.zeros((count, 4), dtype=np.int64)
        names = bytearray(1000)
        done, queues = module.number_queues(
            log, rows, 0, numbers, 0, known, names, np.zeros(32, dtype=np.int64))
        assert done == count
        module.copy_columns(rows, kept)
        assert (kept == rows[:, :4]).all()
        bounds = np.zeros(queues + 1, dtype=np.int64)
        total = module.sort_by_queue(numbers, queues, order, bounds)
        found.append((
            numbers.tolist(), known[:queues].tolist(), bytes(names), order[:total].tolist(), bounds.tolist()))
    assert found[0] == found[1]
    queue_ids = rows[:, C.QUEUE_ID].tolist()
    wanted = {}
    for row, queue_id in enumerate(queue_ids):
        if row != count // 3:
            wanted.setdefault(queue_id, []).append(row)
    _, known, names, order, bounds = found[1]
    assert {one[1]: order[bounds[n] : bounds[n + 1]] for n, one in enumerate(known)} == wanted
    assert {names[at : at + length] for _, _, at, length in known} <= {b"Topic"}


names = st.sampled_from(["%LMQ%a", "%LMQ%", "%LMQ%b/c", "other", "", "%LMQ", "%LMQ%\u00e9"])
offsets = st.one_of(st.integers(0, 2**64).map(str), st.sampled_from(["", "-1", "x", "007", "4611686018427387904"]))
lmq = st.lists(st.tuples(
    st.sampled_from(["t", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXY", "%LMQ%a"]),
    st.lists(names, max_size=4).map(",".join), st.lists(offsets, max_size=4).map(",".join)), min_size=1, max_size=4)


def units_by_java(topic, names, offsets):
    """LMQ units of a record, as MultiDispatchUtils and ConsumeQueue have them where they do not fail."""
    if topic.startswith(("%RETRY%", "%DLQ%", "rmq_sys_")) or topic == "SCHEDULE_TOPIC_XXXX":
        return []
    found, places = names.rstrip(","), offsets.rstrip(",")
    pairs = list(zip(found.split(","), places.split(","), strict=False))
    if not found or not places or found.count(",") != places.count(","):
        return []
    return [
        (name, int(place)) for name, place in pairs
        if name.startswith("%LMQ%") and "/" not in name and place.isdigit() and int(place) < 2**62 - 20]


@quick
@given(lmq)
def test_lmq_rows_are_the_same_and_those_of_the_reference(items):
    data, parts = b"", []
    for topic, found, places in items:
        start = [topic.encode(), found.encode(), places.encode()]
        parts.append([])
        for part in start:
            parts[-1] += [len(data), len(part)]
            data += part
    rows = np.arange(len(items) * C.COLUMNS, dtype=np.int64).reshape(len(items), C.COLUMNS)
    rows[:, [C.TOPIC_POS, C.TOPIC_LEN, C.LMQ_POS, C.LMQ_LEN,
             C.LMQ_OFFSETS_POS, C.LMQ_OFFSETS_LEN]] = parts
    made = []
    for module in (UNITS, kernels.queue_units):
        out = np.zeros((40, C.COLUMNS), dtype=np.int64)
        made.append(out[: module.add_lmq_rows(data, rows, out)])
        for room in range(len(made[-1])):
            with pytest.raises(ValueError, match=f"rows into {room}"):
                module.add_lmq_rows(data, rows, out[:room])
        if any(found and places for _, found, places in items):
            with pytest.raises(ValueError, match="outside of the bytes"):
                module.add_lmq_rows(b"", rows, out)
    assert (made[0] == made[1]).all()
    at = 0
    for number, item in enumerate(items):
        assert (made[1][at] == rows[number]).all()
        at += 1
        for name, place in units_by_java(*item):
            row = made[1][at]
            where = int(row[C.TOPIC_POS])
            assert data[where : where + int(row[C.TOPIC_LEN])] == name.encode()
            assert row[[C.QUEUE_ID, C.QUEUE_OFFSET, C.KEYS_LEN]].tolist() == [0, place, 0]
            same = [C.PHY, C.SIZE, C.TAGS_CODE, C.SYS_FLAG, C.STORE_TIMESTAMP]
            assert (row[same] == rows[number][same]).all()
            at += 1
    assert at == len(made[1])


units = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 5000), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.integers(1, 300), st.just(2**31 - 1), st.integers(-(2**31), 2**31 - 1)), st.just(0)),
    max_size=30)


@quick
@given(units, st.booleans(), st.integers(-1, 3000))
def test_cover_is_the_same(items, ordered, last):
    if ordered:
        items = sorted(items)
    data = b"".join(struct.pack(">qiq", *item) for item in items)
    starts = np.array([1000, 2000, 4000], dtype=np.int64)
    found = []
    for module in (UNITS, kernels.queue_units):
        sums, highs = np.zeros(3, dtype=np.uint64), starts.copy()
        found.append((module.add_cover(data, last, starts, sums, highs), sums.tolist(), highs.tolist()))
    assert found[0] == found[1]
    (count, end), sums, highs = found[1]
    wanted, tops = [0, 0, 0], starts.tolist()
    for phy, size, _ in items[:count]:
        if size != 2**31 - 1:
            assert size > 0
            assert phy > last
            last = phy
            place = sum(start <= phy for start in starts) - 1
            if place >= 0:
                wanted[place] += UNITS.mix(phy + size) - UNITS.mix(phy)
                tops[place] = max(tops[place], phy + size)
    assert (end, sums, highs) == (last, [one % 2**64 for one in wanted], tops)
    if count < len(items):
        phy, size, _ = items[count]
        assert size != 2**31 - 1
        assert size <= 0 or phy <= last or phy > 2**62


@pytest.mark.parametrize("module", [UNITS, kernels.queue_units], ids=["interpreted", "compiled"])
def test_cover_needs_a_sum_for_each_segment(module):
    starts = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="3 segments in 2 and 3"):
        module.add_cover(b"", -1, starts, np.zeros(2, dtype=np.uint64), starts.copy())


@pytest.mark.parametrize("module", [UNITS, kernels.queue_units], ids=["interpreted", "compiled"])
def test_sorting_by_queue_stays_inside_its_rooms(module):
    rows = np.zeros((4, C.COLUMNS), dtype=np.int64)
    rows[:, C.TOPIC_LEN] = 1
    rows[:, C.QUEUE_ID] = [7, 7, 8, 9]
    room, table = np.zeros(4, dtype=np.int64), np.zeros(8, dtype=np.int64)
    known, names = np.zeros((4, 4), dtype=np.int64), bytearray(4)
    with pytest.raises(ValueError, match="a table of 12"):
        module.number_queues(b"x", rows, 0, room, 0, known, names, np.zeros(12, dtype=np.int64))
    with pytest.raises(ValueError, match=f"4 rows of {C.COLUMNS} columns into 3"):
        module.number_queues(b"x", rows, 0, room[:3], 0, known, names, table)
    with pytest.raises(ValueError, match="5 queues of 4"):
        module.number_queues(b"x", rows, 0, room, 5, known, names, table)
    for less in ({"known": known[:1]}, {"names": bytearray(1)}, {"table": table[:2]}):
        given = {"known": known, "names": names, "table": table, **less}
        given["table"][:] = 0
        assert module.number_queues(
            b"x", rows, 0, room, 0, given["known"], given["names"], given["table"]) == (2, 1)
    table[:] = 0
    assert module.number_queues(b"x", rows, 0, room, 0, known, names, table) == (4, 3)
    assert room.tolist() == [0, 0, 1, 2]
    rows[2, C.TOPIC_LEN] = 2
    with pytest.raises(ValueError, match="its topic outside of the bytes"):
        module.number_queues(b"x", rows, 0, room, 3, known, names, table)
    with pytest.raises(ValueError, match=f"4 rows of {C.COLUMNS} columns into 3 of 7"):
        module.copy_columns(rows, np.zeros((3, 7), dtype=np.int64))
    with pytest.raises(ValueError, match="queue 3 of 3"):
        module.sort_by_queue(np.array([0, 3]), 3, room, room)
    with pytest.raises(ValueError, match="4 rows and 4 queues into 4 and 4"):
        module.sort_by_queue(room, 4, room, room)
