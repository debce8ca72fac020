"""Keeps tables fast and small: larger files, and rows that leave a table at an age.

The driver plans by the metadata of a table, tasks write new files, and the driver swaps old for new in one snapshot.
A kill before that leaves the table as it was, and files that no snapshot names. The marks up to which a table has the
rows of a broker do not change, so no segment is added twice or left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.expressions import And, BooleanExpression, EqualTo, LessThan
from pyiceberg.manifest import DataFile

from tailrace import events
from tailrace.errors import ConfigError, StoreError
from tailrace.logs import get_logger
from tailrace.spark.lake.catalogue import LakeTable
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.files import WrittenFile
from tailrace.spark.lake.rewrite import RewriteResult, RewriteTask, depth
from tailrace.spark.lake.swap import Rewriter, data_files, is_of_range, old_file, swap

__all__ = [
    "BUCKET_BYTES_MAX", "TARGET_BYTES", "Rewritten", "compact", "remove_old_rows", "removing_tasks", "rewritten_files"]

_log = get_logger(__name__)
TARGET_BYTES: Final = 512 << 20
"""Size of a data file after compaction."""
BUCKET_BYTES_MAX: Final = 1 << 30
"""Largest ``target_bytes`` of a table in a bucket, where a file is one request."""
_SAME_TOPICS_MAX: Final = 2
"""Files of a day that may have the same topics without being sorted together."""
_SORTED_TOGETHER: Final = 16
"""Files of ``target_bytes`` that a task sorts together."""
_FILES_MAX: Final = 512
"""Largest number of files that a task reads."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a job has changed in a table: numbers of files before and after, and of rows that it removed."""

    table: str
    files_before: int = 0
    files_after: int = 0
    rows_removed: int = 0


def compact(table: LakeTable, run: Rewriter, *, target_bytes: int = TARGET_BYTES) -> Rewritten:
    """Write the small files of each day together, in the order of topic, queue and offset, and swap them.

    A file of three quarters of ``target_bytes`` or more stays, unless more than two files of a day have the same topics
    by their bounds: those are then sorted together, so that a topic is in few of them. A run sorts up to 16 files
    together; of more it takes several runs. Files of the segment that is still written stay: the archive job removes
    them itself. Raises StoreError if another job has changed one of the files in the meantime.
    """
    table.reload()
    if table.server is not None and target_bytes > BUCKET_BYTES_MAX:
        raise ConfigError(
            f"a file of {target_bytes >> 20} MiB is too large for the table {table.name} in a bucket, because a task "
            f"holds it in memory: at most {BUCKET_BYTES_MAX >> 20} MiB")
    merged = _compacted(table, run, _groups(table, target_bytes), target_bytes)
    sorted_ = _compacted(table, run, _overlapping(table, target_bytes), target_bytes) if table.form.topic else merged
    if sorted_ is merged:
        return merged
    return Rewritten(
        table.name, merged.files_before + sorted_.files_before, merged.files_after + sorted_.files_after)


def _compacted(table: LakeTable, run: Rewriter, groups: Sequence[Sequence[DataFile]], target_bytes: int) -> Rewritten:
    tasks = [
        RewriteTask(
            number, table.name, table.kind, tuple(old_file(table, one) for one in files), (), "c", _new(table),
            table.whole_schema, table.ids, files[0].partition[0], target_bytes, server=table.server)
        for number, files in enumerate(groups)]
    return _swapped(table, run, tasks, groups, "compaction")


def remove_old_rows(table: LakeTable, run: Rewriter, before_us: Mapping[str, int]) -> Rewritten:
    """Remove rows that were stored before a time in microseconds since 1970, for each of some topics.

    Files of the segment that is still written are left to a later run.
    """
    table.reload()
    wanted = [
        Condition("" if table.topic else topic, before_us=time) for topic, time in before_us.items()
        if not table.topic or table.topic == topic]
    marks = table.marks()
    tasks, files = removing_tasks(table, wanted)
    chosen = [at for at, one in enumerate(files) if not is_of_range(table, marks, one)]
    return _swapped(table, run, [tasks[at] for at in chosen], [[one] for one in files], "expiry of rows")


def removing_tasks(
    table: LakeTable, wanted: Sequence[Condition], *, count_only: bool = False
) -> tuple[list[RewriteTask], list[DataFile]]:
    """Return a task for each file that may have rows to remove, and these files in the order of their tasks."""
    found: dict[str, tuple[DataFile, list[Condition]]] = {}
    for one in wanted:
        for file in data_files(table, _filter(table, one)):
            found.setdefault(file.file_path, (file, []))[1].append(one)
    files = [file for file, _ in found.values()]
    schema, ids = (table.table.schema().as_arrow(), table.ids) if count_only else (table.whole_schema, table.ids)
    tasks = [
        RewriteTask(
            number, table.name, table.kind, (old_file(table, file),), tuple(conditions),
            # The archive job finds files of the segment that is still written by the start of their names.
            file.file_path.rpartition("/")[2].removesuffix(".parquet").partition("-")[0], _new(table), schema, ids,
            file.partition[0] if len(file.partition) else None, 1 << 62, count_only=count_only,
            server=table.server)
        for number, (file, conditions) in enumerate(found.values())]
    return tasks, files


def rewritten_files(
    table: LakeTable, run: Rewriter, tasks: Sequence[RewriteTask]
) -> dict[int, RewriteResult]:
    """Run tasks; return their results by number. Raises StoreError if one of them has a problem."""
    found = {one.number: one for one in run(tasks)} if tasks else {}
    if problem := next((one.problem for one in found.values() if one.problem), ""):
        raise StoreError(f"the table {table.name} is not changed: {problem}")
    if missing := [one.number for one in tasks if one.number not in found]:
        raise StoreError(f"the table {table.name} is not changed: a task of {len(missing)} has no result")
    return found


def _swapped(
    table: LakeTable, run: Rewriter, tasks: Sequence[RewriteTask], files: Sequence[Sequence[DataFile]], job: str
) -> Rewritten:
    results = rewritten_files(table, run, tasks)
    changed = [one for one in results.values() if one.files or one.removed]
    old = [file for one in changed for file in files[one.number]]
    new: list[WrittenFile] = [file for one in changed for file in one.files]
    if not old:
        return Rewritten(table.name)
    swap(table, old, new, job)
    done = Rewritten(table.name, len(old), len(new), sum(one.removed for one in changed))
    events.REWROTE_FILES_OF_A_TABLE.log(
        _log, table=table.name, job=job, before=done.files_before, after=done.files_after, removed=done.rows_removed)
    return done


def _groups(table: LakeTable, target_bytes: int) -> list[list[DataFile]]:
    """Return files to write together: of one day, about ``target_bytes``, those of neighbouring topics first."""
    marks = table.marks()
    days: dict[int | None, list[DataFile]] = defaultdict(list)
    for one in data_files(table):
        if one.file_size_in_bytes < target_bytes * 3 // 4 and not is_of_range(table, marks, one):
            days[one.partition[0]].append(one)
    topic = table.ids.of[table.form.order[0]]
    groups = []
    for files in days.values():
        group: list[DataFile] = []
        size = 0
        for one in sorted(files, key=lambda file: ((file.lower_bounds or {}).get(topic, b""), file.file_path)):
            if group and (size + one.file_size_in_bytes > target_bytes or len(group) == _FILES_MAX):
                groups.append(group)
                group, size = [], 0
            group.append(one)
            size += one.file_size_in_bytes
        groups.append(group)
    return [one for one in groups if len(one) > 1]


def _overlapping(table: LakeTable, target_bytes: int) -> list[list[DataFile]]:
    """Return files to sort together: those of a day of which more than two have the same topics."""
    marks, topic = table.marks(), table.ids.of[table.form.topic]

    def span(one: DataFile) -> tuple[bytes, bytes]:
        return (one.lower_bounds or {}).get(topic, b""), (one.upper_bounds or {}).get(topic, b"")

    days: dict[int | None, list[DataFile]] = defaultdict(list)
    for one in data_files(table):
        low, high = span(one)
        if low < high and not is_of_range(table, marks, one):
            days[one.partition[0]].append(one)
    groups = []
    for files in days.values():
        for chain in _chains(sorted(files, key=lambda one: (*span(one), one.file_path)), span):
            if sum(one.file_size_in_bytes for one in chain) > target_bytes and depth(
                    map(span, chain), inside=True) > _SAME_TOPICS_MAX:
                groups += [chain[at : at + _SORTED_TOGETHER] for at in range(0, len(chain), _SORTED_TOGETHER)]
    return [one for one in groups if len(one) > 1]


def _chains(
    files: Sequence[DataFile], span: Callable[[DataFile], tuple[bytes, bytes]]
) -> Iterator[list[DataFile]]:
    """Yield the files in groups that have no topic in common, apart from the last of one and the first of the next."""
    chain: list[DataFile] = []
    until = b""
    for one in files:
        if chain and span(one)[0] >= until:
            yield chain
            chain = []
        chain.append(one)
        until = max(until, span(one)[1])
    if chain:
        yield chain


def _filter(table: LakeTable, one: Condition) -> BooleanExpression | None:
    parts: list[BooleanExpression] = []
    if one.topic:
        parts.append(EqualTo(table.form.topic, one.topic))
    if one.before_us is not None:
        parts.append(LessThan(table.form.time, one.before_us))
    return None if not parts else parts[0] if len(parts) == 1 else And(*parts)


def _new(table: LakeTable) -> str:
    """Return the directory of files that maintenance writes."""
    return f"{table.place}/data/rewritten"
