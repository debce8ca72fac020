"""The text of ``/metrics``: the state of a broker as samples of the metrics in tailrace.metrics.

A client that accepts ``application/openmetrics-text`` receives OpenMetrics 1.0.0. Every other client
receives the classic text format 0.0.4 of Prometheus.

All values are read when the text is made. Make the text in another thread than that of the event loop,
because the age of a lagging queue needs a read of its oldest message. Each table is copied in one step, so
that this is safe. The thread works in short steps, and for one metric after the other, so that the event loop waits
for a step only, and the samples of one metric are in memory at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final, Protocol, final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from tailrace import metrics
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.consumers.lags import ConsumerLags, Lag, QueueLag
from tailrace.broker.core.audit import AuditLog
from tailrace.broker.core.name_servers import NameServers
from tailrace.broker.pop.revive import PopReviveService
from tailrace.broker.statistics.latencies import LONG_POLLING, LoopLag, RpcLatency
from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.broker.statistics.traffic import Traffic
from tailrace.broker.transactions.service import TransactionService
from tailrace.env import supervision
from tailrace.env.clock import Clock
from tailrace.env.pauses import in_steps, no_pause
from tailrace.env.thread_times import processor_seconds
from tailrace.formats.names import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
)
from tailrace.formats.remoting import LANGUAGES
from tailrace.ha.faults import Faults
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.metrics import BASE_LABELS, Metric, MetricKind
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting.acceptor import Acceptor
from tailrace.requests.executors import BoundedExecutor, Executors
from tailrace.requests.worker import RequestWorker

__all__ = ["Exposition", "MeasuredBroker", "format_of"]

Labels = tuple[str, ...]
Samples = Mapping[Labels, float]
CLASSIC: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_EOF: Final = b"# EOF\n"
STEP: Final = 128
"""Samples that are made or written in a step, which takes 1 to 2 ms. On a busy machine a pause takes as long."""
_LOCAL_DISK: Final = ("local", "disk")
_TIMER_EVENTS: Final = (
    "timerPutBack", "timerRolled", "timerRecalled", "timerDouble", "timerParked", "timerPutFailed",
    "timerUnreadable", "timerReadFailed", "timerBrokenList", "timerAppendFailed", "schedulePutBack",
    "scheduleHandedOver", "scheduleDouble", "scheduleParked", "schedulePutFailed", "scheduleUnreadable",
    "scheduleReadFailed",
)
_FAMILIES: Final = {
    MetricKind.COUNTER: CounterMetricFamily, MetricKind.GAUGE: GaugeMetricFamily,
}


def format_of(accept: str) -> str:
    """Return the content type of the format that an ``Accept`` header asks for."""
    wanted = any(part.partition(";")[0].strip().lower() == "application/openmetrics-text"
                 for part in accept.split(","))
    return OPENMETRICS if wanted else CLASSIC


class _Stepwise(list[Any]):
    """Samples, with a pause after each step."""

    def __init__(self, samples: Iterable[Any], pause: Callable[[], None]) -> None:
        super().__init__(samples)
        self._pause = pause

    def __iter__(self) -> Iterator[Any]:
        return in_steps(super().__iter__(), STEP, self._pause)


class _One:
    """A registry with one metric."""

    def __init__(self, family: Family, pause: Callable[[], None]) -> None:
        family.samples = _Stepwise(family.samples, pause)
        self._family = family

    def collect(self) -> list[Family]:
        return [self._family]


@dataclass(slots=True, kw_only=True)
class _Lag(Lag):
    """Lag of a group on one topic; the times are store times in ms, 0 if no message waits."""

    store: MessageStore
    oldest_ms: int = 0
    oldest_ready_ms: int = 0

    def count(self, queue: QueueLag) -> None:
        """Add a queue."""
        Lag.count(self, queue)
        self.oldest_ms = self._older(self.oldest_ms, queue, queue.first)
        self.oldest_ready_ms = self._older(self.oldest_ready_ms, queue, queue.handed_out)

    def _older(self, known_ms: int, queue: QueueLag, offset: int) -> int:
        """Return the earlier of ``known_ms`` (0: none) and the store time of the message at ``offset``."""
        if offset >= queue.until:
            return known_ms
        stored_ms = self.store.queue_of(queue.topic, queue.queue_id).store_timestamp(offset)
        return min(known_ms or stored_ms, stored_ms) if stored_ms > 0 else known_ms


class MeasuredBroker(Protocol):
    """The parts of a broker with figures: those that `Exposition` names, and those in `Metric.source`."""

    clock: Clock
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    clients: ConnectedClients
    lags: ConsumerLags
    traffic: Traffic
    transactions: TransactionService
    pop_metrics: PopMetrics
    revive: PopReviveService
    rpc_latency: RpcLatency
    loop_lag: LoopLag
    executors: Executors
    cold_reads: RequestWorker
    name_servers: NameServers
    replicas: Replicas
    slave: Slave | None
    audit_log: AuditLog | None
    denied: Callable[[], Mapping[str, int]]

    @property
    def replication_faults(self) -> Faults:
        """What is wrong with replication."""
        ...

    def waiting_sends(self) -> int:
        """Return the number of sends that wait for the disk."""
        ...

    def waiting_pulls(self) -> int:
        """Return the number of pulls and pops that wait for a message."""
        ...


@final
class Exposition(Collector):
    """Collects the samples. ``broker`` is None until clients are served."""

    def __init__(self, cluster: str, broker_name: str, pause: Callable[[], None] = no_pause) -> None:
        """``pause`` is called after each step of `text`."""
        self._pause = pause
        self.broker: MeasuredBroker | None = None
        self.progress: float | None = None
        self.acceptor: Acceptor | None = None
        self.executors: Iterable[BoundedExecutor] = ()
        """The pools of the HTTP port."""
        self._base = cluster, "broker", broker_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, content_type: str = CLASSIC) -> bytes:
        """Return the samples in a format of `format_of`."""
        made = bytearray()
        for family in self._registry.collect():
            one: Any = _One(family, self._pause)
            if content_type == OPENMETRICS:
                made += generate_openmetrics(one).removesuffix(_EOF)
            else:
                made += generate_latest(one)
        return bytes(made + _EOF if content_type == OPENMETRICS else made)

    def collect(self) -> Iterator[Family]:
        """Yield the current samples."""
        broker = self.broker
        yield self._family(metrics.READY, {(): broker is not None})
        if broker is None and self.progress is not None:
            yield self._family(metrics.RECOVERED_RATIO, {(): self.progress})
        yield from self._threads([*self.executors, *(() if broker is None else broker.executors)])
        stats = None if broker is None else broker.store.stats()
        roots = {"broker": broker, "acceptor": self.acceptor}
        for metric in metrics.METRICS:
            root, *path = metric.source.split(".")
            if path and roots[root] is not None:
                yield self._sourced(metric, _at(roots[root], path))
            elif root and not path and stats is not None:
                yield self._sourced(metric, stats.get(root))
        if broker is not None and stats is not None:
            yield from self._store(broker, stats)
            yield from self._timers(stats)
            yield from self._pop(broker)
            yield from self._traffic(broker)
            yield from self._clients(broker)
            yield from self._lags(broker)
            yield from self._grpc(broker.rpc_latency)

    def _family(self, metric: Metric, samples: Samples) -> Family:
        family = _FAMILIES[metric.kind](
            metric.exposed, metric.description, labels=(*BASE_LABELS, *metric.labels),
            unit=metric.unit)
        for labels, value in in_steps(samples.items(), STEP, self._pause):
            family.add_metric([*self._base, *labels], float(value))
        return family

    def _sourced(self, metric: Metric, value: Any) -> Family:
        """Return a metric with the value of its source, or its values by the labels of `Metric.labels`.

        None counts as 0 or as no values. For a metric without labels, entries are counted.
        """
        if metric.kind is MetricKind.HISTOGRAM:
            table = dict(value) if metric.labels else {(): value}
            return self._histogram(metric, {_labels(key): (list(one.counts), one.sum) for key, one in table.items()})
        known = _LOCAL_DISK if metric.labels[:2] == metrics.STORAGE else ()
        if metric.labels[len(known):]:
            return self._family(metric, {(*known, *_labels(key)): n for key, n in list((value or {}).items())})
        return self._family(metric, {known: len(value) if isinstance(value, Sized) else value or 0})

    def _histogram(self, metric: Metric, samples: Mapping[Labels, tuple[Iterable[float], float]]) -> Family:
        """``samples`` has the numbers of values by bucket, and the sum of the values."""
        family = HistogramMetricFamily(
            metric.exposed, metric.description, labels=(*BASE_LABELS, *metric.labels), unit=metric.unit)
        bounds = [*(f"{float(bound)}" for bound in metric.buckets), "+Inf"]
        for labels, (counts, total) in in_steps(samples.items(), STEP // len(bounds), self._pause):
            family.add_metric(
                [*self._base, *labels], list(zip(bounds, map(float, accumulate(counts)), strict=True)), sum_value=total)
        return family

    def _threads(self, executors: list[BoundedExecutor]) -> Iterator[Family]:
        yield self._family(metrics.EXECUTOR_RUNNING, {(one.name,): one.running for one in executors})
        yield self._family(metrics.EXECUTOR_WAITING, {(one.name,): one.waiting for one in executors})
        yield self._family(metrics.EXECUTOR_REFUSED, {(one.name,): one.refused for one in executors})

    def _store(self, broker: MeasuredBroker, stats: Mapping[str, Any]) -> Iterator[Family]:
        store = broker.store
        usage = store.retention.disk.measure()[-1]
        earliest = store.earliest_message_time()
        writeable = store.is_writeable
        yield self._family(metrics.WRITEABLE, {(): writeable and not store.refused_puts.failing})
        yield self._family(metrics.LOOP_FAILURES, {(name,): n for name, n in list(supervision.FAILURES.items())})
        yield self._family(metrics.THREAD_SECONDS, {(name,): took for name, took in processor_seconds().items()})
        yield self._family(metrics.READ_ONLY, {(): bool(store.read_only)})
        yield self._family(metrics.BROKER_PERMISSION, {(): 6 if writeable else 4})
        yield self._family(metrics.STORAGE_SIZE, {_LOCAL_DISK: usage.used})
        syncs = stats.get("logSyncMs")
        yield self._histogram(metrics.LOG_SYNC, {} if syncs is None else {(): (syncs["counts"], syncs["sum"])})
        forced = stats.get("forcedDeletedFiles", 0)
        yield self._family(metrics.RETENTION_DELETED, {
            ("false",): stats.get("deletedFiles", 0) - forced, ("true",): forced})
        yield self._family(metrics.RETENTION_HUNG, {(): bool(stats.get("hangedFile"))})
        yield self._family(metrics.DISK_LIMIT, {
            (path, limit): percent for path, limits in stats.get("diskLimitsPercent", {}).items()
            for limit, percent in limits.items()})
        if earliest > 0:
            yield self._family(
                metrics.RESERVE_TIME, {_LOCAL_DISK: max(0, broker.clock.now_ms() - earliest)})

    def _timers(self, stats: Mapping[str, Any]) -> Iterator[Family]:
        yield self._family(metrics.TIMER_EVENTS, {
            (event,): stats[event] for event in _TIMER_EVENTS if event in stats})
        yield self._histogram(metrics.TIMER_LATENESS, {
            (kind,): (stats[name]["counts"], stats[name]["sumMs"])
            for kind, name in (("timer", "timerLateness"), ("level", "scheduleLateness")) if name in stats})

    def _traffic(self, broker: MeasuredBroker) -> Iterator[Family]:
        system = broker.topics.is_system_topic
        came_in = {
            (topic, kind, _flag(system(topic))): flow
            for (topic, kind), flow in list(broker.traffic.came_in.items())
        }
        went_out = {
            (topic, group, _flag(system(topic) or _system_group(group))): flow
            for (topic, group), flow in list(broker.traffic.went_out.items())
        }
        for metric, flows in (
            (metrics.MESSAGES_IN, came_in), (metrics.MESSAGES_OUT, went_out),
        ):
            yield self._family(metric, {k: f.messages for k, f in flows.items()})
        for metric, flows in (
            (metrics.THROUGHPUT_IN, came_in), (metrics.THROUGHPUT_OUT, went_out),
        ):
            yield self._family(metric, {k: f.throughput for k, f in flows.items()})
        yield self._histogram(
            metrics.MESSAGE_SIZE, {labels: (flow.sizes, flow.throughput) for labels, flow in came_in.items()})
        yield self._family(metrics.DEAD_LETTERS, {
            (topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX),): sum(
                max(broker.store.queue_of(topic, n).max - max(broker.store.queue_of(topic, n).min, 0), 0)
                for n in range(config.read_queue_nums))
            for topic, config in in_steps(list(broker.topics.table.items()), STEP, self._pause)
            if topic.startswith(DLQ_GROUP_TOPIC_PREFIX)})

    def _pop(self, broker: MeasuredBroker) -> Iterator[Family]:
        progress = broker.revive.progress()
        yield self._family(metrics.POP_REVIVE_LAG, {(str(q),): p.lag for q, p in progress.items()})
        yield self._family(metrics.POP_REVIVE_LATENCY, {(str(q),): p.latency_ms for q, p in progress.items()})

    def _clients(self, broker: MeasuredBroker) -> Iterator[Family]:
        producers: Counter[Labels] = Counter()
        for clients in broker.clients.producers.groups().values():
            producers.update((_language(c.language), str(c.version), "remoting") for c in clients)
        consumers: Counter[Labels] = Counter()
        for group in broker.clients.consumers.groups():
            mode = "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"
            consumers.update(
                (group.group, _language(c.language), str(c.version), mode, "remoting",
                 _flag(_system_group(group.group)))
                for c in list(group.members.values()))
        yield self._family(metrics.PRODUCER_CONNECTIONS, producers)
        yield self._family(metrics.CONSUMER_CONNECTIONS, consumers)
        yield self._family(metrics.PROCESSOR_WATERMARK, {
            ("send",): broker.waiting_sends(), ("pull",): broker.waiting_pulls()})

    def _grpc(self, rpc: RpcLatency) -> Iterator[Family]:
        up = GaugeMetricFamily(
            metrics.PROXY_UP.exposed, metrics.PROXY_UP.description, labels=(*BASE_LABELS, *metrics.PROXY_UP.labels))
        cluster, _, node = self._base
        up.add_metric([cluster, "proxy", node, "local"], float(rpc.is_served))
        yield up
        yield self._histogram(metrics.RPC_LATENCY, {
            ("grpc", name, code, _flag(name in LONG_POLLING), "success"): (list(took.counts), took.sum)
            for (name, code), took in list(rpc.calls.items())})

    def _lags(self, broker: MeasuredBroker) -> Iterator[Family]:
        now = broker.clock.now_ms()
        lags = {
            (group, topic, _flag(topic.startswith(RETRY_GROUP_TOPIC_PREFIX)),
             _flag(broker.topics.is_system_topic(topic) or _system_group(group))): lag
            for (group, topic), lag in broker.lags.sums(partial(_Lag, store=broker.store), self._pause).items()
        }
        yield self._family(metrics.LAG_MESSAGES, {k: v.behind for k, v in lags.items()})
        yield self._family(
            metrics.LAG_LATENCY, {k: _age(now, v.oldest_ms) for k, v in lags.items()})
        yield self._family(metrics.INFLIGHT_MESSAGES, {k: v.in_flight for k, v in lags.items()})
        yield self._family(
            metrics.QUEUEING_LATENCY, {k: _age(now, v.oldest_ready_ms) for k, v in lags.items()})
        yield self._family(metrics.READY_MESSAGES, {k: v.ready for k, v in lags.items()})


def _at(value: Any, path: Iterable[str]) -> Any:
    """Return what a path leads to, where a function stands for its result; None if a part of the path is None."""
    for name in path:
        if value is not None:
            value = getattr(value, name)
    return value() if callable(value) else value


def _labels(key: Any) -> Labels:
    """Return the key of a table as values of labels."""
    return key if isinstance(key, tuple) else (str(key),)


def _age(now_ms: int, stored_ms: int) -> int:
    return max(0, now_ms - stored_ms) if stored_ms else 0


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _language(code: int) -> str:
    return (LANGUAGES[code] if 0 <= code < len(LANGUAGES) else "OTHER").lower()


def _system_group(group: str) -> bool:
    return group.upper().startswith(SYSTEM_GROUP_PREFIX)
