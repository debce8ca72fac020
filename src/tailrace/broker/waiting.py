"""Limits of requests that wait: their number in all and of one connection, and their memory."""

from __future__ import annotations

from typing import Final, final

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.remoting import Channel

__all__ = ["WaitingRequests", "memory_of"]

FIELD_BYTES: Final = 150
"""Memory of a field of a request in addition to its characters: two strings and their place in a dict."""


def memory_of(request: RemotingCommand) -> int:
    """Return the bytes of memory that the body and the fields of a request take while it waits."""
    ext = request.ext
    return (
        len(request.body) + len(request.remark or "") + sum(map(len, ext)) + sum(map(len, ext.values()))
        + FIELD_BYTES * len(ext))


@final
class WaitingRequests:
    """Counts requests that wait, and refuses one that is over a limit.

    ``what`` names the requests in the refusal. The only waiting request of a connection may take more than
    ``bytes_of_channel``, so that a large request can be served.
    """

    def __init__(
        self, what: str, most: int, most_of_channel: int, bytes_max: int, bytes_of_channel: int | None = None
    ) -> None:
        self._what = what
        self._most, self._most_of_channel = most, most_of_channel
        self._bytes_max = bytes_max
        self._bytes_of_channel = bytes_max if bytes_of_channel is None else bytes_of_channel
        self._of_channel: dict[Channel, tuple[int, int]] = {}
        self.count = 0
        """Number of requests that wait."""
        self.size_bytes = 0
        """Bytes of memory that the requests take."""

    def add(self, channel: Channel, size: int) -> None:
        """Count a request of ``size`` bytes. Raises RefusalError (SYSTEM_BUSY) if that is over a limit."""
        count, size_bytes = self._of_channel.get(channel, (0, 0))
        if (
            self.count >= self._most or count >= self._most_of_channel
            or self.size_bytes + size > self._bytes_max
            or (count and size_bytes + size > self._bytes_of_channel)
        ):
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"{self.count} {self._what} with {self.size_bytes} bytes wait already, {count} of them of the "
                "same connection; try again later")
        self._change(channel, 1, size)

    def remove(self, channel: Channel, size: int) -> None:
        """Remove a request, which was added with this size, from the counts."""
        self._change(channel, -1, -size)

    def _change(self, channel: Channel, n: int, size: int) -> None:
        count, size_bytes = self._of_channel.get(channel, (0, 0))
        self.count += n
        self.size_bytes += size
        if count + n:
            self._of_channel[channel] = count + n, size_bytes + size
        else:
            del self._of_channel[channel]
