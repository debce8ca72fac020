"""Compute where queues continue if segment files of the log are missing, so that no queue offset is used twice.

Usually a queue ends after its last record in the log. If a segment file was deleted by hand or lost with its disk,
the last messages of a queue may have been in it. A new message would then get the offset of a lost message, and a
consumer that had read that offset would never see the new message.

A crash removes only the end of the log, so a file that is missing between two others was not lost in a crash. In
that case a queue ends after its last unit that names a position of a missing file, or where own progress says.
Recovery writes pre-blank units up to that end, so that later opens find it. If every file of the log is missing, own
progress gives the ends of queues that have no files either. Without queue files and without own progress the end of
a queue is not known.

If the last segment files are missing, that is the end of the log: positions and queue offsets after the last
remaining message are used again, and a broker sets consumers back to that end.
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
    """Return for queues the least offset of their next message. ``found`` is own progress.

    Return {} without reading a queue if no file is missing between two others.
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
