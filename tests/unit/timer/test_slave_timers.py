"""Timers of a slave: its master delivers them; after a promotion the rest is delivered once."""

from __future__ import annotations

import threading

from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

SIZES = {
    "mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 4000, "max_hash_slot_num": 64,
    "max_index_num": 256, "commit_log_allocate_step": 4096}


def opened(files, clock, **more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, file_system=files, clock=clock))


def slave_of(files, clock):
    return opened(files, clock, broker_role=BrokerRole.SLAVE)


def copy(master, slave):
    log = master.inner.commit_log
    at = slave.max_phy_offset
    slave.inner.append_raw(at, memoryview(bytearray(log.read(at, log.max_offset - at))))
    slave.wait_dispatched()


def run(store, clock, seconds):
    timers = store.timer_services.messages
    for _ in range(seconds * 2):
        clock.advance(500)
        store.wait_dispatched()
        while timers.enqueue_step():
            pass
        for _ in range(20):
            timers.dequeue_step()
    store.wait_dispatched()


def delivered(store):
    return sorted(one.body for one in read_there(store, "T", 0))


def test_a_slave_delivers_nothing_and_a_promotion_delivers_the_rest_once():
    clock, files = SimClock(), CrashFileSystem()
    with opened(CrashFileSystem(), clock) as master:
        for number, delay in enumerate(["2s", "3s", "60s"]):
            master.put(Message(topic="T", body=b"%d" % number, delay=delay), queue_id=0)
        master.wait_dispatched()
        slave = slave_of(files, clock)
        copy(master, slave)
        run(slave, clock, 10)
        assert slave.max_phy_offset == master.max_phy_offset
        assert delivered(slave) == []
        assert slave.stats()["timerPutBack"] == 0
        run(master, clock, 2)
        assert delivered(master) == [b"0", b"1"]
        copy(master, slave)
        run(slave, clock, 5)
        assert delivered(slave) == [b"0", b"1"]
        assert slave.timer_services.messages.due.by_slot() == {}, "what the master has delivered has left"
        assert slave.stats()["timerDouble"] == 2
    slave.timer_services.messages.flush_step()
    slave.close()
    with opened(files, clock) as promoted:
        run(promoted, clock, 60)
        assert delivered(promoted) == [b"0", b"1", b"2"]


def test_a_timer_that_only_the_slave_has_is_delivered_after_a_kill_and_a_promotion():
    clock, files = SimClock(), CrashFileSystem()
    with opened(CrashFileSystem(), clock) as master:
        master.put(Message(topic="T", body=b"x", delay="2s"), queue_id=0)
        master.wait_dispatched()
        slave = slave_of(files, clock)
        copy(master, slave)
        run(slave, clock, 5)
        run(master, clock, 2)
        assert delivered(master) == [b"x"], "and its record is lost with the master"
    with opened(files.killed(), clock) as promoted:
        run(promoted, clock, 5)
        assert delivered(promoted) == [b"x"]


def test_a_checkpoint_for_slaves_is_not_after_a_timer_that_came_late_and_is_not_delivered():
    """A slave of RocketMQ has it in its own slot, and reads no slot before the time of the checkpoint."""
    clock = SimClock()
    with opened(CrashFileSystem(), clock) as master:
        timers = master.timer_services.messages
        run(master, clock, 5)
        due_ms = clock.now_ms() + 2000
        master.put(Message(topic="T", body=b"late", deliver_at=due_ms), queue_id=0)
        master.wait_dispatched()
        clock.advance(10_000)
        while timers.dequeue_step():
            pass
        assert timers.enqueue_step() is False
        timers.flush_step()
        assert timers.checkpoint.fields.last_read_time_ms > due_ms
        assert timers.checkpoint_for_slaves() == timers.checkpoint.fields._replace(
            last_read_time_ms=timers.checkpoint_for_slaves().last_read_time_ms)
        assert timers.checkpoint_for_slaves().last_read_time_ms <= due_ms
        run(master, clock, 3)
        assert delivered(master) == [b"late"]
        timers.flush_step()
        assert timers.checkpoint_for_slaves() == timers.checkpoint.fields


def test_a_checkpoint_for_slaves_waits_for_no_step_and_is_not_given_before_the_start_is_over():
    clock, files = SimClock(), CrashFileSystem()
    with opened(files, clock) as master:
        assert master.timer_services.messages.checkpoint_for_slaves() is None
        master.put(Message(topic="T", body=b"x", delay="2s"), queue_id=0)
        run(master, clock, 5)
    with opened(files, clock) as master:
        timers = master.timer_services.messages
        assert timers.checkpoint.fields is not None
        assert timers.checkpoint_for_slaves() is None, "timers of the run before may be due at any time"
        run(master, clock, 5)
        assert timers.checkpoint_for_slaves() == timers.checkpoint.fields
        found = []
        with timers.standing_still():
            thread = threading.Thread(target=lambda: found.append(timers.checkpoint_for_slaves()))
            thread.start()
            thread.join(10)
        assert found == [None]
