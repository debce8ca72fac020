"""A wall clock that was ahead: look-ups by time and ages are right again after its correction."""

from __future__ import annotations

import random

import pytest

from tailrace import MessageStore, StoreConfig
from tailrace.kernels.properties import encode_properties
from tailrace.model import BoundaryType, MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.wall_times import Mark, WallTimes, read_wall_times
from tailrace.testing import CrashFileSystem, SimClock

DAY_MS = 86_400_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=4000, max_hash_slot_num=16,
    max_index_num=256, commit_log_allocate_step=4096)


class Log:
    """A store whose clock a test sets. ``second`` does what the service does each second."""

    def __init__(self):
        self.files, self.clock = CrashFileSystem(), SimClock()
        self.store = None
        self.open()

    def open(self):
        self.store = MessageStore.open(
            "/s", config=CONFIG, parts=StoreParts(services=False, file_system=self.files, clock=self.clock))

    def again(self):
        self.store.close()
        self.open()

    def put(self, count=10, topic="t"):
        for _ in range(count):
            self.store.put_inner(MessageExtBrokerInner(
                topic, 0, b"x", encode_properties({"KEYS": "k", "UNIQ_KEY": "u"})))
        self.store.wait_dispatched()

    def second(self):
        self.clock.advance(1000)
        self.store.inner._each_second()

    @property
    def now(self):
        return self.clock.now_ms()

    def offset(self, time_ms, boundary=BoundaryType.LOWER):
        return self.store.get_offset_in_queue_by_time("t", 0, time_ms, boundary)

    def found(self, begin_ms, end_ms):
        return [m.queue_offset for m in self.store.query_message("t", "k", 64, begin_ms, end_ms)]


@pytest.fixture
def log():
    made = Log()
    made.clock.step_wall(10 * DAY_MS)
    yield made
    made.store.close()


@pytest.fixture
def corrected(log):
    """Ten messages of a clock that is 90 days ahead, and ten after its correction before the start."""
    log.clock.step_wall(90 * DAY_MS)
    log.put()
    log.store.close()
    log.clock.step_wall(-90 * DAY_MS)
    log.open()
    log.second()
    log.at = log.now
    log.put()
    return log


def test_a_start_with_store_times_that_are_ahead_is_logged_each_time(corrected, caplog):
    corrected.again()
    assert "store times are ahead of the wall clock ahead_ms=7775999000 last_store_time=" in caplog.text
    assert caplog.text.count("store times are ahead of the wall clock") == 1
    assert 89 * DAY_MS < corrected.store.stats()["storeTimeAheadMs"] < 90 * DAY_MS


def test_times_of_today_find_the_messages_of_today(corrected):
    log = corrected
    for _ in range(2):
        assert log.offset(log.at) == 10
        assert log.offset(log.at, BoundaryType.UPPER) in {9, 19}  # the mark before is as exact as a second
        assert log.found(log.at - 60_000, log.now + 60_000) == list(range(10, 20))
        assert log.offset(log.now + DAY_MS) == 20
        assert log.offset(0) == 0
        assert log.found(0, log.at - 60_000) == []
        log.again()


def test_later_times_are_told_apart_also_after_a_restart(corrected):
    log = corrected
    times = []
    for _ in range(20):
        for _ in range(3):
            log.second()
        times.append(log.now)
        log.put()
    log.again()
    assert [log.offset(time_ms) for time_ms in times] == list(range(20, 220, 10))
    assert log.found(times[3], times[4] - 1) == list(range(50, 60))


def test_ages_count_from_the_wall_clock(corrected):
    log = corrected
    log.second()
    stored = [log.store.get_message_store_timestamp("t", 0, offset) for offset in (0, 9, 10, 19)]
    assert all(0 <= log.now - time_ms < 10_000 for time_ms in stored)
    assert stored == sorted(stored)
    assert log.now - log.store.earliest_message_time() < 10_000


def test_retention_counts_from_the_wall_clock(corrected):
    """A file that is ended or deleted by its age does not wait until the clock has reached its store times."""
    log = corrected
    stored_at = log.store.retention.clean_commit_log._store_timestamp
    assert log.now - 10_000 < stored_at(0) <= log.now


def test_a_correction_while_the_store_is_open(log, caplog):
    log.put()
    before = log.now
    log.clock.step_wall(DAY_MS)
    log.put()
    log.clock.step_wall(-DAY_MS)
    log.second()
    assert caplog.text.count("store times are ahead of the wall clock") == 1
    log.second()
    at = log.now
    log.put()
    assert (log.offset(before - 1), log.offset(before + 1), log.offset(at)) == (0, 10, 20)
    log.second()
    assert caplog.text.count("store times are ahead of the wall clock") == 1


def test_when_the_clock_has_reached_the_store_times_they_count_again(corrected):
    log = corrected
    log.clock.step_wall(91 * DAY_MS)
    log.second()
    at = log.now
    log.put()
    assert log.offset(at) == 20
    assert log.store.stats()["storeTimeAheadMs"] == 0
    assert log.store.get_message_store_timestamp("t", 0, 20) == at
    assert log.found(at - 1000, at) == list(range(20, 30))


def test_a_small_step_needs_no_marks(log):
    log.put()
    log.clock.step_wall(-2000)
    log.second()
    assert log.store.inner.commit_log.wall_times.marks == ()
    assert not log.files.exists("/s/tailrace/wall-times.json")


def test_commands_on_the_directory_find_the_messages_of_today(corrected):
    from tailrace.store.queue_search import first_stored

    log = corrected
    log.store.close()
    directory = StoreDirectory("/s", config=CONFIG, file_system=log.files)
    queue = directory.queue(("t", 0))
    since = directory.wall_times.floor(log.at, log.now)
    assert first_stored(queue, queue.min_offset, since, directory.store_time) == 10
    log.open()


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b'{"v":2,"marks":[[1,2,3]]}', b'{"v":1,"marks":[[1,2]]}', b'{"v":1,"marks":[["1",2,3]]}',
    b'{"v":1,"marks":[[5,2,3],[4,3,3]]}', b'{"v":1,"marks":[[4,9,9],[5,3,9]]}', b'{"v":1,"marks":7}'])
def test_a_damaged_file_counts_as_none(text):
    files = CrashFileSystem()
    files.makedirs("/s/tailrace")
    file = files.open("/s/tailrace/wall-times.json", writable=True, create=True)
    file.pwrite(text, 0)
    file.close()
    assert read_wall_times(files, "/s").marks == ()


def test_a_disk_that_takes_no_file_is_logged_and_does_no_harm(log, caplog):
    log.put()

    def full(_number, operation, path):
        if "wall-times" in str(path):
            raise OSError(28, "No space left on device")

    log.files.before = full
    log.clock.step_wall(-DAY_MS)
    log.second()
    log.files.before = None
    assert "cannot keep times of the wall clock" in caplog.text
    assert log.store.is_writeable
    assert log.store.inner.commit_log.wall_times.marks


def test_whatever_the_clock_does_the_times_grow_and_the_marks_are_bounded():
    random_ = random.Random(11)
    for _ in range(30):
        times, wall, last, position, records = WallTimes(), 1_000_000, 0, 0, []
        for _ in range(400):
            wall = max(wall + random_.choice([10, 900, 1100, 5000, 100_000, -100_000, -900, -7_000_000]), 1)
            for _ in range(random_.randrange(3)):
                last = max(last, wall)
                records.append((position, last))
                position += 100
            times.step(position, 0, last, wall)
        of = [times.of(*record) for record in records]
        assert of == sorted(of)
        assert list(times.marks) == sorted(times.marks)
        for _ in range(50):
            moment = random_.randrange(wall + 1)
            assert times.floor(moment, wall) <= moment
    times = WallTimes()
    for number in range(6_000):
        times.step(number * 10, 0, 10**12, 1_000_000 + 1000 * number)
    assert len(times.marks) <= 4096
    assert times.marks[-1] == Mark(59_990, 6_999_000, 10**12)
    times.step(300_000, 59_000, 10**12, 30_000_000)
    assert times.marks[0].position <= 59_000 < times.marks[1].position
