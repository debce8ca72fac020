"""Tables about a store that are made to be plotted: plain columns, a row a point.

  traffic         messages and bytes of each topic over store time
  pending_timers  timers that are to come, as ``tailrace timers`` tells them
  timers_by_time  how many of them there are in each span of time
  lag             what each consumer group has still to consume
  retention       what deletions to come take: by segment and topic, with what would be lost
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from tailrace.config import StoreConfig, parse_properties
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, CorruptionError
from tailrace.formats import filenames
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.store.archive_manifest import read_manifest, wrong_file
from tailrace.store.directory import QueueView, StoreDirectory
from tailrace.store.queue_search import message_from
from tailrace.timer.properties import (
    PARKED_TOPIC,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
)

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
    text = Path(config_file).read_text("utf-8") if config_file else ""
    return StoreDirectory(path, config=StoreConfig.from_properties(parse_properties(text)))


def traffic(
    spark: SparkSession, path: str, *, bucket: str = "hour", config_file: str = ""
) -> DataFrame:
    """Messages and stored bytes: ``start, topic, messages, bytes``.

    Raises ConfigError for another bucket than minute, hour and day.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    start = _bucket(bucket, "storeTimestamp")
    return (
        _read(spark, path, "topic,storeTimestamp,storeSize", config_file)
        .groupBy(start.alias("start"), "topic")
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("bytes"))
        .orderBy("start", "topic")
    )


# -- timers


def pending_timers(spark: SparkSession, path: str, *, config_file: str = "") -> DataFrame:
    """Timers that are to come: ``topic, uniqKey, slotTime, commitLogOffset``.

    What counts is the CommitLog: the last copy of each timer in the timer queue, without those that
    a request deletes and those whose put-back record is there.
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
    """Timers to come: ``start, topic, pending``; raises ConfigError as ``traffic``."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    start = _bucket(bucket, "slotTime")
    return (
        pending_timers(spark, path, config_file=config_file)
        .groupBy(start.alias("start"), "topic").agg(f.count("*").alias("pending"))
        .orderBy("start", "topic"))


def timer_metrics(path: str, pending: Mapping[str, int]) -> list[dict[str, Any]]:
    """Topics whose count in ``config/timermetrics`` is not the pending one; none without the file."""
    file = Path(path) / filenames.CONFIG / "timermetrics"
    if not file.exists():
        return []
    try:
        counts = {
            topic: int(metric["count"])
            for topic, metric in orjson.loads(file.read_bytes())["timingCount"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{file} is no timermetrics: {error}") from error
    return [
        {"topic": topic, "pending": pending.get(topic, 0), "timermetrics": counts.get(topic, 0)}
        for topic in sorted(set(counts) | set(pending))
        if counts.get(topic, 0) != pending.get(topic, 0)
    ]


# -- consumers


def _committed(directory: StoreDirectory) -> list[tuple[str, str, int, int]]:
    """(topic, group, queue id, next offset) of what groups have committed."""
    offsets = ConsumerOffsetManager(
        directory.file_system, f"{directory.path}/{filenames.CONFIG}", SystemClock(),
        lmq=directory.config.enable_lmq)
    offsets.load()
    return sorted(offsets.entries())


def lag(spark: SparkSession, path: str, *, config_file: str = "") -> DataFrame:
    """What groups have still to consume, a row a queue.

    ``group, topic, queueId, committed, minOffset, maxOffset, lag, lost, waitingSince``: ``lost`` are
    messages that retention took before the group came to them, ``waitingSince`` the store time of
    the first one that waits. A queue of a topic that a group has no offset for is not in it.
    """
    directory = _directory(path, config_file)
    queues = {(queue.topic, queue.queue_id): queue for queue in directory.queues()}
    rows = []
    for topic, group, queue_id, offset in _committed(directory):
        queue = queues.get((topic, queue_id), QueueView(topic, queue_id))
        at = max(offset, queue.min_offset)
        rows.append((
            group, topic, queue_id, offset, queue.min_offset, queue.max_offset,
            max(queue.max_offset - at, 0), max(queue.min_offset - max(offset, 0), 0),
            _store_time(directory, queue, at)))
    frame = spark.createDataFrame(
        rows, "group string, topic string, queueId int, committed bigint, minOffset bigint, "
        "maxOffset bigint, lag bigint, lost bigint, waitingMs bigint")
    from pyspark.sql import functions as f  # noqa: PLC0415

    return frame.withColumn("waitingSince", f.timestamp_millis("waitingMs")).drop("waitingMs").orderBy(
        "group", "topic", "queueId")


def _store_time(directory: StoreDirectory, queue: QueueView, offset: int) -> int | None:
    """Store time of the first message from an offset on, in ms."""
    unit = message_from(queue, offset)
    stored = directory.store_time(unit) if unit is not None else None
    return stored if stored is not None and stored >= 0 else None


# -- retention


class Deletion(NamedTuple):
    """A segment that a pass may delete: [start, end) of the log, and why."""

    start: int
    end: int
    rule: str
    expires_ms: int


def retention(
    spark: SparkSession, path: str, deletions: Iterable[Deletion], *, archive: str = "",
    config_file: str = "",
) -> DataFrame:
    """What goes with some segments, a row for each of them and topic.

    ``segment, rule, expires, topic, messages, bytes, firstStored, lastStored, unconsumed, timers,
    archived``: ``unconsumed`` counts for each group that has an offset of the topic, ``timers`` are
    those still to come whose record goes, ``archived`` says whether the archive has the segment,
    verified; null without an archive. Damaged records are left out, logged and counted.
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
    """Whether a segment has a verified manifest whose files are there; None without an archive."""
    if not archive:
        return None
    manifest = read_manifest(OsFileSystem(), archive, segment)
    return manifest is not None and manifest.verified and not wrong_file(
        OsFileSystem(), archive, manifest)


def plain(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A row's members as JSON has them: times as text in UTC."""
    for name, value in row.items():
        yield name, value.isoformat() if hasattr(value, "isoformat") else value
