"""A descriptor stays open under the call that uses it (M5), and few are open at a time."""

import os
import random
import threading

import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.errors import FatalStorageError, StoreClosedError
from tailrace.segments.mapped_file import MappedFile
from tailrace.segments.mapped_file_queue import MappedFileQueue
from tailrace.segments.open_files import OpenFiles


class Slow:
    """A file system whose files let something else happen in the middle of a call."""

    def __init__(self):
        self.meanwhile = lambda: None
        self.real = OsFileSystem()

    def __getattr__(self, name):
        return getattr(self.real, name)

    def open(self, *args, **keywords):
        return _SlowFile(self, self.real.open(*args, **keywords))


class _SlowFile:
    def __init__(self, owner, file):
        self.owner, self.file = owner, file

    def __getattr__(self, name):
        call = getattr(self.file, name)

        def slow(*args, **keywords):
            if name != "close":
                self.owner.meanwhile()
            return call(*args, **keywords)

        return slow


@pytest.fixture
def made(tmp_path):
    system = Slow()
    open_files = OpenFiles(limit=1)
    files = [
        MappedFile.create(system, f"{tmp_path}/{n:020d}", n * 100, 100, mapped=False,
                          open_files=open_files)
        for n in range(3)]
    return system, files


@pytest.mark.parametrize("call", [
    lambda file: file.write_at(b"x" * 10, 0), lambda file: file.read(0, 5), lambda file: file.flush(),
    lambda file: file.read(0, 5, apart=True), lambda file: list(file.nonzero(0)),
    lambda file: file.data_end(), lambda file: file.zero_tail(1),
], ids=["write", "read", "flush", "read_apart", "nonzero", "data_end", "zero_tail"])
def test_others_do_not_close_the_file_of_a_call(made, call):
    system, (file, other, _) = made
    file.append(b"0123456789")
    met = []

    def use_another():
        if not met:
            met.append(True)
            other.write_at(b"y", 0)  # one descriptor is allowed: this one pushes ours out

    system.meanwhile = use_another
    call(file)
    assert met
    system.meanwhile = lambda: None
    assert file.read(9, 1) in {b"9", b"x", b"\0"}


def test_idle_files_give_their_descriptor_back(made):
    _, (file, other, third) = made
    for one in (file, other, third, file):
        one.write_at(b"z", 0)
    assert [one._file is not None for one in (file, other, third)] == [True, False, False]


def test_a_closed_file_is_neither_written_nor_flushed(made):
    _, (file, *_) = made
    file.append(b"0123456789")
    file.close()
    for call in (lambda: file.write_at(b"z", 0), file.flush):
        with pytest.raises(StoreClosedError):
            call()
    assert file.read(0, 5) == b""
    assert file.read(0, 5, apart=True) == b""
    assert file.hold_view() is None


@pytest.mark.parametrize("mapped", [True, False])
def test_the_bytes_around_a_place_are_held(tmp_path, mapped):
    queue = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=mapped, allocate_step=4096)
    for number in range(3):
        file = queue.last_file(0)
        file.write_at(bytes([65 + number]) * 4096, 0)
        file.wrote_position = 4096 if number < 2 else 100
    loaded = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=mapped)
    loaded.load()
    loaded.files[2].wrote_position = 100
    for one in (queue, loaded):
        for at, n, expected in [
            (10, 3, b"AAA"), (4095, 5, b"A"), (4096, 2, b"BB"), (8192, 4, b"CCCC"), (8290, 9, b"CC"),
            (8292, 1, b""), (12288, 4, b""), (-1, 4, b""), (0, -3, b""),
        ]:
            held, data, start, there = one.hold_around(at, n)
            assert (held is not None) == (mapped and (expected != b"" or n < 0))
            assert bytes(data[at - start : min(at - start + max(n, 0), there)]) == expected
            if held is not None:
                held.release()
        assert not any(file.leased for file in one.files)
        one.close()


def test_a_file_that_cannot_be_mapped_is_read_without(tmp_path, monkeypatch, caplog):
    queue = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True, allocate_step=4096)
    file = queue.last_file(0)
    file.write_at(b"A" * 4096, 0)
    queue.close()
    loaded = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True)
    loaded.load()

    def no_room(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(MappedFile, "_map", no_room)
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert loaded.hold_around(10, 3) == (None, b"AAA", 10, 3)
    assert [r.getMessage() for r in caplog.records if "without a mapping" in r.getMessage()]
    assert len(caplog.records) == 1


class Recorder:
    """A file system that notes syncs and closes by path; ``fails`` has paths whose sync fails."""

    def __init__(self):
        self.real = OsFileSystem()
        self.calls = []
        self.fails = set()
        self.refused = 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def open(self, path, **keywords):
        if self.refused:
            raise OSError(self.refused, "no descriptor", path)
        return _RecordedFile(self, self.real.open(path, **keywords))


class _RecordedFile:
    def __init__(self, owner, file):
        self.owner, self.file = owner, file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def sync_data(self):
        self.owner.calls.append(("sync", self.file.path[-2:]))
        if self.file.path in self.owner.fails:
            raise OSError(5, "Input/output error", self.file.path)
        self.file.sync_data()

    def close(self):
        self.owner.calls.append(("close", self.file.path[-2:]))
        self.file.close()


def some_files(tmp_path, count, limit, **keywords):
    system, open_files = Recorder(), OpenFiles(limit=limit)
    files = [
        MappedFile.create(system, f"{tmp_path}/{n:020d}", n * 100, 100, open_files=open_files,
                          **{"mapped": False, **keywords})
        for n in range(count)]
    for file in files:
        file.give_up_descriptors()
    system.calls.clear()
    return system, open_files, files


def test_a_synced_file_is_closed_before_one_with_unsynced_bytes(tmp_path):
    system, open_files, (dirty, clean, third) = some_files(tmp_path, 3, 2)
    dirty.append(b"x")
    clean.append(b"y")
    clean.flush()
    third.append(b"z")
    assert system.calls == [("sync", "01"), ("close", "01")]
    assert open_files.count == 2


def test_unsynced_bytes_are_synced_through_the_descriptor_that_wrote_them(tmp_path):
    system, _, files = some_files(tmp_path, 3, 1)
    for number, file in enumerate(files):
        file.append(b"x" * number + b"x")
    assert system.calls == [("sync", "00"), ("close", "00"), ("sync", "01"), ("close", "01")]
    assert files[0].flush() == 1
    assert system.calls[4:] == [], "it was synced before it was closed"
    assert [file.read(0, 9) for file in files] == [b"x", b"xx", b"xxx"]


def test_a_sync_that_fails_before_a_close_is_final_and_keeps_the_descriptor(tmp_path):
    """F6: a descriptor that is opened later might not report the failure."""
    system, _, (bad, other) = some_files(tmp_path, 2, 1)
    system.fails.add(bad.path)
    bad.append(b"x")
    other.append(b"y")
    assert ("close", "00") not in system.calls
    system.fails.clear()
    for _ in range(2):
        with pytest.raises(FatalStorageError):
            bad.flush()
    assert other.flush() == 1


def test_bytes_that_are_rewritten_below_the_end_count_as_unsynced(tmp_path):
    system, _, (file, other) = some_files(tmp_path, 2, 1)
    file.append(b"x" * 100)
    file.flush()
    file.write_at(b"y", 100 - 1)
    file.touched()
    file.flushed_position = 100  # a flusher that began before the write says so afterwards
    system.calls.clear()
    other.append(b"z")
    assert system.calls == [("sync", "00"), ("close", "00")]


def test_a_segment_that_became_full_through_its_mapping_is_synced_before_it_is_closed(tmp_path):
    system, open_files, (full, other) = some_files(tmp_path, 2, 2, mapped=True, allocate_step=4096)
    full.buffer[:100] = b"f" * 100
    assert open_files.count == 2, "a mapping keeps a descriptor of its own"
    full.advance(100)
    other.data_end()
    assert system.calls == [("sync", "00"), ("close", "00")]
    assert full.read(0, 100) == b"f" * 100


def test_the_file_that_grows_and_one_that_is_read_keep_their_mappings(tmp_path):
    system, open_files, (tail, read, other) = some_files(
        tmp_path, 3, 2, mapped=True, allocate_step=4096)
    tail.buffer[:5] = b"tail!"
    tail.advance(5)
    tail.flush()
    read.write_at(b"seen" * 25, 0)
    read.advance(100)
    lease = read.select(0, 100)
    assert lease is not None
    read.flush()
    other.write_at(b"o" * 100, 0)
    other.advance(100)
    other.flush()
    tail.buffer[5:6] = b"?"
    assert bytes(lease.buffer) == b"seen" * 25
    assert {path for call, path in system.calls if call == "close"} <= {"02"}
    lease.release()
    list(other.nonzero(0))
    assert ("close", "01") in system.calls
    assert read._mapping is None
    assert read.read(0, 4) == b"seen"
    assert open_files.count == sum(
        (file._file is not None) + (file._mapping is not None) for file in (tail, read, other))


def test_no_descriptor_for_a_sync_is_not_a_failed_sync(tmp_path):
    system, _, (file,) = some_files(tmp_path, 1, 4)
    file.append(b"x")
    file.flush()
    assert file.give_up_descriptors()
    file.flushed_position = 0  # as recovery has it for what a killed process wrote
    system.refused = 24
    with pytest.raises(OSError, match="no descriptor") as caught:
        file.flush()
    assert caught.value.errno == 24
    system.refused = 0
    assert file.flush() == 1


def test_a_file_that_retention_deleted_reads_as_empty(tmp_path):
    _, _, (file,) = some_files(tmp_path, 1, 4)
    file.append(b"x" * 100)
    file.flush()
    assert file.give_up_descriptors()
    assert file.hold()  # a reader that got in before the deletion and opens the file after it
    file.destroy()
    with pytest.raises(StoreClosedError):
        file._open()
    file.release()
    assert file.read(0, 5) == b""


def test_threads_that_read_write_and_flush_share_a_few_descriptors(tmp_path):
    _, open_files, files = some_files(tmp_path, 40, 8)
    for number, file in enumerate(files):
        file.append(bytes([number]) * 50)
    problems = []
    stop = threading.Event()

    def use(seed):
        rnd = random.Random(seed)
        while not stop.is_set():
            file = files[rnd.randrange(40)]
            try:
                data = file.read(0, 50)
                assert data == bytes([file.file_from_offset // 100]) * 50
                if seed == 0:
                    file.write_at(data, 0)
                    file.flush()
            except Exception as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert open_files.count == sum(file._file is not None for file in files)
    files[0].read(0, 1)
    assert open_files.count <= 8


def test_many_files_with_unsynced_bytes_are_closed_together(tmp_path):
    system, open_files, files = some_files(tmp_path, 300, 80)
    for file in files:
        file.append(b"x" * (file.file_from_offset // 100 % 50 + 1))
        assert open_files.count <= 80
    assert open_files.count == sum(file._file is not None for file in files)
    assert all(file._file is not None for file in files if file.unsynced), "closed with unsynced bytes"
    assert len([call for call in system.calls if call[0] == "sync"]) >= 220
    assert [len(file.read(0, 99)) for file in files] == [n % 50 + 1 for n in range(300)]


def test_the_file_that_was_used_longest_ago_is_closed_first(tmp_path):
    system, _, files = some_files(tmp_path, 4, 3)
    for file in files:
        file.append(b"x")
        file.flush()
        file.give_up_descriptors()
    system.calls.clear()
    for file in (files[0], files[1], files[2], files[0], files[3]):
        file.read(0, 1)
    assert system.calls == [("close", "01")]


def test_a_full_segment_is_mapped_to_read_and_mapped_again_when_it_is_written(tmp_path):
    queue = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True, allocate_step=4096)
    queue.last_file(0).write_at(b"A" * 4096, 0)
    queue.close()
    loaded = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True)
    loaded.load()
    file, view, *_ = loaded.hold_around(0, 3)
    assert view.readonly
    file.write_at(b"B", 1)
    assert bytes(view[:3]) == b"ABA"
    file.release()
    file, view, *_ = loaded.hold_around(0, 3)
    assert (bytes(view[:3]), view.readonly) == (b"ABA", False)
    file.release()
    loaded.close()


@pytest.mark.parametrize("write", ["write_at", "write_long"])
def test_a_write_during_a_sync_is_not_taken_for_synced(tmp_path, write):
    file = MappedFile.create(
        OsFileSystem(), f"{tmp_path}/{0:020d}", 0, 8192, mapped=write == "write_long", allocate_step=8192)
    file.write_at(b"A" * 8192, 0)
    file.wrote_position = 8192
    assert file.flush() == 8192
    inner, has_synced, has_written = file._open(), threading.Event(), threading.Event()
    flusher = threading.Thread(target=file.flush)

    class Interleaved:
        """The sync of another thread begins during the write and ends after it, without its bytes."""

        def __getattr__(self, name):
            return getattr(inner, name)

        def pwrite(self, data, pos):
            flusher.start()
            assert has_synced.wait(10)
            inner.pwrite(data, pos)

        def sync_data(self):
            inner.sync_data()
            has_synced.set()
            assert has_written.wait(10)

    file._file = Interleaved()
    getattr(file, write)(b"B", 7)
    has_written.set()
    flusher.join(10)
    assert file.unsynced
    file._file = inner
    assert not file.give_up_descriptors()
    file.flush()
    assert not file.unsynced
    file.close()


def test_segments_of_a_read_only_store_keep_the_bound_too(tmp_path):
    made = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True, allocate_step=4096)
    for _ in range(40):
        file = made.last_file(0)
        file.write_at(b"A" * 4096, 0)
        file.wrote_position = 4096
    made.close()
    before = len(os.listdir("/proc/self/fd"))
    loaded = MappedFileQueue(OverlayFileSystem(OsFileSystem()), str(tmp_path / "q"), 4096, mapped=True,
                             open_files=OpenFiles(8))
    loaded.load()
    for number in range(40):
        file, view, *_ = loaded.hold_around(number * 4096 + 5, 3)
        assert bytes(view[5:8]) == b"AAA"
        file.release()
        assert len(os.listdir("/proc/self/fd")) <= before + 10
    loaded.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_that_need_no_sync_are_closed_while_another_thread_syncs(tmp_path):
    _, open_files, files = some_files(tmp_path, 60, 8)
    for file in files[8:]:
        file.append(b"x")
        file.flush()
        file.give_up_descriptors()
    in_sync, go_on = threading.Event(), threading.Event()
    inner = files[0]._open()

    class Slow:
        def __getattr__(self, name):
            return getattr(inner, name)

        def sync_data(self):
            in_sync.set()
            assert go_on.wait(30)
            inner.sync_data()

    files[0]._file = Slow()
    for file in files[:8]:
        file.append(b"x")
    last = threading.Thread(target=files[8].read, args=(0, 1))
    last.start()
    assert in_sync.wait(30)
    try:
        most = 0
        for file in files[9:]:
            assert file.read(0, 1) == b"x"
            most = max(most, open_files.count)
        assert most <= 12, "8 files that wait for a sync, the one that is read, and two before the next look"
    finally:
        go_on.set()
        last.join(30)
