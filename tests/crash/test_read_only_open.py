"""An open that could not write everything leaves no wrong progress for the next open."""

import errno
import importlib.util
import os
import pathlib
import re

import pytest
from read_there import query_there, read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import FatalStorageError, StoreLockedError, StoreNotWritableError
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.testing import CrashFileSystem, Fault, FaultyFileSystem, SimClock, SimScheduler

_spec = importlib.util.spec_from_file_location("faults", pathlib.Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)
CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False)


def opened(files, clock, scheduler=None):
    return MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(clock=clock, file_system=files, scheduler=scheduler, services=scheduler is not None,
            entropy=SeededEntropy(1)))


def fails_to_write(part, error_number, times):
    """Writes to paths with ``part`` in them fail so often."""
    left = [error_number] * times

    def error_of(_number, name, path):
        return left.pop() if name == "pwrite" and part in path and left else 0

    return error_of


def bodies(store, queue_id):
    return [m.body for m in read_there(store, "T", queue_id)]


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
    assert "/store/consumequeue/T/1/00000000000000000800: Input/output error" in store.read_only
    assert store.recovery_report["readOnly"] == store.not_writeable_reason == store.read_only
    assert [bodies(store, q) for q in (0, 1)] == [
        [b"%d" % n for n in range(q, 300, 2)] for q in (0, 1)]
    scheduler.run(200_000)
    store.close()
    for _ in range(2):
        with opened(files, clock) as store:
            assert store.recovery_report["readOnly"] is None
            assert [bodies(store, q) for q in (0, 1)] == [
                [b"%d" % n for n in range(q, 300, 2)] for q in (0, 1)]
            assert len(query_there(store, "T", "k1")) == 1


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


@pytest.mark.parametrize("last", ["clean", "killed"])
def test_a_disk_without_room_for_the_text_of_the_abort_file_changes_nothing_of_the_last_stop(last):
    """A file of no bytes can still be made on a full disk."""
    clock, files = SimClock(), CrashFileSystem()
    store = opened(files, clock)
    store.put(Message(topic="T", body=b"0"))
    if last == "clean":
        store.close()
    files = files.killed()
    store = opened(FaultyFileSystem(files, fails_to_write("abort", errno.ENOSPC, 1)), clock)
    assert "/store/abort: No space left on device" in store.read_only
    assert store.recovery_report["mode"] == ("normal" if last == "clean" else "abnormal")
    assert bodies(store, 0) == [b"0"]
    store.close()
    assert files.exists("/store/abort") == (last == "killed")


def image(files):
    """Every byte below the store's directory."""
    return {path: files.open(path).pread(1 << 20, 0) for path in faults.paths(files)}


@pytest.fixture(params=["clean", "killed", "bare", "torn", "empty"])
def unwritten(request):
    """Files of a store with 200 messages, stopped in some way, and the clock; the files that remain."""
    clock, files = SimClock(), CrashFileSystem()
    store = opened(files, clock)
    if request.param == "empty":
        store.close()
        return clock, files, []
    for n in range(200):
        store.put(Message(topic="T", body=b"%d" % n, keys=[f"k{n}"]), queue_id=n % 2)
    end = store.max_phy_offset
    store.flush()
    if request.param == "clean":
        store.close()
    files = files.killed()
    if request.param == "bare":
        for name in ("consumequeue/T/0", "consumequeue/T/1", "index"):
            for file in files.list(f"/store/{name}"):
                files.remove(f"/store/{name}/{file}")
    if request.param == "torn":
        path = f"/store/commitlog/{end - end % 16384:020d}"
        files.open(path, writable=True).pwrite(b"half a record" * 20, end % 16384)
    return clock, files, list(range(200))


ERRORS = {"EROFS": errno.EROFS, "EACCES": errno.EACCES, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT}


@pytest.mark.parametrize("name", ERRORS)
def test_a_store_where_nothing_can_be_written_is_read_whole(unwritten, name):
    clock, files, numbers = unwritten
    before = image(files)
    refusing = FaultyFileSystem.read_only(files) if name == "EROFS" else FaultyFileSystem(
        files, lambda *_: ERRORS[name])
    scheduler = SimScheduler(clock, SeededEntropy(1))
    store = opened(refusing, clock, scheduler)
    assert re.search(r"/store/(lock|abort): ", store.read_only)
    assert os.strerror(ERRORS[name]) in store.read_only
    assert not store.is_writeable
    for _ in range(2):
        assert sorted(int(body) for q in (0, 1) for body in bodies(store, q)) == numbers
        for n in numbers[::20]:
            assert [m.body for m in query_there(store, "T", f"k{n}")] == [b"%d" % n]
        for topic in ("T", "a new topic".replace(" ", "_")):
            with pytest.raises(StoreNotWritableError, match="repair that and open it again"):
                store.put(Message(topic=topic, body=b"x"))
        for change in (store.flush, lambda: store.delete_topics({"T"}), lambda: store.purge_topic("T"),
                       store.execute_delete_files_manually):
            with pytest.raises(StoreNotWritableError):
                change()
        scheduler.run(100_000)
    store.close()
    assert image(files) == before, "something was written"
    assert not files.locked
    with opened(files, clock) as store:
        assert not store.read_only
        assert sorted(int(body) for q in (0, 1) for body in bodies(store, q)) == numbers
        store.put(Message(topic="T", body=b"200"))


def test_what_must_write_is_refused_where_nothing_can_be_written(unwritten):
    clock, files, _ = unwritten
    before = image(files)
    with pytest.raises(StoreNotWritableError, match=r"/store/lock: Read-only .* dump"):
        MessageStore.open(
            "/store", config=CONFIG,
            parts=StoreParts(clock=clock, services=False, must_write=True,
                file_system=FaultyFileSystem.read_only(files)))
    assert image(files) == before
    view = StoreDirectory("/store", config=CONFIG, file_system=FaultyFileSystem.read_only(files))
    assert view.path == "/store"


def test_a_new_store_where_nothing_can_be_written_is_refused():
    clock, files = SimClock(), CrashFileSystem()
    files.makedirs("/store")
    with pytest.raises(StoreNotWritableError, match="/store/lock: Read-only file system"):
        opened(FaultyFileSystem.read_only(files), clock)
    assert files.list("/store") == []


def test_a_store_that_somebody_writes_is_not_read_beside_it():
    clock, files = SimClock(), CrashFileSystem()
    with opened(files, clock), pytest.raises(StoreLockedError):
        opened(FaultyFileSystem.read_only(files), clock)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_any_operation_of_a_recovery_fails_for_good(number):
    """Read-only or refused, but nothing is lost, and all is there when it works again."""
    clock, files = SimClock(), CrashFileSystem()
    store = opened(files, clock)
    for n in range(120):
        store.put(Message(topic="T", body=b"%d" % n, keys=[f"k{n}"]), queue_id=n % 2)
    store.flush()
    end = store.max_phy_offset
    files.open(f"/store/commitlog/{end - end % 16384:020d}", writable=True).pwrite(b"torn" * 20, end % 16384)
    wanted = [[b"%d" % n for n in range(q, 120, 2)] for q in (0, 1)]
    opened_read_only = operation = 0
    while True:
        left = files.killed()
        faulty = FaultyFileSystem.failing(left, Fault(operation, number, for_good=True))
        try:
            store = opened(faulty, clock)
        except (FatalStorageError, OSError):
            assert number == errno.EIO, operation
        else:
            if faulty.operations <= operation:
                break
            assert [bodies(store, q) for q in (0, 1)] == wanted, operation
            opened_read_only += bool(store.read_only)
            store.close()
        assert not left.locked
        with opened(left, clock) as store:
            assert [bodies(store, q) for q in (0, 1)] == wanted, operation
            assert len(query_there(store, "T", "k119")) == 1, operation
        operation += 1
    assert opened_read_only > 20
