"""The offset at which a group begins to pop a queue."""

from __future__ import annotations

from typing import Final

from tailrace.broker.core.context import BrokerContext
from tailrace.model import GetMessageStatus
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager

__all__ = ["WRONG_OFFSET", "pop_offset"]

WRONG_OFFSET: Final = frozenset({
    GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.OFFSET_FOUND_NULL})
"""Results of a read at an offset where a queue has no message and never will have one."""


def pop_offset(
    broker: BrokerContext, order: ConsumerOrderInfoManager, topic: str, group: str, queue_id: int, *, from_end: bool
) -> int:
    """Return the offset at which a pop begins: after a reset the new one, for a new group the first one."""
    offsets = broker.offsets
    offset = offsets.take_reset(group, topic, queue_id)
    if offset is not None:
        order.clear(topic, group, queue_id)
        broker.pop_metrics.reset(topic, group, queue_id)
    elif (offset := offsets.query(group, topic, queue_id)) >= 0:
        return offset
    else:
        offset = _init_offset(broker, topic, queue_id, from_end=from_end)
    offsets.commit(group, topic, queue_id, offset)
    return offset


def _init_offset(broker: BrokerContext, topic: str, queue_id: int, *, from_end: bool) -> int:
    """Return the first offset of a group: the start of the queue, or with ``from_end`` its last message.

    With initPopOffsetByCheckMsgInMem a queue whose first message is in memory is read from its start.
    """
    store = broker.store
    low = store.queue_of(topic, queue_id).min
    if not from_end or (
        low == store.queue_of(topic, queue_id).begin_of_life and broker.config.init_pop_offset_by_check_msg_in_mem
        and not store.get_message(topic, queue_id, low, 1, only_cached=True).is_cold
    ):
        return low
    return max(low, store.queue_of(topic, queue_id).max - 1)
