"""Which tables name files of an archive, and how the commits to them went.

    _tables/<catalogue>.<namespace>.json        written by the job that adds segments to these tables

A segment whose files a table names is archived again only together with the table, because otherwise the table names
files that are gone. The counters are those of all jobs since the archive was created. The broker shows their sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final
from urllib.parse import quote

import msgspec

from tailrace.errors import CorruptionError
from tailrace.store.archive_store import ArchiveChangedError, ArchiveStore

__all__ = [
    "TABLES_OF_ARCHIVE", "CommitCounts", "NamedTables", "add_counts", "attach", "attached", "counts_of",
    "why_not_again",
]

TABLES_OF_ARCHIVE: Final = "_tables"
_TRIES: Final = 10


class CommitCounts(msgspec.Struct, frozen=True):
    """Numbers of commits to tables.

    ``retries`` are commits that were sent again after another program had changed the table, and ``conflicts`` those
    that were given up because of such a change.
    """

    commits: int = 0
    retries: int = 0
    conflicts: int = 0

    def plus(self, other: CommitCounts) -> CommitCounts:
        """Return the sums."""
        return CommitCounts(
            self.commits + other.commits, self.retries + other.retries, self.conflicts + other.conflicts)


class NamedTables(msgspec.Struct, frozen=True):
    """The tables of a namespace of a catalogue."""

    catalogue: str
    namespace: str
    counts: CommitCounts = CommitCounts()

    @property
    def options(self) -> str:
        """The options of ``pipeline archive`` for these tables."""
        return f"--table {self.namespace}" + (f" --catalog {self.catalogue}" if self.catalogue != "tailrace" else "")


def _name(catalogue: str, namespace: str) -> str:
    return f"{TABLES_OF_ARCHIVE}/{quote(catalogue, safe='')}.{namespace}.json"


def _read(archive: ArchiveStore, name: str) -> tuple[NamedTables, str] | None:
    found = archive.read(name)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found[0], type=NamedTables), found[1]
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the file was changed: {error}", path=archive.path_of(name)) from None


def attached(archive: ArchiveStore) -> list[NamedTables]:
    """Return the tables that name files of an archive. Raises CorruptionError for a file that was changed."""
    found = [_read(archive, f"{TABLES_OF_ARCHIVE}/{name}") for name in archive.list(TABLES_OF_ARCHIVE)
             if name.endswith(".json")]
    return [one[0] for one in found if one is not None]


def attach(archive: ArchiveStore, catalogue: str, namespace: str) -> None:
    """Note that tables name files of an archive."""
    add_counts(archive, catalogue, namespace, CommitCounts())


def add_counts(archive: ArchiveStore, catalogue: str, namespace: str, counts: CommitCounts) -> None:
    """Add to the counters of tables, also beside another job. Raises ArchiveChangedError after ten tries."""
    name = _name(catalogue, namespace)
    for left in reversed(range(_TRIES)):
        there = _read(archive, name)
        if there is not None and counts == CommitCounts():
            return
        before = CommitCounts() if there is None else there[0].counts
        data = msgspec.json.encode(NamedTables(catalogue, namespace, before.plus(counts)))
        try:
            if there is None:
                archive.put_new(name, data)
            else:
                archive.replace(name, data, there[1])
            return
        except ArchiveChangedError:
            if not left:
                raise


def counts_of(tables: Iterable[NamedTables]) -> CommitCounts:
    """Return the sums of the counters."""
    return reduce(CommitCounts.plus, (one.counts for one in tables), CommitCounts())


def why_not_again(archive: ArchiveStore, own: tuple[str, str]) -> str:
    """Return why a job must not archive a segment again: tables name its files, and are not its ``own``.

    ``own`` are catalogue and namespace of the tables to which the job adds segments, empty without tables.
    """
    there = attached(archive)
    if not there or own in {(one.catalogue, one.namespace) for one in there}:
        return ""
    return f"tables name its files: it is archived again only with {' or '.join(one.options for one in there)}"
