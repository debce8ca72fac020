"""Expiry of snapshots, and removal of files that no snapshot names.

PyIceberg's expiry removes no file. A file is removed if it lies in the directories ``data`` and ``metadata`` of the
table, no snapshot and no metadata of the table names it, and it is older than a time that is longer than any job:
a file may belong to a commit that is still to come. Files are listed before the table is read, so a file that a commit
names in the meantime stays. Files of the archive, which the table ``raw`` names, lie elsewhere and stay.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.manifest import ManifestFile

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.logs import get_logger
from tailrace.spark.lake.catalogue import LakeTable, catalogue_errors
from tailrace.spark.lake.places import path_of

__all__ = ["PENDING", "expire_older_snapshots", "referenced", "remove_orphans"]

_log = get_logger(__name__)
PENDING: Final = "tailrace.forgetting"
"""Property of a table with the name of the list of files that are still to remove."""
_PLACES: Final = {"data": (".parquet",), "metadata": (".avro", ".json", ".tmp")}
"""Directories of a table, and the names of the files in them that may be removed."""


def expire_older_snapshots(table: LakeTable, before_ms: int) -> int:
    """Let a table forget the snapshots made before a time in ms since 1970, but not its branches and tags.

    Return how many were forgotten. Files that only these snapshots named are then orphans.
    """
    table.reload()
    kept = {one.snapshot_id for one in table.table.metadata.refs.values()}
    old = [
        one.snapshot_id for one in table.table.snapshots()
        if one.timestamp_ms < before_ms and one.snapshot_id not in kept]
    if old:
        with catalogue_errors(f"the snapshots of the table {table.name}"):
            table.table.maintenance.expire_snapshots().by_ids(old).commit()
        table.reload()
    return len(old)


def referenced(table: LakeTable) -> set[str]:
    """Return the paths of all files that a snapshot or the metadata of the table names, as it was last read."""
    metadata, io = table.table.metadata, table.table.io
    named = [table.table.metadata_location, *(one.metadata_file for one in metadata.metadata_log)]
    named += [one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)]
    named += [table.table.properties[PENDING]] if PENDING in table.table.properties else []
    manifests: dict[str, ManifestFile] = {}
    with catalogue_errors(f"the snapshots of the table {table.name}"):
        for snapshot in metadata.snapshots:
            named.append(snapshot.manifest_list)
            manifests |= {one.manifest_path: one for one in snapshot.manifests(io)}
        for one in manifests.values():
            named.append(one.manifest_path)
            named += [entry.data_file.file_path for entry in one.fetch_manifest_entry(io, discard_deleted=True)]
    return {path for one in named if (path := path_of(one)) is not None}


def remove_orphans(table: LakeTable, file_system: FileSystem, before_ms: int) -> tuple[int, int]:
    """Remove files that changed last before a time in ms since 1970 and that nothing names.

    Return their number and their bytes. In a bucket the time is that of the server's clock. Raises StoreError if the
    table is in a store of another kind.
    """
    files = table.files(file_system)
    found = {
        path: size for name, ends in _PLACES.items() for path, size, changed_ms in files.walk(f"{table.place}/{name}")
        if path.endswith(ends) and changed_ms < before_ms}
    if not found:
        return 0, 0
    table.reload()
    named = referenced(table)
    orphans = sorted(found.keys() - named)
    files.remove(orphans)
    size = sum(found[one] for one in orphans)
    if orphans:
        events.REMOVED_FILES_OF_A_TABLE.log(_log, table=table.name, files=len(orphans), bytes=size)
    return len(orphans), size
