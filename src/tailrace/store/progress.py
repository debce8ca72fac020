"""Progress: Tailrace's own statement up to where log, queues and index are durable.

Owns ``tailrace/progress.0`` and ``.1``, two slots that are written in turn, each with a checksum. A slot
says: everything below ``until`` was synced in the log, the queues and the index before the slot was written.
A slot also has what shows that another program (a Java broker, a restore) has changed the directory since: the
bytes of the checkpoint, the last segment, the checksum of the last record, the index files and the last unit of
every queue. A slot that does not match is ignored; recovery then walks more, and no message is lost.

Commit point: the sync of a slot. The checkpoint is written after the slot that has its bytes, so a slot
has the checkpoint's bytes before and after that write. The bytes after it are one snapshot, which is also what
the file gets: another thread updates the checkpoint's fields during these writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, final

import orjson
from isal import isal_zlib

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import overwrite_file, read_hint
from tailrace.formats.checkpoint import CHECKPOINT
from tailrace.formats.filenames import PROGRESS
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.index_service import IndexService

__all__ = ["Position", "Progress", "ProgressFile", "checkpoint_bytes"]

_VERSION: Final = 1
_SLOTS: Final = 2


class Position(NamedTuple):
    """Position of dispatch in the log."""

    start: int
    """Start of the record 64 records before the last one, or of the first one."""
    last: int
    """Start of the last record that was dispatched."""
    size: int
    """Length of the last record."""
    timestamp: int
    """Store time of the last record, in ms."""

    @property
    def until(self) -> int:
        """End of the last record."""
        return self.last + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Content of a slot. Positions are physical offsets."""

    start: int
    """Start of a record at least 64 records before ``until``, or of the first one: where a walk starts."""
    until: int
    min: int
    """Least position of the log. If it has not changed, retention has deleted no queue or index file."""
    last: int
    """Start of the record that ends at ``until``, -1 without a record."""
    last_crc: int
    """CRC-32 of its bytes."""
    last_timestamp: int
    segment: str
    """Name of the segment that holds it."""
    segment_size: int
    checkpoints: list[str]
    """Bytes that the checkpoint may have, hexadecimal: before and after the write that follows this slot."""
    index: dict[str, Any] | None
    """``files``: names, oldest first; ``times``: times of change in ms, -1 for a file that may grow; ``count``
    and ``end``: number of entries and last position of the last file. None without an index."""
    queues: dict[str, dict[str, list[Any]]]
    """By topic and queue id: [next offset, position of the last record or -1, [position, time of change in
    ms] of the files that no longer grow]."""
    clean: bool = False
    """True if this was written by a clean stop."""
    v: int = _VERSION
    seq: int = field(default=0)

    @classmethod
    def of(
        cls, position: Position, commit_log: CommitLog, checkpoints: list[str], queues: ConsumeQueueStore,
        index: IndexService | None, *, clean: bool = False,
    ) -> Progress:
        """Return the progress to write after everything up to ``position`` is durable.

        ``checkpoints`` are the bytes of the checkpoint that may be on the disk, in hexadecimal digits. ``clean`` is
        True at a clean stop. Nothing may be dispatched during the call.
        """
        segment = commit_log.queue.find(position.last)
        return cls(
            start=position.start, until=position.until, min=commit_log.min_offset, last=position.last,
            last_crc=isal_zlib.crc32(commit_log.read(position.last, position.size)),
            last_timestamp=position.timestamp,
            segment=segment.path.rpartition("/")[2] if segment is not None else "",
            segment_size=commit_log.queue.file_size, checkpoints=checkpoints,
            index=index.snapshot(clean=clean) if index is not None else None,
            queues=queues.snapshot(clean=clean), clean=clean)


def checkpoint_bytes(file_system: FileSystem, path: str) -> str:
    """Return the fields of the checkpoint file as hexadecimal digits, "" without a file."""
    return (read_hint(file_system, path, CHECKPOINT.size) or b"").hex()


@final
class ProgressFile:
    """The two slots of one directory."""

    def __init__(self, file_system: FileSystem, root: str) -> None:
        self._file_system = file_system
        self._paths = [f"{root}/{PROGRESS}.{n}" for n in range(_SLOTS)]
        self._directory = self._paths[0].rpartition("/")[0]
        self._seq = 0

    def read(self) -> Progress | None:
        """Return the newest valid slot, or None."""
        found = [slot for slot in map(self._read_slot, self._paths) if slot is not None]
        newest = max(found, key=lambda slot: slot.seq, default=None)
        self._seq = newest.seq if newest is not None else 0
        return newest

    def _read_slot(self, path: str) -> Progress | None:
        data = read_hint(self._file_system, path)
        if data is None:
            return None
        checksum, _, text = data.rstrip(b"\n\0").partition(b" ")
        try:
            if int(checksum, 16) != isal_zlib.crc32(text):
                return None
            values = orjson.loads(text)
            return Progress(**values) if values.get("v") == _VERSION else None
        except (ValueError, TypeError, AttributeError):
            return None

    def write(self, progress: Progress) -> None:
        """Write the older slot durably. Raises OSError."""
        seq = self._seq + 1  # stored only after the write: after a failure the good slot must not be overwritten
        text = orjson.dumps(replace(progress, seq=seq))
        data = b"%08x %s\n" % (isal_zlib.crc32(text), text)
        path = self._paths[seq % _SLOTS]
        self._file_system.makedirs(self._directory)
        made = not self._file_system.exists(path)
        overwrite_file(self._file_system, path, data)
        if made:
            self._file_system.sync_dir(self._directory)
        self._seq = seq

    def forget(self) -> None:
        """Remove both slots. Must be called before something that they name is removed."""
        for path in self._paths:
            if self._file_system.exists(path):
                self._file_system.remove(path)
                self._file_system.sync_dir(self._directory)
