"""Timers of an open store: the put hook, the services, their start and stop."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.errors import MessageIllegalError, StoreError
from tailrace.formats import filenames
from tailrace.formats.filenames import is_number
from tailrace.formats.names import LMQ_PREFIX, RETRY_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC
from tailrace.formats.recall_handle import build_handle, parse_handle
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import MessageExtBrokerInner, PutMessageResult
from tailrace.node.config_manager import ConfigManager, Owned, read_config, write_config
from tailrace.node.directory_opening import make_configs
from tailrace.node.foreign_engines import RocksDBStore, name_leftovers
from tailrace.node.retention.timer_rescue import PendingPositions
from tailrace.node.retention.wheel_positions import WheelPositions
from tailrace.node.topic_config import TopicConfigManager, validate_topic
from tailrace.store.append import kind_of
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.dispatch import parse_delay_levels
from tailrace.store.lives import EndedLives
from tailrace.timer.parking import NOWHERE, Targets
from tailrace.timer.pending import PendingTimer, parked_timers, pending_levels, pending_timers
from tailrace.timer.put_hook import ScheduledMessage, TimerPutHook
from tailrace.timer.recall import RECALLED, recall_messages, was_recalled
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = ["DelayOffsetManager", "TimerTargets", "Timers"]

_log = get_logger(__name__)
_SCHEDULE_QUEUES: Final = 18
"""Number of queues of SCHEDULE_TOPIC_XXXX in ``topics.json``; it does not depend on the number of levels."""
_METRICS_MS: Final = 5000
_METRICS_CHECK_MS: Final = 45 * 60 * 1000
_CLEAN_MS: Final = 30_000


@final
class Timers:
    """The timer wheel and the delay levels of an open store: puts, recalls, delivery, metrics."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, entropy: Entropy, config: StoreConfig,
        store: DefaultMessageStore, topics: TopicConfigManager, broker_name: str,
    ) -> None:
        self._broker_name = broker_name
        self._config = config
        self._store = store
        self._topics = topics
        self._file_system = file_system
        self._config_dir = f"{store.root}/{filenames.CONFIG}"
        self.delay_offsets = DelayOffsetManager(file_system, self._config_dir, clock, store.sync_log)
        self.targets = TimerTargets(topics, store.lives, store.commit_log.max_offset)
        self.schedule = ScheduleMessageService(
            clock, store, parse_delay_levels(config.message_delay_level), self.delay_offsets,
            self._ensure_topic, self.targets)
        self.messages: TimerMessageStore | None = None
        if config.timer_wheel_enable:
            self.messages = TimerMessageStore(
                clock, file_system, config, store, ensure_topic=self._ensure_topic, targets=self.targets)
        self._hook = TimerPutHook(clock, entropy, config, self._slot_num)

    def _ensure_topic(self, topic: str) -> None:
        self._topics.create_if_missing(topic, 1)

    def _slot_num(self, time_ms: int) -> int:
        return self.messages.slot_num(time_ms) if self.messages is not None else 0

    def load(self) -> None:
        """Load and recover the files of the timers. Raises OSError or FatalStorageError."""
        if self.messages is not None:
            self.messages.metrics.decode(read_config(
                self._file_system, f"{self._config_dir}/{filenames.TIMERMETRICS}"))
            java = RocksDBStore(self._file_system, self._store.root)
            self.messages.load(java.why_timers_are_rebuilt())
            java.remember()
        self.delay_offsets.load()
        self.schedule.load()
        if not self._topics.was_loaded:
            self._make_configs()
        name_leftovers(self._file_system, self._store.root, self._store, self._topics)

    def _make_configs(self) -> None:
        """Make configs for topics that are named by waiting messages only; without them they would count as deleted."""
        queues = dict[str, int]()
        if self.messages is not None:
            queues.update({topic: 1 for topic, count in self.messages.metrics.counts().items() if count > 0})
        for topic, queue_id in self.schedule.targets_of_waiting():
            queues[topic] = max(queues.get(topic, 1), queue_id + 1)
        missing = {
            topic: count for topic, count in queues.items()
            if self._topics.select(topic) is None and not topic.startswith(LMQ_PREFIX) and not validate_topic(topic)
            and not self._topics.is_system_topic(topic) and not self._store.lives.deleted_up_to(topic)}
        for topic, count in sorted(missing.items()):
            events.A_TOPIC_HAS_WAITING_MESSAGES_AND_NO_CONFIG.log(_log, topic=topic, queues=count)
        make_configs(self._topics, missing)

    def pending(self) -> PendingPositions | None:
        """Return the positions of pending timers, for retention; None without the timer wheel."""
        return WheelPositions(self._store, self.messages) if self.messages is not None else None

    def start(self, scheduler: Scheduler) -> None:
        """Start the services."""
        if not self._store.follows:  # the master delivers, and its offsets are copied
            scheduler.every("ScheduleMessageService", self.schedule.wait_ms, self.schedule.step)
        scheduler.every(
            "DelayOffsetPersist", lambda: self._config.flush_delay_offset_interval,
            self.delay_offsets.persist_if_changed)
        timers = self.messages
        if timers is None:
            return
        dequeue = scheduler.every("TimerDequeueService", timers.dequeue_wait_ms, timers.dequeue_step)

        def enqueue() -> bool:
            more = timers.enqueue_step()
            if timers.due.slots:  # it may have put a timer into a slot that is being delivered
                dequeue.wake()
            return more

        scheduler.every("TimerEnqueueService", timers.enqueue_wait_ms, enqueue)
        scheduler.every(
            "TimerFlushService", lambda: self._config.timer_flush_interval_ms, timers.flush_step)
        scheduler.every("TimerLogCleanService", _CLEAN_MS, timers.clean_step).wake()
        scheduler.every("TimerMetricsPersist", _METRICS_MS, self.persist_metrics)
        # Wake them now, because a short process may end before their first period.
        scheduler.every("TimerMetricsCheck", _METRICS_CHECK_MS, timers.check_metrics_step).wake()

    def persist_metrics(self) -> None:
        """Write the number of pending timers of each topic if it has changed. Raises OSError."""
        metrics = self.messages.metrics if self.messages is not None else None
        if metrics is None or not metrics.dirty:
            return
        metrics.dirty = False
        try:
            write_config(
                self._file_system, self._config_dir, filenames.TIMERMETRICS, metrics.encode())
        except BaseException:
            metrics.dirty = True
            raise

    def take_delay_offsets(self, value: Mapping[str, Any]) -> None:
        """Replace the offsets of the delay levels by those in a file of another broker, none past the end of its queue.

        Raises OSError or StoreError, and what a file of a wrong form raises; then nothing has changed.
        """
        with self.schedule.standing_still():
            self.delay_offsets.copy_from(value)
        self.schedule.load()

    def progress(self) -> tuple[int, int]:
        """Return (offset of the timer queue up to which messages are in the wheel, time in ms up to which these
        are delivered); (0, 0) without the timer wheel."""
        if self.messages is None:
            return 0, 0
        return self.messages.progress()

    def forget_topics(self, topics: set[str]) -> None:
        """Drop the numbers of pending timers of deleted topics."""
        if self.messages is not None:
            self.messages.forget_topics(topics)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Deliver nothing while the context is open, so that no message enters a topic that is being deleted."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.schedule.standing_still())
            if self.messages is not None:
                stack.enter_context(self.messages.standing_still())
            yield

    def close(self) -> bool:
        """Flush and close. Return True if everything is durable."""
        clean = True
        closing: list[Callable[[], object]] = [self.delay_offsets.persist_if_changed]
        if self.messages is not None:
            closing += [self.persist_metrics, self.messages.close]
        for close in closing:
            try:
                close()
            except (StoreError, OSError) as error:
                events.THE_TIMERS_COULD_NOT_BE_CLOSED_CLEANLY.log(_log, cause=error)
                clean = False
        return clean

    def release(self) -> None:
        """Close the files without a flush."""
        if self.messages is not None:
            self.messages.release()

    def put(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a message. With a delivery time it waits on the timer topic."""
        waiting = self.waiting(message)
        return waiting if isinstance(waiting, PutMessageResult) else self.put_prepared(message, waiting)

    def put_due(
        self, message: MessageExtBrokerInner, deliver_ms: int, unique_key: str
    ) -> PutMessageResult:
        """Put a message of the broker as a timer: see ``TimerPutHook.handle_due``.

        The result has no recall handle, and its queue is the one where the message waits.
        """
        if kind_of(message) & C.LMQ:
            return self.put(message)
        waiting = self._hook.handle_due(message, deliver_ms, unique_key)
        return waiting if isinstance(waiting, PutMessageResult) else self._store.put(message)

    def waiting(self, message: MessageExtBrokerInner) -> PutMessageResult | ScheduledMessage | None:
        """Change a message that must wait. Return its target and time, or a result if it is refused."""
        refused = self._store.commit_log.lmq_refusal(message) if kind_of(message) & C.LMQ else None
        return refused or self._hook.handle(message)

    def put_prepared(
        self, message: MessageExtBrokerInner, waiting: ScheduledMessage | None
    ) -> PutMessageResult:
        """Put a message that ``waiting`` has prepared."""
        if message.topic == SCHEDULE_TOPIC and SCHEDULE_TOPIC not in self._topics.table:
            self._topics.create_if_missing(SCHEDULE_TOPIC, _SCHEDULE_QUEUES)
        result = self._store.put(message)
        if waiting is not None and result.status.appended:
            result.queue_id = waiting.queue_id  # producers get the queue that they have named
            if waiting.out_ms and not waiting.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                result.recall_handle = build_handle(
                    waiting.topic, self._broker_name, waiting.out_ms, waiting.unique_key)
        return result

    def recall(
        self, handle: str, born_ms: int, born_host: bytes, records: Callable[[str, str], Iterable[bytes]]
    ) -> list[PutMessageResult]:
        """Put the messages that delete a timer. ``records`` returns those of a topic and a key.

        Raises MessageIllegalError for an invalid handle, and for a message that is due or was recalled.
        """
        parsed = parse_handle(handle)
        if parsed.timestamp_ms <= born_ms:
            raise MessageIllegalError("recallHandle", "the message was due and is delivered, so it cannot be recalled")
        if was_recalled(parsed, records):
            raise MessageIllegalError("recallHandle", RECALLED)
        return [
            self.put(message)
            for message in recall_messages(
                parsed, born_ms, born_host,
                append_topic=self._config.append_topic_for_timer_delete_key)
        ]

    def to_come(self) -> Iterator[PendingTimer]:
        """Return the pending timers and messages of delay levels, and those that were parked, by due time."""
        grain = self.messages.state.grain_ms if self.messages is not None else self._config.timer_precision_ms
        return heapq.merge(
            pending_timers(self.messages) if self.messages is not None else (),
            pending_levels(self.schedule), parked_timers(self._store, grain))

    def stats(self) -> dict[str, Any]:
        """Positions and counters of the timers."""
        return {
            **(self.messages.stats() if self.messages is not None else {}), **self.schedule.stats()}


@final
class TimerTargets(Targets):
    """Decides where a message that has waited is delivered. Any thread may call."""

    def __init__(self, topics: TopicConfigManager, lives: EndedLives, opened_at: int) -> None:
        self._topics = topics
        self._lives = lives
        self._known_until = opened_at if topics.was_loaded else 0
        """A topic of a record before this position had a config when the record was put."""

    def first_position(self, topic: str) -> int:
        """Return the position before which records of a topic are not delivered."""
        ended = self._lives.deleted_up_to(topic)
        if topic in self._topics.table or topic.startswith(LMQ_PREFIX) or self._topics.is_system_topic(topic):
            return ended
        return NOWHERE if ended else self._known_until

    def queue_id(self, topic: str, queue_id: int) -> int:
        """Return the given queue, or one of the readable queues if the topic has fewer now."""
        config = self._topics.table.get(topic)
        if config is None or not 0 < config.read_queue_nums <= queue_id or topic in self._topics.mappings.table:
            return queue_id
        return queue_id % config.read_queue_nums


VERSION_STEP: Final = 200
"""Updates between two data versions (delayOffsetUpdateVersionStep)."""


@final
class DelayOffsetManager(ConfigManager[int, int]):
    """Next offsets by level. The file is written as a Java broker writes it, numbers as keys."""

    owned = Owned.BY_LOCK

    def __init__(
        self, file_system: FileSystem, config_dir: str, clock: Clock, before_write: Callable[[], None] | None = None
    ) -> None:
        super().__init__(file_system, config_dir, "delayOffset.json", before_write=before_write)
        self._clock = clock
        self._updates = 0

    def query(self, level: int) -> int:
        """Return the next offset of a level, or -1 if it is unknown."""
        return self._table.get(level, -1)

    def update(self, level: int, offset: int) -> None:
        """Remember the next offset of a level."""
        self._table[level] = offset
        self._dirty = True
        self._updates += 1
        if self._updates % VERSION_STEP == 0:
            self.data_version.next(self._clock.now_ms())

    def encode(self, shown: Callable[[int, int], int] = lambda _, offset: offset) -> bytes:
        """Return the text of the file in compact form. ``shown`` returns what is shown for a level and its offset."""
        value = self.to_json()
        value["offsetTable"] = {level: shown(int(level), offset) for level, offset in value["offsetTable"].items()}
        return self.dumps(value).translate(None, b"\t\n")

    @staticmethod
    def dumps(value: Any) -> bytes:
        """Return the text of the file."""
        version = "".join(f'\t\t"{name}":{number},\n' for name, number in sorted(value["dataVersion"].items()))
        entries = ",\n".join(f"\t\t{level}:{offset}" for level, offset in value["offsetTable"].items())
        table = f"{{\n{entries}\n\t}}" if entries else "{}"
        return f'{{\n\t"dataVersion":{{\n{version[:-2]}\n\t}},\n\t"offsetTable":{table}\n}}'.encode()

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("offsetTable", None)
        self._table = {
            int(level): int(offset) for level, offset in (found or {}).items()
            if is_number(str(level)) and isinstance(offset, int)
        }

    def _encode(self, table: dict[int, int]) -> dict[str, Any]:
        return {"offsetTable": {str(level): offset for level, offset in sorted(table.items())}}
