"""The pull lane: plain pulls that find messages in memory, from frame to frame in compiled code.

`tailrace.kernels.pull_lane` says which pulls are plain, and `ProvenSubscriptions` for which groups and topics. The lane
refuses nothing and creates nothing: what it cannot answer with messages immediately, such as a pull that finds none, is
served by `PullMessageProcessor`. Everything that a pull counts or commits is counted and committed here as well.
"""

from __future__ import annotations

from typing import final

from tailrace import kernels
from tailrace.broker.messages.proven import ProvenSubscriptions
from tailrace.broker.messages.pull import max_bytes_of
from tailrace.broker.static_topics.logical_queues import StaticTopics
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import StoreError
from tailrace.formats.remoting import RequestCode
from tailrace.ha.slave import Slave
from tailrace.kernels.pull_lane import PlainPulls
from tailrace.kernels.unit_records import AnswerFrame
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel, RemotingServer

__all__ = ["PullLane"]


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
            if pulls.commit >= 0:
                offsets.commit(group, topic, queue_id, pulls.commit)
            answer = self._reader.fill(
                topic, queue_id, pulls.offset, pulls.most, max_bytes_of(pulls.max_bytes), found.codes, frame)
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
