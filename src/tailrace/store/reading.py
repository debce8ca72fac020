"""Read messages by queue, by time, and by key (RocketMQ's getMessage, getOffsetInQueueByTime ...).

Invariant: a record is returned only if checksums, position, topic and queue offset are right. Other records
are skipped, and each is logged once (W14: readers check what they return).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any, Final, final

import numpy as np

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env import linux_calls
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import (
    MESSAGE_HEAD,
    STORE_TIME_HEAD,
    decode_message,
    store_timestamp_of,
)
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.kernels import unit_records
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import BoundaryType, GetMessageResult, GetMessageStatus, MessageExt, places_of
from tailrace.store.batch_consume_queue import BatchConsumeQueue
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.hooks import PropertyFilter
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives
from tailrace.store.multi_dispatch import holds_unit
from tailrace.store.queue_scan import NOT_MAPPED, Sink, hold_around, scan_queue
from tailrace.store.queue_search import first_stored
from tailrace.store.walk.scan import has_unit, is_record

__all__ = ["MessageReader"]

_log = get_logger(__name__)
_UNIT: Final = CQ_UNIT.size
_unit: Final = CQ_UNIT.struct.unpack_from
_ANY_CODE: Final = np.empty(0, np.int64)
_FOUND: Final = GetMessageStatus.FOUND
_NO_MATCHED_MESSAGE: Final = GetMessageStatus.NO_MATCHED_MESSAGE
"""Kept in variables, because an enumeration look-up costs about a third of the read of one message."""
_DONE: Final = (C.UNITS_END, C.UNITS_FULL)
Codes = np.ndarray[Any, np.dtype[np.int64]]
_MOST_LOGGED: Final = 1000
_COPIES: Final = 64
_LOOK_BYTES: Final = 16 << 20
"""Bytes that one read with a property filter examines; bytes of properties count several times."""
_WORK: Final = 25_600
"""Messages that one read with a property filter examines, times the cost of the filter: some ms."""
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
        self._most = config.max_transfer_count_on_message_in_memory
        self._room = config.max_transfer_bytes_on_message_in_memory
        self._look = config.max_filter_message_size // _UNIT
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._logged: set[tuple[str, int, int]] = set()
        self._seen = unit_records.SeenPages(commit_log.queue.file_size, clock.monotonic_ns)
        self._cached = unit_records.CachedReader(commit_log.queue.find, self._seen, self._most, self._room)

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
                _outside(offset, begin, begin) if begin
                else GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0))
        if codes is None and property_filter is None:
            usual = self._cached.read(queue, offset, max_msg_nums, max_bytes, only_cached)
            if usual is not None:
                return usual
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return _outside(offset, low, high)
        result = GetMessageResult(_NO_MATCHED_MESSAGE, offset, low, high)
        most = max(min(max_msg_nums, self._most), 1)
        count = most * 2 if codes is None else max(self._look, max_msg_nums)
        if property_filter is not None:
            count = max(1, min(max(self._look, max_msg_nums), _WORK // property_filter.cost))
        wanted = np.fromiter(codes, np.int64) if codes is not None else _ANY_CODE
        window = None
        if isinstance(queue, BatchConsumeQueue):
            window = queue.window(offset, count, most, wanted, only_cached=only_cached)
            offset, units = (window.begin, window.units) if window is not None else (offset, None)
        else:
            units = queue.units_ahead(offset, count, only_cached=only_cached)
        if units is None:
            result.is_cold = True
            return result
        if not units:
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = queue.offset_after_file(offset)
            return result
        room = min(max_bytes, self._room)
        self._read_units(
            queue, units, wanted, offset, most, room, result, keep=property_filter, only_cached=only_cached)
        if window is not None:
            window.take_whole(result)
        return result

    def _read_units(
        self, queue: ConsumeQueue, units: bytes, codes: Codes, offset: int, most: int, room: int,
        result: GetMessageResult, *, keep: PropertyFilter | None, only_cached: bool,
    ) -> None:
        """Fill ``result`` with the records of ``units``, the first of which is that of ``offset``.

        One kernel call reads the records up to the end of a segment. A unit whose record was deleted or is
        damaged is skipped and does not count for ``most``.
        """
        topic = queue.record_topic
        parts: list[bytes] = []
        total, at, removed, mapped, look, asked = 0, 0, False, True, _LOOK_BYTES, -1
        phy_offset, least, _ = _unit(units, 0)
        size = least
        while True:
            try:
                held, buffer, start, there = hold_around(self._log, phy_offset, size, least, mapped=mapped)
            except OSError as error:
                if result.record_count:
                    break  # the next read starts with the record that cannot be read
                if not self._log.unreadable.gives_up(phy_offset, error):
                    raise
                self._log_damage(queue, offset + at, phy_offset)
                removed, at = True, at + 1
                break
            try:
                pages = NOT_MAPPED if held is None else self._seen.of(start)
                data, places, count, at, why, examined = _records(
                    keep, buffer, start, there, units, at, codes, topic, queue.queue_id, offset,
                    most - result.record_count, room - total, look, total > 0, pages)
                look -= examined
                if why == C.UNITS_COLD and not only_cached and asked != start:
                    asked = start
                    _load_ahead(queue, buffer, start, units, at, codes, offset, most if keep is None else len(units))
            finally:
                if held is not None:
                    held.release()
            if count and not topic:
                data, places, count = self._of_lmq(queue, data, places, count)
            if total:
                parts.append(data)
                result.places += _moved(places, total)
            else:
                parts, result.places = [data], places
            result.record_count += count
            total += len(data)
            if why in _DONE:
                break
            if why == C.UNITS_COLD and only_cached:
                result.is_cold = not (result.record_count or at)
                break
            mapped = why != C.UNITS_COLD  # a record outside the page cache is read by a system call
            was, (phy_offset, least, _) = phy_offset, _unit(units, at * _UNIT)
            size = (
                least if mapped else _span(units, at, codes, most - result.record_count, room - total) if keep is None
                else _span(units, at, codes, len(units), _FILTERED_READ))
            if why == C.UNITS_DAMAGED:
                self._log_damage(queue, offset + at, phy_offset)
                at += 1
            elif why == C.UNITS_CUT_OFF or (phy_offset == was and not there):
                if not 0 <= phy_offset < self._log.min_offset:
                    self._log_damage(queue, offset + at, phy_offset)  # it was not deleted: the unit names no record
                removed = True
                at += 1
        result.next_begin_offset = offset + at
        result.data = parts[0] if len(parts) == 1 else b"".join(parts)
        if total:
            result.status = _FOUND
        elif removed:
            result.status = GetMessageStatus.MESSAGE_WAS_REMOVING

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if the queues of a topic are batch queues."""
        return self._queues.has_batch_queues(topic)

    def scan(self, topic: str, queue_id: int, offset: int, until: int, sink: Sink) -> None:
        """Give ``sink`` the messages with queue offsets in [``offset``, ``until``), see ``scan_queue``.

        The first record is the one that has the message at ``offset``.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is not None:
            offset = queue.begin_of(max(offset, queue.min_offset))
            scan_queue(self._log, queue, offset, until, sink, self._log_damage, self._seen)

    def _of_lmq(
        self, queue: ConsumeQueue, data: bytes, places: bytes, count: int
    ) -> tuple[bytes, bytes, int]:
        """Return the records that name this LMQ queue and the queue offset; log the others as damaged."""
        read = GetMessageResult(_FOUND, data=data, places=places)
        found, offsets = read.records, read.queue_offsets
        kept = [holds_unit(one, queue.topic, place) for one, place in zip(found, offsets, strict=True)]
        if all(kept):
            return data, places, count
        for one, place, right in zip(found, offsets, kept, strict=True):
            if not right:
                self._log_damage(queue, place, MESSAGE_HEAD.unpack_from(one).phy_offset)
        found = list(itertools.compress(found, kept))
        return b"".join(found), places_of(found, itertools.compress(offsets, kept)), len(found)

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
        return self._decode(self._log.record_at(phy_offset), phy_offset)

    def visible_at(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position, or None without a valid record or if its topic has released it."""
        return self.visible(phy_offset, self._log.record_at(phy_offset))

    def visible(self, phy_offset: int, record: bytes | None) -> MessageExt | None:
        """As ``visible_at``, for a record that was read already."""
        message = self._decode(record, phy_offset)
        return None if message is None or self._is_released(message) else message

    @staticmethod
    def _decode(data: bytes | None, phy_offset: int) -> MessageExt | None:
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
                message = self._decode(data, phy_offset)
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


def _records(
    keep: PropertyFilter | None, buffer: memoryview | bytes, start: int, there: int, units: bytes, at: int,
    codes: Codes, topic: bytes, queue_id: int, offset: int, most: int, room: int, look: int, started: bool,
    pages: bytearray,
) -> tuple[bytes, bytes, int, int, int, int]:
    """Call the kernel that reads records, for tags codes or for properties. Return also the bytes that it examined."""
    if keep is None:
        return *unit_records.read_units(
            buffer, start, there, units, at, codes, topic, queue_id, offset, most, room, started, pages), 0
    return unit_records.read_matching(
        buffer, start, there, units, at, keep.names, keep.matches, topic, queue_id, offset, most, room, look, started,
        pages)


def _span(units: bytes, at: int, codes: Codes, most: int, room: int) -> int:
    """Return the number of bytes to read from the disk in one call, starting at the record of unit ``at``.

    The call covers up to ``most`` selected records that are close to each other and have at most ``room`` bytes
    together. Reading each record by itself takes several times as long in a thread, because the thread
    waits for the interpreter's lock after every call.
    """
    starts, ends = _places_of(units, at, codes)
    starts, ends = starts[:most], ends[:most]
    gaps = starts[1:] - ends[:-1]
    near = (gaps >= 0) & (gaps <= _GAP) & (ends[1:] - starts[0] <= room)
    count = 1 + (len(near) if near.all() else int(near.argmin()))
    return int((ends[:count] - starts[0]).max())


def _load_ahead(
    queue: ConsumeQueue, buffer: memoryview | bytes, base: int, units: bytes, at: int, codes: Codes, offset: int,
    most: int,
) -> None:
    """Start to read from the disk what this read needs, so that the disk works on all of it at the same time.

    ``buffer`` is the mapping of a segment, which begins at position ``base``. ``units[0]`` has the queue offset
    ``offset``; the records of the selected units from index ``at`` onwards are not in memory. If the read starts where
    the last one from the disk ended, its consumer follows the queue. Then all units count, because the next read
    needs the rest of them, and near records are read in one piece with the records of other queues between them. For
    any other read that would be a load on the disk in vain, so only its first ``most`` records are read.
    """
    before, queue.read_ahead = queue.read_ahead, range(offset + at, offset + len(units) // _UNIT)
    reads_on = before.start < offset + at <= before.stop + len(before)  # others may have read some more into memory
    starts, ends = _places_of(units, at, codes)
    inside = (starts >= base) & (ends > starts) & (ends - base <= len(buffer))
    starts, ends = starts[inside], ends[inside]
    if not reads_on:
        starts, ends = starts[:most], ends[:most]
    if not len(starts):
        return
    gaps = starts[1:] - ends[:-1]
    apart = np.flatnonzero((gaps < 0) | (gaps > (_GAP_AHEAD if reads_on else 0)))
    address, left = linux_calls.address_of(buffer) - base, _AHEAD_BYTES
    for start, end in zip(
        starts[np.append(0, apart + 1)].tolist(), ends[np.append(apart, -1)].tolist(), strict=True
    ):
        if left > 0:
            linux_calls.will_need(address + start, min(end - start, left))
            left -= end - start


def _places_of(units: bytes, at: int, codes: Codes) -> tuple[Codes, Codes]:
    """Return start and end of the records that units select, from the unit with index ``at`` onwards."""
    view = CQ_UNIT.view(units)[at:]
    if len(codes):
        view = view[np.isin(view["tags_code"], codes)]
    starts = view["phy_offset"].astype(np.int64)
    return starts, starts + view["size"]


def _moved(places: bytes, by: int) -> bytes:
    """Return ``places`` of records that have ``by`` bytes before them."""
    moved = np.frombuffer(places, np.int64).copy()
    moved[::2] += by
    return moved.tobytes()


def _outside(offset: int, low: int, high: int) -> GetMessageResult:
    """Return the result of a read at an offset outside [``low``, ``high``)."""
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
