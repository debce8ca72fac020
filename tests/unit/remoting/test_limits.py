"""Requests that wait for memory continue, even if one of them fails."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.remoting import limits
from tailrace.remoting.limits import ServerLimits

pytestmark = pytest.mark.caught


class Connection:
    peer, peer_ip, last_active, served, counted, unauthenticated = "127.0.0.1:1", "127.0.0.1", 0.0, True, 0, False

    def __init__(self, size):
        self.size = size

    def held_bytes(self):
        if self.size < 0:
            raise ValueError("odd")
        return self.size

    def wait_for_memory(self):
        pass

    def abort(self):
        pass


def test_one_request_that_fails_leaves_no_other_waiting(monkeypatch):
    monkeypatch.setattr(limits, "RELIEF_S", 0.0)
    done = []

    def fails():
        raise OSError(5, "input/output error")

    async def run():
        room = ServerLimits(bytes_max=1_000)
        connection = Connection(2_000)
        room.count(connection, 2_000, 0.0)
        assert room.tight
        for go_on in (fails, lambda: done.append(1), lambda: done.append(2)):
            room.wait(go_on)
        connection.size = -1  # cannot be counted at first
        for _ in range(5):
            await asyncio.sleep(0)
        assert (room.tight, done) == (True, [])
        connection.size = 10
        for _ in range(5):
            await asyncio.sleep(0)
        assert (room.tight, done) == (False, [1, 2])

    asyncio.run(run())


class Open:
    """An open connection of an address."""

    unauthenticated, counted = False, 0

    def __init__(self, address, last_active=0.0, *, served=True):
        self.peer_ip, self.peer = address, f"{address}:1"
        self.served, self.last_active, self.open = served, last_active, True

    def abort(self):
        self.open = False


def fill(room, *connections):
    for one in connections:
        assert room.opened(one, 0.0)
    return connections


def test_an_address_with_most_connections_gives_way():
    room = ServerLimits(connections_max=300)
    single = fill(room, *(Open(f"10.0.1.{n}") for n in range(100)))
    many = fill(room, *(Open("10.0.0.1", 50.0) for _ in range(200)))
    assert room.opened(Open("10.0.2.1", 60.0), 60.0)
    assert all(one.open for one in single), "they were used less recently"
    assert sum(one.open for one in many) == 199
    silent = Open("10.0.1.200", 70.0, served=False)
    assert room.opened(silent, 70.0)
    room._candidates.clear()
    assert room.opened(Open("10.0.2.2", 71.0), 71.0)
    assert not silent.open, "one that has sent nothing goes first"


def test_busy_connections_of_one_address_do_not_keep_others_out():
    room = ServerLimits(connections_max=300)
    many = fill(room, *(Open("10.0.0.1", 99.9) for _ in range(300)))
    assert not room.opened(Open("10.0.0.1", 100.0), 100.0)
    assert all(one.open for one in many)
    assert room.opened(Open("10.0.0.2", 100.0), 100.0)
    assert sum(one.open for one in many) == 299


def test_one_with_the_last_descriptors_costs_another_one():
    room = ServerLimits(connections_max=100, descriptors_max=90)
    first = fill(room, *(Open("10.0.0.1") for _ in range(3)))
    assert room.opened(Open("10.0.0.1", 50.0), 50.0, 89)
    assert all(one.open for one in first)
    assert room.opened(Open("10.0.0.1", 50.0), 50.0, 90)
    assert sum(one.open for one in first) == 2
