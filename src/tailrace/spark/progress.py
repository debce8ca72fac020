"""Lag of a stream: messages and bytes that a query still has to read from its stores.

Spark 4.3 shows no metrics of a Python source in ``query.lastProgress``, because its stream does not report any to
Java. But the progress has the offsets that were read and the latest ones. The function ``behind`` computes the lag
from these, and ``ProgressListener`` logs it after every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from tailrace import events
from tailrace.errors import StoreError
from tailrace.logs import get_logger
from tailrace.spark.offset_ranges import units_of
from tailrace.spark.source.checkpoints import from_json
from tailrace.spark.source.offsets import Offsets, open_directories
from tailrace.spark.source.options import ReadOptions, parse_options
from tailrace.spark.source.schema import column_names

__all__ = ["Behind", "ProgressListener", "behind"]

_log = get_logger(__name__)


class Behind(NamedTuple):
    """Lag of a query: messages by offsets, bytes of their records in the log.

    ``bytes`` counts only messages that the log still has, not those of an archive.
    """

    messages: int
    bytes: int


def behind(
    source: Mapping[str, Any], options: Mapping[str, str] | ReadOptions
) -> Behind:
    """Return the lag of a source of a query's progress.

    ``source`` is one of ``query.lastProgress["sources"]``; ``options`` are those of the stream, with
    ``path``. Reads 20 bytes of the queues for each message. Raises StoreError for a progress of
    another source, ConfigError for bad options.
    """
    if not isinstance(options, ReadOptions):
        options = parse_options(options, column_names)
    labels = tuple(label for label, _ in options.roots)
    read, latest = (_offsets(source, name, labels) for name in ("endOffset", "latestOffset"))
    messages = size = 0
    for label, directory in open_directories(options).items():
        for queue in directory.queues():
            key = label, queue.topic, queue.queue_id
            start, end = read.get(key, 0), latest.get(key, 0)
            messages += max(end - start, 0)
            if start < end:
                units = units_of(queue, max(start, queue.min_offset), end, 0)
                size += int(units["size"].astype("int64").sum())
    return Behind(messages, size)


def _offsets(source: Mapping[str, Any], name: str, labels: tuple[str, ...]) -> Offsets:
    value = source.get(name)
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError as error:
            raise StoreError(f"{name} of the progress is not JSON: {value}") from error
    return {} if value is None else from_json(value, labels).offsets


class ProgressListener(StreamingQueryListener):
    """Logs the lag of queries after every batch: ``spark.streams.addListener(...)``.

    ``options`` are those of the stream, with ``path``; ``name`` restricts it to the query of this name.
    """

    def __init__(self, options: Mapping[str, str], name: str | None = None) -> None:
        self._options = parse_options(options, column_names)
        self._name = name
        self.last: Behind | None = None
        """Lag after the last batch."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log the lag of the query."""
        progress = event.progress
        if self._name is not None and progress.name != self._name:
            return
        for source in progress.sources:
            try:
                self.last = behind(
                    {"endOffset": source.endOffset, "latestOffset": source.latestOffset},
                    self._options)
            except (StoreError, OSError) as error:
                events.CANNOT_COMPUTE_THE_LAG_OF_A_STREAM.log(_log, query=progress.name or progress.id, cause=error)
                continue
            events.LAG_OF_A_STREAM.log(
                _log, query=progress.name or progress.id, batch=progress.batchId, messages=self.last[0],
                bytes=self.last[1])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: an idle query has read everything."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""
