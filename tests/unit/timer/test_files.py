"""Timer wheel, timer log and timer checkpoint, and what a crash leaves of them."""

import numpy as np
import pytest

from tailrace.env.entropy import SeededEntropy
from tailrace.errors import DiskFullError
from tailrace.formats.timercheckpoint import TIMER_CHECKPOINT, TimerCheckpointFields
from tailrace.formats.timerlog import TIMER_UNIT, TimerUnit
from tailrace.formats.timerwheel import SLOT
from tailrace.testing import CrashFileSystem, SimulatedCrash
from tailrace.timer.timer_checkpoint import TimerCheckpoint
from tailrace.timer.timer_log import TimerLog, recognise_file_size
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel

PATH = "/store/timerwheel"
SLOTS = 512
FILE = 52 * 5 + 20


@pytest.fixture
def files():
    made = CrashFileSystem()
    made.makedirs("/store/config")
    return made


def wheel_on(files):
    return TimerWheel(files, PATH, 1000, SLOTS)


def unit(number, prev=-1, magic=1):
    return TimerUnit(52, prev, magic, 1_000_000, 2000, 100 * number, 100, 7, 0)


def log_on(files):
    log = TimerLog(files, "/store/timerlog", FILE)
    log.files.load()
    return log


def filled(files, count):
    log = log_on(files)
    for number in range(count):
        assert log.room() > 0
        log.append(TIMER_UNIT.pack(*unit(number)))
    return log


def test_a_slot_that_holds_another_time_is_empty(files):
    wheel = wheel_on(files)
    wheel.put_slot(5000, 0, 52, 2)
    assert wheel.get_slot(5999) == (5, 0, 52, 2, 0)
    assert wheel.get_slot(5000 + 2 * SLOTS * 1000) == NO_SLOT
    assert wheel.held_time(5000 + 2 * SLOTS * 1000) == 5000
    assert wheel.get_slot(6000) == NO_SLOT


def test_live_slots_are_found_in_the_order_of_their_time(files):
    wheel = wheel_on(files)
    start = (2 * SLOTS - 2) * 1000  # the ring comes round in between
    for step in (3, 0, 1):
        wheel.put_slot(start + step * 1000, step, step, 1)
    assert wheel.live_slots(start) == [start, start + 1000, start + 3000]
    assert wheel.live_slots(start + 1, start + 3000) == [start, start + 1000]
    assert wheel.pending(start + 1000) == 2


def test_only_touched_pages_of_the_wheel_are_written(files):
    """W19: the reference compares and forces all 38.7 MB."""
    wheel = wheel_on(files)
    wheel.flush()
    before = files.operations
    wheel.put_slot(5000, 0, 0, 1)
    wheel.put_slot(6000, 0, 0, 1)
    assert wheel.flush()
    assert files.operations - before == 2  # one page, one sync
    assert not wheel.flush()


def test_a_first_flush_replaces_what_an_earlier_process_left(files):
    wheel = wheel_on(files)
    wheel.put_slot(5000, 0, 0, 1)
    wheel.put_slot(400_000, 0, 0, 1)
    wheel.flush()
    again = wheel_on(files)
    again.put_slot(6000, 52, 52, 1)
    again.flush()
    data = files.open(PATH).pread(1 << 20, 0)
    slots = SLOT.view(data)
    assert slots["time"][slots["time"] > 0].tolist() == [6]


@pytest.mark.parametrize("left", [0, 100, 2 * SLOTS * SLOT.size, 5 * SLOTS * SLOT.size])
def test_the_file_of_the_wheel_has_the_length_of_its_slots(files, left):
    """A Java broker maps it whole."""
    files.open(PATH, writable=True, create=True).truncate(left)
    wheel = wheel_on(files)
    wheel.put_slot(5000, 0, 0, 1)
    wheel.flush()
    assert files.stat(PATH).size == 2 * SLOTS * SLOT.size


def test_a_power_loss_never_leaves_half_a_slot(files):
    """Slots lie within sectors, so each is the old or the new one, whatever else is torn."""
    for seed in range(40):
        files = CrashFileSystem()
        files.makedirs("/store")
        wheel = wheel_on(files)
        for time in range(1, 200):
            wheel.put_slot(time * 1000, 1, 1, 1)
        wheel.flush()
        for time in range(1, 200):
            wheel.put_slot(time * 1000, 1, 2, 2)

        def stop(number, name, path):
            if name == "sync_data":
                raise SimulatedCrash

        files.before = stop
        with pytest.raises(SimulatedCrash):
            wheel.flush()
        after = files.power_lost(SeededEntropy(seed), 50)
        slots = SLOT.view(after.open(PATH).pread(1 << 20, 0))
        assert set(slots[slots["time"] > 0].tolist()) <= {
            (t, 1, last, last, 0) for t in range(1, 200) for last in (1, 2)}


def test_a_full_file_ends_in_a_blank_unit_and_the_next_one_follows(files):
    log = filled(files, 12)
    assert log.min_offset == 0
    assert log.max_offset == 2 * FILE + 52 * 2
    assert [pos for pos, _ in log.scan()] == [0, FILE, 2 * FILE]
    assert log.unit(FILE) == unit(5)
    tail = files.open(log.files.path_of(0)).pread(100, 5 * 52)
    assert tail.hex() == "00000014" + "00" * 8 + "cbd43194" + "00" * 4


@pytest.mark.parametrize("place", [0, 3, 5, 7])
def test_a_scan_stops_at_the_first_bad_unit(files, place):
    filled(files, 8)
    pos = place // 5 * FILE + place % 5 * 52
    file = files.open(f"/store/timerlog/{pos // FILE * FILE:020d}", writable=True)
    file.pwrite(b"\x00\x00\x00\x35", pos % FILE)
    log = log_on(files)
    found = [phy_offset for _, units in log.scan() for phy_offset in units["phy_offset"].tolist()]
    assert found == [100 * n for n in range(place)]
    log.truncate(pos)
    assert log.max_offset == pos
    assert log.room() > 0
    assert log.append(TIMER_UNIT.pack(*unit(99))) == pos


def test_a_failed_append_leaves_no_unit(files):
    log = filled(files, 2)

    def fail(number, name, path):
        if name == "pwrite":
            raise OSError(28, "no space")

    files.before = fail
    with pytest.raises(DiskFullError):
        log.append(TIMER_UNIT.pack(*unit(2)))
    files.before = None
    assert log.max_offset == 104
    assert log.append(TIMER_UNIT.pack(*unit(3))) == 104


def test_the_checkpoint_is_written_whole_and_anything_odd_reads_as_none(files):
    path = "/store/config/timercheck"
    check = TimerCheckpoint(files, path)
    assert check.fields is None
    fields = TimerCheckpointFields(1000, 52, 3, 3, 0, 7, 1)
    check.write(fields)
    assert TimerCheckpoint(files, path).fields == fields
    assert files.open(path).size() == 4096
    before = files.operations
    check.write(fields)
    assert files.operations == before
    files.open(path, writable=True).pwrite(TIMER_CHECKPOINT.pack(*fields._replace(counter=-1)), 0)
    assert TimerCheckpoint(files, path).fields is None
    check.remove()
    assert not files.exists(path)


def test_many_slots_are_put_as_one_by_one(files):
    entropy = SeededEntropy(3)
    start = 1_700_000_000_000
    chosen = sorted({entropy.randrange(2 * SLOTS) for _ in range(300)})
    rows = [(start + 1000 * n, 52 * n, 104 * n + 52, n - 200) for n in chosen]
    single, many = wheel_on(files), wheel_on(files)
    for row in rows:
        single.put_slot(*row)
    many.put_slots(*np.array(rows, dtype=np.int64).T)
    assert many.take_dirty() == single.take_dirty()
    assert many.live_slots(start) == [row[0] for row in rows]
    assert many.pending(start) == sum(max(row[3], 0) for row in rows)
    half = start + 1000 * SLOTS
    assert many.pending(start, half) == sum(max(row[3], 0) for row in rows if row[0] < half)
    assert many.pending_until(start, [half, start]) == [many.pending(start, half), 0]


def test_a_scan_ends_before_a_file_that_is_missing(files):
    filled(files, 17)
    files.remove(f"/store/timerlog/{2 * FILE:020d}")
    log = log_on(files)
    assert [pos for pos, _ in log.scan()] == [0, FILE]
    assert log.scan_end == 2 * FILE, "units after a hole would be given to recovery as the newest ones"


@pytest.mark.parametrize(("first", "known"), [(0, False), (52, False), (68, False), (69, True)])
def test_a_file_too_short_for_a_unit_and_its_end_tells_no_file_size(files, first, known):
    files.makedirs("/store/timerlog")
    for pos, size in ((0, first), (FILE, FILE)):
        files.open(f"/store/timerlog/{pos:020d}", writable=True, create=True).truncate(size)
    files.open("/store/timerlog/note", writable=True, create=True).truncate(999)
    assert recognise_file_size(files, "/store/timerlog", 1 << 20) == (first if known else FILE)
    files.remove(f"/store/timerlog/{FILE:020d}")
    assert recognise_file_size(files, "/store/timerlog", 1 << 20) == (first if known else 1 << 20)


def test_files_that_were_read_go_with_what_is_known_about_them(files):
    log = filled(files, 22)
    newest = unit(0).write_time_ms + unit(0).delay_ms
    assert log.delete_read_files(newest) == 0
    assert log.delete_read_files(newest + 1) == 3, "the last two stay"
    assert set(log._newest) <= {file.file_from_offset for file in log.files.files}


def test_a_power_loss_brings_no_removed_file_back_and_leaves_no_gap(files):
    log = filled(files, 22)
    log.flush()
    log.files.flush(0)
    files.sync_dir("/store/timerlog")
    assert log.delete_read_files(unit(0).write_time_ms + unit(0).delay_ms + 1) == 3
    for seed in range(20):
        after = files.power_lost(SeededEntropy(seed), 50)
        assert after.list("/store/timerlog") == files.list("/store/timerlog")


def test_a_file_whose_removal_fails_stays_in_the_log(files):
    log = filled(files, 22)

    def before(_number, name, _path):
        if name == "remove":
            raise OSError(5, "Input/output error")

    files.before = before
    with pytest.raises(OSError, match="Input/output"):
        log.delete_read_files(unit(0).write_time_ms + unit(0).delay_ms + 1)
    files.before = None
    assert log.files.files[0].file_from_offset == 0
    assert log.unit(0) is not None
