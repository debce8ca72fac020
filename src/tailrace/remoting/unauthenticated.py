"""Limits of connections on which no user is authenticated yet.

A request on such a connection has at most 64 KiB. If its header has the name and the signature of a user, the request
may have up to ``frame_max`` bytes, because the first request of a producer may be a long message; whether the signature
is valid is known only after the body has arrived. Their memory has a limit of its own, see `tailrace.remoting.limits`.
It has ``timeout_s`` seconds to authenticate, and an address has at most ``connections_max`` of them. The servers of a
process share one `Unauthenticated`. Everything runs in the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar, final

from tailrace.auth.addresses import network_of
from tailrace.auth.model import NAME_MAX
from tailrace.auth.signature import ACCESS_KEY, SIGNATURE
from tailrace.errors import RemotingFrameError
from tailrace.remoting.limits import TOO_MANY, Connection, ServerLimits

__all__ = ["UnauthenticatedConnection", "UnauthenticatedFrameError", "Unauthenticated", "admit"]

HEADER_MAX: Final = 64 << 10
"""Largest header without an authenticated user, in bytes, and largest request that names no user."""
SIGNATURE_MAX: Final = 64
"""Longest signature, in characters. A valid one has 28."""


class UnauthenticatedFrameError(RemotingFrameError):
    """A request, or its header, is too long without an authenticated user."""


class UnauthenticatedConnection(Connection, Protocol):
    """A connection on which a user may not be authenticated yet."""

    authenticated: bool
    """True after a user was authenticated."""
    closed: bool


S = TypeVar("S", bound=UnauthenticatedConnection)


@final
class Unauthenticated(Generic[S]):
    """Connections without an authenticated user, by address, in the order of their arrival."""

    def __init__(self, frame_max: int, timeout_s: float, connections_max: int) -> None:
        self._frame_max = frame_max
        self.timeout_s = timeout_s
        self._connections_max = connections_max
        self._by_address: dict[str, dict[S, float]] = {}

    def check_frame(self, length: int, header_length: int) -> bool:
        """Return True if the header decides whether a request of this length is read (`check_header`).

        Raises UnauthenticatedFrameError if the request or its header is too long without an authenticated user.
        """
        if header_length > HEADER_MAX:
            raise UnauthenticatedFrameError(
                f"header of {header_length} bytes before the first valid signature, over the limit of {HEADER_MAX}")
        if length > self._frame_max:
            raise UnauthenticatedFrameError(
                f"frame of {length} bytes before the first valid signature, over the limit of {self._frame_max}")
        return length > HEADER_MAX

    @staticmethod
    def check_header(length: int, ext: Mapping[str, str]) -> None:
        """Raise UnauthenticatedFrameError if the header of a long request has no name or no signature of a user."""
        if not (0 < len(ext.get(ACCESS_KEY, "")) <= NAME_MAX and 0 < len(ext.get(SIGNATURE, "")) <= SIGNATURE_MAX):
            raise UnauthenticatedFrameError(
                f"frame of {length} bytes without the name and signature of a user before the first valid signature, "
                f"over the limit of {HEADER_MAX}")

    def opened(self, connection: S, now: float) -> bool:
        """Add a new connection; return False if its address has too many."""
        address = network_of(connection.peer_ip)
        found = self._by_address.setdefault(address, {})
        if len(found) >= self._connections_max:
            self._forget(address)
            found = self._by_address.setdefault(address, {})
        found[connection] = now
        return len(found) <= self._connections_max

    def lost(self, connection: S) -> None:
        """Remove a connection."""
        address = network_of(connection.peer_ip)
        found = self._by_address.get(address, {})
        found.pop(connection, None)
        if not found:
            self._by_address.pop(address, None)

    def late(self, now: float) -> list[S]:
        """Return the connections whose time is over, and remove those that are authenticated."""
        found = []
        for address in list(self._by_address):
            self._forget(address)
            for connection, since in self._by_address.get(address, {}).items():
                if now - since < self.timeout_s:
                    break
                found.append(connection)
        return found

    def _forget(self, address: str) -> None:
        kept = {
            c: since for c, since in self._by_address[address].items() if not (c.authenticated or c.closed)}
        if kept:
            self._by_address[address] = kept
        else:
            del self._by_address[address]


def admit(
    connection: S, limits: ServerLimits, unauthenticated: Unauthenticated[S] | None, now: float,
    descriptor: int = -1,
) -> None:
    """Count a new connection in ``limits``, and in ``unauthenticated`` if given; close a connection over a limit."""
    opened = limits.opened(connection, now, descriptor)
    if opened and unauthenticated is not None and not unauthenticated.opened(connection, now):
        limits.close(connection, TOO_MANY, now)
