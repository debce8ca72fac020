"""Filter of retry topics whose name has several users: each group gets its own messages only.

The POP retry topic ``%RETRY%group_topic`` has the same name for group ``g_a`` with topic ``x``, for group ``g`` with
topic ``a_x``, and for group ``g_a_x`` that pulls its retries. The queue is shared, and each group has its own
offset in it, so each group passes over the messages of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tailrace.auth.check import AccessControl
from tailrace.filters.message_filters import EVERYTHING, RETRY_TOPIC, MessageFilter
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.names import ORIGIN_GROUP, REAL_TOPIC, RETRY_GROUP_TOPIC_PREFIX, TAGS
from tailrace.formats.pop import is_retry_topic_of, retry_owner
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.requests.caller import Caller

__all__ = ["RetryOwnerFilter", "own_messages", "reader_of", "refuse_shared"]

_OWNER: Final = (ORIGIN_GROUP.encode(), REAL_TOPIC.encode(), RETRY_TOPIC)
_TAGS: Final = TAGS.encode()


def own_messages(topic: str, group: str, wanted: MessageFilter = EVERYTHING) -> MessageFilter:
    """Return the filter ``wanted``, and for a retry topic of ``group`` one that also excludes other groups' messages.

    A group that reads a retry topic of others, such as a tool, gets all messages.
    """
    if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX) or not _may_be_shared(topic) or (
        not is_retry_topic_of(topic, group)
    ):
        return wanted
    return MessageFilter(properties=RetryOwnerFilter(topic, group, wanted))


def _may_be_shared(topic: str) -> bool:
    """Return whether a retry topic may have several users: one with + has one, and so has one without _."""
    return "_" in topic and "+" not in topic


def reader_of(control: AccessControl | None, request: RemotingCommand, topic: str, group: str) -> str:
    """Return the group whose messages a request may read in a retry topic.

    It is the request's own group, and for a super user or without users any group. For other users it is the group
    that pulls the topic, for which access control has checked the user, and not one of the others with this name.
    """
    if control is None or is_retry_topic_of(topic, group) or control.needs_no_permission(request):
        return group
    return topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)


def refuse_shared(control: AccessControl | None, caller: Caller, topic: str, group: str) -> None:
    """Raise RefusalError if a user pops a retry topic under another group, and the topic may have several users."""
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and _may_be_shared(topic) and control is not None and (
        reader_of(control, caller.request, topic, group) != group
    ):
        raise control.refusal(
            caller.channel.peer_ip, caller.request.code, "permission", sender_of(caller.request),
            f"Group:{group} has no permission to pop the retries of other groups")


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
