"""The remoting client and what is built on it, against a server in the same loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailrace.client import AsyncProducer, AsyncPullConsumer, Producer
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import RemotingCommandError, RemotingError, RemotingTimeoutError
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.model import Message
from tailrace.remoting import RemotingClient, RemotingServer


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


async def server_with(**processors):
    """A server with a processor for each code, given as ``c10=...``; and its address."""
    server = RemotingServer()
    for name, processor in processors.items():
        server.register(processor, int(name[1:]))
    host, port = await server.start("127.0.0.1", 0)
    return server, f"{host}:{port}"


def echo(channel, request):
    return request.answer(body=request.body)


def test_a_large_answer_comes_whole_and_is_not_copied_for_every_piece():
    async def test():
        server, address = await server_with(c10=lambda _, request: request.answer(body=bytes(15 << 20)))
        client = RemotingClient()
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(
            *(client.invoke(address, 10, {}, timeout_ms=10_000) for _ in range(3)))
        assert [len(a.body) for a in answers] == [15 << 20] * 3
        assert asyncio.get_running_loop().time() - began < 8
        await client.close()
        await server.stop(0.0)

    run(test)


def test_oneway_requests_wait_for_a_peer_that_does_not_read():
    async def test():
        server, address = await server_with(c10=echo)
        client = RemotingClient()
        await client.invoke(address, 10, {})
        for channel in server.channels:
            channel.pause_writing()
        sent = 0

        async def flood():
            nonlocal sent
            for _ in range(200):
                await client.invoke_oneway(address, 10, {}, bytes(1 << 20))
                sent += 1

        task = asyncio.create_task(flood())
        await asyncio.sleep(0.3)
        assert sent < 60  # a few in the buffers of both sides, not 200 MB in memory
        for channel in server.channels:
            channel.resume_writing()
        await asyncio.wait_for(task, 60)
        await client.close()
        await server.stop(0.0)

    run(test)


def test_a_write_that_waits_for_a_peer_fails_when_the_peer_has_gone_and_times_out_before():
    async def test():
        server, address = await server_with(c10=echo)
        client = RemotingClient()
        await client.invoke(address, 10, {})
        channel = next(iter(server.channels))
        channel.pause_writing()
        big = bytes(15 << 20)
        await client.invoke_oneway(address, 10, {}, big)
        with pytest.raises(RemotingTimeoutError):
            await client.invoke(address, 10, {}, timeout_ms=50)
        waiting = asyncio.create_task(client.invoke(address, 10, {}, timeout_ms=5000))
        await asyncio.sleep(0.02)
        channel.abort()
        with pytest.raises(RemotingError, match="closed"):
            await waiting
        await client.close()
        await server.stop(0.0)

    run(test)


def test_after_go_away_the_next_request_takes_a_new_connection_and_none_is_lost():
    async def test():
        seen, parked = [], []

        def away(channel, request):
            seen.append(channel)
            if len(set(seen)) == 1:
                return request.answer(ResponseCode.GO_AWAY, "please go away")
            return request.answer()

        def park(channel, request):
            parked.append((channel, request))

        server, address = await server_with(c10=away, c11=park)
        client = RemotingClient()
        late = asyncio.create_task(client.invoke(address, 11, {}))
        while not parked:
            await asyncio.sleep(0.005)
        assert (await client.invoke(address, 10, {})).code == ResponseCode.GO_AWAY
        assert (await client.invoke(address, 10, {})).code == 0
        assert len(set(seen)) == 2
        channel, request = parked[0]
        channel.answer(request, request.answer(body=b"late"))
        assert (await late).body == b"late"
        while len(server.channels) > 1:  # then the old connection is closed
            await asyncio.sleep(0.005)
        await client.close()
        await server.stop(0.0)

    run(test)


def test_the_end_of_requests_loses_no_answer_under_way_and_the_peer_waits_for_nothing():
    async def test():
        parked = []

        def park(channel, request):
            parked.append((channel, request))

        server, address = await server_with(c10=echo, c11=park)
        client = RemotingClient()
        polls = [asyncio.create_task(client.invoke(address, 11, {})) for _ in range(2)]
        while len(parked) < 2:
            await asyncio.sleep(0.005)
        channel, request = parked[0]
        channel.answer(request, request.answer(body=b"x" * (8 << 20)))  # more than fits into the buffers
        await client.end_requests(10)
        assert len((await polls[0]).body) == 8 << 20
        with pytest.raises(RemotingError, match="was closed"):
            await polls[1]
        assert channel.closed
        assert (await client.invoke(address, 10, {})).code == 0
        await client.end_requests(10)  # nothing waits
        assert len(server.channels) == 1
        await client.close()
        await server.stop(0.0)

    run(test)


def test_a_closed_client_says_so_and_opens_nothing():
    async def test():
        server, address = await server_with(c10=echo)
        client = RemotingClient()
        await client.invoke(address, 10, {})
        await client.close()
        with pytest.raises(RemotingError, match="the client is closed"):
            await client.invoke(address, 10, {})
        await server.stop(0.0)

    run(test)


def route_of(*brokers, queues=1):
    return fastjson.dumps({
        "brokerDatas": [
            {"brokerName": name, "brokerAddrs": {"0": address}, "cluster": "c"}
            for name, address in brokers],
        "queueDatas": [
            {"brokerName": name, "perm": 6, "readQueueNums": queues, "writeQueueNums": queues,
             "topicSysFlag": 0} for name, _ in brokers],
    })


def test_a_send_is_tried_again_on_another_broker():
    async def test():
        asked = []

        def busy(channel, request):
            asked.append("busy")
            return request.answer(ResponseCode.SYSTEM_BUSY, "no")

        def good(channel, request):
            asked.append("good")
            return request.answer(ext={"msgId": "00", "queueId": "0", "queueOffset": "5"})

        one, busy_address = await server_with(c310=busy)
        two, good_address = await server_with(c310=good)
        names, namesrv = await server_with(c105=lambda _, request: request.answer(
            body=route_of(("a", busy_address), ("b", good_address))))
        async with AsyncProducer(namesrv=namesrv, group="g") as producer:
            for _ in range(4):
                sent = await producer.send(Message(topic="t", body=b"x"))
                assert (sent.broker_name, sent.queue_offset) == ("b", 5)
            # Never twice in a row: what failed is not where it is tried next.
            assert "busy busy" not in " ".join(asked)
            assert "busy" in asked
        async with AsyncProducer(namesrv=namesrv, group="g", retries=0) as producer:
            found = []
            for _ in range(2):
                try:
                    found.append((await producer.send(Message(topic="t", body=b"x"))).broker_name)
                except RemotingCommandError as error:
                    found.append(error.code)
            assert sorted(map(str, found)) == ["2", "b"]
        for server in (one, two, names):
            await server.stop(0.0)

    run(test)


@pytest.mark.parametrize("by_broker", [False, True])
def test_a_send_that_creates_its_topic_chooses_a_queue_that_it_asks_for(by_broker):
    async def test():
        chosen, topic_missing = [], ResponseCode.TOPIC_NOT_EXIST

        def stored(channel, request):
            chosen.append((int(request.ext["e"]), int(request.ext["d"])))
            return request.answer(ext={"msgId": "00", "queueId": "0", "queueOffset": "5"})

        def config(channel, request):
            if request.ext["topic"] != "TBW102":
                return request.answer(topic_missing)
            return request.answer(body=b'{"readQueueNums":8,"writeQueueNums":8,"perm":7}')

        broker, address = await server_with(c310=stored, c351=config)

        def route(channel, request):
            if request.ext["topic"] != "TBW102":
                return request.answer(topic_missing)
            return request.answer(body=route_of(("a", address), queues=8))

        names, namesrv = await server_with(c105=route)
        where = {"broker": address} if by_broker else {"namesrv": namesrv}
        async with AsyncProducer(group="g", **where) as producer:
            for _ in range(9):
                await producer.send(Message(topic="new", body=b"x"))
        assert {asked for _, asked in chosen} == {4}
        assert {queue for queue, _ in chosen} == {0, 1, 2, 3}
        await broker.stop(0.0)
        await names.stop(0.0)

    run(test)


def test_a_success_without_its_fields_is_an_error_and_not_sent_again():
    async def test():
        sent = []

        def stored(channel, request):
            sent.append(request)
            return request.answer(ext={"msgId": "00", "queueId": "0"})

        server, address = await server_with(c310=stored, c351=lambda _, request: request.answer(
            body=b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'))
        async with AsyncProducer(group="g", broker=address) as producer:
            with pytest.raises(RemotingError, match="the custom field <queueOffset> is null"):
                await producer.send(Message(topic="t", body=b"x"))
        assert len(sent) == 1
        await server.stop(0.0)

    run(test)


def never_committed(channel, request):
    return request.answer(ResponseCode.QUERY_NOT_FOUND)


def test_reading_to_the_end_waits_for_what_was_acknowledged_and_not_dispatched():
    async def test():
        asked, pulled = [], []

        def end(_, request):
            asked.append(request.ext.get("committed"))
            return request.answer(ext={"offset": "1"})

        def not_yet(_, request):
            pulled.append(int(request.ext["suspendTimeoutMillis"]))
            return request.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, "", {
                "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"})

        server, address = await server_with(
            c11=not_yet, c14=never_committed, c30=end, c31=lambda _, request: request.answer(ext={"offset": "0"}),
            c351=lambda _, request: request.answer(
                body=b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'))
        async with AsyncPullConsumer(broker=address, group="c") as consumer:
            assert [m async for m in consumer.messages("t", follow=False, wait_ms=700)] == []
        assert (asked, pulled) == (["false"], [700])
        await server.stop(0.0)

    run(test)


def test_reading_to_the_end_ends_although_the_last_messages_cannot_be_read():
    async def test():
        def nothing(channel, request):
            return request.answer(ResponseCode.PULL_NOT_FOUND, "", {
                "suggestWhichBrokerId": "0", "nextBeginOffset": request.ext["queueOffset"],
                "minOffset": "0", "maxOffset": "9"})

        server, address = await server_with(
            c11=nothing, c14=never_committed, c30=lambda _, request: request.answer(ext={"offset": "9"}),
            c31=lambda _, request: request.answer(ext={"offset": "0"}),
            c351=lambda _, request: request.answer(
                body=b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'))
        async with AsyncPullConsumer(broker=address, group="c") as consumer:
            assert [m async for m in consumer.messages("t", follow=False)] == []
        await server.stop(0.0)

    run(test)


def test_a_close_ends_calls_of_other_threads_and_later_ones_are_told():
    loop = EventLoopThread()
    failed = []

    def waits():
        try:
            loop.run(asyncio.sleep(30))
        except RemotingError as error:
            failed.append(str(error))

    thread = threading.Thread(target=waits)
    thread.start()
    while not loop._loop._scheduled:
        pass
    loop.close()
    thread.join(5)
    assert failed == ["the client is closed"]
    with pytest.raises(RemotingError, match="the client is closed"):
        loop.run(asyncio.sleep(0))
    loop.close()


def test_a_closed_producer_is_told_and_may_be_closed_again():
    producer = Producer(broker="127.0.0.1:1", group="g", retries=0)
    producer.close()
    producer.close()
    with pytest.raises(RemotingError, match="the client is closed"):
        producer.send(Message(topic="t", body=b"x"))
