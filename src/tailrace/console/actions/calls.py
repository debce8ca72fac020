"""Requests of a user from the console, which the broker checks and records as those of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeVar, final

from tailrace.auth.accesses import Access
from tailrace.auth.check import AccessControl
from tailrace.auth.model import User
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting import Channel, InProcessConnection, RemotingServer
from tailrace.requests.executors import Executors

__all__ = ["ANSWER_S", "ActingBroker", "Calls"]

ANSWER_S: Final = 15.0
"""Seconds that a request may take."""
_Result = TypeVar("_Result")
OK: Final = (ResponseCode.SUCCESS,)


class ActingBroker(Protocol):
    """The parts of a broker that actions look at before they send a request."""

    clock: Clock
    entropy: Entropy
    store: MessageStore
    config: BrokerConfig
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    clients: ConnectedClients
    executors: Executors


@final
class Calls:
    """Sends the requests of a user whose password was proven a moment ago. Used on the event loop."""

    def __init__(
        self, broker: ActingBroker, control: AccessControl, server: RemotingServer, user: User, peer: tuple[str, int]
    ) -> None:
        self.broker = broker
        self.user = user
        self._control = control
        self._connection = InProcessConnection(server, peer, user=user.name, proven=user)

    def close(self) -> None:
        """End the connection; what still waits is dropped."""
        self._connection.close()

    @property
    def address(self) -> str:
        """Address of the browser, ``ip:port``."""
        return self._connection.channel.peer

    @property
    def channel(self) -> Channel:
        """The connection as processors see it."""
        return self._connection.channel

    @property
    def has_left(self) -> bool:
        """Whether the user was deleted or disabled, or its password changed."""
        return self._control.has_left(self.user)

    def may(self, *accesses: Access) -> bool:
        """Return whether the user may do all of this now. Nothing is counted as denied."""
        return all(self._control.may(self.user.name, self.channel.peer_ip, access) for access in accesses)

    def check(self, code: int, header: CustomHeader | None = None) -> RemotingCommand:
        """Return a request that is not sent. Raises RefusalError if the broker would not serve it for this user."""
        request = RemotingCommand(code, {} if header is None else header.to_ext())
        request.sender = self.user.name
        if (refusal := self._control.refused(self.channel, request)) is not None:
            raise refusal
        return request

    async def ask(
        self, code: int, header: CustomHeader | None = None, body: bytes = b"", ok: Collection[int] = OK
    ) -> RemotingCommand:
        """Return the answer to a request. Raises RefusalError for an answer with another code than those in ``ok``.

        Raises TimeoutError after `ANSWER_S`; whether the request was served is unknown then.
        """
        answer = await asyncio.wait_for(self._connection.call(code, header or {}, body), ANSWER_S)
        if answer.code not in ok:
            raise RefusalError(answer.code, answer.remark or f"the broker answers with code {answer.code}")
        return answer

    async def in_thread(self, read: Callable[..., _Result], *arguments: object) -> _Result:
        """Return what a function reads from the store."""
        return await self.broker.executors.background.run(read, *arguments)
