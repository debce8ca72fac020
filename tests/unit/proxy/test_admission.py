"""Calls that may begin, and calls that are refused before their request was read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc

from tailrace.auth.model import User
from tailrace.proxy import admission
from tailrace.proxy.admission import Admission
from tailrace.proxy.connections import GrpcConnections
from tailrace.proxy.protocol import Code, GrpcError, service
from tailrace.remoting.limits import REFUSED, CallLimits, ServerLimits
from tailrace.remoting.shares import Shares


class Aborted(Exception):
    pass


class Call:
    """A call as gRPC shows it."""

    def __init__(self, peer="ipv4:10.0.0.1:1", user=""):
        self._peer, self.user = peer, user
        self.done, self.status, self.requests = [], None, asyncio.Queue()

    def peer(self):
        return self._peer

    def add_done_callback(self, callback):
        self.done.append(callback)

    async def abort(self, code, details):
        self.status = code, details
        raise Aborted

    async def read(self):
        return await self.requests.get()

    def end(self):
        for callback in self.done:
            callback(self)


class Entry:
    has_users = True

    def user(self, call, context):
        if not context.user:
            raise GrpcError(Code.UNAUTHORIZED, f"{call}: username cannot be null.")
        return User(context.user, "p")


class World:
    def __init__(self, calls=1_000, **limits):
        self.limits = ServerLimits(grpc=CallLimits(calls=Shares(calls), **limits))
        self.grpc = self.limits.grpc
        self.connections = GrpcConnections(self.limits, has_users=True)
        self.closed = []
        self.connections.close = lambda connection, reason: self.closed.append((connection.peer, reason))
        self.held = []
        self.connections.hold = lambda address, reason, guilty=None: self.held.append(
            (guilty.peer if guilty else address, reason))
        self.admission = Admission(Entry(), self.grpc, self.connections)

    async def begins(self, call):
        """Return an empty text if a call begins, else why not."""
        try:
            await self.admission.begin("SendMessageRequest", call)
        except Aborted:
            return call.status[1]
        except GrpcError as error:
            return error.message
        return ""

    def refused(self):
        return {reason: n for reason, n in self.grpc.refused.items() if n}


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_call_without_a_user_is_refused_before_it_counts():
    async def test():
        world = World()
        call = Call()
        assert "username cannot be null" in await world.begins(call)
        assert world.grpc.calls.total == 0
        assert world.refused() == {"no user in time": 1}

    run(test)


def test_calls_without_a_user_that_do_not_end_cost_their_connection(monkeypatch):
    monkeypatch.setattr(admission, "NO_USER_CALLS_OF_ONE", 5)
    monkeypatch.setattr(admission, "NO_USER_CALLS_MAX", 12)

    async def test():
        world = World()
        for _ in range(3):  # calls that end are not many at a time
            calls = [Call() for _ in range(5)]
            for call in calls:
                assert "username" in await world.begins(call)
            for call in calls:
                call.end()
        assert not world.closed
        for _ in range(5):
            await world.begins(Call())
        last = Call()
        assert await world.begins(last) == "too many calls without a user"
        assert last.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.closed == [("10.0.0.1:1", "calls without user")]
        for number in range(2, 9):
            await world.begins(Call(f"ipv4:10.0.0.{number}:1"))
        assert "too many" in await world.begins(Call("ipv4:10.0.0.9:1")), "of all connections together"
        assert await world.begins(Call("ipv4:10.0.0.9:2", "ann")) == "", "a user is not concerned"

    run(test)


def test_calls_without_a_user_have_a_budget_also_if_they_end(monkeypatch):
    """Calls that were cancelled immediately, thousands in a second, were never many at a time."""
    monkeypatch.setattr(admission, "NO_USER_BURST", 20)
    monkeypatch.setattr(admission, "NO_USER_CALLS_A_SECOND", 0.001)

    async def test():
        world = World()
        for number in range(20):
            call = Call(f"ipv4:10.0.0.1:{number % 4}")
            assert "username" in await world.begins(call)
            call.end()
        assert not world.closed
        for port in (1, 7):
            call = Call(f"ipv4:10.0.0.1:{port}")
            assert await world.begins(call) == "too many calls without a user"
            assert call.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not call.done, "it is not counted"
        assert not world.closed, "its client would open all its streams again"
        assert not world.held
        for _ in range(18):
            assert await world.begins(Call("ipv4:10.0.0.1:1")) == "too many calls without a user"
        assert not world.held, "so many calls again are refused with an answer"
        assert await world.begins(Call("ipv4:10.0.0.1:1")) == "too many calls without a user"
        assert world.held == [("10.0.0.1", "calls without user")]
        assert await world.begins(Call("ipv4:10.0.0.1:2", "ann")) == "", "a user of the address is not concerned"
        assert "username" in await world.begins(Call("ipv4:10.0.0.2:1")), "nor another address"

    run(test)


def test_calls_of_a_user_that_end_before_their_request_have_a_budget(monkeypatch):
    """A user that cancelled its calls immediately kept all others waiting, and gRPC's queue full."""
    monkeypatch.setattr(admission, "NO_USER_BURST", 20)
    monkeypatch.setattr(admission, "NO_USER_CALLS_A_SECOND", 0.001)

    async def test():
        world = World()
        for number in range(60):
            call = Call("ipv4:10.0.0.1:1", "ann")
            admitted = await world.admission.begin("SendMessageRequest", call)
            if number < 20:
                call.requests.put_nowait(service.SendMessageRequest())
                await world.admission.first(admitted)
            call.end()
        assert not world.held
        await world.begins(other := Call("ipv4:10.0.0.1:1", "bob"))
        other.end()
        assert not world.held, "each user of an address has its own budget"
        await world.begins(last := Call("ipv4:10.0.0.1:2", "ann"))
        last.end()
        assert world.held == [("10.0.0.1:2", "cancelled calls")]
        assert world.grpc.calls.total == 0

    run(test)


def test_calls_on_a_connection_that_is_being_closed_are_refused_without_a_look_at_their_user():
    async def test():
        world = World()
        world.connections.of(("10.0.0.1", 1), 0.0).doomed = True
        call = Call(user="ann")
        assert await world.begins(call) == "the connection is closed for a limit"
        assert call.status[0] is grpc.StatusCode.UNAVAILABLE, "the client sends it again on another connection"

    run(test)


def test_an_address_may_begin_calls_without_a_user_again_after_a_while(monkeypatch):
    monkeypatch.setattr(admission, "NO_USER_BURST", 10)
    monkeypatch.setattr(admission, "NO_USER_CALLS_A_SECOND", 4)
    monkeypatch.setattr(admission, "ADDRESSES_MAX", 3)
    budgets = admission._Budgets()
    assert sum(budgets.take("10.0.0.1", 100.0) for _ in range(50)) == 10
    assert sum(budgets.take("10.0.0.1", 101.0) for _ in range(50)) == 4
    assert sum(budgets.take("10.0.0.1", 200.0) for _ in range(50)) == 10
    for number in range(10):
        budgets.take(f"10.0.1.{number}", 200.0)
    assert len(budgets._full_at) == 3


def test_a_client_that_has_gone_is_refused_silently():
    """It was logged with a traceback for each call of a connection that was closed."""
    async def gone(code, details):
        raise grpc.aio.InternalError("Failed execute_batch")

    async def test():
        world = World()
        world.connections.of(("10.0.0.1", 1), 0.0).doomed = True
        call = Call()
        call.abort = gone
        with pytest.raises(asyncio.CancelledError):  # what gRPC takes for the end of a call, without a log line
            await world.begins(call)

    run(test)


def test_a_refused_stream_waits_for_its_first_request_but_not_for_long():
    async def test():
        world = World(first_message_s=0.05)
        for comes in (True, False):
            call = Call()
            assert "username" in await world.begins(call)
            waiting = asyncio.create_task(world.admission.first_of_refused(call))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            if comes:
                call.requests.put_nowait(SimpleNamespace())
            await waiting
            call.end()
        for _ in range(admission.WAITING_OF_ONE + 1):
            call = Call()
            assert "username" in await world.begins(call)
        await asyncio.wait_for(world.admission.first_of_refused(call), 0.04)  # none waits when there are many

    run(test)


def test_greedy_users_leave_room_and_calls_that_end_are_given_back():
    async def test():
        world = World()
        calls = []
        while not (why := await world.begins(call := Call("ipv4:10.0.0.1:1", "ann"))):
            calls.append(call)
        assert why.startswith("too many calls of one ")
        assert len(calls) < 500
        assert await world.begins(Call("ipv4:10.0.0.1:2", "bob")) == ""
        assert await world.begins(Call("ipv4:10.0.0.2:1", "bob")) == ""
        for call in calls:
            call.end()
        assert world.grpc.calls.total == 2
        assert await world.begins(Call("ipv4:10.0.0.1:1", "ann")) == ""

    run(test)


@pytest.mark.parametrize("reason", ["no message in time", "no settings in time"])
def test_a_request_that_does_not_come_ends_its_call(reason):
    async def test():
        world = World(first_message_s=0.01)
        call = Call(user="ann")
        admitted = await world.admission.begin("TelemetryCommand", call)
        assert world.grpc.calls.total == 1
        with pytest.raises(Aborted):
            await world.admission.first(admitted, reason)
        assert call.status == (grpc.StatusCode.DEADLINE_EXCEEDED, f"{reason}: 0.01 s")
        assert world.refused() == {reason: 1}
        call.end()
        assert world.grpc.calls.total == 0

    run(test)


def test_a_request_in_time_makes_its_connection_a_served_one():
    async def test():
        world = World()
        call = Call(user="ann")
        admitted = await world.admission.begin("TelemetryCommand", call)
        assert admitted.user == User("ann", "p")
        assert admitted.connection.unauthenticated
        call.requests.put_nowait(SimpleNamespace())
        await world.admission.first(admitted)
        assert not admitted.connection.unauthenticated
        call.requests.put_nowait(grpc.aio.EOF)
        assert await world.admission.first(admitted) is grpc.aio.EOF

    run(test)


def test_every_reason_is_declared():
    """A metric has each of them from the start."""
    for what in ("calls", "clients", "bytes of settings"):
        for whose in ("all clients", "one address", "one user"):
            assert f"{what} of {whose}" in REFUSED
