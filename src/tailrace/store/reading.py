"""Read messages by queue, by time, and by key (RocketMQ's getMessage, getOffsetInQueueByTime ...).

Invariant: a record is returned only if checksums, position, topic and queue offset are right. Other records
are skipped, and each is logged once (W14: readers check what they return).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any, Final, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env import linux_calls
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import STORE_TIME_HEAD, decode_message, store_timestamp_of
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.kernels.unit_records import (
    AnswerFrame,
    SeenPages,
    Sink,
    UnitReader,
    UnitWindow,
    outside,
)
from tailrace.logs import get_logger
from tailrace.model import BoundaryType, GetMessageResult, GetMessageStatus, MessageExt
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.hooks import PropertyFilter
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives
from tailrace.store.multi_dispatch import holds_unit
from tailrace.store.queue_search import first_stored
from tailrace.store.walk.scan import has_unit, is_record

__all__ = ["MessageReader"]

_log = get_logger(__name__)
_UNIT: Final = CQ_UNIT.size
_UNITS: Final = 1 << 13
"""Units that ``scan`` reads in one call."""
Codes = np.ndarray[Any, np.dtype[np.int64]]
_MOST_LOGGED: Final = 1000
_COPIES: Final = 64
_FILTERED_READ: Final = 1 << 20
"""Bytes per read from the disk with a property filter; most of the messages are not selected."""
_GAP: Final = 16 << 10
"""Two records with at most this many bytes between them are read from the disk in one call."""
_GAP_AHEAD: Final = 64 << 10
"""Two records with at most this many bytes between them are read ahead in one piece for a consumer that reads on."""
_AHEAD_BYTES: Final = 2 << 20
"""Bytes that are read ahead at most."""


@final
class MessageReader:
    """Reads from log, queues and index. Any thread may call; nothing is changed."""

    def __init__(
        self,
        clock: Clock,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        lives: EndedLives,
    ) -> None:
        self._lives = lives
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._logged: set[tuple[str, int, int]] = set()
        self._seen = SeenPages(commit_log.queue.file_size, clock.monotonic_ns)
        self._units = UnitReader(commit_log, self._seen, config, self, self._log_damage, holds_unit)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msg_nums: int,
        max_bytes: int,
        codes: Collection[int] | None,
        *,
        property_filter: PropertyFilter | None = None,
        only_cached: bool = False,
    ) -> GetMessageResult:
        """Return up to ``max_msg_nums`` records from ``offset`` onwards whose tags code is one of ``codes``.

        ``codes`` None selects all. ``property_filter`` selects by properties instead; do not pass both.
        The result has at most ``max_bytes`` and at most the configured limits, but one message always fits.
        With ``only_cached`` do not wait for the disk: return the records before the first one that is not in
        the page cache, or ``is_cold`` if there is no such record.
        """
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            begin = self._lives.begin(topic, queue_id)  # of a queue that was deleted and has no message since
            return (
                outside(offset, begin, begin) if begin
                else GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0))
        return self._units.get_message(
            queue, offset, max_msg_nums, max_bytes, codes, property_filter, only_cached)

    def fill(
        self, topic: str, queue_id: int, offset: int, max_msg_nums: int, max_bytes: int, codes: array[int] | None,
        answer: AnswerFrame,
    ) -> bytes | None:
        """Return the frame ``answer`` with what `get_message` returns of the page cache; None without a message.

        ``answer`` then has the numbers of its messages. Queues of batches have none. Raises OSError.
        """
        queue = self._queues.table.get((topic, queue_id))
        return None if queue is None else self._units.fill(queue, offset, max_msg_nums, max_bytes, codes, answer)

    def span(self, window: UnitWindow, most: int, room: int) -> int:
        """Return the number of bytes to read from the disk in one call, starting at the record of the next unit.

        The call covers up to ``most`` selected records that are close to each other and have at most ``room`` bytes
        together. Reading each record by itself takes several times as long in a thread, because the thread
        waits for the interpreter's lock after every call.
        """
        if window.keep is not None:
            most, room = len(window.units), _FILTERED_READ
        starts, ends = _places_of(window, most)
        if not len(starts):
            return 0
        gaps = starts[1:] - ends[:-1]
        near = (gaps >= 0) & (gaps <= _GAP) & (ends[1:] - starts[0] <= room)
        count = 1 + (len(near) if near.all() else int(near.argmin()))
        return int((ends[:count] - starts[0]).max())

    def load_ahead(self, window: UnitWindow, most: int) -> None:
        """Start to read from the disk what this read needs, so that the disk works on all of it at the same time.

        The buffer of ``window`` is the mapping of a segment; the records of the selected units from the next one
        onwards are not in memory. If the read starts where the last one from the disk ended, its consumer follows the
        queue. Then all units count, because the next read needs the rest of them, and near records are read in one
        piece with the records of other queues between them. For any other read that would be a load on the disk in
        vain, so only its first ``most`` records are read.
        """
        queue, at = window.queue, window.offset + window.at
        before, queue.read_ahead = queue.read_ahead, range(at, window.offset + window.end)
        reads_on = before.start < at <= before.stop + len(before)  # others may have read some more into memory
        base = window.start
        starts, ends = _places_of(window, window.end if reads_on or window.keep is not None else most)
        inside = (starts >= base) & (ends > starts) & (ends - base <= len(window.buffer))
        starts, ends = starts[inside], ends[inside]
        if not len(starts):
            return
        gaps = starts[1:] - ends[:-1]
        apart = np.flatnonzero((gaps < 0) | (gaps > (_GAP_AHEAD if reads_on else 0)))
        address, left = linux_calls.address_of(window.buffer) - base, _AHEAD_BYTES
        for start, end in zip(
            starts[np.append(0, apart + 1)].tolist(), ends[np.append(apart, -1)].tolist(), strict=True
        ):
            if left > 0:
                linux_calls.will_need(address + start, min(end - start, left))
                left -= end - start

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if the queues of a topic are batch queues."""
        return self._queues.has_batch_queues(topic)

    def scan(self, topic: str, queue_id: int, offset: int, until: int, sink: Sink) -> None:
        """Give ``sink`` the messages with queue offsets in [``offset``, ``until``), in order, until its ``left`` is 0.

        The first record is the one that has the message at ``offset``. The sink takes whole records whose
        checksums, position, topic and queue offset are right, as ``get_message`` does.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return
        offset = queue.begin_of(max(offset, queue.min_offset))
        while sink.left > 0 and offset < until:
            units = queue.units(offset, min(_UNITS, until - offset))
            if not units:
                offset = queue.offset_after_file(offset)
                continue
            window = UnitWindow(queue, units, offset, 0, len(units))
            self._units.read(window, sink)
            offset += window.at

    def _log_damage(self, queue: ConsumeQueue, offset: int, phy_offset: int) -> None:
        place = queue.topic, queue.queue_id, offset
        if place in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(place)
        events.A_MESSAGE_IS_DAMAGED.log(
            _log, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset, phy_offset=phy_offset)

    def store_timestamp(self, phy_offset: int) -> int:
        """Return when the record at a position was stored, in ms of the wall clock; -1 without a record.

        That is its store time, unless store times were ahead of the wall clock (``store.wall_times``).
        """
        stored = store_timestamp_of(self._log.read_record(phy_offset, STORE_TIME_HEAD))
        return -1 if stored is None else self._log.wall_times.of(phy_offset, stored)

    def message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message of a queue was stored, in ms of the wall clock; -1 if it does not exist."""
        queue = self._queues.get(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        if unit is None or unit.size == PRE_BLANK_SIZE:
            return -1
        return self.store_timestamp(unit.phy_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType
    ) -> int:
        """Return the queue offset for a store time.

        LOWER: the first message stored at ``timestamp_ms`` or later. UPPER: the last message stored at
        ``timestamp_ms`` or earlier. The result is between the least and the next offset of the queue; the offset
        of its first message if the queue does not exist.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self._lives.begin(topic, queue_id)
        if boundary is BoundaryType.LOWER:
            return self._first_not_before(
                queue, self._log.wall_times.floor(timestamp_ms, self._clock.now_ms()))
        after = self._first_not_before(queue, timestamp_ms + 1)
        return max(queue.begin_of(after - 1), queue.min_offset)

    def _first_not_before(self, queue: ConsumeQueue, timestamp_ms: int) -> int:
        return first_stored(queue, queue.min_offset, timestamp_ms, self._time_of)

    def _time_of(self, unit: CqUnit) -> int | None:
        """Return the store time of a unit's message in ms, -1 if it was deleted, None if it is damaged."""
        if unit.phy_offset < self._log.min_offset:
            return -1
        if not unit.tags_code and not self._is_whole(unit):
            return None  # the unit covers damage
        stored = store_timestamp_of(self._log.read_record(unit.phy_offset, STORE_TIME_HEAD))
        return None if stored is None else self._log.wall_times.of(unit.phy_offset, stored)

    def _is_whole(self, unit: CqUnit) -> bool:
        return has_unit(self._log.read_record(unit.phy_offset, unit.size), unit.phy_offset)

    def decode_at(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position, or None without a valid record."""
        return self.decoded(phy_offset, self._log.record_at(phy_offset))

    def visible_at(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position, or None without a valid record or if its topic has released it."""
        return self.visible(phy_offset, self._log.record_at(phy_offset))

    def visible(self, phy_offset: int, record: bytes | None) -> MessageExt | None:
        """As ``visible_at``, for a record that was read already."""
        message = self.decoded(phy_offset, record)
        return None if message is None or self._is_released(message) else message

    @staticmethod
    def decoded(phy_offset: int, data: bytes | None) -> MessageExt | None:
        """Return the message of a stored record, or None if it is not one of this position."""
        if data is None or not is_record(data, phy_offset):
            return None
        try:
            return decode_message(data)
        except CorruptionError:
            return None

    def _is_released(self, message: MessageExt) -> bool:
        if message.phy_offset < self._lives.deleted_up_to(message.topic):
            return True
        queue = self._queues.get(message.topic, message.queue_id)
        return queue is not None and message.queue_offset < queue.logical_min_offset

    def query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, index_type: str
    ) -> list[tuple[MessageExt, bytes]]:
        """Return the newest ``max_num`` messages that have the key, oldest first, as (message, record).

        ``index_type`` is K or U for a key or unique key, T for a tag.
        """
        return self._query(topic, key, max_num, begin_ms, end_ms, index_type, also_released=False)

    def copies(self, topic: str, unique_key: str) -> list[MessageExt]:
        """Return the newest 64 records of the log with a unique key, oldest first, with those that a purge released.

        For services that ask whether they have put a copy already: a message that is released was delivered.
        """
        found = self._query(topic, unique_key, _COPIES, 0, (1 << 63) - 1, "U", also_released=True)
        return [message for message, _ in found]

    def _query(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, index_type: str, *, also_released: bool
    ) -> list[tuple[MessageExt, bytes]]:
        if self._index is None:
            return []
        found: list[tuple[MessageExt, bytes]] = []
        times = self._log.wall_times
        name = f"T#{key}" if index_type == "T" else key
        wanted = max_num
        while True:
            positions = self._index.query(topic, name, wanted, begin_ms, times.latest(end_ms))
            found = []
            for phy_offset in sorted(set(positions), reverse=True):
                data = self._log.record_at(phy_offset)
                message = self.decoded(phy_offset, data)
                if data is None or message is None or message.topic != topic:
                    continue
                if not also_released and self._is_released(message):
                    continue
                if not times.is_between(phy_offset, message.store_timestamp, begin_ms, end_ms):
                    continue
                has = (
                    message.tags == key if index_type == "T"
                    else key in message.keys or message.unique_key == key
                )
                if has and len(found) < max_num:
                    found.append((message, data))
            # Other keys with the same hash and repeated positions fill the result: query more if the index has more.
            if len(found) >= max_num or len(positions) < wanted:
                return found[::-1]
            wanted *= 4


def _places_of(window: UnitWindow, most: int) -> tuple[Codes, Codes]:
    """Return start and end of the records of the next ``most`` selected units of a window."""
    view = CQ_UNIT.view(window.units)[window.at : window.end]
    if window.codes is not None:
        view = view[np.isin(view["tags_code"], window.codes)]
    view = view[view["size"] != PRE_BLANK_SIZE][:most]
    starts = view["phy_offset"].astype(np.int64)
    return starts, starts + view["size"]
