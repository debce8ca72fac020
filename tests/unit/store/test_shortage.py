"""A shortage of descriptors or memory is not a failed disk; a sync that really failed stays final."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.env.descriptors import descriptor_limit, segment_file_limit
from tailrace.env.entropy import SeededEntropy
from tailrace.env.scheduler import ThreadScheduler
from tailrace.env.shortage import DirectorySyncs, is_shortage
from tailrace.env.sync_guard import SyncGuard
from tailrace.errors import ConfigError, DiskFullError, FatalStorageError, StoreNotWritableError
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.segments.mapped_file import MappedFile
from tailrace.segments.mapped_file_queue import MappedFileQueue
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

SMALL = {
    "mapped_file_size_commit_log": 16384, "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 16, "max_index_num": 64, "commit_log_allocate_step": 4096,
}
SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


class Short:
    """Files that cannot be opened while ``error_number`` is set; ``opens`` counts the attempts."""

    def __init__(self, real=None):
        self.real = real or CrashFileSystem()
        self.error_number = 0
        self.only = ""
        self.opens = 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def _open(self, path):
        self.opens += 1
        if self.error_number and self.only in path:
            raise OSError(self.error_number, os.strerror(self.error_number), path)

    def open(self, path, **options):
        self._open(path)
        return self.real.open(path, **options)

    def sync_dir(self, path):
        self._open(path)
        self.real.sync_dir(path)


def opened(files, kind=FlushDiskType.ASYNC_FLUSH):
    clock, scheduler = SimClock(), ManualScheduler()
    store = MessageStore.open(
        "/s", config=StoreConfig(flush_disk_type=kind, **SMALL),
        parts=StoreParts(clock=clock, file_system=files, scheduler=scheduler, entropy=SeededEntropy(1)))
    return store, clock, scheduler.steps


def inner(body=b"x"):
    return MessageExtBrokerInner("t", 0, body)


def close_descriptors(store):
    """What the bound on descriptors does to files that were not used for a while."""
    store.inner.commit_log.tail.drop()
    for queue in (store.inner.commit_log.queue, *(q.files for q in store.inner.queues.table.values())):
        for file in queue.files:
            file._close_descriptors()


@pytest.mark.parametrize("error_number", SHORTAGES)
def test_a_checkpoint_that_cannot_be_opened_waits_and_the_store_takes_writes(error_number, caplog):
    files = Short()
    store, clock, steps = opened(files)
    store.put_inner(inner())
    steps["ReputMessageService"]()
    clock.advance(60_000)
    steps["FlushRealTimeService"]()
    files.error_number = error_number
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(60_000)
            steps["FlushConsumeQueueService"]()
    assert store.is_writeable
    lines = [r.getMessage() for r in caplog.records if "the checkpoint cannot be written" in r.getMessage()]
    assert len(lines) == 1, lines
    files.error_number = 0
    last = store.put_inner(inner())
    assert last.status is PutMessageStatus.PUT_OK
    steps["ReputMessageService"]()
    clock.advance(60_000)
    steps["FlushRealTimeService"]()
    steps["FlushConsumeQueueService"]()
    assert store.inner.checkpoint.fields.logics_physical_offset == last.phy_offset
    store.close()
    assert not files.exists("/s/abort")


def test_the_pass_that_was_put_off_is_made_as_soon_as_descriptors_are_there():
    files = Short()
    store, clock, steps = opened(files)
    last = store.put_inner(inner())
    steps["ReputMessageService"]()
    clock.advance(60_000)
    steps["FlushRealTimeService"]()
    files.error_number = errno.EMFILE
    steps["FlushConsumeQueueService"]()
    files.error_number = 0
    clock.advance(1_000)  # not the minute of a thorough pass
    steps["FlushConsumeQueueService"]()
    assert store.inner.checkpoint.fields.logics_physical_offset == last.phy_offset
    store.close()


@pytest.mark.parametrize("error_number", SHORTAGES)
def test_a_sync_for_which_no_descriptor_could_be_had_is_tried_later(error_number):
    files = Short()
    store, clock, steps = opened(files, FlushDiskType.SYNC_FLUSH)
    told = []
    first = store.put_inner(inner())
    close_descriptors(store)
    files.error_number = error_number
    store.inner.when_durable(first.until, told.append)
    steps["GroupCommitService"]()
    assert told == []
    clock.advance(6_000)
    steps["GroupCommitService"]()
    assert told == [PutMessageStatus.FLUSH_DISK_TIMEOUT], "who waits is answered in time"
    assert store.is_writeable
    files.error_number = 0
    second = store.put_inner(inner())
    store.inner.when_durable(second.until, told.append)
    steps["GroupCommitService"]()
    assert told[1:] == [PutMessageStatus.PUT_OK]
    store.close()


def test_a_sync_that_failed_is_final_whatever_its_error_number():
    files = CrashFileSystem()
    store, _, steps = opened(files, FlushDiskType.SYNC_FLUSH)
    told = []
    result = store.put_inner(inner())

    def fail(_number, name, path):
        if name == "sync_data" and "commitlog" in path:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)

    files.before = fail
    store.inner.when_durable(result.until, told.append)
    with pytest.raises(FatalStorageError):
        steps["GroupCommitService"]()
    files.before = None
    assert told == [PutMessageStatus.SERVICE_NOT_AVAILABLE]
    with pytest.raises(StoreNotWritableError):
        store.put(Message(topic="t", body=b"x"))
    store.close()
    assert files.exists("/s/abort")


def test_a_queue_that_could_not_be_synced_does_not_pass_for_durable():
    """The next pass must not report a queue whose sync was put off."""
    files = Short()
    store, clock, steps = opened(files)
    store.put_inner(inner())
    steps["ReputMessageService"]()
    clock.advance(60_000)
    steps["FlushRealTimeService"]()
    close_descriptors(store)
    files.error_number, files.only = errno.EMFILE, "consumequeue"
    steps["FlushConsumeQueueService"]()
    assert store.inner.flush_consume_queue.durable_until == -1
    assert store.inner.queues.dirty
    files.error_number = 0
    store.close()


def test_a_removal_whose_directory_could_not_be_synced_is_owed(tmp_path):
    files = Short()
    files.makedirs("/q")
    queue = MappedFileQueue(files, "/q", 100, mapped=False)
    for start in range(3):
        queue.last_file(start * 100).append(b"x" * 100)
    queue.flush()
    files.error_number, files.only = errno.EMFILE, "/q"
    # The file itself has its descriptor; only the directory cannot be opened.
    queue.delete_head(queue.files[0])
    assert [f.file_from_offset for f in queue.files] == [100, 200]
    with pytest.raises(OSError, match="Too many open files"):
        queue.delete_head(queue.files[0])
    assert [f.file_from_offset for f in queue.files] == [100, 200], "the order on the disk holds"
    assert files.exists(queue.files[0].path)
    files.error_number = 0
    queue.delete_head(queue.files[0])
    assert [f.file_from_offset for f in queue.files] == [200]


def test_a_directory_sync_that_failed_is_final():
    files = CrashFileSystem()
    files.makedirs("/q")

    def fail(_number, name, path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    syncs = DirectorySyncs(SyncGuard(files, (), [].append))
    files.before = fail
    with pytest.raises(FatalStorageError):
        syncs.sync("/q")


def test_a_file_opens_again_after_a_shortage():
    files = Short()
    files.makedirs("/q")
    file = MappedFile.create(files, "/q/0", 0, 100, mapped=False)
    file.append(b"12345")
    file._close_descriptors()
    files.error_number = errno.EMFILE
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            file.flush()
    files.error_number = 0
    assert file.flush() == 5


@pytest.mark.parametrize(("error", "line"), [
    (OSError(errno.EMFILE, "Too many open files", "/x"),
     "service waits for descriptors or memory name=Busy cause=[Errno 24] Too many open files: '/x'"),
    (OSError(errno.ENOSPC, "No space left on device", "/x"),
     "service waits for room on the disk name=Busy cause=[Errno 28] No space left on device: '/x'"),
    (DiskFullError("/x", "quota"), "service waits for room on the disk name=Busy cause=no space for /x: quota"),
])
def test_a_service_that_waits_for_room_logs_it_once_and_continues(caplog, error, line):
    import threading

    short, done, failed = [True], threading.Event(), threading.Event()
    count = [0]

    def step():
        count[0] += 1
        if short[0]:
            if count[0] >= 5:
                failed.set()
            raise error
        done.set()

    scheduler = ThreadScheduler()
    with caplog.at_level(logging.WARNING):
        scheduler.every("Busy", 1, step)
        assert failed.wait(10)
        short[0] = False
        assert done.wait(10)
        scheduler.stop_all()
    assert [r.getMessage() for r in caplog.records] == [line]
    assert not caplog.records[0].exc_info


def test_more_segment_files_than_the_process_may_open_are_refused(tmp_path):
    limit = descriptor_limit()
    with pytest.raises(ConfigError, match=f"maxOpenFiles={limit} is more than three quarters .* {limit} desc"):
        MessageStore.open(tmp_path / "store", config=StoreConfig(max_open_files=limit))
    assert segment_file_limit(limit * 3 // 4) == limit * 3 // 4
    assert segment_file_limit(0) == min(max(limit // 4, 16), 16_384)


@pytest.mark.parametrize(("error", "expected"), [
    (OSError(errno.EMFILE, "x"), True), (OSError(errno.EIO, "x"), False), (ValueError(), False),
    (None, False)])
def test_what_a_shortage_is(error, expected):
    assert is_shortage(error) is expected
