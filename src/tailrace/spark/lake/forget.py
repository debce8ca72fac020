"""Forgets a topic or a key: the rows leave every snapshot and every file of the tables, and a file proves it.

Steps for each table, any of which a kill may interrupt:

1. Tasks write the files that have such rows again, without them.
2. A file in the table's directory of metadata lists the old files: what is still to remove.
3. One commit swaps the files, and sets two properties: the name of that list, and what was forgotten, so that no job
   adds the rows again from the archive.
4. All other snapshots are expired, the old files are removed, and tasks count again: no row is left.
5. The property and the list are removed.

Before step 3 the table is as it was. After it the next run of any ``forget`` first does steps 4 and 5. Readers that
still read an older snapshot may find a file gone: that is the purpose.
"""

from __future__ import annotations

import msgspec
from pyiceberg.table.refs import SnapshotRefType

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import replace_file
from tailrace.errors import StoreError
from tailrace.logs import get_logger
from tailrace.spark.lake.catalogue import FORGOTTEN, Forgotten, LakeTable, catalogue_errors
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.orphans import PENDING, referenced
from tailrace.spark.lake.swap import Rewriter, swap
from tailrace.spark.lake.upkeep import removing_tasks, rewritten_files

__all__ = [
    "Proof", "RemovedFile", "TableProof", "finish_forgetting", "forget", "rows_left",
    "write_proof",
]

_log = get_logger(__name__)


class RemovedFile(msgspec.Struct, frozen=True, rename="camel"):
    """A data file that had rows to forget, and is deleted."""

    path: str
    size: int
    sha256: str


class TableProof(msgspec.Struct, frozen=True, rename="camel"):
    """What was forgotten in a table. ``rows_left`` was counted in the files of the new snapshot."""

    table: str
    topic: str
    key: str
    at_ms: int
    """When the rows left the table, in ms since 1970."""
    snapshot: int
    rows_removed: int
    rows_left: int
    files_removed: list[RemovedFile]


class Proof(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a proof file. ``rows_in_raw`` are rows that the archive and its table ``raw`` still have."""

    topic: str
    key: str
    tables: list[TableProof]
    rows_in_raw: dict[str, int]


def forget(
    table: LakeTable, wanted: Condition, run: Rewriter, *, clock: Clock, entropy: Entropy, file_system: FileSystem
) -> TableProof:
    """Forget the rows of a topic, a key, or a key in a topic in ``messages`` or a typed table.

    Raises StoreError if a tag or branch keeps an older snapshot, or if another job has changed one of the files.
    """
    finish_forgetting(table, run, file_system)
    for name, ref in table.table.refs().items():
        if ref.snapshot_ref_type == SnapshotRefType.TAG or ref.snapshot_id != table.table.metadata.current_snapshot_id:
            raise StoreError(
                f"the {ref.snapshot_ref_type.value} {name} of the table {table.name} keeps the snapshot "
                f"{ref.snapshot_id}, from which nothing can be forgotten: remove it first")
    reached = {broker: mark.reached for broker, mark in table.marks().items()}
    tasks, files = removing_tasks(table, [_in(table, wanted)])
    results = rewritten_files(table, run, tasks)
    changed = [one for one in results.values() if one.removed]
    old = [files[one.number] for one in changed]
    at_ms = clock.now_ms()
    pending = TableProof(
        table.name, wanted.topic, wanted.key, at_ms, -1, sum(one.removed for one in changed), -1,
        [RemovedFile(*file) for one in changed for file in one.old])
    path = f"{table.place}/metadata/forget-{entropy.u64():016x}.json"
    table.files(file_system).write(path, msgspec.json.encode(pending))

    def properties(now: LakeTable) -> dict[str, str]:
        if PENDING in now.table.properties:
            raise StoreError(f"another job forgets rows of the table {now.name}: nothing was changed, run it again")
        entry = Forgotten(wanted.topic, wanted.key, reached)
        return {FORGOTTEN: msgspec.json.encode([*now.forgotten, entry]).decode(), PENDING: path}

    swap(table, old, [file for one in changed for file in one.files], "forget", properties)
    events.REWROTE_FILES_OF_A_TABLE.log(
        _log, table=table.name, job="forget", before=len(old), after=sum(len(one.files) for one in changed),
        removed=pending.rows_removed)
    done = finish_forgetting(table, run, file_system)
    assert done is not None
    return done


def finish_forgetting(table: LakeTable, run: Rewriter, file_system: FileSystem) -> TableProof | None:
    """Do the last steps of a job that has swapped files, and return its proof; None if there is no such job."""
    table.reload()
    path = table.table.properties.get(PENDING)
    if path is None:
        return None
    files = table.files(file_system)
    pending = msgspec.json.decode(files.read(path), type=TableProof)
    with catalogue_errors(f"the snapshots of the table {table.name}"):
        current = table.table.metadata.current_snapshot_id
        old = [one.snapshot_id for one in table.table.snapshots() if one.snapshot_id != current]
        if old:
            table.table.maintenance.expire_snapshots().by_ids(old).commit()
    table.reload()
    named = referenced(table)
    kept = [one.path for one in pending.files_removed if one.path in named]
    if kept:
        raise StoreError(
            f"the file {kept[0]} has rows to forget and is named by a snapshot of the table {table.name}: remove the "
            "tag or branch of that snapshot, then run it again")
    files.remove([one.path for one in pending.files_removed])
    left = rows_left(table, Condition(pending.topic, pending.key), run)
    done = msgspec.structs.replace(pending, snapshot=current or -1, rows_left=left)
    with catalogue_errors(f"the properties of the table {table.name}"):
        table.table.transaction().remove_properties(PENDING).commit_transaction()
    files.remove([path])
    table.reload()
    return done


def rows_left(table: LakeTable, wanted: Condition, run: Rewriter) -> int:
    """Count the rows of the table that match; nothing is written."""
    tasks, _ = removing_tasks(table, [_in(table, wanted)], count_only=True)
    return sum(one.removed for one in rewritten_files(table, run, tasks).values())


def _in(table: LakeTable, wanted: Condition) -> Condition:
    """Return the condition for a table: all rows of a typed table have its topic."""
    return Condition("" if table.kind == "typed" else wanted.topic, wanted.key)


def write_proof(path: str, proof: Proof, file_system: FileSystem) -> None:
    """Write a proof as JSON, durably."""
    replace_file(file_system, path, msgspec.json.format(msgspec.json.encode(proof), indent=2) + b"\n")
