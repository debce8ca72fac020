"""Lists a record of the log whose reads fail in quarantine."""

from __future__ import annotations

from typing import Final

from tailrace.segments import MappedFileQueue
from tailrace.store.recovery.quarantine import Quarantine

__all__ = ["list_unreadable"]

_PIECE: Final = 4096


def list_unreadable(
    log: MappedFileQueue, quarantine: Quarantine, phy_offset: int, size: int, reason: str
) -> bool:
    """List a record in quarantine: a copy of the pieces that can be read, or a line without one.

    Return False, without a change, if no byte around the record can be read, or all of the record. Raises OSError if
    quarantine cannot be written.
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
    if missing == size or not quarantine.keep(*where, bytes(data), f"{reason}; {missing} of {size} bytes are zeros"):
        quarantine.list_unreadable(*where, size, reason)
    return True


def _read(log: MappedFileQueue, place: int, size: int) -> bytes:
    """Return bytes of the log, none if they cannot be read."""
    try:
        return log.read(place, size)
    except OSError:
        return b""
