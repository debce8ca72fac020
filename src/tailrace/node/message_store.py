"""An open store directory: lock, abort file, store, topics, services. `MessageStore` is the public class.

``node.store_opening`` opens it. Order of a close: services end, the remaining records are dispatched and flushed,
the abort file is removed if the stop was clean, and the lock is released last.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

from tailrace import events
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env import processes
from tailrace.errors import (
    MessageIllegalError,
    StoreClosedError,
    StoreError,
    StoreNotWritableError,
)
from tailrace.formats import filenames
from tailrace.formats.commitlog import SysFlag
from tailrace.kernels.properties import plain_properties
from tailrace.logs import get_logger
from tailrace.model import (
    BoundaryType,
    GetMessageResult,
    Message,
    MessageExt,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
    decode_message_id,
)
from tailrace.node.arrow_table import arrow_table, check_not_negative, chosen_schema
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.delay_offset import DelayOffsetManager
from tailrace.node.deletion import Deleted, Deletion
from tailrace.node.directory_opening import remove_abort
from tailrace.node.embedded_topics import EmbeddedTopics
from tailrace.node.left_over_queues import LeftOverQueue
from tailrace.node.put_forms import (
    PutResults,
    by_topic,
    many_writers,
    odd_properties,
    raise_partial,
    raise_refused,
    refuse_without_keys,
    wait_durable,
)
from tailrace.node.put_table import PutTableResult, TablePut
from tailrace.node.queue_messages import READ_BYTES, messages_of
from tailrace.node.queue_offsets import QueueOffsets
from tailrace.node.store_opening import OpenStore, StoreParts, open_store
from tailrace.node.topic_config import TopicConfig
from tailrace.segments import Lease
from tailrace.spellings import Duration, Time, milliseconds, time_ms
from tailrace.store.flush import DurableCallback
from tailrace.store.hooks import MessageArrivingListener, PropertyFilter, TopicLives
from tailrace.store.queue_sizes import QueueSize, queue_size
from tailrace.timer.pending import PendingTimer

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MessageStore"]

_log = get_logger(__name__)
_PUT_OK, _INNER_BATCH = PutMessageStatus.PUT_OK, int(SysFlag.INNER_BATCH)  # a look-up of a member takes longer


@final
class MessageStore:
    """A durable store of messages in one directory; open it with ``MessageStore.open``.

    Every method may be called from any thread. A store must not be used after a fork.
    """

    def __init__(self, opened: OpenStore) -> None:
        store, entropy = opened.store, opened.entropy
        self.path = opened.root
        self.read_only = opened.read_only
        """Why nothing is written to the directory; empty if the store is not read-only."""
        self.topics = opened.topics
        self.retention = opened.retention
        """The service that deletes expired files and checks the disks."""
        self._store, self._plain_writer, self._append = store, store.plain_writer, store.append
        self._embedded = EmbeddedTopics(opened.topics, store, self.left_over_queues)
        self.queue_offsets = QueueOffsets(store, self._check_open)
        """Offsets of queues for a broker, to which an unknown topic is empty."""
        self.refused_puts = store.refused_puts
        self.rate_history = store.stats.history
        """Returns (puts, messages read) per second, for each second of the last ten minutes, oldest first."""
        self._timers = opened.timers
        self.deletion = Deletion(opened.file_system, store, opened.topics, opened.retention.topics, opened.timers)
        """Deletes topics and groups."""
        self._lock, self._lock_watch = opened.lock, opened.lock_watch
        self.file_system = opened.file_system
        """The file system of the store. A broker on the store must use the same one."""
        self._clock, self._entropy, self._scheduler = opened.clock, entropy, opened.scheduler
        self._forks = processes.forks
        self._closed = False
        self._at_hand: tuple[int, bytes | None] = -1, None
        self._unique_prefix = f"{entropy.randrange(1 << 16):04X}{entropy.u64():016X}"
        self._unique_number = itertools.count()
        self._close_lock = threading.Lock()

    # -- life

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, config: StoreConfig | None = None,
        broker_config: BrokerConfig | None = None, create: bool = True, read_only: bool = False,
        parts: StoreParts | None = None,
    ) -> Self:
        """Open a store directory and recover it if it was not closed. Create it if it does not exist.

        An existing directory keeps its file sizes, whatever ``config`` says. Without ``config`` it also
        keeps the settings that it must be read by (``store.own_settings``). If nothing can be written (a
        read-only file system, no permission, no room), the store is read-only until it is opened again,
        see ``read_only``: it recovers in memory, everything can be read, and puts are refused.

        ``read_only`` changes nothing in the directory, which must be a store: no lock is taken, and recovery runs
        in memory. Another process may then open the directory and change files that are read here. Beside a server
        the store shows what is synced at the call, and asks the server to sync first; a warning says if it does not.

        ``parts`` are for tests and tools.

        Raises StoreLockedError, NotAStoreError, StoreNotWritableError (including when a new store cannot be
        made), ConfigError, CorruptionError or OSError. After an error everything is closed again.
        """
        return cls(open_store(
            path, config, broker_config, parts or StoreParts(), create=create, read_only=read_only))

    def close(self) -> bool:
        """Make everything durable and close; a second call does nothing. Return False if the next open must recover."""
        with self._close_lock:
            if self._closed:
                return True
            self._closed = True
        if processes.forks != self._forks:
            return True  # the store belongs to the parent process
        if self._scheduler is not None:
            self._scheduler.stop_all()
        self._store.services_ended()
        try:
            if self.lost_lock:  # nothing may be written, because another process may own the directory
                self._timers.release()
                self._store.release()
                return False
            timers_clean = self._timers.close()
            self.retention.topics.close()
            clean = self._store.close() and timers_clean and remove_abort(self.file_system, self.path)
            if not clean and not self.read_only:
                events.THE_ABORT_FILE_STAYS.log(_log, path=self.path)
            return clean or bool(self.read_only)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError
        if processes.forks != self._forks:
            raise StoreClosedError("the store was opened before a fork; open it in one process only")

    def _check_may_change(self) -> None:
        self._check_open()
        if self.read_only:
            raise StoreNotWritableError(self.read_only)

    # -- what it is

    @property
    def lives(self) -> TopicLives:
        """Says which records belong to topics that were deleted."""
        return self._store.lives

    @property
    def config(self) -> StoreConfig:
        """The settings that the store uses."""
        return self._store.config

    @property
    def config_dir(self) -> str:
        """The directory of ``topics.json`` and the other state files."""
        return f"{self.path}/{filenames.CONFIG}"

    @property
    def store_host(self) -> bytes:
        """Address and port, as raw bytes, in records and message ids."""
        return self._store.store_host

    @store_host.setter
    def store_host(self, raw: bytes) -> None:
        self._store.store_host = raw

    @property
    def recovery_report(self) -> dict[str, Any]:
        """What the open found and did, as ``tailrace recover`` prints it."""
        return self._store.report.as_dict()

    @property
    def min_phy_offset(self) -> int:
        """Position of the first byte of the log, -1 if the log is empty."""
        return self._store.min_phy_offset

    @property
    def max_phy_offset(self) -> int:
        """Position after the last record of the log."""
        return self._store.max_phy_offset

    @property
    def flushed_where(self) -> int:
        """Position up to which the log is durable."""
        return self._store.commit_log.queue.flushed_where

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes of the log that cannot be read by queue yet."""
        return self._store.reput.behind_bytes()

    @property
    def lost_lock(self) -> str:
        """Why this process must not write to the directory any more; empty if it may."""
        return self._lock_watch.lost

    @property
    def is_writeable(self) -> bool:
        """True if puts are accepted."""
        return not self._closed and self._store.is_writeable

    @property
    def not_writeable_reason(self) -> str:
        """Why puts are refused; empty if they are accepted."""
        return "the store is closed" if self._closed else self._store.not_writeable_reason

    @property
    def delay_offsets(self) -> DelayOffsetManager:
        """The next offset of each delay level."""
        return self._timers.delay_offsets

    def delay_levels(self) -> list[tuple[int, int, int]]:
        """Return (level, next offset, end offset) of each level that was used."""
        return self._timers.schedule.progress()

    def stats(self) -> dict[str, Any]:
        """Return counters and positions, by the names of RocketMQ's StoreStatsService."""
        return {**self._store.stats_dict(), **self.retention.stats(), **self._timers.stats(),
                "lockMadeAgain": self._lock_watch.made_again}

    def queues(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, queue id, least offset, next offset) of every queue."""
        return [
            (topic, queue_id, queue.min_offset, queue.max_offset)
            for (topic, queue_id), queue in sorted(self._store.queues.table.items())
        ]

    def left_over_queues(self, topics: Mapping[str, int]) -> dict[str, list[LeftOverQueue]]:
        """Return the queues with messages that are not read, because their topic has fewer queues.

        ``topics`` has the number of queues to read of each topic. Takes time that grows with all queues of the store.
        """
        found: dict[str, list[LeftOverQueue]] = {}
        for (topic, queue_id), queue in list(self._store.queues.table.items()):
            if queue_id >= topics.get(topic, queue_id + 1) and queue.max_offset > max(0, queue.min_offset):
                found.setdefault(topic, []).append(LeftOverQueue(queue_id, max(0, queue.min_offset), queue.max_offset))
        return {topic: sorted(queues) for topic, queues in found.items()}

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        """Set the listener that the dispatch thread calls after messages can be read; None removes it."""
        self._store.dispatcher.listener = listener

    # -- putting

    def put(
        self, message: Message, *, queue_id: int | None = 0, ordering_key: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> PutMessageResult:
        """Put a message into a queue of its topic. A missing topic is created with 4 queues.

        With ``queue_id=None`` the queue is that of ``ordering_key``, or without a key the queues take turns.
        Under SYNC_FLUSH the call returns when the message is durable, unless its field
        ``wait_store_msg_ok`` is false. Raises MessageIllegalError, StoreNotWritableError,
        FlushDiskTimeoutError (the message is in the log, its sync is late) or StoreClosedError.
        """
        store = self._store
        host, topic = store.store_host, message.topic
        queue_id = self._topic_queues(topic, queue_id, ordering_key)
        if topic in store.compaction.topics:
            refuse_without_keys([message])
        result = self.put_inner(MessageExtBrokerInner(
            topic, queue_id, message.body,
            plain_properties(message, self._unique_prefix, next(self._unique_number))
            or odd_properties(message, self._unique_key()), message.flag, 0, self._clock.now_ms(), host))
        if result.status is not _PUT_OK:
            raise_refused(result)
        if store.sync_flush and message.wait_store_msg_ok:
            self._wait(result.until, timeout_ms)
        else:
            store.let_dispatch_follow(result.until)
        return result

    def put_many(
        self, messages: Sequence[Message], *, queue_id: int | None = 0, timeout_ms: Duration | None = None
    ) -> Sequence[PutMessageResult]:
        """Put messages in order, much faster than one by one. Return a result for each.

        Messages of one topic are written together, in their order; with ``queue_id=None`` into one queue of the
        topic, the next one in turn with each call. All are checked first. If the disk fills up, the messages before
        stay stored, and the error says so. Raises what ``put`` raises.
        """
        self._check_open()
        if isinstance(messages, Message | str):
            raise TypeError(f"messages is a list of Message; write put_many([...]), not {messages!r}")
        results: list[PutMessageResult] = []
        given = messages
        messages, order = by_topic(messages)
        writers = many_writers(
            self._store, messages, queue_id, self._clock.now_ms(), self._unique_prefix,
            self._unique_number, self._topic_queues)
        try:
            if writers is None:
                for one in given:
                    results.append(self.put(one, queue_id=queue_id, timeout_ms=timeout_ms))
                return results
            for writer in writers:
                results.append(self._store.append(writer))
                if not results[-1].status.appended:
                    raise_refused(results[-1])
        except StoreNotWritableError as error:
            raise_partial(error, sum(one.msg_num for one in results), f"of {len(messages)} messages")
        if (
            results and self._store.sync_flush
            and any(message.wait_store_msg_ok for message in messages)
        ):
            self._wait(results[-1].until, timeout_ms)
        if results:
            self._store.let_dispatch_follow(results[-1].until)
        return PutResults(results, order)

    def put_table(
        self, table: Any, *, topic: str | None = None, queue_id: int = 0, timeout_ms: Duration | None = None
    ) -> PutTableResult:
        """Put the rows of a table in order, as fast as memory allows. Return the place of each row.

        ``table`` is a ``pyarrow.Table``, a ``RecordBatch`` or a dict of columns (Arrow arrays, NumPy arrays
        or lists). The column ``body`` is required. Optional are ``topic``, ``queue_id``, ``tags``, ``keys``
        (lists), ``properties`` (maps), ``flag`` and ``deliver_at`` (ms since 1970, or a timestamp);
        ``queueId`` and ``deliverAt`` are accepted as well. ``topic`` and ``queue_id`` of the call are used
        for rows without them. All rows are checked first, and an error names column and row. If the disk
        fills up, the rows before stay stored, and the error says so. Raises what ``put`` raises, and
        MissingPackageError without pyarrow.
        """
        self._check_open()
        put = TablePut(
            self._store, self._timers, self._entropy, lambda name: self.topics.select(name) is None,
            self._table_queues, self._clock.now_ms())
        put.check(table, topic, queue_id)
        result = put.append()
        if result.until >= 0 and self._store.sync_flush:
            self._wait(result.until, timeout_ms)
        elif result.until >= 0:
            self._store.let_dispatch_follow(result.until)
        return result

    def put_inner(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append a message that a broker prepared; waits for no sync and raises no refusal."""
        if self._closed or processes.forks != self._forks:
            self._check_open()
        writer = self._plain_writer(message)
        if writer is not None:
            return self._append(writer)
        if message.sys_flag & _INNER_BATCH:
            return self._store.put_inner_batch(message)
        return self._timers.put(message)

    def put_due(self, message: MessageExtBrokerInner, deliver_ms: int, unique_key: str) -> PutMessageResult:
        """As ``put_inner``, for a message of the broker that is delivered later: see ``TimerPutHook.handle_due``."""
        if self._closed or processes.forks != self._forks:
            self._check_open()
        return self._timers.put_due(message, deliver_ms, unique_key)

    def recall(self, handle: str) -> None:
        """Cancel a timer message that is not due. ``handle`` is the ``recall_handle`` in the result of its put.

        Raises MessageIllegalError if the handle is invalid, or if the message is due or was recalled before, and
        what ``put`` raises.
        """
        self._check_may_change()
        self.wait_dispatched()
        for result in self._timers.recall(handle, self._clock.now_ms(), self.store_host, self.query_records):
            if result.status is not PutMessageStatus.PUT_OK:
                raise_refused(result)
            if self._store.sync_flush:
                self._wait(result.until, None)

    def timers(self) -> Iterator[PendingTimer]:
        """Yield pending timers and messages with a delay level, and those that were parked, sorted by due time.

        The field ``state`` says which is which, and ``reason`` why a message was parked. Messages are read while the
        iterator runs, so a message that is delivered, put or recalled in that time may be included or not. Far timers
        and parked messages are held in memory.
        """
        self._check_open()
        self.wait_dispatched()
        return self._timers.to_come()

    def timer_progress(self) -> tuple[int, int]:
        """Return (offset of the timer queue up to which messages are in the wheel, time in ms up to which these
        are delivered)."""
        return self._timers.progress()

    def put_batch_inner(self, message: MessageExtBrokerInner, encoded: bytes) -> PutMessageResult:
        """As ``put_inner``, for the messages of a batch request: all of them, or none."""
        self._check_open()
        return self._store.put_batch(message, encoded)

    def when_durable(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` once everything below ``until`` is durable, perhaps from another thread.

        Its argument is PUT_OK, FLUSH_DISK_TIMEOUT, or SERVICE_NOT_AVAILABLE after a failed sync.
        Under ASYNC_FLUSH it is called immediately.
        """
        self._store.when_durable(until, callback)

    def flush(self) -> None:
        """Make everything that was put before durable.

        Raises FatalStorageError. Raises StoreNotWritableError for a read-only store, which cannot sync bytes that
        a killed process has left in the page cache.
        """
        self._check_may_change()
        self._store.sync_log()

    def sync_for_readers(self, timeout_ms: int = 5_000) -> bool:
        """Make everything that was put before durable, and visible to processes that read the directory.

        Return False if its queue units are not written within ``timeout_ms``. A read-only store has nothing to sync.
        Raises FatalStorageError.
        """
        self._check_open()
        return bool(self.read_only) or self._store.sync_for_readers(timeout_ms)

    def wait_dispatched(self, timeout_ms: Duration = 10_000) -> bool:
        """Wait until everything that was put before can be read by queue and key; False after the timeout."""
        self._check_open()
        return self._store.wait_dispatched(round(milliseconds(timeout_ms, "timeout_ms")))

    def _unique_key(self) -> str:
        """Return a new unique key: 32 hexadecimal digits."""
        return f"{self._unique_prefix}{next(self._unique_number):012X}"

    def _topic_queues(self, topic: str, queue_id: int | None, ordering_key: str | None = None) -> int:
        if self._closed or processes.forks != self._forks:
            self._check_open()
        return self._embedded.queue_of(topic, queue_id, ordering_key)

    def _table_queues(self, topic: str, queue_id: int | None) -> int:
        if topic in self._store.compaction.topics:
            raise MessageIllegalError("topic", f"{topic} has cleanup.policy=COMPACTION; use put or put_many")
        return self._topic_queues(topic, queue_id)

    def _wait(self, until: int, timeout_ms: Duration | None) -> None:
        limit = self.config.sync_flush_timeout if timeout_ms is None else round(milliseconds(timeout_ms, "timeout_ms"))
        wait_durable(self._store, until, limit)

    # -- reading

    def get_message(
        self, topic: str, queue_id: int, offset: int, max_msg_nums: int, *,
        max_bytes: int = 128 << 20, codes: Collection[int] | None = None,
        property_filter: PropertyFilter | None = None, only_cached: bool = False,
    ) -> GetMessageResult:
        """Return stored records of a queue, with the status of a pull (RocketMQ's getMessage).

        ``codes`` keeps only messages whose tag has one of these Java hashes. ``property_filter`` keeps
        those whose properties it matches. Only one of both may be given. With ``only_cached``
        the call never waits for the disk: see ``GetMessageResult.is_cold``.
        """
        if self._closed or processes.forks != self._forks:
            self._check_open()
        store = self._store
        reader = store.compaction if topic in store.compaction.topics else store.reader
        result = reader.get_message(
            topic, queue_id, offset, max_msg_nums, max_bytes, codes, property_filter=property_filter,
            only_cached=only_cached)
        store.stats.get_done(result)
        return result

    def read(
        self, topic: str, queue_id: int | None = None, offset: int | None = None, *, max_count: int | None = None,
    ) -> Iterator[MessageExt]:
        """Return an iterator over the messages of a topic, or of one of its queues, up to their ends at the call.

        Queues follow each other by their ids, those included that the topic had before; ``queue_id`` chooses one.
        Only then ``offset`` may name the first message. ``max_count`` limits the messages of all queues together.

        A message decodes a field when it is first used. Messages of inner batches are yielded one by one. Raises
        UnknownTopicError, ValueError for a queue that does not exist, a negative number, or ``offset`` alone.
        """
        check_not_negative(offset=offset, max_count=max_count)
        ranges = self._ranges(topic, queue_id, offset)
        return itertools.islice(itertools.chain.from_iterable(
            self._messages(topic, *one, max_count) for one in ranges), max_count)

    def _messages(
        self, topic: str, queue_id: int, offset: int, until: int, max_count: int | None
    ) -> Iterator[MessageExt]:
        return messages_of(
            partial(self.get_message, topic, queue_id, max_bytes=READ_BYTES), topic, offset, until,
            until if max_count is None else max_count, has_batches=self._store.queues.has_batch_queues(topic))

    def _ranges(self, topic: str, queue_id: int | None, offset: int | None) -> list[tuple[int, int, int]]:
        """Return (queue id, first offset, end offset) of the queues to read."""
        if offset is not None and queue_id is None:
            raise ValueError(f"offset={offset} is a place in one queue: name the queue with queue_id")
        self._embedded.check_known(topic)
        self.wait_dispatched()
        at = self.queue_offsets
        return [(one, at.min(topic, one) if offset is None else offset, at.max(topic, one))
                for one in self._embedded.queue_ids(topic, queue_id)]

    def to_arrow(
        self, topic: str, queue_id: int | None = None, offset: int | None = None, count: int | None = None, *,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return what ``read`` yields, at most ``count`` messages, in the columns of the Spark source.

        ``columns`` chooses columns and their order; None means all of them. Raises what ``read`` raises, ValueError
        for an unknown column, TypeError for another type, MissingPackageError if pyarrow is not installed.
        """
        check_not_negative(queue_id=queue_id, offset=offset, count=count)
        schema = chosen_schema(columns)
        if topic in self._store.compaction.topics:
            raise StoreError(f"{topic} has cleanup.policy=COMPACTION, which to_arrow does not read; use read")
        return arrow_table(self._store.reader, schema, os.path.basename(self.path), topic,
                           self._ranges(topic, queue_id, offset), count)

    def select_record(self, phy_offset: int) -> bytes | None:
        """Return the stored record at a position of the log, or None."""
        record = self.record_at(phy_offset)
        return None if self._store.reader.visible(phy_offset, record) is None else record

    def look_message_by_offset(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position of the log, or None."""
        return self._store.reader.visible(phy_offset, self.record_at(phy_offset))

    def record_at(self, phy_offset: int) -> bytes | None:
        """Return the record at a position, even if its topic has released it; None if there is no record."""
        self._check_open()
        at, record = self._at_hand
        return record if at == phy_offset >= 0 else self._store.record_at(phy_offset)

    def is_in_memory(self, phy_offset: int) -> bool:
        """Return True if `record_at` does not wait for the disk."""
        return self._store.commit_log.is_in_memory(phy_offset)

    def at_hand(self, phy_offset: int, record: bytes | None) -> None:
        """Have `record_at` return a record that was read before, until the next call; -1 ends that."""
        self._at_hand = phy_offset, record

    def look_message_by_id(self, msg_id: str) -> MessageExt | None:
        """Return the message with a broker's id (not a unique key), or None."""
        return self.look_message_by_offset(decode_message_id(msg_id)[1])

    def query_message(
        self, topic: str, key: Any, max_num: int = 64, begin: int = 0, end: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> list[MessageExt]:
        """Return the newest ``max_num`` messages with a key or unique key, the oldest of them first.

        ``begin`` and ``end`` limit the store time, in ms. ``index_type`` T looks for a tag. Raises UnknownTopicError.
        """
        if not isinstance(key, str):
            raise TypeError(f"key is a text, not {key!r}")
        self._embedded.check_known(topic)
        self.wait_dispatched()
        found = self._store.reader.query(topic, key, max_num, begin, end, index_type)
        return [message for message, _ in found]

    def copies(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Return the newest 64 messages with a unique key, oldest first, also those that a purge has released.

        They show whether a service has put a copy already.
        """
        self.wait_dispatched()
        return self._store.reader.copies(topic, unique_key)

    def query_records(
        self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> list[bytes]:
        """As ``query_message``, but return stored records, and do not wait for dispatch."""
        self._check_open()
        found = self._store.reader.query(topic, key, max_num, begin, end, index_type)
        return [data for _, data in found]

    def get_offset_in_queue_by_time(
        self, topic: str, queue_id: int, timestamp_ms: Time,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the offset of the first message stored at or after a time; with UPPER the last at or before it.

        The time is in ms, a ``datetime`` or a text of ISO 8601. Raises UnknownTopicError or ValueError.
        """
        self._embedded.check_queue(topic, queue_id)
        return self.queue_offsets.by_time(topic, queue_id, time_ms(timestamp_ms, "timestamp_ms"), boundary)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in ms, -1 if it does not exist. Raises UnknownTopicError or ValueError."""
        self._embedded.check_queue(topic, queue_id)
        return self.queue_offsets.store_timestamp(topic, queue_id, offset)

    def wall_time_of(self, message: MessageExt) -> int:
        """Return when a stored message was stored, in ms of the wall clock: its store time, unless that was ahead."""
        return self._store.commit_log.wall_times.of(message.phy_offset, message.store_timestamp)

    def earliest_message_time(self) -> int:
        """Return the store time of the first record of the log in ms, -1 if the log is empty."""
        self._check_open()
        low = self.min_phy_offset
        return self._store.reader.store_timestamp(low) if low >= 0 and self.max_phy_offset > low else -1

    def lease(self, phy_offset: int, size: int) -> Lease | None:
        """Return bytes of the log without a copy, valid until the lease ends; None if a part of them is missing.

        Retention waits for the lease up to ``destroyMapedFileIntervalForcibly``. After that it removes the name
        of the file, but the bytes stay until the lease ends.
        """
        self._check_open()
        return self._store.lease(phy_offset, size)

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message of a queue, or of its first one to come if the queue is empty.

        Raises UnknownTopicError, or ValueError for a queue that does not exist.
        """
        self._embedded.check_queue(topic, queue_id)
        return self.queue_offsets.min(topic, queue_id)

    def max_offset_in_queue(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset after the last message of a queue that can be read; raises as ``min_offset_in_queue``.

        With ``committed=False`` messages count that were put and cannot be read yet.
        """
        self._embedded.check_queue(topic, queue_id)
        return self.queue_offsets.max(topic, queue_id, committed=committed)

    def queue_size(self, topic: str, queue_id: int) -> QueueSize:
        """Return the bytes of the messages of a queue, an estimate if it has more than a thousand."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return QueueSize(0, is_exact=True)
        return queue_size(queue, max(0, self.min_offset_in_queue(topic, queue_id)))

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 passes delete expired files at any hour (request 329)."""
        self._check_may_change()
        self.retention.clean_commit_log.execute_delete_files_manually()

    def keep_unconsumed(self, offsets: ConsumerOffsetManager) -> None:
        """Use these offsets to keep what ``pinGroups`` have not consumed, and pending half messages."""
        self.retention.follow_groups(offsets)

    def create_topic(self, topic: str, queues: int = 4, attributes: Mapping[str, str] | None = None) -> TopicConfig:
        """Create a topic, or change its queues and attributes; durable on return. Raises ConfigError or OSError."""
        self._check_may_change()
        return self._embedded.create(topic, queues, attributes or {})

    def delete_topics(self, topics: Collection[str], *, missing_ok: bool = False) -> Deleted:
        """Delete topics with everything that belongs to them (``node.deletion``); durable on return.

        Their messages stay in the log until retention deletes its files. If a topic is created again, its queues
        continue at higher offsets. Raises UnknownTopicError unless ``missing_ok``, OSError or FatalStorageError; then
        nothing is deleted.
        """
        self._check_may_change()
        if isinstance(topics, str):
            raise TypeError(f"topics is a list of names; write [{topics!r}]")
        for topic in topics if not missing_ok else ():
            self._embedded.check_known(topic)
        return self.deletion.delete_topics(topics)

    def delete_group(self, group: str, also: Callable[[], None]) -> Deleted:
        """Delete the topics of a group: retries and dead letters. ``also`` deletes the group itself, durably.

        Raises OSError, FatalStorageError or what ``also`` raises; then nothing is deleted.
        """
        self._check_may_change()
        return self.deletion.delete_group(group, also)

    def delete_idle_queues(self, ends: Mapping[str, int]) -> set[str]:
        """Delete LMQ queues whose next offset is still the one in ``ends``; return their names."""
        self._check_may_change()
        return self.deletion.delete_idle(ends)

    def delete_unused_topics(self) -> Deleted:
        """Delete the queues of topics that do not exist any more (cleanUnusedTopic)."""
        self._check_may_change()
        return self.deletion.delete_unused()

    def purge_topic(
        self, topic: str, queue_id: int | None = None, before_ms: Time | None = None
    ) -> dict[int, tuple[int, int]]:
        """Purge the messages of a topic, or those of one queue, or those stored before a time.

        Returns the least offset before and after the purge, by queue id. Purged messages are not shown
        any more; their bytes are deleted with their files. A Java broker on the directory shows them
        again. ``before_ms`` may be a ``datetime`` or a text of ISO 8601. Raises StoreError, UnknownTopicError,
        ValueError or OSError; then nothing was purged.
        """
        self._check_may_change()
        if not self.topics.is_system_topic(topic):  # which has a refusal of its own
            self._embedded.check_known(topic)
        if topic in self._store.compaction.topics:
            raise StoreError(f"{topic} has cleanup.policy=COMPACTION, it cannot be purged; a message without a body "
                             "removes its key, and deleting the topic removes all")
        self.wait_dispatched()
        before = None if before_ms is None else time_ms(before_ms, "before_ms")
        return self.retention.topics.purge(topic, queue_id, before)
