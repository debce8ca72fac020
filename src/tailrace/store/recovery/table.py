"""The decisions of recovery as tables: where the walk starts, and what happens at a position of the log.

``START_TABLE``: where the walk starts. Columns: ``progress``: Tailrace's progress exists and matches everything
that it names. ``abort``: the abort file exists, so the store was not closed. ``checkpoint``: it is sane.

  log    progress  abort  checkpoint  decision
  empty  -         -      -           NOTHING       nothing to walk
  there  right     -      -           PROGRESS      from the record that it names
  there  wrong     no     -           LAST_FILES    from the third-last segment
  there  wrong     yes    sane        CHECKPOINT    by the release's rule
  there  wrong     yes    wrong       FIRST_FILE    the whole log

If queues or index lack a record before the start of LAST_FILES or CHECKPOINT, the walk starts there: REBUILD_PART.

``STOP_TABLE``: what happens at a position of the log without a valid record. ``torn``: a last record has torn topic or
properties, everything else about it is right; without it magic, lengths, position or a checksum are wrong.
``later``: a record that counts follows the gap. ``files``: later segments exist. ``data``: bytes that are not zero
are at the position or follow; a torn record and a later one are such bytes.

  torn  later  files  data  mode           decision
  yes   -      -      -     ABSOLUTE       REFUSE
  yes   no     -      -     others         CUT
  no    no     -      yes   ABSOLUTE       REFUSE
  no    no     -      yes   others         CUT
  -     yes    -      -     TOLERATE_ANY   STEP_OVER
  yes   yes    -      -     TOLERATE_TAIL  REFUSE
  no    yes    -      -     others         REFUSE
  no    no     yes    no    -              DROP_FILES
  no    no     no     no    -              END
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.config import RecoveryMode

__all__ = [
    "START_TABLE", "STOP_TABLE", "StartDecision", "StartRow", "StopDecision", "StopRow", "decide_start", "decide_stop",
]


class StartDecision(enum.Enum):
    """Where a walk starts."""

    NOTHING = "the log is empty"
    PROGRESS = "own progress"
    LAST_FILES = "clean stop, the last three segments"
    CHECKPOINT = "the checkpoint"
    FIRST_FILE = "the first segment"
    REBUILD_PART = "the first record that queues or index lack"


class StopDecision(enum.Enum):
    """What happens at a position of the log."""

    STEP_OVER = "step over and quarantine"
    CUT = "end of the log; quarantine and clear what follows, remove later segments"
    DROP_FILES = "end of the log; remove later segments, which are zero"
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

    torn: bool | None
    later: bool | None
    files: bool | None
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
    StopRow(True, None, None, None, _ABSOLUTE, StopDecision.REFUSE),
    StopRow(True, False, None, None, _TAIL | _ALL, StopDecision.CUT),
    StopRow(False, False, None, True, _ABSOLUTE, StopDecision.REFUSE),
    StopRow(False, False, None, True, _TAIL | _ALL, StopDecision.CUT),
    StopRow(None, True, None, None, _ALL, StopDecision.STEP_OVER),
    StopRow(True, True, None, None, _TAIL, StopDecision.REFUSE),
    StopRow(False, True, None, None, _ABSOLUTE | _TAIL, StopDecision.REFUSE),
    StopRow(False, False, True, False, _ANY, StopDecision.DROP_FILES),
    StopRow(False, False, False, False, _ANY, StopDecision.END),
)


def _fits(conditions: Sequence[bool | None], values: Sequence[bool]) -> bool:
    return all(c is None or c == v for c, v in zip(conditions, values, strict=True))


def decide_start(conditions: Mapping[str, bool]) -> StartDecision:
    """Return the decision for ``log``, ``progress``, ``abort`` and ``checkpoint``."""
    values = [conditions[name] for name in StartRow._fields[:-1]]
    (row,) = (row for row in START_TABLE if _fits(row[:-1], values))
    return row.decision


def decide_stop(mode: RecoveryMode, conditions: Mapping[str, bool]) -> StopDecision:
    """Return the decision of a recovery mode for the columns of ``StopRow``."""
    values = [conditions[name] for name in StopRow._fields[:-2]]
    (row,) = (row for row in STOP_TABLE if mode in row.modes and _fits(row[:-2], values))
    return row.decision
