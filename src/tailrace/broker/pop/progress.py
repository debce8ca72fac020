"""How far groups have popped: their offsets, and what they hold."""

from __future__ import annotations

from typing import final

from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.config import BrokerConfig
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore

__all__ = ["PopProgress"]


@final
class PopProgress:
    """The offsets of groups, the messages that they have popped in order, and the number that is in flight."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, offsets: ConsumerOffsetManager,
        order: ConsumerOrderInfoManager, metrics: PopMetrics,
    ) -> None:
        self._store, self._config = store, config
        self.offsets = offsets
        self.order = order
        self.metrics = metrics

    def begin(self, topic: str, group: str, queue_id: int, *, from_end: bool) -> int:
        """Return the offset at which a pop begins: after a reset the new one, for a new group the first one."""
        offset = self.offsets.take_reset(group, topic, queue_id)
        if offset is not None:
            self.order.clear(topic, group, queue_id)
            self.metrics.reset(topic, group, queue_id)
        elif (offset := self.offsets.query(group, topic, queue_id)) >= 0:
            return offset
        else:
            offset = self._first(topic, queue_id, from_end=from_end)
        self.offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first(self, topic: str, queue_id: int, *, from_end: bool) -> int:
        """Return the first offset of a group: the start of the queue, or with ``from_end`` its last message.

        With initPopOffsetByCheckMsgInMem a queue whose first message is in memory is read from its start.
        """
        queue = self._store.queue_of(topic, queue_id)
        low = queue.min
        if not from_end or (
            low == queue.begin_of_life and self._config.init_pop_offset_by_check_msg_in_mem
            and not self._store.get_message(topic, queue_id, low, 1, only_cached=True).is_cold
        ):
            return low
        return max(low, queue.max - 1)
