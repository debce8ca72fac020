"""TLS of a server connection: a protocol for the socket, and a transport for the protocol served over it.

OpenSSL encrypts in memory, between the transport of the event loop and the served protocol. The connection keeps at
most one incomplete record, up to 16 KiB, and no decrypted data.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, final

__all__ = ["TlsConnection"]

RECORD: Final = 16 << 10
"""Largest record of TLS, in bytes."""


@final
class TlsConnection(asyncio.Transport, asyncio.Protocol):
    """Encrypts what is written to ``transport`` and decrypts what it receives.

    ``done`` is called once at the end of the handshake. If the handshake is complete, the argument is None and
    ``done`` returns the protocol to serve. Otherwise the argument is the error, and ``done`` closes the connection.
    """

    __slots__ = ("_closing", "_done", "_inner", "_received", "_tls", "_to_send", "_transport")

    def __init__(
        self, context: ssl.SSLContext, transport: asyncio.Transport,
        done: Callable[[Exception | None], asyncio.Protocol | None],
    ) -> None:
        self._transport = transport
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._done = done
        self._inner: asyncio.Protocol | None = None
        self._closing = False

    # --- what the transport calls

    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or decrypt all complete records and pass them on in one call."""
        if self._closing:
            return
        self._received.write(data)
        if self._inner is not None or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._send()  # the alert
            self._closing = True
            self._done(error)
            return False
        self._send()
        self._inner = self._done(None)
        if self._inner is None:
            return False
        self._inner.connection_made(self)
        return True

    def _read(self) -> None:
        read, received = self._tls.read, self._received
        parts: list[bytes] = []
        ended, problem = False, None
        try:
            while True:
                part = read(RECORD)
                if not part:
                    ended = True
                    break
                parts.append(part)
                if not (received.pending or self._tls.pending()):
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            problem = error
        if self._to_send.pending:
            self._send()
        assert self._inner is not None
        if parts and not self._closing:
            self._inner.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if problem is not None:
            self.abort()
        elif ended and not self._closing and not self._inner.eof_received():
            self.close()

    def eof_received(self) -> bool | None:
        """Handle the end of the stream, which may come without the end of TLS."""
        return None if self._inner is None or self._closing else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end of the connection. During a handshake the end is reported as its failure."""
        ended, self._closing = self._closing, True
        if self._inner is not None:
            self._inner.connection_lost(exc)
        elif not ended:
            self._done(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        """Pass the call on to the served protocol."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass the call on to the served protocol."""
        if self._inner is not None:
            self._inner.resume_writing()

    # --- what the protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._closing or not data:
            return
        try:
            taken = self._tls.write(data)
            if taken < len(data):  # OpenSSL encrypts one record per call
                rest = memoryview(data)[taken:]
                while rest:
                    rest = rest[self._tls.write(rest):]
        except ssl.SSLError:
            self.abort()
            return
        self._send()

    def _send(self) -> None:
        if data := self._to_send.read():
            self._transport.write(data)

    def close(self) -> None:
        """Send the end of TLS, and close when everything is sent, without a wait for the client's end."""
        if self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass
        self._send()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._transport.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits at which writing is paused and resumed, in encrypted bytes, as all sizes here."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not sent yet."""
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the limits at which writing is resumed and paused."""
        return self._transport.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        """Return False: TLS cannot close only one direction."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection; ``ssl_object`` is its TLS object."""
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Raise NotImplementedError: the protocol is set by the handshake."""
        raise NotImplementedError

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the served protocol."""
        return self if self._inner is None else self._inner
