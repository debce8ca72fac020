"""A look-up finds the earlier entries while new ones are put."""

from __future__ import annotations

import numpy as np

from tailrace.formats.indexfile import INDEX_HEADER, index_file_size
from tailrace.kernels import hashes, index_entries
from tailrace.kernels.shared import constants as C

ENTRIES = 40
WORK = np.empty(index_entries.WORK, dtype=np.int64)


def rows_of(keys):
    data, rows = b"T", np.zeros((len(keys), C.COLUMNS), dtype=np.int64)
    rows[:, C.TOPIC_LEN] = 1
    rows[:, [C.TAGS_POS, C.UNIQ_POS]] = -1
    for number, key in enumerate(keys):
        rows[number, C.PHY] = 100 * (number + 1)
        rows[number, C.STORE_TIMESTAMP] = 1_700_000_000_000
        rows[number, C.KEYS_POS], rows[number, C.KEYS_LEN] = len(data), len(key)
        data += key
    return data, rows


def test_a_slot_may_be_ahead_of_the_header():
    """As a reader meets it between an entry and the header: one slot, so every key has its chain."""
    file = memoryview(bytearray(index_file_size(1, ENTRIES)))
    data, rows = rows_of([b"k%d" % n for n in range(12)])
    key_hashes, ends = np.empty(12 * 16, dtype=np.int32), np.empty(12, dtype=np.int64)
    assert index_entries.hash_keys(data, rows, 0, key_hashes, 0, ends) == (12, 12)
    assert index_entries.put_keys(file, 1, ENTRIES, rows, ends[:8], key_hashes, 0, WORK) == 8
    header = bytes(file[: INDEX_HEADER.size])
    assert index_entries.put_keys(file, 1, ENTRIES, rows, ends, key_hashes, 8, WORK) == 12
    file[: INDEX_HEADER.size] = header
    found = np.zeros(4, dtype=np.int64)
    for number in range(12):
        wanted = hashes.index_hash(b"T", b"k%d" % number)
        assert index_entries.search(file, 1, ENTRIES, wanted, 0, 1 << 60, found) == 1
        assert found[0] == 100 * (number + 1)
