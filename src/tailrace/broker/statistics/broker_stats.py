"""Rates and counts of the last minute, hour and day, under RocketMQ's names (BrokerStatsManager).

The counters are those of `Traffic`. A service samples them every 10 s, every 10 minutes and every
hour, as RocketMQ does; a figure is the newest sample minus the oldest. So a minute is exact to
10 s, and a day to an hour. Counts since the last sample are not in any figure yet.

| statistic | key | what it counts |
|---|---|---|
| TOPIC_PUT_NUMS, TOPIC_PUT_SIZE | topic | messages and bytes that became readable |
| GROUP_GET_NUMS, GROUP_GET_SIZE | topic@group | messages and bytes handed to consumers |
| SNDBCK_PUT_NUMS | topic@group | messages that consumers sent back |
| QUEUE_PUT_NUMS, QUEUE_PUT_SIZE | SCHEDULE_TOPIC_XXXX@queue | messages of a delay level, with enableDetailStat |
| GROUP_GET_LATENCY | queue@topic@group, without enableDetailStat topic@group | ms of pulls that found messages |
| TOPIC_PUT_LATENCY | queue@topic | ms of sends up to their answer |
| GROUP_ACK_NUMS, GROUP_CK_NUMS | topic@group | acknowledged and checkpoint messages of POP |
| SNDBCK2DLQ_TIMES | owner@topic@group@SEND_BACK_TO_DLQ | dead letters of send-backs |
| CONSUMER_REGISTER_TIME, PRODUCER_REGISTER_TIME | cluster | ms of registrations by heartbeat |
| CHANNEL_ACTIVITY | CONNECT, CLOSE, IDLE, EXCEPTION | connections |
| BROKER_PUT_NUMS, BROKER_GET_NUMS | cluster | messages in and out of all topics |
| BROKER_ACK_NUMS, BROKER_CK_NUMS | cluster | as GROUP_ACK_NUMS and GROUP_CK_NUMS, of all topics |
| BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC | cluster | without system topics |

An entry exists once something was counted; an idle one of `Counters` is dropped after a day.
RocketMQ counts a batch once for the mean (``avgpt``) of TOPIC_PUT_NUMS and TOPIC_PUT_SIZE. Here
each message counts once, because messages are counted when they become readable. Statistics that
RocketMQ declares and never counts (COMMERCIAL_*, *_FROM_DISK_*, DLQ_PUT_NUMS) do not exist here, nor do
QUEUE_GET_NUMS and QUEUE_GET_SIZE, which it counts for delay levels only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final, NamedTuple, final

from tailrace.broker.statistics.traffic import Flow, Traffic
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import ViewBrokerStatsDataRequestHeader
from tailrace.requests.processor import RequestProcessor, answers

__all__ = ["BrokerStatsManager", "DayTotals", "StatsData", "StatsSnapshot"]

SAMPLE_MS: Final = 10_000
_PERIODS_NS: Final = (SAMPLE_MS * 1_000_000, 600_000_000_000, 3_600_000_000_000)
"""Time between two samples for the minute, for the hour and for the day."""
_SAMPLES: Final = (7, 7, 25)
"""Number of samples kept for the minute, the hour and the day. N samples span N - 1 periods."""


_SIZES: Final = ("TOPIC_PUT", "GROUP_GET", "QUEUE_PUT")
_COUNTED: Final = (
    "GROUP_GET_LATENCY", "TOPIC_PUT_LATENCY", "SNDBCK2DLQ_TIMES", "CONSUMER_REGISTER_TIME",
    "PRODUCER_REGISTER_TIME", "CHANNEL_ACTIVITY",
)
"""Statistics that are counted under their full name."""
_WITHOUT: Final = ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC")
_KINDS: Final[Mapping[str, str]] = {
    **{f"{kind}_NUMS": kind for kind in (
        *_SIZES, "SNDBCK_PUT", "GROUP_ACK", "GROUP_CK", "BROKER_PUT", "BROKER_GET", "BROKER_ACK", "BROKER_CK")},
    **{f"{kind}_SIZE": kind for kind in _SIZES}, **{name: name for name in (*_COUNTED, *_WITHOUT)},
}
"""Kind of counter for each statistic; ``NUMS`` and ``SIZE`` of one kind share a counter."""


class StatsSnapshot(NamedTuple):
    """Sum over a period, its rate a second (``tps``), and its mean for each time that was counted (``avgpt``)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class StatsData(NamedTuple):
    """The figures of one statistic."""

    minute: StatsSnapshot
    hour: StatsSnapshot
    day: StatsSnapshot


class DayTotals(NamedTuple):
    """Totals of messages (in, out) since the start, without system topics, at three points of time."""

    yesterday_morning: tuple[int, int]
    today_morning: tuple[int, int]
    now: tuple[int, int]


class _Call(NamedTuple):
    ns: int
    times: int
    messages: int
    size: int


@final
class _StatsItem:
    """Samples of one flow."""

    __slots__ = ("flow", "samples")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.samples: tuple[deque[_Call], ...] = tuple(deque(maxlen=most) for most in _SAMPLES)

    def sample(self, place: int, now_ns: int) -> None:
        """Take a sample for the minute (0), the hour (1) or the day (2)."""
        flow, samples = self.flow, self.samples[place]
        if not samples:  # everything counted before the first sample belongs to the period before it
            samples.append(_Call(now_ns - _PERIODS_NS[place], 0, 0, 0))
        samples.append(_Call(now_ns, flow.times, flow.messages, flow.throughput))

    @property
    def idle(self) -> bool:
        """True if nothing was counted for a day."""
        day = self.samples[-1]
        return len(day) == day.maxlen and day[0].times == self.flow.times

    def data(self, *, size: bool, mean: bool) -> StatsData:
        """Return the figures of messages, or of their bytes with ``size``."""
        return StatsData(*(_snapshot(samples, size=size, mean=mean) for samples in self.samples))


def _snapshot(samples: deque[_Call], *, size: bool, mean: bool) -> StatsSnapshot:
    known = list(samples)  # one step: the service may append in the meantime
    if not known or known[-1].ns <= known[0].ns:
        return StatsSnapshot()
    first, last = known[0], known[-1]
    count = last.size - first.size if size else last.messages - first.messages
    times = last.times - first.times
    return StatsSnapshot(
        count, count * 1e9 / (last.ns - first.ns), count / times if mean and times else 0.0)


@final
class BrokerStatsManager(RequestProcessor):
    """Samples ``traffic``. One thread calls `step` every `SAMPLE_MS`; any thread calls the other methods."""

    def __init__(self, clock: Clock, traffic: Traffic, cluster: str) -> None:
        self._clock = clock
        self._traffic = traffic
        self._tables: Mapping[str, Mapping[Any, Flow]] = {
            "TOPIC_PUT": traffic.by_topic, "GROUP_GET": traffic.went_out, "SNDBCK_PUT": traffic.went_back,
            "BROKER_PUT": {cluster: traffic.all_arrived}, "BROKER_GET": {cluster: traffic.all_out},
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: traffic.user_arrived},
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: traffic.user_out},
        }
        """Flows that ``/metrics`` shows as well, by kind and by the parts of the key; the others are `Counters`."""
        self._items: dict[tuple[str, str], _StatsItem] = {}
        self._sampled_ns: list[int | None] = [None] * len(_PERIODS_NS)
        self._today: date | None = None
        self._mornings = (0, 0), (0, 0)

    def step(self) -> None:
        """Take the samples that are due, and at the first step after midnight the totals of the day."""
        self._turn_day()
        now = self._clock.monotonic_ns()
        items: dict[tuple[str, str], _StatsItem] = {}
        for key, flow in self._flows():
            item = self._items.get(key)
            # Another flow under the same key: the topic was deleted and created again.
            items[key] = item if item is not None and item.flow is flow else _StatsItem(flow)
        self._items = items
        for place, period in enumerate(_PERIODS_NS):
            last = self._sampled_ns[place]
            if last is None or now - last >= period - _PERIODS_NS[0] // 2:
                self._sampled_ns[place] = now
                for item in items.values():
                    item.sample(place, now)
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Drop counters that nothing was added to for a day."""
        counters = self._traffic.counters
        for key, flow in list(counters.flows.items()):
            item = self._items.get(key)
            if item is not None and item.flow is flow and item.idle:
                counters.forget(key)

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def answer(self, header: ViewBrokerStatsDataRequestHeader) -> dict[str, Any]:
        """Return sum, rate and mean of a statistic in the last minute, hour and day: request 315."""
        found = self.view(header.stats_name, header.stats_key)
        if found is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return {
            "statsDay": found.day._asdict(), "statsHour": found.hour._asdict(), "statsMinute": found.minute._asdict()}

    def view(self, name: str, key: str) -> StatsData | None:
        """Return a statistic by name and key; None if nothing was counted for it."""
        kind = _KINDS.get(name)
        if kind is None:
            return None
        table = self._tables.get(kind)
        if table is None:
            flow = self._traffic.counters.flows.get((kind, key))
        else:
            flow = table.get(key) or table.get(key.partition("@")[::2])
        if flow is None:
            return None
        item = self._items.get((kind, key))
        if item is None or item.flow is not flow:
            item = _StatsItem(flow)  # not sampled yet
        # RocketMQ counts no times for the totals of the broker, so their mean is 0.
        return item.data(size=name.endswith("_SIZE"), mean=not kind.startswith("BROKER_"))

    def topic_put_tps(self, topic: str) -> float:
        """Return how many messages a second became readable on a topic in the last minute."""
        found = self.view("TOPIC_PUT_NUMS", topic)
        return 0.0 if found is None else found.minute.tps

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return how many messages a second of a topic a group received in the last minute."""
        found = self.view("GROUP_GET_NUMS", f"{topic}@{group}")
        return 0.0 if found is None else found.minute.tps

    def day_totals(self) -> DayTotals:
        """Return the totals; the difference of two of them is the number of messages in between."""
        return DayTotals(*self._mornings, self._totals())

    def _totals(self) -> tuple[int, int]:
        return self._traffic.user_arrived.messages, self._traffic.user_out.messages

    def _turn_day(self) -> None:
        today = datetime.fromtimestamp(self._clock.now_ms() / 1000).date()  # noqa: DTZ006 - local days
        if self._today is not None and today > self._today:
            self._mornings = self._mornings[1], self._totals()
        if self._today is None or today > self._today:
            self._today = today

    def _flows(self) -> Iterator[tuple[tuple[str, str], Flow]]:
        yield from list(self._traffic.counters.flows.items())
        for kind, table in self._tables.items():
            for key, flow in list(table.items()):
                yield (kind, key if isinstance(key, str) else "@".join(key)), flow
