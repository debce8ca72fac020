"""Verification rules: every record, queue unit and index entry of a directory against the log.

Nothing is written. What is found, a ``Finding`` each:

  log       segment-length, segment-name, segment-missing, damaged-record, torn-end, data-behind-end,
            odd-properties (served, but not what a client writes)
  queues    queue-file-length, missing-unit, wrong-unit, foreign-unit (names no record of the queue)
  index     index-file-length, index-header, index-chain, missing-key, foreign-key
  hints     checkpoint-ahead
  config    config-unreadable

Memory: a byte for every queue unit, and a chunk of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np

from tailrace.formats import fastjson, filenames
from tailrace.formats.commitlog import decode_properties
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.formats.indexfile import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    index_file_size,
)
from tailrace.kernels import hashes, index_chains, index_entries, queue_units, record
from tailrace.store.directory import FileView, QueueView, StoreDirectory
from tailrace.store.dispatch import SCHEDULE_TOPIC, deliver_time_codes, parse_delay_levels
from tailrace.store.log_scan import Damage, LogChunk, LogWalk, RecordClaim, group_rows
from tailrace.store.store_checkpoint import read_checkpoint

__all__ = ["Finding", "Verification"]

_UNIT: Final = CQ_UNIT.size
_CHECK: Final = record.CHECK_BODY_CRC | record.CHECK_PHY_OFFSET | record.CHECK_PROP_CRC
_MANY: Final = 1000
Key = tuple[str, int]


class Finding(NamedTuple):
    """Something that is not as it should be."""

    kind: str
    file: str
    position: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tailrace verify`` prints."""
        return {"finding": self._asdict()}


@final
class Verification:
    """One audit of a directory that was opened ``raw``."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._queues: dict[Key, QueueView] = {
            (queue.topic, queue.queue_id): queue for queue in directory.queues()}
        self._claimed = {
            key: np.zeros(max(queue.max_offset - queue.min_offset, 0), dtype=bool)
            for key, queue in self._queues.items()
        }
        self._next: dict[Key, int] = {}
        self._levels = parse_delay_levels(directory.config.message_delay_level)
        self._index = _IndexView(directory)
        self._damage: list[Damage] = []
        self._end = 0
        self.records = 0
        self.units = 0
        self.entries = 0

    def findings(self) -> Iterator[Finding]:
        """Everything that is found, in the order of log, queues, index, hints, config."""
        for path, size, wanted in self._directory.odd_files:
            kind = "queue-file-length" if f"/{filenames.CONSUMEQUEUE}/" in path else "segment-length"
            yield Finding(kind, path, 0, f"{size} bytes, not {wanted}")
        yield from self._verify_log()
        for key in sorted(self._queues):
            yield from self._verify_unclaimed(key)
        yield from self._index.verify()
        self.entries = self._index.entries
        yield from self._verify_checkpoint()
        yield from self._verify_config()

    # -- log

    def _verify_log(self) -> Iterator[Finding]:
        directory = self._directory
        files = directory.log_files
        if not files:
            return
        walk = LogWalk(
            files, directory.min_phy_offset, directory.readable_until, _CHECK, self._is_fresh)
        for item in walk.items():
            if isinstance(item, Damage):
                self._damage.append(item)
                kind = "segment-missing" if "missing" in item.reason else "damaged-record"
                yield Finding(kind, item.path, item.phy_offset, f"{item.size} bytes, {item.reason}")
                continue
            self.records += len(item.rows)
            yield from self._verify_properties(item)
            for chosen in group_rows(item.rows):
                yield from self._verify_units(item, chosen)
            yield from self._index.verify_rows(item)
        self._end = walk.end.phy_offset
        if self._end < directory.readable_until:
            yield from self._verify_tail(walk)

    def _verify_tail(self, walk: LogWalk) -> Iterator[Finding]:
        reason = record.REASON_NAMES[walk.end.reason]
        for file in self._directory.log_files:
            start = max(self._end - file.file_from_offset, 0)
            if start < file.size:
                for at, _ in file.nonzero(start):
                    kind = "torn-end" if file.file_from_offset + at - self._end < 1 << 20 else (
                        "data-behind-end")
                    yield Finding(kind, file.path, at, f"behind the last good record: {reason}")
                    break

    def _is_fresh(self, claim: RecordClaim) -> bool:
        return claim.queue_offset >= self._next.get((claim.topic, claim.queue_id), 0)

    def _verify_properties(self, chunk: LogChunk) -> Iterator[Finding]:
        """Properties that decode to fewer than were written: odd, but served as they are."""
        text = chunk.data
        for row in chunk.rows:
            at, length = int(row[record.C_PROPS_POS]), int(row[record.C_PROPS_LEN])
            stored = text[at : at + length]
            pieces = [piece for piece in stored.split(b"\x02") if piece]
            if b"\0" in stored or any(piece.find(b"\x01") < 1 for piece in pieces):
                known = len(decode_properties(stored))
                yield Finding(
                    "odd-properties", self._directory.log_path(int(row[record.C_PHY])),
                    int(row[record.C_PHY]), f"{len(pieces)} pieces, {known} can be read")

    # -- queues

    def _verify_units(self, chunk: LogChunk, chosen: Any) -> Iterator[Finding]:
        rows = chunk.rows
        first = chosen[0]
        at = int(rows[first, record.C_TOPIC_POS])
        topic = chunk.data[at : at + int(rows[first, record.C_TOPIC_LEN])].decode("utf-8", "replace")
        if topic == SCHEDULE_TOPIC:
            deliver_time_codes(rows, chosen, self._levels)
        key = topic, int(rows[first, record.C_QUEUE_ID])
        offsets = rows[chosen, record.C_QUEUE_OFFSET]
        self._next[key] = int(offsets[-1]) + 1
        wanted = bytearray(_UNIT * len(chosen))
        queue_units.build_units(rows, chosen, 0, len(chosen), wanted)
        queue = self._queues.get(key)
        start, count = int(offsets[0]), len(chosen)
        if queue is not None and int(offsets[-1]) - start == count - 1 and (
            queue.units(start, count) == wanted
        ):
            self._claim(key, queue, start, count)
            return
        for number in range(count):
            offset = int(offsets[number])
            unit = wanted[number * _UNIT : (number + 1) * _UNIT]
            there = queue.units(offset, 1) if queue is not None else b""
            phy_offset = int(rows[chosen[number], record.C_PHY])
            if queue is not None and (
                there == unit or (topic == SCHEDULE_TOPIC and _is_delayed(there, unit))
            ):
                self._claim(key, queue, offset, 1)
            elif len(there) < _UNIT or not 0 < CQ_UNIT.unpack_from(there).size < PRE_BLANK_SIZE:
                yield Finding("missing-unit", self._path(key), offset,
                              f"the record at {phy_offset} has no unit")
            else:
                assert queue is not None
                self._claim(key, queue, offset, 1)
                yield Finding("wrong-unit", self._path(key), offset,
                              f"{CQ_UNIT.unpack_from(there)} for the record at {phy_offset}")

    def _claim(self, key: Key, queue: QueueView, offset: int, count: int) -> None:
        start = offset - queue.min_offset
        self._claimed[key][max(start, 0) : max(start + count, 0)] = True
        self.units += count

    def _path(self, key: Key) -> str:
        return f"{self._directory.path}/{filenames.CONSUMEQUEUE}/{key[0]}/{key[1]}"

    def _verify_unclaimed(self, key: Key) -> Iterator[Finding]:
        """Units that no record asked for, other than blanks, damage and what retention took."""
        queue, low = self._queues[key], self._directory.min_phy_offset
        for number in np.flatnonzero(~self._claimed[key]).tolist():
            offset = queue.min_offset + number
            unit = CQ_UNIT.unpack_from(queue.units(offset, 1).ljust(_UNIT, b"\0"))
            damaged = any(d.phy_offset == unit.phy_offset for d in self._damage)
            if 0 < unit.size < PRE_BLANK_SIZE and unit.phy_offset >= low and not damaged:
                yield Finding("foreign-unit", self._path(key), offset, f"{unit} names no record")

    # -- hints and config

    def _verify_checkpoint(self) -> Iterator[Finding]:
        path = f"{self._directory.path}/{filenames.CHECKPOINT}"
        fields = read_checkpoint(self._directory.file_system, path)
        if fields.logics_physical_offset > max(self._end, 0):
            yield Finding("checkpoint-ahead", path, 40,
                          f"{fields.logics_physical_offset}, the log ends at {self._end}")

    def _verify_config(self) -> Iterator[Finding]:
        file_system, root = self._directory.file_system, f"{self._directory.path}/{filenames.CONFIG}"
        for name in file_system.list(root):
            if not name.endswith(".json"):
                continue
            file = file_system.open(f"{root}/{name}")
            try:
                fastjson.loads(file.pread(file.size(), 0))
            except ValueError as error:
                yield Finding("config-unreadable", f"{root}/{name}", 0, str(error))
            finally:
                file.close()


@final
class _IndexView:
    """The index files of a directory, entry by entry beside the walk over the log."""

    def __init__(self, directory: StoreDirectory) -> None:
        config = directory.config
        self._directory = directory
        self._slots, self._room = config.max_hash_slot_num, config.max_index_num
        self._size = index_file_size(self._slots, self._room)
        self._bad: list[Finding] = []
        self._parts: list[tuple[FileView, Any]] = []
        self.entries = 0
        for file in directory.index_files():
            if file.size != self._size:
                self._bad.append(Finding(
                    "index-file-length", file.path, 0, f"{file.size} bytes, not {self._size}"))
            else:
                self._take(file)
        found = [part for _, part in self._parts]
        self._phy = np.concatenate([part["phy_offset"] for part in found]) if found else np.empty(0, "i8")
        self._hash = np.concatenate([part["key_hash"] for part in found]) if found else np.empty(0, "i8")
        order = np.argsort(self._phy, kind="stable")
        self._phy, self._hash = self._phy[order].astype(np.int64), self._hash[order].astype(np.int64)
        self._seen = np.zeros(len(self._phy), dtype=bool)

    def _take(self, file: FileView) -> None:
        header = INDEX_HEADER.unpack_from(file.read(0, INDEX_HEADER.size))
        if not 1 <= header.index_count <= self._room:
            self._bad.append(Finding("index-header", file.path, 0, f"{header.index_count} entries"))
            return
        start = INDEX_HEADER.size + self._slots * INDEX_SLOT.size
        data = file.read(start, header.index_count * INDEX_ENTRY.size)
        heads = np.empty(self._slots, dtype=np.int32)
        count, _ = index_chains.follow(data, header.index_count, 1 << 62, heads)
        if count < header.index_count:
            self._bad.append(Finding(
                "index-chain", file.path, start + count * INDEX_ENTRY.size,
                f"entry {count} of {header.index_count} cannot be right"))
        elif file.read(INDEX_HEADER.size, self._slots * INDEX_SLOT.size) != heads.astype(">i4").tobytes():
            self._bad.append(Finding("index-chain", file.path, INDEX_HEADER.size,
                                     "slots do not name the newest entries"))
        self._parts.append((file, INDEX_ENTRY.view(data)[1:]))
        self.entries += header.index_count - 1

    def verify_rows(self, chunk: LogChunk) -> Iterator[Finding]:
        """Keys of a chunk's records that no entry has."""
        rows = chunk.rows
        if not self._directory.config.message_index_enable or not len(rows):
            return
        most = int(rows[:, record.C_KEYS_LEN].sum()) // 2 + 3 * len(rows) + 2
        scratch = bytearray(index_file_size(1, most))
        INDEX_HEADER.struct.pack_into(scratch, 0, 0, 0, 0, 0, 0, 1)
        index_entries.put_rows(scratch, 1, most, chunk.data, rows, 0, len(rows), 0)
        made = INDEX_HEADER.unpack_from(scratch).index_count
        start = INDEX_HEADER.size + INDEX_SLOT.size
        wanted = INDEX_ENTRY.view(bytes(scratch[start : start + made * INDEX_ENTRY.size]))[1:]
        low = int(np.searchsorted(self._phy, rows[0, record.C_PHY]))
        high = int(np.searchsorted(self._phy, rows[-1, record.C_PHY], side="right"))
        if high - low == len(wanted) and np.array_equal(self._hash[low:high], wanted["key_hash"]) and (
            np.array_equal(self._phy[low:high], wanted["phy_offset"])
        ):
            self._seen[low:high] = True
            return
        there: dict[tuple[int, int], list[int]] = {}
        for number in range(low, high):
            there.setdefault((int(self._phy[number]), int(self._hash[number])), []).append(number)
        tags = _tag_entries(chunk)
        for entry in wanted:
            key = int(entry["phy_offset"]), int(entry["key_hash"])
            if key in there:
                for number in there[key]:
                    self._seen[number] = True
            elif key not in tags:  # brokers before 5.5.0 write none for tags
                yield Finding("missing-key", f"{self._directory.path}/{filenames.INDEX}", key[0],
                              f"a key with hash {key[1]} has no entry")

    def verify(self) -> Iterator[Finding]:
        """What is wrong in the files, and entries that no record asked for."""
        yield from self._bad
        low = self._directory.min_phy_offset
        foreign = np.flatnonzero(~self._seen & (self._phy >= low))
        for number in foreign[:_MANY].tolist():
            yield Finding("foreign-key", f"{self._directory.path}/{filenames.INDEX}",
                          int(self._phy[number]), f"an entry with hash {self._hash[number]}")


def _tag_entries(chunk: LogChunk) -> set[tuple[int, int]]:
    found = set()
    for row in chunk.rows:
        at = int(row[record.C_TAGS_POS])
        if at >= 0:
            tag = chunk.data[at : at + int(row[record.C_TAGS_LEN])]
            at = int(row[record.C_TOPIC_POS])
            topic = chunk.data[at : at + int(row[record.C_TOPIC_LEN])]
            found.add((int(row[record.C_PHY]), hashes.index_hash(topic, b"T#" + tag)))
    return found


def _is_delayed(there: bytes, unit: bytes | bytearray) -> bool:
    """Whether a unit differs in its deliver time only: other delay levels may have been in force."""
    found = CQ_UNIT.unpack_from(there)
    return found._replace(tags_code=0) == CQ_UNIT.unpack_from(unit)._replace(tags_code=0) and (
        found.tags_code > 0)
