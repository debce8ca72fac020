"""An index file that is built in memory is whole at every moment, and equal to one that is built directly."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.indexfile import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT, index_file_size
from tailrace.kernels import index_chains, index_entries
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store import index_builder
from tailrace.store.index_builder import IndexBuilder

SLOTS, ENTRIES, KEYS = 50, 401, 3
WORK = np.empty(index_entries.WORK, dtype=np.int64)


def rows_of(count, first=0):
    """Rows with two keys and a unique key each; where their keys end; the keys' hashes."""
    data, rows = b"Topic", np.zeros((count, C.COLUMNS), dtype=np.int64)
    rows[:, C.TOPIC_LEN] = 5
    rows[:, [C.TAGS_POS, C.DELAY_LEVEL]] = -1
    for number in range(count):
        unique, keys = b"U%d" % (first + number), b"a%d b%d" % (number % 7, first + number)
        rows[number, C.PHY] = 1000 * (first + number + 1)
        rows[number, C.STORE_TIMESTAMP] = 1_700_000_000_000 + 1500 * (first + number)
        for at, length, text in (
            (C.UNIQ_POS, C.UNIQ_LEN, unique), (C.KEYS_POS, C.KEYS_LEN, keys)
        ):
            rows[number, at], rows[number, length] = len(data), len(text)
            data += text
    key_hashes, ends = np.empty(count * 20, dtype=np.int32), np.empty(count, dtype=np.int64)
    assert index_entries.hash_keys(data, rows, 0, key_hashes, 0, ends) == (count, count * KEYS)
    return rows, ends, key_hashes


def new_file(path):
    file = MappedFile.create(
        OsFileSystem(), str(path), 0, index_file_size(SLOTS, ENTRIES), mapped=True, allocate_step=4096)
    file.write_at(INDEX_HEADER.pack(0, 0, 0, 0, 0, 1), 0)
    file.wrote_position = file.size
    return file


def is_whole(data):
    """Whether what a file says of itself is so: each slot names its newest entry."""
    count = INDEX_HEADER.unpack_from(data).index_count
    heads = np.empty(SLOTS, dtype=np.int32)
    start = INDEX_HEADER.size + SLOTS * INDEX_SLOT.size
    found, _ = index_chains.follow(data[start:], count, 1 << 62, heads)
    return found == count and data[INDEX_HEADER.size : start] == heads.astype(">i4").tobytes()


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr(index_builder, "_AT_ONCE", 10)
    monkeypatch.setattr(index_builder, "_PART", 64)


def test_a_file_that_is_built_in_memory_equals_one_written_entry_by_entry(tmp_path):
    one, other = new_file(tmp_path / "one"), new_file(tmp_path / "other")
    builder = IndexBuilder(SLOTS, ENTRIES)
    for first in (0, 40, 80):
        keys = rows_of(40, first)
        end = index_entries.put_keys(one.buffer, SLOTS, ENTRIES, *keys, 0, WORK)
        assert builder.put(other, *keys, 0, WORK) == end == 40 * KEYS
        before = (tmp_path / "other").read_bytes()
        assert is_whole(before), "also while entries are in memory or behind its count"
        if first == 40:
            builder.write()
            assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert INDEX_HEADER.unpack_from(before).index_count == 1 + 80 * KEYS
    builder.write()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    one.close()
    other.close()


def test_a_builder_continues_a_file_with_entries_and_starts_the_next_one_when_it_is_full(tmp_path):
    files = [new_file(tmp_path / name) for name in ("first", "second")]
    rows, ends, key_hashes = rows_of(150)
    done = index_entries.put_keys(files[0].buffer, SLOTS, ENTRIES, rows, ends[:30], key_hashes, 0, WORK)
    assert done == 30 * KEYS
    builder = IndexBuilder(SLOTS, ENTRIES)
    key = builder.put(files[0], rows, ends, key_hashes, done, WORK)
    assert key == ENTRIES - 1
    assert key % KEYS, "in the middle of a record's keys"
    builder.write()
    at = int(rows[key // KEYS, C.PHY])  # the next file continues after this record
    files[1].write_at(INDEX_HEADER.pack(0, 0, at, at, 0, 1), 0)
    assert builder.put(files[1], rows, ends, key_hashes, key, WORK) == 150 * KEYS
    builder.write()
    counts = []
    for name in ("first", "second"):
        whole = (tmp_path / name).read_bytes()
        assert is_whole(whole)
        counts.append(INDEX_HEADER.unpack_from(whole).index_count)
    assert counts == [ENTRIES, 2 + 150 * KEYS - ENTRIES]
    assert len(whole) == INDEX_HEADER.size + SLOTS * INDEX_SLOT.size + ENTRIES * INDEX_ENTRY.size
    for file in files:
        file.close()
