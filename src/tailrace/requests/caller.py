"""Who calls a service of the broker, whatever the protocol of the call."""

from __future__ import annotations

from typing import Protocol, final

from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import Channel

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


@final
class RemotingCaller:
    """The client of a remoting request."""

    __slots__ = ("channel", "request")

    def __init__(self, channel: Channel, request: RemotingCommand) -> None:
        self.channel = channel
        self.request = request

    @property
    def born_host(self) -> bytes:
        """Address of the client in the form in which messages store it."""
        return self.channel.born_host

    @property
    def version(self) -> int:
        """Version of RocketMQ's client."""
        return self.request.version
