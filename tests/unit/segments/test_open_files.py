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
    lambda file: file.select_around(0, 5).release(), lambda file: list(file.nonzero(0)),
    lambda file: file.data_end(), lambda file: file.zero_tail(1),
], ids=["write", "read", "flush", "select_around", "nonzero", "data_end", "zero_tail"])
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
    assert file.select_around(0, 5) is None


@pytest.mark.parametrize("mapped", [True, False])
def test_a_lease_around_a_place_has_its_bytes(tmp_path, mapped):
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
            with one.lease(at, n) as lease:
                start = at - lease.start
                assert bytes(lease.buffer[start : start + n] if start >= 0 < n else b"") == expected
        assert not any(file.leased for file in one.files)
        one.close()


def test_a_file_that_cannot_be_mapped_is_read_without(tmp_path, monkeypatch, caplog):
    queue = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True, allocate_step=4096)
    file = queue.last_file(0)
    file.write_at(b"A" * 4096, 0)
    queue.close()
    loaded = MappedFileQueue(OsFileSystem(), str(tmp_path / "q"), 4096, mapped=True)
    loaded.load()

    class NoRoom:
        def __get__(self, *_):
            raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(MappedFile, "buffer", NoRoom())
    with caplog.at_level("INFO"):
        for _ in range(2):
            with loaded.lease(10, 3) as lease:
                assert (lease.start, bytes(lease.buffer)) == (10, b"AAA")
    assert [r.message for r in caplog.records if "without a mapping" in r.message]
    assert len(caplog.records) == 1
