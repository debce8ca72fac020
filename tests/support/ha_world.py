"""A master with its HA port on a real store, and a scripted slave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import struct

from ha_frames import FrameDecoder

from tailrace import MessageStore, StoreConfig
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.ha.replicas import Replicas
from tailrace.ha.sender import TICK_S, HaSender
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.limits import ServerLimits

FILE = 1 << 16
SIZES = {
    "mapped_file_size_commit_log": FILE, "mapped_file_size_consume_queue": 20 * 500, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 1 << 16, "mapped_file_size_timer_log": 52 * 2000,
    "timer_wheel_enable": False}


def running(test):
    """An async test as a test."""
    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(test(**fixtures))

    return run


class Master:
    """A store whose log slaves may copy."""

    def __init__(self, store, clock, compare=None, acceptor=None):
        self.store = store
        self.inner = store.inner
        self.replicas = Replicas(clock, self.inner)
        self.connections = 1
        self.sender = HaSender(
            clock, self.inner, self.replicas, acceptor or Acceptor(ServerLimits()), self.may_connect,
            lambda read: asyncio.get_running_loop().run_in_executor(None, read), compare)
        self.address = None
        self.slaves = []

    async def slave(self, **options):
        """A connection at the HA port."""
        made = Slave(*await asyncio.open_connection(*self.address, **options))
        self.slaves.append(made)
        return made

    async def may_connect(self, _host):
        return self.connections

    def put(self, count=1, size=100, topic="t"):
        """Put messages; the position after the last one."""
        for _ in range(count):
            result = self.store.put_inner(MessageExtBrokerInner(topic, 0, b"x" * size))
            assert result.status.appended, result
        return result.until

    @property
    def end(self):
        return self.inner.commit_log.max_offset

    def log(self, start=0):
        """The bytes of the log from ``start`` onwards."""
        data, at = b"", start
        while piece := self.inner.commit_log.queue.read(at, self.end - at):
            data, at = data + piece, at + len(piece)
        return data

    async def acknowledged(self, until):
        """The result of waiting for the disk and copies of a put that ends at ``until``."""
        future = asyncio.get_running_loop().create_future()

        def answer(status):
            future.get_loop().call_soon_threadsafe(
                lambda: None if future.done() else future.set_result(status))

        self.inner.when_durable(until, answer)
        return await asyncio.wait_for(future, 10)


@contextlib.asynccontextmanager
async def master(path, *, clock=None, services=True, compare=None, acceptor=None, **settings):
    store = MessageStore.open(
        path, config=StoreConfig(**{**SIZES, **settings}), broker_config=BrokerConfig(),
        parts=StoreParts(services=services, **({} if clock is None else {"clock": clock})))
    made = Master(store, clock or SystemClock(), compare, acceptor)
    made.address = await made.sender.start("127.0.0.1", 0)

    async def ticks():
        while True:
            await asyncio.sleep(TICK_S)
            made.sender.tick()

    ticking = asyncio.ensure_future(ticks())
    try:
        yield made
    finally:
        ticking.cancel()
        for slave in made.slaves:
            slave.writer.close()
            with contextlib.suppress(ConnectionError):
                await slave.writer.wait_closed()
        await made.sender.stop()
        await asyncio.get_running_loop().run_in_executor(None, store.close)


class Slave:
    """A socket at the HA port."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.frames = []
        self.heartbeats = []

    def report(self, position):
        self.writer.write(struct.pack(">q", position))

    async def read(self, until=None, *, seconds=10, report=False):
        """Read frames until the log is there up to ``until``; the bytes since the first frame."""
        async with asyncio.timeout(seconds):
            while not self.frames or (until is not None and self.end < until):
                data = await self.reader.read(1 << 20)
                if not data:
                    raise EOFError
                for frame in self.decoder.feed(data):
                    (self.frames if frame.body else self.heartbeats).append(frame)
                if report and self.frames:
                    self.report(self.end)
        return b"".join(frame.body for frame in self.frames)

    @property
    def end(self):
        last = self.frames[-1]
        return last.phy_offset + len(last.body)

    async def is_closed(self):
        """Whether the master has closed the connection."""
        async with asyncio.timeout(5):
            try:
                while await self.reader.read(1 << 20):
                    pass
            except ConnectionError:
                pass
        return True
