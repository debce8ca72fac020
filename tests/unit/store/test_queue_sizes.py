"""The size of a queue: exact for its last messages, an estimate beyond, and bounded in what it reads."""

import pytest

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.queue_sizes import queue_size

PER_FILE = 300


class Units:
    """A queue in memory: (position, size) for each message, None for a hole, in files of 300."""

    first_offset = 0
    runs = ConsumeQueue.runs

    def __init__(self, units, gone=()):
        self._units, self._gone, self.max_offset, self.reads = units, gone, len(units), 0

    def units(self, offset, count):
        self.reads += 1
        if offset // PER_FILE in self._gone:
            return b""
        until = min(offset + count, self.max_offset, self.next_file(offset))
        return b"".join(
            PRE_BLANK if unit is None else CQ_UNIT.pack(*unit, 0) for unit in self._units[offset:until])

    def next_file(self, offset):
        return (offset // PER_FILE + 1) * PER_FILE


@pytest.mark.parametrize(("units", "low", "size", "exact"), [
    ([], 0, 0, True),
    ([(n * 100, 100) for n in range(10)], 0, 1_000, True),
    ([(n * 100, 100) for n in range(10)], 7, 300, True),
    ([(0, 100), None, (100, 50)], 0, 150, True),
    ([(0, 900)] * 3 + [(900, 100)], 0, 1_000, True),  # three messages of one record
    ([(n * 100, 100) for n in range(1_025)], 0, 102_500, False),
    ([(n * 100, 100 if n >= 1_000_000 - 1_024 else 1) for n in range(1_000_000)], 0, 100_000_000, False),
    ([None] * 5, 0, 0, True),
])
def test_the_size_is_that_of_the_records(units, low, size, exact):
    queue = Units(units)
    assert queue_size(queue, low) == (size, exact)
    assert queue.reads <= 1_024 // PER_FILE + 2


def test_files_that_are_gone_do_not_count():
    assert queue_size(Units([(n * 100, 100) for n in range(900)], gone={1}), 0).size_bytes == 60_000
