"""The server of remoting frames, over real sockets on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct

import pytest
from frames_server import echo, run, serving
from patience import until_async

from tailrace.errors import RemotingConnectError, RemotingTimeoutError
from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.formats.requests.name_server_headers import GetRouteInfoRequestHeader
from tailrace.remoting import RemotingServer
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.server import one_address


def test_requests_are_answered_in_the_encoding_of_their_header():
    async def test():
        async with serving() as server:
            server.register(echo, 10)
            client = await server.connect()
            for kind in (0, 1):
                client.send(RemotingCommand(10, body=b"hi", opaque=kind, serialize_type=kind))
                answer = await client.receive()
                assert (answer.opaque, answer.body, answer.serialize_type) == (kind, b"hi", kind)
                assert answer.is_response

    run(test)


@pytest.mark.parametrize("step", [1, 3, 7, 8, 9, 1000])
def test_frames_may_arrive_in_any_pieces(step):
    async def test():
        async with serving() as server:
            server.register(echo, 10)
            client = await server.connect()
            sent = [RemotingCommand(10, body=bytes(i), opaque=i, serialize_type=i % 2) for i in range(9)]
            data = b"".join(map(encode, sent))
            channel_input = [data[i : i + step] for i in range(0, len(data), step)]
            await asyncio.sleep(0)
            for piece in channel_input:
                client.writer.write(piece)
                await client.writer.drain()
                await asyncio.sleep(0)
            for command in sent:
                answer = await client.receive()
                assert (answer.opaque, answer.body) == (command.opaque, command.body)

    run(test)


def test_requests_of_one_wake_up_are_answered_with_one_write():
    async def test():
        async with serving() as server:
            server.register(echo, 10)
            client = await server.connect()
            client.send(*[RemotingCommand(10, opaque=i) for i in range(50)])
            assert [(await client.receive()).opaque for _ in range(50)] == list(range(50))

    run(test)


def test_an_unknown_code_is_answered_with_3():
    async def test():
        async with serving() as server:
            client = await server.connect()
            client.send(RemotingCommand(4711, opaque=5))
            answer = await client.receive()
            assert (answer.code, answer.opaque) == (3, 5)
            assert answer.remark == " request type 4711 not supported"

    run(test)


def test_a_processor_that_raises_is_answered_with_1_and_serving_goes_on():
    def missing(channel, request):
        return request.answer(ext={"x": request.read(GetRouteInfoRequestHeader).topic})

    def broken(channel, request):
        raise RuntimeError("no luck")

    async def test():
        async with serving() as server:
            server.register(missing, 1)
            server.register(broken, 2)
            server.register(echo, 10)
            client = await server.connect()
            client.send(RemotingCommand(1, opaque=1), RemotingCommand(2, opaque=2))
            client.send(RemotingCommand(10, opaque=3))
            first, second, third = [await client.receive() for _ in range(3)]
            assert (first.code, first.remark) == (1, "the custom field <topic> is null")
            assert (second.code, second.remark) == (1, "RuntimeError: no luck")
            assert (third.code, third.opaque) == (0, 3)

    run(test)


def test_one_way_requests_are_never_answered():
    def broken(channel, request):
        raise RuntimeError("no luck")

    async def test():
        async with serving() as server:
            server.register(echo, 10)
            server.register(broken, 2)
            client = await server.connect()
            client.send(
                RemotingCommand(10, opaque=1, flag=2), RemotingCommand(2, opaque=2, flag=2),
                RemotingCommand(99, opaque=3, flag=2), RemotingCommand(10, opaque=4),
            )
            assert (await client.receive()).opaque == 4

    run(test)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">i", -5), "too short"),
        (struct.pack(">i", 0) + bytes(8), "too short"),
        (struct.pack(">i", 1 << 24), "over the limit"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (struct.pack(">iI", 10, 100) + bytes(6), "header of 100 bytes in a frame of 10"),
        (struct.pack(">iI", 8, 4) + b"oops", "not JSON"),
        (struct.pack(">iI", 8, 4 | 7 << 24) + b"oops", "unknown header encoding 7"),
        (struct.pack(">iI", 8, 4 | 1 << 24) + b"oops", "binary header of 4 bytes"),
    ],
)
def test_bad_bytes_close_their_connection_with_one_line_and_no_other(data, reason, caplog):
    async def test():
        async with serving() as server:
            server.register(echo, 10)
            good, bad = await server.connect(), await server.connect()
            bad.send(RemotingCommand(10, opaque=1))
            bad.writer.write(data)
            assert (await bad.receive()).opaque == 1  # earlier requests are answered
            assert await bad.receive() is None
            good.send(RemotingCommand(10, opaque=2))
            assert (await good.receive()).opaque == 2

    with caplog.at_level(logging.WARNING):
        run(test)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("connection closed for bad frame peer=127.0.0.1:")
    assert reason in lines[0]


def test_many_connections_with_bad_bytes_are_one_line(caplog):
    """Whoever sent them could fill the log with hundreds of lines in a second."""
    async def test():
        async with serving() as server:
            for _ in range(5):
                bad = await server.connect()
                bad.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await bad.receive() is None

    with caplog.at_level(logging.WARNING):
        run(test)
    [line] = [r.getMessage() for r in caplog.records]
    assert line.endswith("count=1")


def test_while_draining_new_clients_are_told_and_old_ones_closed():
    async def test():
        async with serving() as server:
            server.register(echo, 10)
            new, old = await server.connect(), await server.connect()
            for client in (new, old):
                client.send(RemotingCommand(10))
                await client.receive()
            server.draining = True
            new.send(RemotingCommand(10, version=477), RemotingCommand(10, version=477, flag=2))
            assert (await new.receive()).code == 1500
            old.send(RemotingCommand(10, version=475))
            assert await old.receive() is None

    run(test)


def test_idle_connections_are_closed():
    async def test():
        async with serving(idle_s=0.05) as server:
            client = await server.connect()
            assert await client.receive() is None

    run(test)


def test_a_late_answer_reaches_its_request_and_a_closed_connection_is_harmless():
    async def test():
        async with serving() as server:
            parked = []
            server.register(lambda channel, request: parked.append((channel, request)), 11)
            client, gone = await server.connect(), await server.connect()
            client.send(RemotingCommand(11, opaque=8), RemotingCommand(11, opaque=9, flag=2))
            gone.send(RemotingCommand(11, opaque=7))
            while len(parked) < 3:
                await asyncio.sleep(0.005)
            gone.writer.close()
            while len(server.channels) > 1:
                await asyncio.sleep(0.005)
            for channel, request in reversed(parked):
                channel.answer(request, request.answer(body=b"late"))
            assert (await client.receive()).opaque == 8

    run(test)


def test_the_server_may_ask_its_clients():
    closed = []

    async def test():
        async with serving(on_close=closed.append) as server:
            channels = []
            server.register(lambda channel, request: channels.append(channel), 34)
            client = await server.connect()
            client.send(RemotingCommand(34, flag=2))
            while not channels:
                await asyncio.sleep(0.005)
            asked = asyncio.create_task(channels[0].request(RemotingCommand(307), 5000))
            request = await client.receive()
            assert not request.is_response
            client.send(request.answer(body=b"me"))
            assert (await asked).body == b"me"
            with pytest.raises(RemotingTimeoutError):
                await channels[0].request(RemotingCommand(307), 10)
            channels[0].request_oneway(RemotingCommand(40))
            assert [(await client.receive()).code for _ in range(2)] == [307, 40]
            asked = asyncio.create_task(channels[0].request(RemotingCommand(307), 5000))
            await client.receive()
            client.writer.close()
            with pytest.raises(RemotingConnectError):
                await asked
            with pytest.raises(RemotingConnectError):
                await channels[0].request(RemotingCommand(307), 10)

    run(test)
    assert len(closed) == 1


def test_requests_to_a_client_that_reads_nothing_do_not_pile_up():
    async def test():
        async with serving() as server:
            channels = []
            server.register(lambda channel, request: channels.append(channel), 34)
            client = await server.connect()
            client.send(RemotingCommand(34, flag=2))
            while not channels:
                await asyncio.sleep(0.005)
            channel, = channels
            big = [RemotingCommand(326, body=bytes(1 << 20)) for _ in range(40)]
            asked = [asyncio.create_task(channel.request(command, 90_000)) for command in big[:39]]
            await until_async(lambda: channel.paused)
            unread = 0
            while channel.held_bytes() != unread:  # the system takes some bytes first
                unread = channel.held_bytes()
                await asyncio.sleep(0.2)
            assert unread < 2 << 20
            with pytest.raises(RemotingTimeoutError):
                await channel.request(big[39], 10)
            assert channel.held_bytes() == unread
            for _ in asked:  # the one that was given up is not sent
                client.send((await client.receive()).answer(body=b"taken"))
            assert [(await one).body for one in asked] == [b"taken"] * 39
            channel.request_oneway(RemotingCommand(40))
            assert (await client.receive()).code == 40

    run(test)


def test_a_client_that_reads_nothing_is_not_read_from():
    async def test():
        async with serving() as server:
            served = []

            def big(channel, request):
                served.append(request.opaque)
                return request.answer(body=bytes(1 << 20))

            server.register(big, 10)
            client = await server.connect()
            for i in range(60):
                client.send(RemotingCommand(10, opaque=i, body=bytes(300_000)))
            for _ in range(50):
                await asyncio.sleep(0.002)
            assert len(served) < 60
            for i in range(60):
                assert (await client.receive()).opaque == i

    run(test)


def big(channel, request):
    return request.answer(body=bytes(8 << 20))


def test_a_client_that_never_reads_is_aborted_when_it_is_idle(caplog):
    async def test():
        async with serving(idle_s=0.1) as server:
            server.register(big, 10)
            client = await server.connect()
            client.reader._transport.pause_reading()
            client.send(*[RemotingCommand(10, opaque=i) for i in range(8)])
            for _ in range(400):
                await asyncio.sleep(0.01)
                if not server.channels and caplog.records:
                    break
            # A mere close would wait for the client to read, for ever.
            assert not server.channels

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "answers are not read" in caplog.text


def test_a_stop_does_not_wait_for_a_client_that_never_reads():
    closed = []

    async def test():
        async with serving(on_close=closed.append) as server:
            server.register(big, 10)
            client = await server.connect()
            client.reader._transport.pause_reading()
            client.send(*[RemotingCommand(10, opaque=i) for i in range(8)])
            while not any(c.paused for c in server.channels):
                await asyncio.sleep(0.005)
            await server.stop(0.0)
            assert len(closed) == 1
            assert not server.channels

    run(test)


def test_a_name_with_two_addresses_is_listened_on_at_one():
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    assert one_address([six, four]) == "127.0.0.1"
    assert one_address([six]) == "::1"

    async def test():
        server = RemotingServer()
        host, port = await server.start("localhost", 0)
        assert len(server._server.sockets) == 1
        assert port > 0
        await server.stop(0.0)

    run(test)


def test_a_client_that_does_not_read_is_paused_and_later_answered_in_order():
    """Requests of one wake-up wait as soon as their answers are not read."""
    async def test():
        async with serving() as server:
            served = []

            def big(channel, request):
                served.append(request.opaque)
                return request.answer(body=bytes(1 << 20))

            server.register(big, 10)
            client = await server.connect()
            client.reader._transport.pause_reading()
            client.send(*[RemotingCommand(10, opaque=i) for i in range(200)])
            while not any(c.paused for c in server.channels):
                await asyncio.sleep(0.005)
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert len(served) < 20
            assert server.limits.bytes < 20 << 20
            client.reader._transport.resume_reading()
            assert [(await client.receive()).opaque for _ in range(200)] == list(range(200))
            while server.limits.bytes:
                await asyncio.sleep(0.005)

    run(test)


def test_answers_that_came_later_wait_for_a_client_that_does_not_read():
    async def test():
        async with serving() as server:
            parked, made = [], []
            server.register(lambda channel, request: parked.append((channel, request)), 11)
            client = await server.connect()
            client.send(*[RemotingCommand(11, opaque=i) for i in range(100)])
            while len(parked) < 100:
                await asyncio.sleep(0.005)
            client.reader._transport.pause_reading()

            def answer(channel, request):
                made.append(request.opaque)
                channel.answer(request, request.answer(body=bytes(1 << 20)))

            for channel, request in parked:
                channel.when_reading(lambda c=channel, r=request: answer(c, r))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert len(made) < 20
            client.reader._transport.resume_reading()
            assert [(await client.receive()).opaque for _ in range(100)] == list(range(100))

    run(test)


def test_the_least_recently_used_connection_makes_room_and_a_new_one_before_a_used_one():
    async def test():
        limits = ServerLimits(connections_max=3)
        async with serving(limits=limits) as server:
            server.register(echo, 10)
            first = await server.connect()
            first.send(RemotingCommand(10, opaque=1))
            await first.receive()
            silent = await server.connect()
            third = await server.connect()
            third.send(RemotingCommand(10, opaque=3))
            await third.receive()
            fourth = await server.connect()
            assert await silent.receive() is None, "it had sent nothing"
            fourth.send(RemotingCommand(10, opaque=4))
            assert (await fourth.receive()).opaque == 4
            fifth = await server.connect()  # all others were used within the last second
            assert await fifth.receive() is None
            for channel in server.channels:
                channel.last_active -= 10
            first.send(RemotingCommand(10, opaque=1))
            assert (await first.receive()).opaque == 1
            sixth = await server.connect()
            assert await third.receive() is None
            sixth.send(RemotingCommand(10, opaque=6))
            assert (await sixth.receive()).opaque == 6
            assert limits.closed["connections"] == 3

    run(test)


def test_a_limit_is_shared_by_servers():
    async def test():
        limits = ServerLimits(connections_max=2)
        async with serving(limits=limits) as one, serving(limits=limits) as other:
            first = await one.connect()
            await one.connect()
            await other.connect()
            assert await first.receive() is None
            assert len(limits) == 2

    run(test)


def test_incomplete_requests_are_bounded_in_total_and_the_largest_goes(caplog):
    async def test():
        limits = ServerLimits(bytes_max=4 << 20)
        async with serving(limits=limits) as server:
            server.register(echo, 10)
            small, large, good = [await server.connect() for _ in range(3)]
            small.writer.write(struct.pack(">iI", 8 << 20, 10) + bytes(100_000))
            large.writer.write(struct.pack(">iI", 8 << 20, 10) + bytes(5 << 20))
            with contextlib.suppress(ConnectionResetError):
                assert await large.receive() is None
            good.send(RemotingCommand(10, opaque=1))
            assert (await good.receive()).opaque == 1
            assert len(server.channels) == 2
            assert limits.closed["bytes"] == 1

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "requests wait for memory" in caplog.text


def test_an_incomplete_request_is_given_up_when_nothing_more_comes():
    async def test():
        limits = ServerLimits(stall_s=0.2)
        async with serving(limits=limits) as server:
            client = await server.connect()
            client.writer.write(encode(RemotingCommand(10))[:20])
            assert await client.receive() is None
            assert limits.closed["incomplete request"] == 1
            assert limits.bytes == 0

    run(test)


def test_a_flood_of_closed_connections_is_one_line(caplog):
    class Fake:
        def __init__(self):
            self.last_active, self.counted, self.served, self.peer = 0.0, 0, False, "x:1"
            self.peer_ip, self.unauthenticated = "x", False

        def abort(self):
            pass

        def held_bytes(self):
            return 0

    limits = ServerLimits(connections_max=5)
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            limits.opened(Fake(), 100.0)
        limits.opened(Fake(), 161.0)
    assert limits.closed["connections"] == 496
    assert [r.getMessage().split("count=")[1].split()[0] for r in caplog.records] == ["1", "495"]
