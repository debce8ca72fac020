"""Connections without a user: small frames, a memory of their own, and users that they do not slow down."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest
from frames_server import echo, run, serving
from patience import until_async

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.remoting import limits as limits_module
from tailrace.remoting import server as server_module
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.unauthenticated import HEADER_MAX, Unauthenticated

KIB, MIB = 1 << 10, 1 << 20
SIGNED = {"AccessKey": "ann", "Signature": "A" * 27 + "="}


@contextlib.asynccontextmanager
async def guarded(limits=None, frame_max=5 * MIB, per_address=200):
    """A server on which a request with the field ``good`` proves a user."""
    async with serving(limits=ServerLimits() if limits is None else limits) as server:
        server.register(echo, 10)
        server.unauthenticated = Unauthenticated(frame_max, 30.0, per_address)

        def check(channel, request):
            if "good" not in request.ext:
                raise RefusalError(16, "no user")
            channel.authenticated = True

        server.check = check
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(server_module, "NO_USER_CLOSE_S", 0.01)


async def closed(client):
    with contextlib.suppress(ConnectionError):
        return await client.receive() is None
    return True


def first_bytes(size, fields, given):
    """The first ``given`` bytes of a frame with a body of ``size`` bytes."""
    whole = encode(RemotingCommand(10, fields, bytes(size)))
    return whole[:given]


@pytest.mark.parametrize("given", [8, 600, 70 * KIB])
def test_a_long_request_without_the_name_and_signature_of_a_user_closes_its_connection(given):
    async def test():
        async with guarded() as server:
            for fields in (
                    {}, {"AccessKey": "ann"}, {"Signature": "x" * 28}, {**SIGNED, "AccessKey": "a" * 256},
                    {**SIGNED, "Signature": "x" * 65}):
                connection = await server.connect()
                connection.writer.write(first_bytes(64 * KIB, fields, given))
                if given == 8:  # the decision needs the header
                    await until_async(lambda: server.channels)
                    connection.writer.write(first_bytes(64 * KIB, fields, 600)[8:])
                assert await closed(connection)

    run(test)


def test_a_long_request_with_the_name_and_signature_of_a_user_is_read():
    async def test():
        async with guarded() as server:
            for step in (7, 1000, 1 << 20):
                user = await server.connect()
                frame = encode(RemotingCommand(10, {**SIGNED, "good": "1"}, bytes(300 * KIB)))
                head, rest = frame[:2000], frame[2000:]
                for pos in range(0, len(head), step):
                    user.writer.write(head[pos:pos + step])
                    await user.writer.drain()
                    await asyncio.sleep(0)
                user.writer.write(rest)
                assert len((await user.receive()).body) == 300 * KIB
                user.send(RemotingCommand(10, {"good": "1"}, bytes(6 * MIB)))
                assert len((await user.receive()).body) == 6 * MIB, "a user is known by now"

    run(test)


def test_a_long_header_of_an_unauthenticated_connection_closes_its_connection():
    async def test():
        async with guarded() as server:
            connection = await server.connect()
            connection.writer.write(struct.pack(">iI", 1 * MIB, HEADER_MAX + 1))
            assert await closed(connection)
            user = await server.connect()
            user.send(RemotingCommand(10, {"good": "1"}))
            await user.receive()
            user.send(RemotingCommand(10, {"good": "1", "long": "x" * 80 * KIB}))
            assert (await user.receive()).code == 0

    run(test)


def test_unauthenticated_connections_have_a_memory_of_their_own_and_users_never_wait_for_it():
    async def test():
        limits = ServerLimits(bytes_max=4 * MIB, unauthenticated_bytes_max=1 * MIB)
        async with guarded(limits) as server:
            user = await server.connect()
            user.send(RemotingCommand(10, {"good": "1"}))
            await user.receive()
            unauthenticated = [await server.connect() for _ in range(6)]
            for number, connection in enumerate(unauthenticated):
                connection.writer.write(first_bytes(4 * MIB, SIGNED, (200 + 20 * number) * KIB))
                await connection.writer.drain()
            await until_async(lambda: limits.closed["bytes without user"] > 0)
            assert not limits.tight
            assert limits.tightened == 0
            assert limits.unauthenticated_bytes <= 1 * MIB
            assert limits.bytes == 0
            user.send(RemotingCommand(10, {"good": "1"}))
            assert (await user.receive()).code == 0
            assert await closed(unauthenticated[5]), "the largest one"
            for connection in unauthenticated:
                connection.writer.close()
            await until_async(lambda: limits.unauthenticated_bytes == 0)

    run(test)


def test_the_memory_of_an_unauthenticated_connection_counts_as_that_of_a_user_from_the_first_signature():
    async def test():
        limits = ServerLimits()
        async with guarded(limits) as server:
            user = await server.connect()
            user.writer.write(first_bytes(1 * MIB, {**SIGNED, "good": "1"}, 500 * KIB))
            await until_async(lambda: limits.unauthenticated_bytes >= 400 * KIB)
            user.writer.write(encode(RemotingCommand(10, {**SIGNED, "good": "1"}, bytes(1 * MIB)))[500 * KIB:])
            assert (await user.receive()).code == 0
            assert (limits.unauthenticated_bytes, limits.bytes) == (0, 0)
            user.writer.write(first_bytes(1 * MIB, SIGNED, 500 * KIB))
            await until_async(lambda: limits.bytes >= 400 * KIB)
            assert limits.unauthenticated_bytes == 0

    run(test)


def test_the_largest_address_gives_way():
    """An address with many bytes of memory never costs an unauthenticated connection of another address."""
    class Fake:
        unauthenticated, served, last_active, counted = True, False, 0.0, 0

        def wait_for_memory(self):
            pass

        def __init__(self, peer_ip):
            self.peer_ip, self.peer, self.open = peer_ip, f"{peer_ip}:1", True

        def abort(self):
            self.open = False

    async def test():
        limits = ServerLimits(unauthenticated_bytes_max=1000)
        single = Fake("10.0.0.1")
        limits.count(single, 400, 0.0)
        many = [Fake("10.0.0.2") for _ in range(20)]
        for one in many:
            limits.count(one, 100, 0.0)
        assert single.open
        assert sum(one.open for one in many) <= 6
        assert limits.unauthenticated_bytes == 400 + 100 * sum(one.open for one in many) <= 1000

    run(test)


def test_long_requests_of_unauthenticated_connections_take_turns(monkeypatch):
    monkeypatch.setattr(limits_module, "NO_USER_READ", 100 * KIB)

    async def test():
        limits = ServerLimits()
        async with guarded(limits) as server:
            clients = [await server.connect() for _ in range(20)]
            frame = encode(RemotingCommand(10, {**SIGNED, "good": "1"}, bytes(300 * KIB)))
            for client in clients:
                client.writer.write(frame)
            await until_async(lambda: limits._turns)
            user = await server.connect()
            user.send(RemotingCommand(10, {"good": "1"}))
            assert (await user.receive()).code == 0
            for client in clients:
                assert len((await client.receive()).body) == 300 * KIB
            await until_async(lambda: not limits._next_turn)
            assert not limits._turns
            assert (limits.unauthenticated_bytes, limits.closed["bytes without user"]) == (0, 0)

    run(test)
