"""Limits of all clients of a process together: connections, and bytes in memory.

All servers of a process share one `ServerLimits`, also that for HTTP. Everything runs in the thread of the event
loop.

Connections. At most ``connections_max`` are open, so that the store can always open files. When one more arrives, or
when its descriptor belongs to the last ones of the process (``descriptors_max``), another one is closed: first one that
has not sent a complete request, or has no user yet, then one of the address that has the most, and of these the least
recently used. If all connections of that address were used within the last second, and the new one belongs to an
address with as many, the new one is closed instead.

Bytes. A connection takes memory for an incomplete frame, for requests that wait, for answers that its client has
not read, and for held pulls. If all connections together take more than ``bytes_max``, `ServerLimits.tight` is
True: no request is served, no connection is read, and connections that have kept bytes for half a second are
closed, the largest first, until there is room. Unauthenticated connections, where clients need a user, share
``unauthenticated_bytes_max`` instead: above it the largest ones of the address that takes the most are closed
immediately, and no other connection waits. Their incomplete frames are read slowly: after `NO_USER_READ` bytes
they take turns.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from tailrace import events
from tailrace.auth.addresses import network_of
from tailrace.auth.quotas import QUOTAS
from tailrace.env.supervision import caught
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.remoting.shares import ADDRESS, ALL, CONNECTION, USER, Holder, Shares
from tailrace.remoting.turns import Turns

__all__ = ["CallLimits", "Connection", "ServerLimits"]

_log = get_logger(__name__)

BYTES_MAX: Final = 256 << 20
NO_USER_BYTES_MAX: Final = 32 << 20
NO_USER_READ: Final = 1 << 20
"""Bytes of incomplete frames of unauthenticated connections in a period; then these wait for the next period."""
NO_USER_READ_S: Final = 0.05
NO_USER_TOGETHER: Final = 8
"""Number of unauthenticated connections that are read again after a period."""
STALL_S: Final = 30.0
RECENT_S: Final = 1.0
KEPT_S: Final = 0.5
RELIEF_S: Final = 0.1
CANDIDATES: Final = 64
FEW_BYTES: Final = 256 << 10
"""Bytes of settings that a client of gRPC gets even if others have taken nearly all."""

CAP: Final = "connections"
BYTES: Final = "bytes"
STALLED_FRAME: Final = "incomplete request"
UNREAD: Final = "answers are not read"
SLOW_HTTP: Final = "slow http"
TOO_LATE: Final = "no user in time"
TOO_MANY: Final = "connections without user"
NO_USER_BYTES: Final = "bytes without user"
NO_USER_FRAME: Final = "long request without user"
NO_CALL: Final = "no call in time"
NO_USER_CALLS: Final = "calls without user"
CANCELLED_CALLS: Final = "cancelled calls"
BAD_FRAME: Final = "bad frame"

CLOSED: Final = (
    CAP, BYTES, STALLED_FRAME, UNREAD, SLOW_HTTP, TOO_LATE, TOO_MANY, NO_USER_BYTES, NO_USER_FRAME,
    NO_CALL, NO_USER_CALLS, CANCELLED_CALLS)
"""Reasons for which connections are closed."""

NO_MESSAGE: Final = "no message in time"
NO_SETTINGS: Final = "no settings in time"
CALLS: Final = "calls"
CLIENTS: Final = "clients"
SETTINGS: Final = "bytes of settings"


REFUSED: Final = (
    TOO_LATE, NO_MESSAGE, NO_SETTINGS, NO_USER_CALLS,
    *(f"{what} of {whose}" for what in (CALLS, CLIENTS, SETTINGS) for whose in (ALL, ADDRESS, USER)),
    f"{CALLS} of {CONNECTION}")
"""Reasons for which calls of gRPC are refused."""


class Connection(Protocol):
    """A connection of any protocol."""

    last_active: float
    """Time of the event loop at which bytes were last received or sent."""

    counted: int
    """Bytes with which it was last counted."""

    @property
    def peer(self) -> str:
        """Address and port of the client."""
        ...

    @property
    def peer_ip(self) -> str:
        """Address of the client."""
        ...

    @property
    def unauthenticated(self) -> bool:
        """True until a user is authenticated on it; False where clients need no user."""
        ...

    @property
    def served(self) -> bool:
        """True after a complete request was received."""
        ...

    def abort(self) -> None:
        """Close it immediately."""
        ...

    def held_bytes(self) -> int:
        """Return the bytes of memory that it takes."""
        ...

    def wait_for_memory(self) -> None:
        """Stop reading, and pass a function to `ServerLimits.wait` that reads again."""
        ...


@dataclass(slots=True, kw_only=True)
class CallLimits:
    """Limits of the gRPC endpoint, whose connections and calls a library handles."""

    connections_max: int = 0
    """Connections of its port; 0: no limit."""
    per_connection: int = 1_000
    """Calls under way on one connection."""
    first_message_s: float = 5.0
    first_call_s: float = 30.0
    calls: Shares = field(default_factory=lambda: Shares(12_000))
    """Calls under way."""
    clients: Shares = field(default_factory=lambda: Shares(10_000))
    """Clients that have sent their settings."""
    settings: Shares = field(default_factory=lambda: Shares(64 << 20, few=FEW_BYTES))
    """Bytes of these settings."""
    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REFUSED, 0)))
    """Number of calls that were refused for a limit, by reason."""
    lines: LogRateLimiter = field(default_factory=LogRateLimiter)

    def refuse(self, reason: str, holder: Holder, now: float) -> None:
        """Count a refused call, and log at most one line a minute for each reason."""
        self.refused[reason] += 1
        if count := self.lines.due(reason, now):
            events.GRPC_CALLS_REFUSED.log(
                _log, reason=reason, address=holder.address, user=repr(holder.user), count=count)


@final
class ServerLimits:
    """Counts connections and bytes, and closes connections over a limit. ``connections_max`` 0 means no limit."""

    def __init__(
        self, connections_max: int = 0, bytes_max: int = BYTES_MAX, stall_s: float = STALL_S, *,
        unauthenticated_bytes_max: int = NO_USER_BYTES_MAX, grpc: CallLimits | None = None,
        descriptors_max: int = 0,
    ) -> None:
        self.connections_max = connections_max
        self.descriptors_max = descriptors_max
        self.bytes_max = bytes_max
        self.unauthenticated_bytes_max = unauthenticated_bytes_max
        self.stall_s = stall_s
        self.grpc = grpc or CallLimits()
        self.turns = Turns()
        """Turns of connections that have sent many requests together."""
        self.tight = False
        """True while requests wait for memory."""
        self.bytes = 0
        """Bytes that all connections took at their last count, without unauthenticated ones."""
        self.unauthenticated_bytes = 0
        """Bytes that connections without a user took at their last count."""
        self.tightened = 0
        """Number of times that requests had to wait for memory."""
        self.closed: Counter[str] = Counter(dict.fromkeys(CLOSED, 0))
        """Number of connections that were closed for a limit, by reason."""
        self.over_quota: Counter[str] = Counter(dict.fromkeys(QUOTAS, 0))
        """Number of requests that were refused because of a quota of their user, by quota."""
        self._connections: dict[Connection, None] = {}
        self._keeping: dict[Connection, float] = {}
        self._unauthenticated: dict[Connection, int] = {}
        self._candidates: list[tuple[tuple[bool, float], Connection]] = []
        self._of_address: Counter[str] = Counter()
        self._waiting: dict[Callable[[], None], None] = {}
        self._turns: dict[Callable[[], None], None] = {}
        self._next_turn = False
        self._unauthenticated_read = 0
        self._lines = LogRateLimiter()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes that all connections took at their last count."""
        return self.bytes + self.unauthenticated_bytes

    def backlog(self, most: int) -> int:
        """Return how many connections a listener may accept in one turn of the loop, before they are counted."""
        return min(most, max(16, self.connections_max // 8)) if self.connections_max else most

    # -- connections

    def opened(self, connection: Connection, now: float, descriptor: int = -1) -> bool:
        """Add a new connection; return False if it was closed because too many connections are busy."""
        self._connections[connection] = None
        is_last = 0 < self.descriptors_max <= descriptor
        while is_last or (self.connections_max and len(self._connections) > self.connections_max):
            is_last = False
            victim = self._least_recently_used(connection, now)
            self.close(victim, CAP, now)
            if victim is connection:
                return False
        return True

    def lost(self, connection: Connection) -> None:
        """Remove a connection and its bytes from the counts."""
        self._connections.pop(connection, None)
        self.count(connection, 0, 0.0)

    def close(self, connection: Connection, reason: str, now: float) -> None:
        """Close a connection for a limit, and log at most one line a minute for each reason."""
        self.closed[reason] += 1
        self._connections.pop(connection, None)
        if count := self._lines.due(reason, now):
            events.CONNECTION_CLOSED_FOR_A_LIMIT.log(
                _log, peer=connection.peer, reason=reason, count=count, connections=len(self._connections),
                bytes=self.bytes)
        self.count(connection, 0, now)
        connection.abort()

    def bad_frame(self, peer: str, problem: Exception, now: float) -> None:
        """Log that a client sent bytes that are not a frame, at most once a minute."""
        if count := self._lines.due(BAD_FRAME, now):
            events.CONNECTION_CLOSED_FOR_BAD_FRAME.log(_log, peer=peer, reason=problem, count=count)

    def _least_recently_used(self, newcomer: Connection, now: float) -> Connection:
        while True:
            if not self._candidates:
                of_address = self._of_address = Counter(network_of(c.peer_ip) for c in self._connections)
                found = heapq.nsmallest(
                    CANDIDATES,
                    ((use[0], -of_address[network_of(c.peer_ip)], use[1], n, use, c)
                     for n, c in enumerate(self._connections) if c is not newcomer for use in (_use(c),)),
                    key=lambda entry: entry[:4])
                self._candidates = [(use, c) for *_, use, c in reversed(found)]
                if not found:
                    return newcomer
            use, candidate = self._candidates.pop()
            if candidate in self._connections and use == _use(candidate):
                settled, last_active = use
                has_more = self._has_more(candidate, newcomer)
                return newcomer if settled and now - last_active < RECENT_S and not has_more else candidate

    def _has_more(self, candidate: Connection, newcomer: Connection) -> bool:
        of_address = self._of_address
        return of_address[network_of(candidate.peer_ip)] > of_address[network_of(newcomer.peer_ip)] + CANDIDATES

    # -- bytes

    def count(self, connection: Connection, size: int, now: float) -> None:
        """Set the bytes that a connection takes."""
        before = connection.counted
        if connection in self._unauthenticated:
            self.unauthenticated_bytes -= self._unauthenticated.pop(connection)
        else:
            self.bytes -= before
        connection.counted = size
        if size and connection.unauthenticated:
            self._keeping.pop(connection, None)
            self._unauthenticated[connection] = size
            self.unauthenticated_bytes += size
            self._slow_down(connection, size - before)
            if self.unauthenticated_bytes > self.unauthenticated_bytes_max:
                self._close_unauthenticated(now)
            return
        self.bytes += size
        if not size:
            self._keeping.pop(connection, None)
        elif connection not in self._keeping:
            self._keeping[connection] = now
        if self.bytes > self.bytes_max and not self.tight:
            self._tighten()

    def wait(self, go_on: Callable[[], None], *, unauthenticated: bool = False) -> None:
        """Call ``go_on`` when `tight` is False again, or when an unauthenticated connection has its turn."""
        if unauthenticated and not self.tight:
            self._turns[go_on] = None
        else:
            self._waiting[go_on] = None

    def _slow_down(self, connection: Connection, more: int) -> None:
        """Have an unauthenticated connection wait if these have sent much in this period."""
        self._unauthenticated_read += max(0, more)
        if more > 0 and not self._next_turn:
            self._next_turn = True
            asyncio.get_running_loop().call_later(NO_USER_READ_S, self._take_turns)
        if more > 0 and self._unauthenticated_read > NO_USER_READ and not self.tight:
            connection.wait_for_memory()

    def _take_turns(self) -> None:
        self._unauthenticated_read = 0
        self._next_turn = bool(self._turns)
        if self._next_turn:
            asyncio.get_running_loop().call_later(NO_USER_READ_S, self._take_turns)
        for go_on in list(self._turns)[:NO_USER_TOGETHER]:
            del self._turns[go_on]
            with caught("connection limits"):
                go_on()

    def _tighten(self) -> None:
        self.tight = True
        self.tightened += 1
        loop = asyncio.get_running_loop()
        if self._lines.due("tight", loop.time()):
            events.REQUESTS_WAIT_FOR_MEMORY.log(
                _log, bytes=self.bytes, limit=self.bytes_max, connections=len(self._connections), count=self.tightened)
        loop.call_later(RELIEF_S, self._relieve)
        for connection in list(self._connections):
            connection.wait_for_memory()

    def _relieve(self) -> None:
        """Close the largest connections until there is room, then serve requests again."""
        loop = asyncio.get_running_loop()
        room = self.bytes_max - self.bytes_max // 8
        with caught("connection limits"):  # or all connections would wait for ever
            self._close_largest(room, loop.time())
        if self.bytes > room:
            loop.call_later(RELIEF_S, self._relieve)
            return
        self.tight = False
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            if self.tight:
                self._waiting[go_on] = None
            else:
                with caught("connection limits"):
                    go_on()

    def _close_unauthenticated(self, now: float) -> None:
        """Close the largest connections without a user of the addresses that take the most."""
        room = self.unauthenticated_bytes_max - self.unauthenticated_bytes_max // 8
        of_address: dict[str, list[Connection]] = defaultdict(list)
        for connection in sorted(self._unauthenticated, key=self._unauthenticated.__getitem__):
            of_address[network_of(connection.peer_ip)].append(connection)
        totals = {address: sum(map(self._unauthenticated.__getitem__, found)) for address, found in of_address.items()}
        while self.unauthenticated_bytes > room:
            largest = max(totals, key=totals.__getitem__)
            connection = of_address[largest].pop()
            totals[largest] -= connection.counted
            self.close(connection, NO_USER_BYTES, now)

    def _close_largest(self, room: int, now: float) -> None:
        for connection in list(self._keeping):
            self.count(connection, connection.held_bytes(), now)
        if self.bytes > room:
            old = [c for c, since in self._keeping.items() if now - since >= KEPT_S]
            for connection in sorted(old, key=lambda c: c.counted, reverse=True):
                if self.bytes <= room:
                    break
                self.close(connection, BYTES, now)


def _use(connection: Connection) -> tuple[bool, float]:
    return connection.served and not connection.unauthenticated, connection.last_active
