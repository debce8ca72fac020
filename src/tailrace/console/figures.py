"""Figures that pages make of all queues of a broker, kept for a moment, because each needs a look at every queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, final

from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.lags import ConsumerLags, Lag, QueueLag
from tailrace.broker.core.deletion import BrokerState
from tailrace.console.viewer import Viewer
from tailrace.env.clock import Clock
from tailrace.env.pauses import in_steps, pause
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import is_system_group
from tailrace.node.topic_config import TopicConfigManager

__all__ = ["DeadLetters", "Figures", "GroupLag", "TopicSize", "is_own_topic"]

_Kept = TypeVar("_Kept")
KEPT_NS: Final = 1_000_000_000
"""Time for which figures are kept."""
REST: Final = 3
"""They are kept for at least this many times the time that they took."""
QUEUES_OF_PAIR: Final = 16
"""Lagging queues of a group and a topic whose first waiting message is looked at, those with the greatest lag."""
STEP: Final = 1_000
"""Queues between two pauses, about 10 ms: longer than for metrics, because a page is made less often."""


@dataclass(slots=True)
class GroupLag(Lag):
    """Lag of a group on one topic, or on all its topics."""

    topics: set[str] = field(default_factory=set)
    lagging: list[QueueLag] = field(default_factory=list)
    """Queues with the greatest lag, at most twice `QUEUES_OF_PAIR`."""

    def count(self, queue: QueueLag) -> None:
        """Add a queue."""
        Lag.count(self, queue)
        self.topics.add(queue.pair[1])
        if queue.behind:
            self.lagging.append(queue)
            if len(self.lagging) > 2 * QUEUES_OF_PAIR:
                self.lagging = _worst(self.lagging)

    def add(self, other: GroupLag) -> None:
        """Add the lag on another topic."""
        self.behind += other.behind
        self.in_flight += other.in_flight
        self.ready += other.ready
        self.queues += other.queues
        self.topics |= other.topics
        self.lagging = _worst(self.lagging + other.lagging)


@dataclass(slots=True)
class TopicSize:
    """What the queues of a topic hold."""

    messages: int = 0
    queues: list[tuple[int, int, int]] = field(default_factory=list)
    """Queue id, first offset and end of each queue, by queue id."""


class DeadLetters(NamedTuple):
    """The dead letters of a group; those of ``TAILRACE_TIMER`` are timers that could not be delivered."""

    group: str
    topic: str
    messages: int
    last_ms: int
    """When the last one was stored."""


def is_own_topic(topics: TopicConfigManager, topic: str) -> bool:
    """Return True if users have made a topic: it belongs neither to the broker nor to a group."""
    return not topics.is_system_topic(topic) and not topic.startswith(
        (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))


@final
class Figures:
    """Figures of one broker. Any thread may use it."""

    def __init__(
        self, store: MessageStore, clock: Clock, offsets: ConsumerOffsetManager, consumers: ConsumerManager,
        lags: ConsumerLags, state: BrokerState,
    ) -> None:
        self._store, self._clock, self._offsets = store, clock, offsets
        self._consumers, self._lags, self._state = consumers, lags, state
        self._kept: dict[str, tuple[int, Any]] = {}
        self._locks = {"lags": threading.Lock(), "topics": threading.Lock()}

    def _get(self, name: str, make: Callable[[], _Kept]) -> _Kept:
        clock = self._clock
        with self._locks[name]:  # of two pages that need the same figures one makes them
            began = clock.monotonic_ns()
            until, found = self._kept.get(name, (0, None))
            if found is None or began >= until:
                found = make()
                now = clock.monotonic_ns()
                self._kept[name] = now + max(KEPT_NS, REST * (now - began)), found
            kept: _Kept = found
            return kept

    def topics(self) -> dict[str, TopicSize]:
        """Return the queues of every topic that has one."""
        def make() -> dict[str, TopicSize]:
            found: dict[str, TopicSize] = {}
            for topic, queue_id, low, high in in_steps(self._store.queues(), STEP, pause):
                size = found.setdefault(topic, TopicSize())
                size.messages += high - low
                size.queues.append((queue_id, low, high))
            return found
        return self._get("topics", make)

    def pairs(self) -> dict[tuple[str, str], GroupLag]:
        """Return the lag of every group on every topic that it has consumed."""
        return self._get("lags", lambda: self._lags.sums(GroupLag, pause, STEP))

    def group_names(self) -> set[str]:
        """Return the names of all groups that have a configuration or offsets, or a member."""
        return self._state.groups() | {info.group for info in self._consumers.groups()}

    def members_of(self, group: str) -> int:
        """Return the number of connected members of a group."""
        info = self._consumers.find(group)
        return 0 if info is None else len(info.client_ids())

    def oldest_ms(self, lagging: Iterable[QueueLag]) -> int:
        """Return when the oldest of the waiting messages was stored, in ms; 0 if none waits."""
        times = (
            self._store.queue_of(queue.topic, queue.queue_id).store_timestamp(queue.first) for queue in lagging)
        return min((ms for ms in times if ms > 0), default=0)

    def queues_of(self, group: str, viewer: Viewer) -> list[QueueLag]:
        """Return the queues of a group on topics that a user may see."""
        return list(self._lags.queues(
            [entry for entry in self._offsets.entries() if entry[1] == group and viewer.topic(entry[0])]))

    def groups(self, viewer: Viewer) -> dict[str, GroupLag]:
        """Return the lag of each group, on the topics that a user may see."""
        found: dict[str, GroupLag] = {}
        for (group, topic), lag in self.pairs().items():
            if viewer.group(group) and viewer.topic(topic):
                found.setdefault(group, GroupLag()).add(lag)
        return found

    def own_lags(self, viewer: Viewer) -> dict[str, GroupLag]:
        """Return the lag of each group of users that a user may see."""
        return {group: lag for group, lag in self.groups(viewer).items() if not is_system_group(group)}

    def dead_letters(self, viewer: Viewer) -> list[DeadLetters]:
        """Return the dead letters that a user may see, the most first."""
        return sorted(self._dead_letters(viewer), key=lambda one: (-one.messages, one.group))

    def _dead_letters(self, viewer: Viewer) -> Iterator[DeadLetters]:
        for topic, size in self.topics().items():
            if topic.startswith(DLQ_GROUP_TOPIC_PREFIX) and size.messages and viewer.topic(topic):
                last = max(
                    (self._store.queue_of(topic, queue_id).store_timestamp(high - 1)
                     for queue_id, low, high in size.queues if high > low), default=0)
                yield DeadLetters(topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX), topic, size.messages, last)


def _worst(lagging: list[QueueLag]) -> list[QueueLag]:
    return sorted(lagging, key=lambda queue: -queue.behind)[:QUEUES_OF_PAIR]
