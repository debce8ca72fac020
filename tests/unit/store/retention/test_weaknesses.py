"""Known weaknesses of the reference in retention, by number, each planted to see its test fail."""

from __future__ import annotations

import errno

import pytest
from retention_place import HOUR, SIZE, Place

from tailrace import Message
from tailrace.errors import StoreError
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.retention import clean_commit_log, disk_check
from tailrace.store.retention.clean_commit_log import CleanCommitLogService
from tailrace.store.retention.disk_state import disk_levels
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.store.retention.rules import Rule
from tailrace.store.retention.trash import Trash


def test_w17_what_is_pending_survives_a_forced_deletion():
    place = Place(message_delay_level="60s")
    for number in range(3):
        place.store.put(Message(topic="later", body=b"timer %d" % number, delay=60 + number))
        place.store.put(Message(topic="later", body=b"level %d" % number, delay_level=1))
        place.clock.advance(1000)
    place.fill(2, step_ms=10)
    place.run_timers()
    place.use(95)
    place.run(2000)
    assert place.store.min_phy_offset >= SIZE
    place.use(10)
    place.run(10_000)
    place.run_timers(90_000)
    assert sorted(m.body for m in place.store.read("later", 0)) == [
        b"level 0", b"level 1", b"level 2", b"timer 0", b"timer 1", b"timer 2"]


def test_w27_a_copy_keeps_its_age():
    place = Place()
    place.fill(3)
    place.clock.advance(80 * HOUR)
    for path in place.names():
        place.files.mtimes[path] = place.clock.now_ms()
    assert place.store.retention.delete_now() == 3


def test_w27_consumers_are_heeded():
    place = Place()
    place.fill(3)
    place.clock.advance(80 * HOUR)
    place.clean.needs.pins.append(lambda: [Pin(PinKind.GROUP, SIZE, "orders")])
    assert place.store.retention.delete_now() == 1
    assert place.clean.verdicts()[0].rule is Rule.PINNED


def test_w27_thresholds_may_be_above_90():
    place = Place(disk_space_warning_level_ratio=97, disk_space_clean_forcibly_ratio=95)
    place.fill(2)
    place.use(94)
    place.run(80_000)
    assert place.store.is_writeable
    assert len(place.names()) == 3


def test_w28_what_cannot_be_removed_does_not_come_back():
    place = Place()
    place.fill(3)
    place.clock.advance(80 * HOUR)

    def refuse(_number, name, path):
        if name == "remove" and path.rpartition("/")[2].isdigit():
            raise OSError(errno.EACCES, "refused", path)

    place.files.before = refuse
    assert place.store.retention.delete_now() == 3
    place.files.before = None
    place.store.close()
    place.open()
    assert place.store.min_phy_offset == 3 * SIZE
    assert place.store.get_message("t", 0, 0, 1).next_begin_offset > 0


def test_w33_a_read_makes_no_queue_and_no_queue_keeps_a_mapping():
    place = Place()
    mapped = []
    place.files.before = lambda _number, name, path: (
        mapped.append(path) if name == "map" and "/consumequeue/" in path else None)
    place.fill(1)
    for queue_id in range(4):
        place.store.put(Message(topic="many", body=b"x"), queue_id=queue_id)
    place.dispatch()
    known = place.store.queues()
    for topic, queue_id in (("many", 99), ("nobody", 0)):
        place.store.get_message(topic, queue_id, 0, 1)
        assert place.store.queue_of(topic, queue_id).bounds == (0, 0)
        assert place.store.inner.queues.get(topic, queue_id) is None
    assert place.store.queues() == known
    assert not place.files.exists("/s/consumequeue/nobody")
    assert mapped == []


# -- the reference's behaviour


def w17_what_is_pending_goes_with_its_file(monkeypatch):
    monkeypatch.setattr(CleanCommitLogService, "_rescue_timers", lambda *_: None)


def w27_age_is_the_time_of_the_file(monkeypatch):
    monkeypatch.setattr(
        clean_commit_log, "segment_time", lambda _by, _stored, mtime, _now: (mtime, "mtime"))


def w27_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(CleanCommitLogService, "_pins", lambda _: [])


def w27_thresholds_end_at_90_and_85(monkeypatch):
    def clamped(config):
        levels = disk_levels(config)
        return levels._replace(warning=min(levels.warning, 90), forcible=min(levels.forcible, 85))
    monkeypatch.setattr(disk_check, "disk_levels", clamped)


def w28_a_failed_delete_is_a_deletion(monkeypatch):
    def take(trash, file):
        try:
            trash._file_system.remove(file.path)
        except OSError:
            pass
    monkeypatch.setattr(Trash, "take", take)
    monkeypatch.setattr(Trash, "add", lambda *_: None)


def w33_a_read_makes_the_queue(monkeypatch):
    monkeypatch.setattr(ConsumeQueueStore, "get", ConsumeQueueStore.find_or_create)


CASES = [
    (w17_what_is_pending_goes_with_its_file, test_w17_what_is_pending_survives_a_forced_deletion),
    (w27_age_is_the_time_of_the_file, test_w27_a_copy_keeps_its_age),
    (w27_nobody_is_asked, test_w27_consumers_are_heeded),
    (w27_thresholds_end_at_90_and_85, test_w27_thresholds_may_be_above_90),
    (w28_a_failed_delete_is_a_deletion, test_w28_what_cannot_be_removed_does_not_come_back),
    (w33_a_read_makes_the_queue, test_w33_a_read_makes_no_queue_and_no_queue_keeps_a_mapping),
]


@pytest.mark.parametrize(("plant", "test"), CASES, ids=[plant.__name__ for plant, _ in CASES])
def test_the_reference_fails(plant, test, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((AssertionError, StoreError)):
        test()


def test_no_weakness_is_without_a_plant():
    tests = {test for name, test in globals().items() if name.startswith("test_w")}
    assert tests == {test for _, test in CASES}
