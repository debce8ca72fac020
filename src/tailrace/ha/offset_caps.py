"""Offsets that a slave of RocketMQ may copy (requests 43 and 45).

Such a slave applies offsets as they come. The messages before them reach it over the HA port, in any order with the
answer. After a promotion an offset past the end of its queue would let consumers skip new messages. So a slave gets no
offset of a message that it has not acknowledged (H16); its next copy brings the rest. A slave of Tailrace says that it
waits for its log (`WAITS`), and gets all.
"""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.consumequeue import CqUnit
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.queue_search import first_message

__all__ = ["WAITS", "OffsetCaps"]

WAITS: Final = "waitsForLog"
"""Field of a request by which a slave says that it applies offsets only when its log has their messages."""


@final
class OffsetCaps:
    """The ends of the queues in the log of a slave, which ends at ``position``. Each queue is searched once."""

    def __init__(self, store: DefaultMessageStore, position: int) -> None:
        self._store, self._position = store, position
        self._ends: dict[tuple[str, int], int] = {}

    def capped(self, topic: str, queue_id: int, offset: int) -> int:
        """Return an offset, or the end of its queue in the log of the slave if that is lower."""
        key = topic, queue_id
        if (end := self._ends.get(key)) is None:
            end = self._ends[key] = self._end(*key)
        return min(offset, end)

    def _end(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:  # it has no message that a consumer could skip
            return 1 << 62

        def is_after(unit: CqUnit) -> bool | None:
            return unit.phy_offset + unit.size > self._position if unit.phy_offset >= 0 else None

        return max(first_message(queue, queue.min_offset, is_after), queue.min_offset)

    def apply(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return the content of ``consumerOffset.json`` with capped offsets."""
        made = dict(table)
        made["offsetTable"] = {
            key: {queue_id: self.capped(key.partition("@")[0], int(queue_id), offset)
                  for queue_id, offset in queues.items()}
            for key, queues in table["offsetTable"].items()}
        if (lmq := table.get("lmqOffsetTable")) is not None:
            made["lmqOffsetTable"] = {
                key: self.capped(key.partition("@")[0], LMQ_QUEUE_ID, offset) for key, offset in lmq.items()}
        return made
