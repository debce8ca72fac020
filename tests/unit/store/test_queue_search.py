"""Searches in a queue against a plain look at every unit, with holes, pre-blank and rotted units."""

import random

import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK
from tailrace.segments import MappedFile, MappedFileQueue
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.queue_search import (
    first_at,
    first_kept,
    first_message,
    first_stored,
    message_from,
    next_message,
)

PER_FILE = 8


class Units:
    """A queue in memory: a position of the log for each place, None without a message, "" without a file."""

    def __init__(self, places, first=0):
        self.places, self.first_offset = places, first
        self.max_offset = first + len(places)
        self.reads = 0

    runs = ConsumeQueue.runs

    def at(self, offset):
        return self.places[offset - self.first_offset]

    def units(self, offset, count):
        self.reads += 1
        until = min(offset + count, self.max_offset, (offset // PER_FILE + 1) * PER_FILE)
        data = b""
        for place in range(offset, until):
            if self.at(place) == "":
                break
            data += PRE_BLANK if self.at(place) is None else CQ_UNIT.pack(self.at(place), 100, 0)
        return data

    def next_file(self, offset):
        return min((offset // PER_FILE + 1) * PER_FILE, self.max_offset)

    def messages(self, low):
        """(offset, position) of each message from ``low`` on."""
        return [
            (place, self.at(place)) for place in range(max(low, self.first_offset), self.max_offset)
            if self.at(place) not in {None, ""}]


def made(seed):
    rng = random.Random(seed)
    position, places = 1000, []
    for _ in range(rng.randrange(1, 8)):
        kind = rng.choice(["messages", "messages", "blank", "mixed"])
        for _ in range(rng.choice([1, 3, PER_FILE, 30])):
            is_message = kind == "messages" or (kind == "mixed" and rng.random() < 0.5)
            places.append(position if is_message else None)
            position += 100
    first = rng.choice([0, 0, PER_FILE * 2])
    if rng.random() < 0.4:  # a file is missing; retention takes the first one
        gone = rng.choice([0, rng.randrange(len(places))]) // PER_FILE * PER_FILE
        places[gone : gone + PER_FILE] = [""] * len(places[gone : gone + PER_FILE])
    return Units(places, first), rng


@pytest.mark.parametrize("seed", range(300))
def test_the_first_message_at_a_position_or_time_is_found(seed):
    queue, rng = made(seed)
    low = rng.randrange(queue.first_offset, queue.max_offset + 1)
    messages = queue.messages(low)
    assert next_message(queue, low) == (messages[0][0] if messages else queue.max_offset)
    unit = message_from(queue, low)
    assert (unit.phy_offset if unit else None) == (messages[0][1] if messages else None)
    for wanted in (0, 5000, rng.randrange(1000, 12_000), 10**9):
        found = [place for place, position in messages if position >= wanted]
        assert first_at(queue, low, wanted) == (found[0] if found else queue.max_offset)
        unknown = {position for _, position in messages if rng.random() < 0.3}

        def time_of(unit, unknown=unknown):
            return None if unit.phy_offset in unknown else unit.phy_offset // 10

        # A message of an unknown time counts with those before or after it.
        known = [(place, position) for place, position in messages if position not in unknown]
        before = [place for place, position in known if position // 10 < wanted]
        after = [place for place, position in known if position // 10 >= wanted]
        place = first_stored(queue, low, wanted, time_of)
        assert (before[-1] if before else low - 1) < place <= (after[0] if after else queue.max_offset)
        assert place == queue.max_offset or place in dict(messages)


def test_a_rotted_position_hides_no_message_before_it():
    queue = Units([1000, 1100, -5, 1300, -7, 1500])
    assert first_kept(queue, 500) == 0
    assert first_kept(queue, 1100) == 1
    assert first_kept(queue, 1301) == 4, "the rotted unit before it may be of a message that is kept"
    queue = Units([10**15, *range(1000, 5000, 100)])  # an impossible position that is not negative
    assert first_kept(queue, 0) == 0


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_position_hides_no_message_that_is_kept(seed):
    queue, rng = made(seed)
    messages = queue.messages(queue.first_offset)
    if len(messages) < 8:
        return
    right = [position for _, position in messages]
    place = rng.randrange(3, len(messages) - 1)
    wrong = right[place] ^ 1 << rng.randrange(63)
    queue.places[messages[place][0] - queue.first_offset] = wrong
    for wanted in rng.sample(right[3:], 5 if len(right) > 8 else 1):
        found = first_at(queue, queue.first_offset, wanted)
        assert found <= next(at for (at, _), position in zip(messages, right, strict=True) if position >= wanted) or (
            right[place] == wanted), "later only if the damaged one was the first"


def test_a_search_reads_few_units():
    queue = Units(list(range(0, 10_000_000, 100)))
    assert first_at(queue, 0, 5_000_050) == 50_001
    assert queue.reads < 40
    queue = Units([0, *[None] * 50_000, 7_000_000])
    assert first_message(queue, 0, lambda unit: unit.phy_offset > 0) == 50_001


def of_files(max_offset, *paths):
    """Return the queue of a directory that is read without the lock, with eight units in a file."""
    queue = ConsumeQueue("T", 0, MappedFileQueue(OsFileSystem(), "", 160, mapped=False, files=[
        MappedFile(OsFileSystem(), str(path), int(path.name), 160, foreign=True) for path in paths]))
    queue.set_end(max_offset)
    return queue


def test_pre_blank_units_do_not_hide_messages_before_them(tmp_path):
    """They did from the Spark source and from ``retention``, which took each for an old message."""
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"".join([CQ_UNIT.pack(700, 100, 0), PRE_BLANK * 6, CQ_UNIT.pack(1500, 100, 0)]))
    queue = of_files(8, path)
    assert first_at(queue, 0, 700) == 0
    assert first_at(queue, 0, 701) == 7


def test_a_file_that_retention_took_is_stepped_over(tmp_path):
    gone = tmp_path / "00000000000000000000"
    path = tmp_path / "00000000000000000160"
    path.write_bytes(b"".join(CQ_UNIT.pack(1000 + n, 100, 0) for n in range(8)))
    queue = of_files(16, gone, path)
    assert first_kept(queue, 0) == 8
    assert first_at(queue, 0, 1003) == 11
    assert next_message(of_files(8, gone), 0) == 8
