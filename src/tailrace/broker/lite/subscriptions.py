"""Subscriptions of clients to Lite topics: request 200071 (LiteSubscriptionCtlProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, final

from tailrace.broker.clients.client_manager import ClientIds
from tailrace.broker.consumers.consumer_checks import CLIENT_ID_MAX, check_allowed
from tailrace.broker.lite.registry import LiteSubscriptionRegistry, Offsets, end_of
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import is_lite_name, lite_queue
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel
from tailrace.requests.bodies import (
    json_object,
    number_in,
    object_in,
    objects_in,
    text_in,
)
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, NotPreparedError
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, in_turns

__all__ = ["LiteSubscriptionProcessor"]

ENTRIES_MAX: Final = 100
NAMES_MAX: Final = 3_000
"""Lite topics that a request may name. Each takes about 10 us of the event loop."""
NAME_SHOWN: Final = 100
LAST, MIN, MAX = 0, 1, 2
_ACTIONS: Final = ("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE")
_Times = dict[tuple[str, int], int]
"""Offsets by queue and store time, which a thread has looked up."""


@final
class LiteSubscriptionProcessor(RequestProcessor):
    """Adds, replaces and ends subscriptions. The version of an entry is not looked at, as in RocketMQ."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, changes: ConfigChanges,
        groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, client_ids: ClientIds,
        registry: LiteSubscriptionRegistry,
    ) -> None:
        self._loop, self._store, self._changes, self._groups = loop, store, changes, groups
        self._offsets, self._client_ids, self._registry = offsets, client_ids, registry

    @serves(RequestCode.LITE_SUBSCRIPTION_CTL)
    def change(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Apply the entries of a body, in their order, up to the first one that is refused: request 200071."""
        return self._changes.serve(
            RemotingCaller(channel, request), partial(self._change, channel, request, times={}))

    def _change(self, channel: Channel, request: RemotingCommand, times: _Times) -> Answer:
        entries = objects_in(json_object(request), "subscriptionSet", ENTRIES_MAX) if request.body else []
        if not entries:
            raise RefusalError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        if (named := sum(len(_names(entry)) for entry in entries)) > NAMES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"the request names {named} Lite topics, over the limit of {NAMES_MAX}; send several requests")
        for entry in entries:
            self._check_client(channel, request, entry)
        for entry in entries:  # all that need the disk first, because the entries are served again after it
            self._look_up(entry, times)
        return in_turns(
            self._loop, partial(Reply, channel, request), self._applied(channel, request, entries, times),
            request.answer)

    def _applied(
        self, channel: Channel, request: RemotingCommand, entries: list[dict[str, Any]], times: _Times
    ) -> Iterator[None]:
        """Apply one entry after the other, a Lite topic in a step. Without names it may end all those of a client."""
        for entry in entries:
            self._check_client(channel, request, entry)  # other requests may have been served since the first check
            yield from self._apply(channel, request, entry, times)
            yield

    def _check_client(self, channel: Channel, request: RemotingCommand, entry: Mapping[str, Any]) -> None:
        """Raise RefusalError if a client belongs to another user, or is a member of another group."""
        client_id, group = self._name(entry, "clientId"), self._name(entry, "group")
        self._client_ids.check(channel, request, client_id)
        mine = self._registry.of_client(client_id)
        if mine is not None and mine.group != group:
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION, f"client {client_id} is a member of group {mine.group}")

    def _apply(
        self, channel: Channel, request: RemotingCommand, entry: Mapping[str, Any], times: _Times
    ) -> Iterator[None]:
        client_id, group, topic = (self._name(entry, name) for name in ("clientId", "group", "topic"))
        queues = _queues(entry, topic)
        claim = partial(self._client_ids.claim_for, self._registry, channel, request, client_id)
        match text_in(entry, "action"):
            case "PARTIAL_ADD":
                self._check_group(group, topic)
                yield from self._registry.add(
                    channel, client_id, group, topic, queues, claim, self._starts(entry, group, times))
            case "PARTIAL_REMOVE":
                if self._registry.of_client(client_id) is not None:
                    claim()
                yield from self._registry.remove(client_id, group, queues)
            case "COMPLETE_ADD":
                self._check_group(group, topic)
                yield from self._registry.add_all(channel, client_id, group, topic, queues, claim)
            case "COMPLETE_REMOVE":
                self._registry.remove_all(client_id)
            case other:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"action is {other[:NAME_SHOWN]!r}; known are {', '.join(_ACTIONS)}")

    @staticmethod
    def _name(entry: Mapping[str, Any], name: str) -> str:
        text = text_in(entry, name)
        if not text.strip() or len(text) > CLIENT_ID_MAX:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"{name} is blank, or longer than {CLIENT_ID_MAX}")
        return text

    def _check_group(self, group: str, topic: str) -> None:
        config = self._groups.select(group)
        if config is None or not config.consume_enable:
            raise RefusalError(ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume.")
        if config.lite_bind_topic != topic:
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION, f"group {group} is bound to topic {config.lite_bind_topic!r}")
        check_allowed(self._groups, group, topic)

    # -- where to begin

    def _starts(self, entry: Mapping[str, Any], group: str, times: _Times) -> Offsets:
        """Return the function that says at which offset a group begins to read a queue."""
        option = object_in(entry, "offsetOption")
        if not option:
            return lambda _: None
        value, store = number_in(option, "value"), self._store
        match text_in(option, "type"):
            case "POLICY" if value == LAST:
                return lambda _: None
            case "POLICY" if value == MIN:
                return lambda _: 0
            case "POLICY" if value == MAX:
                return partial(end_of, store)
            case "OFFSET" if value >= 0:
                return lambda _: value
            case "TAIL_N" if value >= 0:
                return partial(self._back, group, value)
            case "TIMESTAMP":
                return lambda queue: times[queue, value]
            case kind:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER, f"offsetOption is {kind[:NAME_SHOWN]!r} with the value {value}")

    def _back(self, group: str, count: int, queue: str) -> int | None:
        """Return the offset that is ``count`` messages before that of a group; None if the group has none."""
        offset = self._offsets.query(group, queue, LMQ_QUEUE_ID)
        return max(0, offset - count) if offset >= 0 else None

    def _look_up(self, entry: Mapping[str, Any], times: _Times) -> None:
        """Have a thread find the offsets at the time that an entry names. Raises NotPreparedError."""
        option = object_in(entry, "offsetOption")
        if option.get("type") != "TIMESTAMP" or entry.get("action") != "PARTIAL_ADD":
            return
        at_ms, store = number_in(option, "value"), self._store
        missing = [queue for queue in _queues(entry, text_in(entry, "topic")) if (queue, at_ms) not in times]
        if missing:
            raise NotPreparedError("offsets at a time could not be found", lambda: times.update({
                (queue, at_ms): max(0, store.queue_of(queue, LMQ_QUEUE_ID).by_time(at_ms))
                for queue in missing}))


def _queues(entry: Mapping[str, Any], topic: str) -> list[str]:
    """Return the queues of the Lite topics that an entry names. Raises RefusalError."""
    names = _names(entry)
    if not all(isinstance(name, str) for name in names):
        raise RefusalError(ResponseCode.INVALID_PARAMETER, "liteTopicSet is not a list of texts")
    if wrong := [name for name in names if not is_lite_name(name)]:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER,
            f"{wrong[0][:NAME_SHOWN]!r} is not the name of a Lite topic: it has letters, digits, - and _")
    return [lite_queue(topic, name) for name in dict.fromkeys(names)]


def _names(entry: Mapping[str, Any]) -> list[Any]:
    names = entry.get("liteTopicSet")
    if names is not None and not isinstance(names, list):
        raise RefusalError(ResponseCode.INVALID_PARAMETER, "liteTopicSet is not a list of texts")
    return names or []
