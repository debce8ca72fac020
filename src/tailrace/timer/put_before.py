"""Timers of a slot that are delivered in bulk: a hash of eight bytes and a position for each, no objects."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from tailrace.kernels import timer_lists, timer_records
from tailrace.timer.arrays import Ints, Mask
from tailrace.timer.properties import Identity

__all__ = ["NOBODY", "PutBefore"]

NOBODY: Final = -1
_SMALLEST: Final = 256


def _swap(value: Any) -> Any:
    """Return the mark for the position of a delivered timer, or the position for such a mark."""
    return -value - 2


@final
class PutBefore:
    """Table from the hash of a timer's identity to the position of its message, with a mark if it is delivered.

    Different timers may have the same hash: a caller that finds another position reads the record there.
    """

    __slots__ = ("_table", "_used")

    def __init__(self) -> None:
        self._table: Ints | None = None
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def waits(self, hashes: Ints, positions: Ints) -> None:
        """Add timers that will be delivered in bulk. None of their hashes is in the table."""
        if self._table is None or 2 * (self._used + len(hashes)) > len(self._table):
            self._grow(2 * (self._used + len(hashes)))
        self._used = timer_lists.add(self._table, hashes, positions, self._used)

    def went(self, hashes: Ints, positions: Ints) -> None:
        """Mark timers of the table as delivered."""
        timer_lists.add(self._table, hashes, _swap(positions), self._used - len(hashes))

    def _grow(self, least: int) -> None:
        old, size = self._table, _SMALLEST
        while size < 2 * least:
            size *= 2
        self._table = np.zeros((size, 2), np.int64)
        if old is not None:
            kept = old[old[:, 0] != 0]
            timer_lists.add(
                self._table, np.ascontiguousarray(kept[:, 0]), np.ascontiguousarray(kept[:, 1]), 0)

    def are_free(self, hashes: Ints, positions: Ints) -> Mask:
        """Return True for each timer that is not delivered and whose hash no other timer has."""
        if self._table is None:
            return np.ones(len(hashes), bool)
        found = np.empty(len(hashes), np.int64)
        timer_lists.find(self._table, hashes, found)
        return (found == NOBODY) | (found == positions)

    def are_known(self, hashes: Ints) -> Mask:
        """Return True for each hash that is in the table."""
        if self._table is None:
            return np.zeros(len(hashes), bool)
        found = np.empty(len(hashes), np.int64)
        timer_lists.find(self._table, hashes, found)
        return found != NOBODY

    def other(self, identity: Identity, position: int) -> int:
        """Return the position of a timer message that may be the same timer as the one at ``position``.

        The result is ``position`` itself if that timer is delivered already, and -1 without such a message.
        """
        if self._table is None:
            return NOBODY
        found = np.empty(1, np.int64)
        timer_lists.find(self._table, np.array([timer_records.identity_hash(
            identity.real_topic.encode(), identity.unique_key.encode(), identity.out_ms)]), found)
        value = int(found[0])
        if value in {NOBODY, position}:
            return NOBODY
        return value if value >= 0 else int(_swap(value))
