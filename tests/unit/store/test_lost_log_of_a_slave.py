"""A slave whose log or its end is gone while queues, index and timers are there; its master sends it again."""

from __future__ import annotations

import contextlib
from functools import partial
from unittest import mock

import pytest
from long_runs import some
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock, SimulatedCrash
from tailrace.timer.timer_message_store import TimerMessageStore

COUNTS = {("A", 0): 47, ("A", 1): 20, ("B", 0): 1}
"""Messages of each queue; a queue file has 20 units."""


@pytest.fixture(scope="module", autouse=True)
def _small_wheel():
    with mock.patch("tailrace.node.timers.TimerMessageStore", partial(TimerMessageStore, slots_total=512)):
        yield


def body(topic, queue_id, offset):
    return b"%s %d %d" % (topic.encode(), queue_id, offset)


SIZES = {
    "mapped_file_size_commit_log": 8192, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 4096}


def opened_pair(files, clock, **more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, clock=clock, file_system=files, entropy=SeededEntropy(1)))


def opened_slave(files, clock):
    return opened_pair(files, clock, broker_role=BrokerRole.SLAVE)


def copy(master, slave, until=1 << 60):
    log, at = master.inner.commit_log, slave.max_phy_offset
    until = min(until, log.max_offset)
    while at < until:
        size = min(until - at, 8192 - at % 8192)
        at = slave.inner.append_raw(at, memoryview(bytearray(log.read(at, size))))
    slave.wait_dispatched()


def remove(files, directory, chosen=lambda _: True):
    for name in files.list(directory):
        if chosen(int(name)):
            files.remove(f"{directory}/{name}")
    files.sync_dir(directory)


def everything(store):
    return {(topic, queue_id): (low, high, [(one.queue_offset, one.body) for one in read_there(store, topic, queue_id)])
            for topic, queue_id, low, high in store.queues() if high}


@pytest.fixture(scope="module")
def followed():
    """A master, the files of a slave that has all of its log, and where queue B/0 begins in it."""
    clock, files = SimClock(), CrashFileSystem()
    with opened_pair(CrashFileSystem(), clock) as master:
        for (topic, queue_id), count in COUNTS.items():
            for offset in range(count):
                message = Message(topic=topic, body=body(topic, queue_id, offset).ljust(250), keys=[f"k{offset}"])
                last = master.put(message, queue_id=queue_id)
        for number in range(3):
            master.put(Message(topic="A", body=b"late", deliver_at=clock.now_ms() + 50_000 + 1000 * number))
        master.wait_dispatched()
        with opened_slave(files, clock) as slave:
            copy(master, slave)
            while slave.timer_services.messages.enqueue_step():
                pass
            assert everything(slave) == everything(master)
        yield master, files, clock, last.phy_offset


def lost_part(files, kept_until, part):
    remove(files, "/s/commitlog", lambda start: start >= kept_until)
    if part == "its first queue files as well":
        remove(files, "/s/consumequeue/A/0", lambda start: start < 800)
    elif part == "as a master's before":
        with opened_pair(files, SimClock()) as master:
            assert master.queue_of("A", 0).max == 47


CASES = [
    (kept_until, part, stop) for stop in ("closed", "killed", "power lost") for kept_until, part in (
        (0, "alone"), (8192, "alone"), (0, "as a master's before"), (8192, "its first queue files as well"))]


@pytest.mark.parametrize(("kept_until", "part", "stop"), some(CASES, 5))
def test_a_slave_gets_its_queues_again_from_what_the_master_sends(followed, kept_until, part, stop):
    """The ends of its queues hide nothing, also where no message of a queue is left."""
    master, files, clock, begin_of_b = followed
    files = files.killed()
    if stop != "closed":
        files.open("/s/abort", writable=True, create=True)
    lost_part(files, kept_until, part)
    with opened_slave(files, clock) as slave:
        assert slave.max_phy_offset == kept_until or kept_until
        assert ("A", 1) not in everything(slave), "no message of it is left"
        assert slave.query_message("A", "k40") == []
    if stop == "power lost":
        files = files.power_lost(SeededEntropy(3), keep_percent=50)
    with opened_slave(files, clock) as slave:
        copy(master, slave, begin_of_b)
        assert len(everything(slave)["A", 0][2]) == 47
        files.open("/s/abort", writable=True, create=True)
    with opened_slave(files.killed(), clock) as slave:  # a kill in the middle of the new copy
        copy(master, slave)
        assert everything(slave) == everything(master)
        assert slave.inner.stepped_over() == [], "quarantine has bytes of its queues, and none of its log"
        assert len(slave.query_message("A", "k19")) == 2
        timers = slave.timer_services.messages
        while timers.enqueue_step():
            pass
        assert sum(len(units) for units in timers.live_units(0)) == 3


@pytest.mark.parametrize("crash_at", some([1 << 30, *range(0, 100, 3)], 12))
def test_a_power_loss_does_not_give_a_slave_its_old_units_again(followed, crash_at):
    """At an operation of the open, or after it and with a part of the log of another master."""
    _, files, clock, _ = followed
    files = files.killed()
    remove(files, "/s/commitlog")
    with opened_pair(CrashFileSystem(), clock) as other:
        for number in range(20):
            other.put(Message(topic="A", body=b"other %d" % number), queue_id=number % 2)
        other.wait_dispatched()

        def stop(number, _name, _path):
            if number >= crash_at:
                raise SimulatedCrash

        files.operations, files.before = 0, stop
        with contextlib.suppress(SimulatedCrash):
            slave = opened_slave(files, clock)
            copy(other, slave, other.max_phy_offset // 2)
            slave.flush()
        files.before = None
        with opened_slave(files.power_lost(SeededEntropy(crash_at), keep_percent=50), clock) as slave:
            copy(other, slave)
            assert everything(slave) == everything(other)


def test_a_slave_that_lost_its_power_before_the_first_sync_of_its_log_opens_again():
    """Bytes of its second file are kept, and the end of its first one is not: all above what was synced may be so."""
    clock = SimClock()
    with opened_pair(CrashFileSystem(), clock) as master:
        for number in range(60):
            master.put(Message(topic="A", body=b"%d" % number * 100), queue_id=number % 2)
        master.wait_dispatched()
        for seed in range(12):
            files = CrashFileSystem()
            slave = MessageStore.open(
                "/s", config=StoreConfig(**SIZES, broker_role=BrokerRole.SLAVE), parts=StoreParts(
                    scheduler=ManualScheduler(), clock=clock, file_system=files, entropy=SeededEntropy(1)))
            log, at = master.inner.commit_log, 0
            while at < log.max_offset:
                size = min(log.max_offset - at, 8192 - at % 8192)
                at = slave.inner.append_raw(at, memoryview(bytearray(log.read(at, size))))
            with opened_slave(files.power_lost(SeededEntropy(seed), keep_percent=75), clock) as again:
                copy(master, again)
                assert everything(again) == everything(master)
