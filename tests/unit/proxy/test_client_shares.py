"""The table of clients: shares of users and addresses, and nothing that stays after a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc

from tailrace.broker.clients.client_manager import ClientIds
from tailrace.formats.remoting import RequestCode
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients
from tailrace.proxy.protocol import Code, GrpcError, definition, service
from tailrace.proxy.telemetry import TelemetryActivity
from tailrace.remoting import RemotingServer
from tailrace.remoting.limits import CallLimits
from tailrace.remoting.shares import Shares
from tailrace.testing import SimClock


class World:
    """Clients of a broker that takes every heartbeat, or refuses it."""

    def __init__(self, clients=100, settings=100_000):
        self.limits = CallLimits(clients=Shares(clients, few=2), settings=Shares(settings, few=1_000))
        self.server = RemotingServer()
        self.server.loop = asyncio.get_running_loop()
        self.refuses = False
        self.server.register(self._beat, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
        self.clients = Clients(
            self.server, SimClock(), lambda client, request: None, ClientIds(None), self.limits)

    def _beat(self, channel, request):
        return request.answer(1, "no") if self.refuses else request.answer()

    async def take(self, name, user="ann", address="10.0.0.1", topics=("orders",)):
        return await self.clients.take(Caller(name, (address, 1), 0, "", user), settings(*topics))

    async def take_all(self, user, address="10.0.0.1"):
        taken = []
        while True:
            try:
                taken.append(await self.take(f"{user}-{address}-{len(taken)}", user, address))
            except GrpcError as error:
                assert error.code == Code.TOO_MANY_REQUESTS
                return taken, error.message

    def usage(self):
        return len(self.clients), self.limits.clients.total, self.limits.settings.total


def settings(*topics):
    return definition.Settings(
        client_type=definition.ClientType.PRODUCER,
        publishing=definition.Publishing(topics=[definition.Resource(name=topic) for topic in topics]))


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_user_who_takes_all_he_can_leaves_room_for_others():
    async def test():
        world = World()
        taken, why = await world.take_all("ann")
        assert 10 <= len(taken) < 50
        assert why == "too many clients of one user (100 of all clients)"
        for number in range(2, 30):
            await world.take_all("ann", f"10.0.0.{number}")
        assert len(world.clients) < 50
        await world.take("bob-1", "bob")
        await world.take("bob-2", "bob", "10.0.0.2")
        assert world.limits.refused["clients of one user"] > 0
        for client in world.clients.all():
            client.connection.close()
        assert world.usage() == (0, 0, 0)

    run(test)


def test_bytes_of_settings_have_shares():
    async def test():
        world = World(clients=10_000)

        async def take_all():
            for number in range(1_000):
                await world.take(f"ann-{number}", topics=["t" * 100] * 10)

        with pytest.raises(GrpcError, match="too many bytes of settings of one"):
            await take_all()
        assert world.limits.settings.total < 50_000
        await world.take("bob", "bob", topics=["t" * 100] * 5)

    run(test)


def test_refused_settings_leave_nothing():
    async def test():
        world = World()
        world.refuses = True
        for number in range(50):
            with pytest.raises(GrpcError):
                await world.take(f"ann-{number}", topics=[f"{number}-{n}" for n in range(50)])
        assert world.usage() == (0, 0, 0)
        assert not world.clients._of_channel

    run(test)


def test_what_fails_otherwise_leaves_nothing_either():
    async def test():
        world = World()
        with pytest.raises(ValueError, match="address"):
            await world.clients.take(Caller("ann-1", ("no address", 1), 0, "", "ann"), settings("orders"))
        assert world.usage() == (0, 0, 0)

        async def register(*_, **__):
            await asyncio.Event().wait()

        world.clients.register = register
        call = asyncio.create_task(world.take("ann-1"))
        while not len(world.clients):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert world.usage() == (0, 0, 0)

    run(test)


def test_other_settings_of_a_client_count_instead_of_those_before():
    async def test():
        world = World()
        client = await world.take("ann-1")
        small = settings("orders").ByteSize()
        assert world.usage() == (1, 1, small)
        await world.take("ann-1", topics=["orders", "bills"])
        large = settings("orders", "bills").ByteSize()
        assert world.usage() == (1, 1, large)
        world.refuses = True
        with pytest.raises(GrpcError):
            await world.take("ann-1", topics=["orders"] * 20)
        assert world.usage() == (1, 1, large)
        client.connection.close()
        assert world.usage() == (0, 0, 0)

    run(test)


@pytest.mark.parametrize("has_beaten", [False, True])
def test_a_client_ends_with_its_stream_unless_it_has_sent_a_heartbeat(has_beaten):
    async def test():
        world, given_back = World(), []

        async def give_back(client):
            given_back.append(client)

        activity = TelemetryActivity(
            SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), world.clients,
            SimpleNamespace(give_back=give_back),
            SimpleNamespace(), SimpleNamespace())
        client = await world.take("ann-1")
        client.has_beaten = has_beaten
        await activity._stream_ended(client)
        assert world.clients.all() == ([client] if has_beaten else [])
        assert given_back == ([] if has_beaten else [client])
        assert client.send is None

    run(test)


def test_a_stream_that_is_cancelled_while_it_ends_still_ends_its_client():
    async def test():
        world, closing = World(), asyncio.Event()

        async def nothing(*_):
            return None

        class Context:
            def peer(self):
                return "ipv4:10.0.0.1:1"

            async def read(self):
                return grpc.aio.EOF

        async def first(*_):
            return service.TelemetryCommand(settings=settings("orders"))

        async def begin(*_):
            return SimpleNamespace(user=None, context=Context())

        activity = TelemetryActivity(
            SimClock(), SimpleNamespace(),
            SimpleNamespace(caller=lambda *_: Caller("ann-1", ("10.0.0.1", 1), 0, "", "")),
            world.clients, SimpleNamespace(give_back=nothing), SimpleNamespace(),
            SimpleNamespace(begin=begin, first=first))

        async def take(caller, received, stream):
            stream.close = closing.wait
            client = await world.clients.take(caller, received)
            client.send = stream.send
            return client

        activity._take = take
        call = asyncio.create_task(activity.telemetry(None, Context()))
        while not activity._endings:
            await asyncio.sleep(0)
        assert len(world.clients) == 1
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        closing.set()
        while activity._endings:
            await asyncio.sleep(0)
        assert world.usage() == (0, 0, 0)

    run(test)
