"""The decision at the beginning of a call: who makes it, and is it within the limits.

Both need only the metadata and the connection, so a call is decided before its request has arrived, and before it is
counted or kept. A call whose user is proven has a share of all calls, see `tailrace.remoting.shares`. Calls without a
proven user end with their answer. A connection that has too many of them under way is closed. After its address has
begun more than `NO_USER_BURST`, and `NO_USER_CALLS_A_SECOND` since then, the next ones are aborted
without a message; after as many again the address is held, see `tailrace.proxy.held`. Calls of a user that are
cancelled before their request was read have the same budget.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn, final

import grpc

from tailrace.auth.addresses import network_of
from tailrace.auth.model import User
from tailrace.errors import RefusalError
from tailrace.proxy.caller import address_of
from tailrace.proxy.connections import GrpcConnection, GrpcConnections
from tailrace.proxy.entry import Entry
from tailrace.proxy.protocol import Code, GrpcError
from tailrace.proxy.turns import CallTurns
from tailrace.remoting.limits import (
    CALLS,
    CANCELLED_CALLS,
    NO_MESSAGE,
    NO_USER_CALLS,
    TOO_LATE,
    CallLimits,
)
from tailrace.remoting.shares import Holder

__all__ = ["Admission", "Admitted"]

NO_USER_CALLS_OF_ONE: Final = 64
"""Calls without a user that wait for their end on one connection."""
NO_USER_CALLS_MAX: Final = 1_024
"""The same on all connections together."""
WAITING_OF_ONE, WAITING_MAX = 8, 64
"""With more of them under way, of one connection or of all, none waits for its first request."""
NO_USER_BURST: Final = 200
NO_USER_CALLS_A_SECOND: Final = 50
LOOK_S: Final = 0.1
"""Period of looks for requests that have not come in time."""
ADDRESSES_MAX: Final = 10_000
"""Addresses with calls without a user that are remembered. The one whose last call is the oldest is forgotten."""


@final
class _Budgets:
    """Calls in vain that each address, or user of an address, may begin."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, whose: str, now: float) -> bool:
        """Count a call; return whether an address, or a user of an address, had one left."""
        full_at = max(now, self._full_at.pop(whose, now)) + 1 / NO_USER_CALLS_A_SECOND
        has_one = full_at - now <= NO_USER_BURST / NO_USER_CALLS_A_SECOND
        if len(self._full_at) >= ADDRESSES_MAX:
            self._full_at.popitem(last=False)
        self._full_at[whose] = full_at if has_one else full_at - 1 / NO_USER_CALLS_A_SECOND
        return has_one


@final
class Admitted:
    """A call that may begin: its user, None where calls need none, its connection, and the end of its patience."""

    __slots__ = ("connection", "context", "ends_at", "holder", "is_late", "settled", "user")

    def __init__(self, context: Any, connection: GrpcConnection, holder: Holder, user: User | None) -> None:
        self.context = context
        self.connection = connection
        self.holder = holder
        self.user = user
        self.settled = False
        """True after its first request was read, or did not come in time."""
        self.is_late = False
        """True if its request has not come in time."""
        self.ends_at = 0.0
        """Time of the event loop until which the first request must have arrived."""


@final
class Admission:
    """Lets calls begin. ``take`` counts a request in the quotas of its user (`Access.take`), if there are any."""

    def __init__(
        self, entry: Entry, limits: CallLimits, connections: GrpcConnections,
        take: Callable[[str, GrpcConnection, int, int], None] | None = None,
    ) -> None:
        self._take = take
        self._entry = entry
        self._limits = limits
        self._connections = connections
        self._unauthenticated = 0
        self._budgets, self._floods = _Budgets(), _Budgets()
        self._turns = CallTurns()
        self._reading: dict[Admitted, asyncio.Task[Any]] = {}
        """Calls whose request must come in time, with the task that reads it."""
        self._look_s = min(LOOK_S, limits.first_message_s)
        self._looks = False
        """Whether a look at them is scheduled."""

    async def begin(self, call: str, context: Any) -> Admitted:
        """Count a call. ``call`` is the name of its request.

        Raises GrpcError (UNAUTHORIZED) if no user has signed the call. A call over a limit is aborted with
        RESOURCE_EXHAUSTED.
        """
        loop = asyncio.get_running_loop()
        peer = context.peer()
        place = address_of(peer)
        connection = self._connections.of(place, loop.time())
        if connection.doomed:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the connection is closed for a limit")
        try:
            user = self._entry.user(call, context)
        except GrpcError:
            await self._begin_unproven(connection, context)
            raise
        holder = Holder(place[0], "" if user is None else user.name, peer)
        whose = self._limits.calls.refusal(holder)
        if whose:
            await self.refuse(
                context, f"{CALLS} of {whose}", holder, grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many calls of {whose} are under way ({self._limits.calls.most} of all clients)")
        self._limits.calls.add(holder)
        connection.calls += 1
        admitted = Admitted(context, connection, holder, user)
        context.add_done_callback(partial(self._ended, admitted))
        await self._turns.wait(_whose(holder))
        admitted.ends_at = loop.time() + self._limits.first_message_s
        return admitted

    async def first(self, admitted: Admitted, reason: str = NO_MESSAGE) -> Any:
        """Return the next request of a call, which must arrive before the end of its patience; else it is aborted.

        Raises GrpcError (TOO_MANY_REQUESTS) if the user is over a quota.
        """
        context, loop, task = admitted.context, asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if not self._looks:
            self._looks = True
            loop.call_later(self._look_s, self._look, loop)
        self._reading[admitted] = task
        try:
            request = await context.read()
        except asyncio.CancelledError:
            if not admitted.is_late or task.uncancel():
                raise
            admitted.settled = True
            await self.refuse(
                context, reason, admitted.holder, grpc.StatusCode.DEADLINE_EXCEEDED,
                f"{reason}: {self._limits.first_message_s:g} s")
        finally:
            del self._reading[admitted]
        if request is not grpc.aio.EOF:
            admitted.settled = admitted.connection.served = True
            if self._take is not None and admitted.user is not None:
                try:
                    self._take(admitted.user.name, admitted.connection, request.ByteSize(), 0)
                except RefusalError as refusal:
                    raise GrpcError(Code.TOO_MANY_REQUESTS, refusal.remark) from None
        return request

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the reads of requests that have not come in time. A timer for each would cost more than the read."""
        now = loop.time()
        for admitted, task in self._reading.items():
            if admitted.ends_at <= now and not admitted.is_late:
                admitted.is_late = True
                task.cancel()
        self._looks = bool(self._reading)
        if self._looks:
            loop.call_later(self._look_s, self._look, loop)

    async def first_of_refused(self, context: Any) -> None:
        """Wait for the first request of a call that is refused with a message, but not for long.

        An answer that overtakes this request is replaced with an error of its own by gRPC's library for Python.
        """
        connection = self._connections.of(address_of(context.peer()), asyncio.get_running_loop().time())
        if connection.unproven <= WAITING_OF_ONE and self._unauthenticated <= WAITING_MAX:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.first_message_s):
                    await context.read()

    async def refuse(self, context: Any, reason: str, holder: Holder, code: grpc.StatusCode, why: str) -> NoReturn:
        """Count a call that is refused, and abort it; its answer has no message, so the client need not read."""
        self._limits.refuse(reason, holder, asyncio.get_running_loop().time())
        await _abort(context, code, why)

    async def _begin_unproven(self, connection: GrpcConnection, context: Any) -> None:
        now = asyncio.get_running_loop().time()
        has_too_many = (
            connection.unproven >= NO_USER_CALLS_OF_ONE or self._unauthenticated >= NO_USER_CALLS_MAX)
        if has_too_many:
            self._connections.close(connection, NO_USER_CALLS)
        whose = network_of(connection.peer_ip)
        if has_too_many or not self._budgets.take(whose, now):
            if not self._floods.take(whose, now):
                self._connections.hold(connection.peer_ip, NO_USER_CALLS)
            await self.refuse(
                context, NO_USER_CALLS, Holder(connection.peer_ip), grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many calls without a user")
        self._limits.refuse(TOO_LATE, Holder(connection.peer_ip), now)
        connection.unproven += 1
        self._unauthenticated += 1
        context.add_done_callback(partial(self._unproven_ended, connection))

    def _ended(self, admitted: Admitted, _: Any) -> None:
        connection, holder = admitted.connection, admitted.holder
        connection.calls -= 1
        self._limits.calls.add(holder, -1)
        if not admitted.settled:  # its client has cancelled it, or sent nothing
            now, whose = asyncio.get_running_loop().time(), _whose(holder)
            if not self._budgets.take(whose, now) and not self._floods.take(whose, now):
                self._connections.hold(connection.peer_ip, CANCELLED_CALLS, connection)

    def _unproven_ended(self, connection: GrpcConnection, _: Any) -> None:
        connection.unproven -= 1
        self._unauthenticated -= 1


def _whose(holder: Holder) -> str:
    """Return who takes turns with others, and has a budget: a user of an address."""
    return f"{network_of(holder.address)} {holder.user}"


async def _abort(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    with contextlib.suppress(grpc.aio.InternalError):  # the client has gone
        await context.abort(code, why)
    raise asyncio.CancelledError  # which gRPC expects then; it logs any other error with a traceback
