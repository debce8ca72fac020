"""A segment's manifest: what of the log is in which files, and that it was compared.

Written last and atomically, so that a segment is in the archive wholly or not at all. With
``"verified": true`` the files were read back and gave the segment's bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.errors import CorruptionError
from tailrace.formats.filenames import file_name_to_offset
from tailrace.spark.archive_layout import MANIFESTS, manifest_path

__all__ = ["ArchivedFile", "LostMessage", "Manifest", "QueueRange", "list_manifests", "read_manifest",
           "write_manifest"]

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file: its path below the archive, and the positions [start, end) it is from."""

    path: str
    size: int
    sha256: str
    rows: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages of a queue: offsets [start, end), places [first, last] of the log, times in ms."""

    topic: str
    queue_id: int
    start: int
    end: int
    count: int
    first: int
    last: int
    min_store_timestamp: int
    max_store_timestamp: int


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that a unit names and whose record is damaged."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment in the archive; ``crc32`` and ``sha256`` are of its bytes, ``head_crc32`` of the
    first of them."""

    segment: int
    size: int
    crc32: int
    sha256: str
    head_crc32: int
    records: int
    messages: int
    raw_rows: int
    min_store_timestamp: int
    max_store_timestamp: int
    queues: tuple[QueueRange, ...]
    files: tuple[ArchivedFile, ...]
    damaged: tuple[LostMessage, ...] = field(default=())
    verified: bool = False
    archived_at: int = 0
    version: int = _VERSION

    @property
    def until(self) -> int:
        """Position of the first byte behind the segment."""
        return self.segment + self.size

    def as_verified(self) -> Manifest:
        """The same after its files were compared."""
        return replace(self, verified=True)


def write_manifest(file_system: FileSystem, archive: str, manifest: Manifest) -> None:
    """Publish a segment: from here on readers and retention see it."""
    target = manifest_path(archive, manifest.segment)
    replace_file(file_system, target, orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2))


def read_manifest(file_system: FileSystem, archive: str, file_from_offset: int) -> Manifest | None:
    """The manifest of a segment, None when there is none; raises CorruptionError for another text."""
    path = manifest_path(archive, file_from_offset)
    data = read_if_there(file_system, path)
    if data is None:
        return None
    try:
        found: dict[str, Any] = orjson.loads(data)
        made = Manifest(**{
            **found,
            "queues": tuple(QueueRange(**one) for one in found["queues"]),
            "files": tuple(ArchivedFile(**one) for one in found["files"]),
            "damaged": tuple(LostMessage(**one) for one in found["damaged"]),
        })
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(f"{path} is no manifest of an archive: {error}") from error
    if made.version != _VERSION or made.segment != file_from_offset:
        raise CorruptionError(
            f"{path} is of version {made.version} and segment {made.segment}, not version {_VERSION} "
            f"and segment {file_from_offset}")
    return made


def list_manifests(file_system: FileSystem, archive: str) -> list[int]:
    """Segments that have a manifest, in the order of the log."""
    found = []
    for name in file_system.list(f"{archive}/{MANIFESTS}"):
        stem, _, suffix = name.rpartition(".")
        offset = file_name_to_offset(stem)
        if suffix == "json" and offset is not None:
            found.append(offset)
    return found
