"""Filter of retry topics whose name has several users: each group gets its own messages only.

The POP retry topic ``%RETRY%group_topic`` has the same name for group ``g_a`` with topic ``x``, for group ``g`` with
topic ``a_x``, and for group ``g_a_x`` that pulls its retries. The queue is shared, and each group has its own
offset in it, so each group passes over the messages of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tailrace.broker.filters.message_filters import EVERYTHING, RETRY_TOPIC, MessageFilter
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.pop import ORIGIN_GROUP, is_retry_topic_of, retry_owner
from tailrace.node.topic_config import RETRY_GROUP_TOPIC_PREFIX
from tailrace.timer.properties import REAL_TOPIC

__all__ = ["RetryOwnerFilter", "own_messages"]

_OWNER: Final = (ORIGIN_GROUP.encode(), REAL_TOPIC.encode(), RETRY_TOPIC)
_TAGS: Final = b"TAGS"


def own_messages(topic: str, group: str, wanted: MessageFilter = EVERYTHING) -> MessageFilter:
    """Return the filter ``wanted``, and for a retry topic of ``group`` one that also excludes other groups' messages.

    A group that reads a retry topic of others, such as a tool, gets all messages.
    """
    # A topic with + has one user, and so has that of a group without _ in its name.
    if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX) or "_" not in topic or "+" in topic or (
        not is_retry_topic_of(topic, group)
    ):
        return wanted
    return MessageFilter(properties=RetryOwnerFilter(topic, group, wanted))


@final
class RetryOwnerFilter:
    """Selects the messages of one group that also match ``wanted``. A message without an owner belongs to all."""

    __slots__ = ("_group", "_topic", "_wanted", "cost", "names")

    def __init__(self, topic: str, group: str, wanted: MessageFilter) -> None:
        self._topic = topic
        self._group = group
        self._wanted = wanted
        inner = wanted.properties
        self.names = (*_OWNER, *(inner.names if inner is not None else () if wanted.codes is None else (_TAGS,)))
        self.cost = 1 if inner is None else 1 + inner.cost

    def matches(self, values: Sequence[str | None]) -> bool:
        """Return whether a message belongs to the group and matches."""
        origin_group, real_topic, retry_topic, *rest = values
        if retry_owner(self._topic, origin_group, real_topic, retry_topic) not in {None, self._group}:
            return False
        wanted = self._wanted
        if wanted.codes is not None:
            return java_string_hash(rest[0] or "") in wanted.codes
        return wanted.properties is None or wanted.properties.matches(rest)
