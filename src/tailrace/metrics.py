"""Every metric that ``/metrics`` shows, as data.

Names, labels, units and buckets are those of RocketMQ 5 (BrokerMetricsConstant,
DefaultStoreMetricsConstant), so its dashboards work; ``exposed`` is what its Prometheus exporter
makes of a name and a unit. Names that begin with ``tailrace_`` have no counterpart there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["BASE_LABELS", "METRICS", "Metric", "MetricKind"]

BASE_LABELS: Final = ("cluster", "node_type", "node_id")
"""On every sample: name of the cluster, ``broker``, name of the broker."""
_STORAGE: Final = ("storage_type", "storage_medium")
_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system")
_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")


class MetricKind(enum.Enum):
    """How a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``labels`` come behind `BASE_LABELS`; ``buckets`` are upper bounds."""

    name: str
    kind: MetricKind
    description: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name in the text that Prometheus reads."""
        if not self.unit or self.unit in self.name:
            return self.name
        return f"{self.name}_{self.unit}"


def _counter(name: str, description: str, labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, description=description, labels=labels)


def _gauge(
    name: str, description: str, labels: tuple[str, ...] = (), *, unit: str = ""
) -> Metric:
    return Metric(
        name=name, kind=MetricKind.GAUGE, description=description, labels=labels, unit=unit)


MESSAGES_IN: Final = _counter(
    "rocketmq_messages_in_total", "Messages stored for producers.", _IN)
MESSAGES_OUT: Final = _counter(
    "rocketmq_messages_out_total", "Messages handed to consumers.", _OUT)
THROUGHPUT_IN: Final = _counter(
    "rocketmq_throughput_in_total", "Bytes that the log took for producers.", _IN)
THROUGHPUT_OUT: Final = _counter(
    "rocketmq_throughput_out_total", "Bytes of stored messages handed to consumers.", _OUT)
MESSAGE_SIZE: Final = Metric(
    name="rocketmq_message_size", kind=MetricKind.HISTOGRAM, labels=_IN,
    description="Bytes that a message takes of the log; a batch counts with its mean.",
    buckets=(1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20),
)
SEND_TO_DLQ: Final = _counter(
    "rocketmq_send_to_dlq_messages_total", "Messages that became dead letters of a group.",
    ("consumer_group",))
PROCESSOR_WATERMARK: Final = _gauge(
    "rocketmq_processor_watermark",
    "Requests under way: sends that wait for the disk, pulls that wait for a message.",
    ("processor",))
COLD_PULLS_WAITING: Final = _gauge(
    "tailrace_cold_pulls_waiting", "Pulls that wait for messages that are not in the page cache.")
COLD_READS: Final = _counter(
    "tailrace_cold_reads_total", "Pulls whose messages were read from the disk, in a thread.", ())
COLD_READ_BYTES: Final = _counter(
    "tailrace_cold_read_bytes_total", "Bytes of messages that such pulls returned.", ())
BROKER_PERMISSION: Final = _gauge(
    "rocketmq_broker_permission", "6 when messages can be read and written, 4 when only read.")
TOPIC_NUMBER: Final = _gauge("rocketmq_topic_number", "Topics.")
GROUP_NUMBER: Final = _gauge("rocketmq_consumer_group_number", "Subscription groups.")
PRODUCER_CONNECTIONS: Final = _gauge(
    "rocketmq_producer_connections", "Connected producers.",
    ("language", "version", "protocol_type"))
CONSUMER_CONNECTIONS: Final = _gauge(
    "rocketmq_consumer_connections", "Connected consumers.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"))
LAG_MESSAGES: Final = _gauge(
    "rocketmq_consumer_lag_messages", "Messages that a group has not acknowledged.", _LAG)
LAG_LATENCY: Final = _gauge(
    "rocketmq_consumer_lag_latency", "Age of the oldest of them; 0 when there is none.", _LAG,
    unit="milliseconds")
INFLIGHT_MESSAGES: Final = _gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages handed out and not acknowledged; of popped ones those popped since the start.", _LAG)
QUEUEING_LATENCY: Final = _gauge(
    "rocketmq_consumer_queueing_latency", "Age of the oldest message not handed out.", _LAG,
    unit="milliseconds")
READY_MESSAGES: Final = _gauge(
    "rocketmq_consumer_ready_messages", "Messages that are not handed out yet.", _LAG)
STORAGE_SIZE: Final = _gauge(
    "rocketmq_storage_size", "Bytes in use on the file system of the store.", _STORAGE, unit="bytes")
FLUSH_BEHIND: Final = _gauge(
    "rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not synced yet.", _STORAGE,
    unit="bytes")
DISPATCH_BEHIND: Final = _gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that cannot be read by queue yet.",
    _STORAGE, unit="bytes")
RESERVE_TIME: Final = _gauge(
    "rocketmq_storage_message_reserve_time", "Age of the oldest message of the log.", _STORAGE,
    unit="milliseconds")
TIMER_ENQUEUE_LAG: Final = _gauge(
    "rocketmq_timer_enqueue_lag", "Timer messages that are not in the wheel yet.", _STORAGE)
TIMER_DEQUEUE_LAG: Final = _gauge(
    "rocketmq_timer_dequeue_lag", "Timers that are out of the wheel and not put back yet.", _STORAGE)
TIMER_DEQUEUE_LATENCY: Final = _gauge(
    "rocketmq_timer_dequeue_latency", "How far the reading of the wheel is behind the clock.",
    _STORAGE, unit="milliseconds")
TIMING_MESSAGES: Final = _gauge("rocketmq_timing_messages", "Pending timers.", ("topic",))
TIMER_SNAPSHOT: Final = _gauge(
    "rocketmq_timer_message_snapshot",
    "Pending timers by the time until they are due: up to the bound, above the one before.",
    (*_STORAGE, "timer_bound_s"))
TIMER_LATENESS: Final = Metric(
    name="tailrace_timer_lateness", kind=MetricKind.HISTOGRAM, labels=("kind",), unit="milliseconds",
    description="Put time minus due time of timers (`timer`) and of delay levels (`level`).",
    buckets=(1, 2, 5, 10, 20, 50, 100, 150, 250, 500, 1000, 2000, 5000, 60_000),
)
LEVEL_PENDING: Final = _gauge(
    "tailrace_delay_level_pending", "Messages that wait in a delay level.", ("level",))
TIMER_EVENTS: Final = _counter(
    "tailrace_timer_events_total",
    "What became of timers and of messages with a delay level, by event.", ("event",))
NAME_SERVER_REGISTERED: Final = _gauge(
    "tailrace_name_server_registered",
    "1 for a name server of namesrvAddr that took the last registration of this broker, else 0.", ("address",))
HALF_MESSAGES: Final = _gauge(
    "rocketmq_half_messages",
    "Half messages that are not settled; after a kill the number of a topic may be wrong.", ("topic",))
HALF_PENDING: Final = _gauge(
    "tailrace_half_messages_pending", "Half messages that are not settled, counted from their queue.")
COMMIT_MESSAGES: Final = _counter(
    "rocketmq_commit_messages_total", "Half messages that were committed.", ("topic",))
ROLLBACK_MESSAGES: Final = _counter(
    "rocketmq_rollback_messages_total", "Half messages that were rolled back.", ("topic",))
FINISH_LATENCY: Final = Metric(
    name="rocketmq_finish_message_latency", kind=MetricKind.HISTOGRAM, labels=("topic",),
    unit="milliseconds",
    description="Time from send to commit, in seconds as RocketMQ counts it whatever the name says.",
    buckets=(5, 60, 600, 3600, 43_200, 86_400),
)
TRANSACTION_EVENTS: Final = _counter(
    "tailrace_transaction_events_total",
    "Checks that a producer was sent (`asked`), half messages given up (`given_up`), and requests and "
    "checks that found their message committed already (`duplicate`).", ("event",))
POP_REVIVE_IN: Final = _counter(
    "rocketmq_pop_revive_in_message_total",
    "Records that POP wrote for its revive topic: checkpoints (`CK`) and acknowledgements (`ACK`).",
    ("consumer_group", "topic", "revive_message_type", "put_status"))
POP_REVIVE_OUT: Final = _counter(
    "rocketmq_pop_revive_out_message_total", "Records that were read from the revive topic.",
    ("consumer_group", "topic", "queue_id", "revive_message_type"))
POP_REVIVE_RETRY: Final = _counter(
    "rocketmq_pop_revive_retry_messages_total",
    "Popped messages that were not acknowledged in time and were put into a retry topic.",
    ("consumer_group", "topic", "put_status"))
POP_REVIVE_LAG: Final = _gauge(
    "rocketmq_pop_revive_lag",
    "Records of a queue of the revive topic that are not done with; a number, whatever the name says.",
    ("queue_id",), unit="milliseconds")
POP_REVIVE_LATENCY: Final = _gauge(
    "rocketmq_pop_revive_latency", "Age of the oldest of them; 0 when there is none.", ("queue_id",),
    unit="milliseconds")
POP_CHECKPOINTS: Final = _gauge(
    "rocketmq_pop_checkpoint_buffer_size",
    "Checkpoints in memory that are due soon or wait for their acknowledgements to be read.")
POP_STOPPED: Final = _gauge(
    "tailrace_pop_stopped_queues",
    "Queues that a group does not pop because too many of their messages are in flight.")
READY: Final = _gauge("tailrace_ready", "1 once clients are served, 0 while the store recovers.")
RECOVERED_RATIO: Final = _gauge(
    "tailrace_recovered_ratio", "Part of the recovery that is done, where the store can tell.")
WRITEABLE: Final = _gauge(
    "tailrace_store_writeable", "0 when the store takes no writes; /ready and the log say why.")
HINT_SYNC_FAILURES: Final = _counter(
    "tailrace_hint_sync_failures_total",
    "Failed syncs of files that an open can do without; the log names them.", ())
READ_ONLY: Final = _gauge(
    "tailrace_store_read_only",
    "1 when nothing could be written as the store was opened; it stays so until it is opened again.")
OPEN_FILES: Final = _gauge(
    "tailrace_open_segment_files", "Descriptors and mappings of segment files that are open.")
OPEN_FILES_MAX: Final = _gauge(
    "tailrace_open_segment_files_max", "Number above which idle segment files are closed (maxOpenFiles).")
LOCK_MADE_AGAIN: Final = _counter(
    "tailrace_store_lock_made_again_total",
    "How often somebody deleted the lock file of the running server.", ())
CONNECTIONS: Final = _gauge(
    "tailrace_connections", "Open connections of all ports, also of clients that have not registered.")
CONNECTIONS_MAX: Final = _gauge(
    "tailrace_connections_max", "Most connections at a time (serverSocketMaxConnections); 0: no limit.")
CONNECTIONS_CLOSED: Final = _counter(
    "tailrace_connections_closed_total",
    "Connections that were closed because a limit was reached, by reason.", ("reason",))
CONNECTION_BYTES: Final = _gauge(
    "tailrace_connection_bytes",
    "Memory of incomplete and waiting requests and of answers that clients have not read.", unit="bytes")
RETENTION_DELETED: Final = _counter(
    "tailrace_retention_deleted_files_total", "CommitLog files that retention deleted.", ("forced",))
RETENTION_LOST: Final = _counter(
    "tailrace_retention_forced_messages_total", "Messages deleted before their time.", ())
RETENTION_FRUITLESS: Final = _counter(
    "tailrace_retention_fruitless_passes_total",
    "Passes that should have freed space and freed none; the log says why.", ())
RETENTION_TRASH: Final = _gauge(
    "tailrace_retention_trash_bytes", "Bytes of deleted files that are not given back yet.")
LOOP_LAG: Final = Metric(
    name="tailrace_event_loop_lag", kind=MetricKind.HISTOGRAM, unit="seconds",
    description="How late a timer of the event loop ran, 50 times a second: so long no client was "
    "served.", buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5))

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
