"""Tables about a store that are made to be plotted: plain columns, a row a point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BUCKETS", "traffic"]

BUCKETS: Final = ("minute", "hour", "day")


def traffic(
    spark: SparkSession, path: str, *, bucket: str = "hour", config_file: str = ""
) -> DataFrame:
    """Messages and stored bytes of each topic over store time: ``start, topic, messages, bytes``.

    Raises ConfigError for another bucket than minute, hour and day.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - with a session alone

    if bucket not in BUCKETS:
        raise ConfigError(f"{bucket} is not one of {', '.join(BUCKETS)}")
    reader = spark.read.format("tailrace").option("columns", "topic,storeTimestamp,storeSize")
    if config_file:
        reader = reader.option("config", config_file)
    return (
        reader.load(path)
        .groupBy(f.date_trunc(bucket, "storeTimestamp").alias("start"), "topic")
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("bytes"))
        .orderBy("start", "topic")
    )
