"""Where a message that has waited may be delivered, and where it is parked if it cannot be.

Its topic may have been deleted, or have fewer queues, since it was put.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol, final

from tailrace import events
from tailrace.formats.commitlog import (
    CRC_PROPERTY_LENGTH,
    MAX_PROPERTIES_LENGTH,
    SysFlag,
    pack_host,
)
from tailrace.formats.copied_properties import fitting
from tailrace.formats.names import REAL_QID, REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY
from tailrace.kernels.properties import encode_properties
from tailrace.logs import get_logger
from tailrace.model import MessageExt, MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.properties import PARKED_TOPIC, TIMER_PARKED_REASON

__all__ = [
    "ANY_TARGET", "NEVER", "NOWHERE", "Parking", "StepEvents", "Targets", "fitting_copy", "inner_message",
    "log_left_out",
]

_log = get_logger(__name__)
_HOSTS: Final = SysFlag.BORNHOST_V6 | SysFlag.STOREHOST_V6
NEVER: Final = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
"""Refusals that a retry would get again."""
LEFT_OUT_SHOWN: Final = 200
_KEPT_PARKED: Final = frozenset({REAL_TOPIC, REAL_QID, UNIQ_KEY, TIMER_OUT_MS, TIMER_PARKED_REASON})
NOWHERE: Final = (1 << 63) - 1
"""A position after every record."""


class Targets(Protocol):
    """The topics of the store, for the services that deliver later. Any thread may call."""

    def first_position(self, topic: str) -> int:
        """Return the position of the log before which records of a topic must not be delivered.

        They belong to a life of the topic that was ended by its deletion. NOWHERE for a topic that does not exist.
        """
        ...

    def queue_id(self, topic: str, queue_id: int) -> int:
        """Return a queue of the topic that can be read: the given one, or another if the topic has fewer queues now."""
        ...


@final
class _AnyTarget:
    """Every topic exists and has every queue."""

    def first_position(self, topic: str) -> int:
        return 0

    def queue_id(self, topic: str, queue_id: int) -> int:
        return queue_id


ANY_TARGET: Final = _AnyTarget()


@final
class StepEvents:
    """Messages of one step of a service that were parked, or moved to another queue: one line for each kind."""

    def __init__(self) -> None:
        self._parked: dict[tuple[str, str], tuple[int, int]] = {}
        """By topic and reason: position of the first message, and number."""
        self._moved: Counter[tuple[str, int, int]] = Counter()

    def parked(self, topic: str, reason: str, phy_offset: int) -> None:
        """Note a message that was parked."""
        first, count = self._parked.get((topic, reason), (phy_offset, 0))
        self._parked[topic, reason] = first, count + 1

    def moved(self, topic: str, queue_id: int, to: int, count: int) -> None:
        """Note messages that go to another queue of their topic."""
        self._moved[topic, queue_id, to] += count

    def log(self) -> None:
        """Log what was noted, at the end of the step."""
        for (topic, reason), (first, count) in self._parked.items():
            events.MESSAGE_PARKED.log(_log, phy_offset=first, topic=topic, messages=count, reason=reason)
        self._parked.clear()
        for (topic, queue_id, to), count in self._moved.items():
            events.QUEUE_OF_WAITING_MESSAGES_IS_GONE.log(
                _log, topic=topic, queue_id=queue_id, to=to, messages=count)
        self._moved.clear()


@final
class Parking:
    """Delivers messages that have waited, or puts them into ``%DLQ%TAILRACE_TIMER``.

    That has those that the log always refuses under their own topic, or whose topic is gone.
    """

    def __init__(
        self, store: DefaultMessageStore, ensure_topic: Callable[[str], object] = lambda _: None,
        targets: Targets = ANY_TARGET,
    ) -> None:
        self.step = StepEvents()
        self.targets = targets
        self._store = store
        self.ensure_topic = ensure_topic

    def why_gone(self, topic: str, phy_offset: int) -> str:
        """Return why a message with a record at ``phy_offset`` is not delivered to its topic any more, or ""."""
        return f"its topic {topic} was deleted" if phy_offset < self.targets.first_position(topic) else ""

    def deliver(
        self, message: MessageExt, topic: str, queue_id: int, properties: Mapping[str, str]
    ) -> PutMessageResult:
        """Put a message that has waited into its own topic: into the named queue, or another if it has fewer now."""
        to = self.targets.queue_id(topic, queue_id)
        result = self._store.put(inner_message(message, topic, to, properties))
        if to != queue_id and result.status.appended:
            self.step.moved(topic, queue_id, to, 1)
        return result

    def park(self, message: MessageExt, reason: str, *, though_full: bool = False) -> bool:
        """Put a message into the topic of parked messages, with the reason. Return True if it is stored.

        With ``though_full`` it is put even if the disk is too full for other puts.
        """
        self.ensure_topic(PARKED_TOPIC)
        put = partial(self._store.put, though_full=True) if though_full else self._store.put
        properties = {**message.properties, TIMER_PARKED_REASON: _plain(reason)}
        result = put(fitting_copy(message, PARKED_TOPIC, 0, properties, _KEPT_PARKED))
        if result.status.appended:
            self.step.parked(
                message.properties.get(REAL_TOPIC) or message.topic, reason, message.phy_offset)
        return result.status.appended


def _plain(text: str) -> str:
    return text.replace("\x01", " ").replace("\x02", " ")[:200]


def inner_message(
    message: MessageExt, topic: str, queue_id: int, properties: Mapping[str, str]
) -> MessageExtBrokerInner:
    """Return a stored message as one that is put again, with these properties; its put does not wait for a sync."""
    return MessageExtBrokerInner(
        topic, queue_id, message.body, encode_properties(properties), message.flag,
        message.sys_flag & ~_HOSTS, message.born_timestamp, pack_host(*message.born_host),
        message.reconsume_times, 0, wait_store_msg_ok=False, is_copy=True)


def fitting_copy(
    message: MessageExt, topic: str, queue_id: int, properties: Mapping[str, str], keep: frozenset[str], room: int = 0
) -> MessageExtBrokerInner:
    """As ``inner_message``, without the properties that do not fit a record, which are logged.

    Those in ``keep`` are never left out. ``room`` is the number of bytes that the copy gets later.
    """
    made = inner_message(message, topic, queue_id, properties)
    if len(made.properties) + room + CRC_PROPERTY_LENGTH < MAX_PROPERTIES_LENGTH:
        return made
    fit, left_out = fitting(properties, keep, room)
    if left_out:
        log_left_out(message.topic, message.msg_id, topic, left_out)
    return inner_message(message, topic, queue_id, fit)


def log_left_out(topic: str, message_id: str, copy: str, left_out: tuple[str, ...]) -> None:
    """Log that a copy of a message, in the topic ``copy``, lacks these properties."""
    events.PROPERTIES_LEFT_OUT_OF_A_COPY.log(
        _log, topic=topic, message=message_id, copy=copy, left_out=",".join(left_out)[:LEFT_OUT_SHOWN])
