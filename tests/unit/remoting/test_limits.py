"""Requests that wait for memory go on, also if one of them fails."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.remoting import limits
from tailrace.remoting.limits import ServerLimits

pytestmark = pytest.mark.caught


class Connection:
    peer, peer_ip, last_active, served, counted, stranger = "127.0.0.1:1", "127.0.0.1", 0.0, True, 0, False

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
