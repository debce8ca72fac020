"""Expiry of snapshots, and removal of files that no snapshot names.

PyIceberg's expiry removes no file. A file is removed if it lies in the directories ``data`` and ``metadata`` of the
table, no snapshot and no metadata of the table names it, and it is older than a time that is longer than any job:
a file may belong to a commit that is still to come. Files are listed before the table is read, so a file that a commit
names in the meantime stays. Files of the archive, which the table ``raw`` names, lie elsewhere and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyiceberg.manifest import ManifestFile

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.logs import get_logger
from tailrace.spark.lake.catalogue import LakeTable, catalogue_errors
from tailrace.spark.lake.synced_io import local_path

__all__ = ["PENDING", "expire_older_snapshots", "referenced", "remove_files", "remove_orphans"]

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
    return {path for one in named if (path := local_path(one)) is not None}


def remove_orphans(table: LakeTable, file_system: FileSystem, before_ms: int) -> tuple[int, int]:
    """Remove files that changed last before a time in ms since 1970 and that nothing names.

    Return their number and their bytes. Raises StoreError if the table is not on a local disk.
    """
    place = local_path(table.table.location())
    if place is None:
        raise StoreError(f"the table {table.name} is at {table.table.location()}: its files cannot be listed")
    found = {
        path: size for name, ends in _PLACES.items() for path, size, changed_ms in _walk(file_system, f"{place}/{name}")
        if path.endswith(ends) and changed_ms < before_ms}
    if not found:
        return 0, 0
    table.reload()
    named = referenced(table)
    orphans = sorted(found.keys() - named)
    remove_files(file_system, orphans)
    size = sum(found[one] for one in orphans)
    if orphans:
        events.REMOVED_FILES_OF_A_TABLE.log(_log, table=table.name, files=len(orphans), bytes=size)
    return len(orphans), size


def remove_files(file_system: FileSystem, paths: Iterable[str]) -> None:
    """Remove files, durably. One that is gone already is passed over."""
    places = set()
    for path in paths:
        try:
            file_system.remove(path)
        except FileNotFoundError:
            continue
        places.add(path.rpartition("/")[0])
    for place in sorted(places):
        file_system.sync_dir(place)


def _walk(file_system: FileSystem, place: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of the last change, in ms since 1970, of the files below a directory."""
    if not file_system.exists(place):
        return
    for name in file_system.list(place):
        path = f"{place}/{name}"
        try:
            found = file_system.stat(path)
        except FileNotFoundError:
            continue  # another job has removed it
        if found.is_dir:
            yield from _walk(file_system, path)
        else:
            yield path, found.size, found.mtime_ms
