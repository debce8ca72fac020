"""Filters of a query as bounds of what is read. Spark applies the filters to the rows again.

Conditions on ``topic`` and ``queueId`` choose queues, those on ``commitLogOffset`` and
``storeTimestamp`` choose offsets. Times are found by bisection, as for ``startingTimestamp``: a
queue whose store times go back may lose rows at the bounds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tailrace.spark.source.checkpoints import Directory
from tailrace.spark.source.offsets import (
    Directories,
    Ranges,
    offset_by_position,
    offset_by_time,
)
from tailrace.store.consume_queue import ConsumeQueue

__all__ = ["Bounds", "bounds_of"]

_FOREVER: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Values that rows may have. None allows any value; positions and times (ms) are in [low, high)."""

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    low: int = 0
    high: int = _FOREVER
    since: int = 0
    until: int = _FOREVER

    def apply(self, directories: Directories, ranges: Ranges) -> Ranges:
        """Return the parts of ranges that may have such rows."""
        if self == Bounds():
            return ranges
        views = {
            (label, queue.topic, queue.queue_id): queue
            for label, directory in directories.items() for queue in directory.queues()}
        clipped = {
            key: self._clip(directories[key[0]], views[key], span)
            for key, span in ranges.items()
            if (self.topics is None or key[1] in self.topics)
            and (self.queues is None or key[2] in self.queues)
        }
        return {key: (start, end) for key, (start, end) in clipped.items() if start < end}

    def _clip(
        self, directory: Directory, queue: ConsumeQueue, span: tuple[int, int]
    ) -> tuple[int, int]:
        start, end = span
        if self.low > 0:
            start = max(start, offset_by_position(queue, self.low))
        if self.high < _FOREVER:
            end = min(end, offset_by_position(queue, self.high))
        if self.since > 0:
            start = max(start, offset_by_time(directory, queue, self.since))
        if self.until < _FOREVER:
            end = min(end, offset_by_time(directory, queue, self.until))
        return start, end


def _milliseconds(value: Any) -> int | None:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        return None
    since = value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return max(since // dt.timedelta(milliseconds=1), 0)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def bounds_of(filters: Sequence[Filter]) -> Bounds:
    """Return the bounds of all filters together. A filter that is not understood gives no bound."""
    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    spans = {"commitLogOffset": [0, _FOREVER], "storeTimestamp": [0, _FOREVER]}
    for one in filters:
        name = ".".join(getattr(one, "attribute", ()))
        if name in {"topic", "queueId"} and isinstance(one, EqualTo | In):
            values = frozenset(one.value if isinstance(one, In) else (one.value,))
            if name == "topic":
                topics = values if topics is None else topics & values
            else:
                queues = values if queues is None else queues & values
        elif name in spans and isinstance(
            one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            value = _number(one.value) if name == "commitLogOffset" else _milliseconds(one.value)
            if value is None:
                continue
            span = spans[name]
            if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
                span[0] = max(span[0], value)  # for ">" this is one row too many, which Spark filters out
            if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
                span[1] = min(span[1], value + 1)
    return Bounds(topics, queues, *spans["commitLogOffset"], *spans["storeTimestamp"])
