"""Bytes of a master's log that are appended to the log of its slave."""

from __future__ import annotations

import errno

import pytest
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole, FlushDiskType
from tailrace.errors import CorruptionError, DiskFullError, RawAppendError, StoreNotWritableError
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

SEGMENT = 8192
SIZES = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 4096, "max_message_size": 6000}
MASTER = StoreConfig(**SIZES)
SLAVE = StoreConfig(**SIZES, broker_role=BrokerRole.SLAVE)


def opened(files, config=SLAVE):
    return MessageStore.open(
        "/s", config=config, parts=StoreParts(services=False, file_system=files, clock=SimClock()))


def log_of(store):
    """The bytes of a log up to its last record."""
    files = store.inner.commit_log.queue.files
    return b"".join(file.read(0, file.wrote_position) for file in files)


@pytest.fixture(scope="module")
def master():
    """The bytes of a master's log of three files, and the bodies of its two queues."""
    with opened(CrashFileSystem(), MASTER) as store:
        bodies = [b"%06d" % number + bytes([number % 256]) * (number * 37 % 900) for number in range(40)]
        for number, body in enumerate(bodies):
            store.put(Message(topic="T", body=body, keys=[f"k{number}"]), queue_id=number % 2)
        return log_of(store), [bodies[0::2], bodies[1::2]]


def copied(store, log, step, start=0):
    """Append a log in pieces of ``step`` bytes that do not cross files."""
    at = start
    while at < len(log):
        size = min(step, len(log) - at, SEGMENT - at % SEGMENT)
        assert store.inner.append_raw(at, memoryview(bytearray(log[at : at + size]))) == at + size
        store.wait_dispatched()
        at += size


def bodies_of(store):
    return [[one.body for one in read_there(store, "T", queue_id)] for queue_id in (0, 1)]


@pytest.mark.parametrize("step", [1, 7, 100, 4096, 1 << 20])
def test_the_pieces_of_a_log_become_the_same_log_and_its_queues(master, step):
    log, bodies = master
    with opened(CrashFileSystem()) as store:
        copied(store, log, step)
        assert log_of(store) == log
        assert bodies_of(store) == bodies
        assert len(store.query_records("T", "k7")) == 1


def test_a_record_is_dispatched_when_its_last_byte_is_there_and_not_before(master):
    log, bodies = master
    size = int.from_bytes(log[:4], "big")
    with opened(CrashFileSystem()) as store:
        copied(store, log[: size - 1], 10)
        assert store.wait_dispatched(), "everything that is complete is dispatched"
        assert (store.inner.reput.incomplete, store.queue_of("T", 0).max) == (0, 0)
        copied(store, log[:size], 10, start=size - 1)
        assert (store.inner.reput.incomplete, store.queue_of("T", 0).max) == (-1, 1)
        assert store.is_writeable is False


@pytest.mark.parametrize(("place", "wrong"), [
    (0, b"\x7f\xff\xff\xff"), (4, b"\0\0\0\0"), (28, b"\0\0\0\0\0\0\0\1"), (0, b"\0\0\0\1")])
def test_bytes_that_cannot_become_a_record_are_damage_although_more_may_come(master, place, wrong, caplog):
    log = bytearray(master[0])
    log[place : place + len(wrong)] = wrong
    with opened(CrashFileSystem()) as store:
        store.inner.append_raw(0, memoryview(log[:48]))
        store.wait_dispatched()
        assert "dispatch stopped at a bad record" in caplog.text
        with pytest.raises(StoreNotWritableError, match="phy_offset=0"):
            store.inner.append_raw(48, memoryview(log[48:60]))


def test_a_record_that_a_recovery_would_not_count_gets_no_unit(master, caplog):
    """A master that has lost its power steps over it. Its slave would cut its log there at its next start."""
    log, bodies = bytearray(master[0]), master[1]
    size = int.from_bytes(log[:4], "big")
    log[size + 100] ^= 1  # in the body of the second record
    files = CrashFileSystem()
    with opened(files) as store:
        copied(store, log[:SEGMENT], SEGMENT)
        assert "dispatch stopped at a bad record" in caplog.text
        assert store.inner.reput.bad_record_at == size
        assert store.inner.queues.get("T", 1) is None
        assert [one.body for one in read_there(store, "T", 0)] == bodies[0][:1]
    with pytest.raises(CorruptionError, match="bad body checksum"):
        opened(files.killed())


def test_only_bytes_that_continue_the_log_are_appended(master):
    log = bytearray(master[0])
    with opened(CrashFileSystem()) as store:
        with pytest.raises(RawAppendError, match="does not start a file"):
            store.inner.append_raw(100, memoryview(log[:10]))
        store.inner.append_raw(SEGMENT, memoryview(log[:10]))
        for at in (0, SEGMENT, SEGMENT + 9, SEGMENT + 11):
            with pytest.raises(RawAppendError, match=f"ends at {SEGMENT + 10}"):
                store.inner.append_raw(at, memoryview(log[:10]))
        with pytest.raises(RawAppendError, match="cross the end of a file"):
            store.inner.append_raw(SEGMENT + 10, memoryview(log[:SEGMENT]))
        assert store.max_phy_offset == SEGMENT + 10


def test_a_slave_takes_no_put_of_any_kind_and_a_master_no_bytes(master):
    with opened(CrashFileSystem()) as store:
        with pytest.raises(StoreNotWritableError, match="slave"):
            store.put(Message(topic="T", body=b"x"))
        with pytest.raises(StoreNotWritableError, match="slave"):
            store.put_many([Message(topic="T", body=b"x")])
        result = store.put_inner(MessageExtBrokerInner("T", 0, b"x"))
        assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert store.max_phy_offset == 0
    with opened(CrashFileSystem(), MASTER) as store, pytest.raises(StoreNotWritableError, match="only the log of a"):
        store.inner.append_raw(0, memoryview(bytearray(master[0][:10])))


def test_a_full_disk_leaves_the_log_as_it_was(master):
    log = bytearray(master[0])
    no_room = []

    def before(_number, name, path):
        if no_room and name == "allocate":
            raise OSError(errno.ENOSPC, "injected", path)

    with opened(CrashFileSystem(before)) as store:
        store.inner.append_raw(0, memoryview(log[:100]))
        no_room.append(True)
        with pytest.raises(DiskFullError):
            store.inner.append_raw(100, memoryview(log[100:6000]))
        assert store.max_phy_offset == 100
        no_room.clear()
        assert store.inner.append_raw(100, memoryview(log[100:6000])) == 6000


@pytest.mark.parametrize("end", [1, 7, 20, 47, 60, 1000, 5000, SEGMENT + 5, 2 * SEGMENT + 500])
@pytest.mark.parametrize("clean", [True, False])
def test_the_next_open_ends_the_log_at_its_last_whole_record_without_a_copy(master, end, clean, caplog):
    log, bodies = master
    files = CrashFileSystem()
    with opened(files) as store:
        copied(store, log[:end], 300)
        assert store.close(), "an incomplete record is a clean end of a slave"
    if not clean:
        store = opened(files)
        copied(store, log[:end], 300, start=store.max_phy_offset)
        store.inner.sync_log()
        files = files.killed()
    with opened(files) as store:
        whole = 0
        while whole < end and whole + (size := int.from_bytes(log[whole : whole + 4], "big")) <= end:
            whole += size
        assert store.max_phy_offset == whole
        assert store.recovery_report["quarantinedBytes"] == 0
        assert not files.exists("/s/tailrace/quarantine")
        copied(store, log, 300, start=whole)
        assert (log_of(store), bodies_of(store)) == (log, bodies)


@pytest.mark.parametrize("missing", [4, 30, 64])
@pytest.mark.parametrize("size", [120, 1000])
def test_an_append_whose_first_bytes_were_to_come_last_is_cut_without_a_copy(master, missing, size):
    """A kill in the memcpy of an append, as the kills of pairs found it. Records may follow, or a part of the first."""
    log, bodies = master
    end = int.from_bytes(log[:4], "big")
    files = CrashFileSystem()
    store = opened(files)
    copied(store, log[:end], 300)
    store.inner.sync_for_readers()
    store.inner.commit_log.queue.files[0].buffer[end + missing : end + size] = log[end + missing : end + size]
    files = files.killed()
    with opened(files) as store:
        assert store.max_phy_offset == end
        assert store.recovery_report["quarantinedBytes"] == 0
        copied(store, log, 300, start=end)
        assert (log_of(store), bodies_of(store)) == (log, bodies)


def damaged(files, at):
    path = f"/s/commitlog/{at - at % SEGMENT:020d}"
    file = files.open(path, writable=True)
    file.pwrite(bytes([file.pread(1, at % SEGMENT)[0] ^ 0xFF]), at % SEGMENT)
    file.close()


def test_damage_below_the_synced_position_refuses_the_open_and_changes_nothing(master):
    log, _ = master
    files = CrashFileSystem()
    with opened(files) as store:
        copied(store, log, 4096)
    damaged(files, 700)
    before = files.open("/s/commitlog/" + "0" * 20).pread(SEGMENT, 0)
    with pytest.raises(CorruptionError, match="TOLERATE_TAIL refuses"):
        MessageStore.open("/s", config=SLAVE, parts=StoreParts(
            services=False, file_system=files, clock=SimClock(), rebuild=True))
    assert files.open("/s/commitlog/" + "0" * 20).pread(SEGMENT, 0) == before


def test_damage_above_the_synced_position_ends_the_log_and_goes_to_quarantine(master):
    log, bodies = master
    files = CrashFileSystem()
    store = opened(files)
    copied(store, log[:400], 400)
    store.inner.sync_for_readers()
    copied(store, log, 4096, start=400)
    files = files.killed()
    damaged(files, SEGMENT + 300)
    with opened(files) as store:
        assert 400 < store.max_phy_offset <= SEGMENT + 300
        assert store.recovery_report["steppedOver"] == []
        assert store.recovery_report["quarantinedBytes"] > 5000
        copied(store, log, 4096, start=store.max_phy_offset)
        assert (log_of(store), bodies_of(store)) == (log, bodies)


def test_a_promoted_slave_continues_the_queues_of_its_master(master):
    log, bodies = master
    files = CrashFileSystem()
    with opened(files) as store:
        copied(store, log, 1000)
    with opened(files, MASTER) as store:
        assert store.put(Message(topic="T", body=b"new"), queue_id=1).queue_offset == len(bodies[1])


def test_under_sync_flush_only_synced_records_are_shown(master):
    log, bodies = master
    config = StoreConfig(**SIZES, broker_role=BrokerRole.SLAVE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with opened(CrashFileSystem(), config) as store:
        store.inner.append_raw(0, memoryview(bytearray(log[:1000])))
        while store.inner.reput.step():
            pass
        assert store.queue_of("T", 0).max == 0
        store.inner.sync_log()
        copied(store, log, 1000, start=1000)
        assert bodies_of(store) == bodies
