"""Many timers of a slot that are due at once: each once, in order, whatever happens in between."""

import pytest
from timer_world import START, World

from tailrace.formats.commitlog import decode_message, encode_properties, unpack_stored
from tailrace.model import MessageExtBrokerInner, PutMessageStatus


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


def test_most_go_this_way_and_each_one_that_needs_a_look_goes_the_other():
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
    singles = []
    real = world.timers.dequeue._take
    world.timers.dequeue._take = lambda *a: (singles.append(a[2].phy_offset), real(*a))
    world.clock.advance(8000)
    world.steps()
    found = [m.unique_key for m in arrived(world)]
    assert sorted(found) == sorted([*keys[5:], "LARGE", "V6", "ODD"])
    assert len(singles) < 25
    assert set(world.timers.metrics.counts().values()) == {0}


@pytest.mark.parametrize("fails", [0, 1, 57, 199])
@pytest.mark.parametrize("how", ["status", "raise"])
def test_a_put_that_fails_in_between_loses_and_doubles_nothing(monkeypatch, fails, how):
    world = World()
    due = sent(world, 200)
    real, count = world.store.commit_log.put, 0

    def put(message):
        nonlocal count
        count += 1
        if count == fails + 1:
            if how == "raise":
                raise OSError(5, "as the test wants it")
            return real(message.__class__("", 0, b"x")).__class__(PutMessageStatus.UNKNOWN_ERROR)
        return real(message)

    monkeypatch.setattr(world.store.commit_log, "put", put)
    world.clock.advance(8000)
    if how == "raise":
        with pytest.raises(OSError, match="as the test"):
            world.steps()
    world.steps()
    world.run(2000, 100)
    found = [m.unique_key for m in arrived(world)]
    assert sorted(found) == sorted(due)
    assert set(world.timers.metrics.counts().values()) == {0}


def test_the_parts_of_a_record_are_those_of_its_message():
    world = World()
    world.send("T", 3, b"body", TIMER_DELIVER_MS=START + 5000, A="é")
    data = world.store.commit_log.read(0, world.store.commit_log.max_offset)
    message, parts = decode_message(data), unpack_stored(data)
    assert (parts.topic.decode(), parts.phy_offset, parts.body, parts.born_timestamp) == (
        message.topic, 0, b"body", message.born_timestamp)
    assert parts.store_timestamp == message.store_timestamp
    assert encode_properties(message.properties) == parts.properties
    for size in range(len(data)):
        assert unpack_stored(data[:size]) is None
    for at in (0, 4, 84, 88 + 4):  # size, magic, body length, topic length
        broken = bytearray(data)
        broken[at] ^= 0x7F
        assert unpack_stored(bytes(broken)) is None
