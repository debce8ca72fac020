"""Rows by queue: over several parts of the log, and when two queues share a hash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tailrace.kernels.shared import constants as C
from tailrace.store.record_batch import UNIT_COLUMNS, RecordBatch, rows_by_queue


def part(*records, phy=0):
    """Bytes and rows of (topic, queue id, kind of transaction), all with one queue hash."""
    data, rows = b"", np.zeros((len(records), C.COLUMNS), dtype=np.int64)
    for number, (topic, queue_id, kind) in enumerate(records):
        rows[number, C.PHY] = phy + number
        rows[number, C.TOPIC_POS], rows[number, C.TOPIC_LEN] = len(data), len(topic)
        rows[number, C.QUEUE_ID], rows[number, C.SYS_FLAG] = queue_id, kind
        rows[number, C.QUEUE_HASH] = 77
        data += topic
    return data, rows


def test_queues_with_the_same_hash_are_distinguished():
    data, rows = part((b"a", 0, 0), (b"b", 0, 0), (b"a", 1, 8), (b"a", 0, 4), (b"b", 0, 12), (b"a", 0, 0))
    found = {(topic, queue_id): chosen.tolist() for topic, queue_id, chosen in rows_by_queue(data, rows)}
    assert found == {("a", 0): [0, 5], ("b", 0): [1], ("a", 1): [2]}


def test_parts_are_sorted_together_and_memory_is_used_again():
    batch = RecordBatch()
    for _ in range(2):
        batch.add(*part((b"a", 0, 0), (b"b", 0, 0)))
        batch.add(*part(phy=2))
        batch.add(*part((b"c", 0, 4), (b"b", 0, 0), (b"c", 0, 0), (b"a", 0, 0), phy=2))
        assert len(batch) == 6
        rows, (order, bounds, queues) = batch.rows, batch.sorted()
        assert rows.shape == (6, UNIT_COLUMNS)
        assert rows[:, C.PHY].tolist() == list(range(6))
        assert queues == [(b"a", 0), (b"b", 0), (b"c", 0)]
        assert [order[a:b].tolist() for a, b in itertools.pairwise(bounds)] == [[0, 5], [1, 3], [4]]
        batch.clear()
    assert len(batch) == 0
    assert [len(part) for part in batch.sorted()] == [0, 1, 0]
    assert batch.sealed == []


@pytest.mark.parametrize("hashes", [1, 3, 1000])
def test_there_is_room_for_any_number_of_queues(hashes):
    """More than fit at first, with long names, and hashes that many of them share."""
    batch, wanted = RecordBatch(), {}
    for first in range(0, 600, 50):
        names = [(b"%05d" % (n * 7 % 200) * 11, n % 2, 0) for n in range(first, first + 50)]
        data, rows = part(*names, phy=first)
        rows[:, C.QUEUE_HASH] = [-hash(name) % hashes for name in names]
        batch.add(data, rows)
        for number, (topic, queue_id, _) in enumerate(names, first):
            wanted.setdefault((topic, queue_id), []).append(number)
    order, bounds, queues = batch.sorted()
    assert len(queues) == 200, "each of them three times"
    assert {
        queue: order[a:b].tolist()
        for queue, (a, b) in zip(queues, itertools.pairwise(bounds), strict=True)} == wanted
