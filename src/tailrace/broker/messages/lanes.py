"""The lanes: plain sends and pulls of a connection, from frame to frame in compiled code.

`tailrace.kernels.send_lane` says which sends and batches are plain, and `ProvenTopics` for which topics. Up to 64 of
them, with up to 1,024 messages in batches, are put under the lock of the log at a time. `tailrace.kernels.pull_lane`
says which pulls are plain, and `ProvenSubscriptions` for which groups and topics. A lane refuses nothing and creates
nothing: it stops before the first frame that it cannot serve with the ordinary result, such as a pull that finds no
message in memory, and `SendMessageProcessor` or `PullMessageProcessor` serves that one. Everything that a send or a
pull counts or commits is counted and committed here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, final

from tailrace import kernels
from tailrace.broker.messages.proven import ProvenSubscriptions, ProvenTopics
from tailrace.broker.messages.pull_service import max_bytes_of
from tailrace.broker.messages.send import SendMessageProcessor
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.statistics.traffic import FIFO, NORMAL, Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import StoreError
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX
from tailrace.formats.remoting import INT32, RequestCode, SerializeType
from tailrace.ha.slave import Slave
from tailrace.kernels.pull_lane import PlainPulls
from tailrace.kernels.send_lane import PlainSends
from tailrace.kernels.unit_records import AnswerFrame
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.durable_answers import DurableAnswers, JoinedReply

__all__ = ["PullLane", "SendLane"]

_OPAQUE: Final = 0x41424344
_RESULT: Final = PutMessageResult(
    PutMessageStatus.PUT_OK, phy_offset=0x0123456789ABCDEF, until=0x0123456789ABCDFF, queue_id=192_837_465,
    queue_offset=5_647_382_910_192_837, msg_num=1, phy_offsets=[0x0123456789ABCDEF])
_POSITION: Final = b"%016X" % _RESULT.phy_offset
_QUEUE: Final = [b"%d" % _RESULT.queue_id, b"%d" % _RESULT.queue_offset]
_KEY: Final = "THE-UNIQUE-KEY-OF-A-SAMPLE"


@final
class SendLane:
    """Serves plain sends. ``wait_durable`` is True with flushDiskType=SYNC_FLUSH. Used in the event loop's thread."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, static_topics: StaticTopics, traffic: Traffic,
        durable: DurableAnswers, processor: SendMessageProcessor, proven: ProvenTopics, *, wait_durable: bool,
    ) -> None:
        self._config, self._clock, self._store, self._traffic = config, clock, store, traffic
        self._mappings = static_topics.table
        self._durable, self._processor, self._proven, self._wait_durable = durable, processor, proven, wait_durable
        self._sends: PlainSends | None = None

    def register(self, server: RemotingServer) -> None:
        """Serve the plain sends of a server. The address of the store is known by now."""
        if self._sends is None:
            log, processor = self._store.inner.commit_log, self._processor
            kinds = SerializeType.JSON, SerializeType.ROCKETMQ
            self._sends = PlainSends(
                processor.messages.own_properties, processor.messages.key_property, self._store.inner.store_host,
                log.tail.plain_size, SENT_PROPERTIES_MAX, self._store.config.max_message_size, log.rules.appends_crc,
                self._proven.table, tuple(parts_of_answer(processor, kind) for kind in kinds),
                tuple(parts_of_batch_answer(processor, kind) for kind in kinds), processor.msg_id_prefix)
        if kernels.compiled():
            server.lanes |= {
                RequestCode.SEND_MESSAGE: self, RequestCode.SEND_MESSAGE_V2: self, RequestCode.SEND_BATCH_MESSAGE: self}

    def take(self, channel: Channel, data: bytes, pos: int, room: int) -> tuple[int, bytes]:
        """Serve plain sends of ``data`` from ``pos``; return the position after them, and their answers.

        The answers have up to ``room`` bytes and one answer more.
        """
        if (
            self._mappings or not self._config.plain_lane_enable or not self._store.is_writeable
            or self._store.inner.replication.refusal
        ):
            return pos, b""
        sends = self._sends
        assert sends is not None, "registered"
        if not sends.read(
            data, pos, channel.born_host, self._durable.room, room, self._proven.version,
            self._processor.messages.sequence,
        ):
            return pos, b""
        try:
            return self._serve(channel, sends, pos)
        finally:
            sends.end()

    def _serve(self, channel: Channel, sends: PlainSends, pos: int) -> tuple[int, bytes]:
        begun_ns = self._clock.monotonic_ns()
        topic = sends.topic.text
        result = self._store.inner.append_some(
            [(topic, queue_id) for queue_id in sends.queues], sends.messages, sends.bound, sends.write, sends.puts)
        done = sends.puts(result.msg_num)
        if not done:
            return pos, b""
        traffic = self._traffic
        traffic.sends["lane"] += done
        if sends.batches:
            for count, size in zip(sends.lengths(done), sends.sizes(done), strict=True):
                traffic.take_in(topic, NORMAL, count, size)
        else:
            self._processor.messages.sequence = sends.last_key(done)
            traffic.take_in_each(topic, FIFO if sends.ordered else NORMAL, sends.sizes(done))
        answers = sends.answers(done)
        took = partial(self._took, topic, sends.queues, sends.counts(done), begun_ns)
        if self._wait_durable and answers:
            self._durable.add(JoinedReply(channel, answers), answers, result.until, took, done)
            return sends.until(done), b""
        took()
        return sends.until(done), answers

    def _took(
        self, topic: str, queues: Sequence[int], counts: Sequence[int], begun_ns: int, _: object = None
    ) -> None:
        took_ns = self._clock.monotonic_ns() - begun_ns
        for queue_id, count in zip(queues, counts, strict=True):
            if count:
                self._traffic.put_took(topic, queue_id, took_ns, count)


def parts_of_answer(processor: SendMessageProcessor, kind: SerializeType) -> tuple[bytes, ...]:
    """Return the parts around the fields of a successful answer, cut from one that the processor makes.

    The fields are request number, position, queue id, queue offset and unique key. In a binary header the last three
    have their length before them.
    """
    return _parts(kind, processor.answer(kind, _OPAQUE, _RESULT, _KEY), [_POSITION], [*_QUEUE, _KEY.encode()])


def parts_of_batch_answer(processor: SendMessageProcessor, kind: SerializeType) -> tuple[bytes, ...]:
    """Return the parts around the fields of a successful answer to a batch, as `parts_of_answer` does.

    The fields are request number, message ids, queue id and queue offset, all but the first with their length.
    """
    answer = processor.batch_answer(kind, _OPAQUE, _RESULT)
    return _parts(kind, answer, [], [processor.msg_id_prefix + _POSITION, *_QUEUE])


def _parts(kind: SerializeType, rest: bytes, fields: list[bytes], texts: list[bytes]) -> tuple[bytes, ...]:
    """Cut an answer at its request number, at ``fields``, and at ``texts``, which have their length in a binary one."""
    if kind == SerializeType.JSON:
        fields = [b"%d" % _OPAQUE, *fields, *texts]
    else:
        fields = [INT32.pack(_OPAQUE), *fields, *(INT32.pack(len(text)) + text for text in texts)]
    parts = []
    for field in fields:
        part, found, rest = rest.partition(field)
        assert found, "the answer has every field, in this order"
        parts.append(part)
    return *parts, rest


@final
class PullLane:
    """Serves plain pulls. Used in the event loop's thread."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, offsets: ConsumerOffsetManager,
        slave: Slave | None, static_topics: StaticTopics, traffic: Traffic, proven: ProvenSubscriptions,
    ) -> None:
        self._config, self._slave, self._clock, self._offsets = config, slave, clock, offsets
        self._traffic = traffic
        self._mappings = static_topics.table
        self._reader = store.inner.reader
        self._stats = store.inner.stats
        self._proven = proven
        self._pulls = PlainPulls(proven.table)
        self._frame = AnswerFrame()

    def register(self, server: RemotingServer) -> None:
        """Serve the plain pulls of a server."""
        if kernels.compiled():
            server.lanes |= {RequestCode.PULL_MESSAGE: self, RequestCode.LITE_PULL_MESSAGE: self}

    def take(self, channel: Channel, data: bytes, pos: int, room: int) -> tuple[int, bytes]:
        """Serve the plain pull of ``data`` at ``pos``; return the position after it, and its answer."""
        del channel, room
        if self._slave is not None:
            return pos, b""  # the answer may suggest the slave
        offsets, pulls, frame = self._offsets, self._pulls, self._frame
        if self._mappings or offsets.has_resets or not self._config.plain_lane_enable or not pulls.read(
            data, pos, self._proven.version
        ):
            return pos, b""
        begun_ns = self._clock.monotonic_ns()
        found = pulls.subscription
        group, topic, queue_id = found.group, found.topic, pulls.queue_id
        frame.begin(pulls.parts, pulls.is_binary, pulls.opaque)
        try:
            answer = self._reader.fill(
                topic, queue_id, pulls.offset, pulls.most, max_bytes_of(pulls.max_bytes), found.codes, frame)
            if pulls.commit > frame.next_offset:  # maybe past the end of the queue
                self._frame, answer = AnswerFrame(), None
            elif answer is not None and pulls.commit >= 0:
                offsets.commit(group, topic, queue_id, pulls.commit)
        except (StoreError, OSError):  # the processor meets it again, and answers
            self._frame, answer = AnswerFrame(), None  # with nothing of this pull in it
        if answer is None:
            return pos, b""
        count = frame.record_count
        self._stats.found(count)
        offsets.commit_pull(group, topic, queue_id, frame.next_offset)
        self._traffic.pulls["lane"] += 1
        self._traffic.hand_out(
            topic, group, count, frame.size, queue_id, self._clock.monotonic_ns() - begun_ns)
        return pulls.end, answer
