"""A whole broker over sockets, on a store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import pytest
import served_broker

from tailrace.broker import BrokerController
from tailrace.broker.core.listeners import Listeners
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.model import Message
from tailrace.node.config_manager import read_config
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore


class Client(served_broker.Client):
    opaque = 0

    def send(self, code, ext=None, body=b"", **options):
        self.opaque += 1
        self.writer.write(encode(RemotingCommand(code, ext, body, opaque=self.opaque, **options)))

    async def ask(self, code, ext=None, body=b"", **options):
        self.send(code, ext, body, **options)
        return await self.receive()


@contextlib.asynccontextmanager
async def running(tmp_path, kit, **options):
    store = kit.open_store(tmp_path, clock=SystemClock())
    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0), **options)
    clients = []

    async def connect(address=None):
        clients.append(await Client.connect(address or controller.broker_address))
        return clients[-1]

    try:
        yield controller, store, connect
    finally:
        await controller.stop()
        for client in clients:
            client.writer.close()


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


SEND = {
    "a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "UNIQ_KEY\x01U\x02",
}
PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "0",
}


@pytest.mark.parametrize("kind", [0, 1])
def test_a_message_goes_all_the_way(tmp_path, kit, kind):
    async def test():
        async with running(tmp_path, kit) as (controller, store, connect):
            names = await connect(controller.namesrv_address)
            assert (await names.ask(105, {"topic": "orders"}, serialize_type=kind)).code == 17
            client = await connect()
            sent = await client.ask(310, SEND, b"hello", serialize_type=kind)
            assert (sent.code, sent.ext["transactionId"]) == (0, "U")
            route = json.loads((await names.ask(105, {"topic": "orders"})).body)
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": controller.broker_address}
            pulled = await client.ask(11, PULL, serialize_type=kind)
            assert (pulled.code, pulled.body) == (0, store.log[0])
            assert pulled.serialize_type == kind

    run(test)


def test_a_held_pull_is_answered_by_a_send_of_another_client(tmp_path, kit):
    async def test():
        async with running(tmp_path, kit) as (_, store, connect):
            producer, consumer = await connect(), await connect()
            await producer.ask(310, SEND, b"first")
            consumer.send(11, {**PULL, "queueOffset": "1"})
            await asyncio.sleep(0.02)
            await producer.ask(310, SEND, b"second")
            answer = await consumer.receive()
            assert (answer.code, answer.body) == (0, store.log[1])

    run(test)


def test_stopping_tells_newer_clients_to_go_away_and_writes_offsets(tmp_path, kit):
    async def test():
        async with running(tmp_path, kit) as (controller, store, connect):
            client, old = await connect(), await connect()
            await client.ask(310, SEND, b"x")
            await client.ask(352, {"group": "g"})
            where = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "1"}
            client.send(15, where, flag=2)
            client.send(11, {**PULL, "queueOffset": "1"})
            old.send(11, {**PULL, "queueOffset": "1"}, version=400)
            await asyncio.sleep(0.05)
            await controller.stop()
            assert (await client.receive()).code == 1500
            assert await client.receive() is None
            assert await old.receive() is None
            found = read_config(OsFileSystem(), f"{store.config_dir}/consumerOffset.json")
            assert found["offsetTable"] == {"orders@g": {"0": 1}}
            assert store.inner.listeners == []
            await controller.stop()  # a second time does nothing

    run(test)


def test_an_address_that_is_taken_is_an_error_and_leaves_nothing_running(tmp_path, kit):
    async def test():
        async with running(tmp_path, kit) as (controller, store, connect):
            taken = int(controller.namesrv_address.rsplit(":", 1)[1])
            listeners = Listeners(names=("--listen", "--namesrv-listen"))
            with pytest.raises(OSError, match=rf"--namesrv-listen 127\.0\.0\.1:{taken}: .*in use, "
                               rf"by process {os.getpid()} "):
                await listeners.start(("127.0.0.1", 0), ("127.0.0.1", taken))
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", listeners.port)
            with pytest.raises(OSError, match=rf"listen on 127\.0\.0\.1:{taken}: "):
                await BrokerController(store).start(("127.0.0.1", taken), None)

    run(test)


def test_ports_with_limits_of_another_broker_are_refused_and_closed(tmp_path, kit):
    async def test():
        listeners = Listeners()
        await listeners.start(("127.0.0.1", 0), None)
        controller = BrokerController(kit.open_store(tmp_path, clock=SystemClock()))
        with pytest.raises(ValueError, match="other limits than the broker"):
            await controller.serve_on(listeners)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listeners.port)

    asyncio.run(test())


def test_ports_taken_before_the_store_is_open_answer_and_serve_the_same_connections_later(tmp_path, kit):
    async def test():
        done = [None, 0.25]
        listeners = Listeners(progress=lambda: done.pop(0))
        await listeners.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        controller = BrokerController(kit.open_store(tmp_path, clock=SystemClock()), limits=listeners.limits)
        broker = await Client.connect(listeners.broker_address)
        namesrv = await Client.connect(listeners.namesrv_address)
        first, second = await broker.ask(310, SEND, b"x"), await namesrv.ask(105, {"topic": "t"})
        assert (first.code, first.remark) == (14, "the broker is opening its store")
        assert (second.code, second.remark) == (14, "the broker is opening its store, 25 % done")
        await controller.serve_on(listeners)
        try:
            assert (await broker.ask(310, SEND, b"x")).code == 0
            assert (await namesrv.ask(105, {"topic": "TBW102"})).code == 0
            assert (await broker.ask(200_072)).code == 3
            assert controller.broker_address == listeners.broker_address
        finally:
            await controller.stop()
            broker.writer.close()
            namesrv.writer.close()

    run(test)


def test_the_vip_port_serves_all_but_pulls(tmp_path, kit):
    async def test():
        store = kit.open_store(tmp_path, clock=SystemClock())
        controller = BrokerController(store)
        await controller.start(("127.0.0.1", 0), None)
        port = int(controller.broker_address.rsplit(":", 1)[1])
        await controller.stop()
        controller = BrokerController(store)
        await controller.start(("127.0.0.1", port), None, vip=True)
        try:
            client = await Client.connect(f"127.0.0.1:{port - 2}")
            assert (await client.ask(21, {"topicSeq": "0"})).code == 0
            assert (await client.ask(310, SEND, b"x")).code == 0
            assert (await client.ask(11, PULL)).code == 3
            client.writer.close()
        finally:
            await controller.stop()
        assert controller.namesrv_address == ""

    run(test)


def test_later_work_is_answered_with_its_code(tmp_path, kit):
    async def test():
        async with running(tmp_path, kit) as (_, store, connect):
            client = await connect()
            assert [(await client.ask(code)).code for code in (47, 200_072, 200_073)] == [3] * 3
            missing = await client.ask(14, {"consumerGroup": "g"})
            assert (missing.code, missing.remark) == (1, "the custom field <topic> is null")

    run(test)


def test_offsets_behind_the_end_of_their_queue_are_taken_back(tmp_path, caplog):
    """As a power loss leaves them under ASYNC_FLUSH: offsets on the disk, their messages not."""
    with MessageStore.open(tmp_path / "store") as store:
        for _ in range(3):
            store.put(Message(topic="orders", body=b"x"))
        before = ConsumerOffsetManager(OsFileSystem(), store.config_dir, SystemClock())
        for group, topic, offset in (
            ("ahead", "orders", 10), ("behind", "orders", 2), ("at-end", "orders", 3),
            ("ahead", "no-such-topic", 7),
        ):
            before.commit(group, topic, 0, offset)
        before.persist()

    async def test():
        with MessageStore.open(tmp_path / "store") as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), None)
            await controller.stop()

    run(test)
    after = ConsumerOffsetManager(OsFileSystem(), before._config_dir, SystemClock())
    assert after.load()
    assert sorted(after.entries()) == [
        ("no-such-topic", "ahead", 0, 7), ("orders", "ahead", 0, 3), ("orders", "at-end", 0, 3),
        ("orders", "behind", 0, 2),
    ]
    assert caplog.text.count("consumer offset corrected") == 1


def test_an_advertised_host_that_nobody_knows_is_named_before_anything_is_served():
    async def start():
        listeners = Listeners("not a host")
        with pytest.raises(OSError, match="brokerIP1=not a host cannot be looked up"):
            await listeners.start(("127.0.0.1", 0), None)

    asyncio.run(start())


def test_an_offset_past_the_end_of_its_queue_is_lowered_durably_before_the_first_message_comes(tmp_path, kit):
    """Else a kill a moment later brings it back. The queue may be longer by then, and its group would skip messages."""
    async def test():
        async with running(tmp_path, kit) as (controller, store, _):
            store.put(Message(topic="orders", body=b"0"), queue_id=0)
            controller.broker.offsets.commit("g", "orders", 0, 100)
            controller.broker.offsets.persist_if_changed()
        store.close()
        async with running(tmp_path, kit):
            table = read_config(OsFileSystem(), str(tmp_path / "config" / "consumerOffset.json"))
            assert table["offsetTable"]["orders@g"] == {"0": 1}

    run(test)
