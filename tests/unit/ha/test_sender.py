"""What a master sends to a scripted slave: frames, their start, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import tracemalloc

import pytest
from certificates import Ca
from ha_world import FILE, master, running
from patience import until_async

from tailrace import FlushDiskType
from tailrace.config import BrokerRole
from tailrace.formats.ha import BODY_MAX
from tailrace.ha import sender
from tailrace.ha.comparison import Compared, Verdict
from tailrace.ha.replicas import Replica
from tailrace.remoting.acceptor import ENFORCING, Acceptor
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.tls import server_context
from tailrace.tls_settings import TlsConfig


@running
async def test_an_empty_slave_gets_the_whole_log_file_by_file(tmp_path):
    async with master(tmp_path, ha_transfer_batch_size=5000) as one:
        end = one.put(1000)
        assert end > 2 * FILE
        slave = await one.slave()
        slave.report(0)
        assert await slave.read(end) == one.log()
        assert slave.frames[0].phy_offset == 0
        for frame, following in itertools.pairwise(slave.frames):
            assert frame.phy_offset + len(frame.body) == following.phy_offset
        for frame in slave.frames:
            assert len(frame.body) <= 5000
            assert frame.phy_offset // FILE == (frame.phy_offset + len(frame.body) - 1) // FILE


@running
async def test_a_slave_goes_on_where_it_ends_in_the_middle_of_a_record(tmp_path):
    async with master(tmp_path) as one:
        end = one.put(10)
        slave = await one.slave()
        slave.report(333)
        assert await slave.read(end) == one.log(333)


@running
async def test_with_sync_from_last_file_an_empty_slave_begins_there(tmp_path):
    async with master(tmp_path, sync_from_last_file=True) as one:
        end = one.put(1000)
        slave = await one.slave()
        slave.report(0)
        await slave.read(end)
        assert slave.frames[0].phy_offset == end - end % FILE


@running
async def test_a_put_is_sent_without_delay_also_from_another_thread(tmp_path):
    async with master(tmp_path) as one:
        end = one.put()
        slave = await one.slave()
        slave.report(end)
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(20):
            began = loop.time()
            until = await loop.run_in_executor(None, one.put)
            await slave.read(until)
            took.append(loop.time() - began)
        assert sorted(took)[10] < 0.03, took
        assert b"".join(frame.body for frame in slave.frames) == one.log(end)


@running
async def test_bytes_that_woke_nobody_are_sent_with_the_next_tick(tmp_path, monkeypatch):
    """A put that finds no room for the next file has ended its file, and returns an error."""
    async with master(tmp_path) as one:
        end = one.put()
        slave = await one.slave()
        slave.report(end)
        await slave.read(one.put())
        monkeypatch.setattr(sender.HaSender, "wake", lambda _: None)
        until = one.put()
        assert await slave.read(until) == one.log(end)


@running
async def test_under_sync_flush_only_synced_bytes_are_sent(tmp_path):
    async with master(tmp_path, services=False, flush_disk_type=FlushDiskType.SYNC_FLUSH) as one:
        end = one.put()
        slave = await one.slave()
        slave.report(0)
        with pytest.raises(TimeoutError):
            await slave.read(end, seconds=0.3)
        assert not slave.frames
        one.inner.sync_log()
        assert await slave.read(end) == one.log()


@running
async def test_unsynced_bytes_are_sent_if_the_settings_say_so(tmp_path):
    async with master(
        tmp_path, services=False, flush_disk_type=FlushDiskType.SYNC_FLUSH, ha_send_unsynced=True
    ) as one:
        end = one.put()
        slave = await one.slave()
        slave.report(0)
        assert await slave.read(end) == one.log()


@running
async def test_nothing_is_sent_before_the_first_report_then_heartbeats(tmp_path):
    async with master(tmp_path, ha_send_heartbeat_interval=100) as one:
        end = one.put()
        slave = await one.slave()
        with pytest.raises(TimeoutError):
            await slave.read(seconds=0.4)
        assert not slave.heartbeats
        slave.report(end)
        with pytest.raises(TimeoutError):
            await slave.read(seconds=0.5)
        assert {frame.phy_offset for frame in slave.heartbeats} == {end}
        assert 2 <= len(slave.heartbeats) <= 6


@pytest.mark.parametrize("batch", [7, 4096, BODY_MAX])
@running
async def test_records_longer_than_a_frame_are_sent_in_pieces(tmp_path, batch):
    async with master(
        tmp_path, ha_transfer_batch_size=batch, mapped_file_size_commit_log=1 << 23, max_message_size=1 << 22
    ) as one:
        end = one.put(size=100_000 if batch == 7 else 1 << 22)
        slave = await one.slave()
        slave.report(0)
        assert await slave.read(end, seconds=60) == one.log()
        assert max(len(frame.body) for frame in slave.frames) <= batch


LIARS = {
    "more than the master has": lambda end: [end + 1],
    "far more": lambda end: [end + 10_000_000],
    "a negative position": lambda _end: [-1],
    "more than it was sent": lambda end: [100, end + 50],
}


@pytest.mark.parametrize("what", LIARS)
@running
async def test_a_report_that_cannot_be_true_closes_the_connection_and_counts_for_nothing(tmp_path, what, caplog):
    async with master(tmp_path) as one:
        end = one.put(3)
        slave = await one.slave()
        for position in LIARS[what](end):
            slave.report(position)
        assert await slave.is_closed()
        assert one.replicas.closed == {"wrong log": 1}
        status = one.replicas.to_json()
        assert status["connectionsClosed"] == {"wrong log": 1}
        assert status["lastRefusal"].startswith("127.0.0.1:")
        assert " at " in status["lastRefusal"]
        assert not list(one.replicas)
        assert one.inner.replication.in_sync == 1
        lines = [line.getMessage() for line in caplog.records if "does not follow" in line.getMessage()]
        assert len(lines) == 1
        assert f"max_offset={end}" in lines[0]


@running
async def test_a_slave_whose_next_byte_was_deleted_is_refused(tmp_path, caplog):
    async with master(tmp_path) as one:
        one.put(1000)
        queue = one.inner.commit_log.queue
        queue.delete_head(queue.files[0])
        slave = await one.slave()
        slave.report(100)
        assert await slave.is_closed()
        assert "what it lacks first was deleted here" in caplog.text


@running
async def test_seven_bytes_are_closed_after_the_housekeeping_interval(tmp_path):
    async with master(tmp_path, ha_housekeeping_interval=300) as one:
        one.put()
        slave = await one.slave()
        slave.writer.write(bytes(7))
        assert await slave.is_closed()
        assert one.replicas.closed == {"silent": 1}


@running
async def test_a_host_that_may_not_connect_gets_nothing(tmp_path, caplog):
    async with master(tmp_path) as one:
        one.put()
        one.connections = 0
        slave = await one.slave()
        slave.report(0)
        assert await slave.is_closed()
        assert not slave.frames
        assert one.replicas.closed == {"host is not allowed": 1}
        assert one.replicas.to_json()["lastRefusal"].endswith(": host is not allowed")
        assert "slave refused" in caplog.text


@running
async def test_a_newer_connection_replaces_the_older_one_of_its_host(tmp_path, caplog):
    async with master(tmp_path) as one:
        end = one.put()
        first, second = await one.slave(), await one.slave()
        first.report(0)
        assert await first.read(end) == one.log()
        second.report(end)
        assert await first.is_closed()
        until = one.put()
        assert await second.read(until) == one.log(end)
        assert one.replicas.to_json()["connectionsClosed"] == {"replaced": 1}
        assert "connection of a slave replaced" in caplog.text
        one.connections = 2
        third = await one.slave()
        third.report(end)
        assert await third.read(until) == one.log(end)
        assert len(one.replicas) == 2


@running
async def test_a_slave_that_does_not_read_takes_little_memory(tmp_path):
    async with master(tmp_path, mapped_file_size_commit_log=1 << 24) as one:
        end = one.put(300, size=100_000)
        slave = await one.slave(limit=1 << 12)
        slave.report(0)
        await asyncio.sleep(0.5)
        (connection,) = one.sender._open
        assert connection.transport.get_write_buffer_size() < 1 << 20
        assert next(iter(one.replicas)).next < end
        slave.writer.transport.resume_reading()
        assert await slave.read(end, seconds=30) == one.log()


@running
@pytest.mark.parametrize(("when", "blocks", "most"), [
    ("before it is admitted", 24, 8 << 20), ("while logs are compared", 2, 4 << 20), ("later", 2, 4 << 20)])
async def test_a_slave_that_floods_its_master_with_reports_takes_little_memory(tmp_path, when, blocks, most):
    waits, report = asyncio.Event(), (100).to_bytes(8, "big")

    async def compare(_host, _until):
        await waits.wait()
        return Compared(Verdict.SAME, -1, "")

    async with master(tmp_path, compare=compare if when == "while logs are compared" else None) as one:
        one.put()
        admitted = asyncio.Event()
        if when != "before it is admitted":
            admitted.set()
        may_connect = one.sender._may_connect

        async def later(host):
            await admitted.wait()
            return await may_connect(host)

        one.sender._may_connect = later
        slave = await one.slave()
        tracemalloc.start()
        try:
            for _ in range(blocks):
                slave.writer.write(report * (1 << 16))
                await slave.writer.drain()
            await until_async(lambda: one.sender._open, 10)
            (connection,) = one.sender._open
            wanted = {"while logs are compared": lambda: len(connection.held or []) == 2,
                      "later": lambda: connection.replica.acknowledged == 100}.get(when, lambda: connection.early)
            await until_async(wanted, 10)
            assert len(connection.early) <= 256 << 10
            assert len(connection.held or []) <= 2
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < most
        admitted.set()
        waits.set()


@running
async def test_the_flow_limit_counts_bytes_of_the_log(tmp_path):
    async with master(
        tmp_path, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=100_000, ha_send_heartbeat_interval=50
    ) as one:
        end = one.put(1000)
        slave = await one.slave()
        slave.report(0)
        with contextlib.suppress(TimeoutError):
            await slave.read(end, seconds=0.7)
        assert 50_000 < slave.end <= 90_000
        assert len(slave.heartbeats) < 20


@pytest.mark.parametrize("limit", [1, 7, 1000, 100 << 20])
def test_the_bytes_of_the_flow_limit_are_sent_over_the_second(limit):
    now = 5 * 10**9
    replica = Replica("127.0.0.1:1", "127.0.0.1", None, now)  # type: ignore[arg-type]
    sent, most, times = 0, 0, 0
    for step in range(10_000):  # 10 s
        size = replica.left(limit, now + step * 10**6)
        replica.count(size, now + step * 10**6)
        sent, most, times = sent + size, max(most, size), times + (size > 0)
    assert sent == pytest.approx(limit * 10, rel=0.02, abs=1)
    assert most <= max(limit * 0.15, 1)
    assert times <= 201, "each send costs the same"
    assert replica.left(limit, now + 100 * 10**9) == max(limit * 15 // 100, 1)  # an idle time is not made up for


@contextlib.asynccontextmanager
async def puts(one):
    """Put a message in each turn of the loop."""
    async def put():
        while True:
            one.put()
            await asyncio.sleep(0)

    task = asyncio.ensure_future(put())
    try:
        yield
    finally:
        task.cancel()


@running
async def test_the_copy_of_a_backlog_rests_beside_puts_and_only_then(tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "_REST_S", 3600)
    async with master(tmp_path) as one:
        end = one.put(2500)
        assert end > 6 * FILE
        slave = await one.slave()
        slave.report(0)
        await slave.read(end)
        one.put()
        await slave.read(one.end)
        assert slave.end == one.end, "a slave that lacks nothing else gets a message immediately"
        slave = await one.slave()
        async with puts(one):
            slave.report(0)
            with contextlib.suppress(TimeoutError):
                await slave.read(end, seconds=0.1)
        assert slave.end <= 3 * FILE
        one.put()
        with contextlib.suppress(TimeoutError):
            await slave.read(end, seconds=0.05)
        assert slave.end <= 3 * FILE, "a put does not end the rest"


@running
@pytest.mark.parametrize("why", ["it is short", "puts wait for it", "there is a limit"])
async def test_the_copy_of_a_backlog_goes_on_beside_puts(tmp_path, monkeypatch, why):
    monkeypatch.setattr(sender, "_REST_S", 0.001 if why == "it is short" else 3600)
    settings = {
        "puts wait for it": {"broker_role": BrokerRole.SYNC_MASTER},
        "there is a limit": {"ha_flow_control_enable": True}}.get(why, {})
    async with master(tmp_path, **settings) as one:
        end = one.put(2500)
        slave = await one.slave()
        async with puts(one):
            slave.report(0)
            await slave.read(end)


@running
async def test_a_slave_does_not_give_way_to_a_log_that_grows_fast(tmp_path):
    async with master(tmp_path) as one:
        replica = Replica("127.0.0.1:1", "127.0.0.1", None, 0)
        replica.next = 0
        one.put(1000)
        assert not one.replicas.gives_way(replica), "nothing is known of the time before"
        assert not one.replicas.gives_way(replica)
        one.put()
        assert one.replicas.gives_way(replica)
        one.put(1000)
        assert not one.replicas.gives_way(replica)


@running
async def test_bytes_that_are_only_on_the_disk_are_read_in_a_thread(tmp_path, monkeypatch):
    from tailrace.segments.mapped_file import MappedFile

    async with master(tmp_path) as one:
        end = one.put(1000)
        monkeypatch.setattr(MappedFile, "read_cached", lambda *_: None)
        slave = await one.slave()
        slave.report(0)
        assert await slave.read(end) == one.log()


@running
async def test_a_slave_may_use_tls_and_has_to_if_the_settings_say_so(tmp_path):
    cert, key = Ca(tmp_path).make("broker")
    served = server_context(TlsConfig(cert_path=str(cert), key_path=str(key)))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "test-ca.pem"))
    async with master(tmp_path / "store", acceptor=Acceptor(ServerLimits(), ENFORCING, served)) as one:
        end = one.put(300, size=3000)
        slave = await one.slave(ssl=trusting, server_hostname="127.0.0.1")
        slave.report(0)
        assert await slave.read(end) == one.log()
        plain = await one.slave()
        plain.report(0)
        assert await plain.is_closed()
        assert not plain.frames


@running
async def test_ha_status_names_each_slave(tmp_path):
    async with master(tmp_path, ha_max_gap_not_in_sync=10_000) as one:
        end = one.put(3)
        slave = await one.slave()
        await asyncio.sleep(0.05)
        assert one.replicas.to_json()["inSyncSlaveNums"] == 0  # it has not reported
        slave.report(end)
        await asyncio.sleep(0.05)
        found = one.replicas.to_json()
        assert found["master"] is True
        assert found["masterCommitLogMaxOffset"] == end
        assert found["inSyncSlaveNums"] == 1
        (entry,) = found["haConnectionInfo"]
        host, port = slave.writer.get_extra_info("sockname")
        assert entry == {
            "addr": f"{host}:{port}", "diff": 0, "inSync": True, "slaveAckOffset": end, "transferFromWhere": end,
            "transferredByteInSecond": 0, "compared": "not compared"}
        one.put(100)
        assert one.replicas.to_json()["inSyncSlaveNums"] == 0
