"""The thread of requests: a client that does not read its answers waits, and keeps no other waiting."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.formats.remoting import RemotingCommand
from tailrace.requests.worker import RequestWorker


@pytest.fixture
def reader(kit):
    class Reader(kit.FakeChannel):
        """A client that reads, or not."""

        def __init__(self, peer, *, reads):
            super().__init__(peer)
            self.reads, self.later = reads, []

        def is_reading(self):
            return self.reads

        def when_reading(self, answer):
            if self.reads:
                answer()
            else:
                self.later.append(answer)

        def read(self):
            self.reads = True
            while self.later:
                self.later.pop(0)()

    return Reader


def run(steps):
    served = []

    def serve(channel, request):
        served.append((channel.peer, request.opaque))
        return RemotingCommand(0)

    async def main():
        worker = RequestWorker(asyncio.get_running_loop())

        def ask(channel, *numbers):
            for number in numbers:
                worker.in_thread(serve)(channel, RemotingCommand(21, opaque=number))

        async def done():
            while worker.pending > worker._bounds.count or len(worker._turns):
                await asyncio.sleep(0)
            found, served[:] = list(served), []
            return found

        await steps(worker, ask, done)

    asyncio.run(main())


def test_requests_of_a_client_that_does_not_read_are_served_when_it_does(reader):
    async def steps(worker, ask, done):
        slow, other = reader("slow", reads=False), reader("other", reads=True)
        ask(slow, 1, 2)
        ask(other, 3)
        assert await done() == [("other", 3)]
        ask(slow, 4)
        assert await done() == []
        assert (worker.pending, slow.sent) == (3, [])
        slow.read()
        assert await done() == [("slow", 1), ("slow", 2), ("slow", 4)]
        assert (worker.pending, len(slow.sent)) == (0, 3)

    run(steps)


def test_requests_of_a_client_that_goes_without_reading_are_forgotten(reader):
    async def steps(worker, ask, done):
        slow = reader("slow", reads=False)
        ask(slow, 1, 2)
        assert await done() == []
        slow.closed = True
        worker.closed(slow)
        ask(reader("other", reads=True), 3)
        assert await done() == [("other", 3)]
        assert worker.pending == 0
        ask(reader("last", reads=False), 4)
        assert await done() == []
        await worker.stop()
        assert worker.pending == 0

    run(steps)
