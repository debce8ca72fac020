"""The timer checkpoint that a slave of RocketMQ may copy (request 60).

A slave copies the time up to which timers are delivered, and does not deliver these again after its promotion. The
delivered messages reach it over the HA port, in any order with the checkpoint. So a checkpoint is shown only when
every connected slave has the log as it was after the checkpoint was written (SM4): else a master that dies between
the two would take the timers with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from tailrace.formats.timercheckpoint import TimerCheckpointFields

__all__ = ["TimerPositions"]

_KEPT_MAX: Final = 1_000


@final
class TimerPositions:
    """The checkpoints that were written, with the end of the log after each. Used on the event loop."""

    def __init__(self, written: Callable[[], TimerCheckpointFields | None], end: Callable[[], int]) -> None:
        """``written`` returns the checkpoint on the disk, None without one; ``end`` the end of the log."""
        self._written, self._end = written, end
        self._kept: deque[tuple[int, TimerCheckpointFields]] = deque()
        self._last: TimerCheckpointFields | None = None
        self._shown: TimerCheckpointFields | None = None
        self._shown_end = 0

    def note(self) -> None:
        """Keep the checkpoint on the disk if it is a new one."""
        fields = self._written()
        if fields is None or fields is self._last:
            return
        self._last = fields
        if len(self._kept) >= _KEPT_MAX:
            self._kept.pop()  # the newer one stands for it
        self._kept.append((self._end(), fields))

    def shown(self, acknowledged: int | None) -> TimerCheckpointFields | None:
        """Return the newest checkpoint whose log all slaves have; None without one.

        ``acknowledged`` is the position up to which all connected slaves have the log, None without a slave. It goes
        back when another slave connects, which then must not see what was shown to those before.
        """
        self.note()
        while acknowledged is not None and self._kept and self._kept[0][0] <= acknowledged:
            self._shown_end, self._shown = self._kept.popleft()
        return self._shown if acknowledged is None or acknowledged >= self._shown_end else None
