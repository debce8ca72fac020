"""Where queues go on when segment files of the log are missing, so that no queue offset comes twice.

A queue ends behind its last record in the log. When a segment file was deleted by hand or lost with its
disk, the last messages of a queue may have been in it: a message that is put, or a timer that
becomes due, would get the offset of one of them, and a consumer that had it would never see the new one.
A crash takes the end of the log, so a file that is missing between two others was lost otherwise. A
queue then ends after its last unit that names a position of no file, or where own progress says. These
units are made pre-blank, so that later opens find the end as well. When every file of the log is
missing, own progress gives the ends of queues that have no files either. Without queue files and
without own progress nothing tells how far a queue had come.

The last files are the end of the log, missing or not: their positions are used again, and so are the
offsets behind the last message that is left. A broker sets consumers back that had come further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.progress import Progress
from tailrace.store.walk.log_walk import LogFile

__all__ = ["lost_ends"]

QueueKey = tuple[str, int]


def lost_ends(
    files: Sequence[LogFile], queues: Iterable[ConsumeQueue], found: Progress | None
) -> dict[QueueKey, int]:
    """Return the least next offset of queues; ``found`` is own progress.

    Nothing, and no queue is read, for a log without a gap between its files.
    """
    starts = [file.file_from_offset for file in files]
    if files and starts[-1] - starts[0] == (len(files) - 1) * files[0].size:
        return {}
    ends: dict[QueueKey, int] = {}
    if found is not None:
        ends = {(topic, int(queue_id)): state[0] for topic, numbers in found.queues.items()
                for queue_id, state in numbers.items()}
    held = set(starts)
    for queue in queues:
        last, offset = queue.last_unit()
        if last is None:
            continue
        at = last.phy_offset
        inside = starts[0] <= at < starts[-1] and at - at % files[0].size not in held
        if last.size == PRE_BLANK_SIZE or inside:
            key = (queue.topic, queue.queue_id)
            ends[key] = max(ends.get(key, 0), offset + 1)
    return ends
