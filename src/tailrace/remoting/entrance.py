"""The first bytes of connections, on all ports of a process: with TLS or without, and for how long.

The first byte of a connection decides: 0x16 begins a TLS handshake, everything else is plain. Frames and
HTTP requests never begin with 0x16. ``tls.server.mode`` says which of the two is served. What is served over a
connection, a `Channel` for instance, is only made once that is decided and the handshake is complete, so
clients that never finish one cost little:

- a handshake that is not complete after ``handshake_timeout_s`` is closed;
- of more than ``handshakes_max`` incomplete ones, or ``handshakes_per_address`` from one address, the oldest is
  closed.

A connection without a first byte counts as one that has sent no request, see `tailrace.remoting.limits`.
Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast, final

from tailrace.logs import get_logger
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.rare_lines import RareLines
from tailrace.remoting.strangers import Strangers, admit
from tailrace.remoting.tls_connection import TlsConnection

__all__ = ["DISABLED", "ENFORCING", "PERMISSIVE", "Arrival", "Entrance"]

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
class Entrance:
    """Makes the protocol of new connections; shared by all servers of a process."""

    def __init__(
        self, limits: ServerLimits, mode: str = PERMISSIVE, context: ssl.SSLContext | None = None, *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S, handshakes_max: int = HANDSHAKES_MAX,
        handshakes_per_address: int = PER_ADDRESS,
    ) -> None:
        self.limits = limits
        self.mode = mode
        self.context = context
        """For handshakes from now on; None: connections with TLS are closed."""
        self.handshakes = 0
        """Complete handshakes since the start."""
        self.failures: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Connections that were closed before anything was served, by reason."""
        self._timeout_s = handshake_timeout_s
        self._most = handshakes_max
        self._most_of_one = handshakes_per_address
        self._incomplete: dict[str, dict[Arrival, None]] = {}
        self._oldest: dict[Arrival, None] = {}
        self._lines = RareLines()

    @property
    def incomplete(self) -> int:
        """Handshakes that are under way."""
        return len(self._oldest)

    def protocol(
        self, make: Callable[[], asyncio.Protocol], arrivals: dict[Arrival, None], silence_s: float,
        strangers: Strangers[Any] | None = None,
    ) -> asyncio.Protocol:
        """Return the protocol of a new connection, which is replaced by that of ``make``.

        The connection is in ``arrivals`` until then, and counts among ``strangers``. It is closed if nothing comes in
        ``silence_s``, or in the time of strangers.
        """
        return Arrival(self, make, arrivals, silence_s, strangers)

    def begin(self, arrival: Arrival, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle:
        """Count a handshake that begins; return the timer that ends it."""
        self._oldest[arrival] = None
        of_one = self._incomplete.setdefault(arrival.peer_ip, {})
        of_one[arrival] = None
        if len(of_one) > self._most_of_one:
            next(iter(of_one)).fail(TOO_MANY)
        elif len(self._oldest) > self._most:
            next(iter(self._oldest)).fail(TOO_MANY)
        return loop.call_later(self._timeout_s, arrival.fail, TIMEOUT)

    def end(self, arrival: Arrival) -> None:
        """Count a handshake no more; a second call does nothing."""
        self._oldest.pop(arrival, None)
        of_one = self._incomplete.get(arrival.peer_ip)
        if of_one is not None:
            of_one.pop(arrival, None)
            if not of_one:
                del self._incomplete[arrival.peer_ip]

    def failed(self, reason: str, peer: str, detail: str, now: float) -> None:
        """Count a connection that is closed; one line a minute is logged for each reason."""
        self.failures[reason] += 1
        if count := self._lines.due(reason, now):
            _log.warning(
                "connection closed before a request peer=%s reason=%s detail=%s count=%d", peer, reason, detail, count)


@final
class Arrival(asyncio.Protocol):
    """A connection whose first byte has not come, or whose handshake is under way."""

    __slots__ = (
        "_arrivals", "_entrance", "_loop", "_make", "_silence_s", "_strangers", "_timer", "_transport",
        "authenticated", "closed", "counted", "last_active", "peer", "peer_ip", "served")

    def __init__(
        self, entrance: Entrance, make: Callable[[], asyncio.Protocol], arrivals: dict[Arrival, None], silence_s: float,
        strangers: Strangers[Any] | None,
    ) -> None:
        self._entrance = entrance
        self._make = make
        self._arrivals = arrivals
        self._silence_s = silence_s if strangers is None else min(silence_s, strangers.timeout_s)
        self._strangers = strangers
        self.authenticated = self.closed = False
        self.counted = 0
        self.last_active = 0.0
        self.served = False
        self.peer = self.peer_ip = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and wait for its first byte."""
        self._transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.peer_ip, self.peer = str(host), f"{host}:{port}"
        self._loop = asyncio.get_running_loop()
        self.last_active = self._loop.time()
        self._timer = self._loop.call_later(self._silence_s, self._silent)
        self._arrivals[self] = None
        admit(self, self._entrance.limits, self._strangers, self.last_active)

    def data_received(self, data: bytes) -> None:
        """Decide, and replace this protocol."""
        if self.closed:
            return
        entrance, transport = self._entrance, self._transport
        if data[0] != HANDSHAKE:
            if entrance.mode == ENFORCING:
                self.fail(NOT_ENCRYPTED)
                return
            inner = self._end()
            transport.set_protocol(inner)
            inner.connection_made(transport)
            inner.data_received(data)
            return
        if entrance.mode == DISABLED or entrance.context is None:
            self.fail(TLS_DISABLED if entrance.mode == DISABLED else NO_CERTIFICATE)
            return
        self._timer.cancel()
        self._timer = entrance.begin(self, self._loop)
        encrypted = TlsConnection(entrance.context, transport, self._shaken)
        transport.set_protocol(encrypted)
        encrypted.data_received(data)

    def _shaken(self, error: Exception | None) -> asyncio.Protocol | None:
        """Take the end of a handshake; return what is served if it is complete."""
        if self.closed:
            return None
        if error is not None:
            self.fail(*_reason_of(error))
            return None
        self._entrance.handshakes += 1
        return self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()

    def fail(self, reason: str, detail: str = "-") -> None:
        """Close the connection; an alert that was written is still sent."""
        if not self.closed:
            self._forget()
            self._entrance.failed(reason, self.peer, detail, self._loop.time())
            if reason in {TIMEOUT, TOO_MANY}:
                self._transport.abort()
            else:
                self._transport.close()

    def _silent(self) -> None:
        _log.info("connection closed for idleness peer=%s", self.peer)
        self.abort()

    def _end(self) -> asyncio.Protocol:
        self._forget()
        return self._make()

    def _forget(self) -> None:
        self.closed = True
        self._timer.cancel()
        if self._strangers is not None:
            self._strangers.lost(self)
        self._arrivals.pop(self, None)
        self._entrance.end(self)
        self._entrance.limits.lost(self)

    # --- what limits call

    def abort(self) -> None:
        """Close now."""
        self._forget()
        self._transport.abort()

    def held_bytes(self) -> int:
        """Nothing worth counting: part of a handshake."""
        return 0

    def wait_for_memory(self) -> None:
        """Nothing: a handshake takes no memory that grows."""


def _reason_of(error: Exception) -> tuple[str, str]:
    """Return why a handshake failed, and OpenSSL's word for it."""
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
