"""The message store: CommitLog, queues, index, and the services that dispatch and flush.

``node`` opens it and holds the lock and the abort file of the directory. Order of start: load, recover, start
the services. Order of stop: refuse puts, dispatch the rest, flush log, queues and index, write the checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import orjson

from tailrace import events
from tailrace.config import BrokerRole, RecoveryMode, StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.descriptors import segment_file_limit
from tailrace.env.filesystem import File, FileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.scheduler import Scheduler, ServiceHandle
from tailrace.env.sync_guard import SyncGuard
from tailrace.env.whole_files import open_hint, read_hint
from tailrace.errors import MessageIllegalError, StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import decode_message
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.segments import OpenFiles
from tailrace.store.append import MakeRecords
from tailrace.store.commit_log import CommitLog
from tailrace.store.compaction.compaction_store import CompactionStore
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.dispatch import Dispatcher, parse_delay_levels
from tailrace.store.flush import FlushConsumeQueueService
from tailrace.store.group_commit import DurableCallback, FlushCommitLogService
from tailrace.store.hooks import MessageArrivingListener
from tailrace.store.index_service import IndexService
from tailrace.store.lives import Ended, EndedLives
from tailrace.store.log_paths import log_paths
from tailrace.store.progress import ProgressFile
from tailrace.store.queue_reader import CompactedQueue, QueueReader
from tailrace.store.queue_types import BATCH_CQ, QUEUE_TYPE
from tailrace.store.reading import MessageReader
from tailrace.store.recovery.passes import Recovery, RecoveryOptions, RecoveryReport
from tailrace.store.recovery.quarantine import Quarantine
from tailrace.store.refused_puts import RefusedPuts
from tailrace.store.replication import LogSender, Replication
from tailrace.store.reput import ReputMessageService
from tailrace.store.retention.min_offsets import read_ended
from tailrace.store.running_flags import FOLLOWS, NOT_WRITEABLE, RunningFlags
from tailrace.store.store_checkpoint import StoreCheckpoint
from tailrace.store.store_stats import StoreStatsService
from tailrace.store.walk.scan import checks_of
from tailrace.store.wall_times import read_wall_times

__all__ = ["FAR_BEHIND", "HINTS", "DefaultMessageStore", "NoteEnded", "encode_flushed"]

_log = get_logger(__name__)
QueueKey = tuple[str, int]
NoteEnded = Callable[[Mapping[str, Ended]], object]
"""Makes the end of the life of topics durable."""
IsAwaited = Callable[[], bool]
_PUT_OK: Final = PutMessageStatus.PUT_OK  # a look-up of a member takes longer
_REPUT_MS: Final = 1
_UNAWAITED_MS: Final = 10
"""Rest of dispatch while no reader waits. A step for one message costs nearly as much as one for twenty."""
FAR_BEHIND: Final = 32 << 20
"""Bytes of the log that may wait for dispatch until `let_dispatch_follow` waits."""
_FOLLOW_MS: Final = 50
_FLUSHED_WIDTH: Final = 96
"""Bytes of the hint of what is synced, so that a shorter text covers a longer one."""
FOLLOWS_REASON: Final = "this broker is a slave, only the replication from its master appends"
HINTS: Final = (
    f"/{filenames.CHECKPOINT}", f"/{filenames.PROGRESS}.0", f"/{filenames.PROGRESS}.1",
    f"/{filenames.WALL_TIMES}.tmp", f"/{filenames.MASTER}.tmp",
    *(f"/{filenames.CONFIG}/{name}.tmp"
      for name in ("consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json",
                   filenames.TIMERMETRICS, filenames.TRANSACTIONMETRICS)),
)
"""Files whose failed sync does not stop the store, see the table in docs/contributing/design/crash-consistency.md."""


def encode_flushed(pid: int, flushed: int, dispatched: int) -> bytes:
    """Return the hint ``tailrace/flushed``, which covers any earlier one.

    ``flushed`` is the position up to which other processes may show records, ``dispatched`` the one up to which records
    have their queue units and index entries.
    """
    return orjson.dumps({"pid": pid, "flushed": flushed, "dispatched": dispatched}).ljust(_FLUSHED_WIDTH)


@final
class DefaultMessageStore:
    """Everything below the root directory of a store, except its lock and its ``config/``."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, config: StoreConfig, root: str, is_batch: Callable[[str], bool],
    ) -> None:
        """``is_batch`` returns True if new queues of a topic are batch queues."""
        self.root = root
        self.config = config
        self._clock = clock
        self.flags = RunningFlags()
        self.follows: Final = config.broker_role is BrokerRole.SLAVE
        """True for the store of a slave."""
        if self.follows:
            self.flags.set(FOLLOWS, FOLLOWS_REASON)
        self.syncs = SyncGuard(file_system, HINTS, partial(self.flags.set, NOT_WRITEABLE))
        file_system = self.file_system = self.syncs
        """File system through which everything below the root is changed, so that failed syncs are noticed (F6)."""
        self.checkpoint = StoreCheckpoint(file_system, f"{root}/{filenames.CHECKPOINT}")
        self.open_files = OpenFiles(segment_file_limit(config.max_open_files))
        self.queues = ConsumeQueueStore(
            file_system, f"{root}/{filenames.CONSUMEQUEUE}", config.mapped_file_size_consume_queue,
            self.open_files, is_batch, batch_directory=f"{root}/{filenames.BATCHCONSUMEQUEUE}",
            batch_file_size=config.mapper_file_size_batch_consume_queue)
        self.lives = EndedLives(self.queues.units_per_file)
        """The topics that were deleted, and where their queues begin again."""
        self.commit_log = CommitLog(
            clock, file_system, config, log_paths(config, root), self.flags, self.open_files, self.lives)
        self.rules = self.commit_log.rules
        tail = self.commit_log.tail
        self.append = tail.append
        """Appends the records of a writer that ``commit_log`` has made. The caller waits for their sync."""
        self.plain_writer = tail.plain_writer
        self._counts = tail.counts
        self.index = (
            IndexService(clock, file_system, config, f"{root}/{filenames.INDEX}", self.open_files)
            if config.message_index_enable else None
        )
        self.listeners: list[MessageArrivingListener] = []
        """Called by the dispatch thread after messages can be read."""
        self.waits: list[IsAwaited] = []
        """Each returns whether readers wait for messages. If none does, dispatch rests for longer between its steps."""
        self.reput = ReputMessageService(self.commit_log, Dispatcher(
            self.queues, self.index, parse_delay_levels(config.message_delay_level), self.lives, self.listeners),
            self.confirm_offset, self.flags, *([checks_of(config)] if self.follows else []))
        self.replication: Final = Replication(config)
        """What slaves have of the log."""
        self._shows_replicated_only = config.read_replicated_only
        self.flush_commit_log = FlushCommitLogService(
            clock, config, self.commit_log, self.flags, self.checkpoint, self.replication, self.wake_flush)
        self.sync_flush: Final = self.flush_commit_log.sync
        """True under SYNC_FLUSH: a message is acknowledged and shown only when it is durable."""
        self.progress = ProgressFile(file_system, root)
        self.reader = MessageReader(clock, config, self.commit_log, self.queues, self.index, self.lives)
        self.compaction = CompactionStore(
            clock, file_system, config, root, self.commit_log, self.queues, self.open_files,
            self.lives, self.sync_log, self._quarantine().keep)
        self.flush_consume_queue = FlushConsumeQueueService(
            clock, file_system, config, self.commit_log, self.queues, self.index, self.reput,
            self.checkpoint, self.progress, self.compaction.flush)
        self.stats = StoreStatsService(clock, self._counts)
        self.refused_puts = RefusedPuts(clock, self._counts, self.flags)
        tail.refused, tail.wake = self.refused_puts.note, self._wake_readers
        self.report = RecoveryReport()
        self._reput_handle: ServiceHandle | None = None
        self._flush_handle: ServiceHandle | None = None
        self._dispatch_stuck_at = -1
        self._flushed_file: File | None = None
        self._flushed_lock = threading.Lock()
        self._pid = 0

    # -- life

    def load(self, options: RecoveryOptions) -> None:
        """Load the files and recover them. Raises CorruptionError, FatalStorageError or OSError."""
        recovery = self._recovery(options)
        self.report = recovery.run()
        if options.read_only:
            self.flags.set(NOT_WRITEABLE, options.read_only)
        self.commit_log.wall_times = read_wall_times(self.file_system, self.root)
        self._note_wall_time(write=not options.read_only, is_start=True)
        self.reput.start_from(recovery.dispatched_until, recovery.position)
        if self.index is not None:
            self.index.unmap()

    def _note_wall_time(self, *, write: bool = True, is_start: bool = False, last: bool = False) -> None:
        """Compare the wall clock with the last store time, and keep the result if the clock is earlier."""
        log, now_ms = self.commit_log, self._clock.now_ms()
        log.wall_times.step(log.max_offset, log.min_offset, log.last_store_timestamp, now_ms, is_start=is_start)
        if write:
            log.wall_times.write(self.file_system, self.root, now_ms, now=last)

    def check_mode(self, options: RecoveryOptions) -> None:
        """Raise CorruptionError if the recovery mode refuses the log, before anything of the directory changes.

        The passes of the recovery run in memory first, and write nothing there. Only a strict mode needs that.
        """
        if self.config.recovery_mode is RecoveryMode.TOLERATE_ANY and not self.flags.bits & FOLLOWS:
            return
        trial = DefaultMessageStore(
            self._clock, OverlayFileSystem(self.file_system), self.config, self.root, self.queues.is_batch)
        try:
            trial._recovery(replace(options, read_only="the mode is checked", dry_run=True)).run()
        finally:
            trial.release()

    def _recovery(self, options: RecoveryOptions) -> Recovery:
        self.lives.load(read_ended(self.file_system, self.root))
        return Recovery(
            self._clock, self.file_system, self.commit_log, self.queues, self.index, self._quarantine(),
            self.checkpoint, self.progress, self.lives, self.config, options, self._read_flushed())

    def _quarantine(self) -> Quarantine:
        directory = f"{self.root}/{filenames.QUARANTINE}"
        return Quarantine(self._clock, self.file_system, directory, self.config.quarantine_max_bytes)

    def stepped_over(self) -> list[int]:
        """Return the positions of the damage that this open or earlier ones have stepped over. Raises OSError."""
        now = {int(one["physicalOffset"]) for one in self.report.stepped_over}  # a read-only open writes no manifest
        return sorted(now.union(self._quarantine().stepped_over()))

    def start(self, scheduler: Scheduler, pid: int) -> None:
        """Start the services. ``pid`` is written to the hint for readers without the lock."""
        self._pid = pid
        self._write_flushed(durable=self.follows)  # recovery of a slave cuts the log only above what it says
        config = self.config
        self._reput_handle = scheduler.every(
            "ReputMessageService", _REPUT_MS * 50, self.reput.step, rest_ms=self._reput_rest_ms)
        self._flush_handle = scheduler.every(
            "GroupCommitService" if self.sync_flush else "FlushRealTimeService",
            lambda: config.flush_interval_commit_log, self._flush_step)
        scheduler.every(
            "FlushConsumeQueueService", lambda: config.flush_interval_consume_queue,
            self.flush_consume_queue.step)
        scheduler.every(
            "CompactionService", config.compaction_schedule_internal,
            lambda: self.compaction.step() if self.flags.is_sound() else None)
        scheduler.every("AllocateMappedFileService", self.commit_log.prepare_wait_ms, self.commit_log.prepare_ahead)
        scheduler.every("StoreStatsService", 1000, self._each_second)

    def _each_second(self) -> None:
        self.stats.sample()
        self.refused_puts.probe(self.commit_log.make_room)
        self._note_wall_time(write=self.flags.is_sound())

    def _flush_step(self) -> bool:
        more = self.flush_commit_log.step()
        self._write_flushed()
        if self.sync_flush and self._reput_handle is not None:
            self._reput_handle.wake()
        return more

    def _read_flushed(self) -> int:
        """Return the position up to which the hint says that the log is synced, -1 without a valid hint."""
        try:
            hint = read_hint(self.file_system, f"{self.root}/{filenames.FLUSHED}") or b"{}"
            return int(orjson.loads(hint)["flushed"])
        except (ValueError, KeyError, TypeError):
            return -1

    def _write_flushed(self, *, durable: bool = False) -> None:
        """Write the hint ``tailrace/flushed``, see ``encode_flushed``; a ``durable`` one survives a power loss."""
        try:
            with self._flushed_lock:
                text = encode_flushed(self._pid, self.commit_log.queue.flushed_where, self.reput.reput_from_offset)
                if self._flushed_file is None:
                    self.file_system.makedirs(f"{self.root}/{filenames.OWN}")
                    self._flushed_file = open_hint(self.file_system, f"{self.root}/{filenames.FLUSHED}")
                self._flushed_file.pwrite(text, 0)
                if durable:
                    self._flushed_file.sync_data()
                    self.file_system.sync_dir(f"{self.root}/{filenames.OWN}")
        except OSError as error:  # only a hint: other processes show what the last one covers
            events.CANNOT_WRITE_HOW_FAR_THE_LOG_IS_FLUSHED.log(_log, cause=error)

    def services_ended(self) -> None:
        """Note that no service runs any more, so that callers flush and dispatch themselves."""
        self._flush_handle = None

    def close(self) -> bool:
        """Dispatch and flush everything, then close the files. Return True if the stop is clean."""
        clean = False
        try:
            if self.flags.bits & NOT_WRITEABLE == 0:
                self.flush(clean=True)
                self._note_wall_time(last=True)
                self.commit_log.queue.discard_ahead()
                clean = self.reput.has_dispatched(self.commit_log.max_offset)
        except (StoreError, OSError) as error:
            events.THE_STORE_COULD_NOT_BE_CLOSED_CLEANLY.log(_log, cause=error)
        finally:
            self.release()
        return clean

    def give_up(self, reason: str) -> None:
        """Write nothing any more, because another process may own the directory. Waiting puts get an error."""
        self.flush_commit_log.give_up(reason)
        self.syncs.give_up(f"{self.root}/{filenames.LOCK}", reason)

    def release(self) -> None:
        """Close the files without a flush."""
        if self._flushed_file is not None:
            self._flushed_file.close()
            self._flushed_file = None
        self.commit_log.close()
        self.queues.close()
        self.compaction.close()
        if self.index is not None:
            self.index.close()

    def flush(self, *, clean: bool = False) -> None:
        """Flush the log, dispatch all of it, flush queues and index. Raises FatalStorageError."""
        self.flush_commit_log.flush()
        if clean:  # readers have left, and the next open dispatches all that it finds
            self._shows_replicated_only = False
        while self.reput.step():
            pass
        self.flush_consume_queue.flush(0, clean=clean)

    # -- writing

    def confirm_offset(self) -> int:
        """Return the position below which records may be dispatched and read.

        It is the synced position under SYNC_FLUSH, else the end of the log; with ``read_replicated_only`` at most the
        position that enough copies have.
        """
        queue = self.commit_log.queue
        safe = queue.flushed_where if self.sync_flush else queue.max_offset
        return min(safe, self.replication.replicated_where) if self._shows_replicated_only else safe

    def replicated(self) -> None:
        """Answer puts and dispatch records that wait for copies, after `Replication.update`."""
        self.flush_commit_log.answer()
        if self._shows_replicated_only and self._reput_handle is not None:
            self._reput_handle.wake()

    def _wake_readers(self) -> None:
        """Wake those who read what has been appended: dispatch if it rests, and the senders to slaves."""
        tail = self.commit_log.tail
        if tail.reader_waits:
            self.wake_reput()
        if tail.copied:
            self.replication.wake()

    def add_sender(self, sender: LogSender) -> None:
        """Wake a sender to a slave when there are bytes that it may send."""
        self.replication.senders.append(sender)
        self.commit_log.tail.copied = not self.replication.sends_synced_only

    def remove_sender(self, sender: LogSender) -> None:
        """Do not wake a sender any more."""
        self.replication.senders.remove(sender)
        self.commit_log.tail.copied = bool(self.replication.senders) and not self.replication.sends_synced_only

    def append_some(
        self, keys: list[QueueKey], count: int, bound: int, write: MakeRecords, puts: Callable[[int], int],
    ) -> PutMessageResult:
        """Append the first of several records that are puts of their own, see ``Appender.append_some``.

        For the arguments see ``CommitLog.records_writer``.
        """
        log = self.commit_log
        return log.tail.append_some(log.records_writer(keys, count, bound, write, puts))

    def append_raw(self, phy_offset: int, data: memoryview) -> int:
        """Append bytes of the master's log, see ``Appender.append_raw``."""
        until = self.commit_log.tail.append_raw(phy_offset, data)
        self.wake_flush()
        self._wake_readers()
        return until

    def acknowledged_until(self) -> int:
        """Return the position up to which a slave acknowledges: synced under SYNC_FLUSH, else the end of the log."""
        queue = self.commit_log.queue
        return queue.flushed_where if self.sync_flush else queue.max_offset

    def behind_bytes(self) -> int:
        """Return the number of bytes of the log that are not dispatched yet."""
        return self.reput.behind_bytes()

    def put(
        self, message: MessageExtBrokerInner, *, though_full: bool = False
    ) -> PutMessageResult:
        """Put one message that the put hook has seen or that needs no hook. Refusals are results, not exceptions."""
        try:
            writer = self.plain_writer(message, hooked=True) or self.commit_log.message_writer(message)
            return self.append(writer, though_full=though_full)
        except MessageIllegalError as error:
            return self._illegal(error)

    def put_batch(self, message: MessageExtBrokerInner, encoded: bytes) -> PutMessageResult:
        """Put the messages of a batch body: all of them in one segment, or none."""
        try:
            return self.append(self.commit_log.batch_writer(message, encoded))
        except MessageIllegalError as error:
            return self._illegal(error)

    def put_inner_batch(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put an inner batch: a message whose body has several messages, stored as one record."""
        try:
            if not self.queues.has_batch_queues(message.topic):
                raise MessageIllegalError(
                    "sysFlag",
                    f"an inner batch needs a topic with {QUEUE_TYPE}={BATCH_CQ}, {message.topic} does not have it")
            writer, count = self.commit_log.inner_batch_writer(message)
        except MessageIllegalError as error:
            return self._illegal(error)
        result = self.append(writer)
        if result.status is _PUT_OK:
            result.msg_num = count
            self._counts.times += count - 1
        return result

    def put_records(
        self, keys: list[tuple[str, int]], count: int, bound: int, write: MakeRecords
    ) -> PutMessageResult:
        """Put many records of many queues, see ``CommitLog.records_writer``."""
        return self.append(self.commit_log.records_writer(keys, count, bound, write))

    def _illegal(self, error: MessageIllegalError) -> PutMessageResult:
        result = self.commit_log.illegal(error)
        if not self.flags.is_writeable():  # then this is the answer to every put
            result = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=self.flags.reason)
        self._counts.failed_times += 1
        self.refused_puts.note(result)
        return result

    def _reput_rest_ms(self) -> int:
        return _REPUT_MS if not self.waits or any(is_awaited() for is_awaited in self.waits) else _UNAWAITED_MS

    def wake_reput(self) -> None:
        """Wake dispatch, so that it does not wait for the end of its period."""
        if self._reput_handle is not None and not self.sync_flush and not self._shows_replicated_only:
            self.commit_log.tail.reader_waits = False  # the next put need not wake it as well
            self._reput_handle.wake()  # else the flush or a slave wakes it, because records are shown after it

    def hurry_reput(self) -> None:
        """Have dispatch run now unless all messages are dispatched, because a reader begins to wait."""
        if self._reput_handle is not None and self.reput.reput_from_offset < self.confirm_offset():
            self._reput_handle.hurry()

    def let_dispatch_follow(self, until: int) -> None:
        """Wait up to 50 ms if dispatch is more than 32 MiB before ``until``; for writers that never wait otherwise.

        One thread runs Python at a time. Each time dispatch leaves Python to copy or write, it would wait for
        such a writer, and the backlog would grow to hundreds of megabytes.
        """
        reput = self.reput
        at, steps = reput.reput_from_offset, reput.steps
        if until - at < FAR_BEHIND:
            return
        if at == self._dispatch_stuck_at or self._reput_handle is None or self.sync_flush:
            return
        is_far = not reput.wait(until - FAR_BEHIND // 2, _FOLLOW_MS)
        if is_far and reput.reput_from_offset == at and reput.steps > steps:
            self._dispatch_stuck_at = at  # a step made no progress, so writers do not wait for the next ones

    def sync_log(self) -> None:
        """Make the whole log durable and answer waiting puts. Raises FatalStorageError."""
        self.flush_commit_log.flush()

    def sync_for_readers(self, timeout_ms: int = 5_000) -> bool:
        """Let processes that read the directory see everything that was put before.

        Return False if dispatch did not follow within ``timeout_ms``. A read-only store has nothing to sync.
        Raises FatalStorageError.
        """
        if self.report.read_only:
            return True
        self.flush_commit_log.flush()
        done = self.wait_dispatched(timeout_ms)
        self._write_flushed()
        return done

    def wake_flush(self) -> bool:
        """Wake the flush under SYNC_FLUSH, because records are shown after it. Return False if no service flushes."""
        handle = self._flush_handle
        if handle is not None and self.sync_flush:
            handle.wake()
            return True
        return False

    def when_durable(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` when everything below ``until`` is durable, and with a SYNC_MASTER on enough slaves."""
        self.flush_commit_log.when_durable(until, callback)

    def when_synced(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` when everything below ``until`` is durable here; immediately under ASYNC_FLUSH."""
        self.flush_commit_log.when_synced(until, callback)

    def wait_dispatched(self, timeout_ms: int) -> bool:
        """Wait until all records of the log can be read from their queues. Return False after ``timeout_ms``."""
        until = self.commit_log.max_offset
        if self.flush_commit_log.failed and self.sync_flush:
            until = min(until, self.commit_log.queue.flushed_where)  # the rest is never shown
        if self._shows_replicated_only:
            until = min(until, self.replication.replicated_where)
        if self.reput.has_dispatched(until):
            return True
        if self._reput_handle is None:
            if self.sync_flush and not self.flush_commit_log.failed:
                self.flush_commit_log.flush()
            while self.reput.step():
                pass
            return self.reput.has_dispatched(until)
        self.wake_flush()
        self._reput_handle.hurry()
        return self.reput.wait(until, timeout_ms)

    def queue_of(self, topic: str, queue_id: int) -> QueueReader:
        """Return the reader of a queue, which is empty if it does not exist."""
        return (CompactedQueue if topic in self.compaction.topics else QueueReader)(self, topic, queue_id)

    # -- state and bytes of the log, for the rooms above

    @property
    def store_host(self) -> bytes:
        """Address and port of the broker in new records, 8 or 20 bytes."""
        return self.commit_log.tail.store_host

    @store_host.setter
    def store_host(self, raw: bytes) -> None:
        self.commit_log.tail.store_host = raw

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next put into a queue gets. Counts messages not yet dispatched."""
        return self.commit_log.queue_offsets.get((topic, queue_id), 0)

    def message(self, phy_offset: int, size: int) -> MessageExt:
        """Return the message of ``size`` bytes at a position.

        Raises CorruptionError if it is not a valid record, and OSError if a read fails. The caller counts its tries.
        """
        return decode_message(self.commit_log.read(phy_offset, size))

    def list_unreadable(self, phy_offset: int, size: int, reason: str) -> bool:
        """List a record whose reads fail in quarantine, with the bytes that can be read; durable on return.

        Return False, without a change, if no other byte of its segment can be read, or if all of the record can:
        then it is not the record that is damaged. Raises OSError if quarantine cannot be written.
        """
        return self._quarantine().keep_unreadable(self.commit_log.queue, phy_offset, size, reason)

    # -- topics

    def delete_topics(self, topics: Collection[str], note: NoteEnded) -> None:
        """End the life of topics and remove their queues. Their records stay in the log until retention deletes them.

        ``note`` makes the end durable. All messages before its position belong to the ended life. A message that is
        put later belongs to the new life and has an offset of it, even if it is put during this call. Raises what
        ``note`` raises, OSError or FatalStorageError; then nothing is removed.
        """
        wanted, offsets = set(topics), self.commit_log.queue_offsets
        known: tuple[int, set[QueueKey]] = -1, set()

        def choose() -> set[QueueKey]:
            nonlocal known
            if known[0] != len(offsets):  # it only grows during a deletion
                known = len(offsets), {key for key in [*offsets, *self.queues.table] if key[0] in wanted}
            return known[1]

        self._delete(choose, wanted, note)

    def delete_idle_queues(self, ends: Mapping[QueueKey, int], note: NoteEnded) -> set[str]:
        """End the life of topics with one queue each, whose next offset is still the given one and is dispatched.

        Return these topics. ``note`` is that of `delete_topics`.
        """
        return self._delete(lambda: {
            key for key, end in ends.items()
            if (queue := self.queues.table.get(key)) is not None and queue.max_offset == end
            and self.next_queue_offset(*key) == end
        }, set(), note)

    def _delete(self, choose: Callable[[], set[QueueKey]], topics: set[str], note: NoteEnded) -> set[str]:
        """End the life of ``topics`` and of those of the queues that ``choose`` returns while nothing is put.

        Nothing is dispatched or flushed in this time, because neither may write to a queue that is removed.
        """
        offsets = self.commit_log.queue_offsets
        with self.flush_consume_queue.paused(), self.reput.paused():
            choose()  # so that there is little to look through while nothing can be put
            with self.commit_log.put_lock:  # for memory only: no file is read or written in it
                keys, position = choose(), self.commit_log.max_offset
                before = {key: offsets.get(key, 0) for key in keys}
                begins: dict[str, dict[int, int]] = {topic: {} for topic in {*topics, *(topic for topic, _ in keys)}}
                for (topic, queue_id), end in before.items():
                    begins[topic][queue_id] = offsets[topic, queue_id] = self.lives.next_begin(topic, queue_id, end)
            ended = {
                topic: Ended(position, {**self.lives.begins(topic), **queues}) for topic, queues in begins.items()}
            try:
                if ended:
                    self.sync_log()  # the log before the position must never be cut
                    self.progress.forget()  # it names these queues; the next flush writes it again
                    self.flush_consume_queue.forget()
                    note(ended)
            except BaseException:
                self._resume(before, begins)
                raise
            self.lives.end(ended)
            try:
                self.compaction.delete(keys)
            except OSError as error:
                events.FILES_OF_A_DELETED_TOPIC_STAY.log(_log, file=error.filename, cause=error)
            self.queues.delete(keys)
        return set(ended)

    def _resume(self, before: Mapping[QueueKey, int], begins: Mapping[str, Mapping[int, int]]) -> None:
        """Continue the present life of queues after a deletion has failed.

        A queue that got a message in the meantime has offsets without a message before it.
        """
        with self.commit_log.put_lock:
            for (topic, queue_id), end in before.items():
                if self.commit_log.queue_offsets[topic, queue_id] == begins[topic][queue_id]:
                    self.commit_log.queue_offsets[topic, queue_id] = end

    def forget_ended(self, topics: Collection[str]) -> None:
        """Forget deletions that need not be remembered; queues of these topics without a message begin at 0."""
        with self.reput.paused(), self.commit_log.put_lock:  # no deletion is under way
            for topic in topics:
                for queue_id, begin in self.lives.begins(topic).items():
                    key = topic, queue_id
                    if key not in self.queues.table and self.commit_log.queue_offsets.get(key) == begin:
                        del self.commit_log.queue_offsets[key]
            self.lives.forget(topics)

    def stats_dict(self) -> dict[str, Any]:
        """Return counters and positions by the names that operators see."""
        return {
            **self.stats.as_dict(), **self.compaction.stats(),
            "commitLogMinOffset": self.commit_log.min_offset,
            "commitLogMaxOffset": self.commit_log.max_offset,
            "flushedWhere": self.commit_log.queue.flushed_where,
            "flushBehindBytes": max(0, self.commit_log.queue.dirty_bytes()),
            "logSyncMs": self.flush_commit_log.sync_times.as_dict(),
            "dispatchBehindBytes": self.reput.behind_bytes(),
            "openSegmentFiles": self.open_files.count,
            "openSegmentFilesMax": self.open_files.limit,
            "hintSyncFailures": self.syncs.hint_failures,
            "storeTimeAheadMs": self.commit_log.wall_times.ahead_ms,
            "unreadableRecords": self.commit_log.unreadable.count,
            "writeable": self.flags.is_writeable(), "readOnly": self.report.read_only or None,
        }
