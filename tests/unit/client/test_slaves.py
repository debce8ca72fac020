"""Consumers beside a master and its slave, on a simulated network."""

from __future__ import annotations

import asyncio
import logging

import pytest
from client_world import NAME_SERVER, SlaveHost, World
from fake_brokers import LoopClock
from sim_network import NetworkLoop

from tailrace.client import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer
from tailrace.client.broker_calls import GroupCalls
from tailrace.client.instance import InstanceShare, Target
from tailrace.errors import RemotingError
from tailrace.formats.remoting import ResponseCode
from tailrace.model import Message

COMMITS, HAS_SUBSCRIPTION = 1, 4
SLAVE = "10.0.0.7:10911"


@pytest.fixture(autouse=True)
def loop_kind():
    """In virtual time one loop is like another."""


def beside(test):
    """Run a test with a master, its slave, and an endless source of messages, in virtual time."""
    async def given():
        world = World(1, "push", brokers=1)
        world.set_up()
        [master] = world.brokers
        master.broker.checked.update({("t", number): 1 << 40 for number in range(3)})  # other tests look at that
        slave = SlaveHost(world.network, SLAVE, master.broker)
        world.name_server.slaves = [slave]
        await test(Pair(world, master, slave))

    with asyncio.Runner(loop_factory=NetworkLoop) as runner:
        runner.run(given())


class Pair:
    def __init__(self, world, master, slave):
        self.world, self.master, self.slave = world, master, slave
        self.sent = 0
        self.seen = []

    def put(self, count=10):
        for _ in range(count):
            self.master.broker.put("t", self.sent % 3, b"%d" % self.sent)
            self.sent += 1

    async def listen(self, message):
        self.seen.append(int(message.body))

    def consumer(self, **options):
        return AsyncPushConsumer("g", self.listen, namesrv=NAME_SERVER, topics="t", start="first", clock=LoopClock(),
                                 **options)

    async def all_seen(self, seconds=60):
        await self.world.until(lambda: len(self.seen) >= self.sent, seconds, "not all is consumed")
        assert sorted(self.seen) == list(range(self.sent))
        assert not self.world.wrong

    async def all_committed(self, seconds=60):
        def committed():
            return sum(at for (_, topic, _), at in self.master.broker.committed.items() if topic == "t") == self.sent
        await self.world.until(committed, seconds, "not all is committed")
        assert not self.world.wrong

    async def read_from_slave(self, *, always):
        """Put messages; look whether the slave was read from for them."""
        self.slave.pulls.clear()
        self.put()
        await self.all_seen()
        assert bool(self.slave.pulls) is always
        assert all(flags & (COMMITS | HAS_SUBSCRIPTION) == HAS_SUBSCRIPTION for flags in self.slave.pulls)


@pytest.mark.parametrize("in_order", [False, True])
def test_queues_are_read_from_the_slave_that_their_broker_suggests_and_committed_at_the_master(in_order):
    async def test(pair):
        pair.put()
        async with pair.consumer(in_order=in_order):
            await pair.read_from_slave(always=False)
            pair.master.broker.suggested = pair.slave.broker.suggested = 1
            await asyncio.sleep(16)  # the pulls that wait at the master end
            await pair.read_from_slave(always=True)
            await pair.all_committed()
            assert not pair.slave.broker.committed
            pair.master.broker.suggested = pair.slave.broker.suggested = 0
            await asyncio.sleep(16)
            await pair.read_from_slave(always=False)

    beside(test)


def test_a_slave_that_refuses_or_is_down_is_not_read_from_for_a_while(caplog):
    async def test(pair):
        pair.master.broker.suggested = pair.slave.broker.suggested = 1
        pair.put()
        async with pair.consumer():
            await pair.read_from_slave(always=True)
            for fault in (lambda: pair.slave.broker.refuse.update({11: ResponseCode.SYSTEM_BUSY}),
                          lambda: pair.slave.kill(silently=False)):
                fault()
                pair.put()
                await pair.all_seen(20)
                pair.slave.pulls.clear()
                await asyncio.sleep(60)
                assert len(pair.slave.pulls) < 60
                pair.slave.broker.refuse.clear()
            pair.slave.start()
            await asyncio.sleep(30)
            await pair.read_from_slave(always=True)
            await pair.all_committed()

    with caplog.at_level(logging.INFO, "tailrace.client"):
        beside(test)
    assert len([one for one in caplog.messages if one.startswith("broker not read from for a while")]) <= 16
    assert not [one for one in caplog.messages if "pull failed" in one]


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("silently", [True, False], ids=["silently", "loudly"])
def test_reading_goes_on_at_the_slave_of_a_dead_master_and_is_committed_when_it_is_back(silently, listed):
    async def test(pair):
        pair.put()
        async with pair.consumer() as consumer:
            await pair.all_seen()
            pair.put(30)
            pair.master.kill(silently=silently)
            pair.master.registered = listed
            await pair.all_seen()
            await asyncio.sleep(40)
            pair.put(30)
            await pair.all_seen()
            with pytest.raises(RemotingError):
                await consumer.commit()
            pair.master.start()
            pair.master.registered = True
            await pair.all_committed()
            await pair.read_from_slave(always=False)

    beside(test)


def test_a_pull_consumer_does_the_same():
    async def test(pair):
        pair.put(60)
        async with AsyncPullConsumer(
            namesrv=NAME_SERVER, group="g", clock=LoopClock(), max_cached_messages=5) as reader:
            await reader.assign(await reader.queues("t"))

            async def poll(until):
                while len(pair.seen) < until:
                    pair.seen += [int(one.body) for one in await reader.poll(3)]

            await poll(6)
            pair.master.kill(silently=True)
            await poll(60)
            pair.master.start()
            await reader.poll()
            await pair.all_committed()
        assert pair.slave.pulls
        assert sorted(pair.seen) == list(range(60))

    beside(test)


def test_each_pull_of_a_queue_goes_where_the_one_before_was_told():
    async def test(pair):
        pair.put(30)
        pair.master.broker.suggested = pair.slave.broker.suggested = 1
        async with AsyncPullConsumer(namesrv=NAME_SERVER, group="g", clock=LoopClock()) as reader:
            queue = (await reader.queues("t"))[0]
            for _ in range(3):
                assert len((await reader.pull(queue, 0)).messages) == 10
        assert len(pair.slave.pulls) == 2

    beside(test)


def test_calls_of_a_group_are_one_object_for_the_connections_of_a_client():
    async def test(_):
        shares = [InstanceShare(Target(NAME_SERVER, "", 3000, LoopClock())) for _ in range(2)]
        first, second = (GroupCalls(share, "g") for share in shares)
        assert first.now is first.now
        assert first.now is not second.now
        for share in shares:
            await share.close()
        with pytest.raises(RemotingError):
            _ = first.now

    beside(test)


def test_a_master_that_was_away_is_tried_again_when_its_slave_refuses():
    async def test(pair):
        pair.put(30)
        async with AsyncPullConsumer(namesrv=NAME_SERVER, group="g", clock=LoopClock()) as reader:
            queue = (await reader.queues("t"))[0]
            assert len((await reader.pull(queue, 0)).messages) == 10
            pair.slave.broker.refuse.update({11: ResponseCode.SYSTEM_BUSY})
            pair.master.kill(silently=False)
            with pytest.raises(RemotingError) as failed:
                await reader.pull(queue, 0)
            assert failed.value.address == pair.master.address, "the refusal of the slave says less"
            pair.master.start()
            assert len((await reader.pull(queue, 0)).messages) == 10
            assert pair.slave.pulls

    beside(test)


def test_a_slave_that_is_behind_does_not_move_offsets():
    async def test(pair):
        pair.put(30)
        async with pair.consumer():
            await pair.all_seen()
            await pair.all_committed()
            pair.slave.moved = True
            pair.master.kill(silently=False)
            await asyncio.sleep(30)
            assert 5 < len(pair.slave.pulls) < 200  # of four queues, once a second
            pair.slave.moved = False
            pair.put()
            await pair.all_seen()
            pair.master.start()
            await pair.all_committed()

    beside(test)


def test_nothing_is_sent_to_a_slave():
    async def test(pair):
        async with AsyncProducer(namesrv=NAME_SERVER, clock=LoopClock(), retries=0) as producer:
            await producer.send(Message(topic="t", body=b"0"))
            pair.master.registered = False
            await asyncio.sleep(31)  # the route that was kept is too old
            with pytest.raises(RemotingError, match="no writable queue"):
                await producer.send(Message(topic="t", body=b"1"))
            assert not pair.slave.wires

    beside(test)
