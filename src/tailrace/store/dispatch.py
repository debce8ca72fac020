"""Write queue units and index entries for records. Live dispatch and recovery use the same code.

Dispatching a record twice changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np

from tailrace import events
from tailrace.config import MESSAGE_DELAY_LEVEL
from tailrace.formats.commitlog import SysFlag
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.kernels import queue_units
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.store.batch_units import batch_units
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.hooks import MessageArrivingListener
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives, begin_after, has_ended
from tailrace.store.record_batch import RecordBatch
from tailrace.store.sealing import sealed_rows
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import Rows

__all__ = [
    "SCHEDULE_TOPIC", "Dispatcher", "NextOffset", "damaged_unit", "deliver_time_codes",
    "parse_delay_levels",
]

_log = get_logger(__name__)
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)
_MAX_NAME: Final = 255
"""Longest name of a directory in bytes."""
_MOST_NAMES: Final = 10_000
"""Number of topics whose names are kept decoded."""
NextOffset = Callable[[str, int, int], int]
"""(topic, queue id, position): queue offset of the queue's first record at or after a position, -1 if not near."""
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


class _Run(NamedTuple):
    """Records of a queue whose queue offsets follow each other."""

    chosen: Rows
    """Numbers of their rows."""
    start: int
    """Queue offset of the first message."""
    end: int
    """Queue offset after the last message."""
    units: memoryview
    """Units of the records as they are stored."""


@final
class Dispatcher:
    """Writes the queue units and the index entries of records."""

    def __init__(
        self, queues: ConsumeQueueStore, index: IndexService | None, levels: list[int], lives: EndedLives,
    ) -> None:
        self._queues = queues
        self._lives = lives
        self._index = index
        self._levels = levels
        self._topics: dict[bytes, str] = {}
        self._damage: dict[int, Damage] = {}
        """Damage by its position, in the order of the log."""
        self._newest = 0
        self._next_offset: NextOffset | None = None
        """Set while a recovery rebuilds queues."""
        self.listener: MessageArrivingListener | None = None

    @contextlib.contextmanager
    def rebuilding(self, next_offset: NextOffset) -> Iterator[None]:
        """Context in which records of a recovery are dispatched.

        Units that are on disk after the end of a queue are compared, and written only if they differ.
        ``next_offset`` looks ahead in the log if the next record of the queue must decide about a record.
        """
        self._next_offset = next_offset
        try:
            yield
        finally:
            self._next_offset = None

    def new_batch(self) -> RecordBatch:
        """Return an empty batch for ``add``."""
        return RecordBatch(with_keys=self._index is not None)

    def add(self, batch: RecordBatch, data: Any, rows: Rows) -> None:
        """Add to a batch what units and entries of these records are made of.

        Several threads may call it, each with its own batch.
        """
        odd = queue_units.odd_rows(rows, _INNER_BATCH)
        if odd:
            batch.sealed += sealed_rows(data, rows)
            deliver_time_codes(data, rows, self._levels)
        batch.add(data, rows, odd=odd)

    def dispatch_batch(self, batch: RecordBatch) -> None:
        """Write units and entries of the records of a batch.

        Raises DiskFullError or OSError; the same records may then be dispatched again.
        """
        self._damage.update((damage.phy_offset, damage) for damage in batch.sealed)
        self._write_units(batch)
        if self._index is not None:
            self._index.put(batch)

    def note_damage(self, damage: Damage) -> None:
        """Note damage, so that units of messages that are missing after it cover the damaged bytes.

        If the damaged record still names its queue and offset and is the next one of that queue, its unit
        is written immediately.
        """
        self._damage[damage.phy_offset] = damage
        claim = damage.claim
        if claim is not None and claim.has_unit and damage.phy_offset >= self._lives.deleted_up_to(claim.topic):
            queue = self._queues.get(claim.topic, claim.queue_id)
            if queue is not None and queue.files.files and queue.max_offset == claim.queue_offset:
                queue.write_one(claim.queue_offset, damaged_unit(damage), claim.count)
                queue.last_phy_offset = damage.phy_offset
                self._queues.dirty.add(queue)

    def _write_units(self, batch: RecordBatch) -> None:
        rows = batch.rows
        order, bounds, known = batch.sorted()
        if len(order) and int(rows[0, C.PHY]) < self._lives.until:
            order, bounds = self._without_ended(rows, order, bounds, known)
        if len(order):
            queues = [
                self._queue_of(topic, queue_id, rows, order[first:last]) if first < last else None
                for (topic, queue_id), (first, last) in zip(known, itertools.pairwise(bounds.tolist()), strict=True)]
            units = bytearray(CQ_UNIT.size * len(order))
            runs = queue_units.build_units(rows, order, bounds, units)
            view = memoryview(units)
            for (number, first, last, start, newest), next_run in itertools.zip_longest(runs, runs[1:]):
                queue = queues[number]
                if queue is not None and not queue.is_batch:
                    following = next_run[3] if next_run is not None and next_run[0] == number else -1
                    part = view[first * CQ_UNIT.size : last * CQ_UNIT.size]
                    count = (
                        batch.inner_counts.get(int(order[last - 1]), 1)
                        if batch.inner_counts and queue.record_topic else 1)
                    end = newest + count
                    self._write_run(queue, rows, _Run(order[first:last], start, end, part), following)
                    if count > 1 and queue.max_offset == end - count + 1:
                        # An inner batch whose topic is not known to have batch queues: keep the places of its messages.
                        queue.continue_at(end)
            for number, queue in enumerate(queues):
                if queue is not None and queue.is_batch:
                    self._write_batches(queue, batch, order[bounds[number] : bounds[number + 1]])
        if len(rows):
            self._newest = max(self._newest, int(rows[-1, C.STORE_TIMESTAMP]))

    def _without_ended(
        self, rows: Rows, order: Rows, bounds: Rows, known: list[tuple[bytes, int]]
    ) -> tuple[Rows, Rows]:
        """Return ``order`` and ``bounds`` without the records of ended lives, which get no units."""
        ends = np.array([self._lives.deleted_up_to(self._name_of(raw)) for raw, _ in known], dtype=np.int64)
        counts = np.diff(bounds)
        kept = rows[order, C.PHY] >= np.repeat(ends, counts)
        if kept.all():
            return order, bounds
        left = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])
        return order[kept], left[bounds]

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
            following = int(offsets[last]) if last < len(chosen) else -1
            self._write_run(
                queue, rows, _Run(chosen[first:last], int(offsets[first]), int(ends[last - 1]), part), following)

    def _queue_of(self, raw: bytes, queue_id: int, rows: Rows, chosen: Rows) -> ConsumeQueue | None:
        """Return the queue of a topic (bytes), or None if the topic cannot be the name of a directory."""
        topic = self._name_of(raw)
        if not topic or topic in {".", ".."} or "/" in topic or "\0" in topic or len(raw) > _MAX_NAME:
            events.NO_QUEUE_FOR_A_TOPIC_THAT_CANNOT_BE_A_DIRECTORY.log(
                _log, topic=repr(topic), count=len(chosen), phy_offset=rows[chosen[0], C.PHY])
            return None
        return self._queues.find_or_create(topic, queue_id)

    def _name_of(self, raw: bytes) -> str:
        topic = self._topics.get(raw)
        if topic is None:
            if len(self._topics) >= _MOST_NAMES:
                self._topics.clear()
            topic = self._topics[raw] = raw.decode("utf-8", "replace")
        return topic

    def _write_run(self, queue: ConsumeQueue, rows: Rows, run: _Run, following: int) -> None:
        """Write the units of a run. ``following`` is the first queue offset of the queue's next run, -1 without."""
        chosen, units = run.chosen, run.units
        start = run.start
        skip = 0
        if 0 <= start < queue.max_offset:
            skip = self._known(queue, rows, run, following)
        if skip >= len(chosen) or start < 0:
            return
        if skip:
            units = units[skip * queue.unit_size :]
            start = int(rows[chosen[skip], C.QUEUE_OFFSET])
        gap = PRE_BLANK
        if start > queue.max_offset and queue.files.files and self._is_next_life(queue, start):
            queue.remove_files()  # a crash left them: their removal was not durable
        if start > queue.max_offset and queue.files.files:
            phy_offset = int(rows[chosen[skip], C.PHY])
            gap = self._gap_unit(queue, phy_offset)
            events.MAYBE_LOGIC_QUEUE_ORDER_WRONG.log(
                _log, topic=queue.topic, queue_id=queue.queue_id, expected=queue.max_offset, actual=start)
            room = phy_offset - queue.last_phy_offset
            is_new_life = start == begin_after(queue.max_offset, self._queues.units_per_file)
            if (start - queue.max_offset > room // queue.least_bytes and not is_new_life) or (
                self._next_offset is not None and queue.follows(phy_offset)
            ):
                # The log has no room for that many messages, or the queue has its unit at another offset:
                # the queue offset in the record is damaged. Without room a queue moves only to the offset at which
                # its next life begins, if the note of a deletion is lost or could not be written.
                return
        if self._next_offset is not None and start == queue.max_offset:
            units = units[queue.skip_written(units) :]
            start = queue.max_offset
        if units:
            queue.write(start, units, gap=gap)
        self._queues.dirty.add(queue)
        last = rows[chosen[-1]].tolist()
        queue.last_store_timestamp = last[C.STORE_TIMESTAMP]
        queue.last_phy_offset = last[C.PHY]
        if self.listener is not None:
            codes, size = queue_units.codes_and_size(rows, chosen[skip:])
            self.listener.arriving(queue.topic, queue.queue_id, queue.max_offset, codes, size)

    def _is_next_life(self, queue: ConsumeQueue, start: int) -> bool:
        """Return True if the unit at ``start`` is of the next life of a queue that has only the ended one's units."""
        ended = self._lives.table.get(queue.topic)
        return (
            ended is not None and queue.max_offset <= ended.begins.get(queue.queue_id, 0) <= start
            and has_ended(queue, ended, queue.queue_id))

    def _known(self, queue: ConsumeQueue, rows: Rows, run: _Run, following: int) -> int:
        """Return the number of records of the run whose unit exists; 0 if the queue was deleted and starts again."""
        chosen, start = run.chosen, run.start
        skip = int(np.searchsorted(rows[chosen, C.QUEUE_OFFSET], queue.max_offset))
        if not queue.files.files:
            return 0
        phy_offset = int(rows[chosen[0], C.PHY])
        if self._next_offset is not None and following < 0 and start == 0 and len(chosen) == 1:
            # The last record of its queue in these rows: look ahead in the log for the next one.
            following = self._next_offset(
                queue.topic, queue.queue_id, phy_offset + int(rows[chosen[0], C.SIZE]))
        # One record that the next run does not continue, or whose unit is the next one: its offset is damaged.
        rotted = len(chosen) == 1 and (following > run.end or queue.follows(phy_offset))
        if start < queue.first_offset and not rotted:
            events.THE_FIRST_FILES_OF_A_QUEUE_ARE_GONE.log(_log, topic=queue.topic, queue_id=queue.queue_id)
            queue.remove_files()
            return 0
        there = queue.unit(max(start, queue.first_offset))
        assert there is not None
        if there.size != PRE_BLANK_SIZE and there.phy_offset >= phy_offset:
            return skip
        hole = there.size == PRE_BLANK_SIZE or there.phy_offset in self._damage
        # A queue that is created again starts with offsets 0 and 1. Other records have a damaged offset, or
        # they are stale: older than the records before them and left after an earlier end of the log.
        rotted = rotted or (len(chosen) == 1 and start > 0)
        if start < queue.first_offset or (
            not hole and (rotted or self._is_stale(rows, int(chosen[0])))
        ):
            events.RECORDS_HAVE_NO_PLACE_IN_THEIR_QUEUE.log(
                _log, topic=queue.topic, queue_id=queue.queue_id, queue_offset=start, count=len(chosen),
                phy_offset=phy_offset)
            return len(chosen)
        # The topic was deleted and created again: the log still has the messages of the old queue.
        events.QUEUE_STARTS_AGAIN.log(
            _log, topic=queue.topic, queue_id=queue.queue_id, queue_offset=start, phy_offset=phy_offset)
        queue.truncate(start)
        return 0

    def _is_stale(self, rows: Rows, number: int) -> bool:
        """Return True if a record has an older store time than a record before it in the log."""
        before = rows[:number, C.STORE_TIMESTAMP]
        newest = max(self._newest, int(before.max()) if number else 0)
        return int(rows[number, C.STORE_TIMESTAMP]) < newest

    def _gap_unit(self, queue: ConsumeQueue, phy_offset: int) -> bytes:
        """Return the unit for messages that are missing before the record at ``phy_offset``."""
        for damage in self._damage.values():
            if queue.last_phy_offset < damage.phy_offset < phy_offset:
                return damaged_unit(damage)
        return PRE_BLANK


def damaged_unit(damage: Damage) -> bytes:
    """Return a unit that covers damaged bytes. A reader finds no valid record there."""
    return CQ_UNIT.pack(damage.phy_offset, min(damage.size, PRE_BLANK_SIZE - 1), 0)
