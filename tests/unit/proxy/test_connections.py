"""Connections of a port that another library accepts: found among the sockets of the process, and closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from patience import until_async

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.env.descriptors import OpenSocket, open_descriptors, shut_down, sockets_of_port
from tailrace.proxy import connections, held
from tailrace.proxy.connections import GrpcConnections
from tailrace.proxy.held import HOLD_S, Held
from tailrace.remoting.limits import CallLimits, ServerLimits
from tailrace.remoting.shares import Holder


class Port:
    """A listening port, and the sockets of both sides of its connections."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.number = self.listener.getsockname()[1]
        self.clients, self.accepted = [], []

    def connect(self):
        self.clients.append(socket.create_connection(("127.0.0.1", self.number)))
        self.accepted.append(self.listener.accept()[0])
        self.clients[-1].setblocking(False)
        return self.clients[-1].getsockname()

    def open(self):
        """Numbers of the connections that are still open, as their clients see it."""
        return [n for n, client in enumerate(self.clients) if not self._ended(client)]

    @staticmethod
    def _ended(client):
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self):
        for one in (self.listener, *self.clients, *self.accepted):
            one.close()


@pytest.fixture
def port():
    with contextlib.closing(Port()) as made:
        yield made


def test_the_sockets_of_a_port_are_found_once_and_ended_safely(port):
    places = [port.connect(), port.connect()]
    known, seen = {}, set()
    found = [one for one in sockets_of_port(port.number, known, seen) if one]
    assert sorted(one.peer for one in found) == sorted(places)
    assert len(known) <= len(seen)
    again = [one for one in sockets_of_port(port.number, known, set()) if one]
    assert sorted(again) == sorted(found)
    first = next(one for one in found if one.peer == places[0])
    shut_down(first._replace(inode=first.inode + 1), port.number)
    shut_down(first, port.number + 1)
    assert port.open() == [0, 1], "the descriptor is a different socket"
    shut_down(first, port.number)
    assert port.open() == [1]
    port.accepted[0].close()
    shut_down(first, port.number)  # nothing is there any more


def test_the_number_of_descriptors():
    before = open_descriptors()
    with socket.socket(), socket.socket():
        assert open_descriptors() in {0, before + 2}, "0: the kernel does not say it"


def watching(port, now, **limits):
    made = GrpcConnections(ServerLimits(grpc=CallLimits(**limits)), has_users=True)
    made._port = port.number
    return made


def at(monkeypatch, now):
    """Let the loop's clock show ``now[0]``."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(connections.asyncio, "get_running_loop", lambda: _Loop(loop, now))


class _Loop:
    def __init__(self, loop, now):
        self._loop, self._now = loop, now

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def time(self):
        return self._now[0]


def test_connections_without_a_call_are_closed_in_time(port, monkeypatch):
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now, first_call_s=30.0)
        places = [port.connect() for _ in range(3)]
        await watched.sweep()
        assert (len(watched), len(watched._limits)) == (3, 3)
        watched.of(places[0], 100.0).served = True
        watched.of(places[1], 100.0).unproven = 5
        now[0] = 129.0
        await watched.sweep()
        assert port.open() == [0, 1, 2]
        now[0] = 131.0
        for _ in range(2):
            await watched.sweep()
        assert port.open() == [0]
        assert watched._limits.closed["no call in time"] == 2, "each is closed once"
        watched.of(places[1], 100.0).unproven = 0
        for one in port.accepted[1:]:
            one.close()
        await watched.sweep()
        assert (len(watched), len(watched._limits)) == (1, 1)

    asyncio.run(test())


def test_a_connection_whose_call_waits_for_its_request_is_closed_after_the_call(port, monkeypatch):
    """A call that began late was cut off before its own time was over."""
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now, first_call_s=30.0)
        place = port.connect()
        await watched.sweep()
        now[0] = 129.0
        watched.of(place, now[0]).calls = 1
        now[0] = 131.0
        await watched.sweep()
        assert port.open() == [0]
        watched.of(place, now[0]).calls = 0
        await watched.sweep()
        assert port.open() == []

    asyncio.run(test())


def test_when_many_are_open_those_without_a_call_make_room(port, monkeypatch):
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now, connections_max=8)
        places = [port.connect() for _ in range(7)]
        await watched.sweep()
        assert port.open() == list(range(7)), "they may still begin a call"
        for number, used in ((0, 101.0), (1, 110.0), (2, 101.0)):
            watched.of(places[number], used).served = True
        watched.of(places[2], 101.0).calls = 1
        now[0] = 120.0
        await watched.sweep()
        assert port.open() == [0, 1, 2, 6], "the oldest ones without a call"
        places += [port.connect() for _ in range(4)]
        for place in places[6:]:
            watched.of(place, 121.0).served = True
        now[0] = 130.0
        for one in (3, 4, 5):
            port.accepted[one].close()
        await watched.sweep()
        now[0] = 140.0
        await watched.sweep()
        assert len(port.open()) == 4
        assert 2 in port.open(), "it has a call under way"
        assert 0 not in port.open(), "it was used least recently"
        assert watched._limits.closed["connections"] == 3 + 4

    asyncio.run(test())


def test_an_address_that_is_held_keeps_served_connections_only_and_gets_no_new_ones(port, monkeypatch):
    """Its client always connected again."""
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now)
        watched._held.start(port.number)
        served = port.connect()
        port.connect()
        await watched.sweep()
        watched.of(served, 100.0).served = True
        unknown = watched.of(port.connect(), 100.0)
        elsewhere = watched.of(("10.0.0.1", 1), 100.0)
        watched.hold("127.0.0.1", "calls without user")
        await watched.sweep()
        assert port.open() == [0]
        assert unknown.doomed
        assert not elsewhere.doomed
        assert watched._limits.closed["calls without user"] == 2
        with socket.socket() as client:
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.connect(("127.0.0.1", port.number))
        watched._held.release(100.0 + HOLD_S - 0.1)
        watched._held.release(100.0 + HOLD_S)
        port.connect()
        watched.hold("10.0.0.1", "calls without user")
        assert elsewhere.doomed
        guilty = watched.of(("10.0.0.1", 2), 100.0)
        guilty.served = True
        other = watched.of(("10.0.0.1", 3), 100.0)
        watched.hold("10.0.0.1", "cancelled calls", guilty)
        assert guilty.doomed
        assert not other.doomed, "it made none of the calls"
        port.connect()

    asyncio.run(test())


def test_more_addresses_than_the_kernel_takes_end_the_oldest_one(monkeypatch):
    monkeypatch.setattr(held, "NETWORKS_MAX", 3)
    made = Held()
    for number in range(5):
        assert made.add(f"10.0.0.{number}", 100.0)
    assert not made.add("10.0.0.4", 101.0), "it is there"
    assert made.add("10.0.0.1", 101.0)
    made.release(100.0 + HOLD_S)
    assert list(made._networks) == ["10.0.0.1"]


@pytest.mark.parametrize(("most", "served", "new", "stay", "stay_later"), [(8, 1, 6, 6, 3), (20, 4, 16, 6, 6)])
def test_new_connections_without_a_call_cost_no_served_one(port, monkeypatch, most, served, new, stay, stay_later):
    """They may still begin a call, but if they are too many, young ones give way as well."""
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now, connections_max=most)
        places = [port.connect() for _ in range(served)]
        await watched.sweep()
        for place in places:
            watched.of(place, now[0]).served = True
        for when, count, left in ((200.0, new, stay), (201.5, 0, stay_later)):
            now[0] = when
            for _ in range(count):
                port.connect()
            await watched.sweep()
            assert port.open() == [*range(served), *range(served + new - left, served + new)]

    asyncio.run(test())


def test_connections_of_one_second_leave_room_for_another_client(port, monkeypatch):
    """All of them were younger than a second, so none was closed, and gRPC refused every new connection."""
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now, connections_max=40)
        for number in range(60):
            now[0] += 0.01
            port.connect()
            await watched.sweep()
            assert len(port.open()) <= 31, number
        last = watched.of(port.connect(), now[0])
        now[0] += 0.01
        for _ in range(12):
            port.connect()
        await watched.sweep()
        assert not last.closing, "the oldest ones make room"
        assert port.open()[-1] == len(port.clients) - 1

    asyncio.run(test())


def test_young_connections_of_many_addresses_stay_while_there_is_room(monkeypatch):
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        limits = ServerLimits(grpc=CallLimits(connections_max=100))
        watched = GrpcConnections(limits, has_users=True)

        def arrive(count, address="10.0.{}.1"):
            for _ in range(count):
                number = len(watched)
                one = watched.of((address.format(number), 1000 + number), now[0])
                one.socket = OpenSocket(-1, number, one.place)

        def closing():
            watched._close(now[0])
            return [one.place[0] for one in watched._by_place.values() if one.closing]

        arrive(80)
        assert not closing()
        arrive(8)
        assert len(closing()) == 38, "nearly all that are allowed"
        for place in [place for place, one in watched._by_place.items() if one.closing]:
            del watched._by_place[place]
        arrive(30, "10.1.1.1")
        assert set(closing()) == {"10.1.1.1"}, "too many of one address"

    asyncio.run(test())


@pytest.mark.parametrize("first", ["call", "look"])
def test_calls_on_a_connection_that_must_go_are_known(port, monkeypatch, first):
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now)
        place = port.connect()
        if first == "look":
            await watched.sweep()
        connection = watched.of(place, 100.0)
        assert not connection.doomed
        watched.close(connection, "calls without user")
        assert watched.of(place, 100.0).doomed

    asyncio.run(test())


def test_a_connection_that_must_go_is_looked_for_immediately(port, monkeypatch):
    async def test():
        monkeypatch.setattr(connections, "LOOK_S", 600.0)
        watched = watching(port, None)
        watched.start(port.number)
        try:
            watched.close(watched.of(port.connect(), 100.0), "calls without user")
            await until_async(lambda: not port.open())
        finally:
            await watched.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_connection_that_must_go_is_closed_when_its_socket_is_known(port, monkeypatch):
    async def test():
        now = [100.0]
        at(monkeypatch, now)
        watched = watching(port, now)
        place = port.connect()
        other = port.connect()
        watched.close(watched.of(place, 100.0), "calls without user")
        assert port.open() == [0, 1]
        await watched.sweep()
        assert port.open() == [1]
        watched.close(watched.of(other, 100.0), "calls without user")
        assert port.open() == []
        assert watched._limits.closed["calls without user"] == 2

    asyncio.run(test())


def test_the_memory_of_many_calls_is_given_back_when_most_have_ended():
    freed, limits = [], ServerLimits()
    watch = GrpcConnections(limits, has_users=False, free_memory=lambda: freed.append(limits.grpc.calls.total))
    user = Holder("10.0.0.1")

    def look(calls, now):
        limits.grpc.calls.add(user, calls - limits.grpc.calls.total)
        watch._look_at_calls(now)

    look(connections.MANY_CALLS - 1, 1)
    look(0, 2)
    assert freed == [], "few calls"
    look(connections.MANY_CALLS * 2, 3)
    look(connections.MANY_CALLS, 4)
    assert freed == [], "half of them have not ended"
    look(10, 5)
    look(9, 6)
    assert freed == [10]
    look(connections.MANY_CALLS, 7)
    look(1, 8)
    assert freed == [10], "not twice in a short time"
    look(1, 5 + connections.FREE_S)
    assert freed == [10, 1]


def test_the_memory_of_many_refused_calls_is_given_back():
    """Calls without a user have no share of the calls under way, and take as much memory."""
    freed, limits = [], ServerLimits()
    watch = GrpcConnections(limits, has_users=True, free_memory=lambda: freed.append(sum(limits.grpc.refused.values())))

    def look(refused, now):
        for _ in range(refused):
            limits.grpc.refuse("calls without user", Holder("10.0.0.1"), now)
        watch._look_at_calls(now)

    look(0, 1)
    look(connections.MANY_CALLS - 1, 2)
    look(0, 2 + connections.FREE_S)
    assert freed == [], "few calls"
    for second in range(20, 100):
        look(second == 20, second)
    assert freed == [connections.MANY_CALLS] * connections.FREES, "some of them end later"
    for second in range(100, 200):
        look(connections.MANY_CALLS, second)
    assert len(freed) == connections.FREES + 100 // connections.FREE_S, "a flood does not make it more frequent"
