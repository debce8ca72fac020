"""Write queue units and index entries for records. Dispatching a record twice changes nothing.

``recovery.rebuild_dispatcher`` has the rules for records that do not continue their queue.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import numpy as np

from tailrace import events
from tailrace.config import MESSAGE_DELAY_LEVEL
from tailrace.errors import DispatchWaitsError
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.kernels import queue_units
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.store.batch_units import batch_units
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.hooks import Follower, MessageArrivingListener
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives
from tailrace.store.record_batch import RecordBatch, ShortBatch
from tailrace.store.sealing import sealed_rows
from tailrace.store.walk.scan import Rows

__all__ = [
    "SCHEDULE_TOPIC", "Dispatcher", "Run", "deliver_time_codes", "parse_delay_levels",
]

_log = get_logger(__name__)
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
_MAX_NAME: Final = 255
"""Longest name of a directory in bytes."""
_MOST_NAMES: Final = 10_000
"""Number of topics whose names are kept decoded."""
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str = MESSAGE_DELAY_LEVEL) -> list[int]:
    """Return the delay of each level in ms; the first item is level 1."""
    return [int(level[:-1]) * _UNIT_MS[level[-1]] for level in text.split()]


def deliver_time_codes(data: Any, rows: Rows, levels: list[int]) -> None:
    """Replace the tags code of records of SCHEDULE_TOPIC_XXXX by their delivery time in ms."""
    for row in np.flatnonzero(rows[:, C.DELAY_LEVEL] > 0).tolist():
        at, length, level, stored = rows[
            row, [C.TOPIC_POS, C.TOPIC_LEN, C.DELAY_LEVEL, C.STORE_TIMESTAMP]
        ].tolist()
        if length == len(_SCHEDULE) and data[at : at + length] == _SCHEDULE:
            rows[row, C.TAGS_CODE] = stored + levels[min(level, len(levels)) - 1]


class Run(NamedTuple):
    """Records of a queue whose queue offsets follow each other."""

    chosen: Rows
    """Numbers of their rows."""
    start: int
    """Queue offset of the first message."""
    end: int
    """Queue offset after the last message."""
    units: memoryview
    """Units of the records as they are stored."""
    following: int
    """Queue offset of the first message of the queue's next run, -1 without one."""
    phy_offset: int
    """Position of the last record."""
    store_timestamp: int
    """Store time of the last record, ms."""
    size: int
    """Length of the records together, bytes."""
    codes: list[int]
    """Tags code of each record, if there is a listener."""


class Dispatcher:
    """Writes the queue units and the index entries of records that follow those dispatched before.

    A recovery ends queues and index at the end of the log, and a put takes its queue offset from there. So a record
    continues its queue, except in a dispatch that is repeated because it failed.
    """

    appends = True
    """Whether units that continue their queue are written without a look at what is on disk after its end."""

    def __init__(
        self, queues: ConsumeQueueStore, index: IndexService | None, levels: list[int], lives: EndedLives,
        listeners: list[MessageArrivingListener],
    ) -> None:
        self._queues = queues
        self._listeners = listeners
        self._lives = lives
        self._index = index
        self._levels = levels
        self._topics: dict[bytes, str] = {}
        self.follower: Follower | None = None
        """On a slave whose broker runs: what knows the topics of its master."""
        self._begun: dict[tuple[str, int], int] = {}
        """By topic and queue id, the position at which a queue of a slave has begun again since the start."""
        self._begun_until = 0

    def begin_again(self, topic: str, queue_id: int, phy_offset: int) -> None:
        """Write no unit of a queue for records before a position; called while nothing is dispatched."""
        self._begun[topic, queue_id] = phy_offset
        self._begun_until = max(self._begun_until, phy_offset)

    def new_batch(self) -> RecordBatch:
        """Return an empty batch for ``add``."""
        return RecordBatch(with_keys=self._index is not None)

    def new_short_batch(self, check: int) -> ShortBatch:
        """Return the batch for ``dispatch_short``; ``check`` are flags C.CHECK_*."""
        return ShortBatch(with_keys=self._index is not None, check=check)

    def add(self, batch: RecordBatch, data: Any, rows: Rows) -> None:
        """Add to a batch what units and entries of these records are made of.

        Several threads may call it, each with its own batch.
        """
        odd = bool(np.count_nonzero(rows[:, C.KIND]))
        if odd:
            batch.sealed += sealed_rows(data, rows)
            deliver_time_codes(data, rows, self._levels)
        batch.add(data, rows, odd=odd)

    def dispatch_short(self, batch: ShortBatch, data: Any, size: int, phy_offset: int) -> bool:
        """Write units and entries of the records in ``data[:size]``, which are at ``phy_offset`` of the log.

        Return False, without a change, if they are many, or if one needs more than a unit in a queue of units and index
        entries; they need ``dispatch_batch`` then. Raises what that raises.
        """
        if phy_offset < max(self._lives.until, self._begun_until) or not batch.read(data, size, phy_offset):
            return False
        names, runs = batch.runs(bool(self._listeners))
        bounds, rows, order = batch.bounds, batch.rows, batch.order
        queues: list[ConsumeQueue | None] = []
        for number, (raw, queue_id) in enumerate(names):
            queue = self._queues.table.get((self._topics.get(raw, ""), queue_id))
            if queue is None:
                try:
                    queue = self._queue_of(raw, queue_id, rows, order[bounds[number] : bounds[number + 1]])
                except DispatchWaitsError:
                    return False
            if queue is not None and queue.is_batch:
                return False
            queues.append(queue)
        self._write_runs(rows, order, queues, runs, batch.units, {})
        if self._index is not None:
            self._index.put(batch)
        return True

    def dispatch_batch(self, batch: RecordBatch) -> None:
        """Write units and entries of the records of a batch.

        Raises DiskFullError, OSError or DispatchWaitsError; the same records may then be dispatched again. Before
        DispatchWaitsError the units of the records are written that are before the first one that waits.
        """
        self._write_units(batch)
        if self._index is not None:
            self._index.put(batch)

    def _write_units(self, batch: RecordBatch) -> None:
        rows = batch.rows
        order, bounds, known = batch.sorted()
        if len(order) and int(rows[0, C.PHY]) < max(self._lives.until, self._begun_until):
            order, bounds = self._without_ended(rows, order, bounds, known)
        queues: list[ConsumeQueue | None] = []
        waits: DispatchWaitsError | None = None
        stop = 1 << 62
        for (topic, queue_id), (first, last) in zip(known, itertools.pairwise(bounds.tolist()), strict=True):
            queues.append(None)
            try:
                if first < last:
                    queues[-1] = self._queue_of(topic, queue_id, rows, order[first:last])
            except DispatchWaitsError as error:  # the other topics are asked for as well
                waits, stop = error, min(stop, int(rows[order[first], C.PHY]))
        if waits is not None:
            order, bounds = _only(rows[order, C.PHY] < stop, order, bounds)
        if len(order):
            units = bytearray(CQ_UNIT.size * len(order))
            runs = queue_units.build_units(rows, order, bounds, units, bool(self._listeners))
            self._write_runs(rows, order, queues, runs, memoryview(units), batch.inner_counts)
            for number, queue in enumerate(queues):
                if queue is not None and queue.is_batch:
                    self._write_batches(queue, batch, order[bounds[number] : bounds[number + 1]])
        if waits is not None:
            raise waits

    def _write_runs(
        self, rows: Rows, order: Rows, queues: list[ConsumeQueue | None], runs: list[Any], units: memoryview,
        inner_counts: dict[int, int],
    ) -> None:
        """Write the runs of ``queue_units.build_units`` but those of batch queues; ``units`` are those of ``order``."""
        may_append, dirty, listeners = self.appends and not inner_counts, self._queues.dirty, self._listeners
        for number, first, last, start, newest, following, phy_offset, stored, size, codes in runs:
            queue = queues[number]
            if queue is None or queue.is_batch:
                continue
            part = units[first * CQ_UNIT.size : last * CQ_UNIT.size]
            if may_append and start == queue.max_offset and queue.append(part):
                # As `_write_run` would do, without the calls for what a run may also need.
                dirty.add(queue)
                queue.last_store_timestamp, queue.last_phy_offset = stored, phy_offset
                for listener in listeners:
                    listener.arriving(queue.topic, queue.queue_id, queue.max_offset, codes, size)
                continue
            count = inner_counts.get(int(order[last - 1]), 1) if inner_counts and queue.record_topic else 1
            end = newest + count
            self._write_run(queue, rows, Run(
                order[first:last], start, end, part, following, phy_offset, stored, size, codes))
            if count > 1 and queue.max_offset == end - count + 1:
                # An inner batch whose topic is not known to have batch queues: keep the places of its messages.
                queue.continue_at(end)

    def _without_ended(
        self, rows: Rows, order: Rows, bounds: Rows, known: list[tuple[bytes, int]]
    ) -> tuple[Rows, Rows]:
        """Return ``order`` and ``bounds`` without the records of ended lives, which get no units."""
        ends = np.array([
            max(self._lives.deleted_up_to(name := self._name_of(raw)), self._begun.get((name, queue_id), 0))
            for raw, queue_id in known], dtype=np.int64)
        return _only(rows[order, C.PHY] >= np.repeat(ends, np.diff(bounds)), order, bounds)

    def _write_batches(self, queue: ConsumeQueue, batch: RecordBatch, chosen: Rows) -> None:
        """Write units of a batch queue, one for each record."""
        rows = batch.rows
        counts = np.array([batch.inner_counts.get(number, 1) for number in chosen.tolist()], dtype=np.int64)
        offsets = rows[chosen, C.QUEUE_OFFSET]
        ends = offsets + counts
        units = batch_units(rows, chosen, counts)
        breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
        for first, last in itertools.pairwise([0, *breaks.tolist(), len(chosen)]):
            part = memoryview(units)[first * queue.unit_size : last * queue.unit_size]
            following, among = int(offsets[last]) if last < len(chosen) else -1, rows[chosen[first:last]]
            phy_offset, stored = among[-1, [C.PHY, C.STORE_TIMESTAMP]].tolist()
            self._write_run(queue, rows, Run(
                chosen[first:last], int(offsets[first]), int(ends[last - 1]), part, following, phy_offset, stored,
                int(among[:, C.SIZE].sum()), among[:, C.TAGS_CODE].tolist()))

    def _queue_of(self, raw: bytes, queue_id: int, rows: Rows, chosen: Rows) -> ConsumeQueue | None:
        """Return the queue of a topic (bytes), or None if the topic cannot be the name of a directory."""
        topic = self._name_of(raw)
        if not topic:
            events.NO_QUEUE_FOR_A_TOPIC_THAT_CANNOT_BE_A_DIRECTORY.log(
                _log, topic=repr(raw.decode("utf-8", "replace")), count=len(chosen),
                phy_offset=rows[chosen[0], C.PHY])
            return None
        if self.follower is not None and self._queues.get(topic, queue_id) is None:
            self.follower.may_create(topic)
        return self._queues.find_or_create(topic, queue_id)

    def _name_of(self, raw: bytes) -> str:
        """Return the name of a topic, empty if it cannot be that of a directory."""
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) >= _MOST_NAMES:
                self._topics.clear()
            topic = raw.decode("utf-8", "replace")
            is_legal = topic not in {".", ".."} and "/" not in topic and "\0" not in topic and len(raw) <= _MAX_NAME
            topic = self._topics[raw] = topic if is_legal else ""
        return topic

    def _write_run(self, queue: ConsumeQueue, rows: Rows, run: Run) -> None:
        """Write the units of a run. Those below the end of the queue were written by a dispatch that has failed.

        On a slave the queue may also begin again, after its topic was deleted.
        """
        if self.follower is not None and run.start == 0 < queue.max_offset and not queue.is_batch:
            last, phy_offset = queue.unit(queue.max_offset - 1), int(rows[run.chosen[0], C.PHY])
            if last is not None and last.size != PRE_BLANK_SIZE and last.phy_offset < phy_offset:
                self.follower.begins_again(queue.topic, queue.queue_id, phy_offset)
        skip = self._below_end(queue, rows, run) if run.start < queue.max_offset else 0
        if run.start >= 0 and skip < len(run.chosen):
            self._write(queue, rows, run, skip, PRE_BLANK)

    @staticmethod
    def _below_end(queue: ConsumeQueue, rows: Rows, run: Run) -> int:
        """Return the number of records of a run whose queue offset is below the end of the queue."""
        return int(np.searchsorted(rows[run.chosen, C.QUEUE_OFFSET], queue.max_offset))

    def _write(self, queue: ConsumeQueue, rows: Rows, run: Run, skip: int, gap: bytes) -> None:
        """Write the units of a run but the first ``skip``, and ``gap`` for messages that are missing before them."""
        if skip:
            chosen = run.chosen[skip:]
            run = run._replace(
                start=int(rows[chosen[0], C.QUEUE_OFFSET]) if len(chosen) else run.end,
                units=run.units[skip * queue.unit_size :], size=int(rows[chosen, C.SIZE].sum()), codes=run.codes[skip:])
        if len(run.units):
            if run.start > queue.max_offset and queue.files.files:
                self._log_gap(queue, run.start)
            queue.write(run.start, run.units, gap=gap)
        self._queues.dirty.add(queue)
        queue.last_store_timestamp, queue.last_phy_offset = run.store_timestamp, run.phy_offset
        for listener in self._listeners:
            listener.arriving(queue.topic, queue.queue_id, queue.max_offset, run.codes, run.size)

    @staticmethod
    def _log_gap(queue: ConsumeQueue, start: int) -> None:
        events.MAYBE_LOGIC_QUEUE_ORDER_WRONG.log(
            _log, topic=queue.topic, queue_id=queue.queue_id, expected=queue.max_offset, actual=start)


def _only(chosen: Any, order: Rows, bounds: Rows) -> tuple[Rows, Rows]:
    """Return ``order`` and ``bounds`` with only the chosen ones of ``order``."""
    if chosen.all():
        return order, bounds
    left = np.concatenate([[0], np.cumsum(chosen, dtype=np.int64)])
    return order[chosen], left[bounds]
