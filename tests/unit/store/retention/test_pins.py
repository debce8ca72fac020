"""Pins of the archive and of pending timers: kept by age; under pressure the policy decides."""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import replace

import pytest
from archives import write_manifest_over
from retention_place import HOUR, SIZE, Place

from tailrace import Message
from tailrace.formats.commitlog import decode_message
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.node.retention import archive_pins
from tailrace.node.retention.timer_rescue import TimerRescue
from tailrace.store.archive_manifest import HEAD_BYTES, ArchivedFile, Manifest
from tailrace.store.archive_store import PosixArchive
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.pins import PinKind
from tailrace.store.retention.rules import Rule

ROWS = b"rows of a segment, as Parquet " * 400


def archived_as(place, segment, **members):
    """The manifest of a segment as it is in the log, with its file."""
    data = place.read(f"/s/commitlog/{segment * SIZE:020d}")
    path = f"dt=2026-03-10/segment=p{segment * SIZE:020d}/part-00000.parquet"
    place.write(f"/archive/{path}", ROWS)
    part = ArchivedFile(path, len(ROWS), hashlib.sha256(ROWS).hexdigest(), 1, 0, len(data))
    return Manifest(**{
        "segment": segment * SIZE, "size": len(data), "crc32": zlib.crc32(data),
        "sha256": hashlib.sha256(data).hexdigest(), "head_crc32": zlib.crc32(data[:HEAD_BYTES]),
        "records": 1, "messages": 1, "raw_rows": 0, "min_store_timestamp": 0,
        "max_store_timestamp": 0, "queues": (), "files": (part,), "verified": True,
        "store": "/s", **members})


def manifest(place, segment, text=None, **members):
    """Write a manifest; by default that of a verified segment."""
    place.files.makedirs("/archive/_manifests")
    if text is not None:
        place.write(f"/archive/_manifests/{segment * SIZE:020d}.json", text.encode())
    else:
        write_manifest_over(PosixArchive("/archive", place.files), archived_as(place, segment, **members))


@pytest.fixture
def archived():
    made = Place(archive_directory="/archive", delete_when="12")
    yield made
    made.store.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"verified": false}', '{"verified": "true"}'])
def test_a_segment_without_a_verified_manifest_is_not_deleted_by_age(archived, text):
    archived.fill(4)
    for segment in (0, 1, 3):
        manifest(archived, segment)
    manifest(archived, 2, text)
    archived.clock.advance(100 * HOUR)
    assert archived.store.retention.delete_now() == 2, "up to the first that is not archived"
    [verdict] = [v for v in archived.clean.verdicts() if v.rule is Rule.PINNED]
    assert verdict.facts.file_from_offset == 2 * SIZE
    assert verdict.pins[0].kind is PinKind.ARCHIVE
    assert f"{2 * SIZE:020d}.json" in verdict.pins[0].holder
    manifest(archived, 2)
    assert archived.store.retention.delete_now() == 2


def test_no_archive_yet_keeps_everything_and_the_last_file_needs_no_manifest(archived):
    archived.fill(2)
    archived.clock.advance(100 * HOUR)
    assert archived.store.retention.delete_now() == 0
    manifest(archived, 0)
    manifest(archived, 1)
    assert archived.store.retention.delete_now() == 2


def test_when_space_is_short_writes_are_refused_rather_than_the_archive_cheated(archived, caplog):
    archived.fill(3)
    manifest(archived, 0)
    archived.use(95)
    with caplog.at_level(logging.WARNING):
        archived.run(80_000)
    assert len(archived.names()) == 3, "the archived one went before its time"
    assert not archived.store.is_writeable
    assert "has no manifest" in caplog.text


def test_the_policy_of_the_archive_may_be_to_delete():
    place = Place(archive_directory="/archive", pin_policy_archive="delete-oldest")
    place.fill(3)
    place.use(95)
    place.run(80_000)
    assert len(place.names()) < 4
    assert place.store.stats()["forcedDeletedFiles"] > 0
    place.store.close()


@pytest.mark.parametrize(("members", "why"), [
    ({"size": SIZE - 1}, "has another segment"), ({"head_crc32": 5}, "written from the store /other"),
    ({"crc32": 5}, "has another segment"), ({"verified": False}, "has not verified")])
def test_the_archive_of_another_store_does_not_let_this_one_delete(archived, caplog, members, why):
    archived.fill(3)
    manifest(archived, 0, store="/other", **members)
    manifest(archived, 1)
    archived.clock.advance(100 * HOUR)
    assert archived.store.retention.delete_now() == 0
    [verdict] = [v for v in archived.clean.verdicts() if v.rule is Rule.PINNED]
    assert why in verdict.pins[0].holder
    manifest(archived, 0)
    assert archived.store.retention.delete_now() == 2, "another manifest is another comparison"


@pytest.mark.parametrize("damage", [
    lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: None])
def test_a_damaged_file_of_the_archive_does_not_let_its_segment_go(archived, damage):
    archived.fill(2)
    manifest(archived, 0)
    path = f"/archive/dt=2026-03-10/segment=p{0:020d}/part-00000.parquet"
    data = damage(ROWS)
    archived.files.remove(path)
    if data is not None:
        archived.write(path, data)
    archived.clock.advance(100 * HOUR)
    assert archived.store.retention.delete_now() == 0
    assert archived.clean.verdicts()[0].rule is Rule.PINNED
    assert "part-00000.parquet" in archived.clean.verdicts()[0].pins[0].holder
    archived.write(path, ROWS)
    archived.clock.advance(HOUR)
    assert archived.store.retention.delete_now() == 1


def test_a_step_of_the_service_reads_a_bounded_part(archived, monkeypatch):
    """A segment of a gigabyte is compared in many steps; it is deleted after the last of them."""
    monkeypatch.setattr(archive_pins, "STEP_BYTES", 4096)
    monkeypatch.setattr(archive_pins, "_READ", 1024)
    archived.fill(2)
    manifest(archived, 0)
    manifest(archived, 1)
    archived.clock.advance(100 * HOUR)
    read_bytes = []
    confirms = archived.clean.needs.is_archived
    opens = archived.files.open

    def opened(path, **how):
        file = opens(path, **how)
        if "/commitlog/" in path or path.endswith(".parquet"):
            pread = file.pread

            def counted(n, pos):
                data = pread(n, pos)
                read_bytes[-1] += len(data)
                return data

            monkeypatch.setattr(file, "pread", counted)
        return file

    def confirmed(file):
        read_bytes.append(0)
        monkeypatch.setattr(archived.files, "open", opened)
        try:
            return confirms(file)
        finally:
            monkeypatch.setattr(archived.files, "open", opens)

    archived.clean.needs = replace(archived.clean.needs, is_archived=confirmed)
    assert archived.store.retention.delete_now() == 2
    assert sum(read_bytes) == 2 * (SIZE + len(ROWS))
    assert max(read_bytes) <= 4096 + 1024
    assert len(read_bytes) >= 2 * (SIZE + len(ROWS)) // 4096


def test_a_file_that_cannot_be_read_is_compared_again_later(archived, monkeypatch):
    archived.fill(1)
    manifest(archived, 0)
    archived.clock.advance(100 * HOUR)
    opens = archived.files.open

    def refuse(path, **how):
        if path.endswith(".parquet"):
            raise OSError(5, "no luck", path)
        return opens(path, **how)

    monkeypatch.setattr(archived.files, "open", refuse)
    assert archived.store.retention.delete_now() == 0
    assert "no luck" in archived.clean.verdicts()[0].pins[0].holder
    monkeypatch.setattr(archived.files, "open", opens)
    assert archived.store.retention.delete_now() == 0, "it is not tried at every step"
    archived.clock.advance(61_000)
    assert archived.store.retention.delete_now() == 1


class Timers:
    """A timer room that knows where its pending timers are, from the queue they came by."""

    grain_ms = 1000

    def __init__(self, place):
        self.place = place
        self.done = set()

    def pending(self):
        queue = self.place.store.inner.queues.get("rmq_sys_wheel_timer", 0)
        if queue is None:
            return []
        units = [queue.unit(n) for n in range(queue.min_offset, queue.max_offset)]
        return [u.phy_offset for u in units if u.phy_offset not in self.done]

    def first_pending(self):
        return min(self.pending(), default=-1)

    def pending_between(self, low, high):
        return [at for at in self.pending() if low <= at < high]


def with_timers(**config):
    place = Place(timer_wheel_enable=True, **config)
    timers = Timers(place)
    rescue = TimerRescue(place.clock, place.store.inner, timers, place.store.timer_services.schedule)
    place.clean.needs = replace(place.clean.needs, pins=[rescue.pins], rewrite_timers=rescue.rewrite)
    return place, timers


def put_timer(place, number):
    return place.store.put(Message(
        topic="later", body=b"timer %d" % number, delay=48 * 3600, keys=[f"t{number}"])).phy_offset


def test_a_pending_timer_is_not_deleted_by_age():
    place, timers = with_timers(file_reserved_time=1.0)
    place.fill(1)
    at = put_timer(place, 1)
    place.fill(2)
    place.clock.advance(2 * HOUR)
    assert place.store.retention.delete_now() == at // SIZE
    [verdict] = [v for v in place.clean.verdicts() if v.rule is Rule.PINNED]
    assert verdict.pins[0].kind is PinKind.TIMER
    timers.done.add(at)
    assert place.store.retention.delete_now() > 0
    place.store.close()


def test_pending_timers_of_a_file_that_must_go_are_written_again():
    place, _ = with_timers(clean_resource_interval=10_000)
    before = [put_timer(place, number) for number in range(3)]
    originals = [decode_message(place.log.record_at(at)) for at in before]
    place.fill(3)
    place.use(95)
    place.run(60_000, only=["DiskCheckService"])
    assert not place.store.is_writeable
    place.run(20_000)
    assert place.store.min_phy_offset > max(before), "gone though puts are refused"
    place.dispatch()
    queue = place.store.inner.queues.get("rmq_sys_wheel_timer", 0)
    copies = [decode_message(place.log.record_at(queue.unit(n).phy_offset))
              for n in range(queue.min_offset, queue.max_offset)]
    copies = [m for m in copies if m.properties.get("TIMER_ROLL_TIMES") == "1"]
    assert [m.body for m in copies] == [m.body for m in originals]
    for copy, original in zip(copies, originals, strict=True):
        kept = {k: v for k, v in copy.properties.items()
                if k not in {"TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS"}}
        assert kept == {k: v for k, v in original.properties.items() if k != "TIMER_DELIVER_MS"}
        assert copy.born_timestamp == original.born_timestamp
    stats = place.store.stats()
    assert stats["forcedDeletedTimers"] == 0
    record = ForcedDeletions(place.files, "/s").read()[0]
    assert (record["timersRewritten"], record["timersLost"]) == (3, 0)
    place.store.close()


def test_a_file_of_only_timers_is_not_copied_and_its_loss_is_reported(caplog):
    place, _ = with_timers()
    for number in range(40):
        put_timer(place, number)
    place.fill(1)
    place.use(95)
    with caplog.at_level(logging.WARNING):
        place.run(70_000)
    lost = place.store.stats()["forcedDeletedTimers"]
    assert lost > 10
    assert f"timers_lost={lost}" in caplog.text or "timers_lost=" in caplog.text
    place.store.close()


def test_timers_may_refuse_writes_instead():
    place, _ = with_timers(pin_policy_timers="refuse-writes")
    put_timer(place, 1)
    place.fill(3)
    place.use(95)
    place.run(80_000)
    assert len(place.names()) == 4
    assert place.clean.verdicts()[0].rule is Rule.REFUSED
    place.store.close()


# -- with the timer wheel itself


def put_delays(place, delays_s):
    return [place.store.put(Message(
        topic="later", body=b"timer %d" % number, delay=delay)).phy_offset
        for number, delay in enumerate(delays_s)]


def delivered(place):
    return sorted(m.body for m in place.store.read("later"))


def test_the_wheel_knows_its_oldest_pending_timer():
    place = Place(file_reserved_time=0.01)
    pending = place.store.timer_services.pending()
    assert pending.first_pending() == -1
    places = put_delays(place, [100, 50, 200])
    place.dispatch()
    assert pending.first_pending() == places[0], "in the timer queue"
    place.run_timers()
    assert pending.first_pending() == places[0], "in the wheel"
    assert pending.pending_between(0, 1 << 40) == places
    assert pending.pending_between(places[1], places[2]) == [places[1]]
    place.run_timers(60_000)
    assert pending.first_pending() == places[0]
    assert pending.pending_between(0, 1 << 40) == [places[0], places[2]]
    place.run_timers(50_000)
    assert pending.first_pending() == places[2]
    more = put_delays(place, [500])
    place.run_timers(100_000)
    assert pending.first_pending() == more[0]
    place.run_timers(500_000)
    assert pending.first_pending() == -1
    place.store.close()
    place.open()
    assert place.store.timer_services.pending().first_pending() == -1
    place.store.close()


def test_strays_that_a_close_listed_again_are_not_overlooked():
    place = Place()
    old = put_delays(place, [30, 3000])
    place.fill(1)
    place.run_timers()
    timers = place.store.timer_services.messages
    unit = timers.timer_log.unit(52)
    assert unit.phy_offset == old[1]
    late = put_delays(place, [4000])
    place.run_timers()
    timers.timer_log.append(_packed(unit._replace(prev_pos=-1)))
    pending = place.store.timer_services.pending()
    place.run_timers(40_000)
    assert pending.first_pending() == old[1]
    assert pending.pending_between(0, 1 << 40) == [old[1], late[0]]
    place.store.close()


def _packed(unit):
    return TIMER_UNIT.pack(*unit)


@pytest.mark.parametrize("stays", [False, True])
def test_a_timer_that_was_written_again_is_delivered_once(stays, monkeypatch):
    place = Place()
    places = put_delays(place, [400, 500, 3600])
    recalled = place.store.put(Message(topic="later", body=b"not this one", delay=450))
    place.dispatch()  # a recall waits for what was put before
    place.store.recall(recalled.recall_handle)
    place.fill(3)
    place.run_timers()
    place.use(95)
    if stays:  # the copies are there, and so is the file
        def refuse(_file):
            raise OSError("not now")
        monkeypatch.setattr(place.store.retention.trash, "take", refuse)
    place.run(70_000)
    assert (place.store.min_phy_offset > max(places)) is not stays
    place.use(10)
    place.run(10_000)
    assert place.store.is_writeable
    place.run_timers(500_000)
    assert delivered(place) == [b"timer 0", b"timer 1"]
    place.store.close()
    monkeypatch.undo()
    place.open()
    place.run_timers(3_200_000)
    assert delivered(place) == [b"timer 0", b"timer 1", b"timer 2"]
    place.store.close()
