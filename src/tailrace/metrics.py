"""Every metric that ``/metrics`` shows, as data.

Names, labels, units and buckets are those of RocketMQ 5 (BrokerMetricsConstant,
DefaultStoreMetricsConstant), so its dashboards work; ``exposed`` is what its Prometheus exporter
makes of a name and a unit. Names that begin with ``tailrace_`` have no counterpart there.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final, final

__all__ = ["BASE_LABELS", "METRICS", "STORAGE", "Histogram", "Metric", "MetricKind"]

BASE_LABELS: Final = ("cluster", "node_type", "node_id")
"""On every sample: name of the cluster, ``broker``, name of the broker."""
STORAGE: Final = ("storage_type", "storage_medium")
_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system")
_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")


class MetricKind(enum.Enum):
    """Kind of a metric, as in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``labels`` follow `BASE_LABELS`; ``buckets`` are upper bounds.

    ``source`` says where its value is, or its values by label: a statistic of the store, by its name in
    `MessageStore.stats`, or a path such as ``broker.traffic.put_latency``. `tailrace.observe.exposition` computes a
    metric without a source.
    """

    name: str
    kind: MetricKind
    description: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    source: str = ""

    @property
    def exposed(self) -> str:
        """The name in the text that Prometheus reads."""
        if not self.unit or self.unit in self.name:
            return self.name
        return f"{self.name}_{self.unit}"


@final
class Histogram:
    """Values of a metric, counted by its buckets; the last count is of values above all of them."""

    __slots__ = ("_buckets", "counts", "sum")

    def __init__(self, metric: Metric) -> None:
        self._buckets = metric.buckets
        self.counts = [0] * (len(metric.buckets) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, in the unit of the metric, ``times`` times."""
        self.counts[bisect_left(self._buckets, value)] += times
        self.sum += value * times

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and the sum."""
        return {"counts": list(self.counts), "sum": self.sum}


def _counter(name: str, description: str, labels: tuple[str, ...], *, source: str = "") -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, description=description, labels=labels, source=source)


def _gauge(
    name: str, description: str, labels: tuple[str, ...] = (), *, unit: str = "", source: str = ""
) -> Metric:
    return Metric(
        name=name, kind=MetricKind.GAUGE, description=description, labels=labels, unit=unit, source=source)


PROXY_UP: Final = _gauge(
    "rocketmq_proxy_up", "Whether clients of gRPC are served.", ("proxy_mode",))
RPC_LATENCY: Final = Metric(
    name="rocketmq_rpc_latency", kind=MetricKind.HISTOGRAM, unit="milliseconds",
    labels=("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    description="Time of a call of the gRPC endpoint, by its name and the status of its response.",
    buckets=(1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000),
)
GRPC_CLIENTS: Final = _gauge(
    "tailrace_grpc_clients", "Clients of gRPC that have sent their settings.",
    source="acceptor.limits.grpc.clients.total")
GRPC_CALLS: Final = _gauge(
    "tailrace_grpc_calls", "Calls of gRPC under way, streams included.", source="acceptor.limits.grpc.calls.total")
GRPC_REFUSED: Final = _counter(
    "tailrace_grpc_refused_total", "Calls of gRPC that were refused for a limit, by reason.", ("reason",),
    source="acceptor.limits.grpc.refused")
MESSAGES_IN: Final = _counter(
    "rocketmq_messages_in_total", "Messages stored for producers.", _IN)
MESSAGES_OUT: Final = _counter(
    "rocketmq_messages_out_total", "Messages sent to consumers.", _OUT)
THROUGHPUT_IN: Final = _counter(
    "rocketmq_throughput_in_total", "Bytes appended to the log for producers.", _IN)
THROUGHPUT_OUT: Final = _counter(
    "rocketmq_throughput_out_total", "Bytes of stored messages sent to consumers.", _OUT)
MESSAGE_SIZE: Final = Metric(
    name="rocketmq_message_size", kind=MetricKind.HISTOGRAM, labels=_IN,
    description="Bytes of a message in the log; a batch counts with its mean.",
    buckets=(1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20),
)
SENDS: Final = _counter(
    "tailrace_sends_total",
    "Requests to store messages, by path: lane for plain ones, ordinary for all others.",
    ("path",), source="broker.traffic.sends")
PULLS: Final = _counter(
    "tailrace_pulls_total", "Pulls, by path: lane for plain ones with messages.", ("path",),
    source="broker.traffic.pulls")
SEND_TO_DLQ: Final = _counter(
    "rocketmq_send_to_dlq_messages_total", "Messages that became dead letters of a group.",
    ("consumer_group",), source="broker.traffic.dead_letters")
DEAD_LETTERS: Final = _gauge(
    "tailrace_dead_letters", "Messages in the dead-letter topic of a group, handled or not.", ("consumer_group",))
PUT_LATENCY: Final = Metric(
    name="tailrace_put_latency", kind=MetricKind.HISTOGRAM, unit="milliseconds",
    description="Time of a send from its put until its answer; with SYNC_FLUSH this includes the sync.",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000), source="broker.traffic.put_latency")
PROCESSOR_WATERMARK: Final = _gauge(
    "rocketmq_processor_watermark",
    "Requests under way: sends that wait for the disk, pulls that wait for a message.",
    ("processor",))
REQUESTS_DENIED: Final = _counter(
    "tailrace_requests_denied_total",
    "Requests that access control refused. Reason missing: no user is named; user: it does not exist; disabled; "
    "signature, password: it is wrong; permission: none allows it; request: it does not say what it is for, or is over "
    "a limit; attempts: too many have failed from its address; binding: it is missing or wrong.",
    ("reason",), source="broker.denied")
AUDIT_LINES_WAITING: Final = _gauge(
    "tailrace_audit_lines_waiting", "Lines of --audit-log that are not written yet.", source="broker.audit_log.waiting")
AUDIT_LINES_LOST: Final = _counter(
    "tailrace_audit_lines_lost_total",
    "Lines of --audit-log that were dropped, because too many could not be written.", (),
    source="broker.audit_log.lost")
OVER_QUOTA: Final = _counter(
    "tailrace_requests_over_quota_total",
    "Requests that were refused because of a quota of their user, by quota: requests, bytes, connections.", ("quota",),
    source="acceptor.limits.over_quota")
COLD_PULLS_WAITING: Final = _gauge(
    "tailrace_cold_pulls_waiting",
    "Pulls, and look-ups of one message, that wait for messages that are not in the page cache.",
    source="broker.cold_reads.pending")
COLD_READS: Final = _counter(
    "tailrace_cold_reads_total",
    "Pulls, and look-ups of one message, whose messages were read from the disk, in a thread.", (),
    source="broker.cold_reads.count")
COLD_READ_BYTES: Final = _counter(
    "tailrace_cold_read_bytes_total", "Bytes of messages that such reads returned.", (),
    source="broker.cold_reads.bytes")
EXECUTOR_RUNNING: Final = _gauge(
    "tailrace_executor_running", "Pieces of work that run in a pool of threads.", ("executor",))
EXECUTOR_WAITING: Final = _gauge(
    "tailrace_executor_waiting", "Pieces of work that wait for a thread of a pool.", ("executor",))
EXECUTOR_REFUSED: Final = _counter(
    "tailrace_executor_refused_total",
    "Pieces of work that were refused (SYSTEM_BUSY, or 503 for a page), because too many waited for a pool.",
    ("executor",))
BROKER_PERMISSION: Final = _gauge(
    "rocketmq_broker_permission", "6 when messages can be read and written, 4 when only read.")
TOPIC_NUMBER: Final = _gauge("rocketmq_topic_number", "Topics.", source="broker.topics.table")
GROUP_NUMBER: Final = _gauge("rocketmq_consumer_group_number", "Subscription groups.", source="broker.groups.items")
PRODUCER_CONNECTIONS: Final = _gauge(
    "rocketmq_producer_connections", "Connected producers.",
    ("language", "version", "protocol_type"))
CONSUMER_CONNECTIONS: Final = _gauge(
    "rocketmq_consumer_connections", "Connected consumers.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"))
LAG_MESSAGES: Final = _gauge(
    "rocketmq_consumer_lag_messages", "Messages that a group has not acknowledged.", _LAG)
LAG_LATENCY: Final = _gauge(
    "rocketmq_consumer_lag_latency", "Age of the oldest of them; 0 without such a message.", _LAG,
    unit="milliseconds")
INFLIGHT_MESSAGES: Final = _gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages sent to consumers and not acknowledged; popped messages only since the start.", _LAG)
QUEUEING_LATENCY: Final = _gauge(
    "rocketmq_consumer_queueing_latency", "Age of the oldest message that was not sent to a consumer.", _LAG,
    unit="milliseconds")
READY_MESSAGES: Final = _gauge(
    "rocketmq_consumer_ready_messages", "Messages that were not sent to a consumer yet.", _LAG)
STORAGE_SIZE: Final = _gauge(
    "rocketmq_storage_size", "Bytes in use on the file system of the store.", STORAGE, unit="bytes")
FLUSH_BEHIND: Final = _gauge(
    "rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not synced yet.", STORAGE,
    unit="bytes", source="flushBehindBytes")
LOG_SYNC: Final = Metric(
    name="tailrace_log_sync", kind=MetricKind.HISTOGRAM, unit="milliseconds",
    description="Time of a sync of the CommitLog.", buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000))
DISPATCH_BEHIND: Final = _gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that cannot be read by queue yet.",
    STORAGE, unit="bytes", source="dispatchBehindBytes")
STORE_TIME_AHEAD: Final = _gauge(
    "tailrace_store_time_ahead_milliseconds",
    "How far the last store time is ahead of the wall clock; 0 if it is not.", unit="milliseconds",
    source="storeTimeAheadMs")
RESERVE_TIME: Final = _gauge(
    "rocketmq_storage_message_reserve_time", "Age of the oldest message of the log.", STORAGE,
    unit="milliseconds")
TIMER_ENQUEUE_LAG: Final = _gauge(
    "rocketmq_timer_enqueue_lag", "Timer messages that are not in the wheel yet.", STORAGE, source="timerOffsetBehind")
TIMER_DEQUEUE_LAG: Final = _gauge(
    "rocketmq_timer_dequeue_lag", "Timers that were read from the wheel and are not delivered yet.", STORAGE,
    source="timerWaiting")
TIMER_DEQUEUE_LATENCY: Final = _gauge(
    "rocketmq_timer_dequeue_latency", "Time from the slot of the wheel that is read next until now.",
    STORAGE, unit="milliseconds", source="timerReadBehindMs")
TIMING_MESSAGES: Final = _gauge("rocketmq_timing_messages", "Pending timers.", ("topic",), source="timerPendingByTopic")
TIMERS_OVERDUE: Final = _gauge(
    "tailrace_timers_overdue", "Pending timers whose time has passed.", (), source="timerOverdue")
TIMER_SNAPSHOT: Final = _gauge(
    "rocketmq_timer_message_snapshot",
    "Pending timers by the time until they are due: up to the bound, above the one before.",
    (*STORAGE, "timer_bound_s"), source="timerPendingWithin")
TIMER_LATENESS: Final = Metric(
    name="tailrace_timer_lateness", kind=MetricKind.HISTOGRAM, labels=("kind",), unit="milliseconds",
    description="Put time minus due time of timers (`timer`) and of delay levels (`level`).",
    buckets=(1, 2, 5, 10, 20, 50, 100, 150, 250, 500, 1000, 2000, 5000, 60_000),
)
LEVEL_PENDING: Final = _gauge(
    "tailrace_delay_level_pending", "Messages that wait in a delay level.", ("level",), source="schedulePendingByLevel")
TIMER_EVENTS: Final = _counter(
    "tailrace_timer_events_total",
    "Events of timers and of messages with a delay level (delivered, rolled, parked and others).", ("event",))
NAME_SERVER_REGISTERED: Final = _gauge(
    "tailrace_name_server_registered",
    "1 for a name server of namesrvAddr that took the last registration of this broker, else 0.", ("address",),
    source="broker.name_servers.states")
HALF_MESSAGES: Final = _gauge(
    "rocketmq_half_messages",
    "Half messages that are not settled; after a kill the number of a topic may be wrong.", ("topic",),
    source="broker.transactions.metrics.counts")
HALF_PENDING: Final = _gauge(
    "tailrace_half_messages_pending", "Half messages that are not settled, counted from their queue.",
    source="broker.transactions.queue.pending")
COMMIT_MESSAGES: Final = _counter(
    "rocketmq_commit_messages_total", "Half messages that were committed.", ("topic",),
    source="broker.transactions.metrics.committed")
ROLLBACK_MESSAGES: Final = _counter(
    "rocketmq_rollback_messages_total", "Half messages that were rolled back.", ("topic",),
    source="broker.transactions.metrics.rolled_back")
FINISH_LATENCY: Final = Metric(
    name="rocketmq_finish_message_latency", kind=MetricKind.HISTOGRAM, labels=("topic",),
    unit="milliseconds",
    description="Time from send to commit, in seconds as in RocketMQ, in spite of the name.",
    buckets=(5, 60, 600, 3600, 43_200, 86_400), source="broker.transactions.metrics.latencies",
)
TRANSACTION_EVENTS: Final = _counter(
    "tailrace_transaction_events_total",
    "Checks sent to producers (`asked`), half messages given up (`given_up`), and requests and "
    "checks that found their message committed already (`duplicate`).", ("event",), source="broker.transactions.events")
POP_REVIVE_IN: Final = _counter(
    "rocketmq_pop_revive_in_message_total",
    "Records that POP wrote for its revive topic: checkpoints (`CK`) and acknowledgements (`ACK`).",
    ("consumer_group", "topic", "revive_message_type", "put_status"), source="broker.pop_metrics.records_put")
POP_REVIVE_OUT: Final = _counter(
    "rocketmq_pop_revive_out_message_total", "Records that were read from the revive topic.",
    ("consumer_group", "topic", "queue_id", "revive_message_type"), source="broker.pop_metrics.records_read")
POP_REVIVE_RETRY: Final = _counter(
    "rocketmq_pop_revive_retry_messages_total",
    "Popped messages that were not acknowledged in time and were put into a retry topic.",
    ("consumer_group", "topic", "put_status"), source="broker.pop_metrics.retries")
POP_REVIVE_LAG: Final = _gauge(
    "rocketmq_pop_revive_lag",
    "Records of a queue of the revive topic that are not processed; a number, in spite of the name.",
    ("queue_id",), unit="milliseconds")
POP_REVIVE_LATENCY: Final = _gauge(
    "rocketmq_pop_revive_latency", "Age of the oldest of them; 0 without such a record.", ("queue_id",),
    unit="milliseconds")
POP_CHECKPOINTS: Final = _gauge(
    "rocketmq_pop_checkpoint_buffer_size",
    "Checkpoints in memory that are due soon or wait for their acknowledgements to be read.",
    source="broker.revive.pending")
POP_STOPPED: Final = _gauge(
    "tailrace_pop_stopped_queues",
    "Queues that a group does not pop because too many of their messages are in flight.",
    source="broker.pop_metrics.stopped")
READY: Final = _gauge("tailrace_ready", "1 once clients are served, 0 while the store recovers.")
RECOVERED_RATIO: Final = _gauge(
    "tailrace_recovered_ratio", "Part of the recovery that is done, if it is known.")
WRITEABLE: Final = _gauge(
    "tailrace_store_writeable",
    "0 if the store refuses puts or has no room for one; /ready and the log have the reason.")
SENDS_REFUSED: Final = _counter(
    "tailrace_sends_refused_total",
    "Puts that were refused, by reason: disk_full, no_room, not_writeable, no_topic, flow_control, timer_flow_control, "
    "lmq_quota, illegal, unknown.", ("reason",), source="broker.store.refused_puts.counts")
HINT_SYNC_FAILURES: Final = _counter(
    "tailrace_hint_sync_failures_total",
    "Failed syncs of hint files, which an open does not need; the log has their names.", (), source="hintSyncFailures")
LOOP_FAILURES: Final = _counter(
    "tailrace_loop_failures_total",
    "Unexpected errors in the loops and callbacks of the event loop, which continue after them; the log has the "
    "first one a minute.", ("name",))
THREAD_SECONDS: Final = _counter(
    "tailrace_thread_processor_seconds_total",
    "Processor time of the threads that live, by name; MainThread has the event loop, which serves all clients.",
    ("thread",))
UNREADABLE_RECORDS: Final = _counter(
    "tailrace_unreadable_records_total",
    "Records of the log that the disk could not read in several tries, and that are left out since then.", (),
    source="unreadableRecords")
READ_ONLY: Final = _gauge(
    "tailrace_store_read_only",
    "1 if the store was opened read-only because its directory could not be written; until it is opened again.")
OPEN_FILES: Final = _gauge(
    "tailrace_open_segment_files", "Descriptors and mappings of segment files that are open.",
    source="openSegmentFiles")
OPEN_FILES_MAX: Final = _gauge(
    "tailrace_open_segment_files_max", "Number above which idle segment files are closed (maxOpenFiles).",
    source="openSegmentFilesMax")
LOCK_MADE_AGAIN: Final = _counter(
    "tailrace_store_lock_made_again_total",
    "How often the lock file was deleted while the server ran, and made again.", (), source="lockMadeAgain")
CONNECTIONS: Final = _gauge(
    "tailrace_connections", "Open connections of all ports, also of clients that have not registered.",
    source="acceptor.limits")
CONNECTIONS_MAX: Final = _gauge(
    "tailrace_connections_max", "Most connections at a time (serverSocketMaxConnections); 0: no limit.",
    source="acceptor.limits.connections_max")
CONNECTIONS_CLOSED: Final = _counter(
    "tailrace_connections_closed_total",
    "Connections that were closed because a limit was reached, by reason.", ("reason",),
    source="acceptor.limits.closed")
CONNECTION_BYTES: Final = _gauge(
    "tailrace_connection_bytes",
    "Memory of incomplete and waiting requests and of answers that clients have not read.", unit="bytes",
    source="acceptor.limits.held_bytes")
TLS_HANDSHAKES: Final = _counter(
    "tailrace_tls_handshakes_total", "TLS handshakes that clients completed.", (), source="acceptor.handshakes")
TLS_HANDSHAKES_INCOMPLETE: Final = _gauge(
    "tailrace_tls_handshakes_incomplete", "TLS handshakes that are under way.", source="acceptor.incomplete")
TLS_EXPIRES: Final = _gauge(
    "tailrace_tls_certificate_expires_seconds",
    "Time until the first certificate in the file of this setting expires, or its list of revoked certificates; "
    "negative after that.", ("certificate",), unit="seconds", source="acceptor.expires_s")
CONNECTIONS_REFUSED: Final = _counter(
    "tailrace_connections_refused_total",
    "Connections that were closed before a request, because of TLS, by reason.", ("reason",),
    source="acceptor.failures")
RETENTION_DELETED: Final = _counter(
    "tailrace_retention_deleted_files_total", "CommitLog files that retention deleted.", ("forced",))
RETENTION_LOST: Final = _counter(
    "tailrace_retention_forced_messages_total", "Messages that were deleted before they expired.", (),
    source="forcedDeletedMessages")
RETENTION_FRUITLESS: Final = _counter(
    "tailrace_retention_fruitless_passes_total",
    "Passes for lack of space that deleted no file; the log has the reason.", (), source="fruitlessCleanPasses")
RETENTION_TRASH: Final = _gauge(
    "tailrace_retention_trash_bytes", "Bytes of deleted files that are not freed yet.", source="trashBytes")
RETENTION_LOST_TIMERS: Final = _counter(
    "tailrace_retention_forced_timers_total",
    "Pending timers that were deleted with their file and could not be written again.", (),
    source="forcedDeletedTimers")
RETENTION_QUEUE_FILES: Final = _counter(
    "tailrace_retention_deleted_queue_files_total", "Files of queues that retention deleted.", (),
    source="deletedQueueFiles")
COMPACTION_PASSES: Final = _counter(
    "tailrace_compaction_passes_total", "Compactions of a queue that replaced files.", (), source="compactionPasses")
COMPACTION_DROPPED: Final = _counter(
    "tailrace_compaction_dropped_messages_total", "Messages that compaction removed.", (), source="compactionDropped")
COMPACTION_DAMAGED: Final = _counter(
    "tailrace_compaction_damaged_messages_total",
    "Damaged messages of compaction logs that were found since the start, each counted once.", (),
    source="compactionDamaged")
COMPACTION_FAILURES: Final = _counter(
    "tailrace_compaction_failures_total", "Attempts to copy or to compact a queue that failed.", (),
    source="compactionFailures")
RETENTION_INDEX_FILES: Final = _counter(
    "tailrace_retention_deleted_index_files_total", "Index files that retention deleted.", (),
    source="deletedIndexFiles")
RETENTION_HUNG: Final = _gauge(
    "tailrace_retention_hung_files", "1 while the oldest CommitLog file is to be deleted and readers still hold it.")
DISK_USED: Final = _gauge(
    "tailrace_disk_used_percent", "Use of the disk of a path, as the last check of retention saw it.", ("path",),
    source="diskUsedPercent")
DISK_LIMIT: Final = _gauge(
    "tailrace_disk_limit_percent",
    "Use of a disk above which files are deleted early (`delete`), the oldest files before they expire "
    "(`delete_unexpired`), and puts are refused (`refuse_puts`), computed for the disk if the limit is in bytes.",
    ("path", "limit"))
DISK_FULL: Final = _gauge(
    "tailrace_disk_full", "1 while puts are refused because a disk is too full.", source="diskFull")
ARCHIVE_LAG: Final = _gauge(
    "tailrace_archive_lag_bytes",
    "Bytes of full CommitLog files that are not in the archive (archiveDirectory), as the last pass of retention "
    "saw it; 0 without an archive.", unit="bytes", source="archiveLagBytes")
ARCHIVE_AGE: Final = _gauge(
    "tailrace_archive_lag_seconds",
    "Age of the oldest message that is not in the archive (archiveDirectory), of the last file as well; 0 without one.",
    unit="seconds", source="archiveLagSeconds")
TABLE_COMMITS: Final = _counter(
    "tailrace_table_commits_total", "Commits of archive jobs to Iceberg tables.", (), source="tableCommits")
TABLE_RETRIES: Final = _counter(
    "tailrace_table_commit_retries_total", "Commits sent again after another program's.", (),
    source="tableCommitRetries")
TABLE_CONFLICTS: Final = _counter(
    "tailrace_table_commit_conflicts_total", "Commits given up because another job changed the table.", (),
    source="tableCommitConflicts")
REPLICAS_IN_SYNC: Final = _gauge(
    "tailrace_slaves_in_sync", "Slaves in sync.", source="broker.replicas.in_sync")
REPLICA_BEHIND: Final = _gauge(
    "tailrace_slave_behind_bytes", "Bytes that slaves lack.", ("host",), unit="bytes",
    source="broker.replicas.behind_bytes")
REPLICATION_SENT: Final = _counter(
    "tailrace_slave_sent_bytes_total", "Bytes sent to slaves.", (),
    source="broker.replicas.sent_bytes")
REPLICATION_CLOSED: Final = _counter(
    "tailrace_slave_connections_closed_total", "Ended connections of slaves.", ("reason",),
    source="broker.replicas.closed")
UNREPLICATED_PUTS: Final = _counter(
    "tailrace_unreplicated_puts_total", "Puts that too few slaves had in time.", ("status",),
    source="broker.store.inner.replication.unreplicated")
REPLICATION_FAULT: Final = _gauge(
    "tailrace_replication_fault", "1 while the fault of `haStatus` lasts.", ("kind",),
    source="broker.replication_faults.lasting")
MASTER_CONNECTED: Final = _gauge(
    "tailrace_master_connected", "1 while the master sends.", source="broker.slave.is_connected")
MASTER_CONNECTIONS: Final = _counter(
    "tailrace_master_connections_total", "Connections to the master.", (), source="broker.slave.connects")
MASTER_AHEAD: Final = _gauge(
    "tailrace_master_ahead_bytes", "Bytes that this slave lacks.",
    unit="bytes", source="broker.slave.lacking_bytes")
MASTER_RECEIVED: Final = _counter(
    "tailrace_master_received_bytes_total", "Bytes received from the master.", (),
    source="broker.slave.received")
SLAVE_STOPS: Final = _counter(
    "tailrace_slave_stops_total", "Times that this slave stopped.", ("reason",),
    source="broker.slave.stops")
SLAVE_PULLS_AHEAD: Final = _counter(
    "tailrace_slave_pulls_ahead_total", "Pulls from an offset that this slave lacks.", (),
    source="broker.slave.pulls_ahead")
METADATA_FAILURES: Final = _counter(
    "tailrace_metadata_copy_failures_total", "Parts that could not be copied.", (),
    source="broker.slave.metadata_failures")
LOOP_LAG: Final = Metric(
    name="tailrace_event_loop_lag", kind=MetricKind.HISTOGRAM, unit="seconds",
    description="How late a timer of the event loop ran, 50 times a second: so long no client was "
    "served.", buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5), source="broker.loop_lag.lateness")

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
