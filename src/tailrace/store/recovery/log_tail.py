"""The bytes after the end of a log."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.formats.commitlog import PLAUSIBLE_LENGTH, PROPERTIES_LENGTH_LENGTH, plausible_size
from tailrace.segments import MappedFile, MappedFileQueue

__all__ = ["is_incomplete", "nonzero_after"]


def nonzero_after(log: MappedFileQueue, phy_offset: int) -> Iterator[tuple[MappedFile, int, bytes]]:
    """Yield (file, position in it, bytes) of every chunk from ``phy_offset`` onwards that is not all zero."""
    for file in log.files:
        if phy_offset < file.file_from_offset + file.size:
            for at, data in file.nonzero(max(phy_offset - file.file_from_offset, 0)):
                yield file, at, data


def is_incomplete(log: MappedFileQueue, phy_offset: int, synced_until: int) -> bool:
    """Return True if nothing follows a position but the first bytes of one record, as the log of a slave may end.

    A header that is not complete counts as well. If the last byte of the record is there, the record is damaged.

    If the first bytes are zero, an append was killed: memcpy may copy the first 64 bytes of a long piece last.
    """
    file = log.find(phy_offset)
    if file is None or phy_offset < synced_until:
        return False
    head = file.read(phy_offset - file.file_from_offset, PLAUSIBLE_LENGTH)
    if not any(head[:4]):
        return True
    size = plausible_size(head, phy_offset)
    last = phy_offset
    for found, at, data in nonzero_after(log, phy_offset):
        last = found.file_from_offset + at + len(data.rstrip(b"\0"))
    return last < phy_offset + (size or PLAUSIBLE_LENGTH) - PROPERTIES_LENGTH_LENGTH
