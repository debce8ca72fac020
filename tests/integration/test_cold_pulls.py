"""Pulls that need the disk, over real sockets: other clients do not wait for them, a stop ends them."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import served_broker
from patience import until_async

from tailrace.broker import controller as controller_module
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.remoting import RemotingCommand
from tailrace.model import GetMessageResult, GetMessageStatus, Message
from tailrace.node.message_store import MessageStore
from tailrace.requests.worker import READ_THREADS
from tailrace.store.reading import MessageReader

pytestmark = pytest.mark.integration

PULL = {
    "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}
SEND = {"a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
WAIT_S = 20


class Client(served_broker.Client):
    def send(self, code, ext, opaque, body=b"", version=479):
        super().send(RemotingCommand(code, ext, body, opaque=opaque, version=version))

    async def ask(self, *request, **keywords):
        self.send(*request, **keywords)
        return await self.receive()


class Disk:
    """A disk on which nothing is cached, and whose reads wait until they are let through."""

    def __init__(self, monkeypatch):
        self.go_on, self.reading, real = threading.Event(), [], MessageStore.get_message

        def get_message(store, *arguments, only_cached=False, **keywords):
            if only_cached:
                return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, is_cold=True)
            self.reading.append(arguments)
            assert self.go_on.wait(WAIT_S)
            return real(store, *arguments, **keywords)

        monkeypatch.setattr(MessageStore, "get_message", get_message)
        monkeypatch.setattr(MessageReader, "fill", lambda *_: None)  # the lane finds nothing in memory


@contextlib.asynccontextmanager
async def serving(path, file_system=None):
    """A broker with three messages, its store, and what connects a client."""
    async with served_broker.serving(path, client=Client, file_system=file_system) as served:
        for number in range(3):
            served.store.put(Message(topic="orders", body=b"%d" % number), queue_id=0)
        served.store.wait_dispatched()
        yield served.controller, served.connect


def test_nobody_waits_for_a_read_from_the_disk(tmp_path, monkeypatch):
    async def test():
        async with serving(tmp_path) as (controller, connect):
            reading, other = await connect(), await connect()
            warm = await reading.ask(11, PULL, 1)
            assert (warm.code, bool(warm.body)) == (0, True)
            with monkeypatch.context() as patch:
                disk = Disk(patch)
                for opaque in range(2, 8):
                    reading.send(11, PULL, opaque)
                await until_async(lambda: len(disk.reading) == READ_THREADS)
                for opaque in range(50):
                    assert (await other.ask(310, SEND, opaque, b"x")).code == 0
                beside = await reading.ask(28, {}, 100)
                assert beside.opaque == 100, "the same connection is served, too"
                assert controller.broker.cold_reads.pending == 6
                await asyncio.to_thread(controller.broker.store.wait_dispatched)  # all reads find the same
                disk.go_on.set()
                answers = [await reading.receive() for _ in range(6)]
            assert sorted(a.opaque for a in answers) == list(range(2, 8))
            assert {(a.code, a.body.startswith(warm.body)) for a in answers} == {(0, True)}
            same = await reading.ask(11, PULL, 200)
            assert (same.body, same.ext) == (answers[-1].body, answers[-1].ext)
            assert (controller.broker.cold_reads.count, controller.broker.cold_reads.pending) == (6, 0)

    asyncio.run(test())


def test_a_read_that_the_system_would_wait_for_is_made_in_a_thread(tmp_path, monkeypatch):
    """The file system says that no unit of the queue is cached; nothing else is injected."""
    threads = []

    async def test():
        file_system = OsFileSystem()
        async with serving(tmp_path, file_system) as (controller, connect):
            client = await connect()
            warm = await client.ask(11, PULL, 1)
            file = controller.broker.store.inner.reader._queues.get("orders", 0).files.files[0]._open()
            kind, real = type(file), type(file).pread
            monkeypatch.setattr(kind, "pread_cached", lambda *_: None)
            monkeypatch.setattr(
                kind, "pread", lambda *a: (threads.append(threading.current_thread().name), real(*a))[1])
            cold = await client.ask(11, PULL, 2)
            assert (cold.code, cold.body, cold.ext) == (0, warm.body, warm.ext)
            assert controller.broker.cold_reads.count == 1
            assert any(name.startswith("cold-reads") for name in threads)

    asyncio.run(test())


def test_a_connection_that_closes_during_the_read_leaves_nothing(tmp_path, monkeypatch):
    async def test():
        async with serving(tmp_path) as (controller, connect):
            reading, other = await connect(), await connect()
            await reading.ask(11, PULL, 1)
            disk, cold = Disk(monkeypatch), controller.broker.cold_reads
            for opaque in range(100):
                reading.send(11, PULL, opaque)
            await until_async(lambda: cold.pending == 100)
            limits = next(server.limits for server in controller.servers)
            assert limits.bytes > 100 * 2048
            reading.writer.close()
            await until_async(lambda: cold.pending == READ_THREADS)
            assert limits.bytes < 2048
            other.send(11, PULL, 7)
            disk.go_on.set()
            assert (await other.receive()).opaque == 7
            await until_async(lambda: cold.pending == 0)
            assert len(disk.reading) == READ_THREADS + 1

    asyncio.run(test())


def test_a_stop_answers_what_is_read_and_sends_the_others_away(tmp_path, monkeypatch):
    async def test():
        async with serving(tmp_path) as (controller, connect):
            new, old = await connect(), await connect()
            await new.ask(11, PULL, 1)
            disk = Disk(monkeypatch)
            for opaque in range(2, 6):
                new.send(11, PULL, opaque)
            await until_async(lambda: controller.broker.cold_reads.pending == 4)
            old.send(11, PULL, 9, version=401)
            await until_async(lambda: controller.broker.cold_reads.pending == 5)
            stopping = asyncio.ensure_future(controller.stop())
            away = [await new.receive() for _ in range(2)]
            assert {(a.code, a.opaque) for a in away} == {(1500, 4), (1500, 5)}
            assert not stopping.done()
            disk.go_on.set()
            found = [await new.receive() for _ in range(2)]
            assert {(a.code, a.opaque) for a in found} == {(0, 2), (0, 3)}
            assert await new.receive() is None
            assert await old.receive() is None, "it knows no such code: its connection ends"
            await stopping
        assert not (tmp_path / "abort").exists()

    asyncio.run(test())


def test_a_stop_closes_connections_whose_reads_take_too_long_and_the_store_after_the_reads(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(controller_module, "PATIENCE_S", 0.05)

    async def test():
        async with serving(tmp_path) as (controller, connect):
            client = await connect()
            await client.ask(11, PULL, 1)
            disk = Disk(monkeypatch)
            client.send(11, PULL, 2)
            await until_async(lambda: disk.reading)
            stopping = asyncio.ensure_future(controller.stop())
            assert await client.receive() is None
            assert not stopping.done(), "the store must not be closed yet"
            disk.go_on.set()
            await stopping
        assert not (tmp_path / "abort").exists()

    asyncio.run(test())
