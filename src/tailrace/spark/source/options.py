"""Options of the data source: all are parsed and checked before a query starts.

Names, values and precedence are those of Spark's Kafka source: a timestamp overrides offsets by timestamp, and these
override offsets. Upper and lower case of names does not matter: PySpark passes them in lower case, so an unknown name
is reported as the user wrote it only by callers without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tailrace.client.subscription import Subscription
from tailrace.config import LONG_MAX, StoreConfig, whole_number
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.object_store import place_of
from tailrace.errors import ConfigError
from tailrace.formats import filenames
from tailrace.properties import settings_in
from tailrace.remoting.tls import TlsOptions
from tailrace.spark.local_path import local_path
from tailrace.spark.option_names import unknown_options
from tailrace.spark.tls_in_options import TLS_NAMES, tls_in
from tailrace.spellings import duration_ms, meant, time_ms
from tailrace.store.archive_store import MANIFESTS, S3_SCHEME, is_remote

__all__ = ["BODY_FORMS", "MODES", "BrokerOptions", "Position", "ReadOptions", "parse_options"]

BODY_FORMS: Final = ("stored", "decoded", "none")
MODES: Final = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
EARLIEST: Final = -2
LATEST: Final = -1
_STRATEGIES: Final = ("latest", "error")  # many queues of a store are idle, so not Kafka's order
BATCH_ONLY: Final = (
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingCommitLogOffset",
)
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_NAMES: Final = (
    "path", "paths", "topic", "subscribe", "assign", "subscribePattern", "queueId",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "startingCommitLogOffset", *BATCH_ONLY, *STREAM_ONLY,
    "columns", "body", "store", "config", "splitBytes", "minPartitions", "failOnDataLoss", "mode",
    "fallback", "archive", "pushFilters",
)
_DIRECTORY_ONLY: Final = (
    "path", "paths", "startingCommitLogOffset", "endingCommitLogOffset", "store", "config", "splitBytes", "mode",
    "fallback", "archive", "pushFilters",
)
_BROKER_ONLY: Final = (
    "namesrv", "broker", "group", "consumerGroup", "timeoutMs", "retries", "pullBatch", "tags", "sql",
    "maxBytesPerTrigger", "credentials", "tls", *TLS_NAMES,
)
_OF_CATALOG: Final = "provider"  # only tables of Spark's catalog have this option, when they are created

_NO_TABLES: Final = (
    "Spark 4.3 does not pass the options of a table of its catalog to a Python data source when the "
    "table is read, so CREATE TABLE ... USING tailrace cannot work; use "
    "CREATE TEMPORARY VIEW name USING tailrace OPTIONS (path 'DIRECTORY')")

Table = Mapping[str, Mapping[Any, int]]
"""Numbers by topic and queue: a queue id, or for a read from brokers BROKER/ID."""


@dataclass(frozen=True, slots=True)
class Position:
    """Start or end of a read in each queue.

    ``by`` is earliest, latest, offsets, timestamp (one for all, ms) or timestamps (one per queue).
    """

    by: str
    table: Table = field(default_factory=dict)
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Where and how messages are read over the network: from brokers that name servers know, or from one broker."""

    namesrv: str
    broker: str
    group: str
    """Named in every request; its offsets do not change."""
    consumer_group: str
    """Gets the offsets of a stream after each batch; empty for none."""
    timeout_ms: int
    retries: int
    pull_batch: int
    subscription: Subscription
    """The expression for all topics; its topic has no meaning."""
    max_bytes_per_trigger: int
    tls: TlsOptions | None
    credentials: str
    """Path of the credentials file on the driver and the executors; empty: the file that the environment names."""

    @property
    def has_filter(self) -> bool:
        """Return True if brokers select messages, so that offsets may be missing."""
        return self.subscription.is_sql or bool(self.subscription.tags)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read. Ends are exclusive; times are store times in ms."""

    roots: tuple[tuple[str, str], ...]  # (label, path)
    topics: frozenset[str] = frozenset()
    assigned: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    topic_pattern: str = ""
    queue_id: int = -1
    start: Position = Position("")  # the default depends on the kind of query
    end: Position = Position("latest")
    starting_strategy: str = "latest"
    starting_commit_log_offset: int = 0
    ending_commit_log_offset: int = LONG_MAX
    columns: tuple[str, ...] = ()  # never empty when parsed
    body: str = "stored"
    config_file: str = ""
    split_bytes: int = 64 << 20
    min_partitions: int = 1
    max_offsets_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    fail_on_data_loss: bool = True
    mode: str = "FAILFAST"
    push_filters: bool = False
    archives: tuple[str, ...] = ()  # one a root, or none
    given: frozenset[str] = frozenset()
    brokers: BrokerOptions | None = None
    """For a read over the network; there are no roots then."""

    def archive_of(self, label: str) -> str:
        """Return the archive of a store; empty if no archive is read."""
        places = dict(zip((name for name, _ in self.roots), self.archives, strict=False))
        return places.get(label, "")

    def wants(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is read."""
        if self.queue_id >= 0 and queue_id != self.queue_id:
            return False
        if self.assigned:
            return queue_id in self.assigned.get(topic, ())
        if self.topics:
            return topic in self.topics
        return not self.topic_pattern or re.fullmatch(self.topic_pattern, topic) is not None

    def named_topics(self) -> frozenset[str]:
        """Return the topics that must exist."""
        return self.topics | frozenset(self.assigned)

    def store_config(self) -> StoreConfig:
        """Return the settings of the ``config`` file."""
        if not self.config_file:
            return StoreConfig()
        return StoreConfig.from_properties(
            settings_in(Path(self.config_file).read_bytes(), self.config_file))

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise ConfigError if one of ``names`` was given; ``why`` is the reason against it."""
        if wrong := [name for name in names if name.lower() in self.given]:
            raise ConfigError(*(f"{name} {why}" for name in wrong))


class _Values:
    """Texts of options and the problems found in them. ``now_ms`` is the time before which times like -1h are."""

    def __init__(self, options: Mapping[str, str], now_ms: int) -> None:
        self.texts = {name.lower(): value for name, value in options.items()}
        self._now_ms = now_ms
        self.is_remote = bool({"namesrv", "broker"} & self.texts.keys())
        others = _DIRECTORY_ONLY if self.is_remote else _BROKER_ONLY
        known = [name for name in (*_NAMES, *_BROKER_ONLY) if name not in others]
        self.problems = unknown_options(options, known, [name.lower() for name in others])
        for name in others:
            if name.lower() in self.texts:
                self.problems.append(
                    f"{name} is for a read of a directory" if self.is_remote
                    else f"{name} is for a read from brokers: it needs namesrv or broker")
        if _OF_CATALOG in self.texts:
            self.problems = [_NO_TABLES]

    def text(self, name: str, default: str = "") -> str:
        return self.texts.get(name.lower(), default)

    def has(self, name: str) -> bool:
        return name.lower() in self.texts

    def number(self, name: str, default: int, low: int = 0) -> int:
        text = self.texts.get(name.lower())
        if text is None:
            return default
        number = whole_number(text)
        if number is None or not low <= number <= LONG_MAX:
            self.problems.append(f"{name}={text} is not a whole number from {low} to {LONG_MAX}")
            return default
        return number

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration in Spark's form, such as 90s or 15m; without a unit it is in milliseconds."""
        text = self.texts.get(name.lower())
        if text is None:
            return default
        if (number := whole_number(text.strip())) is not None:
            return number
        try:
            return duration_ms(re.sub(r"(?<=\d) *min\b", "m", text.lower()), name)
        except ValueError as error:
            self.problems.append(str(error))
            return default

    def time_ms(self, name: str) -> int:
        """Return the time of an option, which must be given."""
        try:
            return self.instant_ms(self.text(name))
        except ValueError:
            self.problems.append(
                f"{name}={self.text(name)} is not a time; write 2026-01-31T12:00Z, -1h for an hour before the query, "
                "or milliseconds since 1970")
            return 0

    def instant_ms(self, value: Any) -> int:
        """Return a time in ms since 1970: of ISO 8601, a number of ms, or a duration before the query, such as -1h."""
        if isinstance(value, str) and value.startswith("-"):
            return max(self._now_ms - duration_ms(value[1:]), 0)
        return time_ms(value)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of the allowed words, compared without case; the first is the default."""
        text = self.text(name, allowed[0])
        for word in allowed:
            if word.lower() == text.lower():
                return word
        self.problems.append(f"{name}={text} is not one of {', '.join(allowed)}")
        return allowed[0]

    def times(self, name: str) -> Table:
        """Return a table ``{"topic": {"queueId": time}}``, with the times in ms."""
        return self.table(name, 0, read=self.instant_ms)

    def table(
        self, name: str, lowest: int, words: str = "", read: Callable[[Any], int] | None = None
    ) -> Table:
        """Return a table ``{"topic": {"queueId": number}}``, whose numbers ``read`` makes of the values."""
        text, read = self.text(name), read or _whole
        try:
            found = orjson.loads(text)
            made = {
                topic: {self.queue(queue): read(value) for queue, value in queues.items()}
                for topic, queues in found.items()
            }
            if min((v for q in made.values() for v in q.values()), default=0) < lowest:
                raise ValueError(text)
        except (ValueError, AttributeError, TypeError):
            queue = "broker/0" if self.is_remote else "0"
            self.problems.append(
                f'{name}={text} is not {words}JSON like {{"topic": {{"{queue}": 23}}}}')
            return {}
        return made

    def queue(self, name: Any) -> Any:
        """Return the queue with a name in a table: its number, or BROKER/NUMBER for a read from brokers."""
        broker, slash, number = str(name).rpartition("/") if self.is_remote else ("", "", name)
        found = _whole(number)
        if found < 0 or bool(slash and broker) is not self.is_remote:
            raise ValueError(name)
        return f"{broker}/{found}" if self.is_remote else found


def _whole(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError(value)
    return int(value)


def _start(values: _Values) -> Position:
    if values.has("startingTimestamp"):
        return Position("timestamp", timestamp=values.time_ms("startingTimestamp"))
    if values.has("startingOffsetsByTimestamp"):
        return Position("timestamps", values.times("startingOffsetsByTimestamp"))
    text = values.text("startingOffsets")
    if text.lower() in {"", "earliest", "latest"}:
        return Position(text.lower())
    return Position("offsets", values.table("startingOffsets", EARLIEST, "earliest, latest or "))


def _end(values: _Values) -> Position:
    if values.has("endingTimestamp"):
        return Position("timestamp", timestamp=values.time_ms("endingTimestamp"))
    if values.has("endingOffsetsByTimestamp"):
        return Position("timestamps", values.times("endingOffsetsByTimestamp"))
    text = values.text("endingOffsets", "latest")
    if text.lower() == "latest":
        return Position("latest")
    return Position("offsets", values.table("endingOffsets", LATEST, "latest or "))


def _assigned(values: _Values) -> dict[str, frozenset[int]]:
    text = values.text("assign")
    if not text:
        return {}
    try:
        found = orjson.loads(text)
        made = {topic: frozenset(map(values.queue, queues)) for topic, queues in found.items()}
        if not made:
            raise ValueError(text)
    except (ValueError, AttributeError, TypeError):
        queues = '"broker/0", "broker/1"' if values.is_remote else "0, 1"
        values.problems.append(f'assign={text} is not JSON like {{"topic": [{queues}]}}')
        return {}
    return made


def _pattern(values: _Values) -> str:
    pattern = values.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        values.problems.append(f"subscribePattern={pattern} is not a regular expression: {error}")
        return ""
    return pattern


def _roots(values: _Values, *, check: bool) -> tuple[tuple[str, str], ...]:
    """Return labels and paths of the stores. Spark passes a list given to ``load`` as ``paths``."""
    try:
        paths = [str(path) for path in orjson.loads(values.text("paths", "[]"))]
    except (ValueError, TypeError):
        values.problems.append(f"paths={values.text('paths')} is not a JSON list")
        paths = []
    if values.text("path"):
        paths.insert(0, values.text("path"))
    if check or not any(map(is_remote, paths)):
        paths = [local_path("path", path, values.problems) for path in paths]
    if not paths:
        values.problems.append(f"no path: use load(DIRECTORY). For SQL: {_NO_TABLES}")
    labels = [name.strip() for name in values.text("store").split(",") if name.strip()]
    labels = labels or [Path(path).name for path in paths]
    if len(labels) != len(paths) or len(set(labels)) != len(labels):
        values.problems.append(
            f"{len(paths)} stores need as many different labels, not {','.join(labels)}: set store=")
        return ()
    for path in paths:
        # The check is local, because the driver reads the store for planning. With a config file the CommitLog may
        # be in another directory, which planning checks.
        if check and not values.text("config") and not Path(path, filenames.COMMITLOG).is_dir():
            values.problems.append(f"{path} is not a store directory: it has no commitlog")
    return tuple(zip(labels, paths, strict=True))


def _archives(values: _Values, count: int) -> tuple[str, ...]:
    """Return the archives, in the order of the stores."""
    chosen = values.choice("fallback", ("none", "archive"))
    paths = tuple(
        _archive(path.strip(), values.problems) for path in values.text("archive").split(",") if path.strip())
    if (chosen == "archive") != bool(paths):
        values.problems.append("fallback=archive and archive=DIRECTORY must be given together")
    elif paths and count and len(paths) != count:
        values.problems.append(f"{count} stores need as many archives, not {len(paths)}")
    for path in paths:
        if not path.startswith(S3_SCHEME) and not Path(path, MANIFESTS).is_dir():
            values.problems.append(f"archive={path} is not an archive: it has no _manifests")
    return paths


def _archive(text: str, problems: list[str]) -> str:
    """Return the location of an archive. For an object store it has endpoint and region, so that tasks need neither."""
    if not text.startswith(S3_SCHEME):
        return local_path("archive", text, problems)
    try:
        return place_of(text).url
    except ConfigError as error:
        problems.append(f"archive: {error}")
        return text


def _brokers(values: _Values) -> BrokerOptions | None:
    """Return the options of a read from brokers; None for a read of a directory."""
    if not values.is_remote:
        return None
    if bool(values.text("namesrv")) == bool(values.text("broker")):
        values.problems.append("set one of the options broker and namesrv, as HOST:PORT")
    if not any(values.text(name) for name in ("topic", "subscribe", "assign", "subscribePattern")):
        values.problems.append("a read from brokers names its topics: set subscribe, assign or subscribePattern")
    if values.has("maxBytesPerTrigger") and values.has("maxOffsetsPerTrigger"):
        values.problems.append("set one of maxBytesPerTrigger and maxOffsetsPerTrigger")
    try:
        subscription = Subscription.of("any", values.text("tags", "*"), values.text("sql"))
    except ValueError as error:
        values.problems.append(str(error))
        subscription = Subscription("any")
    return BrokerOptions(
        namesrv=values.text("namesrv"), broker=values.text("broker"), group=values.text("group", "tailrace-spark"),
        consumer_group=values.text("consumerGroup"), timeout_ms=values.number("timeoutMs", 3000, 1),
        retries=values.number("retries", 3), pull_batch=values.number("pullBatch", 1024, 1), subscription=subscription,
        max_bytes_per_trigger=values.number("maxBytesPerTrigger", 0, 1), tls=tls_in(values.texts, values.problems),
        credentials=local_path("credentials", values.text("credentials"), values.problems))


def _columns(values: _Values, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in values.text("columns").split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        values.problems.append(
            f"columns={','.join(unknown)}{meant(unknown[0], known)}: known are {', '.join(known)}")
    if len(set(names)) != len(names):
        values.problems.append(f"columns={','.join(names)} names one twice")
    return names or known


def _flag(values: _Values, name: str, *, default: bool = True) -> bool:
    words = ("true", "false") if default else ("false", "true")
    return values.choice(name, words) == "true"


def _least(values: _Values) -> int:
    """Return the number of messages for which a batch of a stream waits."""
    least = values.number("minOffsetsPerTrigger", 0, 1)
    most = whole_number(values.text("maxOffsetsPerTrigger"))
    if least and most and most < least:
        values.problems.append(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    if values.has("maxTriggerDelay") and not values.has("minOffsetsPerTrigger"):
        values.problems.append("maxTriggerDelay needs minOffsetsPerTrigger")
    return least


def parse_options(
    options: Mapping[str, str], column_names: Callable[[str], tuple[str, ...]], clock: Clock | None = None, *,
    is_store: bool = True,
) -> ReadOptions:
    """Return the parsed options. Raises ConfigError with every problem.

    ``column_names`` returns the columns for a value of ``mode``. With ``is_store=False`` the path is not that of a
    store but of an archive, which is not checked.
    """
    values = _Values(options, (clock or SystemClock()).now_ms())
    ways = ("topic", "subscribe", "assign", "subscribePattern")
    if len(chosen := [name for name in ways if values.text(name)]) > 1:
        values.problems.append(
            f"only one of {', '.join(ways[:-1])} and {ways[-1]}, not {', '.join(chosen)}")
    topics = values.text("topic") or values.text("subscribe")
    mode = values.choice("mode", MODES)
    config_file = local_path("config", values.text("config"), values.problems)
    if config_file and not Path(config_file).is_file():
        values.problems.append(f"config={config_file} is not a file")
    brokers = _brokers(values)
    roots = () if brokers is not None else _roots(values, check=is_store)
    made = ReadOptions(
        roots=roots,
        topics=frozenset(name.strip() for name in topics.split(",") if name.strip()),
        assigned=_assigned(values),
        topic_pattern=_pattern(values),
        queue_id=values.number("queueId", -1),
        start=_start(values),
        end=_end(values),
        starting_strategy=values.choice("startingOffsetsByTimestampStrategy", _STRATEGIES),
        starting_commit_log_offset=values.number("startingCommitLogOffset", 0),
        ending_commit_log_offset=values.number("endingCommitLogOffset", LONG_MAX),
        columns=_columns(values, column_names(mode)),
        body=values.choice("body", BODY_FORMS),
        config_file=config_file,
        split_bytes=values.number("splitBytes", 64 << 20, 1),
        min_partitions=values.number("minPartitions", 1, 1),
        max_offsets_per_trigger=values.number("maxOffsetsPerTrigger", 0, 1),
        min_offsets_per_trigger=_least(values),
        max_trigger_delay_ms=values.duration_ms("maxTriggerDelay", 15 * 60_000),
        fail_on_data_loss=_flag(values, "failOnDataLoss"),
        mode=mode,
        push_filters=_flag(values, "pushFilters", default=False),
        archives=_archives(values, len(roots)),
        given=frozenset(values.texts),
        brokers=brokers,
    )
    if values.problems:
        raise ConfigError(*values.problems)
    return made
