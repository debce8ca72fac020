"""Which timers of a slot went in bulk: eight bytes of a hash and a position for each, no objects."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from tailrace.kernels import timer_lists, timer_records
from tailrace.timer.properties import Identity

__all__ = ["NOBODY", "PutBefore"]

NOBODY: Final = -1
_SMALLEST: Final = 256


def _swap(value: Any) -> Any:
    """What stands for a position once its timer was put back, and the position from that."""
    return -value - 2


@final
class PutBefore:
    """Position of the timer message by hash of identity, and whether it is back in the log.

    Different timers may have the same hash: whoever finds another position reads the record there.
    """

    __slots__ = ("_table", "_used")

    def __init__(self) -> None:
        self._table: Any = None
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def waits(self, hashes: Any, positions: Any) -> None:
        """Timers, none of which has a hash that is known, will be put back."""
        if self._table is None or 2 * (self._used + len(hashes)) > len(self._table):
            self._grow(2 * (self._used + len(hashes)))
        self._used = timer_lists.add(self._table, hashes, positions, self._used)

    def went(self, hashes: Any, positions: Any) -> None:
        """Timers that were noted are back in the log."""
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

    def are_free(self, hashes: Any, positions: Any) -> Any:
        """Which timers no other one has the hash of, and have not gone: truth values."""
        if self._table is None:
            return np.ones(len(hashes), bool)
        found = np.empty(len(hashes), np.int64)
        timer_lists.find(self._table, hashes, found)
        return (found == NOBODY) | (found == positions)

    def are_known(self, hashes: Any) -> Any:
        """Which hashes were noted: truth values."""
        if self._table is None:
            return np.zeros(len(hashes), bool)
        found = np.empty(len(hashes), np.int64)
        timer_lists.find(self._table, hashes, found)
        return found != NOBODY

    def other(self, identity: Identity, position: int) -> int:
        """Position of a timer message that may be the same timer as the one at ``position``.

        Its own one when that was put back already, ``NOBODY`` when there is none.
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
