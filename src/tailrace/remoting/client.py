"""Client of the remoting protocol: connections, requests with answers, and oneway requests."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Callable, Container, Mapping
from typing import Final, cast, final

from tailrace import events
from tailrace.auth.binding import BINDING, BINDING_MISSING, Binder, Row
from tailrace.auth.signature import ACCESS_KEY, Credentials, sign
from tailrace.config import whole_number
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.errors import (
    RemotingClosedError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingFrameError,
    RemotingTimeoutError,
)
from tailrace.formats.remoting import (
    INT32,
    LANGUAGE_PYTHON,
    MQ_VERSION,
    ONEWAY_FLAG,
    RemotingCommand,
    ResponseCode,
    SerializeType,
    decode_frame,
    encode,
)
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.table import ADMINISTRATION
from tailrace.logs import get_logger
from tailrace.remoting.addresses import socket_address
from tailrace.remoting.tls import TlsOptions, client_context

__all__ = ["RemotingClient", "split_address"]

_log = get_logger(__name__)

PORT_MAX: Final = 65_535
TLS_END_S: Final = 1.0
"""Longest wait, in seconds, for the peer's end of TLS when a client is closed."""
SILENT_S: Final = 1.0
"""A connection over which nothing has come for this time, while requests timed out, is replaced by the next request."""


def split_address(text: str) -> tuple[str, int] | None:
    """Return host and port of ``HOST:PORT``; None for any other text. The host may be in brackets, or empty."""
    host, separator, port = text.rpartition(":")
    number = whole_number(port)
    if not separator or number is None or number > PORT_MAX:
        return None
    return host.strip("[]"), number


@final
class _Connection(asyncio.Protocol):
    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address = address
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.row: Row | None = None
        """The numbers of the bound requests; made for the first one."""
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._rest = bytearray()
        self._need = 0
        self._heard_at = 0.0
        """Time of the last bytes from the peer."""
        self._timed_out_since: float | None = None
        """Begin of the first request that timed out and after which nothing has come."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._going = False
        self._sends_no_more = False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast without a check, because uvloop's transports are not subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._timed_out_since = None
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data, self._rest = bytes(self._rest), bytearray()
        at = 0
        try:
            while True:
                command, at = decode_frame(data, at, len(data))
                if command is None:
                    break
                # Requests of the peer have its own numbers; only answers are matched with requests of this side.
                if not command.is_response:
                    self._client.on_request(self.address, command)
                    continue
                future = self.waiting.pop(command.opaque, None)
                if future is not None and not future.done():
                    future.set_result(command)
            if self._going and not self.waiting:
                self.close()
        except RemotingFrameError as error:
            events.CLOSE_A_CONNECTION_AFTER_A_BAD_FRAME.log(_log, peer=self.address, cause=error)
            self.close()
            return
        if at < len(data):
            self._rest += memoryview(data)[at:]
            known = len(self._rest) >= 4
            self._need = 4 + INT32.unpack_from(self._rest, 0)[0] if known else 4

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, data: bytes) -> None:
        """Send when the peer has read enough of the earlier bytes. Raises RemotingError if the connection closes."""
        await self._writable.wait()
        if self.transport is None or self.transport.is_closing() or self._sends_no_more:
            raise RemotingClosedError(self.address)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.ended.set()
        self._writable.set()
        waiting, self.waiting = self.waiting, {}
        why = exc.reason.lower().replace("_", " ") if isinstance(exc, ssl.SSLError) and exc.reason else ""
        for future in waiting.values():
            if not future.done():
                future.set_exception(RemotingClosedError(self.address, why))
        self._client.on_lost(self.address)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def timed_out(self, began: float) -> None:
        """Note that a request since ``began`` has timed out; abort the connection if it may be dead.

        A peer that has lost its power, or a way that has lost its state, is not reported by TCP for a quarter of an
        hour. A peer that answers other requests keeps its connection.
        """
        if self._heard_at > began or self.transport is None:
            return
        if self._timed_out_since is None:
            self._timed_out_since = began
        if (silent_s := self._loop.time() - self._timed_out_since) >= SILENT_S:
            events.CONNECTION_GIVEN_UP.log(_log, peer=self.address, seconds=round(silent_s, 1))
            self.abort()

    def end(self) -> None:
        """Send no more. The peer then ends the connection, after the answers that it has sent.

        With TLS the connection is closed, and answers under way are lost.
        """
        self._sends_no_more = True
        if self.transport is not None:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()

    def close_when_idle(self) -> None:
        """Close the connection when no request waits for an answer any more."""
        self._going = True
        if not self.waiting:
            self.close()


@final
class RemotingClient:
    """Connections to peers; each is opened at the first request, and again after it was lost.

    Use it from one event loop. ``tls`` is for all connections. Raises ConfigError if the TLS settings are invalid.
    """

    def __init__(
        self, *, connect_timeout_ms: int = 3000, tls: bool | TlsOptions | None = None,
        credentials: Credentials | None = None, clock: Clock | None = None, entropy: Entropy | None = None,
    ) -> None:
        """Sign every request with ``credentials`` if they are given.

        Administration requests are bound as well (`tailrace.auth.binding`), and all requests after a server has
        refused one because it was not.
        """
        self._tls = client_context(tls)
        self._connect_timeout_ms = connect_timeout_ms
        self._credentials = credentials
        self._binder = None if credentials is None else Binder(clock or SystemClock(), credentials.secret_key)
        self._binds_all = False
        self._entropy = entropy or SystemEntropy()
        self._connections: dict[str, _Connection] = {}
        self._connecting: dict[str, asyncio.Task[_Connection]] = {}
        self._closed = False
        self._numbers = itertools.count(1)
        self.on_request: Callable[[str, RemotingCommand], None] = _ignore
        """Called with the address of a peer and a request from it; must not raise."""
        self.on_lost: Callable[[str], None] = _no_matter
        """Called with the address of a peer after the connection to it has closed; must not raise."""

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self._tls is not None

    @property
    def signs(self) -> bool:
        """Whether requests are signed by a user."""
        return self._credentials is not None

    def _open(self, address: str) -> _Connection | None:
        """Return the open connection to an address; None if it has to be opened."""
        if self._closed:
            raise RemotingError("the client is closed")
        found = self._connections.get(address)
        if found is None or found.transport is None or found.transport.is_closing():
            return None
        return found

    async def _connection(self, address: str) -> _Connection:
        """Return the connection to an address. All that wait for it share one attempt to open it."""
        if (found := self._open(address)) is not None:
            return found
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.create_task(self._connect(address))
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise RemotingError("the client is closed") from None
            raise

    def _connected(self, address: str, task: asyncio.Task[_Connection]) -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if nothing waits any more

    async def _connect(self, address: str) -> _Connection:
        place = split_address(address)
        if place is None:
            raise RemotingConnectError(address, "it is not HOST:PORT")
        made = _Connection(address, self)
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await asyncio.get_running_loop().create_connection(
                    lambda: made, *place, ssl=self._tls)
        except TimeoutError:
            raise RemotingConnectError(
                address, f"no answer in {self._connect_timeout_ms} ms") from None
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise RemotingConnectError(address, self._why_not_encrypted(error)) from error
        except OSError as error:
            # asyncio's own text would repeat the address.
            text = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise RemotingConnectError(address, text) from None
        self._connections[address] = made
        return made

    def _why_not_encrypted(self, error: OSError) -> str:
        """Return the reason for which a connection ended at its start or in its handshake."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate of the server is not accepted: {error.verify_message}"
        if isinstance(error, ssl.SSLError) and error.reason:
            return f"TLS failed: {error.reason.lower().replace('_', ' ')}"
        if self._tls is None:
            return os.strerror(error.errno) if error.errno else str(error) or "the server closed the connection"
        return "the server closed the connection in the TLS handshake; does it use TLS?"

    def _request(
        self, connection: _Connection, code: int, ext: dict[str, str], body: bytes, opaque: int, flag: int
    ) -> bytes:
        if self._credentials is not None:
            if self._binds(code):
                ext = self._bound(connection, code, ext, body)
            ext = sign(ext, body, self._credentials, MQ_VERSION)
        return encode(RemotingCommand(
            code, language=LANGUAGE_PYTHON, version=MQ_VERSION, opaque=opaque, flag=flag, ext=ext,
            body=body, serialize_type=SerializeType.JSON))

    def _bound(self, connection: _Connection, code: int, ext: dict[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with its binding."""
        assert self._binder is not None
        assert self._credentials is not None
        row = connection.row
        if row is None:
            peer = None if connection.transport is None else connection.transport.get_extra_info("peername")
            row = connection.row = Row(socket_address(peer) or connection.address, self._entropy.u64())
        ext = {**ext, ACCESS_KEY: self._credentials.access_key}
        ext[BINDING] = self._binder.value(row, code, ext, body)
        return ext

    def _binds(self, code: int) -> bool:
        return self._binds_all or code in ADMINISTRATION

    def _wants_binding(self, answer: RemotingCommand) -> bool:
        """Return whether a server needs a request again, with a binding; later requests will have one."""
        if self._binder is None or answer.code != ResponseCode.NO_PERMISSION or answer.remark != BINDING_MISSING:
            return False
        self._binds_all = True
        return True

    async def invoke(
        self, address: str, code: int, ext: dict[str, str], body: bytes = b"", *,
        timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """Send a request to ``address`` and return the answer, with any code.

        ``timeout_ms`` includes the time to open the connection, and to send the request again if the server needs a
        binding. Raises RemotingConnectError, RemotingTimeoutError, or RemotingClosedError if the connection ends before
        the answer. In the last two cases it is unknown whether the peer has executed the request.
        """
        loop = asyncio.get_running_loop()
        connection = None
        began = loop.time()
        opaque = next(self._numbers) & 0x7FFFFFFF
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = self._open(address) or await self._connection(address)
                connection.waiting[opaque] = future
                bound = self._binds(code)
                await connection.write(self._request(connection, code, ext, body, opaque, 0))
                answer = await future
                if not bound and self._wants_binding(answer):
                    future = connection.waiting[opaque] = loop.create_future()
                    await connection.write(self._request(connection, code, ext, body, opaque, 0))
                    answer = await future
        except TimeoutError:
            if connection is None:
                raise RemotingConnectError(address, f"no answer in {timeout_ms} ms") from None
            connection.timed_out(began)
            raise RemotingTimeoutError(address, timeout_ms) from None
        finally:
            if connection is not None:
                connection.waiting.pop(opaque, None)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not log it if the write failed first
        if answer.code == ResponseCode.GO_AWAY and self._connections.get(address) is connection:
            # The peer is stopping: the next request opens a new connection; requests under way keep this one.
            del self._connections[address]
            connection.close_when_idle()
        return answer

    async def ask(
        self, address: str, code: int, header: CustomHeader | Mapping[str, str] | None = None, body: bytes = b"", *,
        ok: Container[int] = (ResponseCode.SUCCESS,), timeout_ms: int = 3000,
    ) -> RemotingCommand:
        """As `invoke`, with a header or its fields.

        Raises RemotingCommandError for an answer whose code is not in ``ok``.
        """
        ext = header.to_ext() if isinstance(header, CustomHeader) else dict(header or {})
        answer = await self.invoke(address, code, ext, body, timeout_ms=timeout_ms)
        if answer.code not in ok:
            raise RemotingCommandError(answer.code, answer.remark or "", address)
        return answer

    async def invoke_oneway(
        self, address: str, code: int, ext: dict[str, str], body: bytes = b"", *, timeout_ms: int = 3000
    ) -> None:
        """Send a request that is never answered, when the peer has read enough of the earlier bytes.

        Raises as `invoke`; after RemotingTimeoutError the request was not sent.
        """
        connection = None
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connection(address)
                await connection.write(
                    self._request(connection, code, ext, body, next(self._numbers) & 0x7FFFFFFF, ONEWAY_FLAG))
        except TimeoutError:
            if connection is None:
                raise RemotingConnectError(address, f"no answer in {timeout_ms} ms") from None
            connection.timed_out(began)
            raise RemotingTimeoutError(address, timeout_ms) from None

    async def answer(self, address: str, response: RemotingCommand) -> None:
        """Answer a request of a peer. Raises RemotingError if the connection has closed."""
        connection = self._open(address)
        if connection is None:
            raise RemotingClosedError(address)
        response.language = LANGUAGE_PYTHON
        await connection.write(encode(response))

    async def end_requests(self, timeout_s: float) -> None:
        """End the requests that wait for an answer, such as long polls: an answer under way comes, others fail.

        Their connections are closed; a later request makes a new one.
        """
        ending = [one for one in self._connections.values() if one.waiting]
        for one in ending:
            del self._connections[one.address]
            one.end()
        try:
            async with asyncio.timeout(timeout_s):
                for one in ending:
                    await one.ended.wait()
        except TimeoutError:
            for one in ending:
                one.abort()

    async def close(self) -> None:
        """Close every connection. Requests under way and later requests fail."""
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        closing, self._connections = list(self._connections.values()), {}
        for connection in closing:
            connection.close()
        await asyncio.sleep(0)
        if self._tls is not None:  # TLS ends with a message to the peer and one back
            try:
                async with asyncio.timeout(TLS_END_S):
                    for connection in closing:
                        await connection.ended.wait()
            except TimeoutError:
                for connection in closing:
                    connection.abort()
                await asyncio.sleep(0)


def _ignore(address: str, request: RemotingCommand) -> None:
    """Ignore a request of a peer."""


def _no_matter(address: str) -> None:
    """Do nothing: the next request opens the connection again."""
