"""Changes on an overlay stay there: the files below do not change, and only changes take memory."""

import os
import resource

from tailrace.env.filesystem import OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem


def below(tmp_path):
    """A directory with two files, and an overlay on it."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_bytes(b"abcdef")
    (tmp_path / "b").write_bytes(b"b" * 5000)
    return OverlayFileSystem(OsFileSystem()), str(tmp_path)


def text(files, path):
    file = files.open(path)
    try:
        return file.pread(1 << 20, 0)
    finally:
        file.close()


def test_changes_are_seen_through_it_alone(tmp_path):
    files, root = below(tmp_path)
    reader, writer = files.open(f"{root}/d/a"), files.open(f"{root}/d/a", writable=True)
    writer.pwrite(b"XY", 1)
    assert reader.pread(9, 0) == b"aXYdef"
    writer.pwrite(b"more", 6)
    writer.truncate(8)
    assert reader.pread(20, 0) == b"aXYdefmo"
    reader.close()
    writer.close()
    assert text(files, f"{root}/d/a") == b"aXYdefmo"
    assert files.stat(f"{root}/d/a").size == 8
    file = files.open(f"{root}/b", writable=True)
    view = file.map(5000, writable=True)
    view.view[4999:] = b"!"
    file.close()
    assert text(files, f"{root}/b")[-2:] == b"b!"
    files.rename(f"{root}/b", f"{root}/d/a")
    assert files.list(root) == ["d"]
    assert text(files, f"{root}/d/a")[-2:] == b"b!"
    files.makedirs(f"{root}/n/m")
    files.open(f"{root}/n/m/new", writable=True, create=True).close()
    files.remove(f"{root}/d/a")
    files.rmdir(f"{root}/d")
    assert (files.list(root), files.list(f"{root}/n/m")) == (["n"], ["new"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]
    assert (tmp_path / "d/a").read_bytes() == b"abcdef"
    assert (tmp_path / "b").read_bytes() == b"b" * 5000


def test_a_renamed_file_outlives_its_handle_and_a_removed_name_may_be_made_again(tmp_path):
    files, root = below(tmp_path)
    file = files.open(f"{root}/b")
    files.rename(f"{root}/b", f"{root}/c")
    file.close()
    assert text(files, f"{root}/c") == b"b" * 5000
    files.remove(f"{root}/c")
    assert not files.exists(f"{root}/c")
    files.open(f"{root}/b", writable=True, create=True).close()
    assert text(files, f"{root}/b") == b""
    files.rmdir(f"{root}/d") if not files.list(f"{root}/d") else files.remove(f"{root}/d/a")
    assert files.list(f"{root}/d") == []


def test_large_files_take_no_memory_until_they_are_written(tmp_path):
    files, root = below(tmp_path)
    (tmp_path / "large").touch()
    with open(tmp_path / "large", "r+b") as large:
        large.truncate(1 << 30)
    file = files.open(f"{root}/large", writable=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = file.map(1 << 30, writable=True).view
    view[1 << 29] = 1
    made = files.open(f"{root}/made", writable=True, create=True)
    made.truncate(1 << 30)
    made.pwrite(b"x", (1 << 30) - 1)
    assert file.pread(2, 1 << 29) == b"\1\0"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000, "KiB"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_mapping_to_read_takes_no_copy_and_a_changed_file_shows_its_changes(tmp_path):
    files, root = below(tmp_path)
    before = descriptors()
    for _ in range(3):
        file = files.open(f"{root}/b", writable=True)
        mapping = file.map(5000, writable=False)
        assert (bytes(mapping.view), mapping.view.readonly) == (b"b" * 5000, True)
        mapping.close()
        file.close()
        assert descriptors() == before
    file = files.open(f"{root}/b", writable=True)
    file.pwrite(b"!", 4999)
    mapping = file.map(5000, writable=False)
    assert bytes(mapping.view[-2:]) == b"b!"
    mapping.close()
    file.close()


def test_descriptors_of_changed_files_go_with_the_overlay(tmp_path):
    before = descriptors()
    files, root = below(tmp_path)
    file = files.open(f"{root}/b", writable=True)
    file.pwrite(b"!", 0)
    file.close()
    assert descriptors() > before
    del file, files
    assert descriptors() == before


def test_a_length_that_is_changed_takes_no_memory_and_what_was_cut_off_is_zero(tmp_path):
    files, root = below(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open(tmp_path / "large", "wb") as large:
        large.truncate(1 << 30)
        large.write(b"head")
    for size in ((1 << 30) - 5, (1 << 30) + 7):
        file = files.open(f"{root}/large", writable=True)
        file.truncate(size)
        assert (file.size(), files.stat(f"{root}/large").size) == (size, size)
        file.close()
        assert (text(files, f"{root}/large")[:6], resource.getrusage(
            resource.RUSAGE_SELF).ru_maxrss - before < 20_000) == (b"head\0\0", True)
    file = files.open(f"{root}/b", writable=True)
    file.truncate(3000)
    file.truncate(5000)
    assert file.pread(5, 2998) == b"bb\0\0\0"
    assert (file.pread(9, 4998), file.pread(9, 6000)) == (b"\0\0", b"")
    assert file.data_ranges(0, 5000) == [(0, 3000)]
    assert file.data_ranges(3000, 5000) == []
    mapping = file.map(5000, writable=False)
    assert bytes(mapping.view[2999:3001]) == b"b\0"
    mapping.close()
    file.pwrite(b"!", 3001)
    assert file.pread(5, 2998) == b"bb\0!\0"
    assert (tmp_path / "b").read_bytes() == b"b" * 5000
