"""Decide which units of a batch ConsumeQueue are right, and correct damaged ones.

Readers find a message by bisection over the queue offsets in the units. A unit with damaged bits must not send a
reader to another part of the queue, so no unit is trusted by itself. Each unit starts at the queue offset where
the unit before it ends. Units that fit in this way support each other. If some do not fit, the order with the
most units counts as right (``fitting``). Positions in the log do not count, because a damaged position
says nothing about the queue offset.

A unit that does not fit gets the queue offsets that its neighbours leave free. The reader then reads its record,
returns it if it is the message of this offset, and reports damage otherwise. So no unit hides the messages of
another one.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np

from tailrace.formats.consumequeue import BATCH_CQ_UNIT, INVALID_POS, PRE_BLANK_SIZE, BatchCqUnit
from tailrace.formats.inner_batch import INNER_NUM_MAX, MIN_ITEM_LENGTH

__all__ = ["Units", "fitting", "follow_each_other", "is_batch_unit", "is_tidy"]

_OFFSET_LIMIT: Final = 1 << 40
"""A unit with a larger queue offset is damaged."""
_unpack: Final = BATCH_CQ_UNIT.struct.iter_unpack
Units = np.ndarray[Any, np.dtype[np.void]]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


def is_batch_unit(unit: BatchCqUnit | None) -> bool:
    """Return True if these fields can be a unit."""
    return (
        unit is not None and unit.size > 0 and unit.phy_offset >= 0
        and 0 <= unit.msg_base_offset < _OFFSET_LIMIT and unit.batch_size > 0
        and unit.compacted_offset == INVALID_POS and not unit.reserved)


def follow_each_other(data: bytes) -> bool:
    """Return the result of ``is_tidy`` for the bytes of whole units. It is faster for a few units."""
    end = -1
    for _, size, _, _, base, count, compacted, reserved in _unpack(data):
        if size <= 0 or count <= 0 or compacted != INVALID_POS or reserved or not (
            base == end if end >= 0 else 0 <= base < _OFFSET_LIMIT
        ):
            return False
        end = base + count
    return True


def is_tidy(units: Units) -> bool:
    """Return True if every unit is valid and starts where the one before it ends."""
    return bool(_valid(units).all()) and bool(_linked(units).all())


def _valid(units: Units) -> _Flags:
    good = (units["size"] > 0) & (units["phy_offset"] >= 0) & (units["batch_size"] > 0)
    good &= (units["msg_base_offset"] >= 0) & (units["msg_base_offset"] < _OFFSET_LIMIT)
    found: _Flags = good & (units["compacted_offset"] == INVALID_POS) & (units["reserved"] == 0)
    return found


def _linked(units: Units) -> _Flags:
    """Return a flag for each unit except the last: True if the next unit starts where this one ends."""
    ends = units["msg_base_offset"].astype(np.int64) + units["batch_size"]
    found: _Flags = ends[:-1] == units["msg_base_offset"][1:]
    return found


def fitting(units: Units) -> tuple[_Numbers, Units, _Flags]:
    """Correct some units that follow each other.

    Return three arrays: the numbers of the units that stand for messages, these units corrected, and whether
    each fitted as stored. Their queue offsets grow, and none overlaps the next one. A unit that does not fit gets
    the queue offsets between its neighbours; without a free one it is left out. Zeros after the
    last unit are ignored.
    """
    units = units.astype(units.dtype.newbyteorder("="))
    numbers = np.arange(len(units))
    valid = _valid(units)
    links = _linked(units) & valid[:-1] & valid[1:]
    if valid.all() and links.all():
        return numbers, units, valid
    fits = valid & np.isin(ids := np.concatenate(([0], np.cumsum(~links))), _best_order(units, ids, valid))
    used = np.flatnonzero(fits | units.view(np.uint8).reshape(len(units), -1).any(axis=1))
    count = int(used[-1]) + 1 if len(used) else 0
    numbers, units, fits = numbers[:count], units[:count], fits[:count]
    _fill(units, np.flatnonzero(fits))
    kept = units["batch_size"] > 0
    return numbers[kept], units[kept], fits[kept]


def _best_order(units: Units, ids: _Numbers, valid: _Flags) -> _Numbers:
    """Return the ids of the runs that fit each other and together have the most units.

    A run is a sequence of linked units. A run fits after another one if its queue offsets are greater and the log
    has room, between the outermost positions of both runs, for the lost messages between them. A unit without a
    message stands for any number of messages.
    """
    runs, firsts, counts = np.unique(ids, return_index=True, return_counts=True)
    usable = valid[firsts]
    runs, firsts, counts = runs[usable], firsts[usable], counts[usable]
    lasts = firsts + counts - 1
    bases, places = units["msg_base_offset"].astype(np.int64), units["phy_offset"].astype(np.int64)
    ends, blank = bases + units["batch_size"], units["size"][firsts] == PRE_BLANK_SIZE
    nearest, farthest = np.minimum(places[firsts], places[lasts]), np.maximum(places[firsts], places[lasts])
    best, before = np.zeros(len(runs), np.int64), np.full(len(runs), -1)
    for at in range(len(runs)):
        base, room = bases[firsts[at]], np.maximum(farthest[at] - nearest[:at], 0)
        fit = (bases[lasts[:at]] < base) & (blank[at] | (base - ends[lasts[:at]] <= room // MIN_ITEM_LENGTH))
        if fit.any():
            scores = np.where(fit, best[:at], -1)
            before[at] = at - 1 - int(np.argmax(scores[::-1]))  # the nearest one of several with the best score
            best[at] = scores[before[at]]
        best[at] += counts[at]
    chosen, at = [], int(np.argmax(best)) if len(best) else -1
    while at >= 0:
        chosen.append(int(runs[at]))
        at = int(before[at])
    return np.array(chosen, dtype=np.int64)


def _fill(units: Units, good: _Numbers) -> None:
    """Give each unit between ``good`` units the queue offsets that are free there, without overlaps."""
    bases, counts = units["msg_base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
    # If a unit has a gap on one side and an overlap of the same length on the other, only its offset is wrong.
    ends = bases + counts
    moved = np.flatnonzero((bases[2:] - ends[:-2] == counts[1:-1]) & (bases[1:-1] != ends[:-2])) + 1
    bases[moved] = ends[moved - 1]
    for left, right in itertools.pairwise([-1, *good.tolist(), len(units)]):
        left_end = int(bases[left] + counts[left]) if left >= 0 else 0
        high = int(bases[right]) if right < len(units) else _OFFSET_LIMIT
        bad = range(left + 1, right)
        if bad and left >= 0 and left_end >= high:
            left_end = max(int(bases[left]) + 1, high - len(bad))  # the count of the good unit on the left is too high
        if bad and left < 0:  # the first units have no left neighbour: count back from the right one
            left_end = max(high - sum(_own(int(counts[at])) for at in bad), 0)
        for at in bad:
            low = int(bases[at]) if left_end <= bases[at] < high - (right - 1 - at) else left_end
            room = high - low - (right - 1 - at)
            is_last = at == right - 1 and right < len(units)
            bases[at], counts[at] = low, max(min(room if is_last else _own(int(counts[at])), room, INNER_NUM_MAX), 0)
            left_end = low + int(counts[at])
    kept = np.flatnonzero(counts > 0)
    counts[kept[:-1]] = np.minimum(counts[kept[:-1]], bases[kept[1:]] - bases[kept[:-1]])
    units["msg_base_offset"], units["batch_size"] = bases, counts


def _own(count: int) -> int:
    """Return the number of messages that a unit says, or 1 if that is impossible."""
    return count if count > 0 else 1
