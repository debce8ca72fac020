"""Messages that groups have popped in order and not acknowledged, by queue: ``consumerOrderInfo.json``.

An orderly pop blocks its queue for its group until all its messages are acknowledged or visible again.
The offset of the group stays at the first message without an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats import fastjson
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager, Owned

__all__ = ["NOT_COMMITTED", "NOT_POPPED", "ConsumerOrderInfoManager", "OrderInfo"]

_log = get_logger(__name__)
NOT_POPPED: Final = -1
"""The message does not belong to the last pop of the queue."""
NOT_COMMITTED: Final = -2
"""The receipt is of an older pop, or the pop was lost when a broker was killed: nothing changes."""
KEPT_MS: Final = 24 * 3600 * 1000
"""An entry that was not used for this long is dropped."""


@dataclass(slots=True)
class OrderInfo:
    """The last pop of a queue."""

    pop_time: int
    invisible_time: int
    offsets: list[int]
    last_consume_ms: int
    attempt_id: str | None = None
    commit_bits: int = 0
    """A bit for each message that is acknowledged."""
    next_visible: dict[int, int] = field(default_factory=dict)
    """By offset, the time at which a message is visible again; only messages whose time was changed."""
    consumed: dict[int, int] = field(default_factory=dict)
    """By offset, how often a message was popped before; only messages that were popped before."""

    def visible_at(self, now_ms: int) -> int | None:
        """Return when the first message that is invisible now is visible again; None without one."""
        for place, offset in enumerate(self.offsets):
            if not self.commit_bits >> place & 1:
                at = self.next_visible.get(offset, self.pop_time + self.invisible_time)
                if now_ms < at:
                    return at
        return None

    def next_offset(self) -> int:
        """Return the first offset without an acknowledgement."""
        for place, offset in enumerate(self.offsets):
            if not self.commit_bits >> place & 1:
                return offset
        return self.offsets[-1] + 1

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names; offsets after the first one are differences to it."""
        first = self.offsets[0]
        made: dict[str, Any] = {
            "cm": self.commit_bits, "i": self.invisible_time, "l": self.last_consume_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])], "popTime": self.pop_time,
        }
        if self.attempt_id is not None:
            made["a"] = self.attempt_id
        if self.consumed:
            made["oc"] = {str(offset): count for offset, count in self.consumed.items()}
        if self.next_visible:
            made["ot"] = {str(offset): at for offset, at in self.next_visible.items()}
        return made

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> OrderInfo | None:
        """Read an entry; None for one without offsets. Raises ValueError or TypeError."""
        first, *others = [int(offset) for offset in value.get("o") or ()] or [-1]
        if first < 0:
            return None
        attempt = value.get("a")
        return cls(
            int(value.get("popTime") or 0), int(value.get("i") or 0), [first, *(first + o for o in others)],
            int(value.get("l") or 0), None if attempt is None else str(attempt), int(value.get("cm") or 0),
            {int(offset): int(at) for offset, at in (value.get("ot") or {}).items()},
            {int(offset): int(count) for offset, count in (value.get("oc") or {}).items()})


_Queues = dict[int, OrderInfo]


@final
class ConsumerOrderInfoManager(ConfigManager[str, _Queues]):
    """The last orderly pop of each queue, by ``topic@group``. One thread uses it: the one that constructs it.

    `prepare` and `write_prepared` are called at intervals.
    After a crash an older state may be read: messages are redelivered, in order, from the group's offset.
    """

    owned = Owned.BY_ONE_THREAD

    def __init__(
        self, file_system: FileSystem, config_dir: str, clock: Clock, when_free: Callable[[str, str, int, int], None]
    ) -> None:
        """``when_free`` gets topic, group, queue and the time, ms, at which a pop blocks no longer."""
        super().__init__(file_system, config_dir, "consumerOrderInfo.json")
        self._clock = clock
        self._when_free = when_free

    def entries(self) -> list[tuple[str, str, int, OrderInfo]]:
        """Return (topic, group, queue id, last pop) of all queues."""
        self.check_owner()
        found = []
        for key, queues in self._table.items():
            topic, _, group = key.partition("@")
            found += [(topic, group, queue_id, info) for queue_id, info in queues.items()]
        return found

    def is_blocked(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, invisible_time: int
    ) -> bool:
        """Return True if a pop must wait for an earlier one. A retry of the same attempt does not wait."""
        self.check_owner()
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        if info.invisible_time <= 0:
            info.invisible_time = invisible_time
        return info.visible_at(self._clock.now_ms()) is not None

    def visible_at(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return when the first message that blocks a queue is visible again; None if none blocks it."""
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        return None if info is None else info.visible_at(self._clock.now_ms())

    def __len__(self) -> int:
        """Return the number of pairs of a topic and a group."""
        return len(self._table)

    def popped(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, pop_time: int,
        invisible_time: int, offsets: Sequence[int],
    ) -> OrderInfo:
        """Note a pop; return it, with the number of earlier pops of its messages."""
        self.check_owner()
        queues = self._table.setdefault(f"{topic}@{group}", {})
        made = OrderInfo(pop_time, invisible_time, list(offsets), self._clock.now_ms(), attempt_id)
        before = queues.get(queue_id)
        if before is not None and before.attempt_id is not None and before.attempt_id == attempt_id:
            made.consumed = before.consumed
        elif before is not None:
            known = set(before.offsets)
            made.consumed = {o: before.consumed.get(o, 0) + 1 for o in offsets if o in known}
        queues[queue_id] = made
        self._changed(topic, group, queue_id, made)
        return made

    def commit(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Note an acknowledgement; return the offset to commit, `NOT_POPPED` or `NOT_COMMITTED`."""
        self.check_owner()
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        # Without a pop of the queue a Java broker commits ``offset + 1``, and so loses the messages before it.
        if info is None or pop_time != info.pop_time:
            return NOT_COMMITTED
        if offset not in info.offsets:
            return NOT_POPPED
        info.commit_bits |= 1 << info.offsets.index(offset)
        self._changed(topic, group, queue_id, info)
        return info.next_offset()

    def change_visible(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> None:
        """Set when a message is visible again; a receipt of an older pop changes nothing."""
        self.check_owner()
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        if info is not None and info.pop_time == pop_time and offset in info.offsets:
            info.next_visible[offset] = visible_at
            self._changed(topic, group, queue_id, info)

    def suspend(self, topic: str, group: str, queue_id: int, pop_time: int, visible_at: int) -> None:
        """Have all messages of a pop visible again at a time, without counting a delivery of them."""
        self.check_owner()
        info = self._table.get(f"{topic}@{group}", {}).get(queue_id)
        if info is not None and info.pop_time == pop_time:
            info.consumed = {offset: count - 1 if count > 0 else count for offset, count in info.consumed.items()}
            info.next_visible = {}
            info.invisible_time = visible_at - pop_time
            self._changed(topic, group, queue_id, info)

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the pop of a queue because its offset was set by an administrator."""
        self.check_owner()
        key = f"{topic}@{group}"
        queues = self._table.get(key, {})
        if queues.pop(queue_id, None) is not None:
            self._dirty = True
            if not queues:
                del self._table[key]

    def take(self, value: dict[str, Any], end_of: Callable[[str, int], int]) -> None:
        """Replace all pops by those in a file of another broker; they are written as other changes are.

        ``end_of`` returns the end of a queue. A pop of messages that the queue does not have is left out.
        """
        self.check_owner()
        self._decode(dict(value))
        self._dirty = True
        for topic, group, queue_id, info in self.entries():
            if max(info.offsets) >= end_of(topic, queue_id):
                self.clear(topic, group, queue_id)

    def forget(self, topics: set[str], groups: set[str]) -> None:
        """Forget the pops of topics and of groups that were deleted."""
        self.check_owner()
        for key in list(self._table):
            topic, _, group = key.partition("@")
            if topic in topics or group in groups:
                del self._table[key]
                self._dirty = True

    def drop_unused(self, is_used: Callable[[str, str, int], bool]) -> None:
        """Forget entries of deleted topics, groups and queues, and old entries."""
        now = self._clock.now_ms()
        for topic, group, queue_id, info in self.entries():
            if not is_used(topic, group, queue_id) or now - info.last_consume_ms > KEPT_MS:
                self.clear(topic, group, queue_id)

    def _changed(self, topic: str, group: str, queue_id: int, info: OrderInfo) -> None:
        self._dirty = True
        if (free_at := info.visible_at(self._clock.now_ms())) is not None:
            self._when_free(topic, group, queue_id, free_at)

    def _decode(self, value: dict[str, Any]) -> None:
        for derived in ("orderInfoCount", "orderedConsumptionLevel"):
            value.pop(derived, None)
        self._table = {}
        for key, queue_id, entry in fastjson.pairs_of(value.pop("table", None)):
            try:
                info = OrderInfo.from_json(entry)
                number = int(queue_id)
            except (AttributeError, TypeError, ValueError) as error:
                events.ORDERLY_POP_IS_NOT_READ.log(_log, file=self.path, key=key, queue=queue_id, reason=error)
                continue
            if info is not None:
                self._table.setdefault(key, {})[number] = info

    def _encode(self, table: dict[str, _Queues]) -> dict[str, Any]:
        return {"table": {
            key: {str(queue_id): info.to_json() for queue_id, info in queues.items()}
            for key, queues in table.items() if queues}}
