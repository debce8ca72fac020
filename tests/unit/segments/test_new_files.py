"""A new file is new: bytes that an earlier file of its name has are never taken for its own, and never deleted."""

from __future__ import annotations

import errno
import os

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import DiskFullError, OddFileError
from tailrace.node.store_opening import StoreParts
from tailrace.segments import MappedFile, OpenFiles
from tailrace.store.compaction.file_pair import FilePair, Sizes
from tailrace.testing import CrashFileSystem, SimClock

OLD = b"old life" * 512
SEGMENT = 16384


def with_left_over(path="/q/00000000000000000000"):
    files = CrashFileSystem()
    files.makedirs(path.rpartition("/")[0])
    files.open(path, writable=True, create=True).pwrite(OLD, 0)
    return files, path


def content(files, path):
    file = files.open(path)
    return file.pread(file.size(), 0)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_left_over_file_is_moved_aside(caplog, mapped):
    files, path = with_left_over()
    for number in (1, 2):
        made = MappedFile.create(files, path, 0, 4096, mapped=mapped)
        made.wrote_position = 4096
        assert made.read(0, 4096) == bytes(4096)
        made.close()
        assert content(files, f"{path}.left-1") == OLD
        assert files.exists(f"{path}.left-2") == (number == 2)
    assert "a left-over file is moved aside" in caplog.text


@pytest.mark.parametrize("fails", ["rename", "truncate", "sync_dir"])
def test_the_error_of_a_new_file_does_not_delete_an_older_one(fails):
    files, path = with_left_over()

    def fail(_number, name, _path):
        if name == fails:
            files.before = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    files.before = fail
    with pytest.raises(DiskFullError):
        MappedFile.create(files, path, 0, 4096, mapped=False)
    assert [content(files, f"/q/{name}") for name in files.list("/q")] == [OLD]


def test_a_directory_of_that_name_is_refused():
    files, path = with_left_over()
    files.makedirs("/q/d")
    with pytest.raises(OddFileError):
        MappedFile.create(files, "/q/d", 0, 4096, mapped=False)
    assert files.stat("/q/d").is_dir
    assert content(files, path) == OLD


def config():
    return StoreConfig(
        mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
        max_index_num=64, commit_log_allocate_step=4096)


@pytest.mark.parametrize("path", [f"/s/commitlog/{SEGMENT:020d}", "/s/consumequeue/t/0/00000000000000000400"])
def test_an_open_store_goes_on_beside_a_left_over_file(path, caplog):
    """For example the segment or queue file that a removal in another thread or program has left."""
    files = CrashFileSystem()
    store = MessageStore.open("/s", config=config(),
        parts=StoreParts(services=False, clock=SimClock(), file_system=files))
    store.put(Message(topic="t", body=b"0"))
    store.wait_dispatched()
    files.open(path, writable=True, create=True).pwrite(OLD, 0)
    for number in range(1, 40):
        store.put(Message(topic="t", body=b"%d" % number * 300))
    store.wait_dispatched()
    assert [int(m.body[: len(str(n))]) for n, m in enumerate(store.read("t"))] == list(range(40))
    store.close()
    assert content(files, f"{path}.left-1") == OLD
    caplog.clear()
    with MessageStore.open("/s", config=config(),
        parts=StoreParts(services=False, clock=SimClock(), file_system=files)) as store:
        assert store.max_offset_in_queue("t", 0) == 40
        assert store.recovery_report["cut"] == []
    assert f"{path}.left-1" in caplog.text, "a recovery names it"


def test_the_files_of_a_compaction_log_are_new():
    files, _ = with_left_over("/log/00000000000000000000")
    files.makedirs("/cq")

    def pair():
        return FilePair(files, "/log", "/cq", 0, Sizes(4096, 460), OpenFiles(16))

    def fail(_number, name, path):
        if name == "create" and path.startswith("/cq"):
            files.before = None
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    files.before = fail
    with pytest.raises(OSError, match="Input/output"):
        pair().create()
    assert files.list("/log") == ["00000000000000000000.left-1"]
    assert files.list("/cq") == []
    made = pair()
    made.create()
    assert content(files, made.log.path) == bytes(4096)
    assert content(files, "/log/00000000000000000000.left-1") == OLD
