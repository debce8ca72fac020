"""Keys of records over several index files, and a file that cannot be made between two keys of one."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace import StoreConfig
from tailrace.errors import DiskFullError
from tailrace.formats.indexfile import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT
from tailrace.kernels import hashes
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.index_service import IndexService
from tailrace.store.record_batch import RecordBatch
from tailrace.testing import CrashFileSystem, SimClock

SLOTS, ENTRIES, KEYS = 4, 9, 3


def batch_of(first, count):
    """Records of KEYS keys each."""
    data, rows = b"T", np.zeros((count, C.COLUMNS), dtype=np.int64)
    rows[:, C.TOPIC_LEN] = 1
    rows[:, [C.TAGS_POS, C.UNIQ_POS]] = -1
    for number in range(count):
        keys = b" ".join(b"k%d.%d" % (first + number, key) for key in range(KEYS))
        rows[number, C.PHY] = 100 * (first + number)
        rows[number, C.STORE_TIMESTAMP] = 1_700_000_000_000 + first + number
        rows[number, C.KEYS_POS], rows[number, C.KEYS_LEN] = len(data), len(keys)
        data += keys
    batch = RecordBatch()
    batch.add(data, rows)
    return batch


def entries(index):
    """(hash, position) of all entries, file after file."""
    found = []
    for file in index.files:
        count = INDEX_HEADER.unpack_from(file.read(0, INDEX_HEADER.size)).index_count
        start = INDEX_HEADER.size + SLOTS * INDEX_SLOT.size + INDEX_ENTRY.size
        view = INDEX_ENTRY.view(file.read(start, (count - 1) * INDEX_ENTRY.size))
        found += list(zip(view["key_hash"].tolist(), view["phy_offset"].tolist(), strict=True))
    return found


WANTED = [
    (hashes.index_hash(b"T", b"k%d.%d" % (number, key)), 100 * number)
    for number in range(12) for key in range(KEYS)]


@pytest.fixture(params=["in its file", "in memory"])
def index(request):
    made = IndexService(
        SimClock(), CrashFileSystem(), StoreConfig(max_hash_slot_num=SLOTS, max_index_num=ENTRIES),
        "/index")
    if request.param == "in memory":
        made.build()
    return made


def test_every_key_has_one_entry(index):
    for first, count in ((0, 1), (1, 0), (1, 7), (8, 4)):
        for _ in range(2):  # twice changes nothing
            index.put(batch_of(first, count))
    index.write_built()
    assert len(index.files) == -(-len(WANTED) // (ENTRIES - 1))
    assert entries(index) == WANTED


def test_an_unmapped_index_is_mapped_again_when_it_is_used():
    index = IndexService(
        SimClock(), CrashFileSystem(), StoreConfig(max_hash_slot_num=SLOTS, max_index_num=ENTRIES), "/index")
    index.put(batch_of(0, 8))
    last = index.files[-1]
    with last.select(0, 1, mapped=True):
        index.unmap()
        assert last._mapping is not None, "a lease uses it"
    index.unmap()
    assert all(file._mapping is None for file in index.files)
    index.put(batch_of(8, 4))
    assert entries(index) == WANTED


@pytest.mark.parametrize("file", [1, 2, 3])
def test_after_a_file_could_not_be_created_the_next_put_continues_at_that_key(index, monkeypatch, file):
    """What is done again may begin before that record, or with it."""
    create = IndexService._create

    def full(self, previous, timestamp_ms):
        if len(self.files) == file:
            raise DiskFullError("/index", "No space left on device")
        return create(self, previous, timestamp_ms)

    monkeypatch.setattr(IndexService, "_create", full)
    with pytest.raises(DiskFullError):
        index.put(batch_of(0, 12))
    monkeypatch.undo()
    done = index.end_phy_offset
    index.put(batch_of(done // 100, 12 - done // 100) if file == 2 else batch_of(0, 12))
    index.write_built()
    assert entries(index) == WANTED


def test_a_record_without_keys_makes_no_file(index):
    batch = batch_of(0, 1)
    data, rows = b"T", np.zeros((1, C.COLUMNS), dtype=np.int64)
    rows[:, [C.TAGS_POS, C.UNIQ_POS, C.KEYS_POS]] = -1
    rows[:, C.TOPIC_LEN] = 1
    batch.clear()
    batch.add(data, rows)
    index.put(batch)
    assert index.files == ()


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_rewind_leaves_the_header_of_the_records_that_are_left(left):
    index = IndexService(
        SimClock(), CrashFileSystem(), StoreConfig(max_hash_slot_num=SLOTS, max_index_num=20), "/index")
    index.put(batch_of(0, 4))
    index.rewind(100 * left, lambda phy_offset: 1_700_000_000_000 + phy_offset // 100)
    (file,) = index.files
    header = INDEX_HEADER.unpack_from(file.read(0, INDEX_HEADER.size))
    assert (header.begin_phy_offset, header.end_phy_offset) == (0, 100 * (left - 1))
    assert (header.begin_timestamp, header.end_timestamp) == (
        1_700_000_000_000, 1_700_000_000_000 + left - 1)
    assert header.index_count == left * KEYS + 1
    assert entries(index) == WANTED[: left * KEYS]


def test_keys_of_a_record_are_complete_after_two_failures_in_a_row(monkeypatch):
    """No room between two keys of a record, then a file that cannot be opened: the next put continues the record."""
    index = IndexService(
        SimClock(), CrashFileSystem(), StoreConfig(max_hash_slot_num=SLOTS, max_index_num=ENTRIES), "/index")
    create = IndexService._create

    def full(self, previous, timestamp_ms):
        if previous is not None:
            raise DiskFullError("/index", "No space left on device")
        return create(self, previous, timestamp_ms)

    monkeypatch.setattr(IndexService, "_create", full)
    with pytest.raises(DiskFullError):
        index.put(batch_of(0, 12))
    monkeypatch.undo()

    def short(self):
        raise OSError(24, "too many open files", self.path)

    monkeypatch.setattr(MappedFile, "__enter__", short)
    with pytest.raises(OSError, match="too many"):
        index.put(batch_of(0, 12))
    monkeypatch.undo()
    index.put(batch_of(0, 12))
    assert entries(index) == WANTED
