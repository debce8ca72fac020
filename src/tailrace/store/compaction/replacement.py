"""Replaces the files of a queue by compacted ones, and finishes or undoes what a stop has interrupted.

The compacted files are complete and durable in ``compacting`` first. Then ``tailrace-replace.json`` gets its name in
the directory of the queue: this is the commit point. It names the files to add and to remove. Afterwards every
step can be repeated, and an open repeats all of them. While the file is there, a Java broker does not start
instead of reading old and new files together.

A Java broker replaces files without such a record: it renames the old log files to ``NUMBER.delete``, moves the new
ones up, removes the old ones, and then does the same with the files of units. ``RULES`` is the decision for
each state that its stop can leave. Units are derived, so the rules look at the log files only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, write_file
from tailrace.errors import CorruptionError, FatalStorageError
from tailrace.formats.filenames import (
    COMPACTING,
    COMPACTION_REPLACE,
    file_name_to_offset,
    offset_to_file_name,
)
from tailrace.logs import get_logger
from tailrace.store.log_paths import segment_files

__all__ = [
    "RULES", "QueueDirectories", "commit", "drop_staged", "end", "finish", "prepare",
    "segment_starts", "settle", "sync",
]

_log = get_logger(__name__)
_DELETE: Final = ".delete"

RULES: Final = {
    # (record of a replacement, .delete files, files in compacting): decision
    (True, False, False): "finish", (True, False, True): "finish",
    (True, True, False): "finish", (True, True, True): "finish",
    (False, False, False): "nothing",
    (False, False, True): "drop",  # the compaction was not complete; the old files have their names
    (False, True, True): "undo",  # a Java broker was moving files; no old one is removed yet
    (False, True, False): "forward",  # all new files have been moved
}
"""What an open does, by the files that it finds."""


class QueueDirectories(NamedTuple):
    """The two directories of a queue."""

    log: str
    queue: str

    def staged(self) -> QueueDirectories:
        """Return the directories that a compaction writes to."""
        return QueueDirectories(f"{self.log}/{COMPACTING}", f"{self.queue}/{COMPACTING}")


def segment_starts(file_system: FileSystem, directory: str) -> list[int]:
    """Return the positions at which the files of a directory start, sorted."""
    return [start for start, _ in segment_files(file_system, (directory,))]


def prepare(
    file_system: FileSystem, where: QueueDirectories, add: list[int], remove: list[int], position: int
) -> None:
    """Write the record of a replacement beside the staged files, durably. Raises OSError or FatalStorageError."""
    path = f"{where.staged().log}/{COMPACTION_REPLACE}"
    write_file(file_system, path, orjson.dumps({"add": add, "remove": remove, "position": position}))
    for directory in where.staged():
        file_system.sync_dir(directory)


def commit(file_system: FileSystem, where: QueueDirectories) -> None:
    """Decide, durably, that the staged files replace the old ones that ``prepare`` named.

    Raises OSError or FatalStorageError. The next open then does the replacement or drops it, so the
    staged files must stay; until then the old files are right.
    """
    path = f"{where.log}/{COMPACTION_REPLACE}"
    file_system.rename(f"{where.staged().log}/{COMPACTION_REPLACE}", path)
    try:
        file_system.sync_dir(where.log)
    except (OSError, FatalStorageError):
        file_system.remove(path)
        raise


def finish(file_system: FileSystem, where: QueueDirectories) -> int | None:
    """Do the steps of a replacement that was decided. Return its position, None if none was decided.

    The record of it stays until ``sync``, and until the caller has kept the position: see ``end``. Raises OSError,
    and CorruptionError if the record is damaged.
    """
    path = f"{where.log}/{COMPACTION_REPLACE}"
    text = read_if_there(file_system, path)
    if text is None:
        return None
    try:
        found = orjson.loads(text)
        add, remove, position = found["add"], found["remove"], found["position"]
        names = [offset_to_file_name(start) for start in add], [offset_to_file_name(start) for start in remove]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError("the record of a replacement is damaged", path=path) from error
    for directory, staged in zip(where, where.staged(), strict=True):
        for name in names[0]:
            if file_system.exists(f"{staged}/{name}"):
                file_system.rename(f"{staged}/{name}", f"{directory}/{name}")
        for name in set(names[1]).difference(names[0]):
            if file_system.exists(f"{directory}/{name}"):
                file_system.remove(f"{directory}/{name}")
    return int(position)


def sync(file_system: FileSystem, where: QueueDirectories) -> None:
    """Make the names of a finished replacement durable. Raises OSError or FatalStorageError."""
    for directory in (*where, *where.staged()):
        if file_system.exists(directory):
            file_system.sync_dir(directory)


def end(file_system: FileSystem, where: QueueDirectories) -> None:
    """Remove the record of a finished replacement, durably. Raises OSError."""
    file_system.remove(f"{where.log}/{COMPACTION_REPLACE}")
    file_system.sync_dir(where.log)
    drop_staged(file_system, where)


def drop_staged(file_system: FileSystem, where: QueueDirectories) -> None:
    """Remove what a compaction wrote and did not use. Raises OSError."""
    for directory in where.staged():
        if file_system.exists(directory):
            for name in file_system.list(directory):
                file_system.remove(f"{directory}/{name}")
            file_system.rmdir(directory)


def settle(file_system: FileSystem, where: QueueDirectories) -> int | None:
    """Finish or undo an interrupted replacement, as ``RULES`` says. Return the position of a finished one.

    Raises OSError or CorruptionError.
    """
    staged = where.staged()
    recorded = file_system.exists(f"{where.log}/{COMPACTION_REPLACE}")
    old = sorted(name for name in file_system.list(where.log) if name.endswith(_DELETE))
    decision = RULES[recorded, bool(old), bool(segment_starts(file_system, staged.log))]
    if decision != "nothing":
        events.AN_INTERRUPTED_COMPACTION_IS_SETTLED.log(_log, path=where.log, decision=decision)
    position = finish(file_system, where)
    if decision == "undo":
        _undo(file_system, where, old)
    elif old:
        for name in old:
            file_system.remove(f"{where.log}/{name}")
        file_system.sync_dir(where.log)
    if old:
        for name in file_system.list(where.queue):  # units of either set; they are built from the records again
            if name.endswith(_DELETE):
                file_system.remove(f"{where.queue}/{name}")
        file_system.sync_dir(where.queue)
    if position is None:
        drop_staged(file_system, where)
    else:
        sync(file_system, where)
    return position


def _undo(file_system: FileSystem, where: QueueDirectories, old: list[str]) -> None:
    """Give the old files their names again.

    A Java broker renames all of them, in order, before it moves a new one. So a file up to the last old one that has
    the name of none of them is a new one.
    """
    names = {name.removesuffix(_DELETE) for name in old}
    last = max(filter(None, (file_name_to_offset(name) for name in names)), default=0)
    for start in segment_starts(file_system, where.log):
        if start <= last and offset_to_file_name(start) not in names:
            file_system.remove(f"{where.log}/{offset_to_file_name(start)}")
    for name in names:
        file_system.rename(f"{where.log}/{name}{_DELETE}", f"{where.log}/{name}")
    file_system.sync_dir(where.log)
