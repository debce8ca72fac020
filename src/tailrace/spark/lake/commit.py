"""Commits files of archived segments to a table, together with the mark up to which the table has them.

A commit succeeds only if no other commit was made since the mark was read, so two jobs cannot add the same segment.
PyIceberg itself would try a refused commit again without a look at the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from tailrace import events
from tailrace.errors import StoreError
from tailrace.formats.filenames import offset_to_file_name
from tailrace.logs import get_logger
from tailrace.spark.lake.catalogue import FORGOTTEN, LakeTable, Mark, catalogue_errors
from tailrace.spark.lake.files import WrittenFile, segment_of

__all__ = ["commit", "data_file", "expire_snapshots", "files_of_ranges", "keep_metadata"]

_log = get_logger(__name__)
_TRIES: Final = 10
_SNAPSHOTS_MAX: Final = 100


def commit(
    table: LakeTable, files: Sequence[WrittenFile], before: Mark | None, mark: Mark,
    replaced: Sequence[tuple[int, int]] = (), forgotten: str | None = None,
) -> None:
    """Add files and set the mark in one commit. ``before`` is the mark for which the files were chosen.

    ``forgotten`` is the table's property of this name for which the files were made; None if they have all rows.

    ``replaced`` are segments [start, end) whose files in the table are exchanged for those in ``files``. Rows of ranges
    of a segment (``Mark.open_until``) leave the table when ``mark`` has the segment. If another program has changed the
    table, the commit is tried again. Raises StoreError if the mark of the broker has changed, and after ten tries.
    """
    for left in reversed(range(_TRIES)):
        now = table.refresh()
        if now == mark and left < _TRIES - 1:
            table.count(commits=1)
            return  # the commit was made, and its answer was lost
        if now != before:
            table.count(conflicts=1)
            raise StoreError(
                f"another job has added segments of the broker {table.broker} to the table {table.name} since this one "
                "looked: run only one for a broker")
        if forgotten is not None and table.table.properties.get(FORGOTTEN, "") != forgotten:
            table.count(conflicts=1)
            raise StoreError(
                f"rows of the table {table.name} were forgotten since this job looked: its next step adds the segments")
        # In this copy only: the table keeps its own value for other programs.
        table.table.metadata.properties["commit.retry.num-retries"] = "0"
        try:
            with catalogue_errors(f"the commit to the table {table.name}"):
                _commit(table, files, before, mark, replaced)
            events.ADDED_ROWS_TO_A_TABLE.log(
                _log, table=table.name, until=mark.reached, files=len(files), count=sum(one.rows for one in files))
            table.count(commits=1)
            return
        except StoreError as error:
            if not table.may_try_again(error, left):
                raise


def _commit(
    table: LakeTable, files: Sequence[WrittenFile], before: Mark | None, mark: Mark,
    replaced: Sequence[tuple[int, int]],
) -> None:
    old = [one for start, end in replaced for one in _files_of(table, start, end)]
    sealed = before is not None and before.open_until > 0 and mark.until > before.until
    ranges = files_of_ranges(table, before.until) if before is not None and sealed else []
    is_whole = before is None or not sealed or sum(one.record_count for one in ranges) == before.open_rows
    old += ranges if is_whole else []
    with table.table.transaction() as transaction:
        if before is not None and not is_whole and any(table.table.scan(_of_broker(table, before.until)).plan_files()):
            # Another job has put these rows into other files.
            transaction.delete(_of_broker(table, before.until))
        transaction.set_properties({table.mark_property: msgspec.json.encode(mark).decode()})
        snapshot = transaction.update_snapshot(snapshot_properties={
            "tailrace.broker": table.broker, "tailrace.until": str(mark.until)})
        with snapshot.overwrite() if old else snapshot.merge_append() as change:
            for one in old:
                change.delete_data_file(one)
            for file in files:
                change.append_data_file(data_file(table, file))
        keep_metadata(transaction)


def _files_of(table: LakeTable, start: int, end: int) -> list[DataFile]:
    """Return the files of a segment in the table ``raw``."""
    name = f"p{offset_to_file_name(start)}"
    rows = And(GreaterThanOrEqual("commitLogOffset", start), LessThan("commitLogOffset", end))
    return [one.file for one in table.table.scan(row_filter=rows).plan_files() if name in one.file.file_path]


def _of_broker(table: LakeTable, start: int) -> And:
    return And(EqualTo(table.form.broker, table.broker), GreaterThanOrEqual(table.form.position, start))


def files_of_ranges(table: LakeTable, start: int) -> list[DataFile]:
    """Return the files of a table that tasks have written for ranges of the broker's segment at ``start``."""
    found = [one.file for one in table.table.scan(row_filter=_of_broker(table, start)).plan_files()]
    return [one for one in found if (at := segment_of(one.file_path)) is not None and at >= start]


def keep_metadata(transaction: Any) -> None:
    """Let the changes of a transaction keep their files of metadata when their commit is refused.

    PyIceberg removes them then. But a catalogue that has made the commit may also answer that it is refused, if the
    request came twice because the first answer was lost. Without retries PyIceberg does not look, and the table would
    name files that are gone. Files of a commit that was really refused are orphans.
    """
    for change in transaction._snapshot_producers:
        change._clean_all_uncommitted = lambda: None


def data_file(table: LakeTable, file: WrittenFile) -> DataFile:
    """Return a written file as a commit to the table adds it."""
    spec = table.table.spec()
    arguments: dict[str, Any] = {
        "content": DataFileContent.DATA, "file_path": file.path, "file_format": FileFormat.PARQUET,
        "partition": Record(file.day) if spec.fields else Record(), "record_count": file.rows,
        "file_size_in_bytes": file.size, "column_sizes": file.column_sizes, "value_counts": file.value_counts,
        "null_value_counts": file.null_counts, "nan_value_counts": {}, "lower_bounds": file.lower,
        "upper_bounds": file.upper, "key_metadata": None, "split_offsets": list(file.splits), "equality_ids": None,
        "sort_order_id": None, "spec_id": spec.spec_id}
    return DataFile.from_args(**arguments)


def expire_snapshots(table: LakeTable) -> int:
    """Let a table forget all but the newest 100 snapshots, because each makes every commit slower.

    Return how many were forgotten. Files of forgotten snapshots stay on the disk.
    """
    ids = [one.snapshot_id for one in table.table.snapshots()]
    old = ids[:-_SNAPSHOTS_MAX]
    if len(old) < _SNAPSHOTS_MAX // 10:  # not with every commit
        return 0
    with catalogue_errors(f"the snapshots of the table {table.name}"):
        table.table.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)
