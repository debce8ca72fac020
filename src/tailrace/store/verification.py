"""Verify a directory: compare every record, queue unit and index entry with the log. Nothing is written.

`store.findings.STORE_KINDS` declares the kinds of findings.

The rules for records need one segment at a time (``SegmentRules``), so Spark verifies segments in
parallel and joins the results. ``Verification`` verifies the segments one after the other.

Of a directory that is open in another process, only what was durable and dispatched at the start is
verified. Slots of the last index file and the checkpoint change at any time, so they are left out.

Memory: the index entries of a segment, two numbers for each run of units, and a chunk of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np

from tailrace.env.whole_files import is_directory, read_file
from tailrace.errors import OddFileError
from tailrace.formats import fastjson, filenames
from tailrace.formats.commitlog import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    decode_properties,
)
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT, PRE_BLANK_SIZE, CqUnit
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.kernels import columns, queue_units, record
from tailrace.kernels.shared import constants as C
from tailrace.store.batch_units import batch_units
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.dispatch import deliver_time_codes, parse_delay_levels
from tailrace.store.findings import Finding
from tailrace.store.index_verification import (
    MANY,
    IndexBlock,
    IndexRange,
    check_index_file,
    indexed_until,
)
from tailrace.store.multi_dispatch import rows_with_lmq
from tailrace.store.queue_types import queue_directories
from tailrace.store.record_batch import inner_counts, rows_by_queue
from tailrace.store.sealing import sealed_rows
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.walk.log_walk import Damage, LogWalk
from tailrace.store.walk.scan import LogChunk, LogEnd, Rows

__all__ = [
    "Claims", "Finding", "Key", "SegmentRules", "Verification", "damage_finding",
    "foreign_files", "odd_file_findings", "queue_ends", "segment_spans", "state_findings", "tail_findings",
    "unclaimed_findings",
]

_UNIT: Final = CQ_UNIT.size
_FOREVER: Final = (1 << 63) - 1
_LOOK: Final = 4096
Key = tuple[str, int]


@final
class Claims:
    """Units that records need: runs of queue offsets of each queue."""

    def __init__(self) -> None:
        self.runs: dict[Key, list[tuple[int, int]]] = {}
        """For each queue [(start, end)], in the order of the log."""

    def add(self, key: Key, start: int, count: int) -> None:
        """Claim some units of a queue."""
        runs = self.runs.setdefault(key, [])
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], start + count
        else:
            runs.append((start, start + count))

    def join(self, other: Claims) -> None:
        """Add the claims of a later segment."""
        for key, runs in other.runs.items():
            for start, end in runs:
                self.add(key, start, end - start)

    def gaps(self, key: Key, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of [low, high) that no record claimed."""
        at = low
        for start, end in sorted(self.runs.get(key, ())):
            if at < start:
                yield at, min(start, high)
            at = max(at, end)
            if at >= high:
                return
        if at < high:
            yield at, high


@final
class SegmentRules:
    """Verifies the records of one segment against queues and index."""

    def __init__(
        self, directory: StoreDirectory, queues: dict[Key, ConsumeQueue], index: IndexRange
    ) -> None:
        self._directory = directory
        self._queues = queues
        self._index = index
        self._levels = parse_delay_levels(directory.config.message_delay_level)
        self._counts: dict[int, int] = {}
        """Number of messages of each row of the chunk that is an inner batch."""
        self.claims = Claims()
        self.next: dict[Key, int] = {}
        """Offset after the last record of each queue that has records in the segment."""
        self.sealed: list[Damage] = []
        """Damage that placeholder records of the segment cover."""
        self.records = 0
        self.units = 0

    def verify(self, chunk: LogChunk) -> Iterator[Finding]:
        """Yield the findings about the records of a chunk."""
        self.records += len(chunk.rows)
        self.sealed += sealed_rows(chunk.data, chunk.rows)
        yield from self._verify_properties(chunk)
        deliver_time_codes(chunk.data, chunk.rows, self._levels)
        rows = rows_with_lmq(chunk.data, chunk.rows)
        self._counts = dict(inner_counts(chunk.data, rows))
        for topic, queue_id, chosen in rows_by_queue(chunk.data, rows):
            yield from self._verify_units((topic, queue_id), rows, chosen)
        yield from self._index.verify_rows(chunk)

    def foreign_keys(self) -> list[Finding]:
        """Return the index entries that no record of the segment has, after all were verified."""
        return self._index.foreign()

    def _verify_properties(self, chunk: LogChunk) -> Iterator[Finding]:
        """Yield properties that cannot all be decoded: not what a client writes, but served as they are."""
        for number in rows_with_odd_properties(chunk):
            row = chunk.rows[number]
            at, length = int(row[C.PROPS_POS]), int(row[C.PROPS_LEN])
            stored = chunk.data[at : at + length]
            pieces = [piece for piece in stored.split(b"\x02") if piece]
            known = len(decode_properties(stored))
            yield Finding(
                "odd-properties", self._directory.log_path(int(row[C.PHY])),
                int(row[C.PHY]), f"{len(pieces)} pieces, {known} can be read")

    def _verify_units(self, key: Key, rows: Rows, chosen: Any) -> Iterator[Finding]:
        """Verify the units of records: in a batch queue each has one unit with its number of messages."""
        directory, queue = self._directory, self._queues.get(key)
        offsets = rows[chosen, C.QUEUE_OFFSET]
        counts = np.array([self._counts.get(number, 1) for number in chosen.tolist()], dtype=np.int64)
        self.next[key] = int(offsets[-1] + counts[-1])
        is_batch = queue is not None and queue.is_batch
        layout: Any = BATCH_CQ_UNIT if is_batch else CQ_UNIT
        if is_batch:
            wanted = batch_units(rows, chosen, counts)
        else:
            made = bytearray(_UNIT * len(chosen))
            queue_units.build_units(rows, chosen, np.array([0, len(chosen)]), made)
            wanted, counts = bytes(made), np.ones_like(counts)
        follows = bool((np.diff(offsets) == counts[:-1]).all())
        if follows and queue is not None and queue.stored_units(int(offsets[0]), len(chosen)) == wanted:
            self._claim(key, int(offsets[0]), int(counts.sum()), len(chosen))
            return
        for number, (offset, count) in enumerate(zip(offsets.tolist(), counts.tolist(), strict=True)):
            unit = wanted[number * layout.size : (number + 1) * layout.size]
            there = queue.stored_units(offset, 1) if queue is not None else b""
            phy_offset = int(rows[chosen[number], C.PHY])
            if there != unit and phy_offset < directory.lives.deleted_up_to(key[0]):
                continue  # its topic was deleted, and the unit is that of a later message
            if there == unit or (key[0] == SCHEDULE_TOPIC and _is_delayed(there, unit)):
                self._claim(key, offset, count)
            elif directory.is_live and offset >= (queue.max_offset if queue is not None else 0):
                continue  # not dispatched when the directory was opened
            elif queue is None or queue.begin_of(offset) != offset or not _names_record(queue.units(offset, 1)):
                yield Finding("missing-unit", _queue_path(directory, key), offset,
                              f"the record at {phy_offset} has no unit")
            else:
                self._claim(key, offset, count)
                yield Finding("wrong-unit", _queue_path(directory, key), offset,
                              f"{_named(layout.unpack_from(there))}, for the record at {phy_offset}")

    def _claim(self, key: Key, start: int, count: int, units: int = 1) -> None:
        self.claims.add(key, start, count)
        self.units += units


@final
class Verification:
    """One verification of a directory that was opened ``raw``."""

    def __init__(self, directory: StoreDirectory, progress: Callable[[float], None] | None = None) -> None:
        """``progress`` is called with the part of the log that was read, from 0 to 1."""
        self._directory = directory
        self._progress = progress
        self._queues = {(queue.topic, queue.queue_id): queue for queue in directory.queues()}
        self._claims = Claims()
        self._next: dict[Key, int] = {}
        self._recent: dict[Key, int] = {}
        self._damage: list[Damage] = []
        self._until = _expected_end(directory)
        self.sealed: list[Damage] = []
        """Damage that placeholders of ``repair --seal-damage`` cover."""
        self._end = LogEnd()
        self._foreign: list[Finding] = []
        self._index_files = directory.index_files()
        self._blocks: list[IndexBlock] = []
        self.records = 0
        self.units = 0
        self.entries = 0

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, in the order of log, queues, index, hints, config."""
        directory = self._directory
        yield from odd_file_findings(directory)
        index = [
            check_index_file(
                directory.config, file, number,
                grows=directory.is_live and file is self._index_files[-1])
            for number, file in enumerate(self._index_files)
        ]
        self._blocks = [block for check in index for block in check.blocks]
        self.entries = sum(check.entries for check in index)
        yield from self._verify_log()
        yield from unclaimed_findings(directory, self._claims, [*self._damage, *self.sealed])
        for check in index:
            yield from check.findings
        yield from self._foreign[:MANY]
        yield from state_findings(directory, self._end.phy_offset)

    def _verify_log(self) -> Iterator[Finding]:
        directory = self._directory
        walk = LogWalk(
            directory.log_files, directory.min_phy_offset, directory.readable_until, C.CHECK_ALL,
            self._next_of)
        spans = iter(segment_spans(directory))
        low, high = next(spans)
        rules = self._rules(low, high)
        for item in walk.items() if directory.log_files else ():
            if isinstance(item, Damage):
                self._damage.append(item)
                yield damage_finding(item)
                continue
            while item.base >= high:
                self._take(rules)
                low, high = next(spans)
                rules = self._rules(low, high)
            self._recent = rules.next
            yield from rules.verify(item)
            last = item.rows[-1]
            self._report(int(last[C.PHY] + last[C.SIZE]))
        self._take(rules)
        for low, high in spans:
            self._take(self._rules(low, high))
        self._end = walk.end
        if directory.log_files:
            yield from tail_findings(directory, walk.end)

    def _report(self, at: int) -> None:
        """Report the part of the log that was read, up to the position ``at``."""
        if self._progress is None:
            return
        start = self._directory.min_phy_offset
        self._progress(min((at - start) / max(self._until - start, 1), 1.0))

    def _rules(self, low: int, high: int) -> SegmentRules:
        return SegmentRules(
            self._directory, self._queues,
            IndexRange(self._directory, self._index_files, self._blocks, low, high,
                       indexed_until(self._directory, self._blocks)))

    def _take(self, rules: SegmentRules) -> None:
        self._claims.join(rules.claims)
        self.sealed += rules.sealed
        self._next.update(rules.next)
        self.records += rules.records
        self.units += rules.units
        if len(self._foreign) < MANY:
            self._foreign += rules.foreign_keys()

    def _next_of(self, topic: str, queue_id: int) -> int:
        key = topic, queue_id
        return self._recent.get(key, self._next.get(key, -1))


def _expected_end(directory: StoreDirectory) -> int:
    """Return about where a walk over the log ends. It may end later if damage is in the last segment."""
    until = min(directory.max_phy_offset, directory.readable_until)
    # Segments after that end have data if the queues that lead to the end of the log are missing.
    later = (file for file in directory.log_files if until < file.file_from_offset < directory.readable_until)
    return max((file.file_from_offset + file.data_end() for file in later if any(file.read(0, _LOOK))), default=until)


def rows_with_odd_properties(chunk: LogChunk) -> list[int]:
    """Return the numbers of rows whose properties have a NUL byte, or a part without a name and a value."""
    rows = np.ascontiguousarray(chunk.rows)
    offsets, valid = np.empty(len(rows) + 1, dtype=np.int32), np.empty(len(rows) // 8 + 1, dtype=np.uint8)
    text = np.empty(int(rows[:, C.PROPS_LEN].sum()), dtype=np.uint8)
    columns.copy_parts(
        chunk.data, rows[:, C.PROPS_POS], rows[:, C.PROPS_LEN], offsets, valid, text)
    ends = offsets[1:].astype(np.int64)
    named = np.append(np.flatnonzero(text == ord(NAME_VALUE_SEPARATOR)), len(text))
    cuts = np.flatnonzero(text == ord(PROPERTY_SEPARATOR))
    first = np.sort(np.concatenate([ends - rows[:, C.PROPS_LEN], cuts + 1]), kind="stable")
    end = np.sort(np.concatenate([cuts, ends]), kind="stable")
    value_at = named[np.searchsorted(named, np.minimum(first, len(text)))]
    odd = first[(first < end) & ((value_at >= end) | (value_at == first))]
    places = np.concatenate([odd, np.flatnonzero(text == 0)])
    return np.unique(np.searchsorted(ends, places, side="right")).tolist()


def queue_ends(chunk: LogChunk) -> dict[Key, int]:
    """Return the offset after the last record of each queue that has records in a chunk."""
    found = {}
    rows = rows_with_lmq(chunk.data, chunk.rows)
    counts = dict(inner_counts(chunk.data, rows))
    for topic, queue_id, chosen in rows_by_queue(chunk.data, rows):
        found[topic, queue_id] = int(rows[chosen[-1], C.QUEUE_OFFSET]) + counts.get(int(chosen[-1]), 1)
    return found


def segment_spans(directory: StoreDirectory) -> list[tuple[int, int]]:
    """Return a range of positions for each segment; the last range has no end."""
    starts = [file.file_from_offset for file in directory.log_files] or [0]
    return list(zip(starts, [*starts[1:], _FOREVER], strict=True))


def odd_file_findings(directory: StoreDirectory) -> Iterator[Finding]:
    """Yield a finding for each file that is left out because of its length."""
    for path, size, wanted in directory.odd_files:
        is_queue = any(f"/{name}/" in path for name in (filenames.CONSUMEQUEUE, filenames.BATCHCONSUMEQUEUE))
        kind = "queue-file-length" if is_queue else "segment-length"
        yield Finding(kind, path, 0, f"{size} bytes, not {wanted}")


def foreign_files(directory: StoreDirectory) -> Iterator[str]:
    """Yield the paths of files beside segments and index files that are neither."""
    files, root = directory.file_system, directory.path
    places = [*directory.log_paths.all, f"{root}/{filenames.TIMERLOG}"]
    for name in (
        filenames.CONSUMEQUEUE, filenames.BATCHCONSUMEQUEUE, filenames.COMPACTION_LOG, filenames.COMPACTION_CQ,
    ):
        places += [f"{root}/{name}/{topic}/{queue_id}"
                   for topic, queue_id in queue_directories(files, f"{root}/{name}")]
    for place in places:
        for name in files.list(place):
            ours = name == filenames.COMPACTION_REPLACE or filenames.file_name_to_offset(name) is not None
            if not ours and not is_directory(files, f"{place}/{name}"):
                yield f"{place}/{name}"
    index = f"{root}/{filenames.INDEX}"
    for name in files.list(index):
        if not filenames.is_index_name(name) and not is_directory(files, f"{index}/{name}"):
            yield f"{index}/{name}"


def damage_finding(damage: Damage) -> Finding:
    """Return the finding for damage in the middle of the log."""
    kind = "segment-missing" if "missing" in damage.reason else "damaged-record"
    return Finding(kind, damage.path, damage.phy_offset, f"{damage.size} bytes, {damage.reason}")


def tail_findings(directory: StoreDirectory, end: LogEnd) -> Iterator[Finding]:
    """Yield findings for data after the end of the log."""
    if end.phy_offset >= directory.readable_until:
        return
    reason = record.REASON_NAMES[end.reason]
    for file in directory.log_files:
        start = max(end.phy_offset - file.file_from_offset, 0)
        if start < file.size:
            for at, _ in file.nonzero(start):
                near = file.file_from_offset + at - end.phy_offset < 1 << 20
                yield Finding("torn-end" if near else "data-behind-end", file.path, at,
                              f"after the last good record: {reason}")
                break


def unclaimed_findings(
    directory: StoreDirectory, claims: Claims, damage: Iterable[Damage]
) -> Iterator[Finding]:
    """Yield units that no record has, without pre-blank units, units over damage and units of deleted files.

    ``damage`` includes the damage that placeholders cover: the units of its messages stay.
    """
    ranges = np.array([(-1, -1), *sorted((one.phy_offset, one.until) for one in damage)], dtype=np.int64)
    starts, ends = ranges[:, 0], np.maximum.accumulate(ranges[:, 1])
    for queue in directory.queues():
        key = queue.topic, queue.queue_id
        # A broker that does not know of a deletion builds the units of the ended life again, at other offsets.
        low = max(directory.min_phy_offset, directory.lives.deleted_up_to(queue.topic))
        for start, end in claims.gaps(key, queue.min_offset, queue.max_offset):
            for at, units in queue.runs(start, end):
                places = units["phy_offset"]
                foreign = (
                    (units["size"] > 0) & (units["size"] < PRE_BLANK_SIZE) & (places >= low)
                    & (places >= ends[np.searchsorted(starts, places, side="right") - 1]))
                for number in np.flatnonzero(foreign).tolist():
                    yield Finding("foreign-unit", _queue_path(directory, key), at + number,
                                  f"{_named(CqUnit(*units[number].tolist()))}: no record is there")


def state_findings(directory: StoreDirectory, end: int) -> Iterator[Finding]:
    """Yield findings for a checkpoint after the end of the log, and for config files that cannot be read."""
    path = f"{directory.path}/{filenames.CHECKPOINT}"
    fields = read_checkpoint(directory.file_system, path)
    if fields.logics_physical_offset > max(end, 0) and not directory.is_live:
        yield Finding("checkpoint-ahead", path, 40,
                      f"{fields.logics_physical_offset}, the log ends at {end}")
    file_system, root = directory.file_system, f"{directory.path}/{filenames.CONFIG}"
    for name in file_system.list(root):
        if not name.endswith(".json"):
            continue
        try:
            fastjson.loads(read_file(file_system, f"{root}/{name}"))
        except (ValueError, OddFileError, PermissionError) as error:
            yield Finding("config-unreadable", f"{root}/{name}", 0, str(error))


def _queue_path(directory: StoreDirectory, key: Key) -> str:
    queue = directory.queue(key)
    return queue.files.directories[0] if queue is not None else (
        f"{directory.path}/{filenames.CONSUMEQUEUE}/{key[0]}/{key[1]}")


def _names_record(unit: bytes) -> bool:
    """Return True if 20 bytes are a unit of a record."""
    return len(unit) == _UNIT and 0 < CQ_UNIT.unpack_from(unit).size < PRE_BLANK_SIZE


def _named(unit: NamedTuple) -> str:
    """Return the fields of a unit as text, with the names of the page on formats."""
    return "the unit has " + ", ".join(f"{name} {value}" for name, value in unit._asdict().items())


def _is_delayed(there: bytes, unit: bytes | bytearray) -> bool:
    """Return True if a unit differs only in its delivery time: the delay levels may have been changed since."""
    if len(there) < _UNIT:
        return False
    found = CQ_UNIT.unpack_from(there)
    return found._replace(tags_code=0) == CQ_UNIT.unpack_from(unit)._replace(tags_code=0) and (
        found.tags_code > 0)
