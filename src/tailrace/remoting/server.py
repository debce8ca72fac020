"""A server of remoting frames on asyncio.

Frames are parsed straight from the bytes that one wake-up of a connection delivers, and everything
that can be answered at once is answered with one write. A processor is a plain function of
``(channel, request)``. It returns the response, the response as encoded bytes, or None when the
answer comes later through `Channel.answer`; one-way requests are never answered, whatever it
returns. Everything here runs in the thread of the event loop.

Bytes that are no frame close their connection, and only that one, with one line in the log. A
client that does not read its answers is not read from either, until it does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast, final

from tailrace.errors import (
    RemotingConnectError,
    RemotingFrameError,
    RemotingTimeoutError,
    StoreError,
)
from tailrace.events import get_logger
from tailrace.formats.remoting import (
    INT32,
    ONEWAY_FLAG,
    PREFIX,
    RESPONSE_FLAG,
    VERSION_V5_3_1,
    Header,
    RemotingCommand,
    ResponseCode,
    check_length,
    decode_binary_header,
    decode_json_header,
    encode,
)

__all__ = ["Channel", "Processor", "RemotingServer"]

_log = get_logger(__name__)

BACKLOG: Final = 1024
HEADER_MAX: Final = 1 << 20
"""Bytes of a request's header, which is read on the event loop."""
IDLE_S: Final = 120.0
IDLE_CHECK_S: Final = 5.0
DRAIN_S: Final = 0.2


class DecodeHeader(Protocol):
    """Reads a ROCKETMQ header; raises ValueError or RemotingFrameError."""

    def __call__(self, buf: bytes, pos: int, until: int, /) -> Header:
        """The fields of the header at ``buf[pos:until]``."""
        ...


@final
class Channel(asyncio.Protocol):
    """A connection of a client."""

    __slots__ = (
        "__weakref__",
        "_need",
        "_opaque",
        "_reading",
        "_server",
        "_tail",
        "_transport",
        "_waiting",
        "born_host",
        "closed",
        "last_active",
        "paused",
        "peer",
        "peer_ip",
    )

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._tail = bytearray()
        self._need = 0
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.last_active = 0.0
        self.closed = False
        self.paused = False
        """Whether the client lets answers pile up."""
        self.peer = ""
        """Address of the client, ``ip:port``."""
        self.peer_ip = ""
        self.born_host = b""
        """The same as it is stored in messages."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        address = ipaddress.ip_address(str(host).partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        self.peer_ip = str(address)
        self.peer = f"{self.peer_ip}:{port}"
        self.born_host = address.packed + int(port).to_bytes(4, "big")
        self.last_active = self._server.loop.time()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; whoever waits for an answer of the client gets an error."""
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RemotingConnectError(self.peer, "connection closed"))
        self._server.lost(self)

    def pause_writing(self) -> None:
        """Stop reading requests of a client that does not read its answers."""
        self.paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self.paused = False
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answer every complete frame with one write."""
        self.last_active = self._server.loop.time()
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                return
            data = bytes(self._tail)
            self._tail = bytearray()
        out: list[bytes] = []
        problem: Exception | None = None
        try:
            rest = self._serve_frames(data, out)
        except (RemotingFrameError, ValueError) as error:
            rest, problem = len(data), error
        if out:
            self.write(b"".join(out))
        if problem is not None:
            _log.warning("connection closed for bad frame peer=%s reason=%s", self.peer, problem)
            self.close()
        elif rest < len(data) and not self.closed:
            self._keep(data, rest)

    def _keep(self, data: bytes, rest: int) -> None:
        self._tail += memoryview(data)[rest:]
        if len(self._tail) >= 4:
            self._need = 4 + cast("int", INT32.unpack_from(self._tail, 0)[0])
        else:
            self._need = 8

    def _serve_frames(self, data: bytes, out: list[bytes]) -> int:
        """Serve the frames of ``data``; where the first incomplete one begins."""
        pos, until = 0, len(data)
        serve = self._serve
        decode_binary = self._server.decode_header
        while until - pos >= 8 and not self.closed:
            length, word = PREFIX.unpack_from(data, pos)
            if not 4 <= length <= 0xFFFFFC:
                check_length(length)
            start = pos + 8
            header_end = start + (word & 0xFFFFFF)
            end = pos + 4 + length
            if header_end > end:
                raise RemotingFrameError(
                    f"header of {word & 0xFFFFFF} bytes in a frame of {length}"
                )
            if word & 0xFFFFFF > HEADER_MAX:
                raise RemotingFrameError(
                    f"header of {word & 0xFFFFFF} bytes is over the limit of {HEADER_MAX}")
            if end > until:
                return pos
            kind = word >> 24
            if kind == 1:
                header = decode_binary(data, start, header_end)
            elif kind == 0:
                header = decode_json_header(data[start:header_end])
            else:
                raise RemotingFrameError(f"unknown header encoding {kind}")
            code, language, version, opaque, flag, remark, ext = header
            answer = serve(
                RemotingCommand(
                    code, ext, data[header_end:end], opaque=opaque, flag=flag, remark=remark,
                    language=language, version=version, serialize_type=kind,
                )
            )
            if answer is not None:
                out.append(answer)
            pos = end
        if 4 <= until - pos < 8:
            check_length(INT32.unpack_from(data, pos)[0])
        return pos

    def _serve(self, request: RemotingCommand) -> bytes | None:
        if request.flag & RESPONSE_FLAG:
            future = self._waiting.pop(request.opaque, None)
            if future is not None and not future.done():
                future.set_result(request)
            return None
        server = self._server
        if server.draining:
            return self._refuse(request)
        processor = server.processors.get(request.code, server.default_processor)
        answer: RemotingCommand | bytes | None
        try:
            if processor is None:
                answer = request.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {request.code} not supported",
                )
            else:
                answer = processor(self, request)
            if answer is None or request.flag & ONEWAY_FLAG:
                return None
            return answer if isinstance(answer, bytes) else encode(answer)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
            return self._failed(request, error)

    def _failed(self, request: RemotingCommand, error: Exception) -> bytes | None:
        _log.warning(
            "request failed code=%d peer=%s reason=%r", request.code, self.peer, error,
            exc_info=not isinstance(error, KeyError | ValueError | StoreError),
        )
        if request.flag & ONEWAY_FLAG:
            return None
        text = f"missing field {error}" if isinstance(error, KeyError) else str(error)
        return encode(
            request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {text}")
        )

    def _refuse(self, request: RemotingCommand) -> bytes | None:
        """What a request gets while the server shuts down."""
        if request.version <= VERSION_V5_3_1:
            self._server.loop.call_soon(self.close)
            return None
        if request.flag & ONEWAY_FLAG:
            return None
        return encode(request.answer(ResponseCode.GO_AWAY, "please go away"))

    # --- what processors call

    def write(self, data: bytes) -> None:
        """Send encoded frames; nothing happens on a closed connection."""
        if self._transport is not None and not self.closed:
            self.last_active = self._server.loop.time()
            self._transport.write(data)

    def answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send a response that took a while, unless the request was one-way."""
        if not request.flag & ONEWAY_FLAG:
            self.write(encode(response))

    def request_oneway(self, command: RemotingCommand) -> None:
        """Send a request of ours that the client does not answer."""
        self._opaque += 1
        command.opaque = self._opaque
        command.flag |= ONEWAY_FLAG
        self.write(encode(command))

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request of ours and wait for the client's answer.

        Raises RemotingTimeoutError, or RemotingConnectError when the connection closes.
        """
        if self.closed:
            raise RemotingConnectError(self.peer, "connection closed")
        self._opaque += 1
        opaque = command.opaque = self._opaque
        future: asyncio.Future[RemotingCommand] = self._server.loop.create_future()
        self._waiting[opaque] = future
        self.write(encode(command))
        try:
            return await asyncio.wait_for(future, timeout_ms / 1000)
        except TimeoutError:
            raise RemotingTimeoutError(self.peer, timeout_ms) from None
        finally:
            self._waiting.pop(opaque, None)

    def close(self) -> None:
        """Close the connection; what was written is still sent."""
        if self._transport is not None and not self.closed:
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, with what a client does not read."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


Processor = Callable[[Channel, RemotingCommand], RemotingCommand | bytes | None]
"""Answers a request; see the head of the module."""


@final
class RemotingServer:
    """Listens on a port and hands requests to processors.

    ``decode_header`` reads ROCKETMQ headers (a compiled reader may be given), ``on_close`` hears of
    every connection that has gone.
    """

    def __init__(
        self,
        *,
        decode_header: DecodeHeader = decode_binary_header,
        on_close: Callable[[Channel], None] | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.processors: dict[int, Processor] = {}
        self.default_processor: Processor | None = None
        self.decode_header = decode_header
        self.draining = False
        self.channels: set[Channel] = set()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by start
        self.on_close = on_close
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def register(self, processor: Processor, *codes: int) -> None:
        """Let ``processor`` answer requests with these codes."""
        for code in codes:
            self.processors[int(code)] = processor

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address that was taken, with the real port for port 0."""
        self.loop = asyncio.get_running_loop()
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._server = await self.loop.create_server(
            lambda: Channel(self), one_address(found), port, backlog=BACKLOG
        )
        self._idle_timer = self.loop.call_later(
            min(IDLE_CHECK_S, self._idle_s), self._close_idle
        )
        taken = self._server.sockets[0].getsockname()
        return str(taken[0]), int(taken[1])

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more connections, tell clients to go away, and close them."""
        if self._server is None:
            return
        self.draining = True
        self._server.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self.channels:
            await asyncio.sleep(drain_s)
        for channel in list(self.channels):
            channel.close()
        await asyncio.sleep(0)
        for _ in range(20):  # let the transports send what they still hold
            if not self.channels:
                break
            await asyncio.sleep(0.01)
        for channel in list(self.channels):
            channel.abort()
        await asyncio.sleep(0)
        self._server = None

    def opened(self, channel: Channel) -> None:
        """Hear of a new connection."""
        self.channels.add(channel)

    def lost(self, channel: Channel) -> None:
        """Hear of a connection that has gone."""
        self.channels.discard(channel)
        if self.on_close is not None:
            self.on_close(channel)

    def _close_idle(self) -> None:
        limit = self.loop.time() - self._idle_s
        for channel in [c for c in self.channels if c.last_active < limit]:
            if channel.closed or channel.paused:
                # Its client does not read: waiting for that would keep what was written for ever.
                _log.warning("connection aborted peer=%s reason=answers are not read", channel.peer)
                channel.abort()
            else:
                _log.info("connection closed for idleness peer=%s", channel.peer)
                channel.close()
        self._idle_timer = self.loop.call_later(
            min(IDLE_CHECK_S, self._idle_s), self._close_idle
        )


def one_address(found: Sequence[tuple[Any, ...]]) -> str:
    """One address of what a name was resolved to, IPv4 where there is one.

    A name such as localhost may have two, and port 0 would then be another port on each.
    """
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    return next((a for family, a in addresses if family == socket.AF_INET), addresses[0][1])
