"""The timer checkpoint that a slave of RocketMQ may copy (request 60).

A slave copies the time up to which timers are delivered, and does not deliver these again after its promotion. The
delivered messages reach it over the HA port, in any order with the checkpoint. So a slave sees a checkpoint only when
it has the log as it was after the checkpoint was written (SM4): else a master that dies between the two would take the
timers with it. A slave that is not connected to the HA port sees none, because it is not known what it has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, final

from tailrace.formats.timercheckpoint import TimerCheckpointFields

__all__ = ["TimerPositions"]

_KEPT_MAX: Final = 1_000


@final
class TimerPositions:
    """The checkpoints for slaves, with the end of the log after each. Used on the event loop."""

    def __init__(self, written: Callable[[], TimerCheckpointFields | None], end: Callable[[], int]) -> None:
        """``written`` returns the checkpoint for slaves, None without one; ``end`` the end of the log."""
        self._written, self._end = written, end
        self._kept: list[tuple[int, TimerCheckpointFields]] = []
        self._last: TimerCheckpointFields | None = None

    def note(self) -> None:
        """Keep the checkpoint for slaves if it is a new one."""
        fields = self._written()
        if fields is None or fields == self._last:
            return
        self._last = fields
        if len(self._kept) >= _KEPT_MAX:
            self._kept.pop()  # the newer one stands for it
        self._kept.append((self._end(), fields))

    def shown(self, acknowledged: int | None, least: int | None) -> TimerCheckpointFields | None:
        """Return the newest checkpoint whose log a slave has; None without one.

        ``acknowledged`` is the position up to which the slave has the log, None if that is not known. ``least`` is the
        position up to which all connected slaves have it; of the checkpoints up to there only the newest one is kept.
        """
        self.note()
        found = None
        if acknowledged is not None and (place := self._after(acknowledged)):
            found = self._kept[place - 1][1]
        if least is not None and (place := self._after(least)) > 1:
            del self._kept[: place - 1]
        return found

    def _after(self, position: int) -> int:
        """Return the number of checkpoints whose log ends at or before a position."""
        return bisect_right(self._kept, position, key=lambda one: one[0])
