"""From the files of a directory to a store that is right: numbered passes.

  1  load        files of log, queues and index are taken; wrong lengths are refused by name
  2  decide      a clean stop is trusted when the last unit of every queue names a record that
                 agrees with it; otherwise, and after a kill, the whole log is walked
  3  walk        records are checked (length, position, checksum); their units are compared with
                 what is on disk and mended, a walk over the whole log also rebuilds the index
  4  step over   a record with a plausible length that is damaged, with a good one right behind it,
                 keeps its place: its queue gets a pre-blank unit, its bytes go to quarantine
  5  cut         the first bytes that are no record end the log: they are copied to quarantine,
                 later files too, then cleared; checkpoint and queues are cut before the log
  6  sync        what was recovered is made durable before anybody is told about it
  7  offsets     next queue offsets and least offsets are computed

A kill between any two steps leaves a directory that is recovered the same way again: queues and
index only ever lack something or hold what the log confirms.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.kernels import record
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue, ConsumeQueueStore
from tailrace.store.dispatch import Dispatcher
from tailrace.store.index_service import IndexService
from tailrace.store.log_scan import LogEnd, behind_damage, scan_files
from tailrace.store.quarantine import Quarantine
from tailrace.store.store_checkpoint import StoreCheckpoint

__all__ = ["Recovery", "RecoveryReport"]

_log = logging.getLogger(__name__)
_BODY: Final = record.CHECK_BODY_CRC
_PLACE: Final = record.CHECK_PHY_OFFSET | record.CHECK_PROP_CRC


@dataclass(slots=True)
class RecoveryReport:
    """What an open found and did."""

    mode: str = "empty"
    why: str = ""
    start: int = 0
    end: int = 0
    scanned: int = 0
    cut: list[dict[str, Any]] = field(default_factory=list)
    stepped_over: list[dict[str, Any]] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    quarantined_bytes: int = 0
    ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tailrace recover`` prints."""
        return {
            "mode": self.mode, "from": self.start, "why": self.why, "to": self.end,
            "scanned": self.scanned, "cut": self.cut, "steppedOver": self.stepped_over,
            "rebuilt": self.rebuilt, "quarantinedBytes": self.quarantined_bytes,
            "ms": round(self.ms, 1),
        }


@final
class Recovery:
    """One recovery of one directory."""

    def __init__(
        self,
        clock: Clock,
        file_system: FileSystem,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        dispatcher: Dispatcher,
        quarantine: Quarantine,
        checkpoint: StoreCheckpoint,
        *,
        check_crc: bool,
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._commit_log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._quarantine = quarantine
        self._checkpoint = checkpoint
        self._last_record = (0, 0)
        self._check = _PLACE | (_BODY if check_crc else 0)
        self.report = RecoveryReport()

    def run(self, *, last_exit_ok: bool) -> RecoveryReport:
        """All passes. Raises CorruptionError or OSError, and leaves the log uncut then."""
        began = self._clock.monotonic_ns()
        report = self.report
        self._commit_log.queue.load()  # pass 1
        self._queues.load()
        index_good = self._index is None or self._index.load()
        low = max(self._commit_log.min_offset, 0)
        if self._commit_log.queue.files:
            why = self._distrust(last_exit_ok=last_exit_ok, index_good=index_good)  # pass 2
            whole = bool(why)
            report.mode, report.why = ("abnormal", why) if whole else ("normal", "clean stop")
            report.start = low if whole else max(low, self._last_dispatched())
            if whole and self._index is not None:
                self._index.clear()
                report.rebuilt.append("index")
            _log.info("recover %s from=%d why=%s", report.mode, report.start, report.why)
            self._walk(whole=whole)  # passes 3 to 5
        else:
            self._commit_log.queue.flushed_where = 0
            self._lower_checkpoint(0)
            self._forget_queues()
        self._sync()  # pass 6
        self._compute_offsets()  # pass 7
        report.ms = (self._clock.monotonic_ns() - began) / 1e6
        _log.info("recover over mode=%s to=%d scanned=%d ms=%.1f", report.mode, report.end,
                  report.scanned, report.ms)
        return report

    # -- pass 2

    def _distrust(self, *, last_exit_ok: bool, index_good: bool) -> str:
        if not last_exit_ok:
            return "the abort file is there"
        if not index_good:
            return "an index file cannot be right"
        if self._index is not None and self._index.end_phy_offset >= self._commit_log.max_offset:
            return "the index names positions behind the log"
        if not self._queues.table:
            return "there is no queue"
        for queue in self._queues.table.values():
            if not self._last_unit_agrees(queue):
                return f"queue {queue.topic}/{queue.queue_id} disagrees with the log"
        return ""

    def _last_unit_agrees(self, queue: ConsumeQueue) -> bool:
        unit = queue.unit(queue.max_offset - 1)
        if unit is None or unit.size == PRE_BLANK_SIZE:
            return queue.max_offset == 0 or unit is not None
        if unit.phy_offset < self._commit_log.min_offset:
            return True  # its record was removed by retention
        data = self._commit_log.record_at(unit.phy_offset)
        if data is None or len(data) != unit.size:
            return False
        try:
            found = decode_message(data)
        except CorruptionError:
            return False
        return (found.topic, found.queue_id, found.queue_offset) == (
            queue.topic, queue.queue_id, queue.max_offset - 1)

    def _last_dispatched(self) -> int:
        last, size = -1, 0
        for queue in self._queues.table.values():
            unit = queue.unit(queue.max_offset - 1)
            if unit is not None and unit.size != PRE_BLANK_SIZE and unit.phy_offset > last:
                last, size = unit.phy_offset, unit.size
        if last < 0:
            return 0
        data = self._commit_log.record_at(last)
        if data is not None:
            self._last_record = (last, decode_message(data).store_timestamp)
        return last + size

    # -- passes 3 to 5

    def _walk(self, *, whole: bool) -> None:
        report = self.report
        end = LogEnd()
        start = report.start
        files = self._commit_log.queue.files
        until = self._commit_log.max_offset
        while True:
            for chunk in scan_files(files, start, until, self._check, end):
                self._dispatcher.dispatch(
                    chunk.data, chunk.rows, verify=whole,
                    min_phy_offset=max(self._commit_log.min_offset, 0))
                report.scanned += len(chunk.rows)
                last = chunk.rows[-1]
                self._last_record = int(last[record.C_PHY]), int(last[record.C_STORE_TIMESTAMP])
                self._commit_log.last_store_timestamp = self._last_record[1]
            after = self._behind_damage(end)
            if after is None:
                break
            start = after
        report.end = end.phy_offset
        self._cut(end, whole=whole)

    def _behind_damage(self, end: LogEnd) -> int | None:
        """Where to go on when a damaged record has a good one right behind it (pass 4)."""
        damaged = behind_damage(
            self._commit_log.queue.files, end, self._commit_log.max_offset, self._check)
        if damaged is None:
            return None
        size = damaged[1]
        file = self._commit_log.queue.find(end.phy_offset)
        assert file is not None
        data = self._commit_log.read(end.phy_offset, size)
        reason = record.REASON_NAMES[end.reason]
        self.report.quarantined_bytes += self._quarantine.keep(
            file.path, end.phy_offset - file.file_from_offset, end.phy_offset, data, reason)
        self.report.stepped_over.append(
            {"physicalOffset": end.phy_offset, "length": size, "reason": reason})
        _log.error("stepped over a damaged record file=%s phy_offset=%d reason=%s", file.path,
                   end.phy_offset, reason)
        return end.phy_offset + size

    def _cut(self, end: LogEnd, *, whole: bool) -> None:
        log = self._commit_log.queue
        reason = record.REASON_NAMES[end.reason]
        for file in log.files:
            start = max(end.phy_offset - file.file_from_offset, 0)
            if start >= file.size:
                continue
            for at, data in file.nonzero(start):
                kept = self._quarantine.keep(
                    file.path, at, file.file_from_offset + at, data, f"behind the end: {reason}")
                self.report.quarantined_bytes += kept
                self.report.cut.append(
                    {"file": file.path, "position": at, "length": kept, "reason": reason})
        self._lower_checkpoint(end.phy_offset)
        if whole:
            for queue in list(self._queues.table.values()):
                self._cut_queue(queue)
        log.truncate_dirty_files(end.phy_offset)

    def _lower_checkpoint(self, end: int) -> None:
        """Have no field name what will be gone; written before anything goes."""
        phy_offset, timestamp = self._last_record
        fields = self._checkpoint.fields
        lowered = fields._replace(
            physic_msg_timestamp=min(fields.physic_msg_timestamp, timestamp),
            logics_msg_timestamp=min(fields.logics_msg_timestamp, timestamp),
            index_msg_timestamp=min(fields.index_msg_timestamp, timestamp),
            confirm_phy_offset=min(fields.confirm_phy_offset, end),
            logics_physical_offset=min(fields.logics_physical_offset, phy_offset))
        if lowered != fields:
            self._checkpoint.update(**lowered._asdict())
            self._checkpoint.flush()

    def _cut_queue(self, queue: ConsumeQueue) -> None:
        confirmed = queue.confirmed_offset
        if confirmed < 0:
            # No record of it in the log: what retention removed stays, the rest is no message.
            queue.correct_min_offset(max(self._commit_log.min_offset, 0))
            confirmed = queue.min_offset
        if confirmed < queue.max_offset:
            _log.warning("truncate queue topic=%s queue_id=%d from=%d to=%d", queue.topic,
                         queue.queue_id, queue.max_offset, confirmed)
            queue.truncate(confirmed)
            self._queues.dirty.add(queue)

    def _forget_queues(self) -> None:
        """Without a log no unit names a message; offsets go on where the queues ended."""
        for queue in self._queues.table.values():
            if queue.max_offset:
                _log.warning("the log is empty, its messages are gone topic=%s queue_id=%d max=%d",
                             queue.topic, queue.queue_id, queue.max_offset)
        if self._index is not None and self._index.files:
            self._index.clear()

    # -- passes 6 and 7

    def _sync(self) -> None:
        log = self._commit_log.queue
        if log.files:
            for file in log.files[-2:]:  # older ones were full, so flushed, when these were begun
                file.flushed_position = 0
                file.flush()
            log.flushed_where = log.max_offset
        self._queues.flush(0)
        if self._index is not None:
            self._index.flush()

    def _compute_offsets(self) -> None:
        low = self._commit_log.min_offset
        for key, queue in self._queues.table.items():
            queue.correct_min_offset(low if low >= 0 else 1 << 62)
            self._commit_log.queue_offsets[key] = queue.max_offset
