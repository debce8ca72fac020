"""Locks of queues for orderly consumption: requests 41 and 42."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, final

from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.consumers.consumer_checks import CLIENT_ID_MAX
from tailrace.errors import MessageIllegalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.node.subscription_group import validate_group
from tailrace.remoting import Channel
from tailrace.requests.bodies import json_object, number_in, objects_in, text_in
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, in_turns

__all__ = ["QueueLocksProcessor"]

INT32: Final = 1 << 31
LOCKED_MAX: Final = 5_000
"""Number of queues that one request may lock or unlock."""


@final
class QueueLocksProcessor(RequestProcessor):
    """Locks and unlocks queues for members of groups."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clients: ConnectedClients) -> None:
        self._loop, self._clients = loop, clients

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Lock queues for orderly consumption: request 41. The answer lists the locked queues."""
        def lock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            taken = self._clients.locks.try_lock(group, client_id, queues, channel)
            return request.answer(body=fastjson.dumps({"lockOKMQSet": taken}))

        return self._with_queues(channel, request, lock)

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock_batch(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Unlock queues: request 42."""
        def unlock(group: str, client_id: str, queues: list[dict[str, Any]]) -> RemotingCommand:
            self._clients.locks.unlock(group, client_id, queues)
            return request.answer()

        return self._with_queues(channel, request, unlock)

    def _with_queues(
        self, channel: Channel, request: RemotingCommand,
        then: Callable[[str, str, list[dict[str, Any]]], RemotingCommand],
    ) -> Answer:
        """Return the answer of ``then`` for group, client id and queues, which are checked before in turns."""
        data = json_object(request)
        group, client_id = text_in(data, "consumerGroup"), text_in(data, "clientId")
        if reason := validate_group(group):
            raise MessageIllegalError("body", f"consumerGroup: {reason}")
        queues = objects_in(data, "mqSet", LOCKED_MAX)

        def answer() -> RemotingCommand:
            self._clients.ids.check(channel, request, client_id)
            return then(group, client_id, queues)

        return in_turns(
            self._loop, partial(Reply, channel, request), _check_queues(client_id, queues), answer)


def _check_queues(client_id: str, queues: list[dict[str, Any]]) -> Iterator[None]:
    """Check one queue of a request to lock or unlock after the other. Raises MessageIllegalError."""
    for queue in queues:
        names = client_id, text_in(queue, "topic"), text_in(queue, "brokerName")
        if max(map(len, names)) > CLIENT_ID_MAX or not 0 <= number_in(queue, "queueId", -1) < INT32:
            raise MessageIllegalError("body", "mqSet has a queue with a name or number out of range")
        yield
