"""Exchanges data files of a table for others in one snapshot.

A swap succeeds only if every old file is in the table when the catalogue commits. Rows that others add in the meantime
stay. A second swap of the same files is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import StringType

from tailrace.errors import StoreError
from tailrace.spark.lake.catalogue import LakeTable, Mark, catalogue_errors
from tailrace.spark.lake.commit import data_file, keep_metadata
from tailrace.spark.lake.files import WrittenFile, segment_of
from tailrace.spark.lake.places import path_of
from tailrace.spark.lake.rewrite import OldFile, RewriteResult, RewriteTask
from tailrace.store.archive_store import is_remote

__all__ = ["Rewriter", "data_files", "is_of_range", "local_runner", "old_file", "spark_runner", "swap"]

_TRIES: Final = 10
Rewriter = Callable[[Sequence[RewriteTask]], Iterable[RewriteResult]]
"""Runs tasks and returns their results in any order."""


def local_runner(run: Callable[[RewriteTask], RewriteResult]) -> Rewriter:
    """Return a runner that runs tasks one after the other in this process."""
    return lambda tasks: (run(task) for task in tasks)


def spark_runner(spark: Any, run: Callable[[RewriteTask], RewriteResult]) -> Rewriter:
    """Return a runner with a Spark task for each task. All executors need the tables at the same paths."""
    from tailrace.spark.tasks import all_of  # noqa: PLC0415 - PySpark

    return lambda tasks: all_of(spark, run, tasks)


def data_files(table: LakeTable, row_filter: Any = None) -> list[DataFile]:
    """Return the data files of the table as it was last read, or those that may have rows that match a filter.

    Raises StoreError if another program has written delete files, which a rewrite would lose.
    """
    found = []
    with catalogue_errors(f"the files of the table {table.name}"):
        plan = table.table.scan() if row_filter is None else table.table.scan(row_filter=row_filter)
        for one in plan.plan_files():
            if one.delete_files:
                raise StoreError(
                    f"the table {table.name} has delete files of another program, such as "
                    f"{next(iter(one.delete_files)).file_path}: rewrite its data files with that program first")
            found.append(one.file)
    return found


def old_file(table: LakeTable, one: DataFile) -> OldFile:
    """Return a data file as a task reads it. Raises StoreError if it is in another kind of store than the table."""
    path = path_of(one.file_path)
    if path is None or is_remote(path) != is_remote(table.place):
        raise StoreError(
            f"the file {one.file_path} of the table {table.name} at {table.place} is in another kind of store: rewrite "
            "it with the program that has added it")
    return OldFile(path, one.record_count)


def is_of_range(table: LakeTable, marks: Mapping[str, Mark], one: DataFile) -> bool:
    """Return True for a file that the archive job removes itself when the segment it is from is sealed."""
    segment = segment_of(one.file_path)
    if segment is None:
        return False
    broker = (one.lower_bounds or {}).get(table.ids.of[table.form.broker], b"")
    mark = marks.get(from_bytes(StringType(), broker)) if broker else None
    return mark is None or segment >= mark.until


def swap(
    table: LakeTable, old: Sequence[DataFile], new: Sequence[WrittenFile], job: str,
    properties: Callable[[LakeTable], dict[str, str]] | None = None,
) -> int:
    """Exchange ``old`` for ``new`` in one snapshot; return its id. Both may be empty.

    ``job`` is in the summary of the snapshot. ``properties`` returns what the commit also sets, from the table as it
    is before it. Raises StoreError if an old file has left the table, and then nothing has changed.
    """
    for left in reversed(range(_TRIES)):
        table.reload()
        there = {one.file_path: one for one in data_files(table)}
        gone = [one.file_path for one in old if one.file_path not in there]
        if gone:
            table.count(conflicts=1)
            raise StoreError(
                f"another job has removed the file {gone[0]} from the table {table.name} since this one looked: "
                "nothing was changed, run it again")
        snapshot = -1
        set_too = properties(table) if properties is not None else {}
        # In this copy only: a commit that is refused is tried again here, after the same checks.
        table.table.metadata.properties["commit.retry.num-retries"] = "0"
        try:
            with catalogue_errors(f"the commit to the table {table.name}"), table.table.transaction() as transaction:
                if set_too:
                    transaction.set_properties(set_too)
                change = transaction.update_snapshot(snapshot_properties={"tailrace.job": job})
                with change.overwrite() if old else change.fast_append() as swapped:
                    snapshot = swapped.snapshot_id
                    for one in old:
                        swapped.delete_data_file(there[one.file_path])
                    for file in new:
                        swapped.append_data_file(data_file(table, file))
                keep_metadata(transaction)
            table.reload()
            table.count(commits=1)
            return snapshot
        except StoreError as error:
            table.reload()
            if table.table.snapshot_by_id(snapshot) is not None:
                table.count(commits=1)
                return snapshot  # the commit was made, and its answer was lost
            if not table.may_try_again(error, left):
                raise
    raise AssertionError("the last try raises")
