"""A call of a service of the broker: its result comes immediately or later, and its wait ends with the call."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.broker.messages.long_polling import Waiter
from tailrace.errors import RefusalError, RemotingConnectError
from tailrace.filters.message_filters import EVERYTHING
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.message_headers import PopMessageRequestHeader
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import ServiceCall
from tailrace.remoting import InProcessConnection, RemotingServer
from tailrace.requests.reply import Waiters

HEADER = PopMessageRequestHeader("group", "topic", -1, 8, 60_000, 1_000, 0, 0)


class Known:
    """Clients of which none has sent settings; ``made`` are the connections."""

    def __init__(self):
        self.made = []
        self.server = RemotingServer()
        self.server.loop = asyncio.get_running_loop()

    def find(self, client_id):
        return None

    def connect(self, caller):
        self.made.append(InProcessConnection(self.server, caller.peer, user=caller.user))
        return self.made[-1]


def test_a_result_at_once_needs_no_connection():
    async def run():
        clients = Known()
        call = ServiceCall(clients, Caller("c", ("10.0.0.1", 1), 0, ""), RequestCode.POP_MESSAGE, HEADER, alone=True)
        assert await call.result("messages") == "messages"
        call.close()
        assert clients.made == []

    asyncio.run(run())


class Place(Waiters):
    """A place where calls wait."""


def waiting(clients):
    """Return a call whose service has no result yet, its reply, and the place where it waits."""
    call = ServiceCall(
        clients, Caller("c", ("10.0.0.1", 1), 0, "", "ann"), RequestCode.POP_MESSAGE, HEADER, alone=True)
    place, entry = Place(), Waiter(call.reply(), ("topic",), EVERYTHING)
    place._add(entry)
    clients.server.on_close = place.closed
    return call, entry, place


def test_a_reply_gives_the_result_and_keeps_the_memory_of_the_header_until_then():
    async def run():
        call, entry, place = waiting(Known())
        assert entry.reply.request.sender == "ann"
        assert entry.reply.size > len("group") + len("topic")
        place._remove(entry)
        entry.reply.finish(lambda: "messages")
        assert await call.result(None) == "messages"
        call.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [RefusalError(2, "busy"), OSError(5, "disk")])
def test_an_error_of_later_work_is_raised(error):
    async def run():
        call, entry, place = waiting(Known())
        place._remove(entry)

        def fails():
            raise error

        entry.reply.finish(fails)
        with pytest.raises(type(error)):
            await call.result(None)

    asyncio.run(run())


def test_what_waits_ends_with_the_call():
    async def run():
        call, entry, place = waiting(Known())
        task = asyncio.ensure_future(call.result(None))
        await asyncio.sleep(0)
        call.close()
        assert len(place) == 0
        with pytest.raises(RemotingConnectError):
            await task

    asyncio.run(run())


def test_a_result_in_the_turn_in_which_the_call_ends_is_not_lost():
    """The messages of such a pop are given back, instead of being invisible for their whole time."""
    async def run():
        call, entry, place = waiting(Known())
        task = asyncio.ensure_future(call.result(None))
        await asyncio.sleep(0)
        task.cancel()
        place._remove(entry)
        entry.reply.finish(lambda: "messages")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert call.late_result == "messages"

    asyncio.run(run())


def test_a_reply_that_waits_again_ends_nothing():
    async def run():
        call, entry, place = waiting(Known())
        place._remove(entry)
        entry.reply.finish(lambda: None)
        assert call.late_result is None
        again = call.reply()
        again.finish(lambda: "messages")
        assert await call.result(None) == "messages"

    asyncio.run(run())
