"""Timers in bulk: both twins are equal on whole and on damaged bytes, and agree with timers handled one by one."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace.formats.commitlog import decode_message, java_string_hash
from tailrace.formats.timerlog import TIMER_UNIT, TimerUnit
from tailrace.kernels import record, timer_put_back
from tailrace.kernels import timer_records as compiled
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.timer.properties import due_ms, identity_of, out_ms, put_back_properties

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


TWINS = [interpreted("timer_records"), compiled]
PUTS = [interpreted("timer_put_back"), timer_put_back]
BASE = 1 << 40
NOW = 1_700_000_000_000
numbers = st.sampled_from(["0", "7", "900", str(NOW), str(NOW + 700), "x", "-1", "+5", "", "1" * 16])
properties = st.fixed_dictionaries(
    {"REAL_TOPIC": st.sampled_from(["T", "Topic-2", "%RETRY%g", "t" * 127, "t" * 128]),
     "UNIQ_KEY": st.sampled_from(["K", "0A0B", "k\u00e9"]),
     "TIMER_OUT_MS": st.sampled_from([str(NOW), str(NOW), str(NOW - 1000), "no"]),
     "REAL_QID": st.sampled_from(["0", "3", "2147483647", "2147483648", "one"])},
    optional={
        "TIMER_DELAY_SEC": numbers, "TIMER_DELAY_MS": numbers, "TIMER_DELIVER_MS": numbers,
        "TAGS": st.just("a"), "TIMER_ROLL_TIMES": st.just("1"), "TIMER_ENQUEUE_MS": st.just("1"),
        "TIMER_DEL_UNIQKEY": st.just("K"), "__CRC32#": st.just("0123456789"), "REAL_": st.just("x")})
items = st.lists(st.tuples(
    properties, st.binary(max_size=70), st.sampled_from(["rmq_sys_wheel_timer"] * 5 + ["Other"]),
    st.sampled_from([8, 20]), st.sampled_from([8, 20]), st.sampled_from([0, 0, 0, 2, 4, 8, 12]),
    st.booleans()), min_size=1, max_size=6)


def log_of(made):
    out, at, places, sizes = bytearray(1 << 15), 0, [], []
    for n, (found, body, topic, born, store, sys_flag, whole) in enumerate(made):
        text = encode_properties(found)
        size = record.encode(
            out, at, len(out), BASE + at, 0, n - 1, n, sys_flag, 10**12 + n, bytes([n]) * born,
            NOW - 5000 + n, bytes(store), n, 0, body, record.crc32(body, 0, len(body)) & 0x7FFFFFFF,
            topic.encode(), text if whole else text[:-1], False)
        assert size > 0
        places.append(at)
        sizes.append(size)
        at += size
    return bytes(out[:at]), np.array(places), np.array(sizes)


def read(module, data, places, sizes):
    rows = np.zeros((len(places), C.T_COLUMNS), np.int64)
    module.place(b"".join(
        TIMER_UNIT.pack(*TimerUnit(52, -1, 1, 123_000, 900, BASE + place, size, 7, 0))
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True)), 1000, rows)
    rows[:, C.T_POS] = places
    odd = module.read(data, 1000, NOW, NOW, 1 << 20, 1 << 20, rows)
    assert odd == np.count_nonzero(rows[:, C.T_PLAIN] == 0)
    assert rows[:, C.T_POSITION].tolist() == (BASE + places).tolist()
    assert rows[:, [C.T_SLOT, C.T_WROTE]].tolist() == [[123_000, 123_000]] * len(rows)
    rows[rows[:, C.T_PLAIN] == 0] = 0
    return rows


@quick
@given(items)
def test_a_plain_timer_is_what_its_message_says(made):
    data, places, sizes = log_of(made)
    found = [read(module, data, places, sizes) for module in TWINS]
    assert found[0].tolist() == found[1].tolist()
    for row, place, size, item in zip(
        found[1], places.tolist(), sizes.tolist(), made, strict=True
    ):
        message = decode_message(data[place : place + size])
        texts = message.properties
        if not row[C.T_PLAIN]:
            assert item[2] == "Other" or item[5] & 12 or "\u00e9" in texts["UNIQ_KEY"] or (
                len(texts["REAL_TOPIC"]) > 127 or not texts["TIMER_OUT_MS"].isdigit()
                or texts["REAL_QID"] in {"one", "2147483648"}
                or any(name in texts for name in (
                    "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEL_UNIQKEY", "__CRC32#"))
                or any(texts.get(name, "0") in {"x", "-1", "+5", "1" * 16} for name in (
                    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"))
                or int(texts.get("TIMER_DELAY_SEC", 0)) > 10**9)
            continue
        out = out_ms(texts)
        identity = identity_of(texts, out)
        assert row[C.T_OUT] == out
        assert row[C.T_DUE] == due_ms(texts, out, message.store_timestamp, 1000)
        assert row[C.T_QUEUE_ID] == int(texts["REAL_QID"])
        for module in TWINS:
            assert row[C.T_IDENTITY] == module.identity_hash(
                identity.real_topic.encode(), identity.unique_key.encode(), out)


@quick
@given(items, st.data())
def test_records_that_leave_are_those_of_single_ones(made, draw):
    data, places, sizes = log_of(made)
    limit = draw.draw(st.integers(0, 6000))
    results = []
    for module, puts in zip(TWINS, PUTS, strict=True):
        rows = read(module, data, places, sizes)
        rows[:, C.T_QUEUE] = rows[:, C.T_QUEUE_ID] % 2
        order = np.flatnonzero(rows[:, C.T_PLAIN])[::-1].copy()
        out, offsets = bytearray(b"\xee" * 8000), np.array([5, 50])
        count, used = puts.put_back(
            data, rows, order, 0, len(order), out, 10, limit, BASE + 9000, offsets, NOW, NOW + 1,
            b"\x7f\0\0\1\0\0\x2a\x9f")
        assert out[:10] == b"\xee" * 10
        assert out[10 + used :] == b"\xee" * (8000 - 10 - used)
        assert not count or 10 + used + 8 <= limit
        results.append((count, used, bytes(out), offsets.tolist()))
    assert results[0] == results[1]
    at, counted = 10, [5, 50]
    for n in order[:count].tolist():
        before = decode_message(data[places[n] : places[n] + sizes[n]])
        size = int.from_bytes(out[at : at + 4], "big")
        after = decode_message(bytes(out[at : at + size]))
        queue = after.queue_id % 2
        assert after.properties == put_back_properties(before.properties, 123_000, NOW, None)
        assert list(after.properties)[-2:] == ["TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"]
        assert (
            after.topic, after.queue_id, after.body, after.flag, after.born_timestamp,
            after.born_host, after.reconsume_times, after.queue_offset, after.phy_offset,
            after.store_timestamp, after.sys_flag & ~0x20,
        ) == (
            before.properties["REAL_TOPIC"], int(before.properties["REAL_QID"]), before.body,
            before.flag, before.born_timestamp, before.born_host, before.reconsume_times,
            counted[queue], BASE + 9000 + at - 10, NOW + 1, before.sys_flag & ~0x20)
        counted[queue] += 1
        at += size
    assert at == 10 + used
    assert offsets.tolist() == counted


@quick
@given(items, st.data())
def test_damaged_bytes_are_the_same_to_both_and_never_read_outside(made, draw):
    data, places, sizes = log_of(made)
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        broken[draw.draw(st.integers(0, len(broken) - 1))] ^= draw.draw(st.integers(1, 255))
    cut = draw.draw(st.integers(0, len(broken)))
    for bytes_ in (bytes(broken), data[:cut]):
        found = [read(module, bytes_, places, sizes) for module in TWINS]
        assert found[0].tolist() == found[1].tolist()
        for row, place, size in zip(found[1], places.tolist(), sizes.tolist(), strict=True):
            assert not row[C.T_PLAIN] or place + size <= len(bytes_)
    odd = np.array([-1, len(data), len(data) + 5, 0])
    for module in TWINS:
        assert not read(module, data, odd, np.array([91, 91, 1, -4])).any()


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "compiled"])
def test_units_in_another_order_than_their_records_are_reported(module):
    rows = np.zeros((3, C.T_COLUMNS), np.int64)
    for places, wanted in (((5, 5, 9), True), ((5, 9, 8), False)):
        units = [TIMER_UNIT.pack(*TimerUnit(52, -1, 1, 1, 1, place, 91, 0, 0)) for place in places]
        assert module.place(b"".join(units), 1000, rows) == wanted


def read_enqueued(module, data, places, sizes):
    rows = np.zeros((len(places), C.E_COLUMNS), np.int64)
    rows[:, C.E_POS], rows[:, C.E_POSITION], rows[:, C.E_SIZE] = places, BASE + places, sizes
    module.read_enqueued(data, rows)
    rows[rows[:, C.E_KIND] == C.E_ODD] = 0
    return rows


@quick
@given(items)
def test_the_columns_for_the_enqueue_equal_the_properties_of_the_message(made):
    data, places, sizes = log_of(made)
    found = [read_enqueued(module, data, places, sizes) for module in TWINS]
    assert found[0].tolist() == found[1].tolist()
    for row, place, size, item in zip(
        found[1], places.tolist(), sizes.tolist(), made, strict=True
    ):
        texts = decode_message(data[place : place + size]).properties
        if row[C.E_KIND] == C.E_ODD:
            assert item[2] == "Other" or "\u00e9" in texts["UNIQ_KEY"] or texts["TIMER_OUT_MS"] == "no"
            continue
        assert (row[C.E_KIND] == C.E_DELETE) == ("TIMER_DEL_UNIQKEY" in texts)
        assert row[C.E_OUT] == out_ms(texts)
        assert row[C.E_TOPIC_HASH] == java_string_hash(texts["REAL_TOPIC"])
        at = int(row[C.E_TOPIC_POS])
        assert data[at : at + int(row[C.E_TOPIC_LEN])].decode() == texts["REAL_TOPIC"]
        for module in TWINS:
            assert row[C.E_TOPIC] == module.topic_hash(texts["REAL_TOPIC"].encode())


@quick
@given(items, st.data())
def test_the_enqueue_sees_damage_the_same_in_both_and_reads_nothing_outside(made, draw):
    data, places, sizes = log_of(made)
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        broken[draw.draw(st.integers(0, len(broken) - 1))] ^= draw.draw(st.integers(1, 255))
    for bytes_ in (bytes(broken), data[: draw.draw(st.integers(0, len(broken)))]):
        found = [read_enqueued(module, bytes_, places, sizes) for module in TWINS]
        assert found[0].tolist() == found[1].tolist()
        for row, place, size in zip(found[1], places.tolist(), sizes.tolist(), strict=True):
            assert row[C.E_KIND] == C.E_ODD or place + size <= len(bytes_)
    odd = np.array([-1, len(data), len(data) + 5, 0])
    for module in TWINS:
        assert not read_enqueued(module, data, odd, np.array([91, 91, 1, -4])).any()


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "compiled"])
def test_a_far_timer_waits_for_its_slot_and_the_log_is_asked_about_it(module):
    data, _, (size,) = log_of([(
        {"REAL_TOPIC": "T", "UNIQ_KEY": "K", "TIMER_OUT_MS": str(NOW), "REAL_QID": "1"}, b"body",
        "rmq_sys_wheel_timer", 8, 8, 0, True)])
    rows = np.zeros((1, C.T_COLUMNS), np.int64)
    for magic, frontier_ms, suspicious_ms, plain, ask in (
        (1, NOW, NOW, 1, 0), (1, NOW, NOW + 1, 1, 1), (3, NOW, NOW, 0, 1), (3, NOW + 1, NOW, 1, 1),
    ):
        module.place(TIMER_UNIT.pack(*TimerUnit(52, -1, magic, NOW, 0, BASE, size, 7, 0)), 1000, rows)
        assert module.read(data, 1000, frontier_ms, suspicious_ms, 4, size, rows) == 1 - plain
        assert rows[0, [C.T_PLAIN, C.T_ASK]].tolist() == [plain, ask]
    for most_body, most in ((3, size), (4, size - 1)):
        assert module.read(data, 1000, NOW + 1, NOW, most_body, most, rows) == 1


@pytest.mark.parametrize(
    ("module", "puts"), list(zip(TWINS, PUTS, strict=True)), ids=["interpreted", "compiled"])
def test_a_damaged_body_is_not_plain(module, puts):
    data, places, sizes = log_of([(
        {"REAL_TOPIC": "T", "UNIQ_KEY": "K", "TIMER_OUT_MS": str(NOW), "REAL_QID": "1"}, b"body",
        "rmq_sys_wheel_timer", 8, 8, 0, True)])
    assert read(module, data, places, sizes)[0, C.T_PLAIN] == 1
    at = data.index(b"body")
    assert not read(module, data[:at] + b"B" + data[at + 1 :], places, sizes).any()
    with pytest.raises(ValueError, match="not a plain timer"):
        puts.put_back(
            data, np.zeros((1, C.T_COLUMNS), np.int64), np.array([0]), 0, 1, bytearray(500), 0, 500,
            0, np.array([0]), 1, 1, bytes(8))
