"""Recovery of the timers of a directory, after a clean stop, a kill or a power loss.

The wheel is rebuilt from the whole timer log (TW1). So a missing, stale or torn wheel, and the snapshots that a
5.5.0 broker may have left instead of a wheel, are all the same case, and the numbers of slots are right. A kernel
reads the timer log once, piece by piece, with little memory; that is fast enough to trust no shortcut. The timer
log is cut at its first invalid unit, or at the first one that names a position after the end of the CommitLog.
The order is: decide by the table, timer log, wheel, queue offset.

| checkpoint | timer log | decision |
|---|---|---|
| missing or impossible | empty, and so is the timer queue | fresh |
| missing or impossible | anything else | rebuild from the CommitLog |
| anything, and a Java broker kept timers in RocksDB | anything | rebuild, once |
| sane | shorter than it says, of wrong lengths, or two live times share a slot | rebuild |
| sane, and the clock was stepped back since | anything | rebuild: slots are by another clock |
| sane | its slot lists go back to files that are gone | rebuild |
| sane | the disk returns an error (EIO) for it | rebuild |
| sane | otherwise | replay |

A rebuild enqueues every message of the timer queue again; a timer counts as delivered if its delivered record is
in the log. The checkpoint is removed first, so that a crash during a rebuild leads to another rebuild.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError
from tailrace.formats.filenames import TIMERWHEEL
from tailrace.formats.names import TIMER_TOPIC
from tailrace.formats.timerlog import TIMER_UNIT, TimerUnit
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.directory_format import read_format
from tailrace.timer.arrays import Ints, no_positions
from tailrace.timer.timer_checkpoint import TimerCheckpoint
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_wheel import TimerWheel

__all__ = ["RecoveredTimers", "TimerRecovery"]

_log = get_logger(__name__)
_LOOK_BACK: Final = 20_000
_SANE_AHEAD_MS: Final = 2 * 86_400_000
_UNIT: Final = TIMER_UNIT.size
_Left = dict[int, list[int]]
"""By slot time, the newest units of lists that the slot has had before its present list, in order."""


@dataclass(slots=True)
class RecoveredTimers:
    """The state from which the services continue.

    Slots before ``read_time_ms`` are delivered. Timers with a slot time before ``suspicious_until_ms`` may be
    delivered already, so the log is searched for them first. ``known`` has the sorted positions of messages of
    the timer queue from ``queue_offset`` onwards that the timer log has already. ``orphans`` are units that no
    list leads to.
    """

    mode: str
    reason: str
    read_time_ms: int
    queue_offset: int
    suspicious_until_ms: int
    units: int = 0
    cut_at: int = -1
    known: Ints = field(default_factory=no_positions)
    orphans: list[TimerUnit] = field(default_factory=list)


@final
class _RebuildNeededError(Exception):
    """The timer log cannot be trusted."""


@final
class TimerRecovery:
    """Brings wheel and log of one directory into agreement with its CommitLog."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore, wheel: TimerWheel,
        log: TimerLog, checkpoint: TimerCheckpoint,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._store = store
        self._wheel = wheel
        self._log = log
        self._checkpoint = checkpoint
        self._precision = wheel.precision_ms

    def run(self, rebuild_because: str = "") -> RecoveredTimers:
        """Recover; raises OSError or FatalStorageError."""
        now = self._floor(self._clock.now_ms())
        last_store = self._floor(self._last_store_timestamp()) + self._precision
        try:
            self._log.files.load()
            if rebuild_because:
                raise _RebuildNeededError(rebuild_because)
            found = self._replay(now, last_store)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            found = self._rebuild(now, last_store, f"the timer log cannot be read: {error}")
        except (_RebuildNeededError, CorruptionError) as error:
            if rebuild_because:  # that engine of a Java broker delivers up to a second early
                last_store = max(last_store, now + self._precision)
            found = self._rebuild(now, last_store, str(error))
        self._remove_snapshots()
        events.TIMER_RECOVERY.log(
            _log, mode=found.mode, reason=found.reason, units=found.units, cut_at=found.cut_at,
            queue_offset=found.queue_offset, read_time_ms=found.read_time_ms)
        return found

    def _floor(self, time_ms: int) -> int:
        return time_ms // self._precision * self._precision

    def _last_store_timestamp(self) -> int:
        """Return the store time of the newest record: no timer was delivered later."""
        newest = max(
            (unit.phy_offset for queue in list(self._store.queues.table.values())
             if (unit := queue.unit(queue.max_offset - 1)) is not None), default=-1)
        try:
            stamp = self._store.reader.store_timestamp(newest) if newest >= 0 else 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            stamp = self._clock.now_ms()  # the latest time at which it can have been stored
        return max(stamp, self._store.commit_log.last_store_timestamp)

    def _bounds(self) -> tuple[int, int]:
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    # -- the two ways

    def _replay(self, now: int, last_store: int) -> RecoveredTimers:
        low, high = self._bounds()
        fields = self._checkpoint.fields
        if fields is None or not fields.last_read_time_ms:
            if high == low and not self._log.files.files:
                return RecoveredTimers("fresh", "no timers", now, low, last_store)
            raise _RebuildNeededError("there is no checkpoint")
        if read_format(self._file_system, self._store.root).timer.suspicious_until_ms > now + self._precision:
            raise _RebuildNeededError("the wall clock was stepped back")
        read_time = self._floor(fields.last_read_time_ms)
        if read_time > max(now, last_store) + _SANE_AHEAD_MS:
            raise _RebuildNeededError("the checkpoint is from the future")
        suspicious = max(last_store, read_time if read_time > now else 0)
        read_time = min(read_time, now)  # the clock was stepped back
        newest, count, left = self._fill_wheel(read_time)
        end = self._log.scan_end
        if end < fields.last_timer_log_flush_pos:
            raise _RebuildNeededError(
                f"the timer log ends at {end}, {fields.last_timer_log_flush_pos} were flushed")
        low_pos = self._log.min_offset
        if low_pos and self._wheel.file_lists_before(low_pos, read_time):
            raise _RebuildNeededError(f"the timer log begins at {low_pos}, the wheel lists more")
        orphans = self._orphans(left)
        cut_at = self._cut(end)
        offset = self._next_queue_offset(newest, fields.last_timer_queue_offset)
        known = no_positions()
        if fields.master_timer_queue_offset < offset:
            offset, known = self._already_logged(fields.master_timer_queue_offset, offset)
        return RecoveredTimers(
            "replay", "checkpoint", read_time, min(max(offset, low), high), suspicious, count, cut_at,
            known, orphans)

    def _rebuild(self, now: int, last_store: int, reason: str) -> RecoveredTimers:
        events.TIMERS_ARE_REBUILT_FROM_THE_COMMITLOG.log(_log, reason=reason)
        self._checkpoint.remove()
        self._wheel.clear()
        self._wheel.write(self._wheel.take_dirty())
        self._remove_log()
        return RecoveredTimers("rebuild", reason, now, self._bounds()[0], last_store)

    def _remove_log(self) -> None:
        """Remove every file of the timer log, also those that could not be loaded."""
        self._log.destroy()
        directory = self._log.files.directories[0]
        for name in self._file_system.list(directory):
            path = f"{directory}/{name}"
            if not self._file_system.stat(path).is_dir:
                self._file_system.remove(path)
        if self._file_system.exists(directory):
            self._file_system.sync_dir(directory)

    def _remove_snapshots(self) -> None:
        """Remove snapshots of the wheel: a 5.5.0 broker would prefer even an old one to the wheel file."""
        root = self._store.root
        found = [
            name for name in self._file_system.list(root)
            if name.startswith(f"{TIMERWHEEL}.") and name != TIMERWHEEL
        ]
        if found:
            self._wheel.write(self._wheel.take_dirty())
            for name in found:
                self._file_system.remove(f"{root}/{name}")
            self._file_system.sync_dir(root)

    # -- the log

    def _fill_wheel(self, read_time: int) -> tuple[TimerUnit | None, int, _Left]:
        """Fill every live slot. Return the unit of the newest message, the number of units, and abandoned lists.

        The last unit of the timer log may be one that was appended again, so it may not be the newest message.
        """
        self._wheel.clear()
        count, newest, left = 0, None, _Left()
        for pos, units, last in self._log.scan_newest(self._store.commit_log.max_offset):
            if newest is None or last.phy_offset > newest.phy_offset:
                newest = last
            done = 0
            while done < len(units):
                part, why = self._wheel.replay(units[done:], pos + done * _UNIT, read_time)
                done += part
                if why != C.REPLAY_DONE:
                    self._begin_anew(TimerUnit(*units[done].tolist()), why, left)
            count += done
        return newest, count, left

    def _begin_anew(self, unit: TimerUnit, why: int, left: _Left) -> None:
        """Start a new list: a slot's list starts at its last unit without a link to an earlier one."""
        time = self._floor(unit.write_time_ms + unit.delay_ms)
        if why == C.REPLAY_TAKEN:
            raise _RebuildNeededError("two times have the same slot")
        if why == C.REPLAY_BROKEN:
            raise _RebuildNeededError(f"the list of slot {time} is broken")
        left.setdefault(time, []).append(self._wheel.get_slot(time).last_pos)
        self._wheel.put_slot(time, -1, -1, 0)

    def _orphans(self, left: _Left) -> list[TimerUnit]:
        """Return the units of abandoned lists that no list leads to. They are appended again."""
        found: list[TimerUnit] = []
        for time, ends in sorted(left.items()):
            listed, _ = self._log.walk(time, self._precision, self._wheel.get_slot(time).last_pos)
            seen = set(listed["phy_offset"].tolist())
            orphans: list[TimerUnit] = []
            for end in reversed(ends):
                for row in self._log.walk(time, self._precision, end)[0][::-1].tolist():
                    unit = TimerUnit(*row)
                    if unit.phy_offset not in seen:
                        seen.add(unit.phy_offset)
                        orphans.append(unit)
            found += reversed(orphans)
        return found

    def _cut(self, end: int) -> int:
        """End the timer log after its last valid unit. Return that position, or -1 if no bytes followed it."""
        files = self._log.files
        if not files.files:
            return -1
        stale = any(
            next(file.nonzero(max(end - file.file_from_offset, 0)), None) is not None
            for file in files.files if file.file_from_offset + file.size > end)
        self._log.truncate(end)
        if stale:
            events.TIMER_LOG_IS_CUT_AT_ITS_FIRST_BAD_UNIT.log(_log, pos=end)
        return end if stale else -1

    # -- the queue

    def _message(self, phy_offset: int, size: int) -> MessageExt | None:
        try:
            return self._store.message(phy_offset, size)
        except CorruptionError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None

    def _next_queue_offset(self, newest: TimerUnit | None, otherwise: int) -> int:
        """Return the offset in the timer queue after the newest message of the timer log."""
        message = self._message(newest.phy_offset, newest.msg_size) if newest is not None else None
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if message is None or newest is None or message.topic != TIMER_TOPIC or queue is None:
            return otherwise
        offset = message.queue_offset
        for at in range(offset, max(offset - _LOOK_BACK, -1), -1):
            unit = queue.unit(at)
            if unit is not None and unit.phy_offset == newest.phy_offset:
                return at + 1
        return offset + 1

    def _already_logged(self, low: int, high: int) -> tuple[int, Ints]:
        """Return ``low`` as the offset to start at, and the messages from there that already have a unit."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        unit = queue.unit(low) if queue is not None else None
        if unit is None:
            return high, no_positions()
        known = [no_positions()]
        for _, units in self._log.scan():
            phys = units["phy_offset"].astype(np.int64)
            known.append(phys[phys >= unit.phy_offset])
        return low, np.unique(np.concatenate(known))
