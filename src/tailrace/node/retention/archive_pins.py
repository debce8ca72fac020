"""Pins of the archive: a CommitLog file stays until the archive has it.

An archive is a directory or a prefix of a bucket, with a manifest for each CommitLog file that it has,
written last. A file of the log counts as archived when a manifest says that it was verified, when size and checksum of
its first bytes are those of the manifest, and when every file that the manifest names is there with
its size, and in an object store with the checksum that the server holds. These checks are cheap, so ``ArchivePins()``
makes them for all files of the log.

Before the oldest file is deleted ``confirmed`` compares everything: the checksum of the whole segment
and of every archived file of it; a file of which the server of an object store holds the checksum is not read. A call
reads at most ``STEP_BYTES``, because a service makes it.
Nothing of the archive is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Final, NamedTuple, final

from isal import isal_zlib

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_file
from tailrace.errors import CorruptionError
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.segments import MappedFile
from tailrace.store.archive_manifest import (
    HEAD_BYTES,
    Manifest,
    archived_name,
    open_ranges,
    read_manifest,
    wrong_file,
)
from tailrace.store.archive_store import ArchivedBytes, ArchiveStore
from tailrace.store.archive_tables import CommitCounts, attached, counts_of
from tailrace.store.retention.pins import Pin, PinKind

__all__ = ["STEP_BYTES", "ArchivePins"]

_log = get_logger(__name__)
STEP_BYTES: Final = 32 << 20
"""Number of bytes that one call of ``confirmed`` reads at most."""
_READ: Final = 1 << 20
_RETRY_NS: Final = 60_000_000_000
"""Time after which a comparison is repeated that could not be made."""
_REPEAT_NS: Final = 3600_000_000_000
"""Time after which a comparison is repeated that found a difference."""


class _Identity(NamedTuple):
    """What was compared: another manifest or another file is another comparison."""

    path: str
    manifest: Manifest
    files: tuple[tuple[str, str], ...]
    """Version and checksum of the server, of each archived file."""


class _Refuted(NamedTuple):
    """Why a segment is not archived after all; ``retry_ns`` is when it is compared again."""

    identity: _Identity
    why: str
    retry_ns: int


@final
class ArchivePins:
    """A pin source: the first of ``segments`` that is not archived.

    ``segments`` gives the CommitLog files that may be deleted, oldest first.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, archive: ArchiveStore,
        segments: Callable[[], Iterable[MappedFile]],
    ) -> None:
        self._clock = clock
        self._file_system = file_system
        self._archive = archive
        self._ranges_until = 0
        """Up to where an archive in an object store has ranges after the full files, as of the last call."""
        self.table_commits = CommitCounts()
        """How the commits to the tables of the archive went, as of the last call."""
        self._segments = segments
        self._archived: set[int] = set()
        self._looking: tuple[_Identity, Iterator[str]] | None = None
        self._confirmed: _Identity | None = None
        self._refuted: _Refuted | None = None

    def lag_bytes(self) -> int:
        """Return the bytes of files that were not archived when they were looked at last."""
        return sum(file.size for file in self._segments() if file.file_from_offset not in self._archived)

    def archived_until(self, start: int) -> int:
        """Return the position up to which the archive has the log from ``start`` onwards.

        Full files count as they were looked at last, and ranges of the file after them as their manifests are now, or
        in an object store as they were at the last call, because nothing here may wait for a server.
        """
        for file in self._segments():
            if file.file_from_offset == start and start in self._archived:
                start += file.size
        return max(self._ranges_until, start) if self._archive.remote else self._end_of_ranges(start)

    def _end_of_ranges(self, start: int) -> int:
        try:
            return max((one.until for one in open_ranges(self._archive, start)), default=start)
        except (OSError, CorruptionError):
            return start

    def __call__(self) -> Iterator[Pin]:
        """Yield a pin at the first file that is not archived, or nothing.

        The oldest file is checked at every call, the others until they are archived.
        """
        self._read_counts()
        files = list(self._segments())
        if len(self._archived) > len(files):  # forget the files that were deleted
            self._archived.intersection_update([file.file_from_offset for file in files])
        for number, file in enumerate(files):
            offset = file.file_from_offset
            if number and offset in self._archived:
                continue
            if why := self._why_not(file):
                self._archived.discard(offset)
                if self._archive.remote:
                    self._ranges_until = self._end_of_ranges(offset)
                yield Pin(PinKind.ARCHIVE, offset, f"{self._archive.location} {why}")
                return
            self._archived.add(offset)
        if self._archive.remote and files:
            self._ranges_until = self._end_of_ranges(files[-1].file_from_offset + files[-1].size)

    def _read_counts(self) -> None:
        try:
            self.table_commits = counts_of(attached(self._archive))
        except (OSError, CorruptionError):
            return  # the figures of the call before; the archive job names the error

    def confirmed(self, file: MappedFile) -> bool:
        """Compare a part of a segment with the archive; True once everything was compared and equal.

        After a difference the segment has a pin until the manifest or a file of it changes, at most
        for an hour; after an error of the disk for a minute.
        """
        try:
            identity = self._identity(file)
        except (OSError, CorruptionError):
            return False  # the pin says why
        if identity is None:
            return False
        if identity == self._confirmed:
            return True
        if self._looking is None or self._looking[0] != identity:
            self._looking = identity, self._compare(identity)
        try:
            for why in self._looking[1]:
                if not why:
                    return False
                return self._refute(identity, why, _REPEAT_NS)
        except OSError as error:
            return self._refute(
                identity, f"cannot be compared: {error}", _RETRY_NS)
        self._looking, self._confirmed = None, identity
        events.A_SEGMENT_WAS_COMPARED_WITH_THE_ARCHIVE.log(
            _log, segment=file.file_from_offset, archive=self._archive.location)
        return True

    def _refute(self, identity: _Identity, why: str, after_ns: int) -> bool:
        self._looking = None
        self._refuted = _Refuted(identity, why, self._clock.monotonic_ns() + after_ns)
        events.A_SEGMENT_IS_NOT_ARCHIVED_AS_ITS_MANIFEST_SAYS.log(
            _log, segment=identity.manifest.segment, archive=self._archive.location, cause=why)
        return False

    def _identity(self, file: MappedFile) -> _Identity | None:
        manifest = read_manifest(self._archive, file.file_from_offset)
        if manifest is None:
            return None
        heads = [self._archive.head(archived_name(self._archive, one.path)) for one in manifest.files]
        return _Identity(
            file.path, manifest, tuple(("", "") if one is None else (one.version, one.tag) for one in heads))

    def _compare(self, identity: _Identity) -> Iterator[str]:
        """Read the segment and its archived files. Yield an empty text after each ``STEP_BYTES``, and a text
        for each difference."""
        manifest = identity.manifest
        read, crc = 0, 0
        for part in _parts(self._file_system.open(identity.path)):
            crc = isal_zlib.crc32(part, crc)
            if (read := read + len(part)) % STEP_BYTES < len(part):
                yield ""
        if read != manifest.size or crc != manifest.crc32:
            yield f"has another segment {manifest.segment}{_written_from(manifest)}"
        for one, (_, tag) in zip(manifest.files, identity.files, strict=True):
            if one.tag and one.tag == tag:
                continue
            digest = hashlib.sha256()
            for part in _parts(self._archive.open(archived_name(self._archive, one.path))):
                digest.update(part)
                if (read := read + len(part)) % STEP_BYTES < len(part):
                    yield ""
            if digest.hexdigest() != one.sha256:
                yield f"has a damaged file {one.path}"

    def _why_not(self, file: MappedFile) -> str:
        """Return why a file does not count as archived, by its manifest; empty when it does."""
        name = f"{filenames.offset_to_file_name(file.file_from_offset)}.json"
        try:
            manifest = read_manifest(self._archive, file.file_from_offset)
        except (OSError, CorruptionError) as error:
            return f"has no manifest {name} that can be read: {error}"
        if manifest is None:
            return f"has no manifest {name}"
        if not manifest.verified:
            return f"has not verified {name}"
        if manifest.size != file.size:
            return (f"has another segment in {name}{_written_from(manifest)}: {manifest.size} bytes, "
                    f"the log has {file.size}")
        try:
            head = read_file(self._file_system, file.path, HEAD_BYTES)
        except OSError as error:
            return f"cannot be compared with {file.path}: {error}"
        if isal_zlib.crc32(head) != manifest.head_crc32:
            return f"has another segment in {name}{_written_from(manifest)}"
        if why := wrong_file(self._archive, manifest):
            return f"lacks a file that {name} names: {why}"
        return self._why_refuted(file, manifest)

    def _why_refuted(self, file: MappedFile, manifest: Manifest) -> str:
        refuted = self._refuted
        if refuted is None or refuted.identity.manifest.segment != manifest.segment:
            return ""
        try:
            is_same = self._clock.monotonic_ns() < refuted.retry_ns and self._identity(file) == refuted.identity
        except OSError as error:
            return f"cannot be compared: {error}"
        self._refuted = refuted if is_same else None
        return refuted.why if is_same else ""


def _parts(opened: ArchivedBytes) -> Iterator[bytes]:
    with closing(opened) as file:
        at = 0
        while part := file.pread(_READ, at):
            yield part
            at += len(part)


def _written_from(manifest: Manifest) -> str:
    return f", written from the store {manifest.store}" if manifest.store else ""
