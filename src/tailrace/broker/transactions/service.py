"""Settling of half messages: each is committed at most once, also after restarts and repeated requests.

The rule: a transaction is committed if its real topic has a message with the commit flag and its unique key.
A half message that this process has put (FRESH) cannot have such a message yet. For every other half message a
thread searches the log before the half message is committed or checked. States change only on the event loop,
which knows the transactions that were committed during the search.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, final

from tailrace import events
from tailrace.broker.transactions.half_messages import (
    QUEUE_ID,
    FreshHalf,
    committed_message,
    is_half,
    make_half,
    operation_message,
    renewed_message,
    settled_offsets,
)
from tailrace.broker.transactions.half_queue import (
    COMMITTED,
    ENDED,
    FRESH,
    PASSED,
    ROLLED_BACK,
    UNKNOWN,
    HalfQueue,
    OperationBatch,
)
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import FileSystem
from tailrace.errors import CorruptionError, RefusalError, StoreError
from tailrace.formats import fastjson, filenames
from tailrace.formats import names as N
from tailrace.formats.commitlog import SysFlag, decode_message
from tailrace.formats.remoting import ResponseCode
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.metrics import FINISH_LATENCY, Histogram
from tailrace.model import MessageExt, MessageExtBrokerInner, PutMessageResult
from tailrace.node.config_manager import ConfigManager, Owned, number_of
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.append import kind_of

__all__ = ["Found", "TransactionMetrics", "TransactionService"]

_log = get_logger(__name__)

RECENT_BYTES: Final = 64 << 20
"""A record within this distance of the end of the log was written just now, so it is in the page cache."""
FRESH_MAX: Final = 16_384
FRESH_BYTES_MAX: Final = 16 << 20
"""Limits of the latest half messages that are kept in memory, so that they are committed without a read."""
RECENT_COMMITS: Final = 16_384
"""Number of the latest commits that are kept in memory, so that no search is needed to know them."""
COPIES_MAX: Final = 64
"""Number of copies of a half message that a search returns. Each check puts one, and there are few checks."""
SKEW_MS: Final = 86_400_000
"""Time by which the clock of a producer may be ahead."""
BATCH: Final = 32
"""Number of messages of one read."""


class Found(NamedTuple):
    """Result of the search for a half message in the log."""

    half: MessageExt
    is_committed: bool
    since: int
    """Number of commits when the search began."""
    latest: MessageExt | None = None
    """The newest copy of the half message, which a later check has put; None without a copy."""


def _name_of(half: MessageExt) -> tuple[str, str]:
    """Return what names a transaction: its real topic and its unique key, or without one the position."""
    return half.properties[N.REAL_TOPIC], half.properties.get(N.UNIQ_KEY, str(half.phy_offset))


@final
class TransactionService:
    """Half messages of a broker. Methods run on the event loop, except ``load`` and those that name a thread."""

    def __init__(
        self, clock: Clock, entropy: Entropy, store: MessageStore, topics: TopicConfigManager,
        offsets: ConsumerOffsetManager, config: BrokerConfig,
    ) -> None:
        self._clock = clock
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._config = config
        self.queue = HalfQueue()
        self.operations = OperationBatch(
            config.transaction_op_batch_interval, config.transaction_op_msg_max_size)
        self.metrics = TransactionMetrics(clock, store.file_system, store.config_dir)
        self.is_loaded = False
        self.events: Counter[str] = Counter(asked=0, given_up=0, duplicate=0)
        """Names and meanings are those of the metric tailrace_transaction_events_total."""
        self._commits = 0
        self._recent: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Real topic and unique key of the latest committed transactions."""
        self._fresh: OrderedDict[int, FreshHalf] = OrderedDict()
        """Half messages in memory by queue offset, oldest first."""
        self._fresh_bytes = 0
        self._copies: dict[tuple[str, str], tuple[int, int]] = {}
        """By real topic and unique key, queue offset and position of the newest copy that this process has put."""
        self.ending: Counter[int] = Counter()
        """Queue offsets of half messages for which an end waits for the search; no check asks about these."""
        self._unique_prefix = f"{entropy.u64():016X}"
        self._unique_number = 0

    # -- at the start

    def load(self) -> bool:
        """Read which half messages are settled; runs in a thread. Return False if the dispatch is not complete."""
        store = self._store
        if not store.wait_dispatched():
            return False
        base = self._progress(N.HALF_TOPIC)
        queue = HalfQueue(base, self._progress(N.OP_TOPIC))
        queue.grow(store.queue_of(N.HALF_TOPIC, QUEUE_ID).next)
        count = 0
        for operation in self._messages(N.OP_TOPIC, queue.op_progress):
            queue.add_operation(operation.queue_offset, settled_offsets(operation))
            count += 1
        queue.advance(queue.next_pending(queue.base))
        self.metrics.load()
        self.queue, self.is_loaded = queue, True
        if queue.pending:
            events.HALF_MESSAGES_ARE_PENDING.log(_log, count=queue.pending, from_=queue.base, operations=count)
        return True

    def _progress(self, topic: str) -> int:
        offset = self._offsets.query(N.TRANSACTION_GROUP, topic, QUEUE_ID)
        until = self._store.queue_of(topic, QUEUE_ID).max
        return min(max(offset, self._store.queue_of(topic, QUEUE_ID).min), until)

    def _messages(self, topic: str, offset: int, queue_id: int = QUEUE_ID) -> Iterator[MessageExt]:
        """Yield the readable messages of a queue, from ``offset`` to its end."""
        until = self._store.queue_of(topic, queue_id).max
        while offset < until:
            result = self._store.get_message(topic, queue_id, offset, BATCH)
            for record in result.records:
                try:
                    yield decode_message(record)
                except CorruptionError:
                    continue
            if result.next_begin_offset <= offset:
                return
            offset = result.next_begin_offset

    # -- half messages of producers

    def prepare(self, message: MessageExtBrokerInner, properties: dict[str, str]) -> FreshHalf:
        """Change a message of a producer into its half message. Raises RefusalError."""
        if self._config.reject_transaction_message:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending transaction message is forbidden")
        if not self.is_loaded:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, "the broker is still reading its half messages; try again later")
        return make_half(message, properties, multi_dispatch=self._store.config.multi_dispatch)

    def prepared(self, half: FreshHalf, result: PutMessageResult) -> None:
        """Register a half message that was put; set the queue of the result to its real queue."""
        committed = half.committed
        committed.prepared_transaction_offset = result.phy_offset
        self.queue.put(result.queue_offset, FRESH)
        self.metrics.add(committed.topic, 1)
        result.queue_id = committed.queue_id
        self._fresh[result.queue_offset] = half._replace(stored_ms=self._clock.now_ms())
        self._fresh_bytes += half.size
        while len(self._fresh) > FRESH_MAX or self._fresh_bytes > FRESH_BYTES_MAX:
            self._fresh_bytes -= self._fresh.popitem(last=False)[1].size

    def in_memory(self, offset: int, phy_offset: int) -> FreshHalf | None:
        """Return the half message at these offsets if it is pending and still in memory; None otherwise."""
        half = self._fresh.get(offset)
        if (
            half is None or half.committed.prepared_transaction_offset != phy_offset
            or self.queue.state(offset) != FRESH
        ):
            return None
        return half

    # -- what the log says

    def is_recent(self, phy_offset: int) -> bool:
        """Return whether the record at a position is in the page cache, so that a read does not wait."""
        return max(0, self._store.max_phy_offset - RECENT_BYTES) <= phy_offset < self._store.max_phy_offset

    def half_at(self, phy_offset: int) -> MessageExt:
        """Return the half message at a position of the log. Raises RefusalError if the record is not one."""
        found = self._store.look_message_by_offset(phy_offset) if phy_offset >= 0 else None
        if found is None or not is_half(found):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        return found

    def fresh(self, phy_offset: int) -> Found:
        """Return a half message that this process has just put. Raises RefusalError if the record is not one."""
        return Found(self.half_at(phy_offset), is_committed=False, since=self._commits)

    def begin_search(self) -> int:
        """Wait until the index has every message; return ``since`` for ``look``. Runs in a thread.

        One wait is enough for many calls of ``look``: what is committed after it began is known without a search.
        Raises RefusalError if it takes too long.
        """
        since = self._commits
        if not self._store.wait_dispatched():
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "the queues are not built yet; try again later")
        return since

    def look(self, half: MessageExt, since: int, *, with_copies: bool = False) -> Found:
        """Search the log for the committed message of a half message, and for copies; runs in a thread."""
        latest = None
        if with_copies:
            copies = [
                m for m in self._named(half, N.HALF_TOPIC, QUEUE_ID, self.queue.base)
                if m.queue_offset > half.queue_offset
                and m.properties.get(N.REAL_TOPIC) == half.properties[N.REAL_TOPIC]]
            latest = max(copies, key=lambda m: m.queue_offset, default=None)
        return Found(half, self._is_committed(half), since, latest)

    def _is_committed(self, half: MessageExt) -> bool:
        real = committed_message(half)
        topics = [(real.topic, real.queue_id)]
        if kind_of(real) & C.WAITS:  # another broker has put it, because this one refuses such half messages
            topics += [(N.TIMER_TOPIC, 0), (N.SCHEDULE_TOPIC, 0)]
        return any(
            message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
            for topic, queue_id in topics for message in self._named(half, topic, queue_id, None))

    def _named(
        self, half: MessageExt, topic: str, queue_id: int, offset: int | None
    ) -> Iterator[MessageExt]:
        """Yield the messages of a topic with the unique key of ``half``.

        Without the index the messages of one queue are read, from ``offset`` onwards, or if that is None from the
        time at which the half message was sent.
        """
        key = half.properties.get(N.UNIQ_KEY)
        since = max(0, min(half.born_timestamp, self._store.wall_time_of(half)) - SKEW_MS)
        if key and self._store.config.message_index_enable:
            found = map(decode_message, self._store.query_records(topic, key, COPIES_MAX, since))
            yield from (m for m in found if m.unique_key == key)
            return
        if offset is None:
            offset = self._store.queue_of(topic, queue_id).by_time(since)
        for message in self._messages(topic, offset, queue_id):
            if message.unique_key == key if key else message.prepared_transaction_offset == half.phy_offset:
                yield message

    # -- settling

    def end(self, found: Found, *, commit: bool) -> PutMessageResult | None:
        """Commit or roll back a half message; runs on the event loop.

        Return the result of the put of the committed message; None if nothing had to be put. Raises RefusalError
        if the half message cannot be settled this way.
        """
        half = found.half
        if self.queue.state(half.queue_offset) == PASSED and found.latest is not None:
            half = found.latest
        name = _name_of(half)
        if self.queue.state(half.queue_offset) == PASSED and name in self._copies:  # checked during the search
            half.queue_offset, half.phy_offset = self._copies[name]
        offset, state = half.queue_offset, self.queue.state(half.queue_offset)
        if not self.queue.is_pending(offset):
            self._refuse_settled(state, offset, is_committed=found.is_committed, commit=commit)
            return None
        return self._end(
            offset, half.phy_offset, name, self._store.wall_time_of(half), partial(committed_message, half),
            commit=commit, is_committed=found.is_committed, since=found.since)

    def end_in_memory(self, offset: int, half: FreshHalf, *, commit: bool) -> PutMessageResult | None:
        """Commit or roll back a half message from `in_memory`; otherwise like `end`."""
        message = half.committed
        name = message.topic, half.unique_key or str(message.prepared_transaction_offset)
        return self._end(
            offset, message.prepared_transaction_offset, name, half.stored_ms, lambda: message, commit=commit,
            is_committed=False, since=self._commits)

    def _end(
        self, offset: int, phy_offset: int, name: tuple[str, str], stored_ms: int,
        message: Callable[[], MessageExtBrokerInner], *, commit: bool, is_committed: bool, since: int,
    ) -> PutMessageResult | None:
        """Settle a pending half message at ``phy_offset``. ``name`` is its real topic and unique key."""
        topic = name[0]
        if is_committed or name in self._recent:
            self.settle(offset, COMMITTED)
            self.metrics.add(topic, -1)
            self._refuse_settled(COMMITTED, offset, is_committed=is_committed, commit=commit)
            return None
        if self._commits - since > RECENT_COMMITS:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "too many commits during the search; try again later")
        if self.operations.full:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"{len(self.operations)} operations cannot be written")
        if not commit:
            self.settle(offset, ROLLED_BACK)
            self.metrics.settled(topic, stored_ms, commit=False)
            return None
        if self.is_ended(topic, phy_offset):
            self.drop(offset, topic)
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION,
                f"topic[{topic}] was deleted after the half message was sent, so it is not committed")
        if self._topics.select(topic) is None:
            raise RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, the half message stays pending")
        result = self._store.put_inner(message())
        if result.status.appended:
            self._remember(name)
            self.settle(offset, COMMITTED)
            self.metrics.settled(topic, stored_ms, commit=True)
        return result

    def is_ended(self, topic: str, phy_offset: int) -> bool:
        """Return True if the real topic of the half message at a position was deleted since, and perhaps made again."""
        return phy_offset < self._store.inner.lives.deleted_up_to(topic)

    def drop(self, offset: int, topic: str) -> None:
        """Settle a half message whose topic was deleted: no consumer gets it."""
        events.HALF_MESSAGE_OF_A_DELETED_TOPIC.log(_log, topic=topic, queue_offset=offset)
        self.settle(offset, ROLLED_BACK)
        self.metrics.add(topic, -1)

    def _remember(self, name: tuple[str, str]) -> None:
        self._commits += 1
        self._recent[name] = None
        if len(self._recent) > RECENT_COMMITS:
            self._recent.popitem(last=False)

    def _refuse_settled(self, state: int, offset: int, *, is_committed: bool, commit: bool) -> None:
        """Raise RefusalError if a half message is known to be settled the other way than a request asks for."""
        was_committed = is_committed or state == COMMITTED
        self.events["duplicate"] += commit and was_committed
        if state == ENDED or (was_committed if commit else state == ROLLED_BACK):
            return
        if was_committed:
            why = "was committed"
        elif state == ROLLED_BACK:
            why = "was rolled back"
        else:
            why = "is settled, or was given up after too many checks"
        raise RefusalError(
            ResponseCode.ILLEGAL_OPERATION, f"the half message at offset {offset} {why}")

    def settle(self, offset: int, state: int) -> None:
        """Mark a half message as settled; its operation is written now or together with later ones."""
        self.queue.put(offset, state)
        self._forget(offset)
        until = self._store.max_phy_offset if state == COMMITTED else 0
        self.operations.add(offset, until, self._clock.now_ms())
        self.write_operations_if_due()

    def renew(self, half: MessageExt) -> PutMessageResult:
        """Put a copy of a half message with its current properties; the copy replaces the half message."""
        result = self._store.put_inner(renewed_message(half))
        if result.status.appended:
            self.queue.put(half.queue_offset, PASSED)
            self.queue.put(result.queue_offset, UNKNOWN)
            self._forget(half.queue_offset)
            if N.UNIQ_KEY in half.properties:
                self._copies[_name_of(half)] = result.queue_offset, result.phy_offset
        return result

    def _forget(self, offset: int) -> None:
        """Drop a settled or replaced half message from memory."""
        half = self._fresh.pop(offset, None)
        if half is not None:
            self._fresh_bytes -= half.size

    def write_operations_if_due(self) -> None:
        """Write operations while enough of them wait or the first one has waited for long enough."""
        while self.operations.is_due(self._clock.now_ms(), self._store.flushed_where) and self._write_operation():
            pass

    def write_operations(self) -> None:
        """Write all operations after a sync of the committed messages; stop at the first that fails."""
        if not len(self.operations):
            return
        try:
            self._store.flush()
        except StoreError as error:
            events.OPERATIONS_OF_HALF_MESSAGES_ARE_NOT_WRITTEN.log(_log, count=len(self.operations), reason=error)
            return
        while len(self.operations) and self._write_operation():
            pass

    def _write_operation(self) -> bool:
        part = self.operations.next_part(self._store.flushed_where)
        self._unique_number += 1
        try:
            result = self._store.put_inner(operation_message(
                part, f"{self._unique_prefix}{self._unique_number:016X}", self._clock.now_ms(),
                self._store.inner.store_host))
        except StoreError as error:
            events.OPERATIONS_OF_HALF_MESSAGES_ARE_NOT_WRITTEN.log(_log, count=len(part), reason=error)
            return False
        if not result.status.appended:
            events.OPERATIONS_OF_HALF_MESSAGES_ARE_NOT_WRITTEN.log(
                _log, count=len(part), reason=result.remark or result.status.name)
            return False
        self.operations.written(part)
        self.queue.add_operation(result.queue_offset, part)
        return True

    def commit_progress(self, until: int) -> None:
        """Move the progress of the checks to ``until``; no half message below it may be pending.

        The caller must have synced the copies and committed messages that were put for them. Otherwise a power
        loss could remove such a message, and the half message below the progress would be lost.
        """
        self.queue.advance(until)
        self._copies = {name: place for name, place in self._copies.items() if place[0] >= until}
        for topic, offset in ((N.HALF_TOPIC, self.queue.base), (N.OP_TOPIC, self.queue.op_progress)):
            if self._offsets.query(N.TRANSACTION_GROUP, topic, QUEUE_ID) != offset:
                self._offsets.commit(N.TRANSACTION_GROUP, topic, QUEUE_ID, offset)


@final
class TransactionMetrics(ConfigManager[str, tuple[int, int]]):
    """Counts of pending half messages, and of those committed and rolled back since the start.

    `persist_if_changed` is called at intervals.
    """

    owned = Owned.BY_STEP
    dumps = staticmethod(fastjson.dumps)

    def __init__(self, clock: Clock, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, filenames.TRANSACTIONMETRICS)
        self._clock = clock
        self.committed: dict[str, int] = {}
        """Number of committed messages by topic, since the start."""
        self.rolled_back: dict[str, int] = {}
        self.latencies: dict[str, Histogram] = {}
        """Seconds from send to commit, by topic."""

    def add(self, topic: str, count: int) -> None:
        """Add new half messages of a topic to its count, or with a negative number remove settled ones."""
        known = self._table.get(topic, (0, 0))[0]
        self.data_version.next(self._clock.now_ms())
        self._table[topic] = max(0, known + count), self.data_version.timestamp
        self._dirty = True

    def settled(self, topic: str, stored_ms: int, *, commit: bool) -> None:
        """Count a half message that was committed or rolled back."""
        self.add(topic, -1)
        done = self.committed if commit else self.rolled_back
        done[topic] = done.get(topic, 0) + 1
        if commit:
            seconds = max(0, self._clock.now_ms() - stored_ms) // 1000
            self.latencies.setdefault(topic, Histogram(FINISH_LATENCY)).add(seconds)

    def counts(self) -> dict[str, int]:
        """Return the number of pending half messages by topic."""
        return {topic: count for topic, (count, _) in list(self._table.items())}

    def forget(self, topics: set[str]) -> None:
        """Drop the counts of topics that were deleted."""
        for topic in topics:
            for table in (self.committed, self.rolled_back, self.latencies):
                table.pop(topic, None)
            if self._table.pop(topic, None) is not None:
                self._dirty = True

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("transactionCount", None)
        self._table = {
            str(topic): (number_of(entry.get("count"), 0), number_of(entry.get("timeStamp"), 0))
            for topic, entry in (found if isinstance(found, dict) else {}).items() if isinstance(entry, dict)}

    def _encode(self, table: dict[str, tuple[int, int]]) -> dict[str, Any]:
        return {"transactionCount": {
            topic: {"count": count, "timeStamp": changed} for topic, (count, changed) in table.items()}}
