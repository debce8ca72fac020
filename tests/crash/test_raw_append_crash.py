"""A slave that crashes at every operation: its log stays a prefix of its master's with all that it has acknowledged."""

from __future__ import annotations

import pytest
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole, FlushDiskType
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

SEGMENT = 8192
SIZES = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 4096, "max_open_files": 6}
PIECE = 700


def opened(files, clock, **more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, file_system=files, clock=clock, entropy=SeededEntropy(1)))


def slave(files, clock, flush):
    return opened(files, clock, broker_role=BrokerRole.SLAVE, flush_disk_type=flush)


@pytest.fixture(scope="module")
def master():
    with opened(CrashFileSystem(), SimClock()) as store:
        sizes = SeededEntropy(3)
        bodies = [b"%06d" % number + sizes.bytes(sizes.randrange(900)) for number in range(36)]
        for body in bodies:
            store.put(Message(topic="T", body=body, keys=["k"]), queue_id=0)
        data = b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)
    return data, bodies


def copy(store, log, until, acknowledged):
    at = store.max_phy_offset
    while at < until:
        size = min(PIECE, until - at, SEGMENT - at % SEGMENT)
        at = store.inner.append_raw(at, memoryview(bytearray(log[at : at + size])))
        store.inner.flush_commit_log.step()
        acknowledged[0] = max(acknowledged[0], store.inner.acknowledged_until())
        while store.inner.reput.step():
            pass
        if at % 3 == 0:
            store.inner.flush_consume_queue.flush(0)


def workload(files, clock, log, flush, acknowledged):
    """Copy half of the log, stop, copy the rest, stop."""
    for until in (len(log) // 2, len(log)):
        with slave(files, clock, flush) as store:
            copy(store, log, until, acknowledged)


def number_of_operations(log, flush):
    files = CrashFileSystem()
    workload(files, SimClock(), log, flush, [0])
    return files.operations


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("keep", [None, 0, 50, 90])
def test_a_crash_at_any_operation_leaves_a_prefix_of_the_masters_log(master, flush, keep):
    log, bodies = master
    count = number_of_operations(log, flush)
    for place in range(0, count, 7 if keep is None else 11):
        acknowledged, clock = [0], SimClock()

        def before(number, _name, _path, place=place):
            if number == place:
                raise SimulatedCrash

        files = CrashFileSystem(before)
        try:
            workload(files, clock, log, flush, acknowledged)
        except SimulatedCrash:
            pass
        after = files.killed() if keep is None else files.power_lost(SeededEntropy(place * 7 + 1), keep)
        with slave(after, clock, flush) as store:
            end = store.max_phy_offset
            found = b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)
            start = max(store.min_phy_offset, 0)
            assert found == log[start : start + len(found)], place
            assert store.recovery_report["steppedOver"] == [], place
            if flush is FlushDiskType.SYNC_FLUSH or keep is None:
                whole = next((at for at in reversed(starts(log)) if at <= acknowledged[0]), 0)
                assert end >= whole, (place, end, acknowledged)
            copy(store, log, len(log), acknowledged)
            store.inner.sync_log()
            store.wait_dispatched()
            assert [one.body for one in read_there(store, "T", 0)] == bodies, place
            assert len(store.query_records("T", "k", max_num=100)) in {0, 32, len(bodies)}, place


def starts(log):
    """The starts of the records of a log, and of its files."""
    found, at = [], 0
    while at < len(log):
        found.append(at)
        size = int.from_bytes(log[at : at + 4], "big")
        at += size
    return [*found, len(log)]
