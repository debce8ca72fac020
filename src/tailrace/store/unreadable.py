"""Records that the disk cannot read, each of which must delay itself only.

A read of the log may fail for a moment, or for good. One error does not say which. So a record counts as
damaged only after several reads of it have failed over some time; until then its reader gets the error, keeps its
state and retries. A shortage of descriptors or memory says nothing about the record and is not counted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.shortage import is_shortage
from tailrace.logs import get_logger

__all__ = ["PATIENCE_MS", "TRIES", "UnreadableRecords"]

_log = get_logger(__name__)
TRIES: Final = 5
"""Number of reads of a record that must fail."""
PATIENCE_MS: Final = 10_000
"""Time from the first to the last of them: a path to a disk may be gone for some seconds."""
_MOST: Final = 1000
"""Number of records that are remembered. The oldest one is forgotten, and is then tried as if for the first time."""


@final
class UnreadableRecords:
    """Counts the reads that failed, by position. Any thread may call it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Number of failures and time of the first one in ns, by the position of the record."""
        self._given_up: OrderedDict[int, None] = OrderedDict()
        self.count = 0
        """Number of records that counted as damaged since the start."""

    def gives_up(self, phy_offset: int, error: OSError) -> bool:
        """Note that a read of the record at a position failed. Return True if the record counts as damaged now."""
        if phy_offset in self._given_up:
            return True
        if is_shortage(error):
            return False
        with self._lock:
            now = self._clock.monotonic_ns()
            failures, first = self._failures.pop(phy_offset, (0, now))
            failures += 1
            if failures < TRIES or now - first < PATIENCE_MS * 1_000_000:
                self._failures[phy_offset] = failures, first
                self._forget(self._failures)
                return False
            self.count += 1
            self._given_up[phy_offset] = None
            self._forget(self._given_up)
        events.A_RECORD_CANNOT_BE_READ.log(_log, phy_offset=phy_offset, tries=failures, cause=error)
        return True

    @staticmethod
    def _forget(table: OrderedDict[int, Any]) -> None:
        while len(table) > _MOST:
            table.popitem(last=False)
