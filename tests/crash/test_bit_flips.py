"""Bits that flip, in records and in any file: nothing wrong is served, nothing else is lost.

A seeded part; ALL=1 runs every bit, as tools/fault_matrix.py does, which prints the table of what
cannot be detected.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import pathlib
import random

import pytest
from long_runs import LONG, some

_spec = importlib.util.spec_from_file_location("faults", pathlib.Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)

SEED = int(os.environ.get("SEED", "1"))
ALL = bool(os.environ.get("ALL"))
COUNT = 110
pytestmark = [pytest.mark.crash, pytest.mark.slow]


def cases_of(source, count):
    """All, or of every field a few bits after every kind of stop."""
    cases = faults.all_flips(source, 0, COUNT)
    if ALL:
        return cases
    rng = random.Random(SEED)
    rng.shuffle(cases)
    taken = collections.Counter()
    found = []
    for number, bit, mode in cases:
        group = source.records[number].field(bit // 8), mode, number < COUNT - 64
        if taken[group] < count:
            taken[group] += 1
            found.append((number, bit, mode))
    return found


@pytest.mark.parametrize(
    ("config", "steps", "first"), [(faults.PLAIN, False, 0), (faults.CHECKED, False, 1), (faults.PLAIN, True, 2)],
    ids=["plain", "prop-crc", "store-times-step-back"])
def test_a_flipped_bit_of_a_record_costs_that_record_at_most(config, steps, first):
    """A run that is not long has each case with one of the three kinds of records."""
    source = faults.Source(SEED, COUNT, config, steps=steps)
    for case in some(sorted(cases_of(source, 2 if LONG else 1)), 3, first):
        try:
            field, what = faults.flip_record(source, *case)
        except Exception as error:
            raise AssertionError(f"SEED={SEED} {case}: {error}") from error
        if faults.must_be_found(field, case[2], config, case[0], COUNT):
            assert what == "lost", f"SEED={SEED} {case}: {field} is {what}"


def test_what_cannot_be_detected_is_known():
    """Without a checksum over the record its other fields are served as they are."""
    source = faults.Source(SEED, COUNT, faults.PLAIN)
    record = source.records[20]
    for field, (low, _) in faults.HEAD.items():
        if field == "system flag":
            continue  # some of its bits change what the lengths add up to
        _, what = faults.flip_record(source, 20, 8 * low + 7, "clean")
        known = field in faults.NEVER | faults.PLACE
        assert what == ("lost" if known else "served"), field
    assert record.field(record.size - 1) == "properties"


def test_a_flipped_bit_anywhere_costs_one_message_at_most():
    source = faults.Source(SEED, 120, faults.CHECKED)
    outcomes = collections.Counter()
    for number in range(10_000 if ALL else 300 if LONG else 40):
        seed = SEED * 1_000_003 + number
        try:
            outcomes[faults.random_flip(source, seed)] += 1
        except Exception as error:
            raise AssertionError(f"random_flip seed={seed}: {error}") from error
    assert outcomes["nothing lost"] > outcomes["lost one"] > 0


def test_a_length_that_rotted_leads_to_no_record_behind_the_next():
    source = faults.Source(1, 115, faults.CHECKED)
    number = next(n for n, record in enumerate(source.records[:-1])
                  if source.records[n + 1].size == 256 and not record.size & 256)
    assert faults.flip_record(source, number, 16, "bare") == ("size", "lost")


def test_a_queue_offset_that_rotted_to_0_does_not_begin_the_queue_anew():
    """Even when the next message of the queue is in another segment."""
    source = faults.Source(3, 115, faults.PLAIN)
    record = source.records[29]
    assert record.place == ("T0", 1, 8)
    assert not [r for r in source.records[30:] if r.place[:2] == ("T0", 1) and r.at < faults.SEGMENT]
    assert faults.flip_record(source, 29, 8 * 27 + 3, "bare") == ("queue offset", "lost")
