"""A descriptor stays open under the call that uses it (M5), and few are open at a time."""

import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreClosedError
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
    lambda file: file.read_many([(0, 5), (5, 5)]), lambda file: list(file.nonzero(0)),
    lambda file: file.data_end(), lambda file: file.zero_tail(1),
], ids=["write", "read", "flush", "read_many", "nonzero", "data_end", "zero_tail"])
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
    assert file.read_many([(0, 5)]) == [b""]


def test_many_places_of_several_files_are_read_in_their_order(tmp_path):
    queue = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 100, mapped=False, allocate_step=100)
    for number in range(3):
        queue.last_file(0).append(bytes([65 + number]) * 100)
    places = [(250, 4), (10, 3), (20, 2), (98, 5), (300, 4), (200, 1)]
    assert queue.read_many(places) == [b"CCCC", b"AAA", b"AA", b"AA", b"", b"C"]
    assert queue.read_many(places) == [queue.read(at, n) for at, n in places]
