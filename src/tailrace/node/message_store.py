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
from tailrace.node.store_opening import OpenStore, StoreParts, open_store
from tailrace.node.topic_config import TopicConfig
from tailrace.spellings import Duration, Time, milliseconds, time_ms
from tailrace.store.default_message_store import FAR_BEHIND
from tailrace.store.hooks import MessageArrivingListener, PropertyFilter
from tailrace.store.queue_sizes import QueueSize
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
        self.inner, self._reput = store, store.reput
        self._put_plain, self._put_parts = store.commit_log.tail.put, store.commit_log.tail.put_parts
        self._embedded = EmbeddedTopics(opened.topics, store)
        self.queue_of = store.queue_of
        """Returns the reader of a queue, for a broker: an unknown topic is empty and not an error of its client."""
        self.refused_puts = store.refused_puts
        self.timer_services = opened.timers
        """Delay levels and timers, for a broker."""
        self.deletion = Deletion(
            opened.file_system, store, opened.topics, opened.retention.topics, opened.timers, self._check_may_change)
        """Deletes topics, groups and queues, for a broker."""
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
        self.inner.services_ended()
        try:
            if self.lost_lock:  # nothing may be written, because another process may own the directory
                self.timer_services.release()
                self.inner.release()
                return False
            timers_clean = self.timer_services.close()
            self.retention.topics.close()
            clean = self.inner.close() and timers_clean and remove_abort(self.file_system, self.path)
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
    def config(self) -> StoreConfig:
        """The settings that the store uses."""
        return self.inner.config

    @property
    def config_dir(self) -> str:
        """The directory of ``topics.json`` and the other state files."""
        return f"{self.path}/{filenames.CONFIG}"

    @property
    def recovery_report(self) -> dict[str, Any]:
        """What the open found and did, as ``tailrace recover`` prints it."""
        return self.inner.report.as_dict()

    @property
    def min_phy_offset(self) -> int:
        """Position of the first byte of the log, -1 if the log is empty."""
        return self.inner.commit_log.min_offset

    @property
    def max_phy_offset(self) -> int:
        """Position after the last record of the log."""
        return self.inner.commit_log.max_offset

    @property
    def flushed_where(self) -> int:
        """Position up to which the log is durable."""
        return self.inner.commit_log.queue.flushed_where

    @property
    def dispatch_behind_bytes(self) -> int:
        """Number of bytes of the log that cannot be read by queue yet."""
        return self.inner.reput.behind_bytes()

    @property
    def lost_lock(self) -> str:
        """Why this process must not write to the directory any more; empty if it may."""
        return self._lock_watch.lost

    @property
    def is_writeable(self) -> bool:
        """True if puts are accepted."""
        return not self._closed and self.inner.flags.is_writeable()

    @property
    def not_writeable_reason(self) -> str:
        """Why puts are refused; empty if they are accepted."""
        return "the store is closed" if self._closed else self.inner.flags.reason

    def stats(self) -> dict[str, Any]:
        """Return counters and positions, by the names of RocketMQ's StoreStatsService."""
        return {**self.inner.stats_dict(), **self.retention.stats(), **self.timer_services.stats(),
                "lockMadeAgain": self._lock_watch.made_again}

    def queues(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, queue id, least offset, next offset) of every queue."""
        return [
            (topic, queue_id, queue.min_offset, queue.max_offset)
            for (topic, queue_id), queue in sorted(self.inner.queues.table.items())
        ]

    def left_over_queues(self, topics: Mapping[str, int]) -> dict[str, list[LeftOverQueue]]:
        """Return the queues with messages that are not read, because their topic has fewer queues.

        ``topics`` has the number of queues to read of each topic. Takes time that grows with all queues of the store.
        """
        return self._embedded.left_over_queues(topics)

    def set_message_arriving_listener(
        self, listener: MessageArrivingListener | None, is_awaited: Callable[[], bool] | None = None
    ) -> None:
        """Set the listener that the dispatch thread calls after messages can be read; None removes it.

        While ``is_awaited`` returns False, messages can be read up to 10 ms after they were put; else, and without it,
        1 ms if dispatch is not busy. After it has begun to return True, call ``inner.hurry_reput``.
        """
        self.inner.listeners[:] = [] if listener is None else [listener]
        self.inner.waits[:] = [] if is_awaited is None else [is_awaited]

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
        store, topic = self.inner, message.topic
        if self._closed or processes.forks != self._forks:
            self._check_open()
        if (
            type(queue_id) is not int or ordering_key is not None or type(topic) is not str
            or not 0 <= queue_id < self._embedded.plain.get(topic, 0)
        ):
            queue_id = self._embedded.queue_of(topic, queue_id, ordering_key)
            if topic in store.compaction.topics:
                refuse_without_keys(store.compaction, topic, [message])
        stored = plain_properties(message, self._unique_prefix, next(self._unique_number))
        result = self._put_parts(topic, queue_id, message.body, stored, message.flag) if stored else None
        if result is None:
            result = self.put_inner(MessageExtBrokerInner(
                topic, queue_id, message.body,
                stored or odd_properties(message, self._unique_prefix, next(self._unique_number)), message.flag, 0,
                self._clock.now_ms(), store.store_host, kind=0 if stored else -1))
        if result.status is not _PUT_OK:
            raise_refused(result)
        if store.sync_flush and message.wait_store_msg_ok:
            self._wait(result.until, timeout_ms)
        elif result.until - self._reput.reput_from_offset >= FAR_BEHIND:
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
            self.inner, messages, queue_id, self._clock.now_ms(), self._unique_prefix,
            self._unique_number, self._topic_queues)
        try:
            if writers is None:
                for one in given:
                    results.append(self.put(one, queue_id=queue_id, timeout_ms=timeout_ms))
                return results
            for writer in writers:
                results.append(self.inner.append(writer))
                if not results[-1].status.appended:
                    raise_refused(results[-1])
        except StoreNotWritableError as error:
            raise_partial(error, sum(one.msg_num for one in results), f"of {len(messages)} messages")
        if results and self.inner.sync_flush and any(message.wait_store_msg_ok for message in messages):
            self._wait(results[-1].until, timeout_ms)
        elif results:
            self.inner.let_dispatch_follow(results[-1].until)
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
            self.inner, self.timer_services, self._entropy, lambda name: self.topics.select(name) is None,
            self._table_queues, self._clock.now_ms())
        put.check(table, topic, queue_id)
        result = put.append()
        if result.until >= 0 and self.inner.sync_flush:
            self._wait(result.until, timeout_ms)
        elif result.until >= 0:
            self.inner.let_dispatch_follow(result.until)
        return result

    def put_inner(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Append a message that a broker prepared; waits for no sync and raises no refusal."""
        if self._closed or processes.forks != self._forks:
            self._check_open()
        result = self._put_plain(message)
        if result is not None:
            return result
        if message.sys_flag & _INNER_BATCH:
            return self.inner.put_inner_batch(message)
        return self.timer_services.put(message)

    def recall(self, handle: str) -> None:
        """Cancel a timer message that is not due. ``handle`` is the ``recall_handle`` in the result of its put.

        Raises MessageIllegalError if the handle is invalid, or if the message is due or was recalled before, and
        what ``put`` raises.
        """
        self._check_may_change()
        self.wait_dispatched()
        store = self.inner
        for result in self.timer_services.recall(handle, self._clock.now_ms(), store.store_host, self.query_records):
            if result.status is not PutMessageStatus.PUT_OK:
                raise_refused(result)
            if store.sync_flush:
                self._wait(result.until, None)

    def timers(self) -> Iterator[PendingTimer]:
        """Yield pending timers and messages with a delay level, and those that were parked, sorted by due time.

        The field ``state`` says which is which, and ``reason`` why a message was parked. Messages are read while the
        iterator runs, so a message that is delivered, put or recalled in that time may be included or not. Far timers
        and parked messages are held in memory.
        """
        self._check_open()
        self.wait_dispatched()
        return self.timer_services.to_come()

    def flush(self) -> None:
        """Make everything that was put before durable.

        Raises FatalStorageError. Raises StoreNotWritableError for a read-only store, which cannot sync bytes that
        a killed process has left in the page cache.
        """
        self._check_may_change()
        self.inner.sync_log()

    def wait_dispatched(self, timeout_ms: Duration = 10_000) -> bool:
        """Wait until everything that was put before can be read by queue and key; False after the timeout."""
        self._check_open()
        return self.inner.wait_dispatched(round(milliseconds(timeout_ms, "timeout_ms")))

    def _topic_queues(self, topic: str, queue_id: int | None, ordering_key: str | None = None) -> int:
        if self._closed or processes.forks != self._forks:
            self._check_open()
        return self._embedded.queue_of(topic, queue_id, ordering_key)

    def _table_queues(self, topic: str, queue_id: int | None) -> int:
        try:
            self.inner.compaction.refuse(topic, "; use put or put_many")
        except StoreError as error:
            raise MessageIllegalError("topic", str(error)) from None
        return self._topic_queues(topic, queue_id)

    def _wait(self, until: int, timeout_ms: Duration | None) -> None:
        limit = self.config.sync_flush_timeout if timeout_ms is None else round(milliseconds(timeout_ms, "timeout_ms"))
        wait_durable(self.inner, until, limit)

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
        store = self.inner
        if topic in store.compaction.topics:
            result = store.queue_of(topic, queue_id).read(
                offset, max_msg_nums, max_bytes, codes, property_filter=property_filter, only_cached=only_cached)
        else:  # what its ``read`` does, without the object, which costs a sixth of the read of one message
            result = store.reader.get_message(
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
            partial(self.get_message, topic, queue_id, max_bytes=READ_BYTES), topic, offset, until, max_count,
            has_batches=self.inner.queues.has_batch_queues(topic))

    def _ranges(self, topic: str, queue_id: int | None, offset: int | None) -> list[tuple[int, int, int]]:
        """Return (queue id, first offset, end offset) of the queues to read."""
        if offset is not None and queue_id is None:
            raise ValueError(f"offset={offset} is a place in one queue: name the queue with queue_id")
        self._embedded.check_known(topic)
        self.wait_dispatched()
        queues = [self.queue_of(topic, one) for one in self._embedded.queue_ids(topic, queue_id)]
        return [(one.queue_id, one.min if offset is None else offset, one.max) for one in queues]

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
        self.inner.compaction.refuse(topic, ", which to_arrow does not read; use read")
        return arrow_table(self.inner.reader, schema, os.path.basename(self.path), topic,
                           self._ranges(topic, queue_id, offset), count)

    def select_record(self, phy_offset: int, *, also_released: bool = False) -> bytes | None:
        """Return the stored record at a position of the log, or None.

        With ``also_released`` it may be of a topic that was deleted or has released it.
        """
        record, reader = self.record_at(phy_offset), self.inner.reader
        message = reader.decoded(phy_offset, record) if also_released else reader.visible(phy_offset, record)
        return None if message is None else record

    def look_message_by_offset(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position of the log, or None."""
        return self.inner.reader.visible(phy_offset, self.record_at(phy_offset))

    def record_at(self, phy_offset: int) -> bytes | None:
        """Return the record at a position, even if its topic has released it; None if there is no record."""
        self._check_open()
        at, record = self._at_hand
        return record if at == phy_offset >= 0 else self.inner.commit_log.record_at(phy_offset)

    def is_in_memory(self, phy_offset: int) -> bool:
        """Return True if `record_at` does not wait for the disk."""
        return self.inner.commit_log.is_in_memory(phy_offset)

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
        found = self.inner.reader.query(topic, key, max_num, begin, end, index_type)
        return [message for message, _ in found]

    def copies(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Return the newest 64 messages with a unique key, oldest first, also those that a purge has released.

        They show whether a service has put a copy already.
        """
        self.wait_dispatched()
        return self.inner.reader.copies(topic, unique_key)

    def query_records(
        self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> list[bytes]:
        """As ``query_message``, but return stored records, and do not wait for dispatch."""
        self._check_open()
        found = self.inner.reader.query(topic, key, max_num, begin, end, index_type)
        return [data for _, data in found]

    def get_offset_in_queue_by_time(
        self, topic: str, queue_id: int, timestamp_ms: Time,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        """Return the offset of the first message stored at or after a time; with UPPER the last at or before it.

        The time is in ms, a ``datetime`` or a text of ISO 8601. Raises UnknownTopicError or ValueError.
        """
        self._embedded.check_queue(topic, queue_id)
        self._check_open()
        return self.queue_of(topic, queue_id).by_time(time_ms(timestamp_ms, "timestamp_ms"), boundary)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in ms, -1 if it does not exist. Raises UnknownTopicError or ValueError."""
        self._embedded.check_queue(topic, queue_id)
        self._check_open()
        return self.queue_of(topic, queue_id).store_timestamp(offset)

    def wall_time_of(self, message: MessageExt) -> int:
        """Return when a stored message was stored, in ms of the wall clock: its store time, unless that was ahead."""
        return self.inner.commit_log.wall_times.of(message.phy_offset, message.store_timestamp)

    def earliest_message_time(self) -> int:
        """Return the store time of the first record of the log in ms, -1 if the log is empty."""
        self._check_open()
        low = self.min_phy_offset
        return self.inner.reader.store_timestamp(low) if low >= 0 and self.max_phy_offset > low else -1

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message of a queue, or of its first one to come if the queue is empty.

        Raises UnknownTopicError, or ValueError for a queue that does not exist.
        """
        self._embedded.check_queue(topic, queue_id)
        return self.queue_of(topic, queue_id).min

    def max_offset_in_queue(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset after the last message of a queue that can be read; raises as ``min_offset_in_queue``.

        With ``committed=False`` messages count that were put and cannot be read yet.
        """
        self._embedded.check_queue(topic, queue_id)
        queue = self.queue_of(topic, queue_id)
        return queue.max if committed else queue.next

    def queue_size(self, topic: str, queue_id: int) -> QueueSize:
        """Return the bytes of the messages of a queue, an estimate if it has more than a thousand."""
        return self.queue_of(topic, queue_id).size()

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 passes delete expired files at any hour (request 329)."""
        self._check_may_change()
        self.retention.clean_commit_log.execute_delete_files_manually()

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
        self.inner.compaction.refuse(topic, ", it cannot be purged; a message without a body removes its key, and "
                                     "deleting the topic removes all")
        self.wait_dispatched()
        before = None if before_ms is None else time_ms(before_ms, "before_ms")
        return self.retention.topics.purge(topic, queue_id, before)
