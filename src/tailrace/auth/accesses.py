"""What a request does to which topics, groups and clusters (DefaultAuthorizationContextBuilder).

The table of requests says which fields name resources. A retry topic belongs to its group: it stands for the
group, and to publish to it is to subscribe. Only the retry topics of the request's own group need nothing besides the
group. The queue of a Lite topic belongs to the parent topic. A request that names no resource is about the whole
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from tailrace.errors import ConfigError
from tailrace.formats import fastjson
from tailrace.formats.names import LMQ_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.pop import is_retry_topic_of, normal_topic
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.table import REQUESTS, Action, Request, Role

__all__ = ["RESOURCE_MAX", "Access", "Accesses", "name_too_long"]

TOPIC: Final = "Topic"
GROUP: Final = "Group"
CLUSTER: Final = "Cluster"
SUB: Final = Action.SUB
VALUES_MAX: Final = 50_000
RESOURCE_MAX: Final = 255
"""Characters of the name of a topic, group or cluster; no file of a queue has a longer name."""
_SIGNS: Final = "~^=?;,"
_LITE: Final = f"{LMQ_PREFIX}$"
"""Beginning of the queue of a Lite topic, ``%LMQ%$PARENT$NAME``."""


class Access(NamedTuple):
    """An action on a resource; one of ``actions`` is enough."""

    kind: str
    name: str
    actions: Action

    @property
    def key(self) -> str:
        """The resource as it is written."""
        return f"{self.kind}:{self.name}"


def name_too_long(access: Access) -> str:
    """Return the remark for a name over `RESOURCE_MAX`, which is not repeated."""
    return f"the name of a {access.kind.lower()} has {len(access.name)} characters, over the limit of {RESOURCE_MAX}."


class _Field(NamedTuple):
    kind: str
    name: str
    signs: str


def group_access(name: str, actions: Action) -> Access:
    """Return the access to a group, which may be named by its retry topic."""
    if name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        name = name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    return Access(GROUP, name, actions)


def topic_access(name: str, actions: Action) -> Access:
    """Return the access to a topic, to the group of a retry topic, or to the parent topic of a Lite topic's queue."""
    if not name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        if name.startswith(_LITE):
            parent, found, _ = name.removeprefix(_LITE).partition("$")
            name = parent if found else name
        return Access(TOPIC, name, actions)
    if actions & Action.PUB:
        actions = actions & ~Action.PUB | SUB
    return group_access(name, actions)


@final
class Accesses:
    """Reads requests to the servers of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._reply_topic = f"{cluster}_REPLY_TOPIC"
        """The topic of replies. Whoever may send a reply needs no permission for it, and may ask for its route."""
        self._fields: dict[int, tuple[Request, tuple[_Field, ...]]] = {
            int(code): (request, tuple(_fields(request.named))) for code, request in REQUESTS.items()
            if request.role is not Role.CLIENT}
        self.names: dict[int, tuple[str, ...]] = {
            code: tuple(field.name for field in fields) for code, (request, fields) in self._fields.items()
            if request.named != "body"}
        """The fields on which the result of `of` depends, by code; a code whose body is read is missing."""

    def of(self, request: RemotingCommand) -> list[Access]:
        """Return what a request needs; empty for one that needs no permission.

        A request of an unknown code is about the whole cluster. Raises ConfigError for a body that cannot be read.
        """
        known = self._fields.get(request.code)
        if known is None:
            return [Access(CLUSTER, self._cluster, Action.UPDATE)]
        row, fields = known
        if row.named == "body":
            read, optional = _BODIES[row.code]
            try:
                found = list(read(request, row.action))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(f"the body of request {request.code} cannot be read: {error!r}") from None
        else:
            found, optional = [], False
            ext = request.ext
            for kind, name, signs in fields:
                value = ext.get(name)
                if "?" in signs:
                    optional = True
                    if value is not None and not value.strip():
                        continue
                if value is not None:
                    found += self._named(kind, value, signs, row.action, ext.get("consumerGroup") or "")
        if not found and not optional:
            return [Access(CLUSTER, self._cluster, row.action)]
        if row.code in _REPLIES and [(one.kind, one.name) for one in found] == [(TOPIC, self._reply_topic)]:
            return []
        return found

    def _named(self, kind: str, value: str, signs: str, actions: Action, group: str) -> Iterator[Access]:
        separator = ";" if ";" in signs else "," if "," in signs else ""
        for name in filter(None, value.split(separator)) if separator else (value,):
            if kind == TOPIC:
                if "=" in signs:
                    yield Access(TOPIC, name, actions)
                elif "~" not in signs or not is_retry_topic_of(name, group):
                    yield topic_access(normal_topic(name, group) if "^" in signs else name, actions)
            else:
                yield group_access(name, actions) if kind == GROUP else Access(kind, name, actions)


def _fields(named: str) -> Iterator[_Field]:
    for text in () if named == "body" else named.split():
        kind, _, field = text.partition(":")
        name = field.rstrip(_SIGNS)
        yield _Field(kind, name, field[len(name):])


# --- bodies


def _body(request: RemotingCommand) -> Any:
    return fastjson.loads_bounded(request.body, VALUES_MAX, fastjson.BOUNDED_MAX)


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise TypeError(f"{name} is not a list")
    return found


def _name(value: Mapping[str, Any], name: str) -> str:
    return _text(value.get(name), name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is not text")
    return value


def _heartbeat(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for consumer in _list(_body(request), "consumerDataSet"):
        yield group_access(group := _name(consumer, "groupName"), actions)
        for subscription in _list(consumer, "subscriptionDataSet"):
            if not is_retry_topic_of(topic := _name(subscription, "topic"), group):
                yield topic_access(topic, actions)


def _locks(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    body = _body(request)
    yield group_access(group := _name(body, "consumerGroup"), actions)
    for queue in _list(body, "mqSet"):
        if not is_retry_topic_of(topic := _name(queue, "topic"), group):
            yield topic_access(topic, actions)


def _topics(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for config in _list(_body(request), "topicConfigList"):
        yield topic_access(_name(config, "topicName"), actions)


def _group(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    yield group_access(_name(_body(request), "groupName"), actions)


def _groups(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for config in _list(_body(request), "groupConfigList"):
        yield group_access(_name(config, "groupName"), actions)


def _topic_names(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for name in _list(_body(request), "topicList"):
        yield topic_access(_text(name, "topicList"), actions)


def _group_names(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for name in _list(_body(request), "groupNameList"):
        yield group_access(_text(name, "groupNameList"), actions)


def _topic_and_group(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    body = _body(request)
    yield topic_access(_name(body, "topic"), actions)
    yield group_access(_name(body, "consumerGroup"), actions)


def _subscription(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    body = _body(request)
    yield group_access(_name(body, "group"), actions)
    if (data := body.get("subscriptionData")) is not None:
        yield topic_access(_name(data, "topic"), actions)


def _acks(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for ack in _list(_body(request), "acks"):
        yield group_access(_name(ack, "c"), actions)
        yield topic_access(_name(ack, "t"), actions)


def _lite_subscriptions(request: RemotingCommand, actions: Action) -> Iterator[Access]:
    for entry in _list(_body(request), "subscriptionSet"):
        yield group_access(_name(entry, "group"), actions)
        yield topic_access(_name(entry, "topic"), actions)


_REPLIES: Final = frozenset({
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.GET_ROUTEINFO_BY_TOPIC})
"""Requests that are free for the topic of replies; the broker checks a reply again, see `AskedQuestions`."""
_Read = Callable[[RemotingCommand, Action], Iterator[Access]]
_BODIES: Final[Mapping[RequestCode, tuple[_Read, bool]]] = {
    RequestCode.HEART_BEAT: (_heartbeat, True),
    RequestCode.LOCK_BATCH_MQ: (_locks, False),
    RequestCode.UNLOCK_BATCH_MQ: (_locks, False),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (_topics, False),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (_group, False),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (_groups, False),
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: (_topic_names, False),
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: (_group_names, False),
    RequestCode.CHECK_CLIENT_CONFIG: (_subscription, False),
    RequestCode.QUERY_ASSIGNMENT: (_topic_and_group, False),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (_topic_and_group, False),
    RequestCode.BATCH_ACK_MESSAGE: (_acks, False),
    RequestCode.LITE_SUBSCRIPTION_CTL: (_lite_subscriptions, False),
}
"""How the bodies of requests are read, and whether one that names nothing needs no permission."""
