"""Replacing a file: nothing is left beside it after a failure, and a mount of its own is overwritten if asked."""

import errno
import os

import pytest

from tailrace.broker.core.settings import SettingsFile
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.whole_files import replace_file


class Files(OsFileSystem):
    """A file system whose operation number ``fails_at`` fails, and on which files cannot be replaced."""

    def __init__(self, rename_error=None, fails_at=None, error=errno.ENOSPC):
        super().__init__()
        self.rename_error, self.fails_at, self.error, self.count = rename_error, fails_at, error, 0

    def step(self):
        self.count += 1
        if self.count - 1 == self.fails_at:
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path, **options):
        self.step()
        return super().open(path, **options)

    def rename(self, old, new):
        self.step()
        if self.rename_error:
            raise OSError(self.rename_error, os.strerror(self.rename_error), old, None, new)
        super().rename(old, new)

    def sync_dir(self, path):
        self.step()
        super().sync_dir(path)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.conf"
    path.write_bytes(b"a longer old text\n")
    path.chmod(0o640)
    return path


def test_a_mount_of_its_own_is_overwritten_if_asked(path):
    replace_file(Files(errno.EBUSY), str(path), b"new\n", keep_permissions=True, in_place=True)
    assert path.read_bytes() == b"new\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["s.conf"]


@pytest.mark.parametrize(("error", "in_place"), [(errno.EBUSY, False), (errno.EROFS, True), (errno.EACCES, True)])
def test_otherwise_it_is_refused_and_unchanged(path, error, in_place):
    with pytest.raises(OSError) as raised:
        replace_file(Files(error), str(path), b"new\n", in_place=in_place)
    assert raised.value.errno == error
    assert path.read_bytes() == b"a longer old text\n"
    assert os.listdir(path.parent) == ["s.conf"]


@pytest.mark.parametrize("rename_error", [None, errno.EBUSY])
def test_whatever_fails_no_temporary_file_is_left(path, rename_error):
    for number in range(20):
        path.write_bytes(b"old")
        files = Files(rename_error, number)
        try:
            replace_file(files, str(path), b"new", keep_permissions=True, in_place=True)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert path.read_bytes() in {b"old", b"new"}
        else:
            break
        finally:
            assert os.listdir(path.parent) == ["s.conf"]
    assert number > 2
    assert files.count <= number
    assert path.read_bytes() == b"new"


def test_the_file_of_settings_is_overwritten(path):
    path.write_text("# mine\nfileReservedTime=72\n")
    SettingsFile(Files(errno.EBUSY), str(path)).write({"fileReservedTime": "48"})
    assert path.read_text() == "# mine\nfileReservedTime=48\n"
    assert os.listdir(path.parent) == ["s.conf"]
