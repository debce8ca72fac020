"""From record rows to queue units and index entries; the same for live dispatch and recovery."""

from __future__ import annotations

import logging
from typing import Any, Final, final

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels import queue_units, record
from tailrace.store.consume_queue import ConsumeQueue, ConsumeQueueStore
from tailrace.store.hooks import MessageArrivingListener
from tailrace.store.index_service import IndexService
from tailrace.store.log_scan import group_rows

__all__ = ["SCHEDULE_TOPIC", "Dispatcher", "deliver_time_codes", "parse_delay_levels"]

_log = logging.getLogger(__name__)
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
Rows = np.ndarray[Any, np.dtype[np.int64]]


def parse_delay_levels(text: str = DELAY_LEVELS) -> list[int]:
    """Milliseconds of each delay level, the first one being level 1."""
    return [int(level[:-1]) * _UNIT_MS[level[-1]] for level in text.split()]


def deliver_time_codes(rows: Rows, chosen: Rows, levels: list[int]) -> None:
    """Make the tags code of delayed messages their deliver time, as SCHEDULE_TOPIC_XXXX has it."""
    for row in chosen.tolist():
        level = min(int(rows[row, record.C_DELAY_LEVEL]), len(levels))
        if level > 0:
            rows[row, record.C_TAGS_CODE] = rows[row, record.C_STORE_TIMESTAMP] + levels[level - 1]


@final
class Dispatcher:
    """Writes units and entries. Doing a record twice changes nothing."""

    def __init__(self, queues: ConsumeQueueStore, index: IndexService | None) -> None:
        self._queues = queues
        self._index = index
        self._levels = parse_delay_levels()
        self._topics: dict[bytes, str] = {}
        self.listener: MessageArrivingListener | None = None

    def dispatch(
        self, data: Any, rows: Rows, *, verify: bool = False, min_phy_offset: int = 0
    ) -> None:
        """Build what rows ask for; ``data`` is what their positions point into.

        ``verify`` compares units that are there already with what they should be, and mends them:
        a place between two records of a queue that no record claims is no message.
        Raises DiskFullError or OSError; doing the same rows again is then right.
        """
        for chosen in group_rows(rows):
            self._dispatch_queue(data, rows, chosen, verify, min_phy_offset)
        if self._index is not None:
            self._index.put_rows(data, rows, len(rows))

    def _dispatch_queue(
        self, data: Any, rows: Rows, chosen: Rows, verify: bool, min_phy_offset: int
    ) -> None:
        first = chosen[0]
        at = int(rows[first, record.C_TOPIC_POS])
        raw = bytes(data[at : at + int(rows[first, record.C_TOPIC_LEN])])
        topic = self._topics.get(raw)
        if topic is None:
            topic = self._topics[raw] = raw.decode("utf-8", "replace")
        if not topic or topic in {".", ".."} or "/" in topic or "\0" in topic:
            _log.error("no queue for a topic that cannot be a directory topic=%r count=%d phy_offset=%d",
                       topic, len(chosen), rows[first, record.C_PHY])
            return
        if topic == SCHEDULE_TOPIC:
            deliver_time_codes(rows, chosen, self._levels)
        queue = self._queues.find_or_create(topic, int(rows[first, record.C_QUEUE_ID]))
        offsets = rows[chosen, record.C_QUEUE_OFFSET]
        # A run of consecutive queue offsets is one write; more than one run is an odd log.
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for part in np.split(chosen, breaks) if len(breaks) else (chosen,):
            if verify:
                self._blank_gap(queue, int(rows[part[0], record.C_QUEUE_OFFSET]), min_phy_offset)
            self._write_run(queue, rows, np.ascontiguousarray(part), verify=verify)

    def _blank_gap(self, queue: ConsumeQueue, start: int, min_phy_offset: int) -> None:
        blanked = queue.blank(max(queue.confirmed_offset, 0), start, min_phy_offset)
        if blanked:
            _log.warning("units without a record are made blank topic=%s queue_id=%d count=%d",
                         queue.topic, queue.queue_id, blanked)
            self._queues.dirty.add(queue)

    def _write_run(self, queue: ConsumeQueue, rows: Rows, chosen: Rows, *, verify: bool) -> None:
        start = int(rows[chosen[0], record.C_QUEUE_OFFSET])
        skip = 0 if verify or not queue.files.files else max(0, queue.max_offset - start)
        if skip >= len(chosen):
            return
        units = bytearray(CQ_UNIT.size * (len(chosen) - skip))
        queue_units.build_units(rows, chosen, skip, len(chosen), units)
        start += skip
        if verify and start < queue.max_offset and self._same(queue, start, units):
            pass
        else:
            if start > queue.max_offset and queue.files.files:
                _log.error(
                    "maybe logic queue order wrong topic=%s queue_id=%d expected=%d actual=%d",
                    queue.topic, queue.queue_id, queue.max_offset, start)
            queue.write(start, memoryview(units))
            self._queues.dirty.add(queue)
        last = chosen[-1]
        queue.last_store_timestamp = int(rows[last, record.C_STORE_TIMESTAMP])
        queue.last_phy_offset = int(rows[last, record.C_PHY])
        queue.confirmed_offset = int(rows[last, record.C_QUEUE_OFFSET]) + 1
        if self.listener is not None:
            self.listener.arriving(
                queue.topic, queue.queue_id, queue.max_offset,
                rows[chosen[skip:], record.C_TAGS_CODE].tolist())

    @staticmethod
    def _same(queue: ConsumeQueue, start: int, units: bytearray) -> bool:
        done = 0
        while done < len(units):
            part = queue.units(start + done // CQ_UNIT.size, (len(units) - done) // CQ_UNIT.size)
            if not part or part != units[done : done + len(part)]:
                return False
            done += len(part)
        return True
