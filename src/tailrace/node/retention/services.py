"""Retention of an open store: trash, disk check, topics and the two deleting services, composed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.formats import filenames
from tailrace.formats.names import TIMER_TOPIC
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.node.retention.group_pins import GroupPins
from tailrace.node.retention.timer_rescue import PendingPositions, TimerRescue
from tailrace.node.retention.topics import TopicRetention
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.store.queue_search import message_from
from tailrace.store.retention.deletion import Deletion
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.pins import Pin
from tailrace.timer.schedule_message_service import ScheduleMessageService

__all__ = ["Retention"]

_TRASH_MS = 100
_WAITING = (TIMER_TOPIC, SCHEDULE_TOPIC)


@final
class Retention:
    """The services that free disk space, for one open store."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore,
        topics: TopicConfigManager,
    ) -> None:
        config = store.config
        self._clock = clock
        self._config = config
        self._store = store
        self._deletion = deletion = Deletion(clock, file_system, store, _WAITING)
        self.trash = deletion.trash
        self.disk = deletion.disk
        self.clean_commit_log = deletion.clean_commit_log
        self.clean_consume_queue = deletion.clean_consume_queue
        self.store_bytes = deletion.store_bytes
        self.topics = TopicRetention(clock, file_system, store, topics)
        self._archive_pins: ArchivePins | None = None
        self.clean_commit_log.topic_needs = self.topics.needs
        if config.archive_directory:
            self._archive_pins = pins = ArchivePins(
                clock, file_system, config.archive_directory, deletion.full_files)
            self.clean_commit_log.pin_sources.append(pins)
            self.clean_commit_log.archive_confirms = pins.confirmed
        self._group_pins: GroupPins | None = None
        if config.pin_groups:  # offsets of the file, until a broker hands over those in memory
            offsets = ConsumerOffsetManager(
                file_system, f"{store.root}/{filenames.CONFIG}", clock, lmq=config.enable_lmq)
            offsets.load()
            self.follow_groups(offsets)
        self.clean_commit_log.pin_sources.append(self._pins_of_groups)
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

    def follow_timers(
        self, timers: PendingPositions | None, levels: ScheduleMessageService
    ) -> None:
        """Pin messages that wait for their time, and write them again if their file must be deleted."""
        rescue = TimerRescue(self._clock, self._store, timers, levels)
        self.clean_commit_log.pin_sources.append(rescue.pins)
        self.clean_commit_log.rewrite_timers = rescue.rewrite

    def _queues_of(self, topic: str) -> list[int]:
        return [queue_id for name, queue_id in list(self._store.queues.table) if name == topic]

    def _position_of(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return -1
        unit = message_from(queue, queue.begin_of(max(offset, queue.min_offset)))
        return unit.phy_offset if unit is not None else -1

    def delete_now(self) -> int:
        """Make one whole pass by hand, with queues and index. Return the number of deleted CommitLog files."""
        return self._deletion.run_pass(self.topics.step)

    def free_now(self, wanted_bytes: int) -> FreeRequest:
        """Delete the oldest CommitLog files without a pin until this many bytes are freed; return how it ended.

        Their age does not matter. Raises StoreError if such a request is under way, or OSError.
        """
        return self._deletion.run_free(wanted_bytes)

    def stats(self) -> dict[str, Any]:
        """Return the counters, and the disks as the last check measured them."""
        usages = self.disk.usages
        return {
            **self.clean_commit_log.stats(),
            "diskUsedPercent": {usage.path: usage.percent for usage in usages},
            "diskLimitsPercent": self.disk.limits_percent(),
            "diskFull": self.disk.verdict.full,
            **({} if self._archive_pins is None else {"archiveLagBytes": self._archive_pins.lag_bytes()}),
            "deletedQueueFiles": self.clean_consume_queue.deleted_queue_files,
            "deletedIndexFiles": self.clean_consume_queue.deleted_index_files,
        }
