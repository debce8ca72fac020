"""Calls of the real file system that fail: no error counts as an answer, and each names its file."""

import errno
import os

import pytest

from tailrace.env.filesystem import OsFileSystem


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(4096))
    opened = OsFileSystem().open(str(path), writable=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("call", [
    lambda file: file.pread(10, -1), lambda file: file.pread_into(memoryview(bytearray(10)), -2),
    lambda file: file.pwrite(b"x", -1), lambda file: file.allocate(-1, 1), lambda file: file.truncate(-1),
], ids=["pread", "pread_into", "pwrite", "allocate", "truncate"])
def test_an_error_of_a_call_names_the_file(file, call):
    with pytest.raises(OSError, match="Invalid argument") as raised:
        call(file)
    assert raised.value.filename == file.path


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EACCES])
def test_a_name_that_cannot_be_looked_up_is_not_taken_for_a_missing_one(tmp_path, monkeypatch, number):
    files, path = OsFileSystem(), str(tmp_path / "abort")
    assert not files.exists(path)
    assert not files.exists(f"{path}/below/nothing")

    def fails(name, *_, **__):
        raise OSError(number, os.strerror(number), name)

    for call in ("stat", "lstat"):
        monkeypatch.setattr(os, call, fails)
    for look in (files.exists, files.stat, files.makedirs):
        with pytest.raises(OSError, match=os.strerror(number)):
            look(path)
