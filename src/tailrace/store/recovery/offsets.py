"""Pass 8 of recovery: which queues stay, their least offsets, and the offsets that the next messages get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tailrace import events
from tailrace.logs import get_logger
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.lives import EndedLives, end_of_life, has_ended, last_message
from tailrace.store.progress import ProgressFile

__all__ = ["QueueOffsets"]

_log = get_logger(__name__)


@final
@dataclass(frozen=True)
class QueueOffsets:
    """The queues of one directory, after the walk has written their units."""

    _commit_log: CommitLog
    _queues: ConsumeQueueStore
    _progress: ProgressFile
    _lives: EndedLives

    def end_lives(self) -> None:
        """Remove queues that have only messages of deleted topics; hide such messages in other queues.

        A crash leaves such queues during a deletion, and so does a program that does not know of the deletion.
        """
        self._lives.lower(self._commit_log.max_offset)
        gone = set()
        for key, queue in self._queues.table.items():
            ended = self._lives.table.get(key[0])
            if ended is None:
                continue
            if has_ended(queue, ended, key[1]):
                gone.add(key)
            else:
                queue.logical_min_offset = end_of_life(queue, ended)
        if gone:
            events.QUEUES_OF_DELETED_TOPICS_ARE_REMOVED.log(_log, topics=sorted({topic for topic, _ in gone}))
            self._remove(gone)

    def drop_empty_queues(self) -> None:
        """Remove the queues of a slave that have files and no message.

        Where a queue of a slave begins and ends, the records of its master say. Dispatch takes records below the end of
        a queue for ones that have their unit. So the end of a queue whose messages are lost would hide them when the
        master sends them again.
        """
        empty = {
            key for key, queue in self._queues.table.items() if queue.files.files and last_message(queue) is None}
        for topic, queue_id in sorted(empty):
            events.QUEUE_FILES_ARE_REMOVED.log(
                _log, topic=topic, queue_id=queue_id, cause="the log of this slave has no message of the queue")
        if empty:
            self._remove(empty)

    def _remove(self, keys: set[tuple[str, int]]) -> None:
        self._progress.forget()  # it names them
        self._queues.delete(keys)

    def compute(self) -> None:
        """Set the least offset of each queue, and the offset of the next message of each."""
        low = self._commit_log.min_offset
        for key, queue in self._queues.table.items():
            queue.correct_min_offset(low if low >= 0 else 1 << 62)
            self._commit_log.queue_offsets[key] = queue.max_offset
        for topic, ended in self._lives.table.items():
            for queue_id, begin in ended.begins.items():
                self._commit_log.queue_offsets.setdefault((topic, queue_id), begin)
