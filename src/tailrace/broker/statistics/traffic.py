"""Counters of messages in and out since the start, for ``/metrics`` and request 315.

The dispatch thread and the event loop count, and any thread reads. A reader may see a message counted whose
bytes are not counted yet.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from tailrace import events
from tailrace.env.supervision import failed
from tailrace.formats import names as N
from tailrace.kernels.shared import constants as C
from tailrace.kernels.unit_records import property_values
from tailrace.logs import get_logger
from tailrace.metrics import MESSAGE_SIZE, PUT_LATENCY, Histogram
from tailrace.store.hooks import MessageArrivingListener

__all__ = ["FIFO", "NORMAL", "CountedArrivals", "Counters", "Flow", "Traffic", "is_delayed", "message_type"]

_log = get_logger(__name__)
COUNTERS_MAX: Final = 5_000
"""Number of keys of one statistic; the samples of a key take about 4 KiB after a day."""
KEY_MAX: Final = 600
"""Longest key, in characters."""
_PLACES: Final[Mapping[str, tuple[int, int | None]]] = {
    "QUEUE_PUT": (0, None), "GROUP_GET_LATENCY": (-2, -1),
    "TOPIC_PUT_LATENCY": (1, None), "GROUP_ACK": (0, 1), "GROUP_CK": (0, 1),
}
"""Places of topic and group among the parts of a key, by statistic."""


class Flow:
    """Sums of messages and bytes since the start, and the number of ``times`` that something was added."""

    __slots__ = ("messages", "throughput", "times")

    def __init__(self) -> None:
        self.messages = 0
        self.throughput = 0
        self.times = 0

    def add(self, count: int, size: int, times: int = 1) -> None:
        """Add ``count`` messages with a total of ``size`` bytes."""
        self.messages += count
        self.throughput += size
        self.times += times


@final
class Counters:
    """Flows by statistic and key. Only one thread at a time may add to a key; keys may be dropped at any time."""

    def __init__(self, most: int = COUNTERS_MAX) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        """Held while a key is added or dropped."""
        self._named = False
        self.flows: dict[tuple[str, str], Flow] = {}

    def add(self, name: str, key: str, value: int, size: int = 0, times: int = 1) -> None:
        """Add a value to a statistic; latencies are in ms.

        A new key is not counted if it is longer than `KEY_MAX` or if the statistic is full.
        """
        flow = self.flows.get((name, key))
        if flow is None:
            with self._lock:
                flow = self._new(name, key)
            if flow is None:
                return
        flow.add(value, size, times)

    def _new(self, name: str, key: str) -> Flow | None:
        """Return the flow of a new key; None if there is no room for it."""
        if self._counts[name] >= self._most or len(key) > KEY_MAX:
            if not self._named:
                self._named = True
                events.STATISTICS_ARE_FULL.log(_log, name=name, key=key[:KEY_MAX], limit=self._most)
            return None
        found = self.flows.get((name, key))
        if found is None:
            found = self.flows[name, key] = Flow()
            self._counts[name] += 1
        return found

    def forget(self, key: tuple[str, str]) -> None:
        """Drop a count that is idle."""
        with self._lock:
            if self.flows.pop(key, None) is not None:
                self._counts[key[0]] -= 1
                self._named = False

    def forget_deleted(self, topics: set[str], groups: set[str]) -> None:
        """Drop the counts of topics and groups that were deleted."""
        for key in list(self.flows):
            topic, group = _PLACES.get(key[0], (None, None))
            names = key[1].split("@")
            if (topic is not None and names[topic] in topics) or (group is not None and names[group] in groups):
                self.forget(key)


_BUCKETS: Final = MESSAGE_SIZE.buckets
NORMAL: Final = "normal"
FIFO: Final = "fifo"
_TRAN_MSG: Final = (N.TRAN_MSG.encode(),)
_READERS_MAX: Final = 10_000
"""Pairs of topic and group whose names are kept."""


@final
class SizedFlow(Flow):
    """A flow that also counts messages by their size, in buckets; the last bucket has no bound."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [0] * (len(_BUCKETS) + 1)


@final
class _Reader:
    """A group that reads a topic: the names that ``went_out`` counts, and by queue the key of its latency."""

    __slots__ = ("counted", "is_lmq", "is_system", "places")

    def __init__(self, counted: tuple[str, str], is_system: bool) -> None:
        self.counted, self.is_system = counted, is_system
        self.is_lmq = N.LMQ_PREFIX in counted
        self.places: dict[int, str] = {}


def message_type(kind: int, properties: bytes) -> str:
    """Return normal, fifo, delay or transaction, from the kind of a message and its stored properties.

    The order is RocketMQ's (BrokerMetricsManager.getMessageType).
    """
    if kind & C.HALF and (property_values(properties, _TRAN_MSG)[0] or "").lower() == "true":
        return "transaction"
    if kind & C.SHARDED:
        return FIFO
    return "delay" if is_delayed(kind) else NORMAL


def is_delayed(kind: int) -> bool:
    """Return whether a message of this kind waits in a system topic before it is delivered."""
    return bool(kind & (C.WAITS | C.DELAYED))


def _no_system_topics(topic: str) -> bool:
    return False


@final
class Traffic:
    """Counters by topic and message type, by topic and group, and dead letters by group.

    ``came_in`` counts what producers sent, under the topic of the request. ``by_topic`` counts the messages
    that became readable on a topic, from any source: producers, timers, delay levels and retries.
    """

    def __init__(
        self, is_system_topic: Callable[[str], bool] = _no_system_topics, *, by_queue: bool = True,
        cluster: str = "",
    ) -> None:
        """``by_queue``: count latencies and delayed messages by queue (enableDetailStat)."""
        self._by_queue = by_queue
        self._cluster = cluster
        self.counters = Counters()
        self._is_system_topic = is_system_topic
        self.came_in: defaultdict[tuple[str, str], SizedFlow] = defaultdict(SizedFlow)
        self.went_out: defaultdict[tuple[str, str], Flow] = defaultdict(Flow)
        self.went_back: defaultdict[tuple[str, str], Flow] = defaultdict(Flow)
        self.by_topic: defaultdict[str, Flow] = defaultdict(Flow)
        self.all_arrived, self.all_out = Flow(), Flow()
        self.user_arrived, self.user_out = Flow(), Flow()
        """As ``all_arrived`` and ``all_out``, without system topics."""
        self.dead_letters: Counter[str] = Counter()
        self.put_latency = Histogram(PUT_LATENCY)
        self.sends = {"lane": 0, "ordinary": 0}
        self.pulls = {"lane": 0, "ordinary": 0}
        """Requests to store messages, and pulls, that a lane and a processor have served."""
        self._readers: dict[tuple[str, str], _Reader] = {}
        self.get_time_max_ns = 0
        """Longest time of a pull that returned messages, in ns, since the start."""

    def take_in(self, topic: str, kind: str, count: int, size: int) -> None:
        """Count ``count`` stored messages with a total of ``size`` bytes."""
        flow = self.came_in[topic, kind]
        flow.add(count, size)
        flow.sizes[bisect_left(_BUCKETS, size // count)] += count

    def take_in_each(self, topic: str, kind: str, sizes: Sequence[int]) -> None:
        """Count stored messages that were sent one by one, with these sizes in bytes."""
        flow = self.came_in[topic, kind]
        flow.add(len(sizes), sum(sizes), len(sizes))
        bucket = bisect_left(_BUCKETS, min(sizes))
        if bucket == bisect_left(_BUCKETS, max(sizes)):
            flow.sizes[bucket] += len(sizes)
        else:
            for size in sizes:
                flow.sizes[bisect_left(_BUCKETS, size)] += 1

    def arrived(self, topic: str, count: int, size: int, queue_id: int = -1) -> None:
        """Count messages that have become readable; called by the dispatch thread."""
        if topic.startswith(N.LMQ_PREFIX):
            topic = N.LMQ_PREFIX  # there may be millions of them, one for each device
        elif topic == N.SCHEDULE_TOPIC and self._by_queue and queue_id >= 0:
            self.counters.add("QUEUE_PUT", f"{topic}@{queue_id}", count, size, count)
        self.by_topic[topic].add(count, size, count)
        self.all_arrived.add(count, size)
        if not self._is_system_topic(topic):
            self.user_arrived.add(count, size)

    def arrivals(self, topic: str) -> int:
        """Return how many messages of a topic have become readable since the start.

        Messages are counted after they became readable and before waiting pulls are notified.
        """
        flow = self.by_topic.get(N.LMQ_PREFIX if topic.startswith(N.LMQ_PREFIX) else topic)
        return 0 if flow is None else flow.messages

    def hand_out(
        self, topic: str, group: str, count: int, size: int, queue_id: int = -1, took_ns: int = 0,
    ) -> None:
        """Count messages handed to a consumer, and if ``queue_id`` is given how long that took."""
        reader = self._readers.get((topic, group)) or self._reader(topic, group)
        if queue_id >= 0 and not reader.is_lmq:
            self.get_time_max_ns = max(self.get_time_max_ns, took_ns)
            place = reader.places.get(queue_id)
            if place is None:
                place = f"{queue_id}@{topic}@{group}" if self._by_queue else f"{topic}@{group}"
                reader.places[queue_id] = place
            self.counters.add("GROUP_GET_LATENCY", place, took_ns // 1_000_000)
        self.went_out[reader.counted].add(count, size)
        self.all_out.add(count, size)
        if not reader.is_system:
            self.user_out.add(count, size)

    def _reader(self, topic: str, group: str) -> _Reader:
        """Return the names under which a group that reads a topic is counted."""
        counted = tuple(N.LMQ_PREFIX if name.startswith(N.LMQ_PREFIX) else name for name in (topic, group))
        made = _Reader((counted[0], counted[1]), self._is_system_topic(counted[0]))
        if not made.is_lmq:  # of these there may be millions
            if len(self._readers) >= _READERS_MAX:
                self._readers.clear()
            self._readers[topic, group] = made
        return made

    def revive_log_put(self, kind: str, topic: str, group: str, count: int = 1) -> None:
        """Count records that POP wrote for a group: ``kind`` is CK for checkpoints, ACK for acknowledgements."""
        self.counters.add(f"GROUP_{kind}", f"{topic}@{group}", count)
        self.counters.add(f"BROKER_{kind}", self._cluster, count)

    def put_took(self, topic: str, queue_id: int, took_ns: int, times: int = 1) -> None:
        """Count the time that a send took up to its answer, or each of several to a queue."""
        self.put_latency.add(took_ns / 1_000_000, times)
        if not topic.startswith(N.LMQ_PREFIX):
            self.counters.add("TOPIC_PUT_LATENCY", f"{queue_id}@{topic}", took_ns // 1_000_000 * times, 0, times)

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        self.went_back[topic, group].add(1, 0)

    def forget_deleted(self, topics: set[str], groups: set[str]) -> None:
        """Drop the counts of topics and groups that were deleted."""
        for topic in topics:
            self.by_topic.pop(topic, None)
        for group in groups:
            self.dead_letters.pop(group, None)
        self.counters.forget_deleted(topics, groups)
        for incoming in list(self.came_in):
            if incoming[0] in topics:
                self.came_in.pop(incoming, None)
        for table in (self.went_out, self.went_back):
            for key in list(table):
                if key[0] in topics or key[1] in groups:
                    table.pop(key, None)  # two requests may delete at the same time


@final
class CountedArrivals:
    """A listener that counts messages that became readable, then calls the listeners in ``then``."""

    def __init__(self, traffic: Traffic, *then: MessageArrivingListener) -> None:
        self._traffic = traffic
        self._then = then

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Count, then call the other listeners; called by the dispatch thread."""
        self._traffic.arrived(topic, len(tags_codes), size, queue_id)
        for listener in self._then:
            try:
                listener.arriving(topic, queue_id, next_offset, tags_codes, size)
            except Exception:  # noqa: BLE001 - the other listeners are called, and the dispatch continues
                failed("arrivals")
