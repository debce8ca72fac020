"""Start of connections on all ports of a process: decides between TLS and plain, and limits handshakes.

The first byte of a connection decides: 0x16 starts a TLS handshake, every other byte a plain connection. Frames
and HTTP requests never start with 0x16. ``tls.server.mode`` says which of the two is served. The protocol object
of a connection, such as a `Channel`, is created only after this decision and a complete handshake. So clients
that never finish a handshake cost little:

- a connection whose handshake is not complete after ``handshake_timeout_s`` is closed;
- if more than ``handshakes_max`` handshakes are incomplete, or more than ``handshakes_per_address`` of one
  address, the oldest of them is closed.

A connection without a first byte counts as one that has sent no request, see `tailrace.remoting.limits`.
Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast, final

from tailrace import events
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.remoting.addresses import address_text
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.tls_connection import TlsConnection
from tailrace.remoting.unauthenticated import Unauthenticated, admit

__all__ = ["DISABLED", "ENFORCING", "PERMISSIVE", "IncomingConnection", "Acceptor"]

_log = get_logger(__name__)

DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"
HANDSHAKE: Final = 0x16
HANDSHAKE_TIMEOUT_S: Final = 10.0
HANDSHAKES_MAX: Final = 1000
PER_ADDRESS: Final = 256

TIMEOUT: Final = "timeout"
TOO_MANY: Final = "too many"
TLS_DISABLED: Final = "tls is disabled"
NO_CERTIFICATE: Final = "no certificate of the server"
NOT_ENCRYPTED: Final = "not encrypted"
CLOSED_BY_CLIENT: Final = "closed by the client"
REFUSED_BY_CLIENT: Final = "refused by the client"
CLIENT_CERTIFICATE: Final = "certificate of the client"
HANDSHAKE_ERROR: Final = "handshake error"
REASONS: Final = (
    TIMEOUT, TOO_MANY, TLS_DISABLED, NO_CERTIFICATE, NOT_ENCRYPTED, CLOSED_BY_CLIENT, REFUSED_BY_CLIENT,
    CLIENT_CERTIFICATE, HANDSHAKE_ERROR)


@final
class Acceptor:
    """Creates the protocol of new connections; shared by all servers of a process."""

    def __init__(
        self, limits: ServerLimits, mode: str = PERMISSIVE, context: ssl.SSLContext | None = None, *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S, handshakes_max: int = HANDSHAKES_MAX,
        handshakes_per_address: int = PER_ADDRESS,
    ) -> None:
        self.limits = limits
        self.mode = mode
        self.context = context
        """TLS context of new handshakes; if it is None, connections with TLS are closed."""
        self.expires_s: Callable[[], dict[str, float]] = dict
        """Returns the time until each certificate expires, by the setting that names it."""
        self.handshakes = 0
        """Number of complete handshakes since the start."""
        self.failures: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Number of connections that were closed before a request was served, by reason."""
        self._timeout_s = handshake_timeout_s
        self._most = handshakes_max
        self._most_of_one = handshakes_per_address
        self._incomplete: dict[str, dict[IncomingConnection, None]] = {}
        self._oldest: dict[IncomingConnection, None] = {}
        self._lines = LogRateLimiter()

    @property
    def incomplete(self) -> int:
        """Number of handshakes that are under way."""
        return len(self._oldest)

    def protocol(
        self, make: Callable[[], asyncio.Protocol], incoming: dict[IncomingConnection, None], silence_s: float,
        unauthenticated: Unauthenticated[Any] | None = None,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection; later it replaces itself by the result of ``make``.

        Until then the connection is in ``incoming`` and counts as ``unauthenticated``. It is closed if no byte arrives
        within ``silence_s`` or the time limit of unauthenticated connections.
        """
        return IncomingConnection(self, make, incoming, silence_s, unauthenticated)

    def begin(self, connection: IncomingConnection, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle:
        """Count a handshake that starts; return the timer that closes its connection."""
        self._oldest[connection] = None
        of_one = self._incomplete.setdefault(connection.peer_ip, {})
        of_one[connection] = None
        if len(of_one) > self._most_of_one:
            next(iter(of_one)).fail(TOO_MANY)
        elif len(self._oldest) > self._most:
            next(iter(self._oldest)).fail(TOO_MANY)
        return loop.call_later(self._timeout_s, connection.fail, TIMEOUT)

    def end(self, connection: IncomingConnection) -> None:
        """Remove a handshake from the count; a second call has no effect."""
        self._oldest.pop(connection, None)
        of_one = self._incomplete.get(connection.peer_ip)
        if of_one is not None:
            of_one.pop(connection, None)
            if not of_one:
                del self._incomplete[connection.peer_ip]

    def failed(self, reason: str, peer: str, detail: str, now: float) -> None:
        """Count a connection that is closed, and log at most one line a minute for each reason."""
        self.failures[reason] += 1
        if count := self._lines.due(reason, now):
            events.CONNECTION_CLOSED_BEFORE_A_REQUEST.log(_log, peer=peer, reason=reason, detail=detail, count=count)


@final
class IncomingConnection(asyncio.Protocol):
    """A connection before its first byte, or during its handshake."""

    __slots__ = (
        "_acceptor",
        "_incoming",
        "_loop",
        "_make",
        "_silence_s",
        "_timer",
        "_transport",
        "_unauthenticated",
        "authenticated",
        "closed",
        "counted",
        "last_active",
        "peer",
        "peer_ip",
        "served",
    )

    def __init__(
        self, acceptor: Acceptor, make: Callable[[], asyncio.Protocol], incoming: dict[IncomingConnection, None],
        silence_s: float, unauthenticated: Unauthenticated[Any] | None,
    ) -> None:
        self._acceptor = acceptor
        self._make = make
        self._incoming = incoming
        self._silence_s = silence_s if unauthenticated is None else min(silence_s, unauthenticated.timeout_s)
        self._unauthenticated = unauthenticated
        self.authenticated = self.closed = False
        self.counted = 0
        self.last_active = 0.0
        self.served = False
        self.peer = self.peer_ip = ""

    @property
    def unauthenticated(self) -> bool:
        """True if clients need a user: no byte has arrived yet."""
        return self._unauthenticated is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and wait for its first byte."""
        self._transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.peer_ip, self.peer = str(host), address_text(str(host), port)
        self._loop = asyncio.get_running_loop()
        self.last_active = self._loop.time()
        self._timer = self._loop.call_later(self._silence_s, self._silent)
        self._incoming[self] = None
        taken = transport.get_extra_info("socket")
        admit(
            self, self._acceptor.limits, self._unauthenticated, self.last_active,
            -1 if taken is None else taken.fileno())

    def data_received(self, data: bytes) -> None:
        """Decide by the first byte, and replace this protocol."""
        if self.closed:
            return
        acceptor, transport = self._acceptor, self._transport
        if data[0] != HANDSHAKE:
            if acceptor.mode == ENFORCING:
                self.fail(NOT_ENCRYPTED)
                return
            inner = self._end()
            transport.set_protocol(inner)
            inner.connection_made(transport)
            inner.data_received(data)
            return
        if acceptor.mode == DISABLED or acceptor.context is None:
            self.fail(TLS_DISABLED if acceptor.mode == DISABLED else NO_CERTIFICATE)
            return
        self._timer.cancel()
        self._timer = acceptor.begin(self, self._loop)
        encrypted = TlsConnection(acceptor.context, transport, self._shaken)
        transport.set_protocol(encrypted)
        encrypted.data_received(data)

    def _shaken(self, error: Exception | None) -> asyncio.Protocol | None:
        """Handle the end of a handshake; return the protocol to serve if it is complete."""
        if self.closed:
            return None
        if error is not None:
            self.fail(*_reason_of(error))
            return None
        self._acceptor.handshakes += 1
        return self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from all counts."""
        self._forget()

    def fail(self, reason: str, detail: str = "-") -> None:
        """Close the connection. A TLS alert that was written is still sent."""
        if not self.closed:
            self._forget()
            self._acceptor.failed(reason, self.peer, detail, self._loop.time())
            if reason in {TIMEOUT, TOO_MANY}:
                self._transport.abort()
            else:
                self._transport.close()

    def _silent(self) -> None:
        events.CONNECTION_CLOSED_FOR_IDLENESS.log(_log, peer=self.peer)
        self.abort()

    def _end(self) -> asyncio.Protocol:
        self._forget()
        return self._make()

    def _forget(self) -> None:
        self.closed = True
        self._timer.cancel()
        if self._unauthenticated is not None:
            self._unauthenticated.lost(self)
        self._incoming.pop(self, None)
        self._acceptor.end(self)
        self._acceptor.limits.lost(self)

    # --- what limits call

    def abort(self) -> None:
        """Close the connection immediately."""
        self._forget()
        self._transport.abort()

    def held_bytes(self) -> int:
        """Return 0, because part of a handshake is not worth counting."""
        return 0

    def wait_for_memory(self) -> None:
        """Do nothing: a handshake takes no memory that grows."""


def _reason_of(error: Exception) -> tuple[str, str]:
    """Return the reason of a failed handshake, and OpenSSL's text for it."""
    if not isinstance(error, ssl.SSLError):
        return CLOSED_BY_CLIENT, "-"
    detail = (error.reason or type(error).__name__).lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return CLIENT_CERTIFICATE, str(error.verify_message).replace(" ", "_")
    if detail == "peer_did_not_return_a_certificate":
        return CLIENT_CERTIFICATE, detail
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return CLOSED_BY_CLIENT, detail
    return (REFUSED_BY_CLIENT if "alert" in detail else HANDSHAKE_ERROR), detail
