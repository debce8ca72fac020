"""Replay: sends the messages that a filter selects from log and archive to a broker or into a store.

Rows come in the order of the log. After a window of rows is sent, its last position is written to the
progress file, durably. So an interrupted run continues after the last window that was answered, and at most one
window is sent twice. The file also has position and store time of the last message that was sent: if the log has
another message there, the directory was replaced, and the replay is refused. Two kinds of properties are left out:
those that delayed the original message (delays, timers, transactions) and those that a broker added. So a replayed
message can be consumed immediately.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import orjson

from tailrace.client import Producer
from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.whole_files import replace_file
from tailrace.errors import ConfigError, CorruptionError
from tailrace.formats import names as N
from tailrace.formats.commitlog import STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.copied_properties import COPY_ROOM, fitting
from tailrace.formats.inner_batch import INNER_BATCH_BITS
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import SYSTEM_TOPICS
from tailrace.remoting.tls import TlsOptions
from tailrace.store.directory import StoreDirectory
from tailrace.store.record_rules import HONOURED_ALONE
from tailrace.timer.parking import log_left_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["REPLAY_PROPERTY", "BrokerTarget", "Replay", "StoreTarget", "Target", "chosen_rows",
           "replay"]

_COLUMNS: Final = "topic,queueId,queueOffset,commitLogOffset,storeTimestamp,sysFlag,tags,keys,body,properties,flag"
_STORED_MS: Final = "unix_millis(storeTimestamp) AS storedMs"
REPLAY_PROPERTY: Final = "TAILRACE_REPLAY"
"""Property of every replayed message: its original position in the log. If a message is sent twice, it is equal.

The messages of an inner batch have one position, so "/" and the original queue offset come after it.
"""
_LEFT_OUT: Final = frozenset({
    N.CRC_PROPERTY, N.TAGS, N.KEYS, N.WAIT, N.DELAY, N.REAL_TOPIC, N.REAL_QID, N.TRAN_MSG, N.MSG_REGION,
    N.TRANSACTION_ID, "UNIQ_KEY_INDEX", N.INNER_NUM, N.INNER_MULTI_DISPATCH, N.INNER_MULTI_QUEUE_OFFSET,
})
_LEFT_OUT_PREFIX: Final = "TIMER_"
_OF_BROKER: Final = 256
"""Bytes of properties that a broker adds to a send."""
_WINDOW_BYTES: Final = 1 << 20
Tell = Callable[[str], None]


class Target(Protocol):
    """Target of messages; ``put`` returns when all of them are durable there."""

    def queues(self, topic: str) -> int:
        """Return the number of queues of a topic that can be written; 0 if the topic does not exist."""
        ...

    def create(self, topic: str, queues: int) -> None:
        """Create a topic."""
        ...

    def put(self, queue_id: int, messages: list[Message]) -> None:
        """Put messages of one topic into one queue."""
        ...


@final
class BrokerTarget(AbstractContextManager["BrokerTarget"]):
    """A running broker, by its address or that of its name server."""

    def __init__(self, *, broker: str = "", namesrv: str = "", tls: TlsOptions | None = None) -> None:
        self._producer = Producer(broker=broker, namesrv=namesrv, group="tailrace_replay", tls=tls or False)

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def queues(self, topic: str) -> int:
        """How many queues of a topic can be written."""
        return len(self._producer.queues(topic))

    def create(self, topic: str, queues: int) -> None:
        """Create a topic."""
        self._producer.create_topic(topic, queues)

    def put(self, queue_id: int, messages: list[Message]) -> None:
        """Send messages in one request, which stores all or none. Raises RemotingError.

        A message with a property that a batch cannot honour is sent by itself, in its place.
        """
        for alone, run in itertools.groupby(messages, lambda one: not HONOURED_ALONE.isdisjoint(one.properties)):
            part = list(run)
            if alone or len(part) == 1:
                for one in part:
                    self._producer.send(one, queue_id=queue_id)
            else:
                self._producer.send_batch(part, queue_id=queue_id)


@final
class StoreTarget(AbstractContextManager["StoreTarget"]):
    """A store directory that no process has open; it is created if it is missing."""

    def __init__(self, path: str, config: StoreConfig | None = None) -> None:
        self._store = MessageStore.open(path, config=config, parts=StoreParts(services=False, must_write=True))

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def queues(self, topic: str) -> int:
        """How many queues of a topic can be written."""
        known = self._store.topics.select(topic)
        return known.write_queue_nums if known is not None else 0

    def create(self, topic: str, queues: int) -> None:
        """Create a topic."""
        self._store.topics.create_if_missing(topic, queues)

    def put(self, queue_id: int, messages: list[Message]) -> None:
        """Put messages and sync the store. Raises StoreError."""
        self._store.put_many(messages, queue_id=queue_id)
        self._store.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Selection and options of a replay.

    ``where`` is an SQL expression over the source's columns; ``options`` are further options of the source. ``rate``
    is in messages a second, 0 means no limit; ``window`` is in messages.
    """

    path: str
    topics: tuple[str, ...]
    where: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    to_topic: str = ""
    rate: float = 0.0
    keep_ids: bool = True
    window: int = 64
    progress: str = ""

    def check(self) -> None:
        """Raise ConfigError with every problem of the values."""
        problems = [
            f"{topic} is a system topic, whose messages only its broker can use"
            for topic in self.topics
            if topic in SYSTEM_TOPICS or topic.startswith(N.SYSTEM_TOPIC_PREFIX)
        ]
        if not self.topics:
            problems.append("no topic to replay is named")
        if self.rate < 0 or self.window < 1:
            problems.append("rate must not be negative, window at least 1")
        if own := {"path", "columns", "topic", "subscribe", "body"} & {n.lower() for n in self.options}:
            problems.append(f"{', '.join(sorted(own))}: replay sets this option of the source itself")
        if problems:
            raise ConfigError(*problems)

    def identity(self) -> dict[str, Any]:
        """Return the members by which a progress file is recognised as one of this replay."""
        return {
            "store": self.path, "topics": sorted(self.topics), "where": self.where,
            "toTopic": self.to_topic,
        }


def replay(
    spark: SparkSession, wanted: Replay, target: Target, *, clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> dict[str, Any]:
    """Send the selected messages; return a report.

    With a progress file the replay continues where the last run ended. It ends at the present end of the log.
    Raises ConfigError, CorruptionError if the progress file is invalid, and the errors of target and source.
    """
    wanted.check()
    progress = _Progress(wanted)
    sender = _Sender(wanted, target, progress, clock or SystemClock(), tell)
    if progress.position >= 0:
        tell(f"continuing after position {progress.position}, {progress.sent} messages are sent already")
    rows = chosen_rows(spark, wanted, progress.position).selectExpr("*", _STORED_MS).orderBy(
        "commitLogOffset", "queueOffset")
    progress.write()
    for window, position in _windows(rows.toLocalIterator(), wanted):
        sender.send(window, position)
    return {
        "sent": sender.sent, "sentBefore": progress.sent - sender.sent if wanted.progress else 0,
        "bytes": sender.bytes, "position": progress.position, "seconds": round(sender.seconds, 3),
    }


def chosen_rows(spark: SparkSession, wanted: Replay, position: int = -1) -> DataFrame:
    """Return the selected messages after a position. Raises an error for invalid filters and options."""
    reader = spark.read.format("tailrace").options(**wanted.options).option("body", "decoded")
    reader = reader.option("subscribe", ",".join(wanted.topics))
    if not wanted.where:
        reader = reader.option("columns", _COLUMNS)
    if position >= 0:
        start = max(position + 1, int(wanted.options.get("startingCommitLogOffset", 0)))
        reader = reader.option("startingCommitLogOffset", str(start))
    frame = reader.load(wanted.path)
    if wanted.where:
        frame = frame.where(wanted.where)
    return frame.select(*_COLUMNS.split(","))


def _windows(rows: Iterable[Row], wanted: Replay) -> Iterator[tuple[list[Row], int]]:
    """Yield rows that are sent together: at most a window, the rows of one second, or 1 MiB of bodies.

    The number is the position up to which the rows are complete. A window may end inside an inner batch, whose
    messages have one position; then the position is the one before, so that no message is left out.
    """
    most = min(wanted.window, max(int(wanted.rate), 1)) if wanted.rate else wanted.window
    held: list[Row] = []
    size = 0
    for row in rows:
        if held and (len(held) >= most or size + len(row["body"]) > _WINDOW_BYTES):
            last = held[-1]["commitLogOffset"]
            yield held, last - (row["commitLogOffset"] == last)
            held, size = [], 0
        held.append(row)
        size += len(row["body"])
    if held:
        yield held, held[-1]["commitLogOffset"]


def _message(row: Row, wanted: Replay) -> Message:
    properties = {
        name: value for name, value in row["properties"].items()
        if name and value and name not in _LEFT_OUT and not name.startswith(_LEFT_OUT_PREFIX)
        and (wanted.keep_ids or name != N.UNIQ_KEY)
    }
    properties[REPLAY_PROPERTY] = str(row["commitLogOffset"])
    if row["sysFlag"] & INNER_BATCH_BITS == INNER_BATCH_BITS:
        properties[REPLAY_PROPERTY] += f"/{row['queueOffset']}"
    # A send may have fewer bytes of properties than a message of an older release or of a Java broker has.
    more = sum(len(text.encode()) + 6 for text in (row["tags"] or "", *(row["keys"] or ())))
    properties, left_out = fitting(properties, frozenset({REPLAY_PROPERTY}), COPY_ROOM + _OF_BROKER + more)
    if left_out:
        log_left_out(row["topic"], properties[REPLAY_PROPERTY], wanted.to_topic or row["topic"], left_out)
    return Message(
        topic=wanted.to_topic or row["topic"], body=bytes(row["body"]), tags=row["tags"],
        keys=[key for key in row["keys"] or () if key], properties=properties, flag=row["flag"])


@final
class _Sender:
    """Sends windows at the given rate, and writes the progress after each."""

    def __init__(
        self, wanted: Replay, target: Target, progress: _Progress, clock: Clock, tell: Tell
    ) -> None:
        self._wanted = wanted
        self._target = target
        self._progress = progress
        self._clock = clock
        self._tell = tell
        self._queues: dict[str, int] = {}
        self._began = self._told = clock.monotonic_ns()
        self.sent = 0
        self.bytes = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (self._clock.monotonic_ns() - self._began) / 1e9

    def send(self, rows: list[Row], position: int) -> None:
        """Send a window when the rate allows it, and write the progress when it is answered."""
        groups: dict[tuple[str, int], list[Message]] = {}
        for row in rows:
            message = _message(row, self._wanted)
            queue_id = row["queueId"] % self._queues_of(message.topic, row["queueId"] + 1)
            groups.setdefault((message.topic, queue_id), []).append(message)
        if self._wanted.rate:
            ahead = self.sent / self._wanted.rate - self.seconds
            if ahead > 0:
                threading.Event().wait(ahead)
        for (_, queue_id), messages in groups.items():
            self._target.put(queue_id, messages)
        self.sent += len(rows)
        self.bytes += sum(len(row["body"]) for row in rows)
        self._progress.note(position, len(rows), (rows[-1]["commitLogOffset"], rows[-1]["storedMs"]))
        now = self._clock.monotonic_ns()
        if now - self._told > 1_000_000_000:
            self._told = now
            self._tell(f"{self.sent} messages sent, {self.sent / max(self.seconds, 1e-3):.0f} a second, "
                       f"up to {self._progress.position}")

    def _queues_of(self, topic: str, least: int) -> int:
        """Return the number of queues of a topic in the target; a missing topic is created."""
        if topic not in self._queues:
            found = self._target.queues(topic)
            if not found:
                self._target.create(topic, max(least, 4))
                found = self._target.queues(topic)
            self._queues[topic] = max(found, 1)
        return self._queues[topic]


@final
class _Progress:
    """The position up to which all messages were answered, in the progress file or else only in memory."""

    def __init__(self, wanted: Replay) -> None:
        self._identity = wanted.identity()
        self._path = wanted.progress
        self.position = -1
        self.sent = 0
        self._last: tuple[int, ...] = ()
        if not self._path or not Path(self._path).exists():
            return
        try:
            found = orjson.loads(Path(self._path).read_bytes())
            position, sent = int(found.pop("position")), int(found.pop("sent"))
            last = tuple(map(int, found.pop("last", ())))  # releases before have not written it
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(f"{self._path} is not a progress file of a replay: {error}") from error
        if found != self._identity:
            other = [name for name in self._identity if found.get(name) != self._identity[name]]
            raise ConfigError(
                f"{self._path} is of another replay: {', '.join(other)} differ; remove it to start again")
        if last and not _has_message(wanted.path, *last):
            raise ConfigError(
                f"{self._path} is of another store: {wanted.path} has another message at position {last[0]}, so the "
                "directory was replaced or restored; remove the file to start again")
        self.position, self.sent, self._last = position, sent, last

    def note(self, position: int, count: int, last: tuple[int, int]) -> None:
        """Note that all messages up to a position were answered; ``last`` is the last one. Raises OSError."""
        self.position, self._last = position, last
        self.sent += count
        self.write()

    def write(self) -> None:
        """Write the file, also before the first message: without it each run would send the first window again.

        Raises OSError.
        """
        if self._path:
            replace_file(
                OsFileSystem(), str(Path(self._path).absolute()),
                orjson.dumps({**self._identity, "position": self.position, "sent": self.sent, "last": self._last}))


def _has_message(path: str, position: int, stored_ms: int) -> bool:
    """Return whether the log of a directory has a message at a position that was stored at a time, or had it once."""
    directory = StoreDirectory(path)
    if position < directory.min_phy_offset:
        return True  # it has expired
    return store_timestamp_of(directory.read(position, STORE_TIME_HEAD)) == stored_ms
