"""When a SYNC_MASTER acknowledges a put: with copies on slaves, in time, or not."""

from __future__ import annotations

import asyncio

import pytest
from ha_world import master, running

from tailrace import FlushDiskType
from tailrace.config import BrokerRole, StoreConfig
from tailrace.errors import ConfigError
from tailrace.model import PutMessageStatus as Status
from tailrace.store.replication import Replication

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}


async def connected(one, count=1):
    """Slaves that have the whole log and have said so."""
    one.connections, end, slaves = count, one.end, []
    for _ in range(count):
        slave = await one.slave()
        slave.report(end)
        slaves.append(slave)
    async with asyncio.timeout(5):
        while one.inner.replication.in_sync < 1 + count:
            await asyncio.sleep(0.01)
    return slaves


@running
async def test_without_in_sync_replicas_a_sync_master_waits_for_one_slave(tmp_path):
    async with master(tmp_path, **SYNC) as one:
        one.put()
        (slave,) = await connected(one)
        until = one.put()
        waiting = asyncio.ensure_future(one.acknowledged(until))
        await slave.read(until)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        slave.report(until)
        assert await waiting is Status.PUT_OK


@running
async def test_an_async_master_waits_for_nobody(tmp_path):
    async with master(tmp_path) as one:
        assert await one.acknowledged(one.put()) is Status.PUT_OK


@running
async def test_in_sync_replicas_of_one_is_honoured(tmp_path):
    async with master(tmp_path, in_sync_replicas=1, **SYNC) as one:
        assert await one.acknowledged(one.put()) is Status.PUT_OK


@running
async def test_without_a_slave_the_answer_is_immediate(tmp_path):
    async with master(tmp_path, **SYNC) as one:
        began = asyncio.get_running_loop().time()
        assert await one.acknowledged(one.put()) is Status.SLAVE_NOT_AVAILABLE
        assert asyncio.get_running_loop().time() - began < 1


@running
async def test_a_slave_that_is_too_late_is_a_timeout_and_its_copy_is_not_lost(tmp_path):
    async with master(tmp_path, slave_timeout=300, **SYNC) as one:
        one.put()
        (slave,) = await connected(one)
        until = one.put()
        assert await one.acknowledged(until) is Status.FLUSH_SLAVE_TIMEOUT
        assert (await slave.read(until))[-100:] == one.log()[-100:]


@running
async def test_three_replicas_need_two_slaves_and_two_connections_of_one_slave_are_one(tmp_path):
    async with master(tmp_path, in_sync_replicas=3, slave_timeout=300, **SYNC) as one:
        one.put()
        first, second = await connected(one, 2)
        until = one.put()
        first.report(until)
        assert await one.acknowledged(until) is Status.FLUSH_SLAVE_TIMEOUT
        waiting = asyncio.ensure_future(one.acknowledged(until))
        await asyncio.sleep(0.05)
        second.report(until)
        assert await waiting is Status.PUT_OK
        one.connections = 1
        third = await one.slave()
        third.report(until)
        assert await first.is_closed()
        assert await second.is_closed()
        assert await one.acknowledged(one.put()) is Status.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("synced_first", [True, False])
@running
async def test_with_sync_flush_it_waits_for_disk_and_slave_in_any_order(tmp_path, synced_first):
    async with master(
        tmp_path, services=False, flush_disk_type=FlushDiskType.SYNC_FLUSH, ha_send_unsynced=True,
        sync_flush_timeout=60_000, **SYNC
    ) as one:
        one.put()
        one.inner.sync_log()
        (slave,) = await connected(one)
        one.inner.wake_flush = lambda: True
        one.inner.flush_commit_log._wake = lambda: True
        until = one.put()
        waiting = asyncio.ensure_future(one.acknowledged(until))
        await asyncio.sleep(0)
        one.inner.replication.wake()
        await slave.read(until)
        steps = [one.inner.sync_log, lambda: slave.report(until)]
        for number, step in enumerate(steps if synced_first else reversed(steps)):
            assert not waiting.done()
            step()
            await asyncio.sleep(0.1)
            assert waiting.done() == bool(number)
        assert await waiting is Status.PUT_OK


@running
async def test_a_lie_is_never_a_copy(tmp_path):
    async with master(tmp_path, slave_timeout=300, **SYNC) as one:
        one.put()
        (slave,) = await connected(one)
        slave.report(one.end + 10_000_000)
        assert await slave.is_closed()
        assert await one.acknowledged(one.put()) is Status.SLAVE_NOT_AVAILABLE


@running
async def test_the_automatic_number_follows_the_slaves_and_has_a_least(tmp_path):
    settings = {**SYNC, "in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}
    async with master(tmp_path, min_in_sync_replicas=2, slave_timeout=300, **settings) as one:
        one.put()
        replication = one.inner.replication
        assert replication.needed == 2
        assert "minInSyncReplicas=2" in replication.refusal
        (slave,) = await connected(one)
        assert replication.needed == 2
        assert replication.refusal == ""
        until = one.put()
        await slave.read(until)
        slave.report(until)
        assert await one.acknowledged(until) is Status.PUT_OK


@running
async def test_the_automatic_number_may_be_this_broker_alone(tmp_path):
    async with master(tmp_path, enable_auto_in_sync_replicas=True, **SYNC) as one:
        assert await one.acknowledged(one.put()) is Status.PUT_OK


@running
async def test_only_replicated_messages_can_be_consumed_if_the_settings_say_so(tmp_path):
    async with master(tmp_path, read_replicated_only=True, **SYNC) as one:
        one.put()
        (slave,) = await connected(one)
        until = one.put()
        await slave.read(until)
        await asyncio.sleep(0.2)
        assert one.inner.reput.reput_from_offset < until
        slave.report(until)
        async with asyncio.timeout(5):
            while one.inner.reput.reput_from_offset < until:
                await asyncio.sleep(0.01)
        one.put()  # the close dispatches it, and the next open finds a clean store


@running
async def test_a_message_is_acknowledged_only_when_it_is_in_the_log_of_a_slave(tmp_path):
    """Acknowledged is a part of what the slave has, whatever the order of puts, reports and connections."""
    async with master(tmp_path, slave_timeout=2000, **SYNC) as one:
        one.put()
        acknowledged = []
        for _ in range(5):
            (slave,) = await connected(one)
            begin = one.end

            async def puts(count=20):
                for _ in range(count):
                    until = one.put(size=1000)
                    if await one.acknowledged(until) is Status.PUT_OK:
                        acknowledged.append(until)

            putting = asyncio.ensure_future(puts())
            await slave.read(begin + 15_000, report=True)
            slave.writer.close()
            has = slave.end
            await putting
            late = [until for until in acknowledged if until > has]
            assert not late, (late, has)
            acknowledged.clear()


@pytest.mark.parametrize(("settings", "problem"), [
    ({"read_replicated_only": True}, "readReplicatedOnly=true needs brokerRole=SYNC_MASTER"),
    ({**SYNC, "in_sync_replicas": 2, "min_in_sync_replicas": 3}, "minInSyncReplicas=3 is more than inSyncReplicas=2"),
])
def test_settings_that_contradict_each_other_are_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        StoreConfig(**settings)


def test_what_copies_once_had_stays_replicated():
    replication = Replication(StoreConfig(in_sync_replicas=3, **SYNC))
    assert replication.replicated_where == 0
    replication.update(2, [500, 300])
    assert replication.replicated_where == 300
    replication.update(1, [700])
    assert replication.replicated_where == 300
    assert replication.is_hopeless
    replication.update(2, [100, 200])
    assert replication.replicated_where == 300
    replication.update(3, [900, 800, 100])
    assert replication.replicated_where == 800


@running
async def test_what_a_host_has_is_known_only_while_all_its_slaves_are_connected(tmp_path):
    """A timer checkpoint that is shown to a slave whose HA connection is down may be ahead of its log (H19)."""
    async with master(tmp_path) as one:
        first = one.put()
        one.put()
        replicas = one.replicas
        assert replicas.acknowledged_by("127.0.0.1") is None
        late, up_to_date = await connected(one, 2)
        assert replicas.acknowledged_by("127.0.0.1") == one.end
        assert replicas.acknowledged_by("127.0.0.2") is None
        late.writer.close()
        async with asyncio.timeout(5):
            while len(replicas) > 1:
                await asyncio.sleep(0.01)
        assert replicas.acknowledged_by("127.0.0.1") is None, "which of both asks is not known"
        again = await one.slave()
        again.report(first)
        async with asyncio.timeout(5):
            while replicas.acknowledged_by("127.0.0.1") is None:
                await asyncio.sleep(0.01)
        assert replicas.acknowledged_by("127.0.0.1") == first
