"""Verification rules of timers: every unit of the timer log, and the wheel, against the log.

`TIMER_KINDS` declares the kinds of findings, in addition to those of ``store.verification``. Nothing is written. Links
are checked only in slots whose timers are not delivered yet, and the wheel only after a clean stop, because an open
rebuilds it.

If a server has the directory open, lists and wheel are not checked, because they change during the check.

Files can be checked separately (``check_timer_file``); ``join_timer_checks`` makes the checks over several files.
Memory: five numbers for each pending timer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tailrace.errors import CorruptionError
from tailrace.formats import filenames
from tailrace.formats.commitlog import (
    PLAUSIBLE_LENGTH,
    decode_message,
    java_string_hash,
    plausible_size,
)
from tailrace.formats.consumequeue import PRE_BLANK_SIZE, CqUnit
from tailrace.formats.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_TOPIC
from tailrace.formats.timerlog import (
    MAGIC_DELETE,
    MAGIC_MASK,
    MAGIC_ROLL,
    TIMER_BLANK,
    TIMER_BLANK_MAGIC,
    TIMER_UNIT,
    TimerUnit,
)
from tailrace.formats.timerwheel import SLOT
from tailrace.model import MessageExt
from tailrace.segments import MappedFile
from tailrace.store.directory import DirectoryState, StoreDirectory
from tailrace.store.directory_format import read_format
from tailrace.store.findings import Finding, FindingKind, Remedy
from tailrace.store.log_paths import segment_files
from tailrace.timer.properties import (
    Identity,
    due_ms,
    identity_of,
    named_by,
    out_ms,
)
from tailrace.timer.timer_checkpoint import read_timer_checkpoint
from tailrace.timer.timer_log import recognise_file_size

__all__ = [
    "TIMER_KINDS", "TimerCounts", "TimerFileCheck", "check_timer_file", "join_timer_checks", "timer_counts",
    "timer_files", "verify_timers",
]

_UNIT: Final = TIMER_UNIT.size
_READ: Final = 65_536
TIMER_KINDS: Final[Mapping[str, FindingKind]] = {
    "timer-log-length": FindingKind("A file of the timer log has another length than most files.", Remedy.RECOVER),
    "timer-log-damaged": FindingKind(
        "Bytes before the end of the timer log are not a valid unit.", Remedy.RECOVER),
    "foreign-timer": FindingKind("A unit names no record of the timer topic.", Remedy.TIMERS),
    "wrong-timer": FindingKind("Time, kind or topic of a unit differ from its record.", Remedy.TIMERS),
    "timer-chain": FindingKind("A unit is linked to a unit that is not in the list of its time.", Remedy.RECOVER),
    "missing-timer": FindingKind(
        "A pending timer has no unit, although the checkpoint counts it.", Remedy.TIMERS,
        "Without the rebuild its message is not delivered."),
    "timer-slot": FindingKind("A slot of the timer wheel does not name its list.", Remedy.RECOVER),
    "timercheck-ahead": FindingKind(
        "The timer checkpoint names an offset after the end of the timer queue.", Remedy.RECOVER),
}
"""Kinds of findings about timers. A rebuild of timers reads them from the CommitLog."""


class TimerFileCheck(NamedTuple):
    """Units of one file of the timer log that later checks need, and the findings in it.

    ``rows`` are (slot time, position, previous position, position in the CommitLog, magic) of
    units whose slot is to come; ``records`` the positions of all units' records; ``delivered`` the number of timers
    in slots that the checkpoint counts as delivered; ``recalled`` has (timer, slot time) of each request to delete.
    """

    findings: list[Finding]
    rows: np.ndarray[Any, np.dtype[np.int64]]
    records: np.ndarray[Any, np.dtype[np.int64]]
    delivered: int
    recalled: list[tuple[Identity, int]]


class TimerCounts(NamedTuple):
    """Timers of a directory by the timer log and its checkpoint."""

    pending: int
    """Timers that are not delivered."""
    overdue: int
    """Pending timers whose time has passed: a server delivers them after its start."""
    delivered: int
    units: int
    """Units of the timer log: timers, steps of far timers, and requests to recall one."""


def timer_counts(directory: StoreDirectory, checks: Sequence[TimerFileCheck], now_ms: int) -> TimerCounts:
    """Return the counts of checked files. A recalled timer is neither pending nor delivered."""
    recalled = {identity for check in checks for identity, _ in check.recalled}
    late = {named_by(message.properties, out)[-1] for message, out in _not_enqueued(directory, checks)
            if TIMER_DEL_UNIQKEY in message.properties}
    recalled |= late
    slots = {slot_ms for check in checks for _, slot_ms in check.recalled}
    precision, read_time, pending, overdue = _precision_ms(directory), _read_time_ms(directory), 0, 0
    for check in checks:
        for slot_ms, _, _, phy_offset, magic in check.rows[check.rows[:, 4] & MAGIC_DELETE == 0].tolist():
            # The slots of requests that are not enqueued are not known, so all timers are compared with them.
            if recalled and (slot_ms in slots or magic & MAGIC_ROLL or late) and (
                _identity(directory, phy_offset) in recalled
            ):
                continue
            pending += 1
            overdue += slot_ms + precision <= now_ms and not magic & MAGIC_ROLL
    for message, out in _not_enqueued(directory, checks):
        if TIMER_DEL_UNIQKEY not in message.properties and identity_of(message.properties, out) not in recalled:
            pending += 1
            overdue += due_ms(message.properties, out, message.store_timestamp, precision) <= now_ms
    gone = len({identity for check in checks for identity, slot_ms in check.recalled if slot_ms < read_time})
    return TimerCounts(
        pending, overdue, max(sum(check.delivered for check in checks) - gone, 0),
        sum(len(check.records) for check in checks))


def _not_enqueued(directory: StoreDirectory, checks: Sequence[TimerFileCheck]) -> Iterator[tuple[MessageExt, int]]:
    """Yield messages of the timer queue that have no unit yet, with their slot time."""
    queue = directory.queue((TIMER_TOPIC, 0))
    if queue is None:
        return
    fields = read_timer_checkpoint(directory.file_system, _checkpoint_path(directory))
    known = {place for check in checks for place in check.records[-_READ:].tolist()}
    at = max(fields.last_timer_queue_offset if fields is not None else 0, queue.min_offset)
    for _, units in queue.runs(at, queue.max_offset):
        for unit in itertools.starmap(CqUnit, units.tolist()):
            is_new = unit.phy_offset not in known and 0 < unit.size < PRE_BLANK_SIZE
            message = _record(directory, unit.phy_offset, unit.size) if is_new else None
            out = out_ms(message.properties) if message is not None else None
            if message is not None and out is not None and REAL_TOPIC in message.properties:
                yield message, out


def _identity(directory: StoreDirectory, phy_offset: int) -> Identity | None:
    """Return the identity of the timer whose record is at a position; None if it cannot be read."""
    size = plausible_size(directory.read(phy_offset, PLAUSIBLE_LENGTH), phy_offset)
    message = _record(directory, phy_offset, size) if size else None
    out = out_ms(message.properties) if message is not None else None
    return identity_of(message.properties, out) if message is not None and out is not None else None


def timer_files(directory: StoreDirectory) -> tuple[list[MappedFile], list[Finding]]:
    """Return the files of the timer log, and those that are left out because of their length."""
    root = f"{directory.path}/{filenames.TIMERLOG}"
    file_system = directory.file_system
    size = recognise_file_size(file_system, root, 0)
    files, odd = [], []
    for offset, path in segment_files(file_system, (root,)):
        there = file_system.stat(path).size
        if there == size:
            files.append(MappedFile(file_system, path, offset, size, foreign=True))
        elif there:
            odd.append(Finding("timer-log-length", path, 0, f"{there} bytes, not {size}"))
    return files, odd


def verify_timers(directory: StoreDirectory, now_ms: int) -> tuple[TimerCounts, list[Finding]]:
    """Return the number of timers and all findings. A file that is deleted during the check counts as short."""
    files, odd = timer_files(directory)
    checks = [check_timer_file(directory, file, last=file is files[-1]) for file in files]
    return timer_counts(directory, checks, now_ms), [*odd, *join_timer_checks(directory, checks)]


def check_timer_file(directory: StoreDirectory, file: MappedFile, *, last: bool) -> TimerFileCheck:
    """Check every unit of one file."""
    read_time, precision = _read_time_ms(directory), _precision_ms(directory)
    found: list[Finding] = []
    delivered, recalled = 0, list[tuple[Identity, int]]()
    rows, records = [np.empty((0, 5), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    at = 0
    while at + _UNIT <= file.size:
        data = file.read(at, min(_UNIT * _READ, file.size - at))
        units = TIMER_UNIT.view(data[: len(data) - len(data) % _UNIT])
        good = (units["size"] == _UNIT) & (units["magic"] & ~MAGIC_MASK == 0)
        good &= (units["magic"] != 0) & (units["phy_offset"] >= 0) & (units["msg_size"] > 0)
        count = len(units) if bool(good.all()) else int(np.argmin(good))
        part = units[:count]
        positions = file.file_from_offset + at + _UNIT * np.arange(count, dtype=np.int64)
        for unit, position in zip(part, positions.tolist(), strict=True):
            found += _verify_unit(directory, precision, file.path, position, TimerUnit(*unit.tolist()))
        times = (part["write_time_ms"] + part["delay_ms"]).astype(np.int64)
        times -= times % precision
        coming = times >= read_time
        delivered += int(np.count_nonzero(~coming & (part["magic"] & (MAGIC_ROLL | MAGIC_DELETE) == 0)))
        for number in np.flatnonzero(part["magic"] & MAGIC_DELETE).tolist():
            message = _record(directory, int(part[number]["phy_offset"]), int(part[number]["msg_size"]))
            if message is not None and (out := out_ms(message.properties)) is not None:
                recalled.append((named_by(message.properties, out)[-1], int(times[number])))
        rows.append(np.stack((
            times, positions, part["prev_pos"], part["phy_offset"], part["magic"]), axis=1)[coming])
        records.append(part["phy_offset"].astype(np.int64))
        at += count * _UNIT
        if count < len(units) or not len(units):
            break
    if not (last and directory.is_live):  # it grows
        found += _verify_end(file, at, last=last)
    return TimerFileCheck(found, np.concatenate(rows), np.concatenate(records), delivered, recalled)


def _precision_ms(directory: StoreDirectory) -> int:
    """Return the precision of the timer files, from the directory or else from the settings."""
    found = read_format(directory.file_system, directory.path).timer.precision_ms
    return found or directory.config.timer_precision_ms


def _verify_end(file: MappedFile, at: int, *, last: bool) -> Iterator[Finding]:
    """Check that a full file ends in a blank unit, and the last file in zeros."""
    if at >= file.size:
        return
    data = file.read(at, TIMER_BLANK.size)
    if len(data) == TIMER_BLANK.size and TIMER_BLANK.unpack_from(data) == (
        file.size - at, 0, TIMER_BLANK_MAGIC
    ):
        return
    for place, _ in file.nonzero(at):
        yield Finding("timer-log-damaged", file.path, place, f"no unit from {at} on")
        return
    if not last:
        yield Finding("timer-log-damaged", file.path, at, "zeros before the last file")


def _record(directory: StoreDirectory, phy_offset: int, size: int) -> MessageExt | None:
    try:
        message = decode_message(directory.read(phy_offset, size))
    except CorruptionError:
        return None
    is_it = message.store_size == size and message.phy_offset == phy_offset
    return message if is_it and message.topic == TIMER_TOPIC else None


def _verify_unit(
    directory: StoreDirectory, precision: int, path: str, position: int, unit: TimerUnit
) -> Iterator[Finding]:
    if unit.phy_offset < directory.min_phy_offset:
        return  # its record is deleted by retention
    if directory.is_live and unit.phy_offset + unit.msg_size > directory.max_phy_offset:
        return  # not to be shown yet
    message = _record(directory, unit.phy_offset, unit.msg_size)
    out = out_ms(message.properties) if message is not None else None
    if message is None or out is None:
        yield Finding("foreign-timer", path, position,
                      f"{unit.phy_offset} with {unit.msg_size} bytes is no timer")
        return
    slot_time = unit.write_time_ms + unit.delay_ms
    wrong = []
    # A late timer is in the slot of its enqueue, a far one in an earlier slot, any other in its own slot.
    if not unit.magic & MAGIC_ROLL and not (
        out // precision * precision <= slot_time <= max(out, unit.write_time_ms + precision)
    ):
        wrong.append(f"slot {slot_time} for {out}")
    if unit.magic & MAGIC_ROLL and slot_time > out:
        wrong.append(f"slot {slot_time} on the way to {out}")
    if bool(unit.magic & MAGIC_DELETE) != (TIMER_DEL_UNIQKEY in message.properties):
        wrong.append(f"magic {unit.magic}")
    if unit.topic_hash != java_string_hash(message.properties.get(REAL_TOPIC, "")):
        wrong.append(f"topic hash {unit.topic_hash}")
    if wrong:
        yield Finding("wrong-timer", path, position,
                      f"{', '.join(wrong)}, record {unit.phy_offset}")


# -- beyond a file


def _checkpoint_path(directory: StoreDirectory) -> str:
    return f"{directory.path}/{filenames.CONFIG}/{filenames.TIMERCHECK}"


def _read_time_ms(directory: StoreDirectory) -> int:
    fields = read_timer_checkpoint(directory.file_system, _checkpoint_path(directory))
    precision = _precision_ms(directory)
    return fields.last_read_time_ms // precision * precision if fields is not None else 0


def join_timer_checks(
    directory: StoreDirectory, checks: Sequence[TimerFileCheck]
) -> Iterator[Finding]:
    """Return the findings of all files, then those of lists, wheel and timer queue."""
    for check in checks:
        yield from check.findings
    if not checks:
        return
    rows = np.concatenate([check.rows for check in checks])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    if not directory.is_live:
        yield from _verify_lists(directory, rows)
    if directory.state is DirectoryState.CLEAN:
        yield from _verify_wheel(directory, rows)
    yield from _verify_queue(directory, np.concatenate([check.records for check in checks]))


def _verify_lists(directory: StoreDirectory, rows: Any) -> Iterator[Finding]:
    path = f"{directory.path}/{filenames.TIMERLOG}"
    if not len(rows):
        return
    same_slot = np.append(False, rows[1:, 0] == rows[:-1, 0])
    before = np.append(-1, rows[:-1, 1])
    broken = (rows[:, 2] >= 0) & ~(same_slot & (before == rows[:, 2]))
    for row in rows[broken].tolist():
        yield Finding("timer-chain", path, row[1],
                      f"{row[2]} is not the unit before it in slot {row[0]}")


def _verify_wheel(directory: StoreDirectory, rows: Any) -> Iterator[Finding]:
    path = f"{directory.path}/{filenames.TIMERWHEEL}"
    file_system = directory.file_system
    if not file_system.exists(path) or not len(rows):
        return
    if read_format(file_system, directory.path).timer.suspicious_until_ms > _read_time_ms(directory):
        return  # the clock was set back: two lists may want one place, and the next open rebuilds it
    precision = _precision_ms(directory)
    file = MappedFile(file_system, path, 0, file_system.stat(path).size, foreign=True)
    count = max(file.size // SLOT.size, 1)
    for listed in np.split(rows, np.flatnonzero(np.diff(rows[:, 0])) + 1):
        starts = np.flatnonzero(listed[:, 2] < 0)
        units = listed[int(starts[-1]) if len(starts) else 0 :]
        time = int(units[0, 0])
        deletes = int(np.count_nonzero(units[:, 4] & MAGIC_DELETE))
        wanted = (time // precision, int(units[-1, 1]), len(units) - 2 * deletes)
        at = time // precision % count * SLOT.size
        data = file.read(at, SLOT.size)
        slot = SLOT.unpack_from(data.ljust(SLOT.size, b"\0"))
        if (slot.time, slot.last_pos, slot.num) != wanted:
            yield Finding(
                "timer-slot", path, at,
                f"the slot has time {slot.time}, last_pos {slot.last_pos}, num {slot.num}; its list has "
                f"time {wanted[0]}, last_pos {wanted[1]}, num {wanted[2]}")
    known = set(rows[:, 0].tolist())
    read_time = _read_time_ms(directory)
    for start, data in file.nonzero(0):
        at = start - start % SLOT.size
        part = file.read(at, start + len(data) - at)
        slots = SLOT.view(part[: len(part) - len(part) % SLOT.size])
        times = slots["time"].astype(np.int64) * precision
        for number in np.flatnonzero((times >= max(read_time, 1)) & (slots["num"] != 0)).tolist():
            if int(times[number]) not in known:
                yield Finding("timer-slot", path, at + number * SLOT.size,
                              f"slot {times[number]} has no unit in the timer log")


def _verify_queue(directory: StoreDirectory, records: Any) -> Iterator[Finding]:
    fields = read_timer_checkpoint(directory.file_system, _checkpoint_path(directory))
    queue = next((q for q in directory.queues() if q.topic == TIMER_TOPIC and not q.queue_id), None)
    if fields is None or queue is None:
        return
    path = _checkpoint_path(directory)
    if fields.last_timer_queue_offset > queue.max_offset and not directory.is_live:
        yield Finding("timercheck-ahead", path, 16,
                      f"{fields.last_timer_queue_offset}, the timer queue ends at {queue.max_offset}")
    known = np.unique(records)
    for at, units in queue.runs(queue.min_offset, fields.last_timer_queue_offset):
        lacking = ~np.isin(units["phy_offset"], known) & (units["size"] < PRE_BLANK_SIZE)
        for number in np.flatnonzero(lacking & (units["size"] > 0)).tolist():
            unit = CqUnit(*units[number].tolist())
            message = _record(directory, unit.phy_offset, unit.size)
            out = out_ms(message.properties) if message is not None else None
            if message is not None and out is not None and out >= fields.last_read_time_ms and (
                REAL_TOPIC in message.properties
            ):
                yield Finding("missing-timer", f"{directory.path}/{filenames.TIMERLOG}", unit.phy_offset,
                              f"the timer of {out} at queue offset {at + number} has no unit")
