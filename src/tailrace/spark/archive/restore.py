"""Restoring of archived segments as CommitLog files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Final, final

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import filenames
from tailrace.spark.archive.verification import restored
from tailrace.store.archive_manifest import broken_link, list_manifests, read_manifest
from tailrace.store.archive_store import ArchiveStore

__all__ = ["RestoredLog", "restore_segments"]

_NAME_MAX: Final = 255


def restore_segments(
    archive: ArchiveStore, store: str, first: int, until: int, file_system: FileSystem | None = None
) -> Iterator[dict[str, Any]]:
    """Write the segments that start in [first, until). Yield one report per segment.

    A file gets its name after its checksum was compared. Batch queues get their directories, by which a recovery
    without ``topics.json`` knows them. Raises StoreError if there is no segment to write or one between two others
    is missing, CorruptionError for a file that has changed.
    """
    file_system = file_system or OsFileSystem()
    there = list_manifests(archive)
    chosen = [segment for segment in there if first <= segment < until]
    if not there:
        raise StoreError(f"{archive.location} is not an archive: it has no manifests")
    if not chosen:
        raise StoreError(f"{archive.location} has no segment between {first} and {until}")
    found = [(segment, read_manifest(archive, segment)) for segment in chosen]
    expected = chosen[0]
    for segment, manifest in found:
        if segment != expected or manifest is None:
            raise StoreError(
                f"{archive.location} lacks the segment at {expected}: restore only segments before or after it")
        expected = manifest.until
    broken = broken_link([manifest for _, manifest in found if manifest is not None])
    if broken is not None and first <= broken.segment < until:
        raise StoreError(
            f"{archive.location}: {broken}; restore it from a copy, or begin with --from {chosen[0]}")
    queues = {(one.topic, one.queue_id): one.is_batch for _, manifest in found if manifest for one in manifest.queues}
    log = RestoredLog(store, file_system)
    log.make_batch_queues(key for key, is_batch in queues.items() if is_batch)  # a topic counts with its last type
    for segment, manifest in found:
        assert manifest is not None
        name = log.write(segment, restored(archive, manifest))
        yield {"file": name, "bytes": manifest.size, "sha256": manifest.sha256, "records": manifest.records,
               "compared": "sha256"}


@final
class RestoredLog:
    """The files of a log that are written again."""

    def __init__(self, store: str, file_system: FileSystem) -> None:
        self._store, self._file_system = store, file_system
        self._directory = f"{store}/{filenames.COMMITLOG}"

    def write(self, segment: int, parts: Iterable[bytes | memoryview]) -> str:
        """Write a segment and return the name of its file, which it gets when ``parts`` end without an error."""
        name = filenames.offset_to_file_name(segment)
        made = f"{self._directory}/.{name}.new"
        self._file_system.makedirs(self._directory)
        with closing(self._file_system.open(made, writable=True, create=True)) as file:
            file.truncate(0)  # an earlier restore may have left a longer one
            at = 0
            for part in parts:
                file.pwrite(part, at)
                at += len(part)
            file.sync_data()
        self._file_system.rename(made, f"{self._directory}/{name}")
        self._file_system.sync_dir(self._directory)
        return name

    def make_batch_queues(self, queues: Iterable[tuple[str, int]]) -> None:
        """Make the directories of batch queues, each TOPIC/QUEUE.

        Raises CorruptionError for a name that cannot be a directory of the store, and then makes none.
        """
        wanted = sorted(queues)
        for topic, queue_id in wanted:
            if topic in {"", ".", ".."} or {"/", "\0"} & set(topic) or len(topic.encode()) > _NAME_MAX or queue_id < 0:
                raise CorruptionError(f"the archive has a queue {queue_id} of {topic[:40]!r}, which is not the name of "
                                      "a topic")
        for topic, queue_id in wanted:
            self._file_system.makedirs(f"{self._store}/{filenames.BATCHCONSUMEQUEUE}/{topic}/{queue_id}")
