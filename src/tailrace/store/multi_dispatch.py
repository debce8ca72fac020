"""Multi-dispatch: one record, units in its own queue and in LMQ queues (RocketMQ's LmqDispatch).

The property INNER_MULTI_DISPATCH of a message names LMQ queues (light message queues, ``%LMQ%NAME``, queue id 0).
A put assigns a queue offset in each of them and stores the offsets as INNER_MULTI_QUEUE_OFFSET. Dispatch and
recovery read both properties from the record, so the units are a function of the CommitLog (C2), whatever the
settings are. Messages of retry, dead letter and system topics have no such units, because they may be copies of
a message and have its properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import (
    LMQ_DISPATCH_SEPARATOR,
    LMQ_QUEUE_ID,
    NAME_VALUE_SEPARATOR,
    SysFlag,
    decode_properties,
)
from tailrace.formats.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    LMQ_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
)
from tailrace.kernels import queue_units, record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import MessageExtBrokerInner
from tailrace.store.lives import EndedLives
from tailrace.store.walk.scan import Rows

__all__ = [
    "UNCOUNTED", "MultiDispatch", "holds_unit", "is_lmq", "lmq_names", "queue_count",
    "rows_with_lmq", "topic_allows_lmq",
]

_log = get_logger(__name__)

UNCOUNTED: Final = frozenset({SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK})
"""Kinds of records that have no unit and no queue offset."""
_EXCLUDED: Final = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)
_MAX_NAME_LENGTH: Final = 255
"""In bytes, because the name of an LMQ queue is the name of its directory."""
_OFFSETS: Final = f"{INNER_MULTI_QUEUE_OFFSET}{NAME_VALUE_SEPARATOR}".encode()
_SHORTEST: Final = len(LMQ_PREFIX) + 1


def is_lmq(name: str) -> bool:
    """Return True if a topic or a consumer group is an LMQ queue."""
    return name.startswith(LMQ_PREFIX)


def topic_allows_lmq(topic: str) -> bool:
    """Return True if messages of a topic may have units in LMQ queues (MixAll.topicAllowsLMQ)."""
    return not topic.startswith(_EXCLUDED) and topic != SCHEDULE_TOPIC


def rows_with_lmq(data: Any, rows: Rows) -> Rows:
    """Return record rows with one additional row, after the record's own, for each LMQ unit of the record.

    Return ``rows`` itself if no record has an LMQ unit; that costs almost nothing.
    """
    lengths = rows[:, C.LMQ_OFFSETS_LEN]
    if not lengths.any():
        return rows
    names = rows[:, C.LMQ_LEN]
    most = int(np.minimum((lengths + 1) // 2, (names + 1) // _SHORTEST).sum())
    room = np.empty((len(rows) + most, C.COLUMNS), dtype=np.int64)
    return room[: queue_units.add_lmq_rows(data, rows, room)]


def holds_unit(stored: bytes, name: str, queue_offset: int) -> bool:
    """Return True if a stored record belongs at a queue offset of an LMQ queue.

    The record was put into that queue itself, or its properties name the queue.
    """
    rows = np.empty((1, C.COLUMNS), dtype=np.int64)
    if record.scan(stored, 0, len(stored), 0, 0, rows)[0] != 1:
        return False
    found, raw = rows_with_lmq(stored, rows), name.encode()
    places = found[found[:, C.QUEUE_OFFSET] == queue_offset]
    return any(
        stored[at : at + length] == raw
        for at, length in places[:, [C.TOPIC_POS, C.TOPIC_LEN]].tolist())


def lmq_names(properties: bytes) -> list[str]:
    """Return the LMQ queues that stored properties name.

    Raises MessageIllegalError for an invalid name. RocketMQ stores such a message and then drops the unit, or
    fails at dispatch.
    """
    text = decode_properties(properties).get(INNER_MULTI_DISPATCH, "")
    if not text.strip():
        return []
    names = text.rstrip(LMQ_DISPATCH_SEPARATOR).split(LMQ_DISPATCH_SEPARATOR)
    for name in names:
        if why := _why_no_name(name):
            raise MessageIllegalError(INNER_MULTI_DISPATCH, f"{name[:300]!r} {why}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MessageIllegalError(INNER_MULTI_DISPATCH, f"{twice[:300]!r} is named twice")
    return names


def _why_no_name(name: str) -> str:
    if not is_lmq(name):
        return f"does not begin with {LMQ_PREFIX}: only LMQ queues can be named, with commas between"
    if "/" in name or "\0" in name:
        return "must not contain / or NUL: the name of an LMQ queue is the name of a directory"
    if (size := len(name.encode("utf-8", "replace"))) > _MAX_NAME_LENGTH:
        return f"has {size} bytes, the limit is {_MAX_NAME_LENGTH}"
    return ""


@final
class MultiDispatch:
    """Checks and completes messages that name LMQ queues. ``queue_offsets`` is the table of the CommitLog."""

    def __init__(
        self, config: StoreConfig, queue_offsets: dict[tuple[str, int], int], lives: EndedLives
    ) -> None:
        """``lives`` has the queues that were deleted."""
        self._config = config
        self._queue_offsets = queue_offsets
        self._lives = lives
        self._warned = False

    def names(self, message: MessageExtBrokerInner) -> tuple[list[str], bytes]:
        """Return the LMQ queues in which a message gets a unit, and its properties without LMQ queue offsets.

        Offsets that a client sent are removed, because only the store assigns them.
        Raises MessageIllegalError.
        """
        topic, properties = message.topic, message.properties
        if not topic_allows_lmq(topic):
            return [], properties
        properties = _without_queue_offsets(properties)
        if message.sys_flag & SysFlag.TRANSACTION_MASK in UNCOUNTED:
            return [], properties
        if not self._config.multi_dispatch:
            self._warn_off(topic, properties)
            return [], properties
        names = lmq_names(properties)
        if topic in names:
            raise MessageIllegalError(
                INNER_MULTI_DISPATCH, f"{topic[:300]!r} is the topic of the message itself")
        return names, properties

    def _warn_off(self, topic: str, properties: bytes) -> None:
        """Log once that a message names LMQ queues while multi-dispatch is off."""
        text = decode_properties(properties).get(INNER_MULTI_DISPATCH, "")
        if text.strip() and not self._warned:
            self._warned = True
            events.MULTI_DISPATCH_IS_OFF.log(_log, topic=topic, names=repr(text)[:300])

    def over_quota(self, message: MessageExtBrokerInner) -> str:
        """Return why a message may not create the LMQ queues that it names (there are too many), or "".

        Raises MessageIllegalError for an invalid name.
        """
        config = self._config
        if not config.multi_dispatch:
            return ""
        names, _ = self.names(message)
        if not config.enable_lmq_quota:
            return ""
        new = [name for name in names if not self._is_there(name)]
        limit = config.max_lmq_consume_queue_num
        if not new or (there := self._count()) < limit:
            return ""
        return (f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded. {new[0][:300]!r} is "
                f"new, there are {there} LMQ queues, maxLmqConsumeQueueNum allows {limit}")

    def _is_there(self, name: str) -> bool:
        """Return True if a queue has a message, or had one since it was deleted."""
        end = self._queue_offsets.get((name, LMQ_QUEUE_ID))
        return end is not None and not 0 < end == self._lives.begin(name, LMQ_QUEUE_ID)

    def _count(self) -> int:
        return queue_count(self._queue_offsets) - sum(
            (name, LMQ_QUEUE_ID) in self._queue_offsets and not self._is_there(name)
            for name in list(self._lives.table) if is_lmq(name))

    def with_offsets(self, properties: bytes, names: list[str]) -> bytes:
        """Return stored properties with the next queue offset in each LMQ queue."""
        text = LMQ_DISPATCH_SEPARATOR.join(str(self._next(name)) for name in names)
        end = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
        return b"%b%b%b\x01%b\x02" % (
            properties, end, INNER_MULTI_QUEUE_OFFSET.encode(), text.encode())

    def advance(self, names: list[str]) -> None:
        """Advance the queue offsets; the message is in the log."""
        for name in names:
            self._queue_offsets[name, LMQ_QUEUE_ID] = self._next(name) + 1

    def _next(self, name: str) -> int:
        return self._queue_offsets.get((name, LMQ_QUEUE_ID), 0)

    def checked_batch(
        self, topic: str, items: list[tuple[int, bytes, bytes]]
    ) -> list[tuple[int, bytes, bytes]]:
        """Return the items of a batch as they are stored.

        Raises MessageIllegalError if an item names LMQ queues. RocketMQ stores such an item without a unit in
        these queues.
        """
        for number, (_, _, properties) in enumerate(items):
            if not self._config.multi_dispatch:
                self._warn_off(topic, properties)
            elif topic_allows_lmq(topic) and lmq_names(properties):
                raise MessageIllegalError(
                    INNER_MULTI_DISPATCH,
                    f"message {number} of a batch names LMQ queues, it must be sent by itself")
        return [(flag, body, _without_queue_offsets(stored)) for flag, body, stored in items]


def _without_queue_offsets(properties: bytes) -> bytes:
    """Return stored properties without INNER_MULTI_QUEUE_OFFSET."""
    if _OFFSETS not in properties:
        return properties
    return b"\x02".join(piece for piece in properties.split(b"\x02") if not piece.startswith(_OFFSETS))


def queue_count(queues: Mapping[tuple[str, int], object]) -> int:
    """Return the number of LMQ queues among keys (topic, queue id)."""
    return sum(1 for topic, _ in list(queues) if is_lmq(topic))
