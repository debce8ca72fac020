"""Who calls a service of the broker, whatever the protocol of the call.

A service takes a header and a caller, and returns a result. If the result comes later, it returns None after it has
made a reply of its caller, which gets the result. The edge, of remoting or of gRPC, makes the answer of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import Channel
from tailrace.remoting.server import failure_of
from tailrace.requests.reply import Answer, Failure, Reply, as_it_is

__all__ = ["Caller", "RemotingCaller"]


class Caller(Protocol):
    """The client of a call, as far as a service looks at it."""

    @property
    def born_host(self) -> bytes:
        """Address of the client in the form in which messages store it."""
        ...

    @property
    def version(self) -> int:
        """Version of RocketMQ's client, one of `tailrace.formats.remoting`."""
        ...

    @property
    def channel(self) -> Channel:
        """The connection for which access control checks what a message names; the edge may have to make it."""
        ...

    @property
    def request(self) -> RemotingCommand:
        """The request with its code and its user, for the same checks. A service reads no header or body from it."""
        ...

    def reply(self, failure: Failure = failure_of) -> Reply:
        """Return the reply that gets the result of a service later; ``failure`` as for `Reply`."""
        ...


@final
class RemotingCaller:
    """The client of a remoting request."""

    __slots__ = ("_answer_of", "channel", "request")

    def __init__(
        self, channel: Channel, request: RemotingCommand,
        answer_of: Callable[[Channel, RemotingCommand, Any], Answer] | None = None,
    ) -> None:
        """``answer_of`` makes the answer for the result of a service; a processor's result is the answer."""
        self.channel = channel
        self.request = request
        self._answer_of = answer_of

    def answer(self, result: Any) -> Answer:
        """Return the answer for a result of a service; None if the result comes later."""
        return result if result is None or self._answer_of is None else self._answer_of(
            self.channel, self.request, result)

    def reply(self, failure: Failure = failure_of) -> Reply:
        """Return the reply that gets the result of a service later."""
        return Reply(
            self.channel, self.request, failure, as_it_is if self._answer_of is None else self.answer)

    @property
    def born_host(self) -> bytes:
        """Address of the client in the form in which messages store it."""
        return self.channel.born_host

    @property
    def version(self) -> int:
        """Version of RocketMQ's client."""
        return self.request.version
