"""Recovery and rebuild in which Spark tasks read the log.

The directory is opened as usual, under its lock and by the passes of ``store.recovery``. Only the scan of the
log is different: a task per segment checks every record and stages the values that queues and index need. The walk
then reads its chunks from the staged files. As in a local recovery, the walk decides what is damage and where
the log ends, writes units and entries, cuts, and syncs. So one module decides and one writes, and a kill leaves
the same states as in a local recovery. The store is not changed before all segments are staged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.formats.filenames import STAGING
from tailrace.logs import get_logger
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.segments import MappedFile
from tailrace.spark.pipeline.staging import (
    StagedSegment,
    piece_chunks,
    read_staged,
    stage_segment,
)
from tailrace.spark.tasks import all_of
from tailrace.store.dispatch import Dispatcher
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import NextOf
from tailrace.store.walk.scan import LogChunk
from tailrace.store.walk.stitched import Piece, StitchedWalk, first_piece, in_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkScan", "recover"]

_log = get_logger(__name__)
Tell = Callable[[str], None]


def recover(
    spark: SparkSession, path: str, *, config: StoreConfig | None = None, rebuild: bool = False,
    staging: str = "", tell: Tell = lambda _: None,
) -> dict[str, Any]:
    """Open a directory, which recovers it, and close it; return the report of ``tailrace recover``.

    ``rebuild`` rebuilds queues and index even if they are intact. ``staging`` is a directory that the driver and all
    executors can reach; it is created, and removed afterwards. Raises the errors of ``MessageStore.open``, and
    StoreError if the staging directory is not empty.
    """
    place = Path(staging or f"{path}/{STAGING}")
    if staging and place.exists() and any(place.iterdir()):
        raise StoreError(f"{staging} is not empty, it would be removed afterwards")
    scan = SparkScan(spark, str(place), tell)
    try:
        with MessageStore.open(
            path, config=config, create=False,
            parts=StoreParts(services=False, rebuild=rebuild, walk=scan, must_write=True),
        ) as opened:
            return opened.recovery_report
    finally:
        if scan.used:
            shutil.rmtree(place, ignore_errors=True)


@final
class SparkScan:
    """Scans segments in tasks; makes the walk of a recovery."""

    def __init__(self, spark: SparkSession, staging: str, tell: Tell) -> None:
        self._spark = spark
        self._staging = staging
        self._tell = tell
        self.used = False

    def __call__(
        self, files: Sequence[MappedFile], start: int, until: int, check: int, next_of: NextOf, dispatcher: Dispatcher
    ) -> StitchedWalk[RecordBatch]:
        """Stage every segment from ``start`` onwards; return the walk that takes its pieces from there."""
        staging = self._staging
        shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
        OsFileSystem().makedirs(str(staging))
        self.used = True
        segments = [
            (file.path, file.file_from_offset, file.size) for file in files
            if start < file.file_from_offset + file.size
        ]
        self._tell(f"{len(segments)} segments from {start} on are scanned")
        staged = all_of(
            self._spark, lambda one: stage_segment(staging, one, max(start, one[1]), until, check), segments)
        records, size = sum(one.records for one in staged), sum(one.length for one in staged)
        self._tell(f"{records} records are staged in {size} bytes, now they are installed")
        pieces = _StagedPieces(staged, until, check, self._tell)
        return StitchedWalk(files, start, until, check, next_of, in_batches(pieces, dispatcher))


@final
class _StagedPieces:
    """Pieces from staged segments. A segment is read once and kept until the next one is needed."""

    def __init__(
        self, staged: Sequence[StagedSegment], until: int, check: int, tell: Tell
    ) -> None:
        self._staged = {one.file_from_offset: one for one in staged}
        self._until, self._check = until, check
        self._tell = tell
        self._open: tuple[int, list[Any] | None] = -1, None

    def __call__(self, file: MappedFile, start: int) -> Iterator[LogChunk | Piece]:
        staged = self._staged.get(file.file_from_offset)
        at = 0
        for piece, batches in staged.pieces if staged is not None else ():
            if piece.start == start:
                found = self._batches(staged) if batches else []
                if found is None:
                    break
                yield from piece_chunks(found[at : at + batches], piece)
                yield piece
                return
            at += batches
        yield from first_piece(file, start, self._until, self._check)

    def _batches(self, staged: StagedSegment | None) -> list[Any] | None:
        assert staged is not None
        base = staged.file_from_offset
        if self._open[0] != base:
            self._open = base, read_staged(staged)
            if self._open[1] is None:
                events.STAGED_ROWS_ARE_NOT_WHAT_THE_TASK_WROTE.log(_log, file=staged.path)
                self._tell(f"{staged.path} is not what the task wrote (do driver and executors see "
                           "one staging directory?), its segment is scanned here")
        return self._open[1]
