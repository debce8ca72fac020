"""Tables about a store that are easy to plot: plain columns, one row for each point.

  traffic         messages and bytes of each topic over store time
  pending_timers  pending timers, as ``tailrace timers`` lists them
  timers_by_time  number of pending timers in each period of time
  lag             lag of each consumer group
  retention       contents of segments that will be deleted, by topic, with what would be lost
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.errors import ConfigError, CorruptionError
from tailrace.formats import filenames
from tailrace.formats.names import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
)
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.properties import settings_in
from tailrace.store.archive_manifest import read_manifest, wrong_file
from tailrace.store.archive_store import archive_at
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.queue_search import message_from
from tailrace.timer.properties import PARKED_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "BUCKETS", "Deletion", "lag", "pending_timers", "plain", "retention", "timer_metrics", "timers_by_time",
    "traffic",
]

BUCKETS: Final = ("minute", "hour", "day")


def _bucket(bucket: str, column: Column | str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - with a session alone

    if bucket not in BUCKETS:
        raise ConfigError(f"{bucket} is not one of {', '.join(BUCKETS)}")
    return f.date_trunc(bucket, column)


def _read(
    spark: SparkSession, path: str, columns: str, config_file: str, topics: Iterable[str] = (),
    **options: str,
) -> DataFrame:
    reader = spark.read.format("tailrace").option("columns", columns).options(**options)
    if config_file:
        reader = reader.option("config", config_file)
    if names := ",".join(sorted(topics)):
        reader = reader.option("subscribe", names)
    return reader.load(path)


def _directory(path: str, config_file: str) -> StoreDirectory:
    data = Path(config_file).read_bytes() if config_file else b""
    return StoreDirectory(path, config=StoreConfig.from_properties(settings_in(data, config_file)))


def traffic(
    spark: SparkSession, path: str, *, bucket: str = "hour", config_file: str = "", archive: str = ""
) -> DataFrame:
    """Return messages and stored bytes by time: ``start, topic, messages, bytes``.

    Messages that the log no longer has are read from ``archive``. Raises ConfigError if the bucket is not minute, hour
    or day.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    start = _bucket(bucket, "storeTimestamp")
    return (
        _read(spark, path, "topic,storeTimestamp,storeSize", config_file,
              **({"fallback": "archive", "archive": archive} if archive else {}))
        .groupBy(start.alias("start"), "topic")
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("bytes"))
        .orderBy("start", "topic")
    )


# -- timers


def pending_timers(spark: SparkSession, path: str, *, config_file: str = "") -> DataFrame:
    """Return pending timers: ``topic, uniqKey, slotTime, commitLogOffset``.

    They are read from the CommitLog: the last copy of each timer in the timer queue, without timers that were
    recalled and timers that were delivered.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = {queue.topic for queue in _directory(path, config_file).queues()}
    if TIMER_TOPIC not in names:
        return spark.createDataFrame(
            [], "topic string, uniqKey string, slotTime timestamp, commitLogOffset bigint")
    columns = "topic,queueOffset,commitLogOffset,properties"

    def held(topics: Iterable[str]) -> DataFrame:
        of = f.col("properties")
        return _read(spark, path, columns, config_file, topics).select(
            f.coalesce(of[REAL_TOPIC], f.lit("")).alias("topic"), f.nullif(of[UNIQ_KEY], f.lit("")).alias("uniqKey"),
            of[TIMER_OUT_MS].try_cast("bigint").alias("out"), of[TIMER_DEL_UNIQKEY].alias("deletes"),
            "queueOffset", "commitLogOffset",
        ).where("out is not null")

    queue = held([TIMER_TOPIC]).where("topic != ''").cache()
    asked = queue.where("deletes is not null").select("topic", "out", "deletes")
    # The key of a request is that of a timer of its own topic, with the topic before it or without.
    whole = f.col("deletes").startswith(f.concat("topic", f.lit("+")))
    stripped = f.expr("substring(deletes, length(topic) + 2)")
    deleted = asked.select("topic", "out", f.col("deletes").alias("uniqKey")).unionByName(
        asked.where(whole).select("topic", "out", stripped.alias("uniqKey")))
    timers = queue.where("deletes is null")
    # The last copy of each timer; timers without a unique key cannot be recognised as copies.
    latest = (
        timers.where("uniqKey is not null").groupBy("topic", "uniqKey", "out")
        .agg(f.max_by("commitLogOffset", "queueOffset").alias("commitLogOffset")))
    plain = timers.where("uniqKey is null").select("topic", "uniqKey", "out", "commitLogOffset")
    real = {row["topic"] for row in timers.select("topic").distinct().collect()}
    topics = (real | {PARKED_TOPIC}) & names
    if topics:
        identity = ["topic", "uniqKey", "out"]
        delivered = held(topics).select(identity).distinct()
        latest = latest.join(delivered, identity, "left_anti")
    latest = latest.join(deleted, ["topic", "uniqKey", "out"], "left_anti")
    return latest.select("topic", "uniqKey", "out", "commitLogOffset").unionByName(plain).select(
        "topic", "uniqKey", f.timestamp_millis("out").alias("slotTime"), "commitLogOffset")


def timers_by_time(
    spark: SparkSession, path: str, *, bucket: str = "hour", config_file: str = ""
) -> DataFrame:
    """Return the number of pending timers by time: ``start, topic, pending``. Raises ConfigError as ``traffic``."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    start = _bucket(bucket, "slotTime")
    return (
        pending_timers(spark, path, config_file=config_file)
        .groupBy(start.alias("start"), "topic").agg(f.count("*").alias("pending"))
        .orderBy("start", "topic"))


def timer_metrics(path: str, pending: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the topics whose count in ``config/timermetrics`` differs from ``pending``; empty without the file."""
    file = Path(path) / filenames.CONFIG / "timermetrics"
    if not file.exists():
        return []
    try:
        counts = {
            topic: int(metric["count"])
            for topic, metric in orjson.loads(file.read_bytes())["timingCount"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{file} is not a file of timer metrics: {error}") from error
    return [
        {"topic": topic, "pending": pending.get(topic, 0), "timermetrics": counts.get(topic, 0)}
        for topic in sorted(set(counts) | set(pending))
        if counts.get(topic, 0) != pending.get(topic, 0)
    ]


# -- consumers


def _committed(directory: StoreDirectory) -> list[tuple[str, str, int, int]]:
    """Return (topic, group, queue id, next offset) for each committed offset."""
    offsets = ConsumerOffsetManager.of_stopped(
        directory.file_system, f"{directory.path}/{filenames.CONFIG}", SystemClock())
    offsets.load()
    return sorted(offsets.entries())


def lag(spark: SparkSession, path: str, *, config_file: str = "") -> DataFrame:
    """Return the lag of groups, with a row for each queue.

    ``group, topic, queueId, committed, minOffset, maxOffset, lag, lost, waitingSince``: ``lost`` are messages that
    were deleted before the group consumed them; ``waitingSince`` is the store time of the first message that waits.
    Queues for which a group has no offset are left out.
    """
    directory = _directory(path, config_file)
    queues = {(queue.topic, queue.queue_id): queue for queue in directory.queues()}
    rows = []
    for topic, group, queue_id, offset in _committed(directory):
        queue = queues.get((topic, queue_id))
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        at = max(offset, low)
        begin = directory.lives.begin(topic, queue_id)  # no message of a topic that was deleted before is lost
        rows.append((
            group, topic, queue_id, offset, low, high, max(high - at, 0), max(low - max(offset, begin), 0),
            _store_time(directory, queue, at)))
    frame = spark.createDataFrame(
        rows, "group string, topic string, queueId int, committed bigint, minOffset bigint, "
        "maxOffset bigint, lag bigint, lost bigint, waitingMs bigint")
    from pyspark.sql import functions as f  # noqa: PLC0415

    return frame.withColumn("waitingSince", f.timestamp_millis("waitingMs")).drop("waitingMs").orderBy(
        "group", "topic", "queueId")


def _store_time(directory: StoreDirectory, queue: ConsumeQueue | None, offset: int) -> int | None:
    """Return the store time, ms, of the first message at or after an offset; None if it is unknown."""
    unit = message_from(queue, offset) if queue is not None else None
    stored = directory.store_time(unit) if unit is not None else None
    return stored if stored is not None and stored >= 0 else None


# -- retention


class Deletion(NamedTuple):
    """A segment that a pass may delete: [start, end) of the log, and the rule."""

    start: int
    end: int
    rule: str
    expires_ms: int


def retention(
    spark: SparkSession, path: str, deletions: Iterable[Deletion], *, archive: str = "",
    config_file: str = "",
) -> DataFrame:
    """Return what is deleted with some segments, with a row for each segment and topic.

    ``segment, rule, expires, topic, messages, bytes, firstStored, lastStored, unconsumed, timers,
    archived``: ``unconsumed`` has the number of messages for each group with an offset on the topic; ``timers`` is
    the number of pending timers whose record is deleted; ``archived`` is True if the archive has the segment,
    verified, and null without an archive. Damaged records are left out, logged and counted.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    chosen = sorted(deletions)
    segments = f.broadcast(spark.createDataFrame(
        [(*one, _archived(archive, one.start)) for one in chosen],
        "segment bigint, until bigint, rule string, ms bigint, archived boolean",
    ).withColumn("expires", f.timestamp_millis("ms")).drop("ms"))
    groups = f.broadcast(spark.createDataFrame(
        [(topic, queue_id, group, offset)
         for topic, group, queue_id, offset in _committed(_directory(path, config_file))],
        "topic string, queueId int, group string, committed bigint"))
    here = f.expr("commitLogOffset >= segment and commitLogOffset < until")
    messages = _read(
        spark, path, "topic,queueId,queueOffset,commitLogOffset,storeSize,storeTimestamp",
        config_file, mode="DROPMALFORMED",
        endingCommitLogOffset=str(max((one.end for one in chosen), default=0)),
    ).join(segments, here)
    by = ["segment", "topic"]
    sums = messages.groupBy("segment", "rule", "expires", "archived", "topic").agg(
        f.count("*").alias("messages"), f.sum("storeSize").alias("bytes"),
        f.min("storeTimestamp").alias("firstStored"), f.max("storeTimestamp").alias("lastStored"))
    waiting = (
        messages.join(groups, ["topic", "queueId"]).where("queueOffset >= committed")
        .groupBy(*by, "group").agg(f.count("*").alias("n")).groupBy(*by)
        .agg(f.map_from_entries(f.collect_list(f.struct("group", "n"))).alias("unconsumed")))
    timers = (
        pending_timers(spark, path, config_file=config_file).select("commitLogOffset")
        .join(segments, here).groupBy("segment").agg(f.count("*").alias("timers"))
        .withColumn("topic", f.lit(TIMER_TOPIC)))
    return (
        sums.join(waiting, by, "left").join(timers, by, "left").fillna(0, ["timers"])
        .select("segment", "rule", "expires", "topic", "messages", "bytes", "firstStored",
                "lastStored", "unconsumed", "timers", "archived")
        .orderBy("segment", "topic"))


def _archived(archive: str, segment: int) -> bool | None:
    """Return whether a segment has a verified manifest whose files exist; None without an archive."""
    if not archive:
        return None
    there = archive_at(archive)
    manifest = read_manifest(there, segment)
    return manifest is not None and manifest.verified and not wrong_file(there, manifest)


def plain(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a row in the form of JSON: times are text in UTC."""
    for name, value in row.items():
        yield name, value.isoformat() if hasattr(value, "isoformat") else value
