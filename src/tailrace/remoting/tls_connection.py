"""TLS of one connection of a server: a protocol to the socket, and a transport to what is served over it.

OpenSSL encrypts in memory, between the transport of the event loop and the protocol that is served. The
connection keeps one incomplete record, at most 16 KiB, and nothing that is decrypted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, final

__all__ = ["TlsConnection"]

RECORD: Final = 16 << 10
"""Most bytes of one record of TLS."""


@final
class TlsConnection(asyncio.Transport, asyncio.Protocol):
    """Encrypts what is written to ``transport`` and decrypts what it receives.

    ``done`` is called once with the end of the handshake: with None when it is complete, and it then returns
    the protocol that is served; with the error when it failed, and the connection is then to be closed.
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
        """Go on with the handshake, or hand on what is in the complete records, in one piece."""
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
        """End of the connection, perhaps in the middle of something."""
        return None if self._inner is None or self._closing else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end; one in the middle of a handshake is its failure."""
        ended, self._closing = self._closing, True
        if self._inner is not None:
            self._inner.connection_lost(exc)
        elif not ended:
            self._done(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.resume_writing()

    # --- what the protocol calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._closing or not data:
            return
        try:
            taken = self._tls.write(data)
            if taken < len(data):  # OpenSSL takes a record at a time
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
        """Send the end, and close when everything is sent; the end of the client is not waited for."""
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
        """Close now."""
        self._closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether nothing more is sent."""
        return self._closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read no more from the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Return whether the socket is read."""
        return self._transport.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when writing is paused; in encrypted bytes, as all sizes here."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent."""
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return when writing is paused, and when it goes on."""
        return self._transport.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half that is open."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection; ``ssl_object`` has its TLS."""
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Not possible."""
        raise NotImplementedError

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return what is served."""
        return self if self._inner is None else self._inner
