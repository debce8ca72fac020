"""Retention of an open store: trash, disk check, topics and the two deleting services, composed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.errors import StoreNotWritableError
from tailrace.formats import filenames
from tailrace.formats.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.node.retention.group_pins import GroupPins
from tailrace.node.retention.timer_rescue import PendingPositions, TimerRescue
from tailrace.node.retention.topics import TopicRetention
from tailrace.node.topic_config import TopicConfigManager
from tailrace.segments import MappedFile
from tailrace.store.archive_store import archive_at
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.log_paths import log_paths
from tailrace.store.queue_search import message_from
from tailrace.store.retention.clean_commit_log import CleanCommitLogService, LogNeeds
from tailrace.store.retention.clean_consume_queue import CleanConsumeQueueService
from tailrace.store.retention.disk_check import DiskCheckService
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.pins import Pin
from tailrace.store.retention.trash import Trash
from tailrace.timer.schedule_message_service import ScheduleMessageService

__all__ = ["Retention"]

_TRASH_MS = 100
_WAITING = (TIMER_TOPIC, SCHEDULE_TOPIC)


@final
class Retention:
    """The services that free disk space, for one open store."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore,
        topics: TopicConfigManager, timers: PendingPositions | None, levels: ScheduleMessageService,
    ) -> None:
        """``timers`` are those of the wheel, if there is one. They and messages of ``levels`` are pinned, and written
        again if their file must be deleted."""
        config, log, root = store.config, store.commit_log, store.root
        self._clock = clock
        self._config = config
        self._store = store
        self._file_system = file_system
        self.trash = Trash(clock, file_system, root, log.queue.directories, config.delete_rate)
        self.disk = DiskCheckService(
            file_system, config, store.flags, self.trash, log_paths(config, root).writable,
            f"{root}/{filenames.CONSUMEQUEUE}", self.store_bytes)
        self.topics = TopicRetention(clock, file_system, store, topics)
        self._archive_pins = ArchivePins(
            clock, file_system, archive_at(config.archive_directory, file_system, hurried=True),
            lambda: log.queue.files[:-1],
        ) if config.archive_directory else None
        self._group_pins: GroupPins | None = None
        if config.pin_groups:  # offsets of the file, until a broker hands over those in memory
            offsets = ConsumerOffsetManager(file_system, f"{root}/{filenames.CONFIG}", clock, lmq=config.enable_lmq)
            offsets.load()
            self.follow_groups(offsets)
        rescue = TimerRescue(clock, store, timers, levels)
        archive = self._archive_pins
        needs = LogNeeds(
            pins=[*([archive] if archive is not None else ()), self._pins_of_groups, rescue.pins],
            topics=self.topics.needs, is_archived=archive.confirmed if archive is not None else lambda _: True,
            units_until=lambda: store.reput.reput_from_offset, rewrite_timers=rescue.rewrite)
        self.clean_commit_log = CleanCommitLogService(
            clock, file_system, config, log, store.flags, self.trash, self.disk,
            self._store_timestamp, self._dispatched_until, self._count_messages,
            ForcedDeletions(file_system, root), needs)
        self.clean_consume_queue = CleanConsumeQueueService(clock, config, log, store.queues, store.index)

    def load(self) -> None:
        """Load the trash and the ranges of topics with rules of their own."""
        self.trash.load()
        self.topics.load()

    def start(self, scheduler: Scheduler) -> None:
        """Check the disks once and start the services."""
        config = self._config
        self.disk.check()
        self.disk.name_small_file_systems()
        scheduler.every("DiskCheckService", config.clean_resource_interval, self.disk.step)
        scheduler.every("EmptyTrashService", _TRASH_MS, self.trash.step)
        scheduler.every(
            "TopicRetentionService", config.clean_resource_interval, self.topics.step)
        scheduler.every(
            "CleanCommitLogService", max(config.delete_commit_log_files_interval, 1),
            self.clean_commit_log.step)
        scheduler.every(
            "CleanConsumeQueueService", max(config.delete_consume_queue_files_interval, 1),
            self.clean_consume_queue.step)

    def follow_groups(self, offsets: ConsumerOffsetManager) -> None:
        """Pin what ``pinGroups`` have not consumed, and pending half messages, by these offsets."""
        self._group_pins = GroupPins(
            self._config.pin_groups, offsets, self._queues_of, self._position_of)

    def _pins_of_groups(self) -> Iterable[Pin]:
        return self._group_pins() if self._group_pins is not None else ()

    def _queues_of(self, topic: str) -> list[int]:
        return [queue_id for name, queue_id in list(self._store.queues.table) if name == topic]

    def _position_of(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return -1
        unit = message_from(queue, queue.begin_of(max(offset, queue.min_offset)))
        return unit.phy_offset if unit is not None else -1

    def delete_now(self) -> int:
        """Make one whole pass by hand, with queues and index. Return the number of deleted CommitLog files.

        Raises StoreNotWritableError for a read-only store, FatalStorageError.
        """
        self._sync()
        self.topics.step()
        count = self.clean_commit_log.run_pass(manual=True)
        self.clean_consume_queue.run_pass()
        return count

    def free_now(self, wanted_bytes: int) -> FreeRequest:
        """Delete the oldest CommitLog files without a pin until this many bytes are freed; return how it ended.

        Their age does not matter. Raises StoreNotWritableError for a read-only store, StoreError if such a request is
        under way, or OSError.
        """
        self._sync()
        request = self.clean_commit_log.run_free(wanted_bytes)
        self.clean_consume_queue.run_pass()
        return request

    def _sync(self) -> None:
        """Sync the log before files of it are deleted: what an open found counts as written only."""
        if reason := self._store.report.read_only:
            raise StoreNotWritableError(reason)
        self._store.sync_log()

    def stats(self) -> dict[str, Any]:
        """Return the counters, and the disks as the last check measured them."""
        usages = self.disk.usages
        return {
            **self.clean_commit_log.stats(),
            "diskUsedPercent": {usage.path: usage.percent for usage in usages},
            "diskLimitsPercent": self.disk.limits_percent(),
            "diskFull": self.disk.verdict.full,
            **({} if self._archive_pins is None else {
                "archiveLagBytes": self._archive_pins.lag_bytes(),
                "archiveLagSeconds": self._archive_lag_ms() / 1_000,
                "tableCommits": self._archive_pins.table_commits.commits,
                "tableCommitRetries": self._archive_pins.table_commits.retries,
                "tableCommitConflicts": self._archive_pins.table_commits.conflicts}),
            "deletedQueueFiles": self.clean_consume_queue.deleted_queue_files,
            "deletedIndexFiles": self.clean_consume_queue.deleted_index_files,
        }

    def _archive_lag_ms(self) -> int:
        """Return how long ago the oldest message was stored that the archive does not have; 0 without one."""
        assert self._archive_pins is not None
        log = self._store.commit_log.queue
        at = self._archive_pins.archived_until(max(log.min_offset, 0))
        stored = self._store_timestamp(at) if at < self._store.commit_log.max_offset else -1
        return max(self._clock.now_ms() - stored, 0) if stored >= 0 else 0

    def store_bytes(self) -> int:
        """Return the bytes that log, index and queue units take, as maxStoreBytes counts them."""
        store = self._store
        size = sum(self._allocated(file) for file in store.commit_log.queue.files)
        for queue in list(store.queues.table.values()):
            size += max(queue.files.max_offset - max(queue.files.min_offset, 0), 0)
        return size + sum(self._allocated(file) for file in (store.index.files if store.index else ()))

    def _count_messages(self, low_phy_offset: int, high_phy_offset: int) -> dict[str, int]:
        """Return the messages by topic between two positions, without those that wait for their time."""
        found: dict[str, int] = {}
        for (topic, _), queue in list(self._store.queues.table.items()):
            if topic in _WAITING:
                continue  # the service that writes these again counts those that are lost
            if count := queue.count_between(low_phy_offset, high_phy_offset):
                found[topic] = found.get(topic, 0) + count
        return found

    def _allocated(self, file: MappedFile) -> int:
        try:
            return self._file_system.stat(file.path).allocated
        except OSError:
            return 0  # it has just been deleted

    def _dispatched_until(self, wanted: int) -> int:
        """Return the position below which no record is needed to find the next offset of its queue.

        For that, the unit of the record must be durable. Otherwise, after a deletion and a power loss, the
        queue would give its next message an offset that it has given before. The queues are synced if the
        result then reaches ``wanted``; -1 syncs nothing.
        """
        store, flush = self._store, self._store.flush_consume_queue
        until, position = store.reput.reput_from_offset, store.reput.position
        if position is None or position.until <= flush.durable_until:
            return until  # after it there are only blanks
        if flush.durable_until < wanted <= until and store.flags.is_sound():
            flush.flush(0)
        return until if position.until <= flush.durable_until else min(until, flush.durable_until)

    def _store_timestamp(self, phy_offset: int) -> int:
        """Return when the record at a position was stored, by the wall clock; -1 if there is no valid record."""
        found = self._store.reader.decode_at(phy_offset)
        if found is None:
            return -1
        return self._store.commit_log.wall_times.of(phy_offset, found.store_timestamp)
