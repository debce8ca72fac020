"""What a data file of an archive says of itself: which bytes of the log its rows are from.

The note is in the metadata of the Parquet footer, so a table that names the file, or a copy of it, is enough to write
the log again and to compare it. The manifest has the same facts for readers of the archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow.parquet as pq

from tailrace.errors import CorruptionError

__all__ = ["ORIGIN", "Origin", "origin_in"]

ORIGIN: Final = b"tailrace.log"
"""Key of the note in the metadata of the footer; the value is JSON."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The segment of a file, and the bytes [start, end) of the log of which it has rows.

    ``crc32`` is of these bytes. A piece of the log that spans several days has several files with one note. Files of
    the last piece of a segment also have the SHA-256 of the whole segment, and its batch queues.
    """

    segment: int
    size: int
    start: int
    end: int
    crc32: int
    sha256: str = ""
    batch_queues: tuple[tuple[str, int], ...] = ()

    @property
    def note(self) -> dict[bytes, bytes]:
        """The metadata of the footer."""
        return {ORIGIN: msgspec.json.encode(self)}


def origin_in(footer: pq.FileMetaData, path: str) -> Origin | None:
    """Return the note of a file; None for a file of an earlier version. Raises CorruptionError for a changed note."""
    found = (footer.metadata or {}).get(ORIGIN)
    if found is None:
        return None
    try:
        made = msgspec.json.decode(found, type=Origin)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the note {ORIGIN.decode()} of the file was changed: {error}", path=path) from error
    if not made.segment <= made.start < made.end <= made.segment + made.size:
        raise CorruptionError(f"the note {ORIGIN.decode()} of the file was changed: {made}", path=path)
    return made
