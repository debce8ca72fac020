"""Power loss of a master: no slave has more of the log than the master has after its recovery (H4)."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
from ha_frames import FrameDecoder
from ha_world import FILE, SIZES, running

from tailrace import FlushDiskType, MessageStore, StoreConfig
from tailrace.config import BrokerConfig, BrokerRole
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.ha.frames import encode_report
from tailrace.ha.replicas import Replicas
from tailrace.ha.sender import HaSender
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.limits import ServerLimits
from tailrace.testing import CrashFileSystem, ManualScheduler

pytestmark = pytest.mark.crash


def opened(files, **settings):
    return MessageStore.open(
        "/s", config=StoreConfig(**{**SIZES, **settings}), broker_config=BrokerConfig(),
        parts=StoreParts(clock=SystemClock(), file_system=files, scheduler=ManualScheduler(), entropy=SeededEntropy(1)))


class CrashedMaster:
    """A master on simulated files, and a slave that keeps what it gets."""

    def __init__(self, seed, **settings):
        self.random = random.Random(seed)
        self.files = CrashFileSystem()
        self.settings = settings
        self.log = bytearray()
        self.acknowledged = []

    async def life(self):
        store = opened(self.files, **self.settings)
        inner = store.inner
        sender = HaSender(SystemClock(), inner, Replicas(SystemClock(), inner), Acceptor(ServerLimits()),
                          self.may_connect, lambda read: asyncio.to_thread(read))
        reader, writer = await asyncio.open_connection(*await sender.start("127.0.0.1", 0))
        try:
            assert len(self.log) <= inner.commit_log.max_offset, "the slave has more than its master"
            for at in range(0, len(self.log), FILE):
                piece = bytes(self.log[at : at + FILE])
                assert inner.commit_log.queue.read(at, len(piece)) == piece, "the slave has another log"
            for until in self.acknowledged:
                assert until <= inner.commit_log.max_offset
            decoder = FrameDecoder()
            writer.write(encode_report(len(self.log)))
            for _ in range(self.random.randrange(1, 8)):
                until = store.put_inner(MessageExtBrokerInner("t", 0, b"x" * self.random.randrange(2000))).until
                inner.when_durable(until, partial(self.answered, until))
                if self.random.random() < 0.6:
                    inner.flush_commit_log.step()
                for _ in range(self.random.randrange(3)):
                    await asyncio.sleep(0.005)
                    data = await self.some(reader)
                    for frame in decoder.feed(data):
                        assert frame.phy_offset == len(self.log) or not frame.body
                        self.log += frame.body
                    writer.write(encode_report(len(self.log)))
        finally:
            await sender.stop()
            writer.close()
            inner.release()
        self.files = self.files.power_lost(
            SeededEntropy(self.random.randrange(1 << 30)), self.random.choice((0, 50, 100)))

    def answered(self, until, status):
        if status is PutMessageStatus.PUT_OK:
            assert until <= len(self.log), "it is acknowledged, and the slave does not have it"
            self.acknowledged.append(until)

    @staticmethod
    async def some(reader):
        try:
            async with asyncio.timeout(0.02):
                return await reader.read(1 << 16)
        except TimeoutError:
            return b""

    async def may_connect(self, _host):
        return 1


SETTINGS = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "broker_role": BrokerRole.SYNC_MASTER}


async def lives(seed, **settings):
    """Positions that were acknowledged in a few lives of a master that each end in a power loss."""
    world = CrashedMaster(seed, **SETTINGS, **settings)
    for _ in range(6):
        await world.life()
    return world.acknowledged


@running
async def test_after_a_power_loss_no_slave_has_more_than_its_master():
    acknowledged = [await lives(seed) for seed in range(6)]
    assert sum(map(len, acknowledged)) > 10


@running
async def test_the_check_finds_a_slave_that_got_unsynced_bytes():
    async def sweep():
        for seed in range(20):
            await lives(seed, ha_send_unsynced=True)

    with pytest.raises(AssertionError, match=r"the slave has (more than its master|another log)"):
        await sweep()
