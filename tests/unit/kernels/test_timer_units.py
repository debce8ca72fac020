"""The wheel is built from the timer log: both twins are equal, also on damaged bytes, and agree with plain rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT, TimerUnit
from tailrace.formats.timerwheel import SLOT, Slot
from tailrace.kernels import timer_units as compiled
from tailrace.kernels.shared import constants as C

TWINS = [interpreted("timer_units"), compiled]
quick = settings(max_examples=80, deadline=None)
SLOTS, BASE, LIMIT = 300, 5200, 50_000
seconds = st.integers(990, 1320)
units = st.lists(st.tuples(
    seconds, st.sampled_from(["goes on"] * 20 + ["begins anew", "astray"]), st.booleans(),
    st.integers(0, 999)), max_size=60)


def log_of(made):
    """Return units one after the other. Each is linked to the last one of its slot unless the case says otherwise."""
    data, last = bytearray(), {}
    for number, (second, kind, is_delete, ms) in enumerate(made):
        pos = BASE + len(data)
        previous = {"goes on": last.get(second, -1), "begins anew": -1, "astray": 52}[kind]
        last[second] = pos
        data += TIMER_UNIT.pack(*TimerUnit(
            52, previous, 1 | (MAGIC_DELETE if is_delete else 0), 900_000,
            second * 1000 - 900_000 + ms, 700 * number, 700, 7, 0))
    return bytes(data)


def replayed(module, data, begin_ms):
    wheel, pages = bytearray(SLOTS * 32), bytearray(-(-SLOTS * 32 // 4096))
    count, why = module.replay(data, BASE, begin_ms, 1000, wheel, pages)
    return count, why, wheel, pages


def plainly(data, begin_ms):
    wheel, used = bytearray(SLOTS * 32), set()
    for number in range(len(data) // 52):
        unit, pos = TIMER_UNIT.unpack_from(data, number * 52), BASE + number * 52
        time = (unit.write_time_ms + unit.delay_ms) // 1000
        if time * 1000 < begin_ms:
            continue
        at = time % SLOTS * 32
        slot = SLOT.unpack_from(wheel, at)
        if slot.time not in (0, time):
            return number, C.REPLAY_TAKEN, wheel, used
        if slot.time and unit.prev_pos != slot.last_pos:
            return number, C.REPLAY_BEGINS_ANEW if unit.prev_pos < 0 else C.REPLAY_BROKEN, wheel, used
        if not slot.time and unit.prev_pos >= 0:
            return number, C.REPLAY_BROKEN, wheel, used
        first, num = (slot.first_pos, slot.num) if slot.time else (pos, 0)
        num += -1 if unit.magic & MAGIC_DELETE else 1
        SLOT.pack_into(wheel, at, Slot(time, first, pos, num, 0))
        used.add(at // 4096)
    return len(data) // 52, C.REPLAY_DONE, wheel, used


@quick
@given(units, seconds)
def test_units_make_the_slots_that_plain_rules_make(made, begin):
    data, begin_ms = log_of(made), begin * 1000
    count, why, wheel, used = plainly(data, begin_ms)
    for module in TWINS:
        found = replayed(module, data, begin_ms)
        assert found[:3] == (count, why, wheel)
        assert {page for page, touched in enumerate(found[3]) if touched} == used
        listed = bytearray(b"\7" * len(made))
        module.listed(data, BASE, begin_ms, 1000, wheel, listed)
        for number, is_listed in enumerate(listed):
            unit = TIMER_UNIT.unpack_from(data, number * 52)
            time = (unit.write_time_ms + unit.delay_ms) // 1000
            slot = SLOT.unpack_from(wheel, time % SLOTS * 32)
            assert is_listed == (
                time * 1000 >= begin_ms and slot.time == time
                and slot.first_pos <= BASE + number * 52)


@quick
@given(units, st.data())
def test_damage_is_the_same_to_both_and_nothing_outside_is_touched(made, draw):
    data = bytearray(log_of(made) + bytes(draw.draw(st.integers(0, 60))))
    for _ in range(draw.draw(st.integers(0, 5)) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    data = bytes(data)
    good = [module.good(data, BASE, LIMIT) for module in TWINS]
    assert good[0] == good[1]
    count, last = good[0]
    rows = TIMER_UNIT.view(data[: len(data) - len(data) % 52])
    assert count <= len(rows)
    whole = (rows["size"] == 52) & (rows["magic"] > 0) & (rows["magic"] <= 15) & (
        rows["phy_offset"] >= 0) & (rows["msg_size"] > 0) & (
        rows["msg_size"].astype(object) + rows["phy_offset"].astype(object) <= LIMIT) & (
        rows["prev_pos"] < BASE + 52 * np.arange(len(rows)))
    assert count == (len(rows) if whole.all() else int(np.argmin(whole)))
    assert last == (int(np.argmax(rows["phy_offset"][:count])) if count else -1)
    found = [replayed(module, data[: count * 52], 1_000_000) for module in TWINS]
    assert found[0] == found[1]


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "compiled"])
def test_what_cannot_be_is_refused(module):
    for bad in ((-1, 0, 1000, bytearray(64), bytearray(1)), (0, -1, 1000, bytearray(64), bytearray(1)),
                (0, 0, 0, bytearray(64), bytearray(1)), (0, 0, 1000, bytearray(8), bytearray(1)),
                (0, 0, 1000, bytearray(8192), bytearray(1))):
        with pytest.raises(ValueError, match="slots"):
            module.replay(bytes(52), *bad)
    with pytest.raises(ValueError, match="slots"):
        module.listed(bytes(104), 0, 0, 1000, bytes(64), bytearray(1))


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "compiled"])
def test_a_slots_list_is_followed_through_windows_to_its_end_or_its_damage(module):
    log, lists = bytearray(), {0: [], 1: []}
    for n in range(40):
        slot, pos = n % 3 % 2, len(log)
        previous = lists[slot][-1] if lists[slot] else -1
        lists[slot].append(pos)
        log += TIMER_UNIT.pack(*TimerUnit(52, previous, 1, 5000 + n, 1000 * slot - n, n, 91, 0, 0))

    def followed(slot_ms, pos, base=0):
        found = []
        while pos >= base:
            out = bytearray(52 * 3)
            count, pos, good = module.walk(
                bytes(log[base:]), base, pos, slot_ms, 1000, out)
            found += [unit.phy_offset for unit in map(
                TIMER_UNIT.unpack_from, [out[i * 52 : i * 52 + 52] for i in (2, 1, 0)[:count]])]
            if not good:
                return found, pos, False
        return found, pos, True

    for slot in (0, 1):
        places = [pos // 52 for pos in reversed(lists[slot])]
        assert followed(5000 + 1000 * slot, lists[slot][-1]) == (places, -1, True)
    base = 52 * 20 + 1
    found, pos, good = followed(5000, lists[0][-1], base)
    assert good
    assert pos < base <= found[-1] * 52
    assert followed(6000, lists[0][-1]) == ([], lists[0][-1], False)
    log[lists[0][4] + 3] = 7  # its size
    found, pos, good = followed(5000, lists[0][-1])
    assert (found, pos, good) == (
        [at // 52 for at in reversed(lists[0][5:])], lists[0][4], False)


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "compiled"])
def test_the_table_keeps_the_first_value_of_each_hash(module):
    rng = np.random.default_rng(1)
    hashes = rng.choice(np.arange(1, 4000, 2), 500, replace=False)
    rows = np.stack([hashes, np.arange(500), np.arange(500) % 7], axis=1)
    table = np.zeros((1024, 3), np.int64)
    used = module.add(table, rows[:300], 0)
    used = module.add(table, rows[300:], used)
    assert used == 500
    assert module.add(table, rows[:12] + np.array([0, 9000, 0]), used) == 500
    found = np.zeros(501, np.int64)
    assert module.find(table, np.append(hashes, 5001), found) == 500
    assert found.tolist() == [*range(500), -1]
    with pytest.raises(ValueError, match="used"):
        module.add(table, rows[:20], 500)


@quick
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3), max_size=40))
def test_different_values_are_numbered_in_the_order_of_their_first_ones(values):
    order = list(dict.fromkeys(values))
    for module in TWINS:
        numbers, work = np.empty(len(values), np.int64), np.zeros((3, 64), np.int64)
        count = module.number(np.array([values, values], np.int64).T[:, 0], work, numbers)
        assert numbers.tolist() == [order.index(value) for value in values]
        assert work[1, :count].tolist() == [values.index(value) for value in order]
        assert work[2, :count].tolist() == [values.count(value) for value in order]
        with pytest.raises(ValueError, match="table"):
            module.number(np.zeros(64, np.int64), np.zeros((3, 64), np.int64), np.zeros(64, np.int64))


@quick
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(-5, 700)), min_size=1, max_size=20), st.integers(0, 1500))
def test_neighbouring_records_are_one_read_and_each_is_located_in_what_was_read(made, size):
    sizes = np.array([size for _, size in made], np.int64)
    positions = BASE + np.cumsum([step for step, _ in made])
    ends = [max(size, 0) + place for place, size in zip(positions.tolist(), sizes.tolist(), strict=True)]
    until = next((n for n in range(1, len(made)) if positions[n] - ends[n - 1] > 300), len(made))
    for module in TWINS:
        assert module.extent(positions, sizes, 0, 300) == (until, max(ends[:until]))
        found = np.full(len(made), -1, np.int64)
        reached = module.locate(positions, 0, until, size, 70, found)
        inside = [int(place - positions[0]) for place in positions[:until] if place - positions[0] < size]
        assert found.tolist() == [*(at + 70 for at in inside), *[-1] * (len(made) - len(inside))]
        assert reached == len(inside)
        totals = np.cumsum(np.maximum(sizes, 0))
        assert module.whole(sizes, size) == max(int(np.count_nonzero(totals <= size)), 1)
        with pytest.raises(ValueError, match="record"):
            module.extent(positions, sizes, len(made), 300)
        with pytest.raises(ValueError, match="records"):
            module.locate(positions, 0, until, size, 0, found[: until - 1])


@quick
@given(st.lists(st.integers(0, 15), max_size=20), st.integers(0, 51))
def test_requests_to_delete_are_counted_unless_their_slot_has_not_come(magics, more):
    data = b"".join(TIMER_UNIT.pack(*TimerUnit(52, -1, magic, 1, 1, 1, 1, 0, 0)) for magic in magics) + bytes(more)
    wanted = sum(bool(magic & MAGIC_DELETE) and not magic & MAGIC_ROLL for magic in magics)
    assert [module.requests(data) for module in TWINS] == [wanted, wanted]
