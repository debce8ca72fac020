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
from tailrace.proxy.protocol import Code, GrpcError
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
    monkeypatch.setattr(admission, "STRANGER_CALLS_OF_ONE", 5)
    monkeypatch.setattr(admission, "STRANGER_CALLS_MAX", 12)

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
        assert await world.begins(last) == "too many calls without a user are under way"
        assert last.status[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert world.closed == [("10.0.0.1:1", "calls without user")]
        for number in range(2, 9):
            await world.begins(Call(f"ipv4:10.0.0.{number}:1"))
        assert "too many" in await world.begins(Call("ipv4:10.0.0.9:1")), "of all connections together"
        assert await world.begins(Call("ipv4:10.0.0.9:2", "ann")) == "", "a user is not concerned"

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
        assert admitted.connection.stranger
        call.requests.put_nowait(SimpleNamespace())
        await world.admission.first(admitted)
        assert not admitted.connection.stranger
        call.requests.put_nowait(grpc.aio.EOF)
        assert await world.admission.first(admitted) is grpc.aio.EOF

    run(test)


def test_every_reason_is_declared():
    """A metric has each of them from the start."""
    for what in ("calls", "clients", "bytes of settings"):
        for whose in ("all clients", "one address", "one user"):
            assert f"{what} of {whose}" in REFUSED
