"""How far derived state is durable, in our own words: ``tailrace/progress.0`` and ``.1``.

A hint in two slots, written in turn, each with a checksum: everything below ``until`` is in the
log, in its queue and in the index, all of it synced before the slot was written. It carries what
it takes to notice that somebody else wrote meanwhile (a Java broker, a restore): the bytes of the
checkpoint, the last segment, the checksum of the last record, the index files and the last unit of
every queue. What does not match is ignored, and costs a longer walk, never a message.

Commit point: the sync of a slot. A checkpoint is written after the slot that names its bytes, so a
slot names the bytes before it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, final

import orjson
from isal import isal_zlib

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import open_hint, read_hint
from tailrace.formats.checkpoint import CHECKPOINT
from tailrace.formats.filenames import PROGRESS

__all__ = ["Position", "Progress", "ProgressFile", "checkpoint_bytes"]

_VERSION: Final = 1
_SLOTS: Final = 2


class Position(NamedTuple):
    """How far dispatch has come: its last record, and the one 64 records before."""

    start: int
    last: int
    size: int
    timestamp: int

    @property
    def until(self) -> int:
        """Where the last record ends."""
        return self.last + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one slot says. Positions are physical offsets."""

    start: int
    """A record at least 64 records before ``until``, or the first one: where a walk begins."""
    until: int
    min: int
    """Least position of the log: while it is the same, retention removed no queue or index file."""
    last: int
    """Start of the record that ends at ``until``, -1 when there is none."""
    last_crc: int
    """CRC-32 of its bytes."""
    last_timestamp: int
    segment: str
    """Name of the segment that holds it."""
    segment_size: int
    checkpoints: list[str]
    """Hexadecimal bytes that the checkpoint may have: before and after it was written."""
    index: dict[str, Any] | None
    """``files`` names, oldest first, ``times`` of change (-1: may grow), and of the last one
    ``count`` and ``end``; None without index."""
    queues: dict[str, dict[str, list[Any]]]
    """Topic, queue id: next offset, position of the last record (-1 without), and position and time
    of change of the files that will not change any more."""
    clean: bool = False
    """Whether the store was closed when this was written."""
    v: int = _VERSION
    seq: int = field(default=0)


def checkpoint_bytes(file_system: FileSystem, path: str) -> str:
    """The checkpoint file's fields as hexadecimal digits, empty when there is none."""
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
        """The newest slot that is whole, None when there is none."""
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
        """Write the slot that is not the newest, durably. Raises OSError."""
        seq = self._seq + 1  # kept only when written: the next one must not take the good slot
        text = orjson.dumps(replace(progress, seq=seq))
        data = b"%08x %s\n" % (isal_zlib.crc32(text), text)
        path = self._paths[seq % _SLOTS]
        self._file_system.makedirs(self._directory)
        made = not self._file_system.exists(path)
        file = open_hint(self._file_system, path)
        try:
            file.pwrite(data, 0)
            if file.size() != len(data):
                file.truncate(len(data))
            file.sync_data()
        finally:
            file.close()
        if made:
            self._file_system.sync_dir(self._directory)
        self._seq = seq

    def forget(self) -> None:
        """Remove both slots, before something they vouch for is taken away."""
        for path in self._paths:
            if self._file_system.exists(path):
                self._file_system.remove(path)
                self._file_system.sync_dir(self._directory)
