"""Connections that have sent many requests take turns, so that the others wait for a slice of time only."""

from __future__ import annotations

import asyncio

import pytest
from frames_server import echo, run, serving

from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import turns as module
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.turns import LONG_NS, QUIET_NS, SHORT_NS, Turns


class Clock:
    def __init__(self):
        self.ns = 1_000_000_000

    def __call__(self):
        return self.ns


class Waiting:
    """A connection whose requests take ``needs`` nanoseconds."""

    closed = False

    def __init__(self, turns, clock, name, needs, served):
        self._turns, self._clock, self._name, self._needs, self._served = turns, clock, name, needs, served

    def take_turn(self, ends_at):
        took = min(self._needs, ends_at - self._clock.ns)
        self._served.append((self._name, took))
        self._clock.ns += took
        self._needs -= took
        if self._needs:
            self._turns.wait(self)


def test_requests_that_arrive_together_share_a_slice():
    clock = Clock()
    turns = Turns(clock)
    assert turns.begin() - clock.ns == LONG_NS
    clock.ns += LONG_NS // 2
    turns.end()
    assert turns.begin() - clock.ns == LONG_NS // 2, "another connection, immediately after that"
    clock.ns += LONG_NS
    turns.end()
    assert turns.begin() < clock.ns
    turns.end()
    clock.ns += 2 * LONG_NS
    assert turns.begin() - clock.ns == LONG_NS


def test_connections_take_turns_of_short_slices_while_other_work_is_done():
    async def test():
        clock, served = Clock(), []
        turns = Turns(clock)
        for name in "ab":
            turns.wait(Waiting(turns, clock, name, 2 * SHORT_NS, served))
        for _ in range(6):
            clock.ns += QUIET_NS + 1
            before = len(served)
            await asyncio.sleep(0)
            assert len(served) - before <= 1, "other work is done between two turns"
        assert served == [("a", SHORT_NS), ("b", SHORT_NS)] * 2
        return turns

    asyncio.run(test())


def test_a_connection_alone_has_long_slices():
    async def test():
        clock, served = Clock(), []
        turns = Turns(clock)
        turns.begin()
        turns.end()
        turns.wait(Waiting(turns, clock, "a", 2 * LONG_NS, served))
        for _ in range(3):
            await asyncio.sleep(0)
        assert served == [("a", LONG_NS)] * 2

    asyncio.run(test())


@pytest.mark.caught
def test_a_connection_that_fails_or_has_gone_does_not_stop_the_others():
    class Fails:
        closed = False

        def take_turn(self, ends_at):
            raise ValueError("a fault")

    async def test():
        clock, served = Clock(), []
        turns = Turns(clock)
        gone = Waiting(turns, clock, "gone", 1, served)
        gone.closed = True
        for one in (Fails(), gone, Waiting(turns, clock, "a", 1, served)):
            turns.wait(one)
        for _ in range(4):
            await asyncio.sleep(0)
        assert served == [("a", 1)]

    asyncio.run(test())


def test_a_client_waits_for_a_slice_of_another_one_that_has_sent_many_requests():
    """It waited until all that the event loop had read were served: 256 KiB, more than 30 ms."""
    async def test():
        clock, served = Clock(), []
        limits = ServerLimits()
        limits.turns.now = clock
        async with serving(limits=limits) as server:
            greedy, other = await server.connect(), await server.connect()

            def serve(channel, request):
                clock.ns += 1_000_000
                served.append(request.opaque)
                if len(served) == 1:
                    other.send(RemotingCommand(10, opaque=999))
                return request.answer()

            server.register(serve, 10)
            greedy.send(*[RemotingCommand(10, opaque=n) for n in range(60)])
            assert (await other.receive()).opaque == 999
            assert served.index(999) <= 10
            assert [(await greedy.receive()).opaque for _ in range(60)] == [*range(60)]
            assert [n for n in served if n != 999] == [*range(60)]

    run(test)


@pytest.mark.parametrize("size", [100, 40_000])
def test_all_requests_are_served_in_order_if_each_takes_a_turn(monkeypatch, size):
    """With a client that reads no answers for a while, so that the server also stops to read its requests."""
    monkeypatch.setattr(module, "LONG_NS", 0)
    monkeypatch.setattr(module, "SHORT_NS", 0)

    async def test():
        async with serving(high_water=50_000) as server:
            server.register(echo, 10)
            clients = [await server.connect() for _ in range(3)]
            for client in clients:
                client.send(*[RemotingCommand(10, body=bytes(size + n), opaque=n) for n in range(300)])
            await asyncio.sleep(0.1)
            for client in clients:
                for n in range(300):
                    answer = await client.receive()
                    assert (answer.opaque, len(answer.body)) == (n, size + n)

    run(test)


def test_a_connection_that_is_closed_while_it_waits_is_served_no_more():
    async def test():
        clock, served = Clock(), []
        limits = ServerLimits()
        limits.turns.now = clock
        async with serving(limits=limits) as server:
            def serve(channel, request):
                clock.ns += LONG_NS
                served.append(request.opaque)
                if len(served) == 3:
                    channel.close()
                return request.answer()

            server.register(serve, 10)
            client = await server.connect()
            client.send(*[RemotingCommand(10, opaque=n) for n in range(20)])
            while await client.receive() is not None:
                pass
            assert served == [0, 1, 2]

    run(test)
