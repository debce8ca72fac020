"""A forward walk over the CommitLog. Recovery, dump and verify find records only with it.

A gap is a place where bytes are not a valid record. Rules of ``Walk`` for a gap:

  a  If the header at the gap is plausible (magic, length within its file, its own position), its length
     says where the next record starts. Otherwise the next record is searched for by magic and position.
     A length is not used if the lengths inside the record contradict it, because a wrong length may skip
     a record.
  b  A record after a gap counts if it is whole, its queue offset is greater than all earlier ones of its
     queue, and rule e says so. Other records are stale: they were left after an earlier end of the log.
  c  If a record that counts follows, the gap is damage in the middle. If none follows, the log ends there.
  d  If the last record of the log has a NUL in its topic or properties, it was torn after its body (only
     the body has a checksum), and the log ends before it.
  e  A gap that is shorter than a record is no damage: the record after it and those that follow it without a gap are
     stale. Otherwise the record counts if its store time is not before that of the last good record. A clock that was
     set back also makes store times step back. So an earlier store time decides only if positions and queue offsets do
     not: the record counts if
     - the gap starts with a record of that place, by its position or magic, whose length or lengths inside lead to the
       record after the gap; or the gap is a blank record up to the end of its file; and
     - the queues continue: no queue offset after the gap is below the next one of its queue, and no more messages are
       missing than the gap has room for.

Holes of lost pages are also gaps. The search reads data only, not zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

import numpy as np

from tailrace import events
from tailrace.env.read_ahead import read_ahead
from tailrace.formats.commitlog import (
    BLANK,
    BLANK_MAGIC,
    MESSAGE_MAGIC_START,
    MIN_RECORD_LENGTH,
    PLAUSIBLE_LENGTH,
    SysFlag,
    is_damaged_header,
    plausible_size,
    sizes_inside,
)
from tailrace.formats.inner_batch import inner_num
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.walk.scan import (
    CHUNK,
    LogChunk,
    LogEnd,
    Rows,
    ends_with_nul,
    scan_files,
)

__all__ = ["Damage", "LogWalk", "NextOf", "RecordClaim", "Walk"]

_log = get_logger(__name__)
_LONG: Final = 16 * CHUNK
_AFTER: Final = 64 << 10
"""Bytes after a gap whose records must continue their queues."""
_SHAPED: Final = frozenset({C.REASON_BAD_CRC, C.REASON_BAD_PROP_CRC, C.REASON_TORN})
"""Reasons of records whose lengths fit together, so that the length says where the next record starts."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class RecordClaim:
    """The queue and offset that a record names; for a damaged record only if nothing but a checksum is wrong."""

    topic: str
    queue_id: int
    queue_offset: int
    has_unit: bool = True
    count: int = 1
    """Number of messages of an inner batch."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Invalid bytes [``phy_offset``, ``until``) of the log; ``until`` is the start of the next good record."""

    phy_offset: int
    until: int
    reason: str
    path: str
    claim: RecordClaim | None = None

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.until - self.phy_offset


NextOf = Callable[[str, int], int]
"""(topic, queue id): the queue offset after the last record of the queue before a gap, -1 if it is not known."""


class Walk(ABC, Generic[_Item]):
    """All records of the positions [``start``, ``until``), and the damage between them.

    ``items`` yields records (one record or many in an item) and Damage in the order of the log. ``next_of``
    is called for records after a gap, after everything before the gap was yielded. After ``items`` is
    exhausted, ``end`` is the end of the last good record. ``check`` is flags C.CHECK_*.
    """

    def __init__(
        self, files: Sequence[MappedFile], start: int, until: int, check: int, next_of: NextOf,
    ) -> None:
        self._files = files
        self._start = start
        self._until = until
        self._check = check
        self._next_of = next_of
        self._last_timestamp = 0
        self._damaged_bytes = 0
        self.stretch_timestamp = -1
        """Store time of the last record since the last damage, in ms; -1 without a record."""
        self._one = np.empty((1, C.COLUMNS), dtype=np.int64)
        self.end = LogEnd(start)
        self.data_after_end: bool | None = None
        """True if bytes that are not zero follow the end; None if that was not examined."""
        self._stale_before = 0
        self._stale_until = -1
        self.stale = 0
        """Number of stale records (rule b) that were found."""

    def items(self) -> Iterator[_Item | Damage]:
        """Yield records and damage in the order of the log."""
        start = self._start
        while True:
            self.data_after_end = None
            self.stretch_timestamp = -1
            torn = yield from self._stretch(start)
            if self.end.phy_offset >= self._until or self._is_past_last_file():
                return
            damage = self._damage(torn=torn)
            if damage is None:
                return
            self._damaged_bytes += damage.size
            yield damage
            start = damage.until

    @abstractmethod
    def _stretch(self, start: int) -> Generator[_Item, None, bool]:
        """Yield the records from ``start`` up to the next gap. Return True if the last record was torn (rule d).

        Must set ``end``, and call ``_note`` for the rows that it yields.
        """

    def _note(self, rows: Rows) -> None:
        """Record the last of these rows as the last good record."""
        self._last_timestamp = self.stretch_timestamp = int(rows[-1, C.STORE_TIMESTAMP])

    def _length(self, start: int) -> int:
        """Return the number of bytes to walk from ``start`` onwards."""
        last = self._files[-1] if self._files else None
        end = last.file_from_offset + last.size if last is not None else 0
        return min(end, self._until) - start

    def _is_past_last_file(self) -> bool:
        last = self._files[-1] if self._files else None
        return last is None or self.end.phy_offset >= last.file_from_offset + last.size

    def _ends_torn(self, chunk: LogChunk) -> bool:
        """Return True if the last record before a stop was torn (rule d); set ``end`` to its start then."""
        row = chunk.rows[-1]
        if self.end.phy_offset >= self._until or self.end.phy_offset != int(
            row[C.PHY] + row[C.SIZE]
        ):
            return False  # a blank or the end of the walked range follows it
        if not ends_with_nul(chunk):
            return False
        events.THE_RECORD_BEFORE_THE_END_IS_TORN.log(_log, phy_offset=row[C.PHY])
        self.end.phy_offset, self.end.reason = int(row[C.PHY]), C.REASON_TORN
        return True

    # -- after a gap

    def _damage(self, *, torn: bool) -> Damage | None:
        """Return the damage that starts at ``end``, or None if no record that counts follows."""
        at, reason = self.end.phy_offset, record.REASON_NAMES[self.end.reason]
        self._stale_before, self._stale_until = self.stale, -1
        file = self._file(at)
        if file is None:  # between two files: the next record starts at the next file
            following = next((f for f in self._files if f.file_from_offset > at), None)
            if following is None:
                return None
            return Damage(at, following.file_from_offset, "segment file is missing", following.path)
        claim = None
        found = None
        size = self._plausible_size(file, at)
        if size and self.end.reason != C.REASON_BAD_LENGTH and self._counts(
            file.file_from_offset, at + size
        ):
            found = at + size
            if not torn and self.end.reason in {C.REASON_BAD_CRC, C.REASON_BAD_PROP_CRC}:
                claim = self._claim(at, C.CHECK_PHY_OFFSET)
        if found is None:
            found = self._search(at)
        return None if found is None else Damage(at, found, reason, file.path, claim)

    def _file(self, phy_offset: int) -> MappedFile | None:
        for file in self._files:
            if 0 <= phy_offset - file.file_from_offset < file.size:
                return file
        return None

    def _plausible_size(self, file: MappedFile, phy_offset: int) -> int:
        """Return the record length in the header at a position, 0 if the header is not plausible (rule a)."""
        at = phy_offset - file.file_from_offset
        size = plausible_size(file.read(at, PLAUSIBLE_LENGTH), phy_offset)
        return size if size <= file.size - at else 0

    def _heads(self, file: MappedFile, low: int, at: int, data: bytes) -> Iterator[int]:
        """Yield the positions in the log of plausible headers whose magic is in ``data``.

        ``data`` is at ``at`` of the file. Headers before ``low`` of the file are left out.
        """
        place = data.find(MESSAGE_MAGIC_START)
        while place >= 0:
            start = at + place - 4
            if start >= low and self._plausible_size(file, file.file_from_offset + start):
                yield file.file_from_offset + start
            place = data.find(MESSAGE_MAGIC_START, place + 1)

    def _counts(self, in_file: int, phy_offset: int, gap_end: int | None = None) -> bool:
        """Return True if a record that counts (rule b) is at a position, or a blank followed by such a record.

        ``gap_end`` is the position of that blank.
        """
        file = self._file(phy_offset)
        if file is None or file.file_from_offset != in_file:
            return False
        start = self._after_blank(file, phy_offset)
        if start != phy_offset:
            return self._file(start) is not None and self._counts(start, start, phy_offset)
        claim = self._claim(phy_offset, self._check)
        if claim is None:
            return False
        timestamp = int(self._one[0, C.STORE_TIMESTAMP])
        until = phy_offset + int(self._one[0, C.SIZE])
        gap_end = phy_offset if gap_end is None else gap_end
        # Bytes that are fewer than a record has are no damage, and records that follow a stale one are as old.
        short = gap_end - self.end.phy_offset < MIN_RECORD_LENGTH and self._file(gap_end) is self._file(
            self.end.phy_offset)
        if short or phy_offset == self._stale_until:
            self._stale_until = self._after_blank(file, until)
        elif self._belongs(phy_offset, gap_end, claim, timestamp):
            return True
        self.stale += 1
        events.A_RECORD_AFTER_A_GAP_IS_STALE.log(
            _log, phy_offset=phy_offset, topic=claim.topic, queue_id=claim.queue_id, queue_offset=claim.queue_offset,
            store_timestamp=timestamp)
        return False

    def _after_blank(self, file: MappedFile, phy_offset: int) -> int:
        """Return the end of a file if a blank record is at a position of it, else the position."""
        at = phy_offset - file.file_from_offset
        head = file.read(at, BLANK.size)
        if len(head) == BLANK.size:
            blank = BLANK.unpack_from(head)
            if blank.magic == BLANK_MAGIC and blank.total_size == file.size - at:
                return file.file_from_offset + file.size
        return phy_offset

    def _belongs(self, phy_offset: int, gap_end: int, claim: RecordClaim, timestamp: int) -> bool:
        """Return True if a whole record after the gap belongs to the log (rules b and e)."""
        if claim.has_unit and claim.queue_offset < self._next_of(claim.topic, claim.queue_id):
            return False
        if timestamp >= self._last_timestamp:
            return True
        # A whole record between the gap and this one was stale already: what follows is of the same age.
        room = self._room_of_gap(gap_end) if self.stale == self._stale_before else -1
        return room >= 0 and self._queues_continue(phy_offset, room)

    def _room_of_gap(self, gap_end: int) -> int:
        """Return the maximum number of messages in the gap, -1 if positions do not show that the log continues."""
        at, reason = self.end.phy_offset, self.end.reason
        file = self._file(at)
        if file is None:
            return -1
        head = file.read(at - file.file_from_offset, PLAUSIBLE_LENGTH)
        file_end = file.file_from_offset + file.size
        size = gap_end - at
        if gap_end == file_end and len(head) >= BLANK.size:
            blank = BLANK.unpack_from(head)
            if blank.magic == BLANK_MAGIC or (blank.total_size == size and size < MIN_RECORD_LENGTH):
                return 0
        length = int.from_bytes(head[:4], "big", signed=True)
        leads = self._leads(file, at, length, gap_end)
        if not is_damaged_header(head, at, length_is_right=leads):
            return -1
        if reason in _SHAPED:  # the lengths fit together: other damaged records may follow, a torn record has none
            next_at = at + length
            after = file.read(next_at - file.file_from_offset, PLAUSIBLE_LENGTH) if next_at < gap_end else b""
            leads = leads or is_damaged_header(after, next_at, length_is_right=False)
        elif not leads:  # one length is damaged, or old bytes follow the first ones of a torn record
            record_bytes = file.read(at - file.file_from_offset, size)
            leads = any(self._leads(file, at, inside, gap_end) for inside in sizes_inside(record_bytes))
        if not leads:
            return -1
        return (self._damaged_bytes + size) // MIN_RECORD_LENGTH

    def _leads(self, file: MappedFile, at: int, length: int, gap_end: int) -> bool:
        """Return True if a record of a length at the start of the gap ends where the gap does."""
        return 0 < length <= gap_end - at and gap_end in {at + length, self._after_blank(file, at + length)}

    def _queues_continue(self, phy_offset: int, room: int) -> bool:
        """Return True if the queues of the gap's record and of the next records continue after the last good one.

        ``room`` is the maximum number of messages that may be missing.
        """
        known = missing = 0
        damaged = self._claim(self.end.phy_offset, C.CHECK_PHY_OFFSET)
        if damaged is not None and damaged.has_unit:
            following = self._next_of(damaged.topic, damaged.queue_id)
            if damaged.queue_offset < following:
                return False
            known += following == damaged.queue_offset
        firsts: dict[tuple[str, int], RecordClaim] = {}
        at, until = phy_offset, phy_offset + _AFTER
        while at < until and (claim := self._claim(at, self._check)) is not None:
            if claim.has_unit:
                firsts.setdefault((claim.topic, claim.queue_id), claim)
            at += int(self._one[0, C.SIZE])
        for (topic, queue_id), claim in firsts.items():
            following = self._next_of(topic, queue_id)
            if following < 0:
                continue
            if claim.queue_offset < following:
                return False
            known += 1
            missing += 0 if claim.count > 1 else claim.queue_offset - following
        return known > 0 and missing <= room

    def _claim(self, phy_offset: int, check: int) -> RecordClaim | None:
        """Return the queue and offset of the record at a position, or None without a record. Fills ``_one``."""
        file = self._file(phy_offset)
        if file is None or phy_offset >= self._until:
            return None
        at = phy_offset - file.file_from_offset
        size = int.from_bytes(file.read(at, 4), "big", signed=True)
        if not MIN_RECORD_LENGTH <= size <= min(file.size - at, self._until - phy_offset):
            return None
        data = file.read(at, size)
        count, _, _ = record.scan(data, 0, len(data), phy_offset, check, self._one)
        if not count:
            return None
        row = self._one[0]
        at = int(row[C.TOPIC_POS])
        topic = data[at : at + int(row[C.TOPIC_LEN])].decode("utf-8", "replace")
        transaction = int(row[C.SYS_FLAG]) & SysFlag.TRANSACTION_MASK
        at = int(row[C.PROPS_POS])
        is_inner = int(row[C.SYS_FLAG]) & SysFlag.INNER_BATCH
        return RecordClaim(
            topic, int(row[C.QUEUE_ID]), int(row[C.QUEUE_OFFSET]),
            transaction not in {SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK},
            inner_num(data[at : at + int(row[C.PROPS_LEN])]) if is_inner else 1)

    def _file_has_data(self, phy_offset: int) -> bool:
        """Return True if the byte at a position is not zero. The search starts after this byte."""
        file = self._file(phy_offset)
        return file is not None and file.read(phy_offset - file.file_from_offset, 1) != b"\0"

    def _search(self, phy_offset: int) -> int | None:
        """Return the first position after ``phy_offset`` where a record that counts starts, or None."""
        self.data_after_end = self._file_has_data(phy_offset)
        for file in self._files:
            base = file.file_from_offset
            if base + file.size <= phy_offset:
                continue
            low = max(phy_offset + 1 - base, 1)
            if base > phy_offset:
                if self._counts(base, base):
                    return base
                self.data_after_end = self.data_after_end or self._file_has_data(base)
            for at, chunk in file.nonzero(low):
                self.data_after_end = True
                data = chunk + file.read(at + len(chunk), PLAUSIBLE_LENGTH)
                for head in self._heads(file, low, at, data):
                    if self._counts(base, head):
                        return head
        return None


@final
class LogWalk(Walk[LogChunk]):
    """A walk of one thread, chunk by chunk."""

    def _stretch(self, start: int) -> Generator[LogChunk, None, bool]:
        held: LogChunk | None = None
        chunks = scan_files(self._files, start, self._until, self._check, self.end)
        if self._length(start) > _LONG:  # read and check the next chunk in a thread while this one is used
            chunks = read_ahead(chunks)
        for chunk in chunks:
            if held is not None:
                self._note(held.rows)
                yield held
            held = chunk
        if held is None:
            return False
        torn = self._ends_torn(held)
        if torn:
            held.rows = held.rows[:-1]
        if len(held.rows):
            self._note(held.rows)
            yield held
        return torn
