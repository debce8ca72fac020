"""Server of the remoting protocol, on asyncio.

Frames are parsed directly from the bytes that one wake-up of a connection delivers, and all their answers are
sent with one write. A processor is a plain function of ``(channel, request)``. It returns the answer, the answer
as encoded bytes, or None if the answer comes later through `Channel.answer`. One-way requests are never answered,
regardless of the result. Everything here runs in the thread of the event loop.

If the bytes of a connection are not a valid frame, that connection is closed and one line is logged.

Memory is bounded, see `tailrace.remoting.limits`. A client that does not read its answers is paused: its requests
wait and its connection is not read, until the unread answers are below ``high_water`` again. If a client stops in
the middle of a frame, or does not read, its connection is closed after ``limits.stall_s``. The time that requests of
one connection may take together is bounded as well, see `tailrace.remoting.turns`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast, final

from tailrace import events
from tailrace.auth.addresses import parsed_address
from tailrace.env.supervision import caught
from tailrace.errors import (
    RefusalError,
    RemotingConnectError,
    RemotingFrameError,
    RemotingTimeoutError,
    StoreError,
)
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
from tailrace.formats.requests.absent import why_not_supported
from tailrace.kernels.header import code_at
from tailrace.logs import get_logger
from tailrace.remoting.acceptor import Acceptor, IncomingConnection
from tailrace.remoting.addresses import address_text, socket_address
from tailrace.remoting.lanes import REST, Lane, LaneLooks
from tailrace.remoting.limits import NO_USER_FRAME, STALLED_FRAME, TOO_LATE, UNREAD, ServerLimits
from tailrace.remoting.unauthenticated import HEADER_MAX as NO_USER_HEADER_MAX
from tailrace.remoting.unauthenticated import Unauthenticated, UnauthenticatedFrameError, admit

__all__ = ["Channel", "Processor", "RemotingServer", "failure_of"]

_log = get_logger(__name__)

BACKLOG: Final = 1024
HEADER_MAX: Final = 1 << 20
"""Largest header of a request, in bytes, because the event loop parses it."""
IDLE_S: Final = 120.0
IDLE_CHECK_S: Final = 1.0
HIGH_WATER: Final = 256 << 10
JOINED_MAX: Final = 64 << 10
"""Bytes of answers that are joined to be sent together."""
HELD_REQUEST_BYTES: Final = 2048
"""Memory of a held request in addition to the bytes of its body and fields."""
DRAIN_S: Final = 0.2
NO_USER_CLOSE_S: Final = 1.0
"""Until a connection without a user is closed that sends a long request, so that a client does not repeat it often."""


class DecodeHeader(Protocol):
    """Decodes a header in the encoding ROCKETMQ. Raises ValueError or RemotingFrameError."""

    def __call__(self, buf: bytes, pos: int, until: int, /) -> Header:
        """Return the fields of the header at ``buf[pos:until]``."""
        ...


@final
class Channel(asyncio.Protocol):
    """A connection of a client."""

    __slots__ = (
        "__weakref__",
        "_encode",
        "_held",
        "_held_bytes",
        "_later",
        "_limits",
        "_looks",
        "_need",
        "_opaque",
        "_server",
        "_stall",
        "_tail",
        "_transport",
        "_turns",
        "_unserved",
        "_waiting",
        "_waits",
        "authenticated",
        "born_host",
        "closed",
        "counted",
        "last_active",
        "paused",
        "peer",
        "peer_ip",
        "proof",
        "served",
        "user",
        "users",
    )

    def __init__(self, server: RemotingServer, encode: Callable[[RemotingCommand], bytes] = encode) -> None:
        self._server = server
        self._encode = encode
        self._transport: asyncio.Transport | None = None
        self._tail = bytearray()
        self._need = 0
        self._limits = server.limits
        self._turns = server.limits.turns
        self._unserved: tuple[bytes, int] | None = None  # bytes whose frames from that position wait for a turn
        self._later: deque[Callable[[], None]] = deque()
        self._held = 0
        self._held_bytes = 0
        self._waits = False
        self._stall = (0, 0, 0.0)
        self._opaque = 0
        self._looks = LaneLooks(server.lane_rest)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.last_active = 0.0
        self.counted = 0
        self.closed = False
        self.paused = False
        """True while the client does not read its answers."""
        self.served = False
        """True after a complete request was received."""
        self.authenticated = False
        """True after a user was authenticated on the connection (`RemotingServer.check`)."""
        self.user = ""
        """The first user that was authenticated; see `AccessControl.check`."""
        self.users: dict[str, Any] = {}  # those authenticated, by name, as the check of requests keeps them
        self.proof: Any = None  # of `user`, as the check of requests keeps it
        self.peer = ""
        """Address of the client, ``ip:port``."""
        self.peer_ip = ""
        self.born_host = b""
        """Address of the client in the form in which messages store it."""

    @property
    def is_tls(self) -> bool:
        """True if the connection is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @property
    def unauthenticated(self) -> bool:
        """True until a user is authenticated on the connection; False where clients need no user."""
        return not self.authenticated and self._server.unauthenticated is not None

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._server.high_water)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        address = parsed_address(str(host).partition("%")[0])
        self.peer_ip = str(address)
        self.peer = address_text(self.peer_ip, port)
        self.born_host = address.packed + int(port).to_bytes(4, "big")
        self.last_active = self._server.loop.time()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection. Requests to the client that wait for an answer fail."""
        if exc is not None:
            self._server.note("EXCEPTION")
        self.closed = True
        self._transport = None
        self._later.clear()
        self._tail = bytearray()
        self._unserved = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(RemotingConnectError(self.peer, "connection closed"))
        self._server.lost(self)

    def pause_writing(self) -> None:
        """Stop reading requests of a client that does not read its answers."""
        self.paused = True
        self._stop_reading()
        self._count()

    def _stop_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Serve the requests that have waited, then read again."""
        self.paused = False
        if self.closed:
            return
        self._count()
        self._go_on()

    def _must_wait(self) -> bool:
        """Return whether requests have to wait; if so, `_go_on` is called later."""
        if self.paused:
            return True
        if not self._limits.tight:
            return False
        self.wait_for_memory()
        return True

    def wait_for_memory(self) -> None:
        """Stop reading until there is memory again."""
        if not self._waits and not self.closed:
            self._waits = True
            self._limits.wait(self._memory_is_there, unauthenticated=self.unauthenticated)
            self._stop_reading()

    def _memory_is_there(self) -> None:
        self._waits = False
        if not self.paused and not self.closed:
            self._go_on()

    def take_turn(self, ends_at: int) -> None:
        """Serve the frames that wait."""
        if self._unserved is not None:
            data, pos = self._unserved
            self._unserved = None
            if not self._later:
                self._take(data, pos, ends_at)
            else:
                self._wait_later(data, pos)
            self._go_on()

    def _wait_later(self, data: bytes, pos: int) -> None:
        self._tail += memoryview(data)[pos:]
        self._need = 0
        self._count()

    def _must_stop(self) -> bool:
        return self._must_wait() or self.closed or self._unserved is not None

    def _go_on(self) -> None:
        """Answer held requests, then the frames that wait, for as long as the client reads and has its turn."""
        while self._later and not self._must_wait():
            with caught("held answers"):
                self._later.popleft()()
        if self._must_stop():
            return
        if self._tail and len(self._tail) >= self._need:
            data = bytes(self._tail)
            self._tail = bytearray()
            self._take(data)
            if self._must_stop():
                return
        self._count()
        if not self._waits and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Answer every complete frame with one write."""
        self.last_active = self._server.loop.time()
        if self._unserved is not None:  # other connections had their turns first
            self._unserved = self._unserved[0][self._unserved[1] :] + data, 0
            self._stop_reading()
            self._count()
            return
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:
                self._count()
                if self._limits.tight:
                    self._must_wait()
                return
            data = bytes(self._tail)
            self._tail = bytearray()
            if not self.paused:
                self._count()
        self._take(data)

    def _take(self, data: bytes, pos: int = 0, ends_at: int = 0) -> None:
        if (self.paused or self._limits.tight) and self._must_wait():
            self._wait_later(data, pos)
            return
        out: list[bytes] = []
        problem: Exception | None = None
        try:
            rest = self._serve_frames(data, out, pos, ends_at)
        except (RemotingFrameError, ValueError) as error:
            rest, problem = len(data), error
        if self._turns.open:
            self._turns.end()
        if out:
            self._write_all(out)
        if isinstance(problem, UnauthenticatedFrameError):
            self._stop_reading()
            self._server.loop.call_later(NO_USER_CLOSE_S, self._close_unauthenticated)
        elif problem is not None:
            self._limits.bad_frame(self.peer, problem, self._server.loop.time())
            self.close()
        elif rest < len(data) and not self.closed:
            self._keep(data, rest)

    def _close_unauthenticated(self) -> None:
        if not self.closed:
            self._limits.close(self, NO_USER_FRAME, self._server.loop.time())

    def _keep(self, data: bytes, rest: int) -> None:
        size = len(data) - rest
        self._need = 8
        if size >= 8:
            length, word = PREFIX.unpack_from(data, rest)
            self._need = 4 + length
            header_end = 8 + (word & 0xFFFFFF)
            if self.unauthenticated and length > NO_USER_HEADER_MAX and size < header_end:
                self._need = header_end  # it decides whether the rest is read
        if self._need > size:
            self._tail += memoryview(data)[rest:]
        elif self.paused or self._limits.tight:
            self._wait_later(data, rest)
        else:
            self._unserved = data, rest  # alone, its turn comes before the next read; otherwise that read is the last
            self._turns.wait(self)
        self._count()
        if self._limits.tight:
            self._must_wait()

    def _serve_frames(self, data: bytes, out: list[bytes], pos: int, ends_at: int) -> int:
        """Serve the complete frames of ``data`` from ``pos``; return the position after them.

        From the second one on they are served until the time ``ends_at``; 0: while `Turns.begin` allows it.
        """
        until = len(data)
        server = self._server
        room = high_water = server.high_water
        serve, now = self.serve, self._turns.now
        lanes = server.lanes if server.check is None and not server.draining else {}
        while until - pos >= 8 and not self.closed:
            lane = lanes.get(code_at(data, pos)) if lanes else None
            end, answer = (pos, None) if lane is None else self._looks.take(lane, self, data, pos, room)
            if end == pos:
                request, end = self._request_at(data, pos, until)
                if request is None:
                    return pos
                answer = serve(request)
            pos = end
            if answer:
                out.append(answer)
                room -= len(answer)
                if room < 0:
                    self._write_all(out)
                    out.clear()
                    room = high_water
                    if self._must_wait():
                        return pos
            if until - pos >= 8:
                ends_at = ends_at or self._turns.begin()
                if now() >= ends_at:
                    break
        self.served = self.served or pos > 0
        if 4 <= until - pos < 8:
            check_length(INT32.unpack_from(data, pos)[0])
        return pos

    def _request_at(self, data: bytes, pos: int, until: int) -> tuple[RemotingCommand | None, int]:
        """Return the request whose frame is at ``pos``, None if it is not complete, and the position after it."""
        length, word = PREFIX.unpack_from(data, pos)
        if not 4 <= length <= 0xFFFFFC:
            check_length(length)
        start = pos + 8
        header_end = start + (word & 0xFFFFFF)
        end = pos + 4 + length
        unauthenticated = None if self.authenticated else self._server.unauthenticated
        if unauthenticated is not None and unauthenticated.check_frame(
                length, word & 0xFFFFFF) and header_end <= min(until, end):
            unauthenticated.check_header(length, self._header(word >> 24, data, start, header_end)[-1])
        if header_end > end:
            raise RemotingFrameError(
                f"header of {word & 0xFFFFFF} bytes in a frame of {length}"
            )
        if word & 0xFFFFFF > HEADER_MAX:
            raise RemotingFrameError(
                f"header of {word & 0xFFFFFF} bytes is over the limit of {HEADER_MAX}")
        if end > until:
            return None, pos
        kind = word >> 24
        header = (
            self._server.decode_header(data, start, header_end) if kind == 1
            else self._header(kind, data, start, header_end))
        code, language, version, opaque, flag, remark, ext = header
        return RemotingCommand(
            code, ext, data[header_end:end], opaque=opaque, flag=flag, remark=remark,
            language=language, version=version, serialize_type=kind), end

    def _header(self, kind: int, data: bytes, start: int, until: int) -> Header:
        if kind == 1:
            return self._server.decode_header(data, start, until)
        if kind == 0:
            return decode_json_header(data[start:until])
        raise RemotingFrameError(f"unknown header encoding {kind}")

    def serve(self, request: RemotingCommand) -> bytes | None:
        """Return the encoded answer of a request; None if it comes later or the request has none."""
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
            if server.check is not None:
                server.check(self, request)
            if processor is None:
                answer = request.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, why_not_supported(request.code))
            else:
                answer = processor(self, request)
            if answer is None or request.flag & ONEWAY_FLAG:
                return None
            return answer if isinstance(answer, bytes) else self._encode(answer)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
            if isinstance(error, RefusalError) and error.closes:
                server.loop.call_soon(self.close)  # after the answers to the requests that came with this one
            failure = failure_of(self, request, error)
            return None if request.flag & ONEWAY_FLAG else encode(failure)

    def _refuse(self, request: RemotingCommand) -> bytes | None:
        """Return the answer to a request while the server stops; old clients are disconnected instead."""
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

    def _write_all(self, frames: list[bytes]) -> None:
        """Send encoded frames together. Long ones are not copied once more for that."""
        if len(frames) == 1 or self._transport is None or sum(map(len, frames)) < JOINED_MAX:
            self.write(b"".join(frames))
        elif not self.closed:
            self.last_active = self._server.loop.time()
            self._transport.writelines(frames)

    def answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send an answer later, unless the request was one-way."""
        if (report := self._server.reported.get(request.code)) is not None:
            report(self, request, response)
        if not request.flag & ONEWAY_FLAG:
            self.write(self._encode(response))

    def request_oneway(self, command: RemotingCommand) -> None:
        """Send a request to the client that it does not answer."""
        self._opaque += 1
        command.opaque = self._opaque
        command.flag |= ONEWAY_FLAG
        self.write(encode(command))

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request to the client and wait for its answer.

        The request is sent when the client has read earlier answers; this time is part of the timeout.
        Raises RemotingTimeoutError, or RemotingConnectError if the connection closes.
        """
        if self.closed:
            raise RemotingConnectError(self.peer, "connection closed")
        self._opaque += 1
        opaque = command.opaque = self._opaque
        future: asyncio.Future[RemotingCommand] = self._server.loop.create_future()
        self._waiting[opaque] = future
        unsent = [command]

        def send() -> None:
            if unsent:
                self.write(encode(unsent.pop()))

        self.when_reading(send)
        try:
            return await asyncio.wait_for(future, timeout_ms / 1000)
        except TimeoutError:
            raise RemotingTimeoutError(self.peer, timeout_ms) from None
        finally:
            unsent.clear()  # `send` may be kept for longer, the body need not be
            self._waiting.pop(opaque, None)

    def when_reading(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` now, or when the client reads its answers again.

        It is not called if the connection closes before.
        """
        if not self.is_reading():
            self._later.append(answer)
        elif not self.closed:
            answer()

    def is_reading(self) -> bool:
        """Return whether the client reads its answers, and no request waits for memory."""
        return not (self._later or ((self.paused or self._limits.tight) and self._must_wait()))

    def hold(self, n: int, size: int = 0) -> None:
        """Add ``n`` held requests with a total of ``size`` bytes to the counts; negative numbers remove them."""
        self._held += n
        self._held_bytes += size
        if not self.closed:
            self._count()

    # --- limits

    def held_bytes(self) -> int:
        """Return the bytes of memory that the connection takes."""
        return self._received() + self._unread() + self._held * HELD_REQUEST_BYTES + self._held_bytes

    def _received(self) -> int:
        return len(self._tail) + (0 if self._unserved is None else len(self._unserved[0]) - self._unserved[1])

    def _unread(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _count(self) -> None:
        self._limits.count(
            self,
            self._received() + self._held * HELD_REQUEST_BYTES + self._held_bytes
            + (self._unread() if self.paused else 0),
            self.last_active)

    def stalled(self, now: float) -> str:
        """Return the reason to close a connection that has stalled; empty if it has not."""
        tail, unread = self._received(), self._unread()
        if not (tail or unread) or self._waits:
            self._stall = (0, 0, now)
            return ""
        if (tail, unread) != self._stall[:2]:
            self._stall = (tail, unread, now)
        elif now - self._stall[2] >= self._limits.stall_s:
            return UNREAD if unread else STALLED_FRAME
        return ""

    @property
    def own_address(self) -> str:
        """Address of this server to which the client has connected, ``ip:port``; empty if it is closed."""
        if self._transport is None:
            return ""
        return socket_address(self._transport.get_extra_info("sockname"))

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        if self._transport is not None and not self.closed:
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection immediately. Bytes that the client has not read are dropped."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


def failure_of(channel: Channel, request: RemotingCommand, error: Exception) -> RemotingCommand:
    """Return the answer for the error of a request, and log the error unless it is a refusal."""
    if isinstance(error, RefusalError):
        return request.refused(error)
    events.REQUEST_FAILED.log(
        _log, code=request.code, peer=channel.peer, reason=repr(error),
        exc_info=not isinstance(error, ValueError | StoreError | OSError))
    return request.failed(error)


Processor = Callable[[Channel, RemotingCommand], RemotingCommand | bytes | None]
"""Serves a request; see the head of the module."""


@final
class RemotingServer:
    """Listens on a port and passes requests to processors.

    ``decode_header`` decodes ROCKETMQ headers (a compiled function may be given). ``on_close`` is called for every
    connection that has ended, ``on_activity`` for each event of a connection (`note`). ``limits`` may be shared with
    other servers. ``high_water`` is the number of unread answer bytes of a connection at which its next requests
    wait. ``acceptor`` decides which connections use TLS; if it is given, its limits are used.
    """

    def __init__(
        self,
        *,
        decode_header: DecodeHeader = decode_binary_header,
        on_close: Callable[[Channel], None] | None = None,
        on_activity: Callable[[str], None] | None = None,
        idle_s: float = IDLE_S,
        limits: ServerLimits | None = None,
        high_water: int = HIGH_WATER,
        acceptor: Acceptor | None = None,
    ) -> None:
        self.processors: dict[int, Processor] = {}
        self.default_processor: Processor | None = None
        self.lanes: dict[int, Lane] = {}
        """Serve frames of these codes before processors do; not while `check` must see every request."""
        self.lane_rest = REST
        self.decode_header = decode_header
        self.draining = False
        self.channels: set[Channel] = set()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by start
        self.on_close = on_close
        self.on_activity = on_activity
        self._acceptor = acceptor or Acceptor(ServerLimits() if limits is None else limits)
        self.limits = self._acceptor.limits
        self.check: Callable[[Channel, RemotingCommand], None] | None = None
        """Called before any other work on a request; raises RefusalError if the request must not be served."""
        self.reported: dict[int, Callable[[Channel, RemotingCommand, RemotingCommand], None]] = {}
        """Called with each answer that `Channel.answer` sends to a request with this code."""
        self.unauthenticated: Unauthenticated[Channel] | None = None
        self.high_water = high_water
        self._incoming: dict[IncomingConnection, None] = {}
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def register(self, processor: Processor, *codes: int) -> None:
        """Pass requests with these codes to ``processor``."""
        for code in codes:
            self.processors[int(code)] = processor

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address, with the real port for port 0. Raises OSError."""
        self.loop = asyncio.get_running_loop()
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._server = await self.loop.create_server(
            lambda: self._acceptor.protocol(lambda: Channel(self), self._incoming, self._idle_s, self.unauthenticated),
            one_address(found), port, backlog=self.limits.backlog(BACKLOG))
        self._idle_timer = self.loop.call_later(min(IDLE_CHECK_S, self._idle_s), self._close_idle)
        taken = self._server.sockets[0].getsockname()
        return str(taken[0]), int(taken[1])

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop accepting connections, answer requests with GO_AWAY for ``drain_s``, then close the connections."""
        if self._server is None:
            return
        self.draining = True
        self._server.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self._incoming):
            connection.abort()
        if self.channels:
            await asyncio.sleep(drain_s)
        for channel in list(self.channels):
            channel.close()
        await asyncio.sleep(0)
        for _ in range(20):  # let the transports send the rest
            if not self.channels:
                break
            await asyncio.sleep(0.01)
        for channel in list(self.channels):
            channel.abort()
        await asyncio.sleep(0)
        self._server = None

    def opened(self, channel: Channel) -> None:
        """Add a new connection."""
        self.channels.add(channel)
        admit(channel, self.limits, self.unauthenticated, channel.last_active)
        self.note("CONNECT")

    def lost(self, channel: Channel) -> None:
        """Remove a connection that has ended."""
        self.channels.discard(channel)
        self.limits.lost(channel)
        if self.unauthenticated is not None:
            self.unauthenticated.lost(channel)
        self.note("CLOSE")
        if self.on_close is not None:
            self.on_close(channel)

    def note(self, activity: str) -> None:
        """Report an event of a connection to ``on_activity``: CONNECT, CLOSE, IDLE or EXCEPTION."""
        if self.on_activity is not None:
            self.on_activity(activity)

    def _close_idle(self) -> None:
        now = self.loop.time()
        limit = now - self._idle_s
        if self.unauthenticated is not None:
            for channel in self.unauthenticated.late(now):
                self.limits.close(channel, TOO_LATE, now)
        for channel in list(self.channels):
            self.limits.count(channel, channel.held_bytes(), now)
            if reason := channel.stalled(now):
                self.limits.close(channel, reason, now)
        for channel in [c for c in self.channels if c.last_active < limit]:
            self.note("IDLE")
            if channel.closed or channel.paused:
                # Its client does not read, so the unsent bytes would stay in memory for ever.
                events.CONNECTION_ABORTED.log(_log, peer=channel.peer, reason="answers are not read")
                channel.abort()
            else:
                events.CONNECTION_CLOSED_FOR_IDLENESS.log(_log, peer=channel.peer)
                channel.close()
        self._idle_timer = self.loop.call_later(min(IDLE_CHECK_S, self._idle_s), self._close_idle)


def one_address(found: Sequence[tuple[Any, ...]]) -> str:
    """Return one of the addresses of a name, an IPv4 address if there is one.

    A name such as localhost may have two addresses, and port 0 would then be a different port on each.
    """
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    return next((a for family, a in addresses if family == socket.AF_INET), addresses[0][1])
