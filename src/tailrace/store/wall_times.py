"""What the wall clock said at positions of the log whose store times are ahead of it.

Store times never step back (L4): checkpoints, the recovery of a Java broker and the delivery of timers rely on them. So
after the correction of a wall clock that was ahead, records have the last store time until the clock has reached it.
This module keeps marks (position, time of the wall clock) for that period, about one a second with writes, so that
look-ups by time find what was stored when, and ages are those of the wall clock.

Owns ``tailrace/wall-times.json``, a hint: without it look-ups by time in that period are answered with the first
record of a later store time, and nothing else changes. Invariants: positions and times grow along the marks. Only one
thread at a time may call ``step`` and ``write``; any thread may read.
"""

from __future__ import annotations

import bisect
import itertools
from operator import attrgetter
from typing import Final, NamedTuple, final

import msgspec

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.state_file import Number, StateFile
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import filenames
from tailrace.logs import get_logger

__all__ = ["AHEAD_MIN_MS", "Mark", "WallTimes", "read_wall_times"]

_log = get_logger(__name__)
AHEAD_MIN_MS: Final = 5_000
"""Store times are ahead from this distance on; a clock that is adjusted by less needs no marks."""
_EVERY_MS: Final = 1_000
_WRITE_MS: Final = 30_000
_MARKS_MAX: Final = 4_096
_FILE_MAX: Final = 1 << 20
_VERSION: Final = 1
_position = attrgetter("position")
_wall_ms = attrgetter("wall_ms")


class Mark(NamedTuple):
    """Records from ``position`` on were stored at ``wall_ms`` or later and have the store time ``ahead_ms``.

    Records before it were stored before ``wall_ms``, whatever store time they have.
    """

    position: Number
    wall_ms: Number
    ahead_ms: Number


class _Marks(msgspec.Struct):
    """Content of the file."""

    v: int
    marks: tuple[Mark, ...]


@final
class WallTimes:
    """The marks of one log, oldest first."""

    def __init__(self, marks: tuple[Mark, ...] = ()) -> None:
        self.marks = marks
        self.ahead_ms = 0
        """How far the last store time is ahead of the wall clock, in ms; 0 if it is not."""
        self._written_ms = 0
        self._is_changed = False

    def of(self, position: int, stored_ms: int) -> int:
        """Return the time of the wall clock at which a record was stored, as exactly as it is known.

        The result grows along the log. For a record without a mark it is the store time.
        """
        marks = self.marks
        if not marks:
            return stored_ms
        at = bisect.bisect_right(marks, position, key=_position)
        least = marks[at - 1].wall_ms if at else 0
        if at and stored_ms == marks[at - 1].ahead_ms:
            return least
        return max(least, min(stored_ms, marks[at].wall_ms - 1)) if at < len(marks) else stored_ms

    def floor(self, time_ms: int, now_ms: int) -> int:
        """Return the time of the last mark before ``time_ms``, if the store times of that time are ahead.

        Records of which only the mark is known then count as stored at ``time_ms``. A time after now stays.
        """
        marks = self.marks
        if not marks or time_ms > now_ms:
            return time_ms
        at = bisect.bisect_right(marks, time_ms, key=_wall_ms)
        return marks[at - 1].wall_ms if at and time_ms <= marks[at - 1].ahead_ms else time_ms

    def latest(self, time_ms: int) -> int:
        """Return the latest store time that a record of ``time_ms`` may have."""
        return max((time_ms, *(mark.ahead_ms for mark in self.marks)))

    def is_between(self, position: int, stored_ms: int, begin_ms: int, end_ms: int) -> bool:
        """Return whether a record was stored in a period.

        A record from before a correction has a time that is ahead, and no better one is known: that one counts.
        """
        marks = self.marks
        at = bisect.bisect_right(marks, position, key=_position) if marks else 0
        if at and stored_ms == marks[at - 1].ahead_ms:
            since, until = marks[at - 1].wall_ms, marks[at].wall_ms if at < len(marks) else end_ms + 1
            return since <= end_ms and (since >= begin_ms or until > begin_ms)
        return begin_ms <= stored_ms <= end_ms

    def step(self, position: int, least: int, last_ms: int, now_ms: int, *, is_start: bool = False) -> None:
        """Take note of the time.

        The log ends at ``position``, begins at ``least``, and its last store time is ``last_ms``. A correction of the
        clock is logged, also at each start.
        """
        self.ahead_ms = max(last_ms - now_ms, 0)
        marks = list(self.marks)
        last = marks[-1] if marks else None
        if self.ahead_ms >= AHEAD_MIN_MS:
            if is_start or last is None or last.ahead_ms != last_ms:
                events.STORE_TIMES_ARE_AHEAD.log(_log, ahead_ms=self.ahead_ms, last_store_time=last_ms)
                self._written_ms = 0
            elif last.position < position and 0 <= now_ms - last.wall_ms < _EVERY_MS:
                return
            new = Mark(position, now_ms, last_ms)
        elif last is not None and last.ahead_ms > max(last_ms, now_ms):  # the records with that time are gone
            new = Mark(position, now_ms, now_ms)
        else:
            return
        while marks and marks[-1].position >= position:
            marks.pop()
        if marks and marks[-1].wall_ms > now_ms:
            marks = [mark._replace(wall_ms=min(mark.wall_ms, now_ms)) for mark in marks]
        marks.append(new)
        first = max(bisect.bisect_right(marks, least, key=_position) - 1, 0)
        marks = marks[first:]
        if len(marks) > _MARKS_MAX:
            half = len(marks) // 2
            marks = [*marks[:half:2], *marks[half:]]
        self.marks = tuple(marks)
        self._is_changed = True

    def write(self, file_system: FileSystem, root: str, now_ms: int, *, now: bool = False) -> None:
        """Write the marks if they have changed: those of a new correction immediately, others every 30 s."""
        if not self._is_changed or not (now or not 0 <= now_ms - self._written_ms < _WRITE_MS):
            return
        path = f"{root}/{filenames.WALL_TIMES}"
        try:
            _file(file_system, root).write(_Marks(_VERSION, self.marks))
        except (OSError, StoreError) as error:
            events.CANNOT_KEEP_TIMES_OF_THE_WALL_CLOCK.log(_log, file=path, cause=error)
        else:
            self._is_changed = False
        self._written_ms = now_ms


def read_wall_times(file_system: FileSystem, root: str) -> WallTimes:
    """Return the marks of a directory, none without a valid file."""
    path = f"{root}/{filenames.WALL_TIMES}"
    try:
        found = _file(file_system, root).read()
    except (OSError, CorruptionError) as error:
        events.HINT_CANNOT_BE_READ.log(_log, file=path, cause=error)
        return WallTimes()
    marks = found.marks if found is not None and found.v == _VERSION else ()
    valid = all(
        before.position < after.position and before.wall_ms <= after.wall_ms
        for before, after in itertools.pairwise(marks))
    return WallTimes(marks if valid and len(marks) <= _MARKS_MAX + 1 else ())


def _file(file_system: FileSystem, root: str) -> StateFile[_Marks]:
    return StateFile(file_system, f"{root}/{filenames.WALL_TIMES}", _Marks, _FILE_MAX)
