"""Limits of connections on which no user is authenticated yet ("strangers").

A request of a stranger has at most ``frame_max`` bytes. A stranger has ``timeout_s`` seconds to authenticate, and an
address has at most ``connections_max`` strangers. The servers of a process share one `Strangers`. Everything runs
in the thread of the event loop.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar, final

from tailrace.errors import RemotingFrameError
from tailrace.remoting.limits import TOO_MANY, Connection, ServerLimits

__all__ = ["Stranger", "Strangers", "admit"]


class Stranger(Connection, Protocol):
    """A connection on which a user may not be authenticated yet."""

    authenticated: bool
    """True after a user was authenticated."""
    peer_ip: str
    closed: bool


S = TypeVar("S", bound=Stranger)


@final
class Strangers(Generic[S]):
    """Connections without an authenticated user, by address, in the order of their arrival."""

    def __init__(self, frame_max: int, timeout_s: float, connections_max: int) -> None:
        self._frame_max = frame_max
        self.timeout_s = timeout_s
        self._connections_max = connections_max
        self._by_address: dict[str, dict[S, float]] = {}

    def check_frame(self, length: int) -> None:
        """Raise RemotingFrameError if a request of this many bytes is too long for a stranger."""
        if length > self._frame_max:
            raise RemotingFrameError(
                f"frame of {length} bytes before the first valid signature, over the limit of {self._frame_max}")

    def opened(self, connection: S, now: float) -> bool:
        """Add a new connection; return False if its address has too many."""
        found = self._by_address.setdefault(connection.peer_ip, {})
        if len(found) >= self._connections_max:
            self._forget(connection.peer_ip)
            found = self._by_address.setdefault(connection.peer_ip, {})
        found[connection] = now
        return len(found) <= self._connections_max

    def lost(self, connection: S) -> None:
        """Remove a connection."""
        found = self._by_address.get(connection.peer_ip, {})
        found.pop(connection, None)
        if not found:
            self._by_address.pop(connection.peer_ip, None)

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


def admit(connection: S, limits: ServerLimits, strangers: Strangers[S] | None, now: float) -> None:
    """Count a new connection in ``limits``, and in ``strangers`` if given; close a connection over a limit."""
    if limits.opened(connection, now) and strangers is not None and not strangers.opened(connection, now):
        limits.close(connection, TOO_MANY, now)
