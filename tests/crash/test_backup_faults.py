"""A backup or restore that stops at any operation: the backup before stays whole, the next run completes."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path

import pytest
from read_there import read_there

from tailrace.config import StoreConfig
from tailrace.doctor.backup import MANIFEST, back_up, read_manifest, restore, verify_backup
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing import FaultyFileSystem
from tailrace.testing.faulty_filesystem import Fault

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=32, max_index_num=128,
    commit_log_allocate_step=4096)


def fill(path, numbers):
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for number in numbers:
            store.put(Message(topic="T", body=b"%04d" % number * 100, keys=[f"k{number}"]))


def bodies(path):
    with MessageStore.open(path, parts=StoreParts(services=False)) as store:
        return [int(message.body[:4]) for message in read_there(store, "T")]


def faults(count):
    """File systems that stop at one operation after the other, as a kill does, until one has no fault."""
    for number in itertools.count():
        file_system = FaultyFileSystem.failing(OsFileSystem(), Fault(number, errno.EIO, for_good=True))
        yield number, file_system
        if file_system.operations <= number:
            assert number > count
            return


def test_a_backup_that_stops_anywhere_leaves_the_one_before_and_the_next_completes(tmp_path):
    fill(tmp_path / "store", range(60))
    back_up(str(tmp_path / "store"), str(tmp_path / "first"))
    fill(tmp_path / "store", range(60, 100))
    before = read_manifest(str(tmp_path / "first"))
    for number, file_system in faults(15):
        target = tmp_path / f"b{number}"
        shutil.copytree(tmp_path / "first", target)
        try:
            back_up(str(tmp_path / "store"), str(target), file_system=file_system)
        except (OSError, StoreError):
            pass
        after = verify_backup(str(target))
        assert after == before or after.log_end > before.log_end
        if number % 10 == 0:
            back_up(str(tmp_path / "store"), str(target))
            assert {entry.name for entry in verify_backup(str(target)).files} == {
                f"data/{path.name}" for path in (target / "data").iterdir()}
            restore(str(target), str(tmp_path / "r"))
            assert bodies(tmp_path / "r") == [*range(100)]
            shutil.rmtree(tmp_path / "r")
        shutil.rmtree(target)


def test_a_restore_that_stops_anywhere_leaves_no_store_or_a_whole_one(tmp_path):
    fill(tmp_path / "store", range(60))
    back_up(str(tmp_path / "store"), str(tmp_path / "backup"))
    for _, file_system in faults(40):
        try:
            restore(str(tmp_path / "backup"), str(tmp_path / "r"), file_system=file_system)
        except (OSError, StoreError):
            pass
        if not (tmp_path / "r").exists():
            restore(str(tmp_path / "backup"), str(tmp_path / "r"))
        assert bodies(tmp_path / "r") == [*range(60)]
        assert not (tmp_path / "r.restoring").exists()
        shutil.rmtree(tmp_path / "r")


def test_full_files_are_copied_once_and_expired_ones_go(tmp_path):
    fill(tmp_path / "store", range(100))
    first = back_up(str(tmp_path / "store"), str(tmp_path / "b"))
    again = back_up(str(tmp_path / "store"), str(tmp_path / "b"))
    assert first["copiedBytes"] > 3 * 16384
    assert again["copiedBytes"] <= 16384
    oldest = min((tmp_path / "store" / "commitlog").iterdir())
    oldest.unlink()
    assert back_up(str(tmp_path / "store"), str(tmp_path / "b"))["removedFiles"] == 1
    restore(str(tmp_path / "b"), str(tmp_path / "r"))
    assert bodies(tmp_path / "r") == bodies(tmp_path / "store")


@pytest.mark.parametrize("how", ["changed later", "another directory"])
def test_a_full_file_that_has_changed_behind_its_first_bytes_is_copied_again(tmp_path, how):
    """As after a seal of damage, or for a copy of the store in which something else was sealed."""
    store, other, target = (str(tmp_path / name) for name in ("store", "other", "b"))
    fill(tmp_path / "store", range(100))
    back_up(store, target)
    changed = store
    if how == "another directory":
        shutil.copytree(store, other)
        changed = other
    first = min(Path(changed, "commitlog").iterdir())
    kept = first.stat().st_mtime
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    os.utime(first, (kept, kept) if how == "another directory" else None)
    assert back_up(changed, target)["copiedFiles"] >= 1
    manifest = read_manifest(target)
    entry = next(one for one in manifest.files if one.path == f"commitlog/{first.name}")
    assert Path(target, entry.name).read_bytes() == bytes(data)[: entry.length]


def test_damage_another_store_and_places_that_are_taken_are_refused(tmp_path):
    fill(tmp_path / "store", range(100))
    fill(tmp_path / "other", range(500, 700))
    store, target = str(tmp_path / "store"), str(tmp_path / "b")
    with pytest.raises(StoreError, match="it does not exist"):
        back_up(str(tmp_path / "gone"), target)
    assert not (tmp_path / "b").exists()
    (tmp_path / "alias").symlink_to(tmp_path / "store")
    for place in ("store/b", "store/commitlog/b", "alias/b", "b/../store/b"):
        with pytest.raises(StoreError, match="is inside the store"):
            back_up(store, str(tmp_path / place))
    assert not (tmp_path / "store" / "b").exists()
    for place in (store, str(tmp_path / "other"), str(tmp_path / "alias")):
        before = sorted(Path(place).iterdir())
        with pytest.raises(StoreError, match="is a store directory"):
            back_up(store, place)
        assert sorted(Path(place).iterdir()) == before
    with pytest.raises(StoreError, match="is not a backup"):
        restore(str(tmp_path), str(tmp_path / "r"))
    back_up(store, target)
    with pytest.raises(StoreError, match="a backup directory is for one store"):
        back_up(str(tmp_path / "other"), target)
    fill(tmp_path / "young", range(1))
    with pytest.raises(StoreError, match="only up to"):
        back_up(str(tmp_path / "young"), target)
    with MessageStore.open(tmp_path / "empty", config=CONFIG, parts=StoreParts(services=False)):
        pass  # as after the loss of a disk, when the broker was started on an empty directory
    with pytest.raises(StoreError, match="only up to 0"):
        back_up(str(tmp_path / "empty"), target)
    back_up(str(tmp_path / "young"), str(tmp_path / "y"))
    with pytest.raises(StoreError, match="a backup directory is for one store"):
        back_up(str(tmp_path / "other"), str(tmp_path / "y"))  # even if the backup has a part of its first file
    assert verify_backup(target).log_end > 0
    outside = read_manifest(target)
    (tmp_path / "y" / MANIFEST).write_bytes(
        outside._replace(files=(outside.files[0]._replace(path="../outside"),)).encode())
    with pytest.raises(CorruptionError, match="is not in a store"):
        restore(str(tmp_path / "y"), str(tmp_path / "r"))
    with pytest.raises(StoreError, match="is not empty"):
        restore(target, store)
    held = OsFileSystem().lock(f"{target}/lock")
    with pytest.raises(StoreError, match="another process makes a backup"):
        back_up(store, target)
    held.release()
    file = min((tmp_path / "b" / "data").glob("commitlog*"))
    good = file.read_bytes()
    for damage in (good[:-1], good[:-1] + bytes([good[-1] ^ 1]), good + b"\0", b""):
        file.write_bytes(damage)
        with pytest.raises(CorruptionError, match="other bytes than were copied"):
            restore(target, str(tmp_path / "r"))
        assert not (tmp_path / "r").exists()
    file.unlink()
    with pytest.raises(CorruptionError, match="is missing"):
        verify_backup(target)
    text = (tmp_path / "b" / MANIFEST).read_bytes()
    for odd in (b"", b"[]", b"{}", text.replace(b'"logStart": 0', b'"logStart": 1')):
        (tmp_path / "b" / MANIFEST).write_bytes(odd)
        with pytest.raises(CorruptionError, match="the manifest of the backup is damaged"):
            verify_backup(target)
