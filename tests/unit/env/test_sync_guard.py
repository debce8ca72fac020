"""Rule F6: what a guard does with a failed sync, and what the schedulers do with the error."""

import errno
import threading

import pytest

from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.scheduler import ThreadScheduler
from tailrace.env.sync_guard import SyncGuard
from tailrace.env.whole_files import replace_file
from tailrace.errors import FatalStorageError, LockLostError
from tailrace.testing import CrashFileSystem, FaultyFileSystem, SimClock, SimScheduler


class Place:
    """Files below /d, of which the syncs of some paths fail."""

    def __init__(self, hints=()):
        self.failing = {}
        self.tried = []
        inner = CrashFileSystem()
        inner.makedirs("/d")
        self.told = []
        self.guard = SyncGuard(FaultyFileSystem(inner, self.error_of), hints, self.told.append)

    def error_of(self, _number, name, path):
        if name.startswith("sync"):
            self.tried.append(path)
        return self.failing.get((name, path), 0)

    def file(self, name):
        return self.guard.open(f"/d/{name}", writable=True, create=True)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_after_a_failed_sync_no_other_one_is_tried(code):
    place = Place()
    one, other = place.file("one"), place.file("other")
    one.sync_data()
    assert not place.guard.failed
    place.failing["sync_data", "/d/one"] = code
    with pytest.raises(FatalStorageError, match="sync of /d/one failed") as failed:
        one.sync_data()
    assert failed.value.__cause__.errno == code
    assert place.guard.failed
    assert len(place.told) == 1
    assert "/d/one" in place.told[0]
    place.failing.clear()
    tried = len(place.tried)
    for sync in (one.sync_data, other.sync_data, lambda: place.guard.sync_dir("/d")):
        with pytest.raises(FatalStorageError, match="sync of /d/one failed") as refused:
            sync()
        assert refused.value.__cause__.errno == code, "what an open decides by"
    assert len(place.tried) == tried


def test_a_failed_sync_of_a_directory_is_final():
    place = Place(hints=("/d",))  # a directory is never a hint
    place.failing["sync_dir", "/d"] = errno.EIO
    with pytest.raises(FatalStorageError):
        place.guard.sync_dir("/d")
    assert place.guard.failed


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_directory_that_cannot_be_opened_was_not_synced_and_may_be_tried_again(code):
    place = Place()
    place.failing["sync_dir", "/d"] = code
    with pytest.raises(OSError, match="open files"):
        place.guard.sync_dir("/d")
    assert not place.guard.failed
    place.failing.clear()
    place.guard.sync_dir("/d")


def test_a_directory_that_cannot_be_made_because_the_disk_is_full_is_not_a_failed_sync():
    place = Place()
    place.failing["mkdir", "/d/new"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        place.guard.makedirs("/d/new")
    assert not place.guard.failed
    place.failing["mkdir", "/d/new"] = errno.EIO
    with pytest.raises(FatalStorageError):
        place.guard.makedirs("/d/new")


def test_a_hint_may_fail_and_is_synced_even_after_a_promise_has_failed(caplog):
    place = Place(hints=("/hint.tmp",))
    place.failing["sync_data", "/d/hint.tmp"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        replace_file(place.guard, "/d/hint", b"1")
    assert (place.guard.failed, place.guard.hint_failures, place.told) == (False, 1, [])
    assert "a hint cannot be synced, it is written again later file=/d/hint.tmp" in caplog.text
    assert not place.guard.exists("/d/hint")
    place.failing.clear()
    replace_file(place.guard, "/d/hint", b"2")
    place.failing["sync_data", "/d/one"] = errno.EIO
    with pytest.raises(FatalStorageError):
        place.file("one").sync_data()
    place.file("hint.tmp").sync_data()


def test_a_sync_that_ends_after_another_has_failed_does_not_count():
    """Two threads sync; the pages of the one may have been those of the other."""
    place = Place()
    slow = place.file("slow")

    def sync():
        place.failing["sync_data", "/d/fast"] = errno.EIO
        with pytest.raises(FatalStorageError):
            place.file("fast").sync_data()

    inner = slow._file
    slow._file = type("Slow", (), {"path": inner.path, "sync_data": staticmethod(sync)})()
    with pytest.raises(FatalStorageError, match="/d/fast"):
        slow.sync_data()


def test_a_new_directory_whose_sync_fails_is_made_again(tmp_path, monkeypatch):
    files, fails = OsFileSystem(), [True]
    synced = []

    def sync_dir(self, path):
        if fails.pop() if fails else False:
            raise OSError(errno.EIO, "Input/output error", path)
        synced.append(path)

    monkeypatch.setattr(OsFileSystem, "sync_dir", sync_dir)
    with pytest.raises(OSError, match="Input/output"):
        files.makedirs(f"{tmp_path}/a/b")
    assert not (tmp_path / "a").exists()
    files.makedirs(f"{tmp_path}/a/b")
    assert synced == [str(tmp_path), f"{tmp_path}/a"]


class Step:
    """Fails the first times, in the ways that are given."""

    def __init__(self, *errors):
        self.errors, self.calls, self.called = list(errors), 0, threading.Event()

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        self.called.set()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), ValueError("x"), MemoryError()])
def test_a_service_goes_on_after_an_error_that_is_not_fatal(error):
    step, scheduler = Step(error, error), ThreadScheduler()
    handle = scheduler.every("S", 1, step)
    assert step.called.wait(20)
    assert handle.failures == 2
    scheduler.stop_all()
    clock = SimClock()
    step, simulated = Step(error, error), SimScheduler(clock, SeededEntropy(1))
    simulated.every("S", 10, step)
    simulated.run(100)
    assert step.calls == 10


def test_a_service_ends_when_the_store_is_fatal():
    clock = SimClock()
    step, simulated = Step(FatalStorageError("/d", "x")), SimScheduler(clock, SeededEntropy(1))
    simulated.every("S", 10, step)
    simulated.run(100)
    assert step.calls == 1


@pytest.mark.parametrize("change", [
    lambda file: file.pwrite(b"x", 0), lambda file: file.pwrite_with_lock(memoryview(bytearray(b"x")), 0),
    lambda file: file.allocate(0, 4096), lambda file: file.truncate(0), lambda file: file.punch_hole(0, 4096),
    lambda file: file.sync_data(),
], ids=["pwrite", "pwrite_with_lock", "allocate", "truncate", "punch_hole", "sync_data"])
def test_no_change_of_an_open_file_after_the_lock_is_lost(change):
    place = Place()
    file = place.file("one")
    place.guard.give_up("/d/lock", "it leads to another file")
    with pytest.raises(LockLostError):
        change(file)
    assert file.size() == 0
