"""Restoring of archived segments as CommitLog files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import filenames
from tailrace.spark.archive.verification import restored
from tailrace.store.archive_manifest import Manifest, broken_link, list_manifests, read_manifest
from tailrace.store.archive_store import ArchiveStore

__all__ = ["restore_segments"]

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
    batch_queues = _batch_queues([manifest for _, manifest in found if manifest is not None])
    directory = f"{store}/{filenames.COMMITLOG}"
    for path in (directory, *(f"{store}/{filenames.BATCHCONSUMEQUEUE}/{name}" for name in batch_queues)):
        file_system.makedirs(path)
    for segment, manifest in found:
        assert manifest is not None
        name = filenames.offset_to_file_name(segment)
        made = f"{directory}/.{name}.new"
        with closing(file_system.open(made, writable=True, create=True)) as file:
            file.truncate(0)  # an earlier restore may have left a longer one
            at = 0
            for part in restored(archive, manifest):
                file.pwrite(part, at)
                at += len(part)
            file.sync_data()
        file_system.rename(made, f"{directory}/{name}")
        file_system.sync_dir(directory)
        yield {"file": name, "bytes": manifest.size, "sha256": manifest.sha256,
               "records": manifest.records}


def _batch_queues(manifests: Sequence[Manifest]) -> list[str]:
    """Return TOPIC/QUEUE of each batch queue. A topic counts with its last type.

    Raises CorruptionError for a name that cannot be a directory of the store.
    """
    queues = {(one.topic, one.queue_id): one.is_batch for manifest in manifests for one in manifest.queues}
    found = []
    for topic, queue_id in sorted(key for key, is_batch in queues.items() if is_batch):
        if topic in {"", ".", ".."} or {"/", "\0"} & set(topic) or len(topic.encode()) > _NAME_MAX or queue_id < 0:
            raise CorruptionError(f"a manifest of the archive has a queue {queue_id} of {topic[:40]!r}, which is not "
                                  "the name of a topic")
        found.append(f"{topic}/{queue_id}")
    return found
