"""An open that could not write everything claims nothing that the next open would believe."""

import errno

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreNotWritableError
from tailrace.store.directory import StoreDirectory
from tailrace.testing import CrashFileSystem, FaultyFileSystem, SimClock, SimScheduler

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False)


def opened(files, clock, scheduler=None):
    return MessageStore.open(
        "/store", config=CONFIG, clock=clock, file_system=files, scheduler=scheduler,
        services=scheduler is not None, entropy=SeededEntropy(1))


def fails_to_write(part, error_number, times):
    """Writes to paths with ``part`` in them fail so often."""
    left = [error_number] * times

    def error_of(_number, name, path):
        return left.pop() if name == "pwrite" and part in path and left else 0

    return error_of


def bodies(store, queue_id):
    return [m.body for m in store.read("T", queue_id)]


def test_units_that_could_not_be_written_are_written_by_the_next_open():
    clock, files = SimClock(), CrashFileSystem()
    for first, until in ((0, 100), (100, 300)):
        store = opened(files, clock)
        for n in range(first, until):
            store.put(Message(topic="T", body=b"%d" % n, keys=[f"k{n}"]), queue_id=n % 2)
        if not first:
            store.close()
    store.flush()
    files = files.killed()
    fault = fails_to_write("consumequeue/T/1", errno.EIO, 1)
    scheduler = SimScheduler(clock, SeededEntropy(1))
    store = opened(FaultyFileSystem(files, fault), clock, scheduler)
    assert "Errno 5" in store.recovery_report["readOnly"]
    scheduler.run(200_000)
    store.close()
    for _ in range(2):
        with opened(files, clock) as store:
            assert store.recovery_report["readOnly"] is None
            assert [bodies(store, q) for q in (0, 1)] == [
                [b"%d" % n for n in range(q, 300, 2)] for q in (0, 1)]
            assert len(store.query_message("T", "k1")) == 1


def test_a_disk_that_fills_up_while_closing_leaves_the_abort_file():
    clock, files = SimClock(), CrashFileSystem()
    fault = fails_to_write("consumequeue", errno.ENOSPC, 1000)
    store = opened(FaultyFileSystem(files, fault), clock)
    store.put(Message(topic="T", body=b"0"))
    store.close()
    assert files.exists("/store/abort")
    assert not files.locked
    with opened(files, clock) as store:
        assert bodies(store, 0) == [b"0"]


def test_a_read_only_file_system_is_refused_clearly_and_can_be_read():
    clock, files = SimClock(), CrashFileSystem()
    with opened(files, clock) as store:
        for n in range(20):
            store.put(Message(topic="T", body=b"%d" % n, keys=[f"k{n}"]))
    before = files.operations
    read_only = FaultyFileSystem.read_only(files)
    with pytest.raises(StoreNotWritableError, match=r"/store/lock: Read-only file system; .* dump"):
        opened(read_only, clock)
    view = StoreDirectory("/store", config=CONFIG, file_system=read_only)
    assert [len(queue.all_units()) for queue in view.queues()] == [20]
    assert files.operations == before
    assert not files.locked


def test_a_directory_without_write_permission_is_refused_clearly():
    clock, files = SimClock(), CrashFileSystem()
    opened(files, clock).close()
    denied = FaultyFileSystem(files, lambda *call: errno.EACCES if "abort" in call[2] else 0)
    with pytest.raises(StoreNotWritableError, match=r"/store/abort: Permission denied"):
        opened(denied, clock)
    assert not files.locked
