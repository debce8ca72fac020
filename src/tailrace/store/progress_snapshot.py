"""Make a ``Progress`` from the parts of a store."""

from __future__ import annotations

from isal import isal_zlib

from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.index_service import IndexService
from tailrace.store.progress import Position, Progress

__all__ = ["make_progress"]


def make_progress(
    position: Position, commit_log: CommitLog, checkpoints: list[str], queues: ConsumeQueueStore,
    index: IndexService | None, *, clean: bool = False,
) -> Progress:
    """Return the progress to write after everything up to ``position`` is durable.

    ``checkpoints`` are the bytes of the checkpoint that may be on the disk, in hexadecimal digits. ``clean`` is True
    at a clean stop. Nothing may be dispatched during the call.
    """
    segment = commit_log.queue.find(position.last)
    return Progress(
        start=position.start, until=position.until, min=commit_log.min_offset, last=position.last,
        last_crc=isal_zlib.crc32(commit_log.read(position.last, position.size)),
        last_timestamp=position.timestamp,
        segment=segment.path.rpartition("/")[2] if segment is not None else "",
        segment_size=commit_log.queue.file_size, checkpoints=checkpoints,
        index=index.snapshot(clean=clean) if index is not None else None,
        queues=queues.snapshot(clean=clean), clean=clean)
