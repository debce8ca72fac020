"""Request-reply over real sockets: one connection asks, another one answers."""

from __future__ import annotations

import asyncio
import json

import pytest
from served_broker import serving

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.formats.commitlog import decode_properties
from tailrace.formats.remoting import RemotingCommand

pytestmark = pytest.mark.integration

TOPIC = "DefaultCluster_REPLY_TOPIC"
REQUEST = {
    "a": "askers", "b": "questions", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02",
}
REPLY = {
    **REQUEST, "a": "answerers", "b": TOPIC,
    "i": "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02",
}
HEARTBEAT = json.dumps({"clientID": "asker", "producerDataSet": [{"groupName": "askers"}]}).encode()


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def replies(store):
    return [m.body for m in store.read(TOPIC, 0)]


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("kept", [True, False])
def test_a_request_gets_its_reply(tmp_path, flush, kept):
    async def test():
        config = StoreConfig(flush_disk_type=flush)
        async with serving(tmp_path, config, store_reply_message_enable=kept) as (_, store, connect):
            asker, answerer = await connect(), await connect()
            assert (await asker.ask(34, body=HEARTBEAT)).code == 0
            assert (await asker.ask(310, REQUEST, b"how many?")).code == 0
            question, = store.read("questions", 0)
            assert question.properties["CLUSTER"] == "DefaultCluster"  # the topic of the reply
            answerer.send(RemotingCommand(325, REPLY, b"three", opaque=7))
            push = await asker.receive()
            assert (push.code, push.body, push.ext["topic"]) == (326, b"three", TOPIC)
            properties = decode_properties(push.ext["properties"].encode())
            assert properties["CORRELATION_ID"] == "c-1"
            assert "PUSH_REPLY_TIME" in properties
            assert (await answerer.ask(28)).code is not None  # served while the reply waits
            assert replies(store) == []  # not before the producer has answered
            asker.send(push.answer())
            answer = await answerer.receive()
            assert (answer.code, answer.opaque, answer.ext["queueOffset"]) == (0, 7, "0")
            assert replies(store) == ([b"three"] if kept else [])
            if kept:
                assert store.look_message_by_offset(int(answer.ext["msgId"][-16:], 16)).body == b"three"
            else:
                assert answer.ext["msgId"] == "0"

    run(test)


def test_a_producer_that_has_gone_is_not_found_and_one_that_goes_does_not_take_its_reply(tmp_path):
    async def test():
        async with serving(tmp_path) as (controller, store, connect):
            answerer, asker = await connect(), await connect()
            missing = await answerer.ask(325, REPLY, b"early")
            assert (missing.code, missing.remark) == (
                1, "push reply message fail, channel of <asker> not found.")
            await asker.ask(34, body=HEARTBEAT)
            answerer.send(RemotingCommand(325, REPLY, b"late", opaque=7))
            assert (await asker.receive()).code == 326
            asker.writer.close()
            answer = await answerer.receive()
            assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
            assert replies(store) == [b"late"]
            assert controller.broker.clients.producers.find_channel("asker") is None

    run(test)


def test_a_producer_that_reads_nothing_holds_nobody_up(tmp_path):
    async def test():
        async with serving(tmp_path) as (controller, store, connect):
            deaf, asker, answerer = await connect(), await connect(), await connect()
            await deaf.ask(34, body=HEARTBEAT)
            await asker.ask(34, body=HEARTBEAT.replace(b'"asker"', b'"other"'))
            body = bytes(3 << 20)
            for _ in range(8):
                answerer.send(RemotingCommand(325, REPLY, body, opaque=1))
            busy = [await answerer.receive() for _ in range(3)]
            assert [(a.code, a.opaque) for a in busy] == [(2, 1)] * 3
            assert busy[0].remark.startswith("5 replies with 157")
            assert busy[0].remark.endswith(" bytes wait already, 5 of them of the same connection; try again later")
            channel = controller.broker.clients.producers.find_channel("asker")
            assert channel.held_bytes() < 4 << 20
            other = {**REPLY, "i": REPLY["i"].replace("\x01asker", "\x01other")}
            answerer.send(RemotingCommand(325, other, body, opaque=2))
            push = await asker.receive()
            asker.send(push.answer())
            answer = await answerer.receive()
            assert (answer.code, answer.opaque) == (0, 2)

    run(test)


def test_a_broker_that_stops_ends_what_waits(tmp_path):
    async def test():
        async with serving(tmp_path) as (controller, store, connect):
            asker, answerer = await connect(), await connect()
            await asker.ask(34, body=HEARTBEAT)
            answerer.send(RemotingCommand(325, REPLY, b"x", opaque=7))
            assert (await asker.receive()).code == 326
            await controller.stop()
            assert replies(store) == [b"x"]
            assert (await answerer.receive()) is None

    run(test)


def test_a_broker_that_stops_lets_a_producer_take_its_reply(tmp_path):
    async def test():
        async with serving(tmp_path) as (controller, store, connect):
            asker, answerer = await connect(), await connect()
            await asker.ask(34, body=HEARTBEAT)
            answerer.send(RemotingCommand(325, REPLY, b"x", opaque=7))
            push = await asker.receive()
            stopping = asyncio.create_task(controller.stop())
            await asyncio.sleep(0.2)
            asker.send(push.answer())
            answer = await answerer.receive()
            assert (answer.code, answer.opaque) == (0, 7)
            await stopping
            assert replies(store) == [b"x"]

    run(test)
