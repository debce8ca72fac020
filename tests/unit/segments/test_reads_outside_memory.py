"""M7: bytes of a mapped file that are not in memory are read with a system call, whose error is an OSError."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.segments import MappedFile
from tailrace.testing import CrashFileSystem

SIZE = 1 << 16


def made(file_system, path):
    file = MappedFile.create(file_system, path, 0, SIZE, mapped=True)
    file.write_at(b"x" * SIZE, 0)
    file.wrote_position = SIZE
    file.flush()
    return file


READS = {
    "read": lambda file: file.read(100, 50),
    "read_into": lambda file: file.read_into(100, bytearray(50)),
    "select": lambda file: file.select(100, 50).release(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_media_error_is_an_error_of_the_read(read):
    files = CrashFileSystem()
    files.makedirs("/d")
    file = made(files, "/d/00000000000000000000")
    _ = file.buffer
    read(file)  # bytes that are in memory need no call

    def before_read(_number, name, path, _pos, _n):
        if name == "pread":
            raise OSError(errno.EIO, "bad sector", path)

    files.before_read = before_read
    read(file)
    files.cold = True
    with pytest.raises(OSError, match="bad sector"):
        read(file)


PROGRAM = """
import os, sys
from tailrace.env.filesystem import OsFileSystem
from tailrace.segments import MappedFile
path = sys.argv[1]
file = MappedFile(OsFileSystem(), path, 0, 65536, mapped=True)
file.wrote_position = file.flushed_position = 65536
assert bytes(file.buffer[:3]) == b"xxx"
os.truncate(path, 0)  # a load of these pages is a SIGBUS from now on, as with a media error
assert file.read(100, 50) == b""
assert file.read_into(100, bytearray(50)) == 0
lease = file.select(100, 50)
assert bytes(lease.buffer) == b""
lease.release()
print("alive")
"""


def test_pages_that_cannot_be_loaded_do_not_end_the_process(tmp_path):
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"x" * SIZE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    assert done.stdout == "alive\n"


def test_a_mapping_knows_which_bytes_are_in_memory(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * SIZE)
    file = OsFileSystem().open(str(path), writable=True)
    mapping = file.map(SIZE, writable=False)
    assert mapping.in_memory(0, SIZE)
    assert mapping.in_memory(5000, 1)
    file.sync_data()
    mapping.close()
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    mapping = file.map(SIZE, writable=False)
    if mapping.in_memory(0, SIZE):
        pytest.skip("this file system keeps its pages in memory")
    file.pread(1, 0)
    assert mapping.in_memory(0, 1)
    mapping.close()
    file.close()
