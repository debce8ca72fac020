"""Manifest of an archived segment: which bytes of the log are in which files, with checksums.

A manifest is written last and atomically, so a segment is in the archive completely or not at all.
With ``"verified": true`` the files were read back and gave the segment's bytes. A manifest carries
a checksum of itself and names the manifest before it, so that a changed or a missing one is noticed.
Version 1 has neither, and no checksums for parts of its files.

The segment that is still written may have manifests in ``_open``, each for a range of its bytes, which is a segment of
its own there. They follow each other without a gap, from the start of the segment, and count until the segment has a
manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from tailrace.errors import ChecksumMismatchError, CorruptionError, UnsupportedVersionError
from tailrace.formats.filenames import file_name_to_offset, offset_to_file_name
from tailrace.store.archive_store import MANIFESTS, ROWS, ArchiveStore

__all__ = ["HEAD_BYTES", "MANIFESTS", "OPEN", "ROWS", "VERSION", "ArchivedFile", "BrokenLink", "FilePart", "Linked",
           "LostMessage", "Manifest", "ManifestLink", "QueueRange", "archived_name", "broken_link", "list_manifests",
           "manifest_name", "open_ranges", "read_manifest", "read_versioned", "wrong_file", "write_manifest"]

OPEN: Final = "_open"
"""The directory with the manifests of ranges of the segment that is still written."""
HEAD_BYTES: Final = 1 << 16
"""Number of bytes at the start of a segment that ``head_crc32`` covers."""
VERSION: Final = 2
"""Version of manifests that are written."""
_UNPROTECTED: Final = 1
_CHECKSUM: Final = "checksum"
_DEFAULTS: Final = {"is_batch": False, "messages": 1, "tag": ""}


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a Parquet file, from the end of the part before it up to ``end``."""

    end: int
    crc32: int


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file: its path below the archive, and the positions [start, end) it is from.

    ``parts`` are its row groups in their order, then everything after them (the footer). Manifests
    of version 1 have no parts. ``tag`` is the checksum that the server of an object store holds; empty on a disk.
    """

    path: str
    size: int
    sha256: str
    rows: int
    start: int
    end: int
    parts: tuple[FilePart, ...] = ()
    tag: str = ""


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
    is_batch: bool = False
    """True for a batch queue: ``count`` is the number of records, and a record may have several messages."""


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that a unit names and whose record is damaged; ``messages`` counts those of its inner batch."""

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    reason: str
    messages: int = 1


@dataclass(frozen=True, slots=True)
class ManifestLink:
    """The segment that was before another one in the archive; ``sha256`` is of its bytes."""

    segment: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment in the archive; ``crc32`` and ``sha256`` are of its bytes, ``head_crc32`` of the
    first of them. ``store`` is the path of the store at that time."""

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
    store: str = ""
    before: ManifestLink | None = None
    version: int = VERSION

    @property
    def until(self) -> int:
        """Position of the first byte after the segment."""
        return self.segment + self.size

    @property
    def protected(self) -> bool:
        """True if the manifest has a checksum, a link and checksums of parts (version 2)."""
        return self.version > _UNPROTECTED

    def as_verified(self) -> Manifest:
        """Return a copy with ``verified``, for after its files were compared."""
        return replace(self, verified=True)


def manifest_name(file_from_offset: int, within: str = MANIFESTS) -> str:
    """Name of the manifest of a segment; with ``within=OPEN`` of a range of the segment that is still written."""
    return f"{within}/{offset_to_file_name(file_from_offset)}.json"


def archived_name(archive: ArchiveStore, path: str) -> str:
    """Return where a file of a manifest is. ``path`` is that of the manifest, below the archive.

    A9: older manifests have no ``rows/`` in their paths. The archive job moves such files below ``rows`` and leaves the
    manifests as they are.
    """
    moved = f"{ROWS}/{path}"
    return moved if not path.startswith(f"{ROWS}/") and archive.head(moved) is not None else path


def _checksum(members: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest's members. Their order and layout in the file do not matter."""
    return hashlib.sha256(orjson.dumps(members, option=orjson.OPT_SORT_KEYS)).hexdigest()


def write_manifest(archive: ArchiveStore, manifest: Manifest, within: str = MANIFESTS, version: str = "") -> str:
    """Publish a segment: write its manifest with a checksum. Afterwards readers and retention use it.

    ``version`` is that of the manifest to replace, as ``read_versioned`` returned it; empty if the segment must not
    have one. Return the new version. Raises ArchiveChangedError if another job has written the manifest.
    """
    members = asdict(replace(manifest, version=VERSION))
    for entries, name in (("queues", "is_batch"), ("damaged", "messages"), ("files", "tag")):
        for one in members[entries]:
            if one[name] == _DEFAULTS[name]:  # earlier versions do not know these members
                del one[name]
    members[_CHECKSUM] = _checksum(members)
    name, data = manifest_name(manifest.segment, within), orjson.dumps(members, option=orjson.OPT_INDENT_2)
    return archive.replace(name, data, version) if version else archive.put_new(name, data)


def read_manifest(archive: ArchiveStore, file_from_offset: int, within: str = MANIFESTS) -> Manifest | None:
    """Return the manifest of a segment, None when there is no such file.

    Raises CorruptionError when the file is not a manifest or is not what was written.
    """
    found = archive.read(manifest_name(file_from_offset, within))
    return None if found is None else _parsed(archive, file_from_offset, within, found[0])


def read_versioned(archive: ArchiveStore, file_from_offset: int) -> tuple[Manifest | None, str]:
    """Return the manifest of a segment and its version; no manifest, but the version, for one that cannot be read."""
    found = archive.read(manifest_name(file_from_offset))
    if found is None:
        return None, ""
    try:
        return _parsed(archive, file_from_offset, MANIFESTS, found[0]), found[1]
    except CorruptionError:
        return None, found[1]


def _parsed(archive: ArchiveStore, file_from_offset: int, within: str, data: bytes) -> Manifest:
    path = archive.path_of(manifest_name(file_from_offset, within))
    try:
        found: dict[str, Any] = orjson.loads(data)
        version = found["version"]
        if version not in {_UNPROTECTED, VERSION}:
            raise UnsupportedVersionError(
                "this version of a manifest is not known", path=path,
                expected=VERSION, actual=version)
        if version == VERSION and found.pop(_CHECKSUM) != _checksum(found):
            raise ChecksumMismatchError(
                "a manifest of the archive was changed after it was written; restore it from a copy, "
                "or write it again with `tailrace pipeline archive --verify` while the log has the "
                "segment", path=path)
        if _CHECKSUM in found:
            raise ValueError("version 1 has no checksum")
        made = msgspec.convert(found, Manifest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptionError(f"{path} is not a manifest of an archive: {error!r}") from error
    if made.segment != file_from_offset:
        raise CorruptionError(
            f"{path} is the manifest of another segment", expected=file_from_offset,
            actual=made.segment)
    return made


def open_ranges(archive: ArchiveStore, start: int) -> list[Manifest]:
    """Return the manifests of the ranges that are archived of the segment at ``start``, without a gap.

    Raises CorruptionError for a manifest that is not what was written.
    """
    found: list[Manifest] = []
    for one in list_manifests(archive, OPEN):
        manifest = read_manifest(archive, one, OPEN) if one == start else None
        if manifest is not None:
            found.append(manifest)
            start = manifest.until
    return found


def list_manifests(archive: ArchiveStore, within: str = MANIFESTS) -> list[int]:
    """Segments that have a manifest, in the order of the log; with ``within=OPEN`` ranges."""
    found = []
    for name in archive.list(within):
        stem, _, suffix = name.rpartition(".")
        offset = file_name_to_offset(stem)
        if suffix == "json" and offset is not None:
            found.append(offset)
    return sorted(found)


class Linked(NamedTuple):
    """What the links of an archive need to know of a manifest."""

    segment: int
    sha256: str
    before: ManifestLink | None


class BrokenLink(NamedTuple):
    """A manifest that another one names and that is missing, or, with ``exchanged``, is not the
    one that is named."""

    segment: int
    named_by: int
    exchanged: bool

    def __str__(self) -> str:
        if self.exchanged:
            return (f"the manifest of segment {self.segment} is not the one that the manifest of "
                    f"segment {self.named_by} names")
        return (f"the manifest of segment {self.segment} is missing, which the manifest of segment "
                f"{self.named_by} names as the one before it")


def broken_link(manifests: Sequence[Manifest | Linked]) -> BrokenLink | None:
    """Return the first manifest that is missing or was exchanged, by the links of the others.

    ``manifests`` are all of an archive up to some segment, in the order of the log. A manifest
    without a link (version 1, or the first of its archive) says nothing about those before it.
    """
    known = {one.segment: one.sha256 for one in manifests}
    for one in manifests:
        if one.before is None:
            continue
        sha256 = known.get(one.before.segment)
        if sha256 is None or one.before.sha256 not in {"", sha256}:
            return BrokenLink(one.before.segment, one.segment, exchanged=sha256 is not None)
    return None


def wrong_file(archive: ArchiveStore, manifest: Manifest) -> str:
    """Return which file of a manifest is missing, or has another size or checksum of the server, or "".

    Reads no file.
    """
    for one in manifest.files:
        name = archived_name(archive, one.path)
        path = archive.path_of(name)
        try:
            found = archive.head(name)
        except OSError as error:
            return f"the archived file {path} cannot be found: {error}"
        if found is None:
            return f"the archived file {path} cannot be found: it does not exist"
        if found.size != one.size:
            return f"the archived file {path} has {found.size} bytes and should have {one.size}"
        if one.tag and found.tag != one.tag:
            return f"the archived file {path} has the checksum {found.tag} and should have {one.tag}"
    return ""
