"""Many timers of a slot that are due together: each once, in order, whatever happens in between."""

import dataclasses
import errno

import numpy as np
import pytest
from interpreted_kernels import interpreted
from timer_world import CONFIG, START, World

from tailrace.errors import DiskFullError
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.kernels import timer_put_back, timer_records
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner
from tailrace.timer import due_table
from tailrace.timer.due_table import DueTable
from tailrace.timer.properties import Identity

timer_records_identity = timer_records.identity_hash


def sent(world, count, **more):
    """Timers of one slot, not in the order of their due times; the wanted order of their keys."""
    due = {}
    for number in range(count):
        ms = START + 5001 + number * 37 % 900
        key, _ = world.send(f"T{number % 3}", number % 4, TIMER_DELIVER_MS=ms, **more)
        due[key] = ms
    world.steps()
    return due


def arrived(world):
    found = [m for n in range(3) for m in world.records(f"T{n}")]
    return sorted(found, key=lambda m: m.phy_offset)


def begun(after_ms):
    """A world this many ms later, with 300 timers whose slot is being read, and when they are due."""
    world = World()
    due = sent(world, 300)
    world.clock.advance(after_ms)
    world.steps()
    return world, due


def each_came_once(world, keys):
    assert sorted(m.unique_key for m in arrived(world)) == sorted(keys)
    assert set(world.timers.metrics.counts().values()) == {0}


def test_they_come_in_the_order_of_their_due_times_with_the_bytes_of_single_ones():
    world = World()
    due = sent(world, 300, KEYS="a b", TAGS="x")
    waiting = {m.unique_key: m for m in world.records("rmq_sys_wheel_timer")}
    world.clock.advance(60_000)
    world.steps()
    found = arrived(world)
    assert [due[m.unique_key] for m in found] == sorted(due.values())
    assert len({m.unique_key for m in found}) == 300
    now = START + 60_000
    for message in found:
        before = waiting[message.unique_key]
        assert (message.body, message.born_timestamp, message.born_host) == (
            before.body, before.born_timestamp, before.born_host)
        assert message.queue_id == int(before.properties["REAL_QID"])
        assert list(message.properties.items()) == [
            *before.properties.items(), ("TIMER_ENQUEUE_MS", str(START)),
            ("TIMER_DEQUEUE_MS", str(now))]
    assert world.timers.put_back.counters["timerPutBack"] == 300
    assert sum(world.timers.put_back.lateness.counts) == 300
    assert set(world.timers.metrics.counts().values()) == {0}


def test_recalled_double_large_and_odd_ones_are_handled_among_the_others():
    world = World()
    due = sent(world, 200)
    keys = list(due)
    for key in keys[:5]:
        world.due[key] = due[key]
        world.recall(key, f"T{keys.index(key) % 3}", bare=bool(keys.index(key) % 2))
    world.send("T0", UNIQ_KEY=keys[9], TIMER_DELIVER_MS=due[keys[9]])  # twice the same
    world.send("T1", body=bytes(100_000), UNIQ_KEY="LARGE", TIMER_DELIVER_MS=START + 5500)
    world.store.put(MessageExtBrokerInner(
        "rmq_sys_wheel_timer", 0, b"v6", encode_properties({
            "UNIQ_KEY": "V6", "TIMER_DELIVER_MS": str(START + 5600), "REAL_TOPIC": "T2",
            "TIMER_OUT_MS": str(START + 5000), "REAL_QID": "0"}), born_host=bytes(19) + b"\1"))
    world.send("T0", UNIQ_KEY="ODD", TIMER_DELIVER_MS=START + 5700, TIMER_ROLL_TIMES=1)
    world.steps()
    world.clock.advance(8000)
    world.steps()
    each_came_once(world, [*keys[5:], "LARGE", "V6", "ODD"])
    counters = world.timers.put_back.counters
    assert (counters["timerRecalled"], counters["timerDouble"]) == (5, 1)


@pytest.mark.parametrize("fails", [1, 2, 5])
@pytest.mark.parametrize("how", [DiskFullError("commitlog", "as the test wants it"), MemoryError()])
def test_a_put_that_fails_in_between_loses_and_doubles_nothing(monkeypatch, fails, how):
    """The log needs a new file every few dozen records, and one of these cannot be made."""
    world = World(config=dataclasses.replace(CONFIG, mapped_file_size_commit_log=1 << 14))
    due = sent(world, 400)
    queue = world.store.commit_log.queue
    real, count = queue.last_file, 0

    def last_file(create_at=None):
        nonlocal count
        if queue.files[-1].is_full():
            count += 1
            if count == fails:
                raise how
        return real(create_at)

    monkeypatch.setattr(queue, "last_file", last_file)
    world.clock.advance(8000)
    world.steps()
    world.run(2000, 100)
    assert count > fails
    each_came_once(world, due)


def test_what_a_failed_write_left_is_cleared(monkeypatch):
    world = World()
    due = sent(world, 100)
    at = world.store.commit_log.max_offset
    real = timer_put_back.put_back

    def put_back(*arguments):
        real(*arguments)
        raise MemoryError

    monkeypatch.setattr("tailrace.timer.put_back.timer_put_back.put_back", put_back)
    world.clock.advance(8000)
    with pytest.raises(MemoryError):
        world.steps()
    assert world.store.commit_log.max_offset == at
    file = world.store.commit_log.queue.last_file(0)
    assert not any(file.buffer[at : at + 40_000])
    monkeypatch.undo()
    world.steps()
    each_came_once(world, due)


def test_the_size_that_an_interpreted_kernel_has_written_is_a_number_of_python(monkeypatch):
    """It becomes the end of the log, which a state file gets when a topic is deleted: JSON has no numbers of NumPy."""
    monkeypatch.setattr(
        "tailrace.timer.put_back.timer_put_back.put_back", interpreted("timer_put_back").put_back)
    world, written = World(), []
    real = type(world.store).put_records

    def put_records(store, keys, count, bound, write):
        def noted(*arguments):
            written.append(write(*arguments))
            return written[-1]

        return real(store, keys, count, bound, noted)

    monkeypatch.setattr(type(world.store), "put_records", put_records)
    due = sent(world, 20)
    world.clock.advance(8000)
    world.steps()
    each_came_once(world, due)
    assert written
    assert {type(number) for result in written for number in result} == {int}


def test_each_waits_for_its_millisecond_and_a_recall_still_finds_it():
    world, due = begun(5000)
    assert len(world.timers.due) == world.timers.due.waiting == 300
    last = sorted(due, key=due.get)[-40:]
    for key in last:
        world.due[key] = due[key]
        world.recall(key, f"T{list(due).index(key) % 3}")
    double = sorted(due, key=due.get)[-50]
    world.send(
        f"T{list(due).index(double) % 3}", UNIQ_KEY=double, TIMER_DELIVER_MS=max(due.values()))
    world.run(1500, 7)
    each_came_once(world, set(due) - set(last))
    for message in arrived(world):
        assert 0 <= message.store_timestamp - due[message.unique_key] <= 7


@pytest.mark.parametrize("what", ["read", "put_records"])
def test_a_disk_that_fails_while_they_wait_loses_none(monkeypatch, what):
    world, due = begun(5000)
    world.clock.advance(500)

    def fails(*_):
        raise OSError(errno.EIO, "as the test wants it")

    monkeypatch.setattr(world.store.commit_log if what == "read" else world.store, what, fails)
    if what == "read":
        while world.timers.dequeue_step():
            pass
    else:
        with pytest.raises(OSError, match="as the test"):
            world.timers.dequeue_step()
    monkeypatch.undo()
    assert len(world.timers.due) == len(world.timers.due.left_units()) == 300
    world.run(1500, 50)
    each_came_once(world, due)


def test_timers_are_taken_when_they_are_due_and_who_asks_changes_nothing():
    due = DueTable(1000)
    for first in (30, 10, 20):
        rows = np.zeros(5, TIMER_UNIT.dtype)
        rows["phy_offset"] = times = np.arange(first, first + 5)
        due.wait(times, rows)
        assert len(due.due_times()) == due.waiting
    assert due.take(9, 0, 100) is None
    assert due.take(21, 0, 100)[0]["phy_offset"].tolist() == [*range(10, 15), 20, 21]
    assert due.take(21, 0, 100) is None
    assert due.take(22, 0, 100)[0]["phy_offset"].tolist() == [22]
    assert due.take(99, 0, 3)[0]["phy_offset"].tolist() == [23, 24, 30]
    assert due.left_units()["phy_offset"].tolist() == [31, 32, 33, 34]


def test_requests_to_delete_are_forgotten_oldest_first_above_their_bound():
    due = DueTable(1000)
    most = due_table._MOST_DELETES
    named = [Identity("T", f"K{number}", START + number // 2) for number in range(most + 3)]
    for one in named:
        due.delete(one)
        due.delete(one)  # a second request of the same timer takes no room
    assert [due.is_deleted(one) for one in (*named[:4], named[-1])] == [False, False, False, True, True]
    assert sum(due.is_deleted(one) for one in named) == most
    hashes = np.array([due_table.identity_hash(one) for one in named[:4]])
    assert due.may_be_deleted(hashes) == [3]


def test_a_clean_stop_in_between_keeps_those_that_wait():
    world, due = begun(5500)
    before = {m.unique_key for m in arrived(world)}
    assert 100 < len(before) < 300
    assert world.timers._pending_within(world.clock.now_ms())[0][5] == 300 - len(before)
    world.timers.close()
    world.store.close()
    world.open(clean=True)
    world.run(2000, 50)
    each_came_once(world, due)


def test_a_clock_set_back_in_between_brings_nothing_twice_and_nothing_early():
    world, due = begun(5500)
    before = {m.unique_key for m in arrived(world)}
    assert before
    world.clock.step_wall(-3000)
    world.run(2000, 100)
    assert {m.unique_key for m in arrived(world)} == before
    world.run(3000, 100)
    assert set(world.timers.metrics.counts().values()) != {0}  # the slot was read twice
    world.timers.check_metrics_step()
    each_came_once(world, due)
    assert all(m.store_timestamp >= due[m.unique_key] for m in arrived(world))


def test_different_timers_of_one_hash_all_come_and_doubles_do_not(monkeypatch):
    world = World()
    due = sent(world, 200)
    twice = list(due)[:20]
    for key in twice:
        world.send(f"T{list(due).index(key) % 3}", UNIQ_KEY=key, TIMER_DELIVER_MS=due[key])
    world.steps()
    real = timer_records.read

    def read(*arguments):
        odd = real(*arguments)
        arguments[-1][:, C.T_IDENTITY] &= 15  # 8 values
        arguments[-1][:, C.T_IDENTITY] |= 1
        return odd

    monkeypatch.setattr("tailrace.timer.put_back.kernel.read", read)
    monkeypatch.setattr(
        "tailrace.timer.due_table.timer_records.identity_hash",
        lambda *a: timer_records_identity(*a) & 15 | 1)
    world.clock.advance(8000)
    world.steps()
    each_came_once(world, due)


def test_a_timer_of_the_hash_of_a_message_that_cannot_be_read_any_more_comes(monkeypatch):
    """The file of the delivered one may be deleted, because the disk is full: its name is not known any more."""
    world = World()
    due = sent(world, 200)
    for number, key in enumerate(list(due)[:20]):
        world.send(f"T{number % 3}", UNIQ_KEY=key, TIMER_DELIVER_MS=due[key])
    world.steps()
    monkeypatch.setattr("tailrace.timer.put_back.PutBack._identity_at", lambda *_: None)
    world.clock.advance(8000)
    world.steps()
    assert {m.unique_key for m in arrived(world)} == set(due)
    assert set(world.timers.metrics.counts().values()) == {0}
