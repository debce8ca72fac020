"""Deletion of expired files on a whole store: triggers, readers, failures, queues, disks."""

from __future__ import annotations

import errno
import logging

import pytest
from retention_place import HOUR, MINUTE, SIZE, Place, at_hour

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import FatalStorageError, StoreNotWritableError
from tailrace.model import GetMessageStatus, MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.store.retention.rules import Rule
from tailrace.testing import CrashFileSystem, SimClock


@pytest.fixture
def place():
    made = Place()
    yield made
    made.store.close()


def test_no_file_is_deleted_at_other_hours(place):
    place.fill(4)
    place.clock.advance(100 * HOUR)  # 16:00
    place.run(2 * MINUTE)
    assert len(place.names()) == 5


def test_expired_files_go_at_the_listed_hour_and_the_last_one_stays():
    place = Place(delete_when="05;16")
    place.fill(4)
    place.clock.advance(100 * HOUR)
    place.run(10_000)
    assert place.clean.trigger().time_up
    assert len(place.names()) == 1
    assert place.store.min_phy_offset == 4 * SIZE
    assert place.on_disk() == place.names()
    assert place.files.list("/s/tailrace/trash") == []
    assert place.store.stats()["deletedFiles"] == 4


def test_the_first_pass_is_made_at_the_start():
    place = Place(delete_when="12", file_reserved_time=0.0)
    place.fill(3, step_ms=1)
    assert len(place.names()) == 4
    place.run(1_000)
    assert len(place.names()) == 1


def test_files_go_one_by_one_with_the_pause_and_a_batch_at_most():
    place = Place(delete_when="12", file_reserved_time=0.0, delete_file_batch_max=3)
    place.fill(8, step_ms=1)
    seen = [len(place.names())]
    for _ in range(10):
        place.run(100, only=["CleanCommitLogService"])
        seen.append(len(place.names()))
    assert seen[-1] == 6
    assert set(seen) == {9, 8, 7, 6}, "one file a step"
    place.run(10_000, only=["CleanCommitLogService"])
    assert len(place.names()) == 3


def test_by_hand_twenty_passes_are_made_and_age_still_counts(place):
    place.fill(3)
    place.clock.advance(71 * HOUR)  # 11:00
    place.store.execute_delete_files_manually()
    place.run(100_000)
    assert len(place.names()) == 4, "by hand does not override the age"
    assert place.clean.manual_times == 10
    place.clock.advance(HOUR)
    place.run(5_000)
    assert len(place.names()) == 1
    place.run(200_000)
    assert place.clean.manual_times == 0


def test_an_empty_log_has_nothing_to_delete(place, caplog):
    assert place.store.retention.delete_now() == 0
    assert place.clean.verdicts() == []
    place.use(95)
    place.run(80_000)
    assert "there is no file" in caplog.text


def test_a_pass_stops_at_the_first_file_that_stays(place):
    place.fill(2)
    place.clock.advance(60 * HOUR)
    place.fill(2)
    place.clock.advance(20 * HOUR)
    assert place.store.retention.delete_now() == 2
    # The third file begins before the pause, but the record that decides its age was stored after it.
    assert [v.rule for v in place.clean.verdicts()] == [
        Rule.NOT_EXPIRED, Rule.BEHIND_KEPT, Rule.LAST_FILE]


def test_w27_a_copied_store_keeps_its_clock():
    for expire_by, gone in (("storeTimestamp", 3), ("mtime", 0)):
        place = Place(expire_by=expire_by)
        place.fill(3)
        place.clock.advance(80 * HOUR)
        for path in place.names():
            place.files.mtimes[path] = place.clock.now_ms()  # as after a copy of the files
        assert place.store.retention.delete_now() == gone


def test_readers_of_a_deleted_file_keep_their_bytes_and_others_get_message_was_removing(place):
    place.fill(2)
    low = place.store.get_message("t", 0, 0, 1)
    lease = place.log.queue.files[0].select(0, 200)
    before = bytes(lease.buffer)
    place.clock.advance(80 * HOUR)
    assert place.store.retention.delete_now() == 0, "a reader has it"
    assert len(place.names()) == 3
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.MESSAGE_WAS_REMOVING
    place.clock.advance(119_999)
    assert place.store.retention.delete_now() == 0
    place.clock.advance(1)
    assert place.store.retention.delete_now() == 2, "forced after destroyMapedFileIntervalForcibly"
    assert bytes(lease.buffer) == before
    assert place.store.stats()["deletedFiles"] == 2
    lease.release()
    assert low.records
    assert place.files.list("/s/tailrace/trash") == []


def test_a_hanged_first_file_is_tried_again_outside_of_the_hours(place):
    place.fill(2)
    lease = place.log.queue.files[0].select(0, 100)
    place.clock.advance(80 * HOUR)
    assert place.store.retention.delete_now() == 0
    assert place.store.stats()["hangedFile"].endswith("0" * 20)
    lease.release()
    place.run(121_000)
    assert len(place.names()) == 2, "only the hanged one, by hand or by the hour nothing is due"
    assert place.store.stats()["hangedFile"] == ""


def test_w28_a_file_that_cannot_be_renamed_stays_in_the_list_and_readable(place, caplog):
    place.fill(3)
    place.clock.advance(80 * HOUR)

    def refuse(_number, name, path):
        if name == "rename":
            raise OSError(errno.EACCES, "refused", path)

    place.files.before = refuse
    assert place.store.retention.delete_now() == 0
    assert "cannot delete a file" in caplog.text
    assert len(place.names()) == 4
    assert place.store.min_phy_offset == 0
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.FOUND
    place.files.before = None
    assert place.store.retention.delete_now() == 3


def test_w28_a_file_that_cannot_be_unlinked_does_not_come_back(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)

    def refuse(_number, name, path):
        if name == "remove" and "trash" in path:
            raise OSError(errno.EACCES, "refused", path)

    place.files.before = refuse
    assert place.store.retention.delete_now() == 3
    assert len(place.files.list("/s/tailrace/trash")) == 3
    assert place.store.stats()["trashFailures"] == 3
    place.store.close()
    place.files.before = None
    place.open()
    assert place.store.min_phy_offset == 3 * SIZE
    place.run(1_000)
    assert place.files.list("/s/tailrace/trash") == []


def test_a_disk_without_room_for_a_name_can_be_emptied(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)

    def refuse(_number, name, path):
        if name in {"rename", "mkdir"}:
            raise OSError(errno.ENOSPC, "full", path)

    place.files.before = refuse
    assert place.store.retention.delete_now() == 3
    assert place.on_disk() == place.names()


def test_another_device_has_a_trash_of_its_own(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)
    seen = []

    def other_device(_number, name, path):
        if name == "rename" and path.startswith("/s/tailrace/trash"):
            raise OSError(errno.EXDEV, "other device", path)
        if name == "rename":
            seen.append(path)

    place.files.before = other_device
    assert place.store.retention.delete_now() == 3
    assert all(path.startswith("/s/commitlog/.tailrace-trash/") for path in seen)
    place.store.close()
    place.open()
    assert place.store.min_phy_offset == 3 * SIZE


def test_after_a_failed_directory_sync_no_later_file_is_deleted(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)

    def refuse(_number, name, path):
        if name == "sync_dir" and path == "/s/commitlog":
            raise OSError(errno.EIO, "broken", path)

    place.files.before = refuse
    with pytest.raises(FatalStorageError):
        place.store.retention.delete_now()
    assert not place.store.is_writeable
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.FOUND


def test_messages_of_a_removed_file_are_gone_even_if_the_removal_is_not_durable(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)
    for file in place.store.inner.commit_log.queue.files:
        file.flush()
        file.give_up_descriptors()

    def refuse(_number, name, path):
        if name in {"rename", "mkdir"}:
            raise OSError(errno.ENOSPC, "full", path)
        if name == "sync_dir" and path == "/s/commitlog":
            raise OSError(errno.EIO, "broken", path)

    place.files.before = refuse
    with pytest.raises(FatalStorageError):
        place.store.retention.delete_now()
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.MESSAGE_WAS_REMOVING


def test_queues_and_index_follow_the_log_and_keep_their_last_files():
    place = Place()
    place.fill(6)
    place.store.put(Message(topic="quiet", body=b"x"))
    place.fill(1)
    place.store.inner.flush()
    place.clock.advance(80 * HOUR)
    queue = place.store.inner.queues.get("t", 0)
    index = place.store.inner.index
    before = len(queue.files.files), len(index.files)
    assert place.store.retention.delete_now() == 7
    assert len(queue.files.files) < before[0]
    assert len(index.files) < before[1]
    first = place.store.get_message("t", 0, queue.min_offset, 1)
    assert first.status is GetMessageStatus.FOUND
    assert queue.unit(queue.min_offset).phy_offset >= place.store.min_phy_offset
    assert queue.unit(queue.min_offset - 1) is None or (
        queue.unit(queue.min_offset - 1).phy_offset < place.store.min_phy_offset)
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
    # W33: a queue without messages keeps its last file, which says where it ends.
    assert [q[1:] for q in place.store.queues() if q[0] == "quiet"] == [(0, 1, 1)]
    assert place.store.put(Message(topic="quiet", body=b"y")).queue_offset == 1
    queues = place.store.queues()
    place.store.close()
    place.open()
    place.store.wait_dispatched()
    assert [q[:3] for q in place.store.queues()] == [q[:3] for q in queues]


def test_a_queue_whose_topic_is_being_deleted_is_left_alone(place):
    place.fill(3)
    queue = place.store.inner.queues.get("t", 0)
    count = len(queue.files.files)
    place.store.inner.flush()
    queue.files.files[0].close()
    assert not queue.delete_expired_file(1 << 60)
    assert len(queue.files.files) == count > 1


def test_queue_files_are_deleted_after_log_files_with_a_pause_after_each_queue():
    place = Place(delete_when="12", file_reserved_time=0.0)
    for topic in ("a", "b"):
        place.fill(3, topic=topic, step_ms=1)
    for file in place.store.inner.queues.get("a", 0).files.files:
        file.read(0, 20)
    place.run(61_000, only=["CleanCommitLogService"])
    files = [len(place.store.inner.queues.get(t, 0).files.files) for t in ("a", "b")]
    seen = []
    for _ in range(4):
        place.run(100, only=["CleanConsumeQueueService"])
        seen.append([len(place.store.inner.queues.get(t, 0).files.files) for t in ("a", "b")])
    assert seen[0][0] < files[0]
    assert seen[0][1] == files[1], "a step ends behind a queue that deleted"
    assert seen[-1][1] < files[1]


def test_messages_that_are_not_dispatched_keep_their_file(place):
    want = 4
    while len(place.log.queue.files) < want:
        place.store.put_inner(MessageExtBrokerInner("t", 0, bytes(900)))
    place.store.inner.flush_commit_log.flush()
    place.clock.advance(80 * HOUR)
    assert place.store.retention.delete_now() == 0
    assert place.clean.verdicts()[0].rule is Rule.NOT_DISPATCHED
    place.store.inner.flush()
    assert place.store.retention.delete_now() == 3


def test_queues_are_synced_when_a_file_will_be_deleted_and_not_for_a_report():
    synced = []
    place = Place(files=CrashFileSystem(
        lambda _number, name, path: synced.append(path) if name == "sync_data" else None))
    while len(place.log.queue.files) < 3:
        place.store.put_inner(MessageExtBrokerInner("t", 0, bytes(900)))
    place.dispatch()
    place.store.inner.flush_commit_log.flush()
    synced.clear()
    assert place.clean.run_pass(manual=True) == 0
    assert place.clean.verdicts()[0].rule is Rule.NOT_EXPIRED
    assert synced == []
    place.clock.advance(80 * HOUR)
    assert place.clean.verdicts()[0].rule is Rule.NOT_DISPATCHED
    assert synced == []
    assert place.clean.run_pass(manual=True) == 2
    assert any("/consumequeue/t/0/" in path for path in synced)
    place.store.close()


def test_pins_win_over_age_and_lose_under_pressure_unless_they_refuse(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)
    pins = [Pin(PinKind.GROUP, SIZE + 100, "orders")]
    place.clean.needs.pins.append(lambda: pins)
    assert place.store.retention.delete_now() == 1
    place.use(86)
    assert place.store.retention.delete_now() == 2
    assert place.store.stats()["forcedDeletedFiles"] == 2


def test_a_pin_that_refuses_writes_is_named(place, caplog):
    place.fill(3)
    place.clean.needs.pins.append(lambda: [Pin(PinKind.ARCHIVE, 5, "s3")])
    place.use(91)
    place.store.retention.delete_now()
    assert len(place.names()) == 4
    assert "archive s3" in caplog.text
    assert place.store.stats()["fruitlessCleanPasses"] == 1


def test_above_the_warning_level_puts_are_refused_and_reads_go_on(place, caplog):
    caplog.set_level(logging.INFO)
    place.fill(1, step_ms=1)
    place.use(91)
    place.run(10_000, only=["DiskCheckService"])
    with pytest.raises(StoreNotWritableError) as error:
        place.store.put(Message(topic="t", body=b"x"))
    for part in ("/s/commitlog", "91 %", "diskSpaceWarningLevelRatio", "at 89 %"):
        assert part in str(error.value)
    refused = place.store.put_inner(MessageExtBrokerInner("t", 0, b"x"))
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert place.store.get_message("t", 0, 0, 1).status is GetMessageStatus.FOUND
    place.use(90)
    place.run(10_000, only=["DiskCheckService"])
    assert not place.store.is_writeable, "one point below the level"
    place.use(89)
    place.run(10_000, only=["DiskCheckService"])
    assert place.store.put(Message(topic="t", body=b"x")).status is PutMessageStatus.PUT_OK
    assert caplog.text.count("puts are refused") == caplog.text.count("puts are taken again") == 1


def test_a_file_whose_records_have_no_units_stays_even_when_space_is_short(caplog):
    """No client has seen them, no timer among them is pinned, and nothing would count them as lost."""
    place = Place()
    place.fill(1)
    units = place.store.queue_of("t", 0).max
    for _ in range(30):
        place.store.put(Message(topic="t", body=bytes(900)))
    place.store.flush()
    assert len(place.names()) > 3
    place.use(95)
    place.run(70_000)
    place.use(50)
    place.store.retention.disk.check()
    stats = place.store.stats()
    assert stats["forcedDeletedMessages"] <= units
    assert place.store.min_phy_offset <= place.store.inner.reput.reput_from_offset
    assert "stays, its queues are not written yet" in caplog.text
    place.dispatch()
    assert place.store.queue_of("t", 0).max == units + 30
    place.use(95)
    place.run(70_000)
    assert len(place.names()) == 1, "and now they go"
    place.store.close()


def test_forced_deletion_frees_what_is_needed_and_no_more():
    place = Place()
    place.fill(6)
    total = place.files.usage.total = 100 * SIZE
    other = 80 * SIZE

    def measure(_path):
        used = other + SIZE * (
            len(place.files.list("/s/commitlog")) + len(place.files.list("/s/tailrace/trash")))
        place.files.usage.free = place.files.usage.usable = total - used
        return place.files.usage

    place.files.disk_usage = measure
    place.run(70_000)
    assert place.store.stats()["forcedDeletedFiles"] > 0
    used = 80 + len([n for n in place.files.list("/s/commitlog") if len(n) == 20])
    assert used == 85, "at the forcible level it stops"
    gone = place.store.min_phy_offset // SIZE
    queue = place.store.inner.queues.get("t", 0)
    before = next(
        n for n in range(queue.max_offset)
        if (unit := queue.unit(n)) and unit.phy_offset >= place.store.min_phy_offset)
    assert place.store.stats()["forcedDeletedMessages"] == before
    record = ForcedDeletions(place.files, "/s").read()
    assert [e["file"] for e in record] == [f"{n * SIZE:020d}" for n in range(gone)]
    assert sum(e["messages"]["t"] for e in record) == before
    assert "FORCIBLE" in record[0]["reason"] or "disk" in record[0]["reason"]


def test_the_record_of_forced_deletions_keeps_the_newest_and_survives_damage():
    files = CrashFileSystem()
    record = ForcedDeletions(files, "/s")
    assert record.read() == []
    for number in range(250):
        record.note({"file": number})
    assert [e["file"] for e in record.read()] == list(range(50, 250))
    file = files.open("/s/tailrace/forced-deletions.jsonl", writable=True)
    file.pwrite(b"xx", 0)
    assert [e["file"] for e in record.read()] == list(range(51, 250))

    def refuse(_number, name, path):
        raise OSError(errno.ENOSPC, "full", path)

    files.before = refuse
    record.note({"file": 1})
    assert len(record.read()) == 199


def test_without_clean_file_forcibly_no_file_is_deleted_before_it_expires():
    place = Place(clean_file_forcibly_enable=False)
    place.fill(3)
    place.use(95)
    place.run(70_000)
    assert len(place.names()) == 4
    assert not place.store.is_writeable


def test_a_disk_that_fills_up_lets_expired_files_go_at_any_hour(place):
    place.fill(3)
    place.clock.advance(80 * HOUR)
    place.use(76)
    place.run(70_000)
    assert len(place.names()) == 1
    assert place.store.stats()["forcedDeletedFiles"] == 0


def test_a_cap_on_the_store_is_kept():
    place = Place(max_store_bytes=5 * SIZE)
    place.fill(7)
    before = place.store.retention.store_bytes()
    assert before > 5 * SIZE
    place.run(90_000)
    assert place.store.retention.store_bytes() <= 5 * SIZE
    assert len(place.names()) > 2, "and not more than needed"


def test_an_index_file_counts_with_what_it_takes_of_the_disk_not_with_its_length(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=1 << 20, commit_log_allocate_step=1 << 16)
    with MessageStore.open(tmp_path / "s", config=config, parts=StoreParts(services=False)) as store:
        store.put(Message(topic="t", body=b"x", keys=["k"]))
        store.wait_dispatched()
        [index] = (tmp_path / "s/index").iterdir()
        assert index.stat().st_size > 400_000_000, "a sparse file of the default size"
        assert store.retention.store_bytes() < 64 << 20


def test_w29_a_stop_while_the_disk_is_full_is_a_clean_one(place):
    place.fill(1)
    place.use(95)
    place.run(10_000, only=["DiskCheckService"])
    assert not place.store.is_writeable
    place.store.close()
    assert not place.files.exists("/s/abort")
    place.use(50)
    place.open()
    assert place.store.recovery_report["mode"] == "normal"


def test_a_quiet_store_expires_because_its_last_file_ends_by_age():
    place = Place(commit_log_roll_time=10.0, delete_when="12", file_reserved_time=20.0)
    first = [place.store.put(Message(topic="t", body=b"%d" % n)) for n in range(3)]
    place.store.inner.flush()
    place.clock.advance(9 * HOUR)
    place.run(61_000)
    assert len(place.names()) == 1, "too young to end"
    place.clock.advance(HOUR)
    place.run(10_000)
    assert len(place.names()) == 2
    place.files.mtimes[place.names()[0]] = place.clock.now_ms()  # of the record that ends it
    place.run(60_000)
    assert len(place.names()) == 2, "an empty file does not end"
    place.store.inner.flush()
    assert [m.body for m in place.store.read("t")] == [b"0", b"1", b"2"]
    place.store.close()
    place.open()
    assert [m.body for m in place.store.read("t")] == [b"0", b"1", b"2"]
    place.run(70_000)
    assert len(place.names()) == 2, "a full last file has one behind it"
    place.files.mtimes[place.names()[0]] = place.clock.now_ms() - 21 * HOUR
    place.store.inner.flush()
    assert place.store.retention.delete_now() == 1
    assert list(place.store.read("t")) == []
    place.store.close()
    place.open()
    put = place.store.put(Message(topic="t", body=b"later"))
    assert (put.queue_offset, put.phy_offset) == (3, SIZE), "offsets go on"
    assert put.phy_offset > first[-1].phy_offset
    place.store.inner.flush()
    assert [m.body for m in place.store.read("t")] == [b"later"]


def test_a_file_that_ended_by_age_gives_its_unused_blocks_back(tmp_path):
    size = 1 << 20
    config = StoreConfig(
        mapped_file_size_commit_log=size, commit_log_allocate_step=size, commit_log_roll_time=1.0,
        max_hash_slot_num=16, max_index_num=64)
    clock = SimClock(at_hour(12))
    with MessageStore.open(tmp_path / "s", config=config, parts=StoreParts(services=False, clock=clock)) as store:
        store.put(Message(topic="t", body=bytes(9000)))
        file = tmp_path / "s" / "commitlog" / ("0" * 20)
        assert file.stat().st_blocks * 512 >= size
        clock.advance(2 * HOUR)
        store.retention.clean_commit_log.step()
        assert file.stat().st_size == size
        assert file.stat().st_blocks * 512 <= 64 << 10
        store.put(Message(topic="t", body=b"next"))
        assert [len(m.body) for m in store.read("t")] == [9000, 4]
    with MessageStore.open(tmp_path / "s", parts=StoreParts(services=False)) as store:
        assert [len(m.body) for m in store.read("t")] == [9000, 4]


def test_trash_is_given_back_at_the_rate_in_slices():
    place = Place(delete_rate=4096)
    place.fill(2)
    place.clock.advance(80 * HOUR)
    place.clean.execute_delete_files_manually()
    place.run(500, only=["CleanCommitLogService"])
    trash = place.store.retention.trash
    assert trash.total_bytes == 2 * SIZE
    place.scheduler.steps["EmptyTrashService"]()
    sizes = []
    while trash.total_bytes:
        place.run(250, step_ms=250, only=["EmptyTrashService"])
        sizes.append(trash.total_bytes)
        on_disk = sum(
            place.files.stat(f"/s/tailrace/trash/{n}").size
            for n in place.files.list("/s/tailrace/trash"))
        assert on_disk == trash.total_bytes
    assert len(sizes) >= 12, "four seconds for two files"
    assert trash.freed_bytes == 2 * SIZE


def test_a_file_in_the_trash_that_is_read_is_not_cut():
    """TR2: a mapping of a file that is cut ends the process of its reader."""
    place = Place(delete_rate=1024)
    place.fill(2)
    lease = place.log.queue.files[0].select(0, 200)
    before = bytes(lease.buffer)
    place.clock.advance(80 * HOUR)
    place.clean.execute_delete_files_manually()
    place.run(500, only=["CleanCommitLogService"])
    place.clock.advance(120_000)
    place.run(70_000, step_ms=10_000, only=["CleanCommitLogService"])
    assert place.store.stats()["deletedFiles"] == 2, "forced after destroyMapedFileIntervalForcibly"
    cut = set()

    def truncated(_number, operation, path):
        if operation == "truncate":
            cut.add(path.rpartition("/")[2])

    place.files.before = truncated
    place.run(20_000, step_ms=250, only=["EmptyTrashService"])
    assert cut == {f"{SIZE:020d}"}, "the other file is cut in slices"
    assert place.files.list("/s/tailrace/trash") == []
    assert bytes(lease.buffer) == before
    lease.release()
