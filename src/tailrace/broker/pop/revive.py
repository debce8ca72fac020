"""Revive service: redelivers popped messages that were not acknowledged in time (PopReviveService).

A pass reads each queue of the revive topic. It keeps a checkpoint in memory until every acknowledgement that
was in time has been read. Then it puts the messages without an acknowledgement into the retry topic of their
group.

When is a checkpoint complete? Acknowledgements wait in the timer wheel until their messages are visible again.
Each pass notes the time T and the end of the log. When the log is dispatched up to there, the end E of the timer queue
is known. A later pass checks that the wheel has taken the timer queue up to E, and reads the time D up to which the
wheel has delivered its timers, and again the end of the log. Acknowledgements that were put before T and are due before
D are then in the log. When it is dispatched up to there, they are in the revive topic: with readReplicatedOnly that
takes until a slave has them. So when a pass then has read the revive topic to its end, all checkpoints that are due
before min(T, D) are complete.

The progress of a queue is the offset of REVIVE_GROUP, that of the last finished record. It is written
periodically with the offsets of all groups. So after a crash, checkpoints are read again whose messages may
already be in the retry topic. For these messages the index is searched, and no second copy is put.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final, final
from zlib import crc32

from tailrace import events
from tailrace.broker.statistics.pop_metrics import ACK, CHECKPOINT, PopMetrics, ReviveProgress
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.shortage import is_shortage
from tailrace.errors import StoreError
from tailrace.formats import names as N
from tailrace.formats.commitlog import decode_message
from tailrace.formats.message_fields import body_of, stored_properties
from tailrace.formats.names import TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from tailrace.formats.pop import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    REVIVE_GROUP,
    Ack,
    PopCheckPoint,
    is_retry_topic_of,
    normal_topic,
    pop_retry_topic,
    retry_owner,
    revive_topic,
)
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.kernels.unit_records import property_values
from tailrace.logs import get_logger
from tailrace.model import (
    GetMessageResult,
    GetMessageStatus,
    MessageExt,
    MessageExtBrokerInner,
    PutMessageResult,
    PutMessageStatus,
)
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.timer.parking import NEVER, fitting_copy

__all__ = ["PopReviveService", "ReviveLog"]

_log = get_logger(__name__)
_TAGS: Final = (N.TAGS.encode(),)
CHECKPOINTS_MAX: Final = 20_000
"""Number of checkpoints of one queue in memory. Further ones are read again when these are finished."""
EARLY_MAX: Final = 10_000
"""Number of checkpoints of one queue whose acknowledgements are kept although they came first."""
READ_MAX: Final = 32
READ_TRIES: Final = 30
"""Number of passes, one a second, after which a record of the revive topic that cannot be read is left out."""
RECEIPT_ROOM: Final = 512
"""Bytes of properties that a copy leaves for the receipt that each of its pops adds."""
_KEPT: Final = frozenset({N.FIRST_POP_TIME, N.ORIGIN_GROUP})
_KEPT_DEAD: Final = frozenset({N.RETRY_TOPIC, N.ORIGIN_MESSAGE_ID})
RECORDS_OF_PASS: Final = 20_000
"""Number of records of one queue that one pass reads."""
DONE_OF_PASS: Final = 1_000
"""Number of checkpoints of one queue that one pass finishes."""
AGAIN_S: Final = (
    10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Waiting times, in s, before each retry of a message that could not be put."""
GROUP_TRIES: Final = 4
"""Number of retries, in two minutes, of messages whose group is not there: it was deleted, or not copied yet."""


class _StoppedError(Exception):
    """The store accepts no message at the moment; the pass ends, and the next one continues at the same place."""


@dataclass(slots=True)
class _Queue:
    """State of a revive queue: the records that were read and are not finished."""

    queue_id: int
    next_offset: int
    known_until: int
    """End of the queue at the start of the service. Messages of earlier records may already be in the retry topic."""
    checkpoints: dict[tuple[object, ...], tuple[int, PopCheckPoint]]
    """Offset and checkpoint, in the order of offsets. A namesake of another one has its offset in its key."""
    failures: int = 0
    """Number of reads at ``next_offset`` that have failed."""
    namesakes: dict[tuple[object, ...], list[PopCheckPoint]] = field(default_factory=dict)
    """Further checkpoints with the key of another one, but with other messages or another time; nearly always empty."""
    read_again_from: int = -1
    """Offset of the first checkpoint for which there was no room; -1 if there was room for all."""
    early: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    """Offsets of acknowledgements that came before their checkpoint: a read of its timer failed, and it is late. Those
    that came after their checkpoint was done are also here, until newer ones need the room."""

    def keep_early(self, ack: Ack) -> None:
        """Keep an acknowledgement for a checkpoint that may come."""
        self.early[ack.merge_key] = (*self.early.pop(ack.merge_key, ()), *ack.offsets)
        if len(self.early) > EARLY_MAX:
            del self.early[next(iter(self.early))]


@dataclass(slots=True)
class _Proof:
    """What is known of the acknowledgements that were put before a time."""

    noted_ms: int = 0
    noted_until: int = 0
    """End of the log at that time."""
    timer_end: int = -1
    """End of the timer queue with all timers that were put before; -1 if the log is not dispatched so far."""
    delivered_until: int = -1
    """Time in ms up to which the wheel had delivered its timers when it had taken these; -1 if it has not."""
    put_until: int = 0
    """End of the log after that."""


@final
class PopReviveService:
    """Makes the passes; one step is a pass over all queues, in a separate thread."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, clock: Clock, offsets: ConsumerOffsetManager,
        groups: SubscriptionGroupManager, revive_log: ReviveLog, pop_metrics: PopMetrics,
    ) -> None:
        self._store, self._config, self._clock, self._offsets, self._groups = store, config, clock, offsets, groups
        self._revive_log, self._metrics = revive_log, pop_metrics
        self._topic = revive_log.topic
        self._queues: dict[int, _Queue] = {}
        self._ends_at_start = {
            queue_id: store.queue_of(self._topic, queue_id).max for queue_id in range(self._queue_count())}
        self._proof = _Proof()
        self.revived = 0
        """Number of messages put into retry topics since the start."""
        self.lost = 0
        """Number of messages that had been deleted when they should have been redelivered."""
        self._is_stopping = False

    def stop(self) -> None:
        """End the running pass after its current checkpoint."""
        self._is_stopping = True

    @property
    def pending(self) -> int:
        """Number of checkpoints in memory."""
        return sum(len(queue.checkpoints) for queue in list(self._queues.values()))

    def progress(self) -> dict[int, ReviveProgress]:
        """Return the lag of each queue; called from any thread."""
        now, found = self._clock.now_ms(), {}
        for queue_id in range(self._queue_count()):
            done = self._offsets.query(REVIVE_GROUP, self._topic, queue_id) + 1
            lag = max(0, self._store.queue_of(self._topic, queue_id).max - done)
            stored = self._store.queue_of(self._topic, queue_id).store_timestamp(done) if lag else 0
            found[queue_id] = ReviveProgress(lag, max(0, now - stored) if stored > 0 else 0)
        return found

    def step(self) -> bool:
        """Make a pass; return True if there is more to do."""
        if self._store.read_only or not self._store.config.timer_wheel_enable or not self._store.wait_dispatched():
            return False
        complete_until = self._complete_until()
        more = False
        failure: OSError | None = None
        for queue_id in range(self._queue_count()):
            if self._is_stopping:
                return False
            queue = self._queues.get(queue_id) or self._opened(queue_id)
            at_end, done = False, 0
            try:
                at_end = self._read(queue)
                done = self._complete(queue, complete_until) if at_end else 0
                more |= not at_end or done >= DONE_OF_PASS
            except _StoppedError as error:
                events.POPPED_MESSAGES_CANNOT_COME_BACK_NOW.log(_log, queue=queue_id, reason=error)
            except OSError as error:  # the other queues are read; what this one has is in memory, or not taken yet
                failure = failure or error
            self._commit(queue)
        if failure is not None:
            raise failure
        return more

    # -- progress of the timers

    def _complete_until(self) -> int:
        """Return the time, ms, before which checkpoints are complete once the revive topic is read; 0: unknown."""
        store, proof, found = self._store, self._proof, 0
        if proof.timer_end < 0 and self._is_dispatched(proof.noted_until):
            proof.timer_end = store.queue_of(N.TIMER_TOPIC, 0).max
        if proof.delivered_until < 0 <= proof.timer_end:
            in_wheel, delivered_until = store.timer_services.progress()
            if in_wheel >= proof.timer_end:
                proof.delivered_until, proof.put_until = delivered_until, store.max_phy_offset
        if proof.delivered_until >= 0 and self._is_dispatched(proof.put_until):
            now = self._clock.now_ms()  # the clock may have stepped back since
            found = min(proof.noted_ms, proof.delivered_until, now)
            proof = self._proof = _Proof(now, store.max_phy_offset)
            if self._is_dispatched(proof.noted_until):
                proof.timer_end = store.queue_of(N.TIMER_TOPIC, 0).max
        return found

    def _is_dispatched(self, position: int) -> bool:
        """Return whether the queues have all messages of the log below a position."""
        reput = self._store.inner.reput
        return reput.has_dispatched(position) or (
            self._store.wait_dispatched() and reput.has_dispatched(position))

    # -- reading

    def _queue_count(self) -> int:
        config = self._store.topics.select(self._topic)
        return max(self._config.revive_queue_num, 0 if config is None else config.read_queue_nums)

    def _opened(self, queue_id: int) -> _Queue:
        end = self._store.queue_of(self._topic, queue_id).max
        done = self._offsets.query(REVIVE_GROUP, self._topic, queue_id)
        made = self._queues[queue_id] = _Queue(
            queue_id, min(done + 1, end), self._ends_at_start.get(queue_id, 0), {})
        return made

    def _read(self, queue: _Queue) -> bool:
        """Read the next records; return whether the end was reached."""
        until = queue.next_offset + RECORDS_OF_PASS
        while queue.next_offset < until and not self._is_stopping:
            result = self._records(queue)
            if result is None:
                continue
            if not result.message_count:
                if result.next_begin_offset <= queue.next_offset or (
                    result.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
                ):
                    return True
                if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
                    events.REVIVE_RECORDS_ARE_GONE.log(
                        _log, queue=queue.queue_id, offset=queue.next_offset, to=result.next_begin_offset)
                queue.next_offset = result.next_begin_offset
                continue
            for record, offset in zip(result.records, result.queue_offsets, strict=True):
                self._take(queue, offset, record)
            queue.next_offset = result.next_begin_offset
        return False

    def _records(self, queue: _Queue) -> GetMessageResult | None:
        """Return the next records; None if one was left out because it cannot be read. Raises OSError.

        After a failure one record is read at a time. One that fails `READ_TRIES` times, but not for lack of
        descriptors or memory, is treated as a damaged one, so that it holds up no other.
        """
        try:
            result = self._store.get_message(
                self._topic, queue.queue_id, queue.next_offset, 1 if queue.failures else READ_MAX)
        except OSError as error:
            if not is_shortage(error):
                queue.failures += 1
            if queue.failures < READ_TRIES:
                raise
            events.REVIVE_RECORD_IS_NOT_READABLE.log(
                _log, queue=queue.queue_id, offset=queue.next_offset, reason=error)
            queue.next_offset += 1
            queue.failures = 0
            return None
        queue.failures = 0
        return result

    def _take(self, queue: _Queue, offset: int, record: bytes) -> None:
        tag = property_values(stored_properties(record), _TAGS)[0]
        try:
            if tag == CK_TAG:
                checkpoint = PopCheckPoint.decode(body_of(record), self._config.broker_name)
                self._metrics.got(checkpoint.group, checkpoint.topic, queue.queue_id, CHECKPOINT)
                self._take_checkpoint(queue, offset, checkpoint)
            elif tag in {ACK_TAG, BATCH_ACK_TAG}:
                ack = Ack.decode(body_of(record), self._config.broker_name, batch=tag == BATCH_ACK_TAG)
                self._metrics.got(ack.group, ack.topic, queue.queue_id, ACK)
                found = queue.checkpoints.get(ack.merge_key)
                namesakes = queue.namesakes.get(ack.merge_key, [])
                if found is not None:
                    found[1].acknowledge(ack.offsets)
                for namesake in namesakes:
                    namesake.acknowledge(ack.offsets)
                if found is None and not namesakes:
                    queue.keep_early(ack)
        except ValueError as error:
            events.REVIVE_RECORD_IS_NOT_READABLE.log(_log, queue=queue.queue_id, offset=offset, reason=error)

    def _take_checkpoint(self, queue: _Queue, offset: int, checkpoint: PopCheckPoint) -> None:
        key = checkpoint.merge_key
        found, known = queue.checkpoints.get(key), queue.namesakes.get(key, [])
        if found is not None:
            known = [found[1], *known]
        if known:
            body = checkpoint.encode()
            if any(body == other.encode() for other in known):
                return  # a copy; the first one may have acknowledgements already
        if len(queue.checkpoints) < CHECKPOINTS_MAX and queue.read_again_from < 0:
            checkpoint.acknowledge(queue.early.pop(key, ()))
            queue.checkpoints[(*key, offset) if known else key] = offset, checkpoint
            if known:
                queue.namesakes.setdefault(key, []).append(checkpoint)
        elif queue.read_again_from < 0:
            queue.read_again_from = offset

    # -- redelivery

    def _complete(self, queue: _Queue, complete_until: int) -> int:
        """Finish the checkpoints that are due, in their order; return their number."""
        done = 0
        for key, (offset, checkpoint) in list(queue.checkpoints.items())[:DONE_OF_PASS]:
            if checkpoint.revive_time > complete_until or self._is_stopping:
                break
            self._revive(queue, offset, checkpoint)
            del queue.checkpoints[key]
            if queue.namesakes:
                _forget_namesake(queue, checkpoint)
            done += 1
        if done and queue.read_again_from >= 0:
            queue.next_offset, queue.read_again_from = queue.read_again_from, -1
        return done

    def _commit(self, queue: _Queue) -> None:
        first = next(iter(queue.checkpoints.values()), None)
        done = (queue.next_offset if first is None else first[0]) - 1
        if queue.read_again_from >= 0:
            done = min(done, queue.read_again_from - 1)
        if done > self._offsets.query(REVIVE_GROUP, self._topic, queue.queue_id):
            self._revive_log.needs_sync()
            self._offsets.commit(REVIVE_GROUP, self._topic, queue.queue_id, done)

    def _revive(self, queue: _Queue, offset: int, checkpoint: PopCheckPoint) -> None:
        """Put the unacknowledged messages of a checkpoint into the retry topic. Raises _StoppedError."""
        left = checkpoint.unacknowledged()
        if not left:
            return
        topic, group = checkpoint.topic, checkpoint.group
        retry = self._retry_topic(topic, group)
        has_topic = self._store.topics.select(normal_topic(topic, group)) is not None
        has_group = self._groups.select(group) is not None
        if has_topic and not has_group and _times(checkpoint) < GROUP_TRIES:
            for message_offset in left:  # a promoted slave may learn of the group from its members only
                self._try_later(queue, checkpoint, message_offset, f"there is no group {group}")
                checkpoint.acknowledge((message_offset,))
            return
        if not (has_topic and has_group):
            events.POPPED_MESSAGES_DO_NOT_COME_BACK.log(_log, topic=topic, group=group, count=len(left))
            return
        for message_offset in left:
            try:
                result = self._store.get_message(topic, checkpoint.queue_id, message_offset, 1)
            except OSError as error:
                if is_shortage(error):
                    raise
                self._not_read(queue, checkpoint, message_offset, error)
                checkpoint.acknowledge((message_offset,))  # it holds up no other message
                continue
            if not result.message_count or result.queue_offsets[0] != message_offset:
                self.lost += 1
                self._metrics.settled(topic, group, checkpoint.queue_id, 1, checkpoint.pop_time)
                events.POPPED_MESSAGE_DOES_NOT_COME_BACK.log(
                    _log, topic=topic, queue=checkpoint.queue_id, offset=message_offset, status=result.status.name)
                continue
            message = decode_message(result.records[0])
            if not _is_of(group, message):
                events.POPPED_MESSAGE_IS_OF_ANOTHER_GROUP.log(
                    _log, topic=topic, group=group, queue=checkpoint.queue_id, offset=message_offset)
                self._metrics.settled(topic, group, checkpoint.queue_id, 1, checkpoint.pop_time)
                continue
            if offset >= queue.known_until or not self._has_come_back(retry, message, checkpoint):
                self._put(queue, checkpoint, message, message_offset, retry)
                checkpoint.acknowledge((message_offset,))  # not again, if a later message stops the pass

    def _not_read(self, queue: _Queue, checkpoint: PopCheckPoint, offset: int, error: OSError) -> None:
        """Read a message later; after all waiting times it is treated as a damaged one. Raises _StoppedError."""
        if _times(checkpoint) < len(AGAIN_S):
            self._try_later(queue, checkpoint, offset, str(error))
            return
        self.lost += 1
        self._metrics.settled(
            checkpoint.topic, checkpoint.group, checkpoint.queue_id, 1, checkpoint.pop_time)
        events.POPPED_MESSAGE_DOES_NOT_COME_BACK.log(
            _log, topic=checkpoint.topic, queue=checkpoint.queue_id, offset=offset, status=error)

    def _retry_topic(self, topic: str, group: str) -> str:
        """Return the topic to which messages return that a group has popped from ``topic``."""
        if is_retry_topic_of(topic, group):
            return topic
        return pop_retry_topic(topic, group, v2=self._config.enable_retry_topic_v2)

    def _has_come_back(self, retry: str, message: MessageExt, checkpoint: PopCheckPoint) -> bool:
        """Return whether a copy of a message was stored after its checkpoint was due."""
        if message.unique_key is None:
            return False
        times = message.reconsume_times + (not checkpoint.suspend)
        try:
            copies = self._store.copies(retry, message.unique_key)
        except OSError as error:
            if is_shortage(error):
                raise
            return False  # a second copy is better than none
        return any(
            copy.store_timestamp >= checkpoint.revive_time and copy.reconsume_times == times
            and (copy.body_crc, copy.born_timestamp) == (message.body_crc, message.born_timestamp)
            for copy in copies)

    def _retry_queue(self, retry: str, message: MessageExt, checkpoint: PopCheckPoint) -> int:
        """Return the queue of the retry topic for a message; the topic is created or gets more queues if needed."""
        topics = self._store.topics
        if not self._config.use_separate_retry_queue:
            topics.create_if_missing(retry, 1)
            return 0
        normal = topics.select(normal_topic(checkpoint.topic, checkpoint.group))
        queues = 1 if normal is None else normal.write_queue_nums
        found = topics.create_if_missing(retry, queues)
        if found.write_queue_nums < queues:
            topics.update(dataclasses.replace(found, read_queue_nums=queues, write_queue_nums=queues))
        return message.queue_id if message.queue_id < queues else 0

    def _put(
        self, queue: _Queue, checkpoint: PopCheckPoint, message: MessageExt, offset: int, retry: str
    ) -> None:
        """Put a copy into the retry topic, or a checkpoint that retries it later. Raises _StoppedError."""
        properties = dict(message.properties)
        properties.pop(N.DELAY, None)  # its delay is over
        if not message.reconsume_times or N.FIRST_POP_TIME not in properties:
            properties[N.FIRST_POP_TIME] = str(checkpoint.pop_time)
        properties[N.ORIGIN_GROUP] = checkpoint.group
        if properties.get(N.REAL_TOPIC) == retry:  # would mark a message that was sent back
            del properties[N.REAL_TOPIC]
        copy = fitting_copy(message, retry, 0, properties, _KEPT, RECEIPT_ROOM)
        copy.born_host = self._store.inner.store_host
        copy.reconsume_times += not checkpoint.suspend
        try:
            copy.queue_id = self._retry_queue(retry, message, checkpoint)
            if self._offsets.query(checkpoint.group, retry, copy.queue_id) < 0:
                self._offsets.commit(checkpoint.group, retry, copy.queue_id, 0)
            result = self._store.put_inner(copy)
            self._metrics.retried(checkpoint.group, checkpoint.topic, result.status.name)
        except StoreError as error:  # there are too many topics or offsets
            if not self._is_dead(checkpoint, message, str(error)):
                self._try_later(queue, checkpoint, offset, str(error))
            return
        if result.status.appended:
            self.revived += 1
            self._metrics.settled(checkpoint.topic, checkpoint.group, checkpoint.queue_id, 1, checkpoint.pop_time)
        elif result.status in NEVER:
            reason = f"{result.status.name} {result.remark}"
            if not self._is_dead(checkpoint, message, reason):
                self._try_later(queue, checkpoint, offset, reason)
        else:
            raise _StoppedError(f"{result.status.name} {result.remark}")

    def _is_dead(self, checkpoint: PopCheckPoint, message: MessageExt, reason: str) -> bool:
        """Put a message that its retry topic always refuses among the dead letters, once its tries are over."""
        group = self._groups.select(checkpoint.group)
        tries = _times(checkpoint) + message.reconsume_times
        if group is None or tries < group.retry_max_times:
            return False
        topic = f"{N.DLQ_GROUP_TOPIC_PREFIX}{checkpoint.group}"
        try:
            self._store.topics.create_if_missing(topic, 1)
        except StoreError:
            return False
        properties = dict(message.properties)
        properties.pop(N.DELAY, None)
        properties.setdefault(N.RETRY_TOPIC, normal_topic(message.topic, checkpoint.group))
        properties.setdefault(N.ORIGIN_MESSAGE_ID, message.msg_id)
        copy = fitting_copy(message, topic, 0, properties, _KEPT_DEAD)
        copy.reconsume_times += 1
        if not self._store.put_inner(copy).status.appended:
            return False
        events.POPPED_MESSAGE_BECOMES_A_DEAD_LETTER.log(
            _log, group=checkpoint.group, topic=message.topic, offset=message.queue_offset, tries=tries, reason=reason)
        self._metrics.settled(checkpoint.topic, checkpoint.group, checkpoint.queue_id, 1, checkpoint.pop_time)
        return True

    def _try_later(self, queue: _Queue, checkpoint: PopCheckPoint, offset: int, reason: str) -> None:
        number = _times(checkpoint)
        wait_ms = AGAIN_S[min(number, len(AGAIN_S) - 1)] * 1000
        events.POPPED_MESSAGE_IS_TRIED_LATER.log(
            _log, topic=checkpoint.topic, queue=checkpoint.queue_id, offset=offset, wait_ms=wait_ms, reason=reason)
        result = self._revive_log.put_checkpoint(PopCheckPoint(
            offset, checkpoint.pop_time, self._clock.now_ms() - checkpoint.pop_time + wait_ms, checkpoint.queue_id,
            checkpoint.topic, checkpoint.group, checkpoint.broker_name, (0,), 1, re_put_times=str(number + 1),
            suspend=checkpoint.suspend), queue.queue_id)
        if result.status is not PutMessageStatus.PUT_OK and not result.status.appended:
            raise _StoppedError(f"{result.status.name} {result.remark}")


def _times(checkpoint: PopCheckPoint) -> int:
    """Return how often a message could not be put."""
    times = checkpoint.re_put_times or "0"
    return int(times) if times.isascii() and times.isdecimal() and len(times) < 10 else 127


def _is_of(group: str, message: MessageExt) -> bool:
    """Return whether a message is not one of another group in a retry topic.

    Brokers that do not look whose a message is have handed such messages out.
    """
    if not is_retry_topic_of(message.topic, group):
        return True
    return retry_owner(
        message.topic, *map(message.properties.get, (N.ORIGIN_GROUP, N.REAL_TOPIC, N.RETRY_TOPIC))) in {None, group}


def _forget_namesake(queue: _Queue, done: PopCheckPoint) -> None:
    """Remove a finished checkpoint from the namesakes, if it is one."""
    left = [checkpoint for checkpoint in queue.namesakes.pop(done.merge_key, []) if checkpoint is not done]
    if left:
        queue.namesakes[done.merge_key] = left


AHEAD_MS: Final = 1000
"""Time by which a checkpoint is delivered before its messages are visible again (ackTimeInterval)."""


@final
class ReviveLog:
    """Writes to the revive topic of a broker."""

    def __init__(self, store: MessageStore, config: BrokerConfig, clock: Clock) -> None:
        self.topic = revive_topic(config.broker_cluster_name)
        self._store = store
        self._clock = clock
        self.metrics = PopMetrics(clock.now_ms())
        self._needs_sync = False

    def put_checkpoint(self, checkpoint: PopCheckPoint, queue_id: int) -> PutMessageResult:
        """Put a checkpoint and return the result, without a wait for a sync."""
        result = self._put(
            CK_TAG, checkpoint.unique_key, checkpoint.encode(), queue_id, checkpoint.revive_time - AHEAD_MS)
        self.metrics.put(checkpoint.group, checkpoint.topic, CHECKPOINT, result.status.name)
        return result

    def put_ack(self, ack: Ack, invisible_time: int, queue_id: int) -> PutMessageResult:
        """Put an acknowledgement of messages that were popped for ``invisible_time`` ms."""
        result = self._put(ack.tag, ack.unique_key, ack.encode(), queue_id, ack.pop_time + invisible_time)
        self.metrics.put(ack.group, ack.topic, ACK, result.status.name)
        return result

    def _put(self, tag: str, unique_key: str, body: bytes, queue_id: int, deliver_ms: int) -> PutMessageResult:
        """Put a record. Its unique key is RocketMQ's and a checksum of the whole record.

        The timers drop a second record with the same unique key. RocketMQ's keys are the same for different records
        if a message was popped twice in one millisecond.
        """
        store = self._store
        unique_key = f"{unique_key}@{crc32(b'%d %d %b' % (queue_id, deliver_ms, body)):08x}"
        properties = encode_properties(
            {TAGS: tag, UNIQ_KEY: unique_key, TIMER_DELIVER_MS: str(deliver_ms)})
        result = store.timer_services.put_due(MessageExtBrokerInner(
            self.topic, queue_id, body, properties, born_timestamp=self._clock.now_ms(),
            born_host=store.inner.store_host, wait_store_msg_ok=False, kind=C.WAITS), deliver_ms, unique_key)
        self._needs_sync = True
        return result

    def needs_sync(self) -> None:
        """Note that an offset of POP has moved past records that may not be durable."""
        self._needs_sync = True

    def sync(self) -> None:
        """Sync the log if something was put since the last sync. Raises FatalStorageError.

        Offsets may be written only after this. After a group's offset has moved past popped messages, only their
        checkpoint causes a redelivery; after the progress of a revive queue has moved past a checkpoint, only
        the copies in retry topics are left. So checkpoints and copies have to be durable before the offsets.
        """
        if self._needs_sync and not self._store.read_only:
            self._needs_sync = False
            try:
                self._store.flush()
            except BaseException:
                self._needs_sync = True
                raise
