"""Recovery: repair the files of a directory in numbered passes.

  1  load        read the file lists of log, queues and index; remove queue files that cannot be right
  2  decide      choose where the walk starts (``table``): at Tailrace's progress if it matches, else where
                 checkpoint or clean stop say, but never after a segment whose records do not all have
                 a unit, nor after the end of the index
  3  rewind      end queues and index before that position; bytes after it stay in their files
  4  walk        check the records (length, position, checksum); write their units and entries, or find
                 them on disk; write progress every few seconds
  5  step over   if a record that counts follows damage, copy the damage to quarantine; its messages keep
                 their queue offsets, whose units cover the damaged bytes and are never served
  6  cut         if no such record follows, the log ends there: copy the rest to quarantine, lower the
                 checkpoint, clear the queues after their ends, and clear the log last
  7  sync        make durable what was recovered, before it is reported or served
  8  offsets     remove queues of deleted topics; compute next queue offsets and least offsets

The log of a slave must stay a prefix of its master's. So damage in its middle is never stepped over: above the
position that was synced, the log ends there, and its master sends the rest again; below it the open is refused. A
record at the end whose last bytes have not arrived is cut off without a copy, because the master has all of it.

Invariant: at every moment queues and index hold only what the log confirms. They may lack units and
entries. So a kill between any two steps leaves a directory that is recovered in the same way again. Every
unit and entry of a record after the start is written or compared. Units and entries before the start
are trusted because of the checks of pass 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.config import BrokerRole, FlushDiskType, RecoveryMode, StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import File, FileSystem
from tailrace.env.read_ahead import in_background
from tailrace.env.whole_files import WHOLE_FILE_MAX
from tailrace.errors import CorruptionError, DispatchWaitsError, OddFileError
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.dispatch import Dispatcher, parse_delay_levels
from tailrace.store.hooks import Follower
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives
from tailrace.store.log_paths import segment_files
from tailrace.store.multi_dispatch import rows_with_lmq
from tailrace.store.progress import Position, Progress, ProgressFile, checkpoint_bytes
from tailrace.store.record_batch import RecordBatch, rows_by_queue
from tailrace.store.recovery.log_tail import is_incomplete, nonzero_after
from tailrace.store.recovery.offsets import QueueOffsets
from tailrace.store.recovery.quarantine import AFTER_THE_END, QUEUE, TOO_LONG, Quarantine
from tailrace.store.recovery.rebuild_dispatcher import RebuildDispatcher
from tailrace.store.recovery.start import RecoveryReport, RecoveryStart, has_gap, is_next, lost_ends
from tailrace.store.recovery.table import StartDecision, StopDecision, decide_stop
from tailrace.store.sealing import placeholder
from tailrace.store.store_checkpoint import StoreCheckpoint
from tailrace.store.walk.log_walk import Damage, NextOf, Walk
from tailrace.store.walk.parallel import ParallelWalk
from tailrace.store.walk.scan import LogEnd, checks_of, scan_files

__all__ = ["MakeWalk", "Recovery", "RecoveryOptions", "RecoveryReport"]

_log = get_logger(__name__)
_TORN: Final = record.REASON_NAMES[C.REASON_TORN]
_LAST_QUEUE_FILES: Final = 2
_SMALL: Final = 64 << 20
_RECENT_ROWS: Final = 4096
"""Number of last rows that are searched for the last 64 records; a record with LMQ units has several rows."""
_REPORT_NS: Final = 1_000_000_000
_SAVE_NS: Final = 5_000_000_000
MakeWalk = Callable[[Sequence[MappedFile], int, int, int, NextOf, Dispatcher], Walk[RecordBatch]]
"""(files, start, until, checks, next_of, dispatcher): returns the walk, see ``Walk``. It may read the log itself."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """How an open recovers."""

    last_exit_ok: bool
    """True if the store was closed, so there was no abort file."""
    read_only: str = ""
    """Why nothing may be written, or "". With a reason the file system must be an overlay: queues and index are
    completed in it, and the log is not changed."""
    rebuild: bool = False
    """Trust no derived file: build queues and index from the log."""
    seal_damage: bool = False
    """Write placeholder records over damage."""
    tell: Callable[[float], None] = lambda _: None
    """Gets the part of the log that is done, 0 to 1, about once a second."""
    walk: MakeWalk = ParallelWalk
    """Makes the walk, before anything is changed."""
    dry_run: bool = False
    """End after the decision about the end of the log, and write no units and entries. Only for an overlay."""
    until: int | None = None
    """Position where the log ends, whatever follows, because another process writes there. Only for an overlay."""
    follower: Follower | None = None
    """On a slave whose broker will run: what knows the topics of its master. Without it each queue may be made."""


@final
@dataclass
class Recovery:
    """One recovery of one directory."""

    _clock: Clock
    _file_system: FileSystem
    _commit_log: CommitLog
    _queues: ConsumeQueueStore
    _index: IndexService | None
    _quarantine: Quarantine
    _checkpoint: StoreCheckpoint
    _progress: ProgressFile
    _lives: EndedLives
    _config: StoreConfig
    _options: RecoveryOptions
    _synced_until: int
    """Position up to which the last process had synced the log, by its hint; -1 if it is not known."""

    def __post_init__(self) -> None:
        config = self._config
        self._follows = config.broker_role is BrokerRole.SLAVE
        self._mode = config.recovery_mode
        if self._follows and self._mode is RecoveryMode.TOLERATE_ANY:
            self._mode = RecoveryMode.TOLERATE_TAIL
        self._dispatcher = RebuildDispatcher(
            self._queues, self._index, parse_delay_levels(config.message_delay_level), self._lives, self._next_offset)
        self._dispatcher.follower = self._options.follower
        self._sync_log = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waits_at = -1
        """Position of the first records that are not dispatched, because one is of a topic that a slave must ask for;
        -1 if all are."""
        self.position: Position | None = None
        """Position of the last record that was dispatched; None without a record."""
        self._last_record = (-1, 0, 0)
        self._recent: list[int] = []
        self._check = checks_of(config)
        self._sync_from = 0
        self._found: Progress | None = None
        self._lost: dict[tuple[str, int], int] = {}
        """Least next offset of queues whose last messages are lost with a segment file."""
        self._unwritten_ends: dict[tuple[str, int], int] = {}
        """Ends of queues by the records that a dry run has walked."""
        self._bad_index = ""
        self._is_clean = False
        self._synced: Callable[[], None] = lambda: None
        self.report = RecoveryReport(check_crc=config.check_crc_on_recover, read_only=self._options.read_only)

    def run(self) -> RecoveryReport:
        """Run all passes and return the report.

        Raises CorruptionError if the mode refuses the log, DiskFullError or OSError, and has not cut the log then.
        """
        began = self._clock.monotonic_ns()
        report = self.report
        self._load()  # pass 1
        if self._decide():  # pass 2
            if not self._options.dry_run:
                events.RECOVER.log(_log, mode=report.mode, from_=report.start, why=report.why)
            until = self._commit_log.max_offset
            if self._options.until is not None:
                until = max(min(until, self._options.until), report.start)
            walk = self._options.walk(
                self._commit_log.queue.files, report.start, until, self._check, self._next_of, self._dispatcher)
            self._rewind()  # pass 3
            self._mark_unsynced()
            self._start_log_sync()
            self._walk(walk, until)  # passes 4 to 6
            if self._options.dry_run:
                return report
        else:
            self._lower_checkpoint(0)
            self._forget_queues()
        self._sync()  # pass 7
        self._settle_offsets()  # pass 8
        report.ms = (self._clock.monotonic_ns() - began) / 1e6
        events.RECOVER_OVER.log(_log, mode=report.mode, to=report.end, scanned=report.scanned, ms=round(report.ms, 1))
        return report

    # -- pass 1

    def _load(self) -> None:
        self._mend_lengths()
        self._commit_log.queue.load()
        for (topic, queue_id), why in self._queues.load().items():
            events.QUEUE_FILES_ARE_REMOVED.log(_log, topic=topic, queue_id=queue_id, cause=why)
            self._queues.table[topic, queue_id].remove_files()
            self.report.rebuilt.append(f"queue {topic}/{queue_id}: {why}")
        self._bad_index = self._index.load() if self._index is not None else ""

    def _mend_lengths(self) -> None:
        """Give segments of a wrong length the right one: extend with a hole, or cut after a copy to quarantine."""
        log = self._commit_log.queue
        paths = segment_files(self._file_system, log.directories)
        stats = [self._file_system.stat(path) for _, path in paths]
        while stats and not stats[-1].size and not stats[-1].is_dir:
            stats.pop()  # empty last files; load removes them
        for number, ((start, path), stat) in enumerate(zip(paths, stats, strict=False)):
            if stat.is_dir or stat.size == log.file_size:
                continue
            with closing(self._file_system.open(path, writable=True)) as file:
                if stat.size > log.file_size:
                    more = _data_after(file, log.file_size, stat.size)
                    if more.strip(b"\0"):
                        later = number < len(paths) - 1
                        self._decided(
                            "a segment file is too long", "", " what follows its last byte", path,
                            start + log.file_size, later=later, files=later, data=True)
                    self._keep(path, log.file_size, start + log.file_size, more, TOO_LONG)
                events.SEGMENT_FILE_OF_A_WRONG_LENGTH_IS_MENDED.log(
                    _log, file=path, expected=log.file_size, actual=stat.size)
                file.truncate(log.file_size)
                file.sync_data()
            self.report.rebuilt.append(f"length of segment {path.rpartition('/')[2]}, was {stat.size}")

    # -- pass 2

    def _decide(self) -> bool:
        """Choose the start of the walk. Return False if there is nothing to walk."""
        last_exit_ok, rebuild = self._options.last_exit_ok, self._options.rebuild
        found = self._progress.read() if not rebuild else None
        start = RecoveryStart(
            self._file_system, self._commit_log, self._queues, self._index, self._checkpoint,
            self.report, self._bad_index, last_exit_ok)
        self._found = start.decide(found, rebuild=rebuild)
        if self.report.decision == StartDecision.NOTHING.name:
            return False
        self._is_clean = self._found is not None and self._found.clean and last_exit_ok
        if self._found is not None and (wrong := self._drop_unfinished_entries(self._found)):
            self._found = start.decide(found, rebuild=False, wrong=wrong)
        self._lost = lost_ends(self._commit_log.queue.files, self._queues.table.values(), found)
        if self._found is not None:
            self._sync_from = self.report.start
        return True

    def _drop_unfinished_entries(self, found: Progress) -> str:
        """After a kill: drop what the index may have in part. Return which synced entries are damaged, or ""."""
        if self._index is None or found.index is None or self._is_clean:
            return ""
        # Progress matched, so entries after the start also belong to this log.
        name, count = (found.index["files"] or [""])[-1], found.index["count"]
        if found.index["end"] >= found.until:  # a full disk had ended dispatch between two keys of a record
            count = 0
        complete = self._index.drop_unfinished(
            name, count, self.report.start, self._commit_log.store_timestamp_at,
            lambda end, begin: is_next(self._commit_log, end, begin))
        return "" if complete else f"entries of index file {name} are damaged"

    # -- pass 3

    def _rewind(self) -> None:
        start = self.report.start
        known = self._found
        for (topic, queue_id), queue in self._queues.table.items():
            if known is not None and str(queue_id) not in known.queues.get(topic, {}):
                queue.remove_files()  # made after that progress: all its messages are walked
            elif known is None or queue.last_phy_offset >= start:
                queue.rewind(start)
            if known is None:
                self._queues.dirty.add(queue)
        if self._index is not None and known is None:
            self._index.rewind(start, self._commit_log.store_timestamp_at)

    def _next_offset(self, topic: str, queue_id: int, phy_offset: int) -> int:
        """Return the queue offset of a queue's first record at or after a position, -1 if it is not within 64 MiB."""
        until = min(phy_offset + _SMALL, self._commit_log.max_offset)
        files = self._commit_log.queue.files
        for chunk in scan_files(files, phy_offset, until, self._check, LogEnd()):
            rows = rows_with_lmq(chunk.data, chunk.rows)
            for name, number, chosen in rows_by_queue(chunk.data, rows):
                if (name, number) == (topic, queue_id):
                    return int(rows[chosen[0], C.QUEUE_OFFSET])
        return -1

    # -- passes 4 to 6

    def _walk(self, walk: Walk[RecordBatch], until: int) -> None:
        report = self.report
        if self._index is not None and until - report.start > _SMALL and not report.read_only:
            self._index.build()
        try:
            self._take_all(walk, until)
        finally:
            if self._index is not None:
                self._index.end_build()
        report.end = walk.end.phy_offset
        cut_short = self._follows and is_incomplete(self._commit_log.queue, walk.end.phy_offset, self._synced_until)
        decision = self._decide_end(walk, cut_short=cut_short)
        if not self._options.dry_run:
            self._cut(decision, walk.end, is_copied=decision is StopDecision.CUT and not cut_short)

    def _take_all(self, walk: Walk[RecordBatch], until: int) -> None:
        report = self.report
        reported = saved = self._clock.monotonic_ns()
        for item in walk.items():
            if isinstance(item, Damage):
                if self._follows and 0 <= self._synced_until <= item.phy_offset:
                    walk.data_after_end = True
                    break
                self._step_over(item)
                continue
            self._take(item)
            now = self._clock.monotonic_ns()
            if now - reported >= _REPORT_NS:
                reported = now
                done = (self._last_record[0] - report.start) / max(until - report.start, 1)
                events.RECOVERING.log(
                    _log, at=self._last_record[0], of=until, percent=int(100 * done), scanned=report.scanned)
                self._options.tell(done)
            if now - saved >= _SAVE_NS and not report.read_only and self._waits_at < 0:
                self._catch_up()
                self._save()
                saved = self._clock.monotonic_ns()
        self._catch_up()

    def _catch_up(self) -> None:
        """Write the index entries that are still in memory."""
        if self._index is not None:
            self._index.write_built()

    def _take(self, batch: RecordBatch) -> None:
        rows = batch.rows
        if not self._options.dry_run and self._waits_at < 0:
            try:
                self._dispatcher.dispatch_batch(batch)
            except DispatchWaitsError:  # the broker of a slave finds out what is needed
                self._waits_at = int(rows[0, C.PHY])
        if self._options.dry_run or self._waits_at >= 0:
            self._note_ends(batch)
        self.report.scanned += batch.records
        last = rows[-1]
        self._last_record = int(last[C.PHY]), int(last[C.SIZE]), int(last[C.STORE_TIMESTAMP])
        self._commit_log.last_store_timestamp = max(self._commit_log.last_store_timestamp, self._last_record[2])
        if self._waits_at < 0:
            places = rows[-_RECENT_ROWS:, C.PHY]
            places = places[np.flatnonzero(np.diff(places, prepend=-1))]  # LMQ units repeat a position
            self._recent = [*self._recent, *places[-64:].tolist()][-64:]
            self.position = Position(self._recent[0], *self._last_record)

    def _next_of(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        # A queue without a unit does not count: the position of its first file says nothing.
        written = -1 if queue is None or queue.max_offset <= queue.first_offset else queue.max_offset
        return max(written, self._unwritten_ends.get((topic, queue_id), -1))

    def _note_ends(self, batch: RecordBatch) -> None:
        order, bounds, keys = batch.sorted()
        offsets = batch.rows[order, C.QUEUE_OFFSET]
        for (raw, queue_id), (first, last) in zip(keys, pairwise(bounds.tolist()), strict=True):
            if first < last:
                key = raw.decode("utf-8", "replace"), queue_id
                self._unwritten_ends[key] = max(self._unwritten_ends.get(key, 0), int(offsets[first:last].max()) + 1)

    def _step_over(self, damage: Damage) -> None:
        """Pass 5: handle invalid bytes that are followed by a record that counts."""
        self._decided(
            "damage in the middle of the log", damage.reason, f": {damage.reason}", damage.path, damage.phy_offset,
            later=True, files=False, data=True)
        for file in self._commit_log.queue.files:
            low = max(damage.phy_offset - file.file_from_offset, 0)
            high = min(damage.until - file.file_from_offset, file.size)
            if low < high:
                where = file.path, low, file.file_from_offset + low
                kept = self._keep(*where, file.read(low, high - low), damage.reason)
                if not kept and not self.report.read_only:  # zeros
                    self._quarantine.note(*where, high - low, damage.reason)
        self.report.stepped_over.append({
            "physicalOffset": damage.phy_offset, "length": damage.size, "reason": damage.reason})
        events.STEPPED_OVER_DAMAGE.log(
            _log, file=damage.path, phy_offset=damage.phy_offset, length=damage.size, reason=damage.reason)
        self._dispatcher.note_damage(damage)
        if self._options.seal_damage and not self.report.read_only:
            self._seal(damage)

    def _seal(self, damage: Damage) -> None:
        """Write a placeholder record over damage, one for each segment; its bytes are in quarantine already."""
        left = damage.size
        for file in self._commit_log.queue.files:
            start, end = max(damage.phy_offset, file.file_from_offset), file.file_from_offset + file.size
            part = replace(damage, phy_offset=start, until=min(damage.until, end))
            if part.size > 0 and (made := placeholder(part, file, self._last_record[2])):
                file.write_at(made, start - file.file_from_offset)
                left -= part.size
                self.report.sealed.append({"physicalOffset": start, "length": part.size})
                events.DAMAGE_IS_SEALED.log(_log, phy_offset=start, length=part.size)
        if left:
            events.DAMAGE_CANNOT_BE_SEALED.log(_log, phy_offset=damage.phy_offset, length=left)

    def _decided(
        self, what: str, reason: str, refused: str, path: str, phy_offset: int, *, later: bool, files: bool, data: bool
    ) -> StopDecision:
        """Return the decision of ``STOP_TABLE`` for a position. Raises CorruptionError if the mode refuses."""
        decision = decide_stop(self._mode, {"torn": reason == _TORN, "later": later, "files": files, "data": data})
        if decision is StopDecision.REFUSE:
            slave = (
                "; a slave steps over no damage: run `tailrace repair STORE --follow-master`, and before it `tailrace "
                "repair STORE --seal-damage` on its master if that has damage as well" if self._follows else "")
            raise CorruptionError(
                f"{what}, recoveryMode {self._mode.value} refuses{refused}{slave}", path=path, phy_offset=phy_offset)
        return decision

    def _keep(self, path: str, at: int, phy_offset: int, data: bytes, reason: str) -> int:
        if self.report.read_only:
            return 0
        kept = self._quarantine.keep(path, at, phy_offset, data, reason)
        self.report.quarantined_bytes += kept
        return kept

    def _decide_end(self, walk: Walk[RecordBatch], *, cut_short: bool) -> StopDecision:
        end, reason = walk.end, record.REASON_NAMES[walk.end.reason]
        has_data = walk.data_after_end
        if has_data is None:
            has_data = any(True for _ in nonzero_after(self._commit_log.queue, end.phy_offset))
        if has_data and cut_short:
            return StopDecision.CUT
        return self._decided(
            "the log ends in bytes that are not a record", reason, f": {reason}", end.path, end.phy_offset,
            later=False, data=has_data, files=end.phy_offset < self._commit_log.queue.files[-1].file_from_offset)

    def _cut(self, decision: StopDecision, end: LogEnd, *, is_copied: bool) -> None:
        """Pass 6: end the log where the walk ended."""
        log, reason = self._commit_log.queue, record.REASON_NAMES[end.reason]
        self.report.at_end = decision.name
        for file, at, data in nonzero_after(log, end.phy_offset) if is_copied else ():
            kept = self._keep(file.path, at, file.file_from_offset + at, data, f"{AFTER_THE_END}{reason}")
            if not self.report.read_only:
                self.report.cut.append({"file": file.path, "position": at, "length": kept, "reason": reason})
        self._lower_checkpoint(end.phy_offset)
        if self._index is not None and self._index.end_phy_offset >= end.phy_offset:
            self._index.rewind(  # W7: no entry may name a record that is cut off
                end.phy_offset, self._commit_log.store_timestamp_at, durably=True)
        if has_gap([file for file in log.files if file.file_from_offset <= end.phy_offset]):
            self._continue_after_lost()
        for queue in self._queues.table.values():
            unflushed = 0 if self._is_clean or queue not in self._queues.dirty else (
                _LAST_QUEUE_FILES if self._found is not None else len(queue.files.files))
            if queue.settle(clear_after_end=not self._is_clean, unflushed_files=unflushed):
                self._queues.dirty.add(queue)
        if self.report.read_only:
            log.set_end(end.phy_offset)
        else:
            log.truncate_dirty_files(end.phy_offset, clear=decision is StopDecision.CUT)

    def _continue_after_lost(self) -> None:
        """Move the ends of queues past the messages that are lost with a segment file."""
        for (topic, queue_id), end in sorted(self._lost.items()):
            queue = self._queues.find_or_create(topic, queue_id)
            if queue.max_offset >= end:
                continue
            events.THE_LAST_MESSAGES_OF_A_QUEUE_ARE_LOST.log(
                _log, topic=topic, queue_id=queue_id, from_=queue.max_offset, to=end)
            queue.continue_at(end)
            self._queues.dirty.add(queue)

    def _lower_checkpoint(self, end: int) -> None:
        """Lower the checkpoint so that no field is after the end. It must be written before anything is cut."""
        phy_offset, _, timestamp = self._last_record
        fields = self._checkpoint.fields
        if phy_offset < 0 and end > 0:
            return  # no record was walked, so nothing is cut
        lowered = fields._replace(
            physic_msg_timestamp=min(fields.physic_msg_timestamp, timestamp),
            logics_msg_timestamp=min(fields.logics_msg_timestamp, timestamp),
            index_msg_timestamp=min(fields.index_msg_timestamp, timestamp),
            confirm_phy_offset=min(fields.confirm_phy_offset, end),
            logics_physical_offset=min(fields.logics_physical_offset, max(phy_offset, 0)))
        if lowered != fields:
            self._checkpoint.update(**lowered._asdict())
            self._checkpoint.flush(self._checkpoint.fields)

    def _forget_queues(self) -> None:
        """The log is empty: copy the queue files to quarantine, drop their units, and keep the queues' ends.

        New messages get offsets after the old ends, so consumers neither miss nor repeat a message.
        """
        for queue in self._queues.table.values():
            queue.find_end()
            last = queue.max_offset
            if not last:
                continue
            events.THE_LOG_IS_EMPTY.log(_log, topic=queue.topic, queue_id=queue.queue_id, max=last)
            queue.rewind(0)
            if queue.max_offset == last:
                continue  # only pre-blank units: an earlier open has done it
            for file in queue.files.files:
                file.end_at(file.size)
                self._keep(file.path, 0, file.file_from_offset, file.read(0, file.size),
                           f"{QUEUE}{queue.topic}/{queue.queue_id} without a log")
            queue.forget_messages(last)
        self._lost = lost_ends((), (), self._progress.read())
        self._continue_after_lost()
        if self._index is not None and (self._index.files or self._bad_index):
            self._index.clear()

    @property
    def dispatched_until(self) -> int:
        """Position up to which records have units and entries: the end of the log, unless dispatch must wait."""
        return self._waits_at if self._waits_at >= 0 else self._commit_log.max_offset

    # -- pass 7, pass 8 and progress

    def _settle_offsets(self) -> None:
        offsets = QueueOffsets(self._commit_log, self._queues, self._progress, self._lives)
        offsets.end_lives()
        if self._follows:
            offsets.drop_empty_queues()
        offsets.compute()

    def _unsynced_files(self) -> list[MappedFile]:
        """Return the segments that may have bytes of a killed process in the page cache only."""
        if self._is_clean:
            return []
        files = self._commit_log.queue.files
        return [file for file in files if file.file_from_offset + file.size > self._sync_from]

    def _mark_unsynced(self) -> None:
        """Count these segments as unsynced before the first read, so that each is synced before it is closed (F6)."""
        for file in self._unsynced_files():
            file.doubt()

    def _start_log_sync(self) -> None:
        """Start to sync, in a thread, what a killed process left in the page cache. Pass 7 waits for it."""
        small = self._commit_log.max_offset - self.report.start < _SMALL
        if self._is_clean or not self._sync_log or small:
            return
        files = self._unsynced_files()

        def sync() -> None:
            for file in files:
                file.flush()

        self._synced = in_background(sync)

    def _sync(self) -> None:
        """Under SYNC_FLUSH make the log durable, because no message may be served before.

        Under ASYNC_FLUSH, and for units and entries, the flush services find the files dirty and sync them.
        """
        self._synced()
        files = self._unsynced_files()
        for file in files if self._sync_log else ():
            file.flush()
        self._commit_log.queue.flushed_but(files)

    def _save(self) -> None:
        """Write progress during the walk, so that a recovery after a second kill continues from here."""
        last, size, _ = self._last_record
        log = self._commit_log.queue
        for file in log.files:
            if file.file_from_offset < last + size and file.file_from_offset + file.size > self._sync_from:
                file.flush()
        self._sync_from = last
        for queue in self._queues.dirty:
            queue.files.doubt(len(queue.files.files))
        self._queues.flush(0)
        if self._index is not None:
            self._index.flush()
        assert self.position is not None
        self._progress.write(Progress.of(
            self.position, self._commit_log,
            [checkpoint_bytes(self._file_system, self._checkpoint.path)], self._queues, self._index))
        events.RECOVERY_PROGRESS_SAVED.log(_log, at=last)


def _data_after(file: File, length: int, size: int) -> bytes:
    """Return the bytes of a file after ``length``, without the hole at its end.

    Raises OddFileError if there are more than fit into memory: nothing is cut off without a copy.
    """
    ranges = file.data_ranges(length, size)
    more = ranges[-1][1] - length if ranges else 0
    if more > WHOLE_FILE_MAX:
        raise OddFileError(
            file.path, f"is a segment of {length} bytes followed by {more} bytes, "
            f"at most {WHOLE_FILE_MAX} can go to quarantine")
    return file.pread(more, length)
