"""The decisions of recovery as tables: where the walk starts, and what happens at a position of the log.

``START_TABLE``: where the walk starts. Columns: ``progress``: Tailrace's progress exists and matches everything
that it names. ``abort``: the abort file exists, so the store was not closed. ``checkpoint``: it is sane.
``covered``: queues and index have every record before the start.

  log    progress  abort  checkpoint  covered  decision
  empty  -         -      -           -        NOTHING       nothing to walk
  there  right     -      -           -        PROGRESS      from the record that it names
  there  wrong     no     -           yes      LAST_FILES    from the third-last segment
  there  wrong     yes    sane        yes      CHECKPOINT    by the release's rule
  there  wrong     yes    wrong       -        FIRST_FILE    the whole log
  there  wrong     no     -           no       REBUILD_PART  from the first record that they lack
  there  wrong     yes    sane        no       REBUILD_PART  the same

``STOP_TABLE``: what happens at a position of the log. The first columns are checks in this order: ``magic``;
``length``: the lengths add up within the file; ``position``: the record has its own position; ``crc``: the
checksums match; ``whole``: it is not a last record with torn topic or properties; ``ordered``: its queue offset
and store time are not before those of earlier records. The checks after a failed one have no value. Then:
``later``: a record that counts follows the gap. ``files``: later segments exist. ``data``: bytes that
are not zero are at the position or follow.

  magic  length  position  crc  whole  ordered  later  files  data  mode           decision
  yes    yes     yes       yes  yes    yes      -      -      -     -              ACCEPT
  yes    yes     yes       yes  yes    no       -      -      -     -              NO_UNIT
  yes    yes     yes       yes  no     -        -      -      -     ABSOLUTE       REFUSE
  yes    yes     yes       yes  no     -        no     -      -     others         CUT
  yes    yes     yes       yes  no     -        yes    -      -     TOLERATE_TAIL  REFUSE
  yes    yes     yes       yes  no     -        yes    -      -     TOLERATE_ANY   STEP_OVER
  no     -       -         -    -      -        |
  yes    no      -         -    -      -        | for each of these four the columns below decide:
  yes    yes     no        -    -      -        |
  yes    yes     yes       no   -      -        |
                                                yes    -      -     TOLERATE_ANY   STEP_OVER
                                                yes    -      -     others         REFUSE
                                                no     -      yes   ABSOLUTE       REFUSE
                                                no     -      yes   others         CUT
                                                no     yes    no    -              DROP_FILES
                                                no     no     no    -              END

Some combinations cannot occur: a later record, a torn record, and a record with a failed length, position or
checksum are data themselves, so ``data`` is true for them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.config import RecoveryMode
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C

__all__ = [
    "START_TABLE", "STOP_TABLE", "StartDecision", "StartRow", "StopDecision", "StopRow",
    "checks_of", "decide_start", "decide_stop",
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

    ACCEPT = "accept"
    NO_UNIT = "accept, without a unit in its queue"
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
    covered: bool | None
    decision: StartDecision


class StopRow(NamedTuple):
    """Conditions, None for any, and their decision."""

    magic: bool | None
    length: bool | None
    position: bool | None
    crc: bool | None
    whole: bool | None
    goes_on: bool | None
    later: bool | None
    files: bool | None
    data: bool | None
    modes: frozenset[RecoveryMode]
    decision: StopDecision


_CHECKS: Final = 6
_ANY: Final = frozenset(RecoveryMode)
_ABSOLUTE: Final = frozenset({RecoveryMode.ABSOLUTE})
_TAIL: Final = frozenset({RecoveryMode.TOLERATE_TAIL})
_ALL: Final = frozenset({RecoveryMode.TOLERATE_ANY})

START_TABLE: Final = (
    StartRow(False, None, None, None, None, StartDecision.NOTHING),
    StartRow(True, True, None, None, None, StartDecision.PROGRESS),
    StartRow(True, False, False, None, True, StartDecision.LAST_FILES),
    StartRow(True, False, True, True, True, StartDecision.CHECKPOINT),
    StartRow(True, False, True, False, None, StartDecision.FIRST_FILE),
    StartRow(True, False, False, None, False, StartDecision.REBUILD_PART),
    StartRow(True, False, True, True, False, StartDecision.REBUILD_PART),
)


def _row(
    failed: int, later: bool | None, files: bool | None, data: bool | None,
    modes: frozenset[RecoveryMode], decision: StopDecision,
) -> StopRow:
    """Return a row for the number of the first check that fails; ``_CHECKS``: all checks succeed."""
    checks = [number < failed if number <= failed else None for number in range(_CHECKS)]
    magic, length, position, crc, whole, goes_on = checks
    return StopRow(
        magic, length, position, crc, whole, goes_on, later, files, data, modes, decision)


STOP_TABLE: Final = (
    _row(6, None, None, None, _ANY, StopDecision.ACCEPT),
    _row(5, None, None, None, _ANY, StopDecision.NO_UNIT),
    _row(4, None, None, None, _ABSOLUTE, StopDecision.REFUSE),
    _row(4, False, None, None, _TAIL | _ALL, StopDecision.CUT),
    _row(4, True, None, None, _TAIL, StopDecision.REFUSE),
    _row(4, True, None, None, _ALL, StopDecision.STEP_OVER),
    *(
        _row(check, *follows)
        for check in range(4)
        for follows in (
            (True, None, None, _ALL, StopDecision.STEP_OVER),
            (True, None, None, _ABSOLUTE | _TAIL, StopDecision.REFUSE),
            (False, None, True, _ABSOLUTE, StopDecision.REFUSE),
            (False, None, True, _TAIL | _ALL, StopDecision.CUT),
            (False, True, False, _ANY, StopDecision.DROP_FILES),
            (False, False, False, _ANY, StopDecision.END),
        )
    ),
)
_FIRST_FAILED: Final = {
    C.REASON_BAD_LENGTH: 1, C.REASON_SHORT: 1, C.REASON_BAD_PHY_OFFSET: 2,
    C.REASON_BAD_CRC: 3, C.REASON_BAD_PROP_CRC: 3, C.REASON_TORN: 4,
}
_BY_NAME: Final = {record.REASON_NAMES[reason]: check for reason, check in _FIRST_FAILED.items()}


def checks_of(reason: str) -> dict[str, bool]:
    """Return the check columns for the reason why a walk stopped, a name of ``record.REASON_NAMES``.

    Any other reason counts as a failed magic: zeros, another magic, a missing segment.
    """
    first = _BY_NAME.get(reason, 0)
    return {name: number < first for number, name in enumerate(StopRow._fields[:_CHECKS])}


def _fits(conditions: Sequence[bool | None], values: Sequence[bool]) -> bool:
    return all(c is None or c == v for c, v in zip(conditions, values, strict=True))


def decide_start(conditions: Mapping[str, bool]) -> StartDecision:
    """Return the decision for ``log``, ``progress``, ``abort``, ``checkpoint`` and ``covered``."""
    values = [conditions[name] for name in StartRow._fields[:-1]]
    (row,) = (row for row in START_TABLE if _fits(row[:-1], values))
    return row.decision


def decide_stop(mode: RecoveryMode, conditions: Mapping[str, bool]) -> StopDecision:
    """Return the decision of a recovery mode for the columns of ``StopRow``."""
    values = [conditions[name] for name in StopRow._fields[:-2]]
    (row,) = (row for row in STOP_TABLE if mode in row.modes and _fits(row[:-2], values))
    return row.decision
