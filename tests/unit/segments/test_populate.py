"""Blocks are reserved, and pages are in memory, before a writer stores there."""

from __future__ import annotations

import errno
import os

import pytest

from tailrace.env import linux_calls
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import DiskFullError
from tailrace.segments import MappedFile

MIB = 1 << 20


@pytest.fixture
def file(tmp_path):
    made = MappedFile.create(
        OsFileSystem(), f"{tmp_path}/00000000000000000000", 0, 8 * MIB, mapped=True, allocate_step=4 * MIB)
    yield made
    made.close()


def ranges_of(monkeypatch, room, name):
    """Return the list to which each later call of a function of (object, start, length) adds (start, length)."""
    made: list[tuple[int, int]] = []
    real = getattr(room, name)

    def call(what, start, length):
        made.append((start, length))
        return real(what, start, length)

    monkeypatch.setattr(room, name, call)
    return made


@pytest.fixture
def calls(monkeypatch):
    """Ranges that were brought into memory."""
    return ranges_of(monkeypatch, linux_calls, "populate")


def test_reserved_pages_after_the_writer_are_brought_into_memory_once(file, calls):
    file.write_at(b"x" * 5000, 0)
    file.advance(5000)
    file.populate(2 * MIB)
    assert calls == [(4096, MIB), (4096 + MIB, MIB)]
    file.populate(2 * MIB)
    file.write_at(b"y" * (MIB // 2), 5000)
    file.advance(MIB // 2)
    file.populate(2 * MIB)
    assert len(calls) == 2, "more than half of them are in memory"
    file.write_at(b"z" * MIB, 5000 + MIB // 2)
    file.advance(MIB)
    file.populate(2 * MIB)
    assert calls[2][0] == 4096 + 2 * MIB
    assert file.read(0, 3) + file.read(5000, 3) == b"xxxyyy"


def test_blocks_that_are_not_reserved_are_left_alone(file, calls):
    file.write_at(b"x" * (3 * MIB), 0)
    file.advance(3 * MIB)
    file.populate(64 * MIB)
    assert not calls, "the half of 64 MiB is not there"
    file.populate(2 * MIB)
    assert sum(n for _, n in calls) == MIB
    assert all(start + n <= 4 * MIB for start, n in calls)


def test_a_system_that_cannot_do_it_is_tried_once(file, monkeypatch):
    calls = []
    monkeypatch.setattr(linux_calls, "populate", lambda *range_: calls.append(range_))
    file.write_at(b"x", 0)
    file.populate(2 * MIB)
    file.populate(2 * MIB)
    assert len(calls) == 1


def test_a_closed_file_is_left_alone(file, calls):
    file.write_at(b"x", 0)
    file.close()
    file.populate(2 * MIB)
    assert not calls


def test_pages_are_left_alone_while_system_calls_write_them(file, calls):
    file.reserve(1)
    file.write_after(memoryview(bytearray(b"x" * 5000)), 0)
    file.advance(5000)
    file.populate(2 * MIB)
    assert not calls
    file.write_at(b"y", 5000)
    file.advance(1)
    file.populate(2 * MIB)
    assert calls
    assert file.read(4998, 3) == b"xxy"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OSError)])
@pytest.mark.parametrize(("room", "name", "size"), [
    (linux_calls, "pwrite_with_lock", 5000), (os, "pwrite", 70_000)])
def test_a_write_that_fails_halfway_leaves_no_bytes(file, monkeypatch, number, kind, room, name, size):
    """For example on a file system that copies on write, where blocks that are reserved may not suffice."""
    real, struck = getattr(room, name), []

    def pwrite(descriptor, data, at):
        if len(struck) < 2:
            struck.append(at)
            if len(struck) == 1:
                return real(descriptor, data[:1000], at)
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, at)

    file.reserve(1)
    monkeypatch.setattr(room, name, pwrite)
    with pytest.raises(kind, match="00000000000000000000"):
        file.write_after(memoryview(bytearray(b"x" * size)), 0)
    assert struck[:2] == [0, 1000]
    assert not any(file.buffer[:size])
    assert file.wrote_position == 0


@pytest.fixture
def reserved(monkeypatch):
    """Ranges for which blocks were allocated."""
    return ranges_of(monkeypatch, os, "posix_fallocate")


def wrote(file, until):
    file.reserve(until)
    file.advance(until - file.wrote_position)


def test_blocks_are_reserved_before_the_writer_needs_them(file, reserved):
    wrote(file, 2 * MIB)
    file.reserve_ahead(MIB)
    assert not reserved, "4 MiB are reserved since the file was made"
    wrote(file, 3 * MIB + 1)
    file.reserve_ahead(MIB)
    assert reserved == [(4 * MIB, 4 * MIB)]
    assert file.reserve(8 * MIB) == 8 * MIB
    wrote(file, 8 * MIB - 1)
    file.reserve_ahead(MIB)
    assert len(reserved) == 1, "the file ends there"


def test_no_more_than_a_step_is_reserved_ahead(file, reserved):
    wrote(file, 1)
    file.reserve_ahead(64 * MIB)
    assert reserved == [(4 * MIB, 4 * MIB)]


def test_blocks_are_left_to_a_writer_of_a_file_that_was_opened(file, reserved):
    opened = MappedFile(OsFileSystem(), file.path, 0, 8 * MIB, mapped=True, allocate_step=4 * MIB)
    opened.reserve_ahead(MIB)
    assert not reserved
    opened.close()


def test_blocks_that_were_given_back_are_not_reserved_again(file, reserved):
    wrote(file, 3 * MIB + 1)
    file.advance(5 * MIB - 1)
    file.give_back(3 * MIB + 1)
    before = os.stat(file.path).st_blocks
    file.reserve_ahead(MIB)
    assert not reserved
    assert os.stat(file.path).st_blocks == before


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OSError)])
def test_the_writer_reports_that_blocks_cannot_be_reserved(file, monkeypatch, number, kind):
    tried = []

    def posix_fallocate(descriptor, start, length):
        tried.append(start)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    wrote(file, 3 * MIB + 1)
    file.reserve_ahead(MIB)
    file.reserve_ahead(MIB)
    wrote(file, 3 * MIB + 2)
    file.reserve_ahead(MIB)
    assert tried == [4 * MIB], "each step is tried once"
    with pytest.raises(kind, match="00000000000000000000"):
        file.reserve(4 * MIB + 1)
    assert len(tried) == 2


def test_a_closed_file_is_not_reserved_ahead(file, reserved):
    wrote(file, 3 * MIB + 1)
    file.close()
    file.reserve_ahead(MIB)
    assert not reserved
