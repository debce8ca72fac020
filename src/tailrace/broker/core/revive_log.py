"""Puts checkpoints and acknowledgements of POP into the log, for the revive topic.

Both are timer messages. A checkpoint is due one second before its messages are visible again, an acknowledgement
at that time. A message that is already due is put into the revive topic directly.
"""

from __future__ import annotations

from typing import Final, final
from zlib import crc32

from tailrace.broker.statistics.pop_metrics import ACK, CHECKPOINT, PopMetrics
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.formats.names import TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from tailrace.formats.pop import CK_TAG, Ack, PopCheckPoint, revive_topic
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageResult
from tailrace.node.message_store import MessageStore

__all__ = ["ReviveLog"]

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
