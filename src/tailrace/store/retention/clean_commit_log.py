"""Deletes CommitLog files, oldest first (RocketMQ's CleanCommitLogService).

Invariants, for a kill or a power loss anywhere:
  D1  Only the oldest file is deleted, one at a time. Its name is durably removed before the next file
      is touched.
  D2  The least offset moves after the name is removed and before the bytes are freed.
  D3  A file that cannot be renamed stays in the list, and no file after it is deleted.
  D4  No new reader gets a file that will be deleted; readers that hold it keep its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import DiskFullError, StoreError
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog
from tailrace.store.retention.disk_check import DiskCheckService
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.pins import Pin, PinKind, PinSource, held_by, pin_policies
from tailrace.store.retention.rules import (
    MANUAL_DELETE_TIMES,
    NO_FILE,
    Rule,
    SegmentFacts,
    SegmentVerdict,
    Trigger,
    explain,
    is_time_to_delete,
    segment_time,
    select_to_free,
)
from tailrace.store.retention.topic_rules import TopicNeeds
from tailrace.store.retention.trash import Trash
from tailrace.store.running_flags import RunningFlags

__all__ = ["CleanCommitLogService", "LogNeeds"]

_log = get_logger(__name__)
_MS: Final = 1_000_000
_HOUR_MS: Final = 3_600_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNeeds:
    """What others need of the log before a file of it may be deleted."""

    pins: Sequence[PinSource]
    topics: Callable[[], TopicNeeds | None]
    """Returns the part of the log that topics with rules of their own need."""
    is_archived: Callable[[MappedFile], bool]
    """Compares a part of the oldest file with the archive. Returns True when all of it is compared, or without one."""
    units_until: Callable[[], int]
    """Returns the position up to which all records have units, in memory at least."""
    rewrite_timers: Callable[[int, int], tuple[int, int]]
    """Copies the pending timers between two positions to the end of the log. Returns how many were
    copied and how many are lost."""


@final
class CleanCommitLogService:
    """Makes a pass at the start and at each ``cleanResourceInterval``. A step deletes one file.

    A Java broker makes its first pass after a minute, so one that is restarted more often deletes nothing.

    ``store_timestamp`` returns the store time of the record at a position, or -1. ``dispatched_until``
    returns the position up to which records are dispatched; if its argument is a position, it syncs the
    queues first when that helps to reach the position. ``count_messages`` returns the messages by topic
    between two positions.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, config: StoreConfig, commit_log: CommitLog,
        flags: RunningFlags, trash: Trash, disk: DiskCheckService, store_timestamp: Callable[[int], int],
        dispatched_until: Callable[[int], int], count_messages: Callable[[int, int], dict[str, int]],
        forced_deletions: ForcedDeletions, needs: LogNeeds,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._config = config
        self._log = commit_log
        self._flags = flags
        self._trash = trash
        self._disk = disk
        self._store_timestamp = store_timestamp
        self._dispatched_until = dispatched_until
        self._count_messages = count_messages
        self._forced_deletions = forced_deletions
        self._policies = pin_policies(config)
        self._lock = threading.Lock()
        now = clock.monotonic_ns()
        self._next_pass_ns = now
        self._last_redelete_ns = now
        self._trigger = Trigger()
        self._left = 0
        self._deleted_in_pass = 0
        self._warned = ""
        self._hanged: SegmentVerdict | None = None
        """Reason why the first file must be deleted although readers still hold it."""
        self.needs = needs
        self._comparing = False
        self.lost_timers = 0
        self._rescued = (-1, 0, 0)
        """(first position of the last file whose timers were copied, timers copied, timers lost)."""
        self._request: FreeRequest | None = None
        """The last request for bytes, under way or ended."""
        self.manual_times = 0
        self.deleted_files = 0
        self.forced_files = 0
        self.forced_messages = 0
        self.deleted_bytes = 0
        self.fruitless_passes = 0

    # -- asked from outside

    def execute_delete_files_manually(self) -> None:
        """Make the next 20 passes delete expired files at any hour (request 329).

        The first of these passes starts with the next step.
        """
        with self._lock:
            self.manual_times = MANUAL_DELETE_TIMES
            self._next_pass_ns = min(self._next_pass_ns, self._clock.monotonic_ns())
        events.EXPIRED_FILES_ARE_DELETED_BY_HAND.log(_log, passes=self.manual_times)

    def request_free(self, wanted_bytes: int) -> FreeRequest:
        """Have the service delete the oldest files without a pin until this many bytes are freed.

        The first file is deleted in the next step. Raises StoreError if another request is under way.
        """
        with self._lock:
            return self._new_request(wanted_bytes)

    def run_free(self, wanted_bytes: int) -> FreeRequest:
        """Do the same as a whole pass without pauses; return the request when it has ended."""
        with self._lock:
            request = self._new_request(wanted_bytes)
            self._begin_request()
            while self._left:
                self._pass_step()
                self._trash.empty()
            return request

    def plan_free(self, wanted_bytes: int) -> FreeRequest:
        """Return how a request would end if it was made now. Nothing is deleted.

        Any thread may call it: pin sources keep what they have found, so they have one caller at a time.
        """
        with self._lock:
            files = self._log.queue.files
            if files:  # as the request does, before it deletes a file
                self._dispatched_until(files[-1].file_from_offset)
            verdicts = self._verdicts(Trigger(requested=True))
        return FreeRequest.planned(wanted_bytes, *select_to_free(verdicts, wanted_bytes))

    @property
    def free_request(self) -> FreeRequest | None:
        """The last request for bytes, under way or ended; None if there was no request."""
        return self._request

    def _new_request(self, wanted_bytes: int) -> FreeRequest:
        if self._request is not None and not self._request.ended:
            raise StoreError(
                f"a request to free {self._request.wanted_bytes} bytes is under way; "
                f"{self._request.freed_bytes} are freed")
        self._request = FreeRequest(wanted_bytes)
        events.FILES_ARE_DELETED_TO_FREE_REQUESTED_BYTES.log(_log, bytes=wanted_bytes)
        return self._request

    def verdicts(self) -> list[SegmentVerdict]:
        """Return the verdicts of a pass made now, for all files. Any thread may call it."""
        with self._lock:
            return self._verdicts()

    def _verdicts(self, trigger: Trigger | None = None, most: int | None = None) -> list[SegmentVerdict]:
        """Return the verdicts of a pass made now, for the ``most`` oldest files or for all. Needs ``_lock``."""
        assert self._lock.locked(), "pin sources have one caller at a time"
        files = self._log.queue.files
        trigger = trigger or self.trigger()
        return explain(
            self._facts(files if most is None else files[:most]), now_ms=self._clock.now_ms(),
            reserved_hours=self._config.file_reserved_time, clean_at_once=trigger.clean_at_once,
            requested=trigger.requested, pins=self._pins(), policies=self._policies,
            topics=self.needs.topics())

    def trigger(self) -> Trigger:
        """Return the present reasons for a pass."""
        verdict, config = self._disk.verdict, self._config
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006 - local hours
        return Trigger(
            is_time_to_delete(config.delete_when, now.hour), verdict.clean, self.manual_times > 0,
            verdict.clean_immediately and config.clean_file_forcibly_enable)

    def run_pass(self, *, manual: bool = False) -> int:
        """Make one whole pass without pauses, for tools. Return the number of deleted files."""
        with self._lock:
            self._begin_pass(manual=manual)
            while self._left:
                self._pass_step()
                self._trash.empty()
            return self._deleted_in_pass

    # -- the service

    def step(self) -> bool:
        """Start a pass when it is time; delete at most one file. Return True to be run again without a wait."""
        with self._lock:
            now = self._clock.monotonic_ns()
            if not self._left and self._request is not None and not self._request.ended:
                self._begin_request()
            elif not self._left and now >= self._next_pass_ns:
                self._next_pass_ns = now + self._config.clean_resource_interval * _MS
                self._roll_by_age()
                self._begin_pass()
            if self._left:
                again = self._pass_step()
                trigger = self._trigger
                pause = self._config.delete_commit_log_files_interval and not (
                    self._comparing and (trigger.clean_at_once or trigger.manual or trigger.requested))
                return again and not pause
            self._redelete_hanged_file(now)
            return False

    def _begin_pass(self, *, manual: bool = False) -> None:
        self._disk.check()
        self._trigger = self.trigger()._replace(manual=manual or self.manual_times > 0)
        self._deleted_in_pass = 0
        self._left = self._config.delete_file_batch_max if self._trigger.any else 0
        if self.manual_times:
            self.manual_times -= 1
        if self._left:
            events.LOOK_FOR_FILES_TO_DELETE.log(_log, trigger=self._trigger)

    def _begin_request(self) -> None:
        """Start the pass of a request, or continue with it after another pass."""
        self._trigger = Trigger(requested=True)
        self._deleted_in_pass = 0
        self._left = len(self._log.queue.files)
        if not self._left:
            self._end_request(NO_FILE)

    def _end_request(self, stopped: str) -> None:
        """End the request that is under way; ``stopped`` is why files stay, empty if all bytes are freed."""
        request = self._request
        if request is None:
            return
        request.end(stopped)
        events.THE_REQUEST_TO_FREE_BYTES_HAS_ENDED.log(
            _log, bytes=request.wanted_bytes, freed=request.freed_bytes, files=len(request.files),
            cause=stopped or "all are freed")

    def _roll_by_age(self) -> None:
        """Roll the last file if its first message is old, so that the messages of a quiet store also expire."""
        files = self._log.queue.files
        if not self._config.commit_log_roll_time or not files or not self._flags.is_writeable():
            return
        latest_ms = self._clock.now_ms() - round(self._config.commit_log_roll_time * _HOUR_MS)
        if files[-1].wrote_position and 0 < self._store_timestamp(
            files[-1].file_from_offset
        ) <= latest_ms:
            try:
                if self._log.roll(files[-1]):
                    events.ENDED_A_FILE_BY_ITS_AGE.log(_log, file=files[-1].path)
            except (DiskFullError, OSError) as error:
                events.CANNOT_END_A_FILE_BY_ITS_AGE.log(_log, file=files[-1].path, cause=error)

    def _pass_step(self) -> bool:
        """Delete the oldest file if its rule allows that, or compare a part of it with the archive first.

        Return True if the pass continues; the pass ends when the file stays.
        """
        self._comparing = False
        if self._trigger.clean_at_once and self._trash.draining_bytes:
            return False  # the files in the trash may free enough space
        if self._trigger.clean_at_once and self._deleted_in_pass:
            self._trigger = self._trigger._replace(
                clean_at_once=self._disk.check().clean_immediately)
        found = self._verdicts(self._trigger, 2)
        if found and not found[0].facts.dispatched and found[0].rule in {
            Rule.NOT_DISPATCHED, Rule.FORCED
        }:  # sync the queues only now, when that allows a file to be deleted
            self._dispatched_until(found[0].facts.until)
            found = self._verdicts(self._trigger, 2)
        if not found or not found[0].rule.deletable:
            self._end_pass(found[0] if found else None)
            return False
        verdict = found[0]
        self._disk.blocked = ""
        if not any(pin.kind is PinKind.ARCHIVE for pin in verdict.pins) and (
            not self.needs.is_archived(self._log.queue.files[0])
        ):
            self._comparing = True  # the next step continues, or finds the pin that a difference has set
            return True
        if not self._delete(self._log.queue.files[0], verdict):
            self._end_pass(verdict)
            return False
        self._deleted_in_pass += 1
        self._left -= 1
        if self._trigger.requested and self._request is not None:
            self._request.count(verdict)
            if self._request.done:
                self._left = 0
                self._end_request("")
                return False
        if not self._left:
            self._end_pass(None)
        return True

    def _end_pass(self, kept: SegmentVerdict | None) -> None:
        self._left = 0
        if self._trigger.requested:
            self._end_request(_why_ended(kept))
            return
        refused = kept is not None and kept.rule is Rule.REFUSED
        self._disk.blocked = held_by(kept.pins) if kept is not None and refused else ""
        if self._deleted_in_pass or not self._trigger.space:
            self._warned = ""
            return
        self.fruitless_passes += 1
        why = NO_FILE if kept is None else kept.why_kept
        if why != self._warned:
            self._warned = why
            events.SPACE_IS_SHORT_AND_NOTHING_WAS_DELETED.log(_log, reason=self._disk.verdict.reason, cause=why)

    def _delete(self, file: MappedFile, verdict: SegmentVerdict | None) -> bool:
        """Delete the oldest file. Return False if it must stay for now."""
        now_ms = self._clock.monotonic_ns() // _MS
        if verdict is not None and verdict.rule is Rule.FORCED:
            self._rescue_timers(file)
        if (file.leased or not file.available) and not file.retire(
            now_ms, self._config.destroy_maped_file_interval_forcibly
        ):
            events.A_FILE_TO_DELETE_IS_BEING_READ.log(_log, file=file.path)
            self._hanged = verdict
            return False
        path, directory = file.path, file.path.rpartition("/")[0]
        forced = verdict is not None and verdict.forced
        until = file.file_from_offset + file.size
        lost = self._count_messages(file.file_from_offset, until) if forced else {}
        try:
            self._trash.take(file)
        except OSError as error:
            events.CANNOT_DELETE_A_FILE.log(_log, file=path, cause=error)
            return False
        self._log.queue.drop_head(file)
        file.close()
        self._trash.add(file, directory)
        self.deleted_files += 1
        self.deleted_bytes += file.size
        if verdict is not None and verdict.forced:
            self._tell_forced(path, verdict, lost)
        else:
            events.DELETED_AN_EXPIRED_FILE.log(_log, file=path, min_phy_offset=self._log.min_offset)
        return True

    def _rescue_timers(self, file: MappedFile) -> None:
        """Write pending timers again before their file is deleted; once, even if readers hold the file."""
        start = file.file_from_offset
        if self._rescued[0] != start:
            self._rescued = start, *self.needs.rewrite_timers(start, start + file.size)

    def _tell_forced(self, path: str, verdict: SegmentVerdict, lost: dict[str, int]) -> None:
        """Count, log and record a file that was deleted before it expired."""
        _, rewritten, lost_timers = self._rescued
        if self._rescued[0] != verdict.facts.file_from_offset:
            rewritten = lost_timers = 0
        self.forced_files += 1
        self.forced_messages += sum(lost.values())
        self.lost_timers += lost_timers
        reason, pins = self._disk.verdict.reason, held_by(verdict.pins)
        if verdict.rule is Rule.REQUESTED and self._request is not None:
            reason = f"{self._request.wanted_bytes} bytes were requested"
        events.DELETED_BEFORE_ITS_TIME.log(
            _log, file=path, expires_ms=verdict.expires_ms, reason=reason, pins=pins or "none", lost=lost,
            timers_rewritten=rewritten, timers_lost=lost_timers)
        self._forced_deletions.note({
            "time": self._clock.now_ms(), "file": path.rpartition("/")[2],
            "expires": verdict.expires_ms, "reason": reason, "pins": pins, "messages": lost,
            "timersRewritten": rewritten, "timersLost": lost_timers})

    def _redelete_hanged_file(self, now_ns: int) -> None:
        """Retry at intervals to delete a first file that readers still hold."""
        if now_ns - self._last_redelete_ns < self._config.redelete_hanged_file_interval * _MS:
            return
        self._last_redelete_ns = now_ns
        files = self._log.queue.files
        if len(files) > 1 and not files[0].available:
            self._delete(files[0], self._hanged)

    # -- facts

    def _facts(self, files: tuple[MappedFile, ...]) -> list[SegmentFacts]:
        now_ms = self._clock.now_ms()
        flushed, dispatched = self._log.queue.flushed_where, self._dispatched_until(-1)
        units_until = self.needs.units_until()
        found = []
        for file, following in zip(files, (*files[1:], None), strict=False):
            stored = self._store_timestamp(following.file_from_offset) if following else -1
            mtime_ms, allocated = self._mtime_and_allocated(file, now_ms)
            time_ms, source = segment_time(self._config.expire_by, stored, mtime_ms, now_ms)
            until = file.file_from_offset + file.size
            found.append(SegmentFacts(
                file.path, file.file_from_offset, file.size, time_ms, source, until <= flushed,
                until <= dispatched, until <= units_until, allocated))
        return found

    def _mtime_and_allocated(self, file: MappedFile, now_ms: int) -> tuple[int, int]:
        try:
            stat = self._file_system.stat(file.path)
        except OSError:
            return now_ms, 0  # its age is unknown, so it stays
        return stat.mtime_ms, stat.allocated

    def _pins(self) -> list[Pin]:
        return [pin for source in self.needs.pins for pin in source()]

    def stats(self) -> dict[str, Any]:
        """Return the counters, for operators and metrics."""
        files = self._log.queue.files
        return {
            "deletedFiles": self.deleted_files, "forcedDeletedFiles": self.forced_files,
            "forcedDeletedMessages": self.forced_messages,
            "forcedDeletedTimers": self.lost_timers, "deletedBytes": self.deleted_bytes,
            "fruitlessCleanPasses": self.fruitless_passes,
            "trashBytes": self._trash.total_bytes, "trashFailures": self._trash.failures,
            "manualDeletePassesLeft": self.manual_times,
            "hangedFile": "" if not files or files[0].available else files[0].path,
        }


def _why_ended(kept: SegmentVerdict | None) -> str:
    """Return why a request ended at a file."""
    if kept is None:
        return NO_FILE
    if kept.rule.deletable:
        return f"{kept.facts.path} stays, it is being read or cannot be moved; it is tried again later"
    return kept.why_kept
