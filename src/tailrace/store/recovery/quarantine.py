"""Quarantine: copies of the bytes that recovery cuts off or steps over, in ``tailrace/quarantine/``.

Each copy is a file, and ``manifest.jsonl`` has a line for it: file, position, length, reason, time. Bytes that the
disk does not return have a line without a file (``keep_unreadable``), or a copy in which zeros stand for them. Zeros
in the middle of the log have such a line as well (``note``), because later opens do not read there.
Commit point: the synced manifest line. Nothing may be cut before ``keep`` has returned. The same bytes of the same
position are copied once. If the size limit is reached, the oldest copies are deleted, but none that the same object
made or relies on, because its bytes may be cut next: one object serves one recovery, or the compaction of one open.
Without room for another copy ``keep`` fails as on a full disk, so nothing is cut and the store opens read-only.
"""

from __future__ import annotations

import errno
from contextlib import closing
from typing import Any, Final, final

import orjson
from isal import isal_zlib

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import json_lines, open_hint, read_if_there
from tailrace.logs import get_logger
from tailrace.segments import MappedFileQueue

__all__ = ["AFTER_THE_END", "COMPACTION", "NOT_AT_THE_MASTER", "QUEUE", "TOO_LONG", "Quarantine"]

_log = get_logger(__name__)
_PIECE: Final = 4096
AFTER_THE_END: Final = "after the end: "
"""How the reason begins of bytes that followed the end of the log, which were cut off."""
NOT_AT_THE_MASTER: Final = "not in the log of the master "
QUEUE: Final = "queue "
COMPACTION: Final = "damaged message of a compaction log"
TOO_LONG: Final = "file too long"
_NO_GAPS: Final = (AFTER_THE_END, NOT_AT_THE_MASTER, QUEUE, COMPACTION, TOO_LONG)
"""How the reasons begin of bytes that are not damage in the middle of the log: cut off, or of another file."""


@final
class Quarantine:
    """Copies bytes, without the zeros at their end."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, directory: str, max_bytes: int = 1 << 30
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._directory = directory
        self._max_bytes = max_bytes
        self._ours: set[str] = set()
        """Names of the copies that this open made or relies on."""
        self._listed: set[object] | None = None
        """Names of the copies that have a line in the manifest; None before it was read."""

    def keep(self, source: str, file_pos: int, phy_offset: int, data: bytes, reason: str) -> int:
        """Copy ``data`` up to its last byte that is not zero. Return the number of bytes copied.

        Raises OSError if the copy cannot be made durable, or if the copies of this open take the whole limit.
        """
        data = data.rstrip(b"\0")
        if not data:
            return 0
        self._file_system.makedirs(self._directory)
        name = f"{phy_offset:020d}-{isal_zlib.crc32(data):08x}.bin"
        path = f"{self._directory}/{name}"
        if self._listed is None:
            self._listed = {line.get("kept") for line in self._lines()}
        # Without its line a copy may be one of a power loss, with the right length and zeros.
        if name in self._listed and self._file_system.exists(path) and self._file_system.stat(path).size == len(data):
            self._ours.add(name)
            return len(data)  # an earlier open has copied it and left the bytes in place
        self._make_room(len(data))
        self._ours.add(name)
        self._write(path, data, at_end=False)
        if name not in self._listed:
            self._list(source, file_pos, phy_offset, len(data), reason, name)
            self._listed.add(name)
        self._file_system.sync_dir(self._directory)
        return len(data)

    def keep_unreadable(self, log: MappedFileQueue, phy_offset: int, size: int, reason: str) -> bool:
        """Copy the pieces of a record that can be read, or add a line without a copy; durable on return.

        Return False, without a change, if no other byte of its segment can be read, or if all of the record can:
        then it is not the record that is damaged. Raises OSError if the copy or the line cannot be written.
        """
        file = log.find(phy_offset)
        if file is None:  # deleted in the meantime
            return True
        start, end = file.file_from_offset, file.file_from_offset + file.wrote_position
        places = (start, start + (end - start) // 2, end - 1)
        if not any(_read(log, place, 1) for place in places if not phy_offset <= place < phy_offset + size):
            return False
        data, missing = bytearray(), 0
        while len(data) < size:
            at = phy_offset + len(data)
            count = min(_PIECE - at % _PIECE, size - len(data))
            piece = _read(log, at, count)
            missing += count - len(piece)
            data += piece.ljust(count, b"\0")
        if not missing:
            return False
        where = file.path, phy_offset - start, phy_offset
        if missing == size or not self.keep(*where, bytes(data), f"{reason}; {missing} of {size} bytes are zeros"):
            self.note(*where, size, reason)
        return True

    def note(self, source: str, file_pos: int, phy_offset: int, length: int, reason: str) -> None:
        """Add a line for bytes of which there is no copy, unless the manifest has it; durable on return.

        Raises OSError if the line cannot be written.
        """
        self._file_system.makedirs(self._directory)
        if not any(known.get("physicalOffset") == phy_offset and known.get("kept") is None for known in self._lines()):
            self._list(source, file_pos, phy_offset, length, reason, None)
            self._file_system.sync_dir(self._directory)

    def _list(
        self, source: str, file_pos: int, phy_offset: int, length: int, reason: str, kept: str | None
    ) -> None:
        line = {
            "file": source, "position": file_pos, "physicalOffset": phy_offset,
            "length": length, "reason": reason, "time": self._clock.now_ms(), "kept": kept,
        }
        self._write(self._manifest, orjson.dumps(line) + b"\n", at_end=True)

    def stepped_over(self) -> list[int]:
        """Return the positions of the damage in the middle of the log that an open has stepped over.

        Slaves compare their logs there, so a place of another file would stop them.
        """
        return sorted({
            int(line["physicalOffset"]) for line in self._lines()
            if isinstance(line.get("physicalOffset"), int) and not str(line.get("reason")).startswith(_NO_GAPS)})

    def _lines(self) -> list[dict[str, Any]]:
        """Return the valid lines of the manifest."""
        return json_lines(read_if_there(self._file_system, self._manifest))

    @property
    def _manifest(self) -> str:
        return f"{self._directory}/manifest.jsonl"

    def _make_room(self, wanted: int) -> None:
        files = [
            (stat.mtime_ms, name, stat.size)
            for name in self._file_system.list(self._directory) if name.endswith(".bin")
            for stat in [self._file_system.stat(f"{self._directory}/{name}")]
        ]
        total = sum(size for _, _, size in files)
        kept = sum(size for _, name, size in files if name in self._ours)
        if kept + wanted > self._max_bytes:
            raise OSError(
                errno.ENOSPC, f"no room for {wanted} bytes: quarantineMaxBytes is {self._max_bytes}, and this open has "
                f"copied {kept}. Raise it and open the store again", self._directory)
        for _, name, size in sorted(files):
            if name in self._ours:
                continue
            if total + wanted <= self._max_bytes:
                break
            events.QUARANTINE_IS_FULL.log(_log, file=name, bytes=size)
            self._file_system.remove(f"{self._directory}/{name}")
            total -= size

    def _write(self, path: str, data: bytes, *, at_end: bool) -> None:
        with closing(open_hint(self._file_system, path)) as file:
            end = file.size() if at_end else 0
            if end and file.pread(1, end - 1) != b"\n":
                data = b"\n" + data  # a power loss has torn the line before
            file.pwrite(data, end)
            file.sync_data()


def _read(log: MappedFileQueue, place: int, size: int) -> bytes:
    """Return bytes of the log, none if they cannot be read."""
    try:
        return log.read(place, size)
    except OSError:
        return b""
