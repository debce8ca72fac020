"""Enqueue in batches: the same bytes as one by one, and what stops a batch in between."""

import errno

import numpy as np
import pytest
from timer_world import START, World

from tailrace.env.entropy import SeededEntropy
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message, java_string_hash
from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL, TIMER_UNIT, TimerUnit
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.timer.enqueue import Enqueue

TOPIC = "rmq_sys_wheel_timer"
RING_MS = 2 * 512 * 1000


class OneByOne:
    """The rules of doEnqueue, a message at a time, in place of the batches."""

    def __init__(self, world):
        self.world, self.timers = world, world.timers
        world.timers.enqueue.step = self.step

    def step(self):
        timers, store = self.timers, self.world.store
        state, queue = timers.state, store.queues.get(TOPIC, 0)
        while queue is not None and state.queue_offset < queue.max_offset:
            cq = queue.unit(state.queue_offset)
            try:
                message = decode_message(store.commit_log.read(cq.phy_offset, cq.size))
            except CorruptionError:
                state.queue_offset += 1
                continue
            texts = message.properties
            if "REAL_TOPIC" not in texts or not texts.get("TIMER_OUT_MS", "x").lstrip("+-").isdigit():
                assert timers.put_back.park(message, "no TIMER_OUT_MS or REAL_TOPIC")
            elif not self.put(message):
                state.hold_until = 0
                break
            state.queue_offset += 1
        return False

    def put(self, message):
        timers, texts = self.timers, message.properties
        wheel, window = timers.wheel, timers.roll_window_ms
        now = self.world.clock.now_ms() // 1000 * 1000
        is_delete = "TIMER_DEL_UNIQKEY" in texts
        slot, magic = int(texts["TIMER_OUT_MS"]) // 1000 * 1000, MAGIC_DELETE if is_delete else 0
        if slot - now >= window:
            magic |= MAGIC_ROLL
            slot = now + (window // 2000 * 1000 if slot - now - window < window // 3 else window)
        slot = max(slot, timers.commit_read_time_ms)
        held = wheel.held_time(slot)
        if held not in (0, slot) and held >= timers.commit_read_time_ms and (
            wheel.get_slot(held).last_pos >= 0
        ):
            return False
        first, last, num = wheel.get_slot(slot)[1:4]
        if slot < timers.state.frontier_ms and slot not in timers.due.slots:
            first, last, num = -1, -1, 0
        timers.timer_log.room()
        unit = TimerUnit(
            52, last, 1 | magic, now, slot - now, message.phy_offset, message.store_size,
            java_string_hash(texts["REAL_TOPIC"]), 0)
        pos = timers.timer_log.append(TIMER_UNIT.pack(*unit))
        sign = -1 if is_delete else 1
        wheel.put_slot(slot, pos if first < 0 else first, pos, num + sign)
        timers.metrics.add(texts["REAL_TOPIC"], sign)
        if slot < timers.state.frontier_ms:
            timers.due.add(TIMER_UNIT.view(TIMER_UNIT.pack(*unit)))
        return True


def put_raw(world, texts, **more):
    world.store.put(MessageExtBrokerInner(TOPIC, 0, b"raw", encode_properties(texts), **more))


def send_some(world, entropy):
    for _ in range(entropy.randrange(120)):
        kind, delay = entropy.randrange(30), 1 + entropy.randrange(58_000)
        topic = f"T{entropy.randrange(3)}"
        if kind == 0:
            delay += entropy.randrange(400_000)
        if kind == 1:
            put_raw(world, {"UNIQ_KEY": "P", "TIMER_OUT_MS": "no", "REAL_TOPIC": "T0"})
        elif kind == 2:
            put_raw(world, {"UNIQ_KEY": "Q", "TIMER_OUT_MS": str(START)})
        elif kind == 3:
            put_raw(world, {  # a number that fits in no column
                "UNIQ_KEY": str(delay), "TIMER_OUT_MS": "9" * 30, "REAL_TOPIC": "T1", "REAL_QID": "0"})
        elif kind == 4:
            put_raw(world, {"UNIQ_KEY": str(delay), "TIMER_OUT_MS": f"+{START + delay}",
                            "REAL_TOPIC": "T\u00e9", "REAL_QID": "0"}, born_host=bytes(19) + b"\1")
        elif kind == 5 and world.due:
            known = sorted(world.due)
            key = known[entropy.randrange(len(known))]
            if world.due[key] > world.clock.now_ms():
                world.recall(key, topic, bare=bool(delay % 2))
        else:
            world.send(topic, TIMER_DELAY_MS=delay)
        if kind == 6:
            world.store.put(MessageExtBrokerInner("Other", 0, bytes(entropy.randrange(9000)), b""))


def state(world):
    files = {p: bytes(d.volatile) for p, d in world.files._files.items() if "/timerlog/" in p}
    return files, bytes(world.timers.wheel._bytes), world.timers.metrics.encode(), (
        world.timers.queue_offset, world.timers.put_back.counters["timerParked"])


@pytest.mark.parametrize("seed", range(6))
def test_batches_make_the_bytes_of_single_messages(seed):
    batches, single = World(seed=seed), World(seed=seed)
    OneByOne(single)
    entropies = SeededEntropy(seed), SeededEntropy(seed)
    for number in range(12):
        for world, entropy in zip((batches, single), entropies, strict=True):
            send_some(world, entropy)
            world.clock.advance(entropy.randrange(9000))
            if number % 3 == 2:
                world.clock.step_wall(-700)
            world.steps()
        found = [state(world) for world in (batches, single)]
        assert found[0] == found[1]
    assert batches.timers.queue_offset > 200
    assert len(found[0][0]) > 3


def test_timers_a_whole_ring_apart_are_not_put_into_one_slot_in_one_batch():
    """The reference overwrites the slot, and what it listed is lost."""
    world = World()
    first, _ = world.send(TIMER_DELAY_MS=20_500)
    while world.store.reput.step():
        pass
    world.clock.step_wall(RING_MS)  # the store was down, or the services were stopped
    second, _ = world.send(TIMER_DELAY_MS=20_500)
    while world.store.reput.step():
        pass
    world.timers.state.frontier_ms = START
    world.run(21_000, step=50)
    assert {key: len(times) for key, times in world.delivered().items()} == {first: 1, second: 1}


def stop_the_third_write(monkeypatch, world):
    real, count = world.timers.timer_log.append, 0

    def append(units):
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.EIO, "as the test wants it")
        return real(units)

    monkeypatch.setattr(world.timers.timer_log, "append", append)


def test_a_failed_append_stops_there_and_what_was_before_stays(monkeypatch):
    world = World()
    for number in range(150):
        world.send(TIMER_DELAY_MS=5_000 + 40 * number)
    while world.store.reput.step():
        pass
    stop_the_third_write(monkeypatch, world)
    while world.timers.enqueue_step():
        pass
    assert world.timers.queue_offset == 80  # two files of 40 units
    assert world.timers.put_back.counters["timerAppendFailed"] == 1
    assert sum(world.timers.metrics.counts().values()) == 80
    assert world.timers.wheel.pending(START) == 80
    world.flush()
    world.files = world.files.killed()
    world.open()
    world.run(12_000, step=50)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_a_batch_is_bounded_in_bytes():
    world = World()
    for _ in range(30):
        assert world.send(body=bytes(300_000), TIMER_DELAY_MS=5_000)[1].ok
    while world.store.reput.step():
        pass
    assert world.timers.enqueue_step()
    assert 10 < world.timers.queue_offset < 20  # 4 MiB


def test_a_queue_whose_units_go_back_in_the_log_is_read_all_the_same(monkeypatch):
    world = World()
    for number in range(40):
        world.send(TIMER_DELAY_MS=3_000 + number)
    while world.store.reput.step():
        pass
    real = Enqueue._units

    def shuffled(self):
        units = real(self).copy()
        order = [17, 3, 4, 5, 30, 29, *(n for n in range(40) if n not in {17, 3, 4, 5, 30, 29})]
        units[:] = real_all[order][self._state.queue_offset : self._state.queue_offset + len(units)]
        return units

    real_all = real(world.timers.enqueue).copy()
    monkeypatch.setattr(Enqueue, "_units", shuffled)
    while world.timers.enqueue_step():
        pass
    units = np.concatenate([part for _, part in world.timers.timer_log.scan()])
    assert sorted(units["phy_offset"].tolist()) == real_all["phy_offset"].tolist()
    world.run(4_000, step=50)
    assert len(world.delivered()) == 40
