"""What recovery decides, as data: where a walk begins, and what happens where it stops.

Where a walk begins (``START_TABLE``). ``progress``: our own hint is there and everything it names
is as it says. ``covered``: queue units tile every segment before the place. A place that is not
covered is moved back to the first segment that is not, however far (never capped).

  log    progress  abort  checkpoint  decision
  empty  -         -      -           nothing to walk
  there  right     -      -           PROGRESS     from the record that it names
  there  wrong     no     -           LAST_FILES   from the third-last segment, or further back
  there  wrong     yes    sane        CHECKPOINT   by the release's rule, or further back
  there  wrong     yes    wrong       FIRST_FILE   the whole log

What happens where a walk stops (``STOP_TABLE``). ``valid``: a whole record is there. ``torn``: it is
the last one and its topic or properties were cut. ``behind``: a record that counts follows the
gap. ``data``: bytes that are not zero follow.

  valid  torn  behind  data  mode            decision
  yes    no    -       -     -               ACCEPT
  yes    yes   -       -     ABSOLUTE        REFUSE
  yes    yes   no      -     others          CUT
  yes    yes   yes     -     TOLERATE_TAIL   REFUSE
  yes    yes   yes     -     TOLERATE_ANY    STEP_OVER
  no     -     yes     -     TOLERATE_ANY    STEP_OVER   quarantined, keeps its place, never served
  no     -     yes     -     others          REFUSE
  no     -     no      yes   ABSOLUTE        REFUSE
  no     -     no      yes   others          CUT         quarantined, cleared, later files removed
  no     -     no      no    -               END
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.config import RecoveryMode

__all__ = [
    "START_TABLE", "STOP_TABLE", "StartDecision", "StartRow", "StopDecision", "StopRow",
    "decide_start", "decide_stop",
]


class StartDecision(enum.Enum):
    """Where a walk begins."""

    NOTHING = "the log is empty"
    PROGRESS = "own progress"
    LAST_FILES = "clean stop, the last three segments"
    CHECKPOINT = "the checkpoint"
    FIRST_FILE = "the first segment"


class StopDecision(enum.Enum):
    """What happens at a place of the log."""

    ACCEPT = "accept"
    STEP_OVER = "step over and quarantine"
    CUT = "end of the log; quarantine and clear what follows"
    END = "end of the log"
    REFUSE = "refuse to open"


class StartRow(NamedTuple):
    """Conditions, None for any, and their decision."""

    log: bool | None
    progress: bool | None
    abort: bool | None
    checkpoint: bool | None
    decision: StartDecision


class StopRow(NamedTuple):
    """Conditions, None for any, and their decision."""

    valid: bool | None
    torn: bool | None
    behind: bool | None
    data: bool | None
    modes: frozenset[RecoveryMode]
    decision: StopDecision


_ANY: Final = frozenset(RecoveryMode)
_ABSOLUTE: Final = frozenset({RecoveryMode.ABSOLUTE})
_TAIL: Final = frozenset({RecoveryMode.TOLERATE_TAIL})
_ALL: Final = frozenset({RecoveryMode.TOLERATE_ANY})

START_TABLE: Final = (
    StartRow(False, None, None, None, StartDecision.NOTHING),
    StartRow(True, True, None, None, StartDecision.PROGRESS),
    StartRow(True, False, False, None, StartDecision.LAST_FILES),
    StartRow(True, False, True, True, StartDecision.CHECKPOINT),
    StartRow(True, False, True, False, StartDecision.FIRST_FILE),
)
STOP_TABLE: Final = (
    StopRow(True, False, None, None, _ANY, StopDecision.ACCEPT),
    StopRow(True, True, None, None, _ABSOLUTE, StopDecision.REFUSE),
    StopRow(True, True, False, None, _TAIL | _ALL, StopDecision.CUT),
    StopRow(True, True, True, None, _TAIL, StopDecision.REFUSE),
    StopRow(True, True, True, None, _ALL, StopDecision.STEP_OVER),
    StopRow(False, None, True, None, _ALL, StopDecision.STEP_OVER),
    StopRow(False, None, True, None, _ABSOLUTE | _TAIL, StopDecision.REFUSE),
    StopRow(False, None, False, True, _ABSOLUTE, StopDecision.REFUSE),
    StopRow(False, None, False, True, _TAIL | _ALL, StopDecision.CUT),
    StopRow(False, None, False, False, _ANY, StopDecision.END),
)


def _fits(conditions: Sequence[bool | None], values: Sequence[bool]) -> bool:
    return all(c is None or c == v for c, v in zip(conditions, values, strict=True))


def decide_start(conditions: Mapping[str, bool]) -> StartDecision:
    """The decision for ``log``, ``progress``, ``abort`` and ``checkpoint``."""
    values = [conditions[name] for name in StartRow._fields[:4]]
    (row,) = (row for row in START_TABLE if _fits(row[:4], values))
    return row.decision


def decide_stop(mode: RecoveryMode, conditions: Mapping[str, bool]) -> StopDecision:
    """The decision for ``valid``, ``torn``, ``behind`` and ``data`` under a mode."""
    values = [conditions[name] for name in StopRow._fields[:4]]
    (row,) = (row for row in STOP_TABLE if mode in row.modes and _fits(row[:4], values))
    return row.decision
