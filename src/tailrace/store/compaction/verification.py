"""Verify compaction logs of a directory: every record and every unit. Nothing is written.

`store.findings.COMPACTION_KINDS` declares the kinds of findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.env.filesystem import FileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.whole_files import read_file
from tailrace.errors import CorruptionError
from tailrace.formats.consumequeue import BATCH_CQ_UNIT
from tailrace.formats.filenames import (
    COMPACTION_CQ,
    COMPACTION_LOG,
    COMPACTION_REPLACE,
    offset_to_file_name,
)
from tailrace.segments import OpenFiles
from tailrace.store.batch_units import is_batch_unit
from tailrace.store.compaction.file_pair import FilePair, Sizes
from tailrace.store.compaction.replacement import QueueDirectories, segment_starts
from tailrace.store.directory import StoreDirectory
from tailrace.store.findings import Finding
from tailrace.store.queue_types import queue_directories, read_compacted_topics

__all__ = ["compaction_findings", "only_in_compaction_log"]

_ANY_OFFSET: Final = range(1 << 62)


def only_in_compaction_log(directory: StoreDirectory) -> Iterator[tuple[str, int]]:
    """Yield (topic, queue id) of queues of which the compaction log has messages, and the CommitLog none as old."""
    files, root = directory.file_system, directory.path
    compacted = read_compacted_topics(files, root)
    for topic, queue_id in queue_directories(files, f"{root}/{COMPACTION_LOG}"):
        units = f"{root}/{COMPACTION_CQ}/{topic}/{queue_id}"
        starts = segment_starts(files, units)
        data = read_file(files, f"{units}/{offset_to_file_name(starts[0])}", BATCH_CQ_UNIT.size) if starts else b""
        unit = BATCH_CQ_UNIT.unpack_from(data) if len(data) == BATCH_CQ_UNIT.size else None
        queue = directory.queue((topic, queue_id))
        if topic in compacted and is_batch_unit(unit) and unit is not None and (
            queue is None or unit.msg_base_offset < queue.min_offset
        ):
            yield topic, queue_id


def compaction_findings(file_system: FileSystem, root: str) -> Iterator[Finding]:
    """Yield what is wrong with the compaction logs of a directory that no process has open."""
    overlay = OverlayFileSystem(file_system)
    for topic, queue_id in queue_directories(file_system, f"{root}/{COMPACTION_LOG}"):
        where = QueueDirectories(*(f"{root}/{name}/{topic}/{queue_id}" for name in (COMPACTION_LOG, COMPACTION_CQ)))
        names = file_system.list(where.log)
        if COMPACTION_REPLACE in names or any(name.endswith(".delete") for name in names):
            yield Finding("compaction-interrupted", where.log, -1, "files were being replaced; an open settles that")
            continue
        starts = segment_starts(file_system, where.log)
        for start in starts:
            yield from _of_pair(overlay, where, start, _ANY_OFFSET if start == starts[-1] else None)


def _of_pair(overlay: OverlayFileSystem, where: QueueDirectories, start: int, again: range | None) -> Iterator[Finding]:
    name = offset_to_file_name(start)
    sizes = Sizes(overlay.stat(f"{where.log}/{name}").size, BATCH_CQ_UNIT.size)
    if overlay.exists(f"{where.queue}/{name}"):
        sizes.queue = overlay.stat(f"{where.queue}/{name}").size
    pair = FilePair(overlay, *where, start, sizes, OpenFiles(8))
    try:
        if not pair.load(again):
            yield Finding(
                "compaction-units", pair.queue.path, -1, "units do not match the records; an open builds them")
            return
        for unit in pair.units(0):
            if not pair.record(unit):
                yield Finding(
                    "compaction-record", pair.log.path, unit.phy_offset,
                    f"the message at queue offset {unit.msg_base_offset} is damaged")
    except CorruptionError as error:
        yield Finding("compaction-record", pair.log.path, -1, str(error))
    finally:
        pair.close()
