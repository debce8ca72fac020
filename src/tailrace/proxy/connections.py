"""Connections of the gRPC port, which the gRPC library accepts and never shows.

gRPC bounds their number by itself (``grpc.max_allowed_incoming_connections``), but it closes the new ones and keeps
those that are idle. So `GrpcConnections` looks at the sockets of this process every few seconds, and immediately when
the number of descriptors grows. It counts the connections in `ServerLimits` like all others, and closes those on which
no call was served in time. When three quarters of the allowed number are open, it closes connections until half of it
is: first those without a served call, then those that were used least recently, of the address that has the most. A
connection with a call under way stays. So does one of less than `YOUNG_S`, unless its address has many of them or
nearly all that are allowed are open.

Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Final, final

from tailrace.auth.addresses import network_of, parsed_address
from tailrace.env.descriptors import OpenSocket, open_descriptors, shut_down, sockets_of_port
from tailrace.env.supervision import supervised
from tailrace.errors import RefusalError
from tailrace.proxy.held import Held
from tailrace.remoting.addresses import address_text
from tailrace.remoting.limits import CAP, NO_CALL, ServerLimits

__all__ = ["GrpcConnection", "GrpcConnections"]

LOOK_S: Final = 0.05
"""Period of looks at the number of descriptors."""
SWEEP_S: Final = 2.0
"""Longest time between two looks at all sockets."""
REST, REST_S = 9, 0.1
"""Looks at all sockets take a tenth of the time; on a busy machine, where they take longer, the pause is shorter."""
MANY: Final = 64
"""Number of descriptors more than at the last look that is a reason to look at the sockets."""
YOUNG_S: Final = 1.0
"""A connection of this age may still begin its first call."""
YOUNG_OF_ADDRESS: Final = 16
"""Connections without a served call of one address that may be so young at a time."""
MANY_CALLS: Final = 512
"""After this many calls were under way and three quarters of them have ended, their memory is given back."""
FREE_S: Final = 10.0
"""Least time between two such."""
FREES: Final = 4
"""Memory is given back this often after as many calls were refused: when they end is not known."""
TOGETHER: Final = 512
"""Descriptors that are looked at before other work continues."""


@final
class GrpcConnection:
    """A connection of the gRPC port as `ServerLimits` sees it."""

    __slots__ = (
        "__weakref__", "_owner", "calls", "closed", "closing", "counted", "doomed", "last_active", "place", "served",
        "since", "socket", "unproven")

    def __init__(self, owner: GrpcConnections, place: tuple[str, int], now: float) -> None:
        self._owner = owner
        self.place = place
        self.since = self.last_active = now
        self.socket: OpenSocket | None = None
        """None until it was found among the sockets of the process."""
        self.calls = 0
        """Calls under way whose user is proven."""
        self.unproven = 0
        """Calls under way without a user."""
        self.served = False
        """True after a call of a proven user has sent its request."""
        self.doomed = self.closing = False
        """Set by `GrpcConnections.close`, and when its socket was ended."""
        self.closed = False
        """True after its socket was not found any more."""
        self.counted = 0

    @property
    def peer(self) -> str:
        """Address and port of the client."""
        return address_text(*self.place)

    @property
    def peer_ip(self) -> str:
        """Address of the client."""
        return self.place[0]

    @property
    def unauthenticated(self) -> bool:
        """True until a call was served, if calls need a user."""
        return self._owner.has_users and not self.served

    def abort(self) -> None:
        """Close it immediately."""
        self.closing = True
        self._owner.shut_down(self)

    def held_bytes(self) -> int:
        """Return 0: the memory of calls is bounded by their number and length."""
        return 0

    def wait_for_memory(self) -> None:
        """Do nothing: calls have limits of their own."""


@final
class GrpcConnections:
    """Watches the connections of a port. Call `start` when it is served, and `stop`."""

    def __init__(
        self, limits: ServerLimits, *, has_users: bool, free_memory: Callable[[], object] = lambda: None
    ) -> None:
        """``free_memory`` gives the memory of many calls that have ended back to the system."""
        self.has_users = has_users
        self._free_memory = free_memory
        self._most_calls = 0
        """Calls under way at a time since memory was given back."""
        self._refused = 0
        """Calls that were refused before memory was to be given back for them."""
        self._frees = 0
        """How often memory is still given back for them."""
        self._freed_s = 0.0
        self._limits = limits
        self._port = 0
        self._by_place: dict[tuple[str, int], GrpcConnection] = {}
        self._sockets: dict[tuple[int, int], OpenSocket | None] = {}
        self._doomed: dict[GrpcConnection, str] = {}
        self._woken = asyncio.Event()
        self._held = Held()
        self._swept_s = 0.0
        self._descriptors = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_place)

    def start(self, port: int) -> None:
        """Begin to watch a port."""
        self._port = port
        self._held.start(port)
        self._task = asyncio.get_running_loop().create_task(
            supervised("connections of gRPC", self._look))

    async def stop(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def of(self, place: tuple[str, int], now: float) -> GrpcConnection:
        """Return the connection from an address and port, on which a call begins."""
        found = self._by_place.get(place)
        if found is None:
            found = self._by_place[place] = GrpcConnection(self, place, now)
        found.last_active = now
        return found

    def close(self, connection: GrpcConnection, reason: str) -> None:
        """Close a connection for a limit, as soon as its socket is known."""
        connection.doomed = True
        if connection.socket is None:
            self._doomed[connection] = reason
            self._woken.set()
        elif not connection.closing:
            self._limits.close(connection, reason, asyncio.get_running_loop().time())

    def hold(self, address: str, reason: str, guilty: GrpcConnection | None = None) -> None:
        """Open no connections from an address for a while, and close ``guilty``, or those without a served call."""
        is_new = self._held.add(address, asyncio.get_running_loop().time())
        if guilty is not None:
            self.close(guilty, reason)
        elif is_new:
            network = network_of(address)
            for connection in list(self._by_place.values()):
                if not connection.served and network_of(connection.peer_ip) == network:
                    self.close(connection, reason)

    def shut_down(self, connection: GrpcConnection) -> None:
        """End a connection whose socket is known."""
        if connection.socket is not None:
            shut_down(connection.socket, self._port)

    # -- the watch

    async def _look(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._woken.wait()
        self._woken.clear()
        loop = asyncio.get_running_loop()
        now, descriptors = loop.time(), open_descriptors()
        self._held.release(now)
        self._look_at_calls(now)
        most = self._limits.grpc.connections_max
        if (self._doomed or now - self._swept_s >= SWEEP_S or not descriptors
                or descriptors > self._descriptors + MANY or (most and len(self._by_place) > most // 2)):
            await self.sweep()
            self._descriptors = open_descriptors()
            await asyncio.sleep(min(REST_S, REST * (loop.time() - now)))

    def _look_at_calls(self, now: float) -> None:
        """Free memory if many calls have ended: what they took is free, but in pieces between what is in use."""
        calls, refused = self._limits.grpc.calls.total, self._limits.grpc.refused.total()
        self._most_calls = max(self._most_calls, calls)
        if refused - self._refused >= MANY_CALLS:
            self._refused, self._frees = refused, FREES
        have_ended = self._most_calls >= MANY_CALLS and calls <= self._most_calls // 4
        if (have_ended or self._frees) and (not self._freed_s or now - self._freed_s >= FREE_S):
            self._most_calls, self._frees, self._freed_s = calls, max(self._frees - 1, 0), now
            with contextlib.suppress(RefusalError):  # the threads are busy
                self._free_memory()

    async def sweep(self) -> None:
        """Look at all sockets of the port, and close those over a limit."""
        loop = asyncio.get_running_loop()
        now = self._swept_s = loop.time()
        open_ones: set[tuple[str, int]] = set()
        seen: set[tuple[int, int]] = set()
        for number, found in enumerate(sockets_of_port(self._port, self._sockets, seen)):
            if found is not None:
                place = _place(found)
                open_ones.add(place)
                self._found(place, found, now)
            if number % TOGETHER == TOGETHER - 1:
                await asyncio.sleep(0)
        for key in self._sockets.keys() - seen:
            del self._sockets[key]
        for place, connection in list(self._by_place.items()):
            if place not in open_ones and not (connection.calls or connection.unproven) and connection.since < now:
                del self._by_place[place]
                connection.closed = True
                self._doomed.pop(connection, None)
                self._limits.lost(connection)
        self._close(loop.time())

    def _found(self, place: tuple[str, int], found: OpenSocket, now: float) -> None:
        connection = self._by_place.get(place)
        if connection is None:
            connection = self._by_place[place] = GrpcConnection(self, place, now)
        if connection.socket != found:
            if connection.socket is not None:  # a new connection from the same port of the client
                connection.since, connection.served = now, bool(connection.calls)
                self._limits.lost(connection)
                connection.doomed = False
            connection.socket, connection.closing = found, False
            self._limits.opened(connection, now)
        if connection.calls:
            connection.last_active = now

    def _close(self, now: float) -> None:
        doomed, self._doomed = self._doomed, {}
        for connection, reason in doomed.items():
            if connection.socket is None:
                self._doomed[connection] = reason
            else:
                self.close(connection, reason)
        for connection in list(self._by_place.values()):
            is_late = now - connection.since >= self._limits.grpc.first_call_s
            if is_late and not (connection.served or connection.calls):
                self.close(connection, NO_CALL)
        most = self._limits.grpc.connections_max
        stay = [c for c in self._by_place.values() if not c.closing]
        if not most or len(stay) <= most * 3 // 4:
            return
        of_address = Counter(network_of(c.peer_ip) for c in stay)
        strange = Counter(network_of(c.peer_ip) for c in stay if not c.served)
        is_full = len(stay) > most * 7 // 8
        order = sorted(
            (c for c in stay if c.socket is not None and not c.calls and (
                now - c.since >= YOUNG_S or is_full or strange[network_of(c.peer_ip)] > YOUNG_OF_ADDRESS)),
            key=lambda c: (-of_address[network_of(c.peer_ip)], c.last_active))
        for connection in [c for c in order if not c.served][:len(stay) - most // 2]:
            self.close(connection, CAP)
        served = sum(c.served for c in stay)
        if served > most * 3 // 4:  # else the others make room, maybe in the next look
            for connection in [c for c in order if c.served][:served - most // 2]:
                self.close(connection, CAP)


def _place(found: OpenSocket) -> tuple[str, int]:
    return str(parsed_address(found.peer[0].partition("%")[0])), found.peer[1]
