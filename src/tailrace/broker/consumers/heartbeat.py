"""Heartbeats (request 34): types and limits of their members, checked before anything is registered."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.errors import MessageIllegalError
from tailrace.formats.remoting import RemotingCommand
from tailrace.requests.bodies import (
    json_object,
    number_in,
    objects_in,
    text_in,
)

__all__ = ["CLIENT_ID_MAX", "EXPRESSION_MAX", "NAME_MAX", "Heartbeat", "read_heartbeat"]

GROUPS_MAX: Final = 1_000
"""Number of consumer groups in a heartbeat, and of producer groups."""
TOPICS_MAX: Final = 1_000
"""Number of subscriptions of a group."""
NAME_MAX: Final = 255
CLIENT_ID_MAX: Final = 1_024
EXPRESSION_MAX: Final = 8 * 1024
"""Longest expression (tags or SQL92), in characters."""
EXPRESSIONS_MAX: Final = 16 * 1024
"""Longest sum of all expressions of a group, in characters."""
_LISTS: Final = (("tagsSet", str, "text"), ("codeSet", int, "a whole number"))


class Heartbeat(NamedTuple):
    """A heartbeat whose members have the right types. ``consumers`` are ConsumerData objects."""

    client_id: str
    producers: list[str]
    consumers: list[dict[str, Any]]
    fingerprint: int
    without_sub: bool


def read_heartbeat(request: RemotingCommand) -> Heartbeat:
    """Return the heartbeat in a body. Raises MessageIllegalError that names the wrong member."""
    data = json_object(request)
    consumers = objects_in(data, "consumerDataSet", GROUPS_MAX)
    for consumer in consumers:
        _name(consumer, "groupName", NAME_MAX)
        _check_subscriptions(consumer)
    return Heartbeat(
        _name(data, "clientID", CLIENT_ID_MAX),
        [_name(p, "groupName", NAME_MAX) for p in objects_in(data, "producerDataSet", GROUPS_MAX)],
        consumers, number_in(data, "heartbeatFingerprint"), bool(data.get("withoutSub", False)))


def _check_subscriptions(consumer: dict[str, Any]) -> None:
    size = 0
    for subscription in objects_in(consumer, "subscriptionDataSet", TOPICS_MAX):
        _name(subscription, "topic", NAME_MAX)
        number_in(subscription, "subVersion")
        if subscription.get("subString") is not None:
            size += len(_name(subscription, "subString", EXPRESSION_MAX))
        if subscription.get("expressionType") is not None:
            _name(subscription, "expressionType", NAME_MAX)
        for name, kind, words in _LISTS:
            found = subscription.get(name)
            if found is not None and (
                not isinstance(found, list) or any(type(member) is not kind for member in found)
            ):
                raise MessageIllegalError("body", f"{name} is not a list of which each is {words}")
    if size > EXPRESSIONS_MAX:
        raise MessageIllegalError(
            "body", f"the subscriptions of group {consumer['groupName']} have {size} characters, over "
            f"the limit of {EXPRESSIONS_MAX}")


def _name(value: dict[str, Any], name: str, most: int) -> str:
    text = text_in(value, name)
    if len(text) > most:
        raise MessageIllegalError(
            "body", f"{name} has {len(text)} characters, over the limit of {most}")
    return text
