"""Requests that this broker sends to other brokers, which have other parts of its logical queues.

The addresses come from the name servers. The wait for an answer is limited by `forwardTimeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, final

from tailrace.auth.signature import without_proof
from tailrace.client.routes import Routes
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.logs import get_logger
from tailrace.remoting.client import RemotingClient
from tailrace.requests.reply import Reply, ReplyTasks, WaitingRequests, as_it_is

__all__ = ["Forwarder"]

_log = get_logger(__name__)

WAITING_MAX: Final = 2_000
"""Number of requests about logical queues of all connections that may wait."""
WAITING_OF_CHANNEL_MAX: Final = 1_000
WAITING_BYTES_MAX: Final = 64 << 20


class _NameServers(Protocol):
    addresses: str
    """Separated by ``;``."""


@final
class Forwarder:
    """Sends requests to other brokers, and answers requests that depend on them. Used on the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, config: BrokerConfig, name_servers: _NameServers,
        outgoing: Callable[[], RemotingClient],
    ) -> None:
        """``outgoing`` returns a new client."""
        self._loop, self._clock, self._config, self._name_servers = loop, clock, config, name_servers
        self._outgoing = outgoing
        self._client: RemotingClient | None = None
        self._routes: Routes | None = None
        self._bounds = WaitingRequests(
            "requests about logical queues", WAITING_MAX, WAITING_OF_CHANNEL_MAX, WAITING_BYTES_MAX)
        self._tasks = ReplyTasks(loop)

    @property
    def pending(self) -> int:
        """Number of requests that are not answered yet."""
        return self._bounds.count

    def defer(self, reply: Reply, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """End a reply with the result of ``work``. Raises RefusalError (SYSTEM_BUSY) if too many wait."""
        self._tasks.start(reply.park(self._bounds, held=False), work(), as_it_is)

    async def ask(self, broker_name: str, topic: str, code: int, ext: dict[str, str]) -> RemotingCommand:
        """Send a request about a topic to another broker; return its answer, with any code.

        Raises RefusalError if the broker is not known or does not answer.
        """
        try:
            client, routes = self._connected()
            address = await self._address(routes, broker_name, topic)
            return await client.invoke(
                address, code, {**without_proof(ext), "bname": broker_name}, timeout_ms=self._config.forward_timeout)
        except RemotingError as error:
            if self._routes is not None:
                self._routes.forget(topic)
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {broker_name}, which has a part of the queue, cannot be asked about topic {topic}: {error}"
            ) from error

    async def route(self, topic: str) -> dict[str, Any]:
        """Return the TopicRouteData of a topic from the first name server that answers. Raises RefusalError."""
        error: Exception | None = None
        try:
            client, _ = self._connected()
            for address in self._name_servers.addresses.split(";"):
                try:
                    answer = await client.invoke(
                        address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
                except RemotingError as failed:
                    error = failed
                    continue
                if answer.code != ResponseCode.SUCCESS:
                    raise RefusalError(answer.code, answer.remark or "")
                return dict(fastjson.loads(answer.body))
        except RemotingError as failed:
            error = failed
        raise RefusalError(ResponseCode.SYSTEM_ERROR, f"no name server has said where topic {topic} is: {error}")

    def _connected(self) -> tuple[RemotingClient, Routes]:
        """Return the client and the routes for requests. Raises RemotingError without a name server."""
        name_servers = self._name_servers.addresses
        if not name_servers:
            raise RemotingError("this broker knows no name server, set namesrvAddr")
        if self._client is None or self._routes is None:
            self._client = self._outgoing()
            self._routes = Routes(self._client, self._clock, name_servers, "", physical=True)
        return self._client, self._routes

    async def _address(self, routes: Routes, broker_name: str, topic: str) -> str:
        for _ in range(2):
            address = (await routes.of(topic)).addresses.get(broker_name)
            if address is not None:
                return address
            routes.forget(topic)  # the broker may have registered after the route was fetched
        raise RemotingError("it is not in the route of the topic")

    async def stop(self) -> None:
        """End the requests that are under way and close the connections."""
        await self._tasks.stop()
        if self._client is not None:
            await self._client.close()
