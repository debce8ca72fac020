"""A slave that does not get on: each cause has a line of the log, a count, and a line of haStatus."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace

import pytest

from tailrace.env.clock import SystemClock
from tailrace.errors import DiskFullError, FatalStorageError, RemotingConnectError, ReplicationError
from tailrace.formats.remoting import RemotingCommand
from tailrace.ha.known_master import KnownMaster, read_known_master
from tailrace.ha.slave import STOPS, Slave, SlaveState
from tailrace.remoting.client import RemotingClient
from tailrace.store.running_flags import NOT_WRITEABLE, WRITE_LOGICS_QUEUE_ERROR, RunningFlags
from tailrace.testing import CrashFileSystem


class Nobody:
    """A client without an answer."""

    ask = RemotingClient.ask

    async def invoke(self, address, *_, **__):
        raise RemotingConnectError(address, "refused")

    async def close(self):
        pass


def made(files=None, **store):
    async def run(call):
        return call()

    flags = SimpleNamespace(is_sound=lambda: True, reason="")
    here = SimpleNamespace(
        file_system=files or CrashFileSystem(), root="/s", sync_flush=False, flags=flags,
        config=SimpleNamespace(
            ha_send_heartbeat_interval=5000, ha_housekeeping_interval=20_000, mapped_file_size_commit_log=8192),
        commit_log=SimpleNamespace(max_offset=70), reput=SimpleNamespace(incomplete=-1, bad_record_at=-1), **store)
    return Slave(SystemClock(), here, Nobody(), run, cluster="c", broker_name="b", namesrv="n:1"), here


@pytest.fixture
def slave():
    found, _ = made()
    return found


def status(slave):
    async def asked():
        return slave.runtime_info()["haClientRuntimeInfo"]

    found = asyncio.run(asked())
    return found["state"], found["reason"]


def step(slave, error):
    async def attempted():
        raise error

    async def run():
        slave._attempt = attempted
        slave._woken.set()  # without the pause
        await slave._step()

    asyncio.run(run())


@pytest.mark.parametrize(("kind", "fits"), [
    ("file_size", False), ("other_cluster", False), ("other_name", False), ("longer", False), ("different", False),
    ("too_old", False), ("damage", True), ("gap", True), ("disk", True)])
def test_after_a_stop_metadata_is_copied_only_if_the_fault_is_of_this_disk(slave, kind, fits):
    slave.fits = True
    step(slave, ReplicationError(kind, "why"))
    assert slave.fits is fits


def test_a_new_master_does_not_fit_before_it_was_compared(slave):
    slave.fits = True
    slave.set_master("m:1", "m:2")
    assert not slave.fits
    slave.fits = True
    slave.set_master("m:1", "m:3")
    assert slave.fits, "the broker is the same"


def test_a_master_that_is_a_slave_now_does_not_fit(slave):
    """A name server of before a promotion names it. Its topics, its offsets and its role count no more."""
    class Demoted(Nobody):
        async def invoke(self, *_, **__):
            return RemotingCommand(code=0, body=b"brokerRole=SLAVE\nmappedFileSizeCommitLog=8192\n")

    slave._client, slave.known = Demoted(), KnownMaster(role="SYNC_MASTER")
    slave.set_master("m:1", "m:2")
    slave.fits = True
    asyncio.run(slave._step())
    assert status(slave) == (
        "waiting for the master", "cannot connect to m:1: the broker there is a slave, not a master")
    assert (slave.fits, slave.known.role) == (False, "SYNC_MASTER")


@pytest.mark.parametrize("kind", STOPS)
def test_a_stop_is_named_counted_and_shown_once(slave, kind, caplog):
    for _ in range(3):
        step(slave, ReplicationError(kind, f"why {kind}", 5))
    assert (slave.state, status(slave)) == (SlaveState.STOPPED, ("stopped", f"why {kind}"))
    assert dict(slave.stops) == {**dict.fromkeys(STOPS, 0), kind: 1}
    assert caplog.text.count(f"kind={kind} ") == 1
    assert "phy_offset=5" in caplog.text


def test_a_full_disk_is_tried_again_and_said_each_time(slave, caplog):
    for _ in range(2):
        step(slave, DiskFullError("/s/commitlog/1", "No space left on device"))
    assert status(slave)[0] == "waiting for the master"
    assert "no space for /s/commitlog/1" in status(slave)[1]
    assert slave.stops["disk"] == 2
    assert caplog.text.count("the slave has no room for the log of its master") == 2


def test_a_master_that_is_away_is_said_once(slave, caplog):
    for _ in range(3):
        step(slave, ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert status(slave) == ("waiting for the master", "[Errno 111] Connection refused")
    assert caplog.text.count("the master is not reached") == 1
    lost = []
    slave.lost.add(lambda: lost.append(slave.state))
    step(slave, ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert lost == []
    slave.state = SlaveState.TRANSFER
    step(slave, ConnectionResetError("the master has closed the connection"))
    assert "connection to the master ended" in caplog.text
    assert lost == [SlaveState.WAITING]
    assert slave.stops.total() == 0


def test_without_a_name_server_that_knows_the_master_it_says_so_once(slave, caplog):
    async def three_times():
        for count in (0, 1, 1):
            slave._woken.set()
            await slave._step()
            assert caplog.text.count("no name server knows the master") == count, "not at the start"

    asyncio.run(three_times())
    assert status(slave) == ("no master is known", "")
    assert caplog.text.count("no name server knows the master namesrv=n:1 broker=b") == 1


@pytest.mark.parametrize("idle", [True, False])
def test_a_record_that_stays_incomplete_while_its_master_sends_is_damage(caplog, idle):
    """H15: a damaged length looks like a record whose end has not arrived yet."""
    slave, store = made()

    async def test():
        loop = asyncio.get_running_loop()
        slave._housekeeping_s = 0.05
        slave._receiver = SimpleNamespace(last_body_s=loop.time(), received_bytes=0)
        store.reput.incomplete = 40
        assert slave._check_dispatch() == ""
        await asyncio.sleep(0.06)
        if not idle:
            slave._receiver.last_body_s = loop.time()
            assert slave._check_dispatch() == ""
            assert slave.stops["damage"] == 0, "30 bytes that have just arrived are no sign of damage"
            store.commit_log.max_offset = 40 + (64 << 20)
        assert slave._check_dispatch() == ""
        assert slave.stops["damage"] == 1
        assert "a record of the slave stays incomplete although its master sends phy_offset=40" in caplog.text
        store.reput.incomplete = -1
        await asyncio.sleep(0.06)
        slave._check_dispatch()
        assert slave.stops["damage"] == 1

    asyncio.run(test())


@pytest.mark.parametrize(("bit", "kind"), [
    (WRITE_LOGICS_QUEUE_ERROR, "damage"), (NOT_WRITEABLE, "disk")], ids=["bad record", "read-only disk"])
def test_a_store_that_takes_no_bytes_ends_the_connection_with_the_reason(bit, kind):
    slave, store = made()
    store.flags = RunningFlags()
    store.flags.set(bit, "why it takes none")
    store.reput.bad_record_at = 40 if kind == "damage" else -1

    async def is_gap(_):
        return False

    slave._is_gap_of_master = is_gap

    async def test():
        assert slave._check_dispatch() == "why it takes none"
        with pytest.raises(ReplicationError, match="why it takes none") as stopped:
            await slave._check_log()
        assert (stopped.value.kind, stopped.value.phy_offset) == (kind, 40 if kind == "damage" else -1)

    asyncio.run(test())


def test_the_last_answer_of_the_master_is_there_after_a_restart(caplog):
    files = CrashFileSystem()
    slave, store = made(files)

    async def note():
        slave.master_address = "m:1"
        slave.note_master(170, "SYNC_MASTER")
        await slave.keep_master()
        assert slave.lacking_bytes == 100
        slave.note_master(180)
        await slave.keep_master(later=True)  # 10 s have not passed
        assert read_known_master(files, "/s").end == 170

    asyncio.run(note())
    again, _ = made(files.killed())
    assert (again.master_end, again.known.role, again.known.address) == (170, "SYNC_MASTER", "m:1")

    async def fail():
        def full(path, *_, **__):
            raise FatalStorageError(path, "No space left on device")

        store.file_system = SimpleNamespace(makedirs=full)
        await slave.keep_master()

    asyncio.run(fail())
    assert "the last answer of the master cannot be kept address=m:1 end=180" in caplog.text
