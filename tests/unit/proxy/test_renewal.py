"""Receipts of messages that a push consumer works on."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.formats.pop import ExtraInfo
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.proxy import limits
from tailrace.proxy.clients import Client
from tailrace.proxy.protocol import Code, GrpcError
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.proxy.renewal import Renewals


class World:
    """Renewals of one client, with a broker that notes what is changed."""

    def __init__(self):
        self.now, self.changed, self.fails, self.hold = 1_000_000, [], None, None
        self.client = Client(SimpleNamespace(client_id="c"), None, None)
        self.renewals = Renewals(
            asyncio.get_running_loop(), SimpleNamespace(now_ms=lambda: self.now),
            SimpleNamespace(select=lambda _: SubscriptionGroupConfig(group_name="g")),
            SimpleNamespace(all=lambda: [self.client], on_forget=[]), self)

    async def change(self, group, topic, handle, ms, lite_topic="", *, suspend=False):
        if self.hold is not None:
            await self.hold.wait()
        if self.fails is not None:
            raise self.fails
        self.changed.append(ms)
        return handle._replace(receipt=handle.receipt._replace(pop_time=self.now, invisible_time=ms))

    def add(self, offset=0):
        handle = ReceiptHandle(ExtraInfo(0, self.now, 60_000, 0, "0", "b", 1, offset), 9)
        self.renewals.add(self.client, "g", "t", f"id{offset}", handle, 0)
        return handle

    async def renew(self):
        await self.renewals._renew_all(self.client)


def in_world(test):
    def run():
        async def go():
            await test(World())

        asyncio.run(go())

    return run


@in_world
async def test_a_receipt_is_renewed_shortly_before_its_end(world):
    handle = world.add()
    world.now += 49_000
    await world.renew()
    assert world.changed == []
    world.now += 1_001
    await world.renew()
    assert world.changed == [60_000]
    latest = await world.renewals.take(world.client, "g", "id0", handle)
    assert latest.receipt.pop_time == world.now, "the first handle is worth nothing any more"
    assert await world.renewals.take(world.client, "g", "id0", handle) == handle, "it was taken"


@in_world
async def test_an_acknowledgement_waits_for_the_renewal_under_way(world):
    handle, world.hold = world.add(), asyncio.Event()
    world.now += 55_000
    renewal = asyncio.create_task(world.renew())
    await asyncio.sleep(0)
    taken = asyncio.create_task(world.renewals.take(world.client, "g", "id0", handle))
    await asyncio.sleep(0)
    assert not taken.done()
    world.hold.set()
    await renewal
    assert (await taken).receipt.pop_time == world.now


@in_world
async def test_a_message_goes_back_after_three_hours(world):
    handle = world.add()
    while world.now < 1_000_000 + limits.RENEW_MAX_TIME_MS + 60_000:
        world.now += 55_000
        await world.renew()
    assert world.changed[-1] == 10_000, "the delay of the group for a first retry"
    assert world.client.renewed == {}
    assert await world.renewals.take(world.client, "g", "id0", handle) == handle


@in_world
async def test_a_receipt_that_the_broker_does_not_know_is_dropped(world):
    world.add()
    world.now += 55_000
    world.fails = GrpcError(Code.INVALID_RECEIPT_HANDLE, "gone")
    await world.renew()
    assert world.client.renewed == {}


@in_world
async def test_what_a_vanished_client_worked_on_comes_back_soon(world):
    for offset in range(3):
        world.add(offset)
    await world.renewals.give_back(world.client)
    assert world.changed == [1_000] * 3
    assert world.client.renewed == {}


@in_world
async def test_the_number_of_renewed_messages_is_bounded(world):
    for offset in range(limits.MAX_RENEWED + 5):
        world.add(offset)
    assert len(world.client.renewed) == limits.MAX_RENEWED


@in_world
async def test_one_receipt_that_fails_costs_one_renewal(world):
    """The loop of the renewals ended at the first error that was not expected."""
    for offset in range(3):
        world.add(offset)
    world.now += 55_000
    change = world.change

    async def changes(group, topic, handle, ms, lite_topic="", *, suspend=False):
        if handle.receipt.queue_offset == 1:
            raise ValueError("odd")
        return await change(group, topic, handle, ms, lite_topic)

    world.change, world.client.has_stream = changes, False
    await world.renewals._step()
    assert world.changed == [60_000, 60_000]
    world.change = change
    await world.renewals._step()
    assert world.changed == [60_000] * 3


@in_world
async def test_one_message_that_cannot_be_given_back_costs_one(world):
    for offset in range(3):
        world.add(offset)
    change, world.fails = world.change, ValueError("odd")

    async def changes(*args, **more):
        try:
            return await change(*args, **more)
        finally:
            world.fails = None

    world.change = changes
    await world.renewals.give_back(world.client)
    assert len(world.changed) == 2
