"""The audit of ``tailrace verify`` in Spark tasks, one per segment, by the rules of store.verification.

  1  files     a task per index file: its header and chains, and which positions its blocks name;
               a task per file of the timer log: its units against their records
  2  segments  a task per segment: its records, units and keys, piece by piece between damage
  3  walk      the driver walks over the pieces (``StitchedWalk``) and decides, as verify does, what is damage
               and where the log ends; segments that a task had cut at other places are verified again
  4  rest      on the driver: units and entries that belong to no segment, checkpoint, config files, lists of
               timers and the wheel

The directory is read once and this view is sent to the tasks. Findings of segments stay in Spark, on the disks of the
executors, so there may be many. The driver keeps two numbers for each run of units of a segment.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa

from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.kernels.shared import constants as C
from tailrace.node.synced_directory import open_synced
from tailrace.segments import MappedFile
from tailrace.spark.tasks import all_of, task_frame
from tailrace.store.compaction.verification import compaction_findings
from tailrace.store.directory import StoreDirectory
from tailrace.store.index_verification import (
    MANY,
    IndexBlock,
    IndexRange,
    check_index_file,
    indexed_until,
)
from tailrace.store.verification import (
    Claims,
    Finding,
    Key,
    SegmentRules,
    damage_finding,
    odd_file_findings,
    queue_ends,
    segment_spans,
    state_findings,
    tail_findings,
    unclaimed_findings,
)
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import LogChunk, LogEnd, scan_files
from tailrace.store.walk.stitched import (
    Piece,
    StitchedWalk,
    first_piece,
    scan_pieces,
)
from tailrace.timer.verification import (
    check_timer_file,
    join_timer_checks,
    timer_counts,
    timer_files,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Audit", "audit"]

Tell = Callable[[str], None]
_Look = tuple[StoreDirectory, list[MappedFile]]
_SCHEMA: Final = (
    "step int, at bigint, number bigint, kind string, file string, position bigint, detail string")
_TASK_SCHEMA: Final = f"{_SCHEMA}, segment bigint, part binary"
_TASK_ROWS: Final = pa.schema([
    ("step", pa.int32()), ("at", pa.int64()), ("number", pa.int64()), ("kind", pa.string()), ("file", pa.string()),
    ("position", pa.int64()), ("detail", pa.string()), ("segment", pa.int64()), ("part", pa.binary())])
"""What a task yields: rows of findings, and one row with the part."""
_BATCH: Final = 4096
_ODD, _LOG, _REST = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Audit:
    """``findings`` has the columns kind, file, position and detail, in the order of verify."""

    findings: DataFrame
    summary: dict[str, Any]


class _Task(NamedTuple):
    """A segment to verify. ``ranges`` are the ranges of its records, if they are known."""

    number: int
    low: int
    high: int
    blocks: list[IndexBlock]
    indexed: int
    ranges: list[tuple[int, int]] | None = None


@dataclass(slots=True)
class _Part:
    """Results of a segment's task, other than its findings."""

    number: int
    pieces: list[tuple[Piece, dict[Key, int]]] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    sealed: list[Damage] = field(default_factory=list)
    records: int = 0
    units: int = 0
    foreign: list[Finding] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def ranges(self) -> list[tuple[int, int]]:
        return [(piece.start, piece.end) for piece, _ in self.pieces if piece.end > piece.start]


def audit(
    spark: SparkSession, path: str, *, config: StoreConfig | None = None, tell: Tell = lambda _: None,
) -> Audit:
    """Audit a directory without changing it. Raises NotAStoreError."""
    directory = _opened(path, config, tell)
    files = directory.index_files()
    look = directory, files
    tell(f"{len(directory.log_files)} segments, {len(files)} index files")
    config_of, is_live, last = directory.config, directory.is_live, len(files) - 1
    checks = all_of(
        spark, lambda one: check_index_file(config_of, one[1], one[0], grows=is_live and one[0] == last),
        enumerate(files))
    blocks = [block for check in checks for block in check.blocks]
    timers, odd_timers = timer_files(directory)
    last_timer = len(timers) - 1
    timer_checks = all_of(
        spark, lambda one: check_timer_file(directory, one[1], last=one[0] == last_timer), enumerate(timers))
    tasks = [
        _Task(number, low, high, [b for b in blocks if b.low < high and b.high >= low],
              indexed_until(directory, blocks))
        for number, (low, high) in enumerate(segment_spans(directory))
    ]
    found = _run(spark, look, tasks)
    parts = _parts(found)
    walk = _Walk(directory, parts)
    walk.run()
    again = [task._replace(ranges=walk.used.get(task.number, []))
             for task in tasks if parts[task.number].ranges() != walk.used.get(task.number, [])]
    if again:
        tell(f"{len(again)} segments are cut by damage and are verified again")
        found = found.where(f"segment NOT IN ({', '.join(str(task.number) for task in again)})")
        more = _run(spark, look, again)
        parts |= _parts(more)
        found = found.union(more)
    claims, foreign = Claims(), list[Finding]()
    for number in sorted(parts):
        claims.join(parts[number].claims)
        foreign += parts[number].foreign
    rows = [(_ODD, 0, number, *finding) for number, finding in enumerate(odd_file_findings(directory))]
    rows += [(_LOG, damage.phy_offset, 0, *damage_finding(damage)) for damage in walk.damage]
    rest = [
        *(tail_findings(directory, walk.end) if directory.log_files else ()),
        *unclaimed_findings(directory, claims, [*walk.damage, *(d for part in parts.values() for d in part.sealed)]),
        *(finding for check in checks for finding in check.findings),
        *foreign[:MANY],
        *state_findings(directory, walk.end.phy_offset),
        *odd_timers,
        *join_timer_checks(directory, timer_checks),
        # As verify: files of compaction change at any time while a server has the directory open.
        *(() if directory.is_live else compaction_findings(directory.file_system, directory.path)),
    ]
    rows += [(_REST, 0, number, *finding) for number, finding in enumerate(rest)]
    frame = found.where("part IS NULL").select(*_TASK_ROWS.names[:-2])
    if rows:
        frame = frame.union(spark.createDataFrame(rows, _SCHEMA, verifySchema=False))
    kinds = Counter(row[3] for row in rows)
    for part in parts.values():
        kinds += part.kinds
    findings = frame.orderBy("step", "at", "number").select("kind", "file", "position", "detail")
    return Audit(findings, {
        "state": directory.state.value, "records": sum(part.records for part in parts.values()),
        "units": sum(part.units for part in parts.values()),
        "indexEntries": sum(check.entries for check in checks),
        "timers": timer_counts(directory, timer_checks, SystemClock().now_ms())._asdict(),
        "findings": sum(kinds.values()), "kinds": dict(sorted(kinds.items())),
    })


def _opened(path: str, config: StoreConfig | None, tell: Tell) -> StoreDirectory:
    directory, behind = open_synced(path, config=config, raw=True)
    if behind:
        tell(f"the store is shown {behind}")
    return directory


def _run(spark: SparkSession, look: _Look, tasks: list[_Task]) -> DataFrame:
    """Return findings and part of some segments, kept on the disks of the executors."""
    from pyspark import StorageLevel  # noqa: PLC0415 - with a session alone

    return task_frame(spark, lambda task: _batches(look, task), tasks, _TASK_SCHEMA).persist(StorageLevel.DISK_ONLY)


def _parts(found: DataFrame) -> dict[int, _Part]:
    return {
        row["segment"]: pickle.loads(row["part"])
        for row in found.where("part IS NOT NULL").select("segment", "part").collect()}


def _batches(look: _Look, task: _Task) -> Iterator[pa.RecordBatch]:
    """Yield what ``_verify_segment`` yields, as Arrow batches."""
    rows = (
        (*[None] * 7, task.number, pickle.dumps(item, 5)) if isinstance(item, _Part) else (*item, task.number, None)
        for item in _verify_segment(look, task))
    while held := list(islice(rows, _BATCH)):
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(zip(*held, strict=True), _TASK_ROWS, strict=True)],
            schema=_TASK_ROWS)


def _verify_segment(look: _Look, task: _Task) -> Iterator[Any]:
    """Yield rows of findings, and at the end the part."""
    directory, index_files = look
    queues = {(queue.topic, queue.queue_id): queue for queue in directory.queues()}
    index = IndexRange(
        directory, index_files, task.blocks, task.low, task.high, task.indexed)
    rules = SegmentRules(directory, queues, index)
    part = _Part(task.number)
    if task.number < len(directory.log_files):
        for item in _segment_items(directory, task):
            if isinstance(item, Piece):
                part.pieces.append((item, rules.next))
                rules.next = {}
            else:
                for number, finding in enumerate(rules.verify(item)):
                    part.kinds[finding.kind] += 1
                    yield (_LOG, item.base, number, *finding)
    part.claims, part.records, part.units = rules.claims, rules.records, rules.units
    part.sealed = rules.sealed
    part.foreign = rules.foreign_keys()
    yield part


def _segment_items(directory: StoreDirectory, task: _Task) -> Iterator[LogChunk | Piece]:
    file = directory.log_files[task.number]
    if task.ranges is None:
        yield from scan_pieces(file, task.low, directory.readable_until, C.CHECK_ALL)
        return
    for start, end in task.ranges:
        yield from scan_files([file], start, end, C.CHECK_ALL, LogEnd())


@final
class _Walk:
    """The driver's walk: it finds damage, the end of the log, and the ranges that are records."""

    def __init__(self, directory: StoreDirectory, parts: dict[int, _Part]) -> None:
        self._directory = directory
        self._numbers = {
            file.file_from_offset: number for number, file in enumerate(directory.log_files)}
        self._pieces = {
            piece.start: (piece, ends) for part in parts.values() for piece, ends in part.pieces}
        self._next: dict[Key, int] = {}
        self.damage: list[Damage] = []
        self.used: dict[int, list[tuple[int, int]]] = {}
        self.end = LogEnd()

    def run(self) -> None:
        """Walk from the first to the last record."""
        directory = self._directory
        if not directory.log_files:
            return
        walk = StitchedWalk(
            directory.log_files, directory.min_phy_offset, directory.readable_until, C.CHECK_ALL,
            self._next_of, self._piece)
        self.damage += [item for item in walk.items() if isinstance(item, Damage)]
        self.end = walk.end

    def _piece(self, file: MappedFile, start: int) -> Iterator[LogChunk | Piece]:
        items: Iterable[LogChunk | Piece]
        if (known := self._pieces.get(start)) is not None:
            items = known[:1]
            self._next |= known[1]
        else:  # no task has scanned it, because the walk continues at another position than the task did
            items = first_piece(file, start, self._directory.readable_until, C.CHECK_ALL)
        for item in items:
            if not isinstance(item, Piece):
                self._next |= queue_ends(item)
            elif item.end > item.start:
                self.used.setdefault(self._numbers[file.file_from_offset], []).append((item.start, item.end))
            yield item

    def _next_of(self, topic: str, queue_id: int) -> int:
        return self._next.get((topic, queue_id), -1)
