"""Crashes and failing operations at each step of a store with a compacted topic."""

from __future__ import annotations

import errno

import pytest
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import FlushDiskType
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096, flush_disk_type=FlushDiskType.SYNC_FLUSH, timer_wheel_enable=False,
    compaction_cq_mapped_file_size=46 * 5, compaction_mapped_file_size=1150, max_message_size=400, max_open_files=8)
KEYS = 4


def open_store(files, clock):
    return MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(1)))


def delete_oldest(store):
    """What retention does with a file that it may delete."""
    log = store.inner.commit_log.queue
    until = store.retention._dispatched_until(log.files[0].file_from_offset + log.file_size)
    if len(log.files) > 1 and until >= log.files[1].file_from_offset:
        log.delete_head(log.files[0])


def workload(files, clock, sent, acknowledged):
    number = 0
    for _ in range(2):
        store = open_store(files, clock)
        if store.topics.select("C") is None:
            store.create_topic("C", 1, {"cleanup.policy": "COMPACTION"})
        for _ in range(3):
            for _ in range(8):
                clock.advance(7)
                key = f"k{number % KEYS}" if number % 3 else f"once{number}"
                body = b"%d-" % number + bytes(50)
                sent.append((number, key, body))
                store.put(Message(topic="C", body=body, keys=[key]))
                acknowledged.append((number, key, body))
                number += 1
            store.wait_dispatched()
            store.inner.flush()
            store.inner.compaction.step()
            delete_oldest(store)
        store.close()


def contents(files, clock):
    with open_store(files, clock) as store:
        found = [(m.queue_offset, m.keys[0], m.body) for m in read_there(store, "C")]
        store.inner.flush()
        store.inner.compaction.step()
        again = [(m.queue_offset, m.keys[0], m.body) for m in read_there(store, "C")]
        assert last(again) == last(found), "a compaction changed the last value of a key"
        return found


def last(found):
    return {key: (offset, body) for offset, key, body in found}


def check(found, sent, acknowledged):
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert set(found) <= set(sent), "never sent"
    shown, sure = last(found), last(acknowledged)
    for key, (offset, _) in sure.items():
        assert shown.get(key, (-1,))[0] >= offset, f"the last value of {key} is lost: {shown.get(key)}, not {offset}"


def operations():
    files = CrashFileSystem()
    workload(files, SimClock(), [], [])
    return files.operations


COUNT = operations()
STEPS = [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]


@pytest.mark.crash
@pytest.mark.parametrize("keep", [None, 0, 50, 100])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_anywhere_loses_no_last_value(keep, step):
    for place in range(0, COUNT, step):
        clock, sent, acknowledged = SimClock(), [], []

        def before(number, _name, _path, place=place):
            if number == place:
                raise SimulatedCrash

        files = CrashFileSystem(before)
        with pytest.raises(SimulatedCrash):
            workload(files, clock, sent, acknowledged)
        after = files.killed() if keep is None else files.power_lost(SeededEntropy(1_000_003 + place), keep)
        try:
            found = contents(after, clock)
            check(found, sent, acknowledged)
            check(contents(after, clock), sent, acknowledged)
        except Exception as error:
            raise AssertionError(f"place={place} keep={keep}: {error}") from error


@pytest.mark.crash
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("step", STEPS)
def test_a_failing_operation_loses_no_last_value(number, sticky, step):
    for place in range(0, COUNT, step):
        clock, sent, acknowledged = SimClock(), [], []

        def before(at, _name, path, place=place):
            if at == place or (sticky and at > place):
                raise OSError(number, "injected", path)

        files = CrashFileSystem(before)
        try:
            workload(files, clock, sent, acknowledged)
        except (StoreError, OSError):
            pass
        files.before = None
        try:
            check(contents(files.killed(), clock), sent, acknowledged)
        except Exception as error:
            raise AssertionError(f"place={place} errno={number} sticky={sticky}: {error}") from error
