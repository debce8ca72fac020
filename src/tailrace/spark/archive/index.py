"""The index of an archive: what planning needs of a thousand manifests in one file.

A manifest has an entry for each queue, so the manifests of many segments are too much to read for each query. A file
``_index/<20 digits>.json`` has, of consecutive segments, their sizes and hashes, and for each queue its runs: the
segments in which its offsets follow each other. The manifests stay the proof: a task reads those of its segments, and
restoring and verifying read all. An index counts only if the archive has exactly its segments. The archive job removes
it before it changes one of their manifests.
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, final

import msgspec
import orjson

from tailrace.errors import CorruptionError
from tailrace.formats.filenames import file_name_to_offset, offset_to_file_name
from tailrace.store.archive_manifest import (
    Manifest,
    ManifestLink,
    QueueRange,
    manifest_name,
    read_manifest,
)
from tailrace.store.archive_store import ArchiveChangedError, ArchiveStore, Head

__all__ = ["GROUP", "INDEX", "Group", "Indexed", "Indexes", "cached_manifest", "group_of", "groups", "index_name",
           "list_indexes", "manifest_of", "read_group", "write_group"]

INDEX: Final = "_index"
GROUP: Final = 1_000
"""Number of segments of an index."""
_VERSION: Final = 1
_CACHED: Final = 1 << 18
"""Number of entries of queues in manifests and indexes that a process keeps."""


class Indexed(NamedTuple):
    """A segment of an index."""

    segment: int
    size: int
    sha256: str

    @property
    def until(self) -> int:
        """Position of the first byte after the segment."""
        return self.segment + self.size


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive segments of an archive, which are verified, and whose manifests have checksums and name each other.

    ``runs`` are ranges of queues over several segments, in the order of the log. ``before`` is the link of the first
    manifest.
    """

    segments: tuple[Indexed, ...]
    runs: tuple[QueueRange, ...]
    before: ManifestLink | None = None
    version: int = _VERSION

    @property
    def segment(self) -> int:
        """Position of the first segment."""
        return self.segments[0].segment

    @property
    def until(self) -> int:
        """Position of the first byte after the last segment."""
        return self.segments[-1].until


def index_name(segment: int) -> str:
    """Return the name of the index whose first segment this is."""
    return f"{INDEX}/{offset_to_file_name(segment)}.json"


def list_indexes(archive: ArchiveStore) -> list[int]:
    """Return the first segments of the indexes, in the order of the log."""
    stems = [name.removesuffix(".json") for name in archive.list(INDEX) if name.endswith(".json")]
    return sorted(offset for stem in stems if (offset := file_name_to_offset(stem)) is not None)


def group_of(manifests: Iterable[Manifest]) -> Group | None:
    """Return the index of consecutive manifests; None if they are not those of a ``Group``."""
    segments: list[Indexed] = []
    runs: list[QueueRange] = []
    last: dict[tuple[str, int], int] = {}
    before = None
    for one in manifests:
        link = ManifestLink(segments[-1].segment, segments[-1].sha256) if segments else one.before
        if not one.protected or not one.verified or one.before != link:
            return None
        before = before if segments else one.before
        segments.append(Indexed(one.segment, one.size, one.sha256))
        for queue in one.queues:
            key = queue.topic, queue.queue_id
            place = last.get(key, -1)
            if place >= 0 and runs[place].end == queue.start and runs[place].is_batch is queue.is_batch:
                old = runs[place]
                runs[place] = replace(
                    old, end=queue.end, count=old.count + queue.count, last=queue.last,
                    min_store_timestamp=min(old.min_store_timestamp, queue.min_store_timestamp),
                    max_store_timestamp=max(old.max_store_timestamp, queue.max_store_timestamp))
            else:
                last[key] = len(runs)
                runs.append(queue)
    return Group(tuple(segments), tuple(runs), before) if segments else None


def write_group(archive: ArchiveStore, group: Group) -> None:
    """Write an index with a checksum, atomically. It must not exist."""
    members: dict[str, Any] = {
        "version": group.version, "before": None if group.before is None else asdict(group.before),
        "segments": [list(one) for one in group.segments], "runs": [list(astuple(one)) for one in group.runs]}
    members["checksum"] = _checksum(members)
    archive.put_new(index_name(group.segment), orjson.dumps(members))


def read_group(archive: ArchiveStore, segment: int) -> Group | None:
    """Return an index; None if it is missing, damaged or of another version. Then the manifests are read."""
    data = archive.read(index_name(segment))
    try:
        found: dict[str, Any] = orjson.loads(b"" if data is None else data[0])
        if found.pop("checksum") != _checksum(found) or found["version"] != _VERSION:
            return None
        return Group(
            tuple(Indexed(*one) for one in found["segments"]), tuple(QueueRange(*one) for one in found["runs"]),
            msgspec.convert(found["before"], ManifestLink | None), found["version"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _checksum(members: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(members, option=orjson.OPT_SORT_KEYS)).hexdigest()


class _Cache:
    """What was read from files, by path, size and version; what was used last is kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, str], tuple[int, Any]] = OrderedDict()
        self._entries = 0

    def get(
        self, archive: ArchiveStore, name: str, head: Head | None, read: Callable[[], Any],
        entries: Callable[[Any], int],
    ) -> Any:
        """Return what ``read`` returns for a file with this head; None without one, as the file does not exist."""
        if head is None:
            return None
        key = f"{archive.location}/{name}", head.size, head.version
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        found = read()
        self._kept[key] = entries(found), found
        self._entries += self._kept[key][0]
        while self._entries > _CACHED and len(self._kept) > 1:
            self._entries -= self._kept.popitem(last=False)[1][0]
        return found


_cache: Final = _Cache()


def cached_manifest(archive: ArchiveStore, segment: int, head: Head | None = None) -> Manifest | None:
    """Return what ``read_manifest`` returns, from memory if the file did not change. Raises CorruptionError.

    ``head`` is that of the file if the caller knows it, because an object store is asked for it by a request.
    """
    name = manifest_name(segment)
    return _cache.get(
        archive, name, head or archive.head(name), lambda: read_manifest(archive, segment),
        lambda found: 1 if found is None else len(found.queues) + len(found.files) + 1)


def manifest_of(archive: ArchiveStore, one: Indexed) -> Manifest:
    """Return the manifest of a segment of an index. Raises CorruptionError if it is missing or of other bytes."""
    found = cached_manifest(archive, one.segment)
    if found is None or found.sha256 != one.sha256 or found.size != one.size:
        state = "missing, but it was there" if found is None else "another one than"
        raise CorruptionError(
            f"{archive.location}: the manifest of segment {one.segment} is {state} when the archive was indexed; "
            f"remove {archive.path_of(INDEX)}, which the next archive job makes again")
    return found


def groups(archive: ArchiveStore, segments: Sequence[int]) -> dict[int, Group]:
    """Return the indexes whose segments are those of the archive, by their first segment.

    ``segments`` are the segments that have a manifest, in the order of the log.
    """
    found: dict[int, Group] = {}
    for first in list_indexes(archive):
        place = bisect_left(segments, first)
        group = _cache.get(
            archive, index_name(first), archive.head(index_name(first)), partial(read_group, archive, first),
            lambda found: 1 if found is None else len(found.segments) + len(found.runs))
        if group is not None and [one.segment for one in group.segments] == list(
                segments[place : place + len(group.segments)]):
            found[first] = group
    return found


@final
class Indexes:
    """The indexes of an archive as its job keeps them; no other job writes them in the meantime."""

    def __init__(self, archive: ArchiveStore) -> None:
        self._archive = archive
        self._ends: dict[int, int] | None = None
        """The last segment of each index, by its first one; None before they are needed."""

    def _known(self) -> dict[int, int]:
        if self._ends is None:
            self._ends = {}
            for first in list_indexes(self._archive):
                group = read_group(self._archive, first)
                if group is None:  # damaged
                    self._archive.delete(index_name(first))
                else:
                    self._ends[first] = group.segments[-1].segment
        return self._ends

    def drop(self, segment: int) -> None:
        """Remove the index that has a segment, before its manifest changes (A11)."""
        there = self._known()
        for first in [first for first, last in there.items() if first <= segment <= last]:
            self._archive.delete(index_name(first))
            del there[first]

    def write(self, segments: Sequence[int]) -> None:
        """Write the indexes that are missing, each of a thousand segments. ``segments`` are those with a manifest."""
        there, kept = self._known(), set()
        for place in range(0, len(segments) - GROUP + 1, GROUP):
            chosen = segments[place : place + GROUP]
            kept.add(chosen[0])
            if there.get(chosen[0]) == chosen[-1]:
                continue
            group = self._made(chosen)
            if group is not None:
                self._archive.delete(index_name(chosen[0]))  # it may be there for other segments
                with contextlib.suppress(ArchiveChangedError):  # another job has just written it
                    write_group(self._archive, group)
                there[chosen[0]] = chosen[-1]
        for first in [first for first in there if first not in kept]:  # segments before it were removed
            self._archive.delete(index_name(first))
            del there[first]

    def _made(self, segments: Sequence[int]) -> Group | None:
        """Return the index of some segments; None if they cannot have one."""
        found = []
        for one in segments:
            try:
                manifest = read_manifest(self._archive, one)
            except CorruptionError:
                return None
            if manifest is None:
                return None
            found.append(manifest)
        return group_of(found)
