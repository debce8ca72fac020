"""Connections without a socket, over which a server of another protocol calls the processors of a broker.

Each caller has a `Channel`, like a client of the remoting protocol, so processors, client tables and limits treat
both the same. A frame that the channel writes is an answer, which ends a call, or a request of the broker, which
is passed to ``on_request``. Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast, final

from tailrace.errors import RemotingConnectError
from tailrace.formats.remoting import (
    LANGUAGE_OTHER,
    RESPONSE_FLAG,
    UNENCODED,
    RemotingCommand,
    decode_frame,
)
from tailrace.formats.requests.custom_header import CustomHeader, H
from tailrace.remoting.server import Channel, RemotingServer

__all__ = ["HeaderCommand", "InProcessConnection"]


@final
class HeaderCommand(RemotingCommand):
    """A request, or its answer, whose fields stay a header. ``ext`` is made of the header when it is used."""

    __slots__ = ("_ext", "_header")

    _ext: dict[str, str]

    def __init__(
        self, code: int, fields: dict[str, str] | CustomHeader | None, body: bytes, *, opaque: int, flag: int = 0,
        remark: str | None = None, language: int = LANGUAGE_OTHER,
    ) -> None:
        self._header: CustomHeader | None = None
        if isinstance(fields, CustomHeader):
            self._header, fields = fields, None
        super().__init__(
            code, fields, body, opaque=opaque, flag=flag, remark=remark, language=language, serialize_type=UNENCODED)

    @property
    def ext(self) -> dict[str, str]:
        """The fields as text."""
        if not self._ext and self._header is not None:
            self._ext = self._header.to_ext()
        return self._ext

    @ext.setter
    def ext(self, ext: dict[str, str]) -> None:
        self._ext = ext

    def read(self, header: type[H]) -> H:
        """Return the header itself if it is of this type, else as `RemotingCommand.read`."""
        return self._header if isinstance(self._header, header) else super().read(header)

    def answer(
        self, code: int = 0, remark: str | None = None, ext: dict[str, str] | CustomHeader | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return the response to this request, whose fields stay a header."""
        return HeaderCommand(code, ext, body, opaque=self.opaque, flag=RESPONSE_FLAG, remark=remark)


@final
class InProcessConnection:
    """Calls the processors of ``server``, which has no port, for a client at ``peer`` (host and port).

    ``on_request`` is called with requests of the broker to the client; `reply` answers them. ``user`` is the user that
    the other protocol has proven; the requests are sent by that user, but are not checked before they are served.
    ``proven`` is what `Channel.users` has of that user.
    """

    def __init__(
        self, server: RemotingServer, peer: tuple[str, int],
        on_request: Callable[[RemotingCommand], None] | None = None, *, language: int = LANGUAGE_OTHER,
        user: str = "", proven: Any = None,
    ) -> None:
        self._loop = server.loop
        self._user = user
        self._language = language
        self._on_request = on_request
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.channel = Channel(server, cast("Callable[[RemotingCommand], bytes]", _as_it_is))
        if proven is not None:
            self.channel.users[user] = proven
        self.channel.connection_made(_Transport(peer, self._written, self._lost))

    @property
    def closed(self) -> bool:
        """True if either side has closed the connection."""
        return self.channel.closed

    def call(
        self, code: int, ext: dict[str, str] | CustomHeader, body: bytes = b""
    ) -> asyncio.Future[RemotingCommand]:
        """Serve a request; return the future of its answer, which is RemotingConnectError if the connection closes."""
        self._opaque += 1
        future = self._loop.create_future()
        if self.channel.closed:
            self._fail(future)
            return future
        request = HeaderCommand(code, ext, body, opaque=self._opaque, language=self._language)
        if self._user:
            request.sender = self._user
        self._waiting[self._opaque] = future
        self.channel.last_active = self._loop.time()
        answer = self.channel.serve(request)
        if answer is not None:
            self._written(answer)
        return future

    def reply(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Answer a request of the broker."""
        answer.opaque, answer.flag = request.opaque, RESPONSE_FLAG
        if not self.channel.closed:
            self.channel.last_active = self._loop.time()
            self.channel.serve(answer)

    def close(self) -> None:
        """Close the connection; requests that wait in the broker are dropped."""
        self.channel.abort()

    def _written(self, data: bytes | RemotingCommand) -> None:
        if isinstance(data, RemotingCommand):
            self._take(data)
            return
        pos = 0
        while pos < len(data):
            command, pos = decode_frame(data, pos, len(data))
            assert command is not None, "a channel writes whole frames"
            self._take(command)

    def _take(self, command: RemotingCommand) -> None:
        if command.flag & RESPONSE_FLAG:
            future = self._waiting.pop(command.opaque, None)
            if future is not None and not future.done():
                future.set_result(command)
        elif self._on_request is not None:
            self._on_request(command)

    def _lost(self) -> None:
        self.channel.connection_lost(None)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                self._fail(future)

    def _fail(self, future: asyncio.Future[RemotingCommand]) -> None:
        future.set_exception(RemotingConnectError(self.channel.peer, "connection closed"))
        future.exception()  # retrieved, so that asyncio does not log it if the caller has ended


def _as_it_is(command: RemotingCommand) -> RemotingCommand:
    """Stand in for the encoding of an answer: it stays in this process."""
    command.body = bytes(command.body)  # a processor may have made another kind of buffer
    return command


@final
class _Transport(asyncio.Transport):
    """Passes on what a channel writes. Its reader is always ready."""

    __slots__ = ("_closing", "_lost", "_peer", "_written")

    def __init__(
        self, peer: tuple[str, int], written: Callable[[bytes | RemotingCommand], None], lost: Callable[[], None]
    ) -> None:
        super().__init__()
        self._peer: Final = peer
        self._written = written
        self._lost = lost
        self._closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview | RemotingCommand) -> None:
        if not self._closing:
            self._written(data if isinstance(data, RemotingCommand) else bytes(data))

    def pause_reading(self) -> None:
        """Do nothing: calls arrive one at a time."""

    def resume_reading(self) -> None:
        """Do nothing: calls arrive one at a time."""

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._lost()

    def abort(self) -> None:
        self.close()
