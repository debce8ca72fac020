"""Static topics: ``topicQueueMapping.json``, by which queues keep their numbers while they move between brokers.

A static topic has logical queues, which clients see. A logical queue is a list of items, oldest first. An
item is a part of it: one queue of one broker (the physical queue), and the logical offset at which that begins. The
broker of the last item is the leader: it takes the messages and answers all requests about the queue.

    queue 3:  item gen=0  broker-a queue 1  logicOffset=0        offsets 0 to 899
              item gen=1  broker-b queue 0  logicOffset=10000    offsets from 10000

``mqadmin updateStaticTopic`` and ``remappingStaticTopic`` compute the items; a broker checks and keeps them. A new
item has ``logicOffset`` -1 until mqadmin knows the end of the item before it.

Only requests about queues use logical numbers. The store, consumer offsets, POP and statistics use physical ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.node.config_manager import ConfigManager, Draft, Owned, members_of

__all__ = [
    "GLOBAL_SCOPE", "LogicQueueMappingItem", "TopicQueueMappingDetail", "TopicQueueMappingManager", "check_items",
    "checked_info", "find_item",
]

GLOBAL_SCOPE: Final = "__global__"
QUEUES_MAX: Final = 16_384
"""Logical queues of a topic."""
ITEMS_MAX: Final = 1_000
"""Items of a logical queue."""
_INT: Final = 1 << 31
_LONG: Final = 1 << 63


def _number(value: dict[str, Any], name: str, default: int, limit: int = _INT) -> int:
    found = value.get(name, default)
    if not isinstance(found, int) or isinstance(found, bool) or not -limit <= found < limit:
        raise ValueError(f"{name} is not a whole number of {limit.bit_length()} bits: {str(found)[:40]!r}")
    return found


def _text(value: dict[str, Any], name: str, default: str) -> str:
    found = value.get(name, default)
    if not isinstance(found, str) or len(found) > 255:
        raise ValueError(f"{name} is not a text of up to 255 characters: {str(found)[:40]!r}")
    return found


@final
@dataclass(frozen=True, slots=True)
class LogicQueueMappingItem:
    """A part of a logical queue: a physical queue of the broker ``bname``."""

    gen: int
    queue_id: int
    bname: str
    logic_offset: int
    """Logical offset of ``start_offset``; below 0 while it is not decided."""
    start_offset: int = 0
    """First physical offset, always 0."""
    end_offset: int = -1
    """Physical offset at which the item ends; -1 if that is not decided."""
    time_of_start: int = -1
    time_of_end: int = -1

    @property
    def is_decided(self) -> bool:
        """Whether its logical offset is known."""
        return self.logic_offset >= 0

    @property
    def is_closed(self) -> bool:
        """Whether its end is known."""
        return self.end_offset > self.start_offset

    @property
    def max_logical_offset(self) -> int:
        """The logical offset of its end; that of its start if the end is not known."""
        return self.logic_offset + max(0, self.end_offset - self.start_offset)

    def logical(self, offset: int) -> int:
        """Return the logical offset of a physical one."""
        return self.logic_offset + max(0, offset - self.start_offset)

    def physical(self, offset: int) -> int:
        """Return the physical offset of a logical one; below the start if that is in an item before this one."""
        return offset - self.logic_offset + self.start_offset

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names."""
        return {name: getattr(self, attribute) for name, attribute in _ITEM.items()}

    @classmethod
    def from_json(cls, value: Any) -> LogicQueueMappingItem:
        """Return the item in an object of JSON. Raises ValueError."""
        if not isinstance(value, dict):
            raise ValueError(f"an item is not an object: {str(value)[:40]!r}")  # noqa: TRY004 - of bad input
        return cls(
            _number(value, "gen", 0), _number(value, "queueId", 0), _text(value, "bname", ""),
            *(_number(value, name, default, _LONG) for name, default in (
                ("logicOffset", 0), ("startOffset", 0), ("endOffset", -1), ("timeOfStart", -1),
                ("timeOfEnd", -1))))


_ITEM: Final = members_of(LogicQueueMappingItem)
Items = tuple[LogicQueueMappingItem, ...]


def find_item(items: Sequence[LogicQueueMappingItem], offset: int) -> LogicQueueMappingItem | None:
    """Return the item that has a logical offset: the first one for an offset before it; None without decided items."""
    decided = [item for item in items if item.is_decided]
    return next((item for item in reversed(decided) if offset >= item.logic_offset), decided[0] if decided else None)


def check_items(items: Items) -> None:
    """Raise ValueError if items cannot be those of a logical queue."""
    for place, item in enumerate(items):
        if item.start_offset < 0 or item.gen < 0 or item.queue_id < 0:
            raise ValueError("The field is illegal, should not be negative")
        if place < len(items) - 1 and not item.is_decided:
            raise ValueError("The non-latest item has negative logic offset")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise ValueError("The endOffset is smaller than the start offset")
    for item, following in itertools.pairwise(items):
        if item.gen >= following.gen:
            raise ValueError("The gen does not increase monotonically")
        if following.is_decided and item.logic_offset >= following.logic_offset:
            raise ValueError("The base logic offset does not increase monotonically")
        if following.is_decided and item.max_logical_offset >= following.logic_offset:
            raise ValueError("The max logic offset does not increase monotonically")


def _check_immutable(old: Items, new: Items, *, same_epoch: bool) -> None:
    """Raise ValueError if items of the same generation differ in what must never change.

    An item may be missing on either side: the oldest one is removed once it is empty, and so are items of a broker
    to which the queue returns.
    """
    if not old:
        return
    if not new:
        raise ValueError("The new item list is null or empty")
    by_gen = {item.gen: item for item in new}
    for item in old:
        found = by_gen.get(item.gen)
        if found is None:
            continue
        if (item.bname, item.queue_id, item.start_offset) != (found.bname, found.queue_id, found.start_offset) or (
            item.is_decided and item.logic_offset != found.logic_offset
        ):
            raise ValueError(f"The item of gen {item.gen} must not change: {item.to_json()} to {found.to_json()}")
    was, now = old[-1], new[-1]
    if same_epoch and (was.gen, was.bname, was.queue_id, was.start_offset) != (
        now.gen, now.bname, now.queue_id, now.start_offset
    ):
        raise ValueError("The new leader is different but epoch equal")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueueMappingDetail:
    """What one broker knows of the logical queues of a topic."""

    topic: str
    bname: str
    """The broker that has this mapping."""
    scope: str = GLOBAL_SCOPE
    total_queues: int = 0
    """Logical queues of all brokers together."""
    epoch: int = 0
    """Increases with each change; epoch ms of the change, or above."""
    dirty: bool = False
    hosted_queues: dict[int, Items] = field(default_factory=dict)
    """Items by logical queue, for queues of which this broker has or had a part."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Members that Tailrace does not know."""

    def leads(self, queue_id: int) -> bool:
        """Return whether this broker takes the messages of a logical queue."""
        items = self.hosted_queues.get(queue_id, ())
        return len(items) > 0 and items[-1].bname == self.bname

    def info(self) -> dict[str, Any]:
        """Return the TopicQueueMappingInfo that goes to name servers: the logical queues that this broker leads."""
        return {
            **self._head(), "currIdMap": {
                str(queue_id): items[-1].queue_id for queue_id, items in sorted(self.hosted_queues.items())
                if self.leads(queue_id)}}

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names."""
        return {**self.extra, **self._head(), "currIdMap": {}, "hostedQueues": {
            str(queue_id): [item.to_json() for item in items]
            for queue_id, items in sorted(self.hosted_queues.items())}}

    def _head(self) -> dict[str, Any]:
        return {name: getattr(self, attribute) for name, attribute in _DETAIL.items() if name != "hostedQueues"}

    @classmethod
    def from_json(cls, value: Any, topic: str = "") -> TopicQueueMappingDetail:
        """Return the mapping in an object of JSON; ``topic`` if it names none. Raises ValueError."""
        if not isinstance(value, dict):
            raise ValueError(f"the mapping is not an object: {str(value)[:40]!r}")  # noqa: TRY004 - of bad input
        hosted = value.get("hostedQueues", {})
        if not isinstance(hosted, dict) or len(hosted) > QUEUES_MAX:
            raise ValueError(f"hostedQueues is not an object of up to {QUEUES_MAX} members")
        queues: dict[int, Items] = {}
        for key, items in hosted.items():
            if not str(key).isdecimal() or not str(key).isascii() or int(key) >= QUEUES_MAX:
                raise ValueError(f"hostedQueues has the key {str(key)[:40]!r}, which is not from 0 to {QUEUES_MAX - 1}")
            if not isinstance(items, list) or len(items) > ITEMS_MAX:
                raise ValueError(f"queue {key} has not a list of up to {ITEMS_MAX} items")
            queues[int(key)] = tuple(map(LogicQueueMappingItem.from_json, items))
        return cls(
            topic=_text(value, "topic", topic), bname=_text(value, "bname", ""),
            scope=_text(value, "scope", GLOBAL_SCOPE), total_queues=_number(value, "totalQueues", 0),
            epoch=_number(value, "epoch", 0, _LONG), dirty=value.get("dirty") is True, hosted_queues=queues,
            extra={name: member for name, member in value.items() if name not in _KNOWN})

    def replacing(self, present: TopicQueueMappingDetail | None, *, force: bool) -> TopicQueueMappingDetail:
        """Return this mapping with the queues that only the present one has. Raises ValueError.

        ``force`` leaves out the comparison with the present one.
        """
        for items in self.hosted_queues.values():
            check_items(items)
        if present is None:
            return self
        if not force:
            self._check_follows(present)
        return replace(self, hosted_queues={**present.hosted_queues, **self.hosted_queues})

    def _check_follows(self, present: TopicQueueMappingDetail) -> None:
        if self.epoch < present.epoch:
            raise ValueError(f"Can't accept data with small epoch {self.epoch} < {present.epoch}")
        if self.scope != present.scope:
            raise ValueError(f"Can't accept data with unmatched scope {self.scope} != {present.scope}")
        same_epoch = self.epoch == present.epoch
        for queue_id, old in present.hosted_queues.items():
            new = self.hosted_queues.get(queue_id)
            if new is not None:
                _check_immutable(old, new, same_epoch=same_epoch)
            elif same_epoch:
                raise ValueError("Cannot accept equal epoch with null data")


def checked_info(value: Any, topic: str = "") -> dict[str, Any]:
    """Return a TopicQueueMappingInfo in an object of JSON; ``topic`` if it names none. Raises ValueError."""
    head = replace(TopicQueueMappingDetail.from_json(value, topic), hosted_queues={}).info()
    ids = value.get("currIdMap") or {}
    if not isinstance(ids, dict) or len(ids) > QUEUES_MAX:
        raise ValueError(f"currIdMap is not an object of up to {QUEUES_MAX} members")
    for key, queue_id in ids.items():
        if not str(key).isdecimal() or not isinstance(queue_id, int) or not 0 <= queue_id < _INT:
            raise ValueError(f"currIdMap has {str(key)[:40]!r}: {str(queue_id)[:40]}, which are not numbers of queues")
    return {**head, "currIdMap": {str(int(key)): queue_id for key, queue_id in ids.items()}}


_DETAIL: Final = members_of(TopicQueueMappingDetail)
_KNOWN: Final = frozenset({*_DETAIL, "currIdMap"})
MappingEdit = Callable[[Draft[str, TopicQueueMappingDetail]], None]


@final
class TopicQueueMappingManager(ConfigManager[str, TopicQueueMappingDetail]):
    """The mappings of static topics, by topic. Every change is durable when its call returns, and shows only then."""

    owned = Owned.BY_DRAFT

    def __init__(self, file_system: FileSystem, config_dir: str, clock: Clock) -> None:
        super().__init__(file_system, config_dir, "topicQueueMapping.json", clock.now_ms)

    def setting(self, detail: TopicQueueMappingDetail, *, force: bool = False) -> MappingEdit:
        """The change that sets the mapping of a topic; it raises ValueError for one that must not follow the present.

        ``force`` leaves out the comparison with the present one.
        """
        return lambda draft: draft.put(detail.topic, detail.replacing(draft.get(detail.topic), force=force))

    def keeping(self, seen: TopicQueueMappingDetail, items: dict[int, Items]) -> MappingEdit:
        """The change that replaces items by queue, empty ones by none, if the mapping is still ``seen``."""

        def change(draft: Draft[str, TopicQueueMappingDetail]) -> None:
            if draft.get(seen.topic) is seen:
                kept = {queue_id: left for queue_id, left in {**seen.hosted_queues, **items}.items() if left}
                draft.put(seen.topic, replace(seen, hosted_queues=kept))

        return change

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("topicQueueMappingInfoMap", None) or {}
        if not isinstance(found, dict):
            raise StoreError(f"{self.path}: topicQueueMappingInfoMap is not an object")
        table: dict[str, TopicQueueMappingDetail] = {}
        for topic, member in found.items():
            try:
                table[str(topic)] = replace(TopicQueueMappingDetail.from_json(member), topic=str(topic))
            except ValueError as error:
                raise StoreError(
                    f"{self.path}: the mapping of topic {topic} cannot be read: {error}; correct the file, or delete "
                    "it if the topic is to have no logical queues") from error
        self._table = table

    def _encode(self, table: dict[str, TopicQueueMappingDetail]) -> dict[str, Any]:
        return {"topicQueueMappingInfoMap": {topic: detail.to_json() for topic, detail in table.items()}}
