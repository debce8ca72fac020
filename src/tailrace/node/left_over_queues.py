"""Queues that hold messages and are not read any more, because their topic has fewer queues than before.

As in RocketMQ, readQueueNums decides which queues consumers read. The messages of other queues stay until they expire,
and are read again once the topic has as many queues to read as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace import events
from tailrace.logs import get_logger

if TYPE_CHECKING:
    from tailrace.node.consumer_offset import ConsumerOffsetManager

__all__ = ["LeftOverQueue", "left_over_note", "log_left_over", "not_consumed"]

_log = get_logger(__name__)

GROUPS_NAMED_MAX: Final = 5
"""Number of groups that a note names."""


class LeftOverQueue(NamedTuple):
    """A queue with the offset of its first message and the one after its last message."""

    queue_id: int
    low: int
    high: int


def not_consumed(
    offsets: ConsumerOffsetManager, left: Mapping[str, list[LeftOverQueue]]
) -> dict[str, dict[str, int]]:
    """Return for each topic of ``left`` how many messages of its queues each group that consumes it has not consumed.

    Looks at all offsets once.
    """
    waiting: dict[str, dict[str, int]] = {topic: {} for topic in left}
    for topic, group in offsets.pairs():
        if topic in left:
            waiting[topic][group] = sum(
                max(0, one.high - max(one.low, offsets.query(group, topic, one.queue_id))) for one in left[topic])
    return waiting


def left_over_note(topic: str, found: Iterable[LeftOverQueue], waiting: Mapping[str, int]) -> str:
    """Return a sentence for the person who gave a topic fewer queues; empty without such queues.

    ``waiting`` has for each group the number of messages of these queues that it has not consumed.
    """
    found = sorted(found)
    if not found:
        return ""
    first, last = found[0].queue_id, found[-1].queue_id
    groups = sorted(((count, group) for group, count in waiting.items() if count), key=lambda one: (-one[0], one[1]))
    named = ", ".join(f"group {group} has not consumed {count}" for count, group in groups[:GROUPS_NAMED_MAX])
    if len(groups) > GROUPS_NAMED_MAX:
        named += f", and {len(groups) - GROUPS_NAMED_MAX} more groups some"
    queues = f"queue {first} is" if first == last else f"queues {first} to {last} are"
    messages = sum(one.high - one.low for one in found)
    return (
        f"{topic}: {queues} no longer read, with {messages} messages{f', of which {named}' if named else ''}; "
        f"give the topic {last + 1} queues to read (readQueueNums) until they are consumed")


def log_left_over(
    topic: str, read_queues: int, found: list[LeftOverQueue], waiting: Mapping[str, int]
) -> str:
    """Log that messages are not read any more, if there are some; return `left_over_note`."""
    if note := left_over_note(topic, found, waiting):
        events.MESSAGES_ARE_IN_QUEUES_THAT_ARE_NOT_READ.log(
            _log, topic=topic, read_queues=read_queues, queues=len(found),
            messages=sum(one.high - one.low for one in found), not_consumed=max(waiting.values(), default=0))
    return note
