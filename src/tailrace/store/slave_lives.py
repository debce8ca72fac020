"""Queues of a slave whose messages its master has deleted: they end, or begin, as on the master."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace import events
from tailrace.logs import get_logger
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore, NoteEnded
from tailrace.store.lives import Ended, end_of_life, has_ended

__all__ = ["begin_queue_again", "begin_queues", "end_lives"]

_log = get_logger(__name__)


def end_lives(store: DefaultMessageStore, ended: Mapping[str, Ended], note: NoteEnded) -> set[str]:
    """End lives of topics as the master of a slave has ended them; return the topics that were new.

    A life is ended when the log has everything before its position. Queues that have only messages of an ended life
    are removed, in others these are hidden. ``note`` makes the end durable; raises what it raises, OSError or
    FatalStorageError, and has ended no life if ``note`` or a read before it has failed.
    """
    with store.flush_consume_queue.paused(), store.reput.paused():
        end, lives = store.commit_log.max_offset, store.lives
        new = {topic: one for topic, one in ended.items() if lives.deleted_up_to(topic) < one.position <= end}
        if not new:
            return set()
        gone, hidden = set(), list[tuple[ConsumeQueue, int]]()
        for key, queue in list(store.queues.table.items()):  # before the note: what is noted is not done again
            if (one := new.get(key[0])) is None:
                continue
            if has_ended(queue, one, key[1]):
                gone.add(key)
            else:
                hidden.append((queue, end_of_life(queue, one)))
        store.sync_log()  # the log before the position must never be cut
        store.progress.forget()
        store.flush_consume_queue.forget()
        note(new)
        lives.end(new)
        for queue, low in hidden:
            queue.logical_min_offset = low
        store.compaction.delete(gone)
        store.queues.delete(gone)
    return set(new)


def begin_queues(
    store: DefaultMessageStore, ends: Mapping[str, Mapping[int, int]], note: Callable[[Mapping[str, Ended]], None]
) -> None:
    """Have the first message of queues get the offset at which they end on the master, by topic and queue id.

    All messages before it have left the log of the master, so none of them comes any more. A queue that has messages
    here stays as it is. ``note`` makes it durable; raises what it raises, and then nothing is changed.
    """
    with store.reput.paused():
        lives, made = store.lives, dict[str, Ended]()
        for topic, queues in ends.items():
            begins = {
                queue_id: end for queue_id, end in queues.items()
                if (topic, queue_id) not in store.queues.table and end > lives.begin(topic, queue_id)}
            if begins:
                made[topic] = Ended(lives.deleted_up_to(topic), {**lives.begins(topic), **begins})
        if made:
            note(made)
            lives.end(made)


def begin_queue_again(store: DefaultMessageStore, topic: str, queue_id: int, phy_offset: int) -> None:
    """Remove a queue of a slave whose records begin again at offset 0 at a position of the log.

    A master of RocketMQ has deleted the topic and created it again. A recovery finds the same by itself.
    """
    key = topic, queue_id
    with store.flush_consume_queue.paused(), store.reput.paused():
        store.progress.forget()
        store.flush_consume_queue.forget()
        store.reput.begin_again(topic, queue_id, phy_offset)
        store.compaction.delete({key})
        store.queues.delete({key})
    events.QUEUE_STARTS_AGAIN.log(_log, topic=topic, queue_id=queue_id, queue_offset=0, phy_offset=phy_offset)
