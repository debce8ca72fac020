"""Retention of an open store: trash, disk check, topics and the two deleting services, composed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.formats import filenames
from tailrace.node.archive_pins import ArchivePins
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.group_pins import GroupPins
from tailrace.node.timer_rescue import PendingTimers, TimerRescue
from tailrace.node.topic_config import TopicConfigManager
from tailrace.node.topic_retention import TopicRetention
from tailrace.segments import MappedFile
from tailrace.store.clean_commit_log import CleanCommitLogService
from tailrace.store.clean_consume_queue import CleanConsumeQueueService
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.disk_check import DiskCheckService
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.store.forced_deletions import ForcedDeletions
from tailrace.store.log_paths import log_paths
from tailrace.store.queue_search import message_from
from tailrace.store.retention import Pin
from tailrace.store.trash import Trash
from tailrace.timer.properties import TIMER_TOPIC
from tailrace.timer.schedule_message_service import ScheduleMessageService

__all__ = ["Retention"]

_TRASH_MS = 100
_WAITING = (TIMER_TOPIC, SCHEDULE_TOPIC)


@final
class Retention:
    """Everything that gives disk space back, for one open store."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, store: DefaultMessageStore,
        topics: TopicConfigManager,
    ) -> None:
        config, log = store.config, store.commit_log
        self._clock = clock
        self._config = config
        self._file_system = file_system
        self._store = store
        self.trash = Trash(clock, file_system, store.root, log.queue.directories, config.delete_rate)
        self.disk = DiskCheckService(
            file_system, config, store.flags, self.trash, log_paths(config, store.root).writable,
            f"{store.root}/{filenames.CONSUMEQUEUE}", self.store_bytes)
        log.queue.full_directories = lambda: self.disk.verdict.full_paths
        self.clean_commit_log = CleanCommitLogService(
            clock, file_system, config, log, store.flags, self.trash, self.disk,
            self._store_timestamp, self._dispatched_until, self._count_messages,
            ForcedDeletions(file_system, store.root))
        self.clean_consume_queue = CleanConsumeQueueService(
            clock, config, log, store.queues, store.index)
        self.topics = TopicRetention(clock, file_system, store, topics)
        self.clean_commit_log.topic_needs = self.topics.needs
        if config.archive_directory:
            pins = ArchivePins(
                clock, file_system, config.archive_directory, lambda: log.queue.files[:-1])
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
        """Keep what ``pinGroups`` have not consumed, and pending half messages, by these offsets."""
        self._group_pins = GroupPins(
            self._config.pin_groups, offsets, self._queues_of, self._position_of)

    def _pins_of_groups(self) -> Iterable[Pin]:
        return self._group_pins() if self._group_pins is not None else ()

    def follow_timers(
        self, timers: PendingTimers | None, levels: ScheduleMessageService
    ) -> None:
        """Keep what waits for its time, and write it again when its file must go."""
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
        """One whole pass by hand, queues and index too; how many CommitLog files went."""
        self._store.flush_commit_log.flush()  # what an open found counts as written only
        self.topics.step()
        count = self.clean_commit_log.run_pass(manual=True)
        self.clean_consume_queue.run_pass()
        return count

    def store_bytes(self) -> int:
        """What log and index take of the disk, and the units, as maxStoreBytes counts them."""
        store = self._store
        size = sum(self._allocated(file) for file in store.commit_log.queue.files)
        for queue in list(store.queues.table.values()):
            size += max(queue.files.max_offset - max(queue.files.min_offset, 0), 0)
        return size + sum(self._allocated(file) for file in (store.index.files if store.index else ()))

    def _count_messages(self, low_phy_offset: int, high_phy_offset: int) -> dict[str, int]:
        """Messages by topic between two positions of the log, without those that wait for their time.

        What is lost of these is counted by who writes them again.
        """
        found: dict[str, int] = {}
        for (topic, _), queue in list(self._store.queues.table.items()):
            if topic in _WAITING:
                continue
            if count := queue.count_between(low_phy_offset, high_phy_offset):
                found[topic] = found.get(topic, 0) + count
        return found

    def _allocated(self, file: MappedFile) -> int:
        try:
            return self._file_system.stat(file.path).allocated
        except OSError:
            return 0  # it has just been deleted

    def stats(self) -> dict[str, Any]:
        """Counters, and the disks as the last check saw them."""
        usages = self.disk.usages
        log, queue = (usages[0], usages[-1]) if usages else (None, None)
        return {
            "commitLogDiskRatio": log.percent / 100 if log else -1.0,
            "consumeQueueDiskRatio": queue.percent / 100 if queue else -1.0,
            "commitLogDirCapacity": (
                f"Total : {_human(log.total)}, Free : {_human(log.available)}." if log else ""),
            **self.clean_commit_log.stats(),
            "deletedQueueFiles": self.clean_consume_queue.deleted_queue_files,
            "deletedIndexFiles": self.clean_consume_queue.deleted_index_files,
        }

    def _dispatched_until(self, wanted: int) -> int:
        """Position below which no record is needed to know where its queue goes on.

        Its unit must be durable for that: else a power loss after the deletion would give the
        queue's next message an offset that it had given before. Queues are synced when that brings
        it to ``wanted``; -1 syncs nothing.
        """
        store, flush = self._store, self._store.flush_consume_queue
        until, position = store.reput.reput_from_offset, store.reput.position
        if position is None or position.until <= flush.durable_until:
            return until  # behind it there are only blanks
        if flush.durable_until < wanted <= until and store.flags.is_writeable():
            flush.flush(0)
        return until if position.until <= flush.durable_until else min(until, flush.durable_until)

    def _store_timestamp(self, phy_offset: int) -> int:
        """Store time of the record at a position, -1 when there is no sound one."""
        found = self._store.reader.decode_at(phy_offset)
        return found.store_timestamp if found is not None else -1


def _human(size: int) -> str:
    """Bytes as RocketMQ's admin tools show them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
