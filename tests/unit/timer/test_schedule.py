"""Delay levels: in order, never early, not twice after a kill, held up by nothing else."""

import dataclasses
import json

import msgspec
import pytest
from timer_world import CONFIG, ROOT, START, World

from tailrace.errors import ConfigError
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.model import PutMessageStatus
from tailrace.node.retention.timer_rescue import level_pins
from tailrace.node.timers import DelayOffsetManager
from tailrace.store.dispatch import parse_delay_levels
from tailrace.store.retention.pins import PinKind
from tailrace.timer.properties import PARKED_TOPIC


class Levels(World):
    """A world whose delay offsets are written when a test says so."""

    def flush(self):
        self.store.flush_commit_log.flush()

    def persist(self):
        self.store.flush_commit_log.flush()
        self.offsets.persist()

    def kill(self):
        self.files = self.files.killed()
        return self.open()


def text_of(world):
    file = world.files.open(f"{ROOT}/config/delayOffset.json")
    return file.pread(file.size(), 0)


def due(world, key, level, topic="T"):
    """Sends a message and gives its due time."""
    sent, result = world.send(topic, UNIQ_KEY=key, DELAY=level)
    assert result.ok, result
    return world.clock.now_ms() + parse_delay_levels(world.config.message_delay_level)[level - 1]


def test_a_level_message_is_stored_as_the_reference_stores_it():
    world = Levels()
    key, result = world.send("Dest", 3, DELAY=2, TIMER_DELAY_SEC=7)
    assert result.status is PutMessageStatus.PUT_OK
    (waiting,) = world.records(SCHEDULE_TOPIC)
    assert waiting.queue_id == 1
    assert waiting.properties == {
        "UNIQ_KEY": key, "DELAY": "2", "REAL_TOPIC": "Dest", "REAL_QID": "3"}
    unit = world.store.queues.get(SCHEDULE_TOPIC, 1).unit(0)
    assert unit.tags_code == START + 5000
    world.clock.advance(4999)
    world.steps()
    assert world.records("Dest") == []
    world.clock.advance(1)
    world.steps()
    (back,) = world.records("Dest")
    assert (back.queue_id, back.body, back.store_timestamp) == (3, waiting.body, START + 5000)
    assert back.properties == waiting.properties  # the reference also leaves them on the disk


def test_a_level_above_the_highest_is_the_highest_and_one_below_1_is_none():
    world = Levels()
    world.send("A", DELAY=99)
    world.send("B", DELAY=0)
    world.send("B", DELAY=-1)
    world.send("B", DELAY="x")
    assert len(world.records("B")) == 3
    (waiting,) = world.records(SCHEDULE_TOPIC)
    assert (waiting.queue_id, waiting.properties["DELAY"]) == (3, "4")


def test_levels_are_delivered_in_order_and_hold_up_one_another_not():
    """W32: the reference looks every 100 ms."""
    world = Levels()
    wanted = {}
    for number in range(40):
        level = 1 + number % 3
        wanted[f"k{number}"] = due(world, f"k{number}", level, f"T{level}")
        world.clock.advance(7)
    for _ in range(2200):
        world.clock.advance(5)
        world.steps()
    for level in (1, 2, 3):
        found = world.delivered(f"T{level}")
        assert list(found) == [f"k{n}" for n in range(40) if 1 + n % 3 == level]
        for key, times in found.items():
            assert len(times) == 1
            assert 0 <= times[0] - wanted[key] < 6, key
    assert world.schedule.pending() == {1: 0, 2: 0, 3: 0}
    assert sum(world.schedule.lateness.counts) == 40


def test_a_put_that_fails_holds_up_its_level_only_and_nothing_is_lost(monkeypatch):
    """W32: the reference skips what throws."""
    world = Levels()
    for number in range(3):
        due(world, f"a{number}", 1, "Bad")
        due(world, f"b{number}", 2, "Good")
    real = world.store.put

    def put(message):
        if message.topic == "Bad":
            return msgspec.structs.replace(
                real(msgspec.structs.replace(message, topic="")), status=PutMessageStatus.UNKNOWN_ERROR)
        return real(message)

    monkeypatch.setattr(world.store, "put", put)
    world.run(6000, 10)
    assert list(world.delivered("Good")) == ["b0", "b1", "b2"]
    assert world.delivered("Bad") == {}
    assert world.schedule.pending() == {1: 3, 2: 0}
    assert 40 < world.schedule.counters["schedulePutFailed"] < 60  # every 100 ms, not every step
    monkeypatch.undo()
    world.run(200, 10)
    assert list(world.delivered("Bad")) == ["a0", "a1", "a2"]


def test_what_can_never_be_put_is_parked_with_the_reason(monkeypatch):
    world = Levels()
    due(world, "never", 1, "Bad")
    due(world, "next", 1, "Good")
    real = world.store.put

    def put(message):
        if message.topic == "Bad":
            return msgspec.structs.replace(
                real(msgspec.structs.replace(message, topic="")), status=PutMessageStatus.MESSAGE_ILLEGAL)
        return real(message)

    monkeypatch.setattr(world.store, "put", put)
    world.run(1100, 10)
    (parked,) = world.records(PARKED_TOPIC)
    assert parked.unique_key == "never"
    assert parked.properties["TIMER_PARKED_REASON"].startswith("MESSAGE_ILLEGAL")
    assert list(world.delivered("Good")) == ["next"]


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", SCHEDULE_TOPIC, None])
def test_a_real_topic_that_cannot_be_is_parked(topic):
    world = Levels()
    world.send(SCHEDULE_TOPIC, DELAY=1, **({"REAL_TOPIC": topic, "REAL_QID": 0} if topic else {}))
    world.run(1100, 10)
    assert len(world.records(PARKED_TOPIC)) == 1
    assert len(world.records(SCHEDULE_TOPIC)) == 1


def test_after_a_kill_nothing_is_lost_and_nothing_comes_twice():
    """W32: the offsets are written every 10 s; the index says what was put back since."""
    world = Levels()
    for number in range(30):
        due(world, f"k{number:02d}", 1)
        world.clock.advance(100)
        world.steps()
        if number == 12:
            world.persist()
    assert 0 < len(world.delivered()) < 30
    assert world.offsets.query(1) > json.loads(
        text_of(world).replace(b"1:", b'"1":'))["offsetTable"]["1"]
    world.kill()
    world.run(1500, 10)
    found = world.delivered()
    assert sorted(found) == [f"k{n:02d}" for n in range(30)]
    assert {len(times) for times in found.values()} == {1}
    assert world.schedule.counters["scheduleDouble"] > 0


def test_without_delay_offsets_everything_is_asked_for_and_nothing_comes_twice():
    """Java brokers begin at 0 then and deliver all of it again."""
    world = Levels()
    for number in range(10):
        due(world, f"k{number}", 1)
    world.run(1500, 10)
    due(world, "later", 1)
    world.kill()
    assert world.offsets.query(1) == -1
    world.run(1500, 10)
    found = world.delivered()
    assert len(found) == 11
    assert {len(times) for times in found.values()} == {1}


def test_the_same_message_sent_twice_is_delivered_twice_also_over_a_kill():
    world = Levels()
    due(world, "same", 1)
    world.clock.advance(10)
    due(world, "same", 1)
    world.clock.advance(995)
    world.steps()
    assert len(world.delivered()["same"]) == 1
    world.kill()
    world.run(50, 1)
    assert len(world.delivered()["same"]) == 2
    assert world.schedule.counters["scheduleDouble"] == 1


@pytest.mark.parametrize(("written", "wanted"), [(7, 3), (-1, 0), (2, 2)])
def test_offsets_that_the_queue_does_not_have_are_corrected(written, wanted, caplog):
    world = Levels()
    for number in range(3):
        due(world, f"k{number}", 2)
    world.steps()
    world.offsets.update(2, written)
    world.offsets.update(4, 9)
    world.persist()
    world.kill()
    assert max(world.offsets.query(2), 0) == wanted
    assert world.offsets.query(4) == 0
    assert ("delay offset corrected" in caplog.text) == (written > wanted)
    assert "delay offset without a queue" in caplog.text


def test_the_offsets_claim_only_what_is_durable():
    """After a power loss every message whose put-back was lost with it is delivered again."""
    world = Levels()
    for number in range(20):
        due(world, f"k{number:02d}", 1)
    world.store.flush_commit_log.flush()
    world.clock.advance(1000)
    world.steps()
    assert len(world.delivered()) == 20
    world.files = world.files.power_lost(world.entropy, 0)
    world.open()
    world.run(50)
    assert len(world.delivered()) == 20


def test_clock_steps_are_never_early_and_never_wait_longer_than_the_delay():
    world = Levels()
    due(world, "a", 2)
    world.clock.advance(2000)
    world.steps()
    world.clock.advance(-3_600_000)
    noticed = world.clock.now_ms()
    world.steps()
    due(world, "b", 2)
    world.run(4990, 10)
    assert world.delivered() == {}
    world.run(100, 10)
    found = world.delivered()
    assert [len(found[k]) for k in "ab"] == [1, 1]
    assert world.clock.now_ms() - noticed <= 5100
    due(world, "b2", 2)
    world.run(1000, 10)
    due(world, "b3", 2)  # its store time is also of the other clock
    world.run(5090, 10)
    assert [len(world.delivered()[k]) for k in ("b2", "b3")] == [1, 1]
    due(world, "c", 2)
    world.clock.advance(86_400_000)
    world.steps()
    assert len(world.delivered()["c"]) == 1


def test_the_file_is_the_one_of_the_reference():
    world = Levels()
    assert world.offsets.dumps(world.offsets.to_json()) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":0\n\t},\n'
        b'\t"offsetTable":{}\n}')
    for offset in range(401):
        world.offsets.update(10, offset)
    world.offsets.update(2, 5)
    world.offsets.persist()
    text = text_of(world)
    assert text == (
        b'{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n'
        b'\t},\n\t"offsetTable":{\n\t\t2:5,\n\t\t10:400\n\t}\n}')
    again = DelayOffsetManager(world.files, f"{ROOT}/config", world.clock)
    assert again.load()
    assert (again.query(10), again.query(2), again.query(1)) == (400, 5, -1)
    assert again.dumps(again.to_json()) == text


def test_other_levels_change_what_is_waiting_to_their_delay():
    world = Levels()
    due(world, "k", 4)
    world.steps()
    world.config = dataclasses.replace(CONFIG, message_delay_level="1s 2s 3s 4s")
    world.kill()
    world.run(3990, 10)
    assert world.delivered() == {}
    world.run(30, 10)
    assert list(world.delivered()) == ["k"]


def test_the_levels_are_checked():
    for text in ("", "1", "1x", "1s  5s", "s", "-1s"):
        with pytest.raises(ConfigError, match="messageDelayLevel="):
            dataclasses.replace(CONFIG, message_delay_level=text)
    assert not dataclasses.replace(CONFIG, message_delay_level="1s 2d 3h 4m").validate()


def test_the_first_message_of_each_level_is_pinned_until_it_is_delivered():
    world = Levels()
    assert list(level_pins(world.schedule)) == []
    due(world, "a", 1)
    due(world, "b", 3)
    world.clock.advance(500)
    due(world, "c", 1)
    world.steps()
    places = {m.unique_key: m.phy_offset for m in world.records(SCHEDULE_TOPIC)}
    assert [(pin.kind, pin.phy_offset, pin.holder) for pin in level_pins(world.schedule)] == [
        (PinKind.TIMER, places["a"], "of delay level 1"),
        (PinKind.TIMER, places["b"], "of delay level 3")]
    world.run(600, 100)
    assert [pin.phy_offset for pin in level_pins(world.schedule)] == [places["c"], places["b"]]
    world.run(10_000, 100)
    assert list(level_pins(world.schedule)) == []


def test_nothing_is_handed_over_that_the_log_has_no_longer():
    """Messages below the least position may still be readable, and are lost all the same."""
    world = Levels()
    results = [world.send(DELAY=3)[1] for _ in range(4)]
    world.steps()
    handed = []

    def put(message, due_ms):
        handed.append((message.unique_key, due_ms))
        return True

    assert world.schedule.hand_over(results[2].phy_offset, results[3].phy_offset, put) == (1, 0)
    assert handed == [("K000003", START + 10_000)]
    assert world.schedule.counters["scheduleUnreadable"] == 0


def test_a_long_reason_is_cut_and_cannot_end_the_property():
    world = Levels()
    _, result = world.send("T")
    message = world.records("T")[0]
    assert world.timers.put_back.parking.park(message, "a\x01b\x02" + "x" * 300)
    (parked,) = world.records(PARKED_TOPIC)
    assert parked.properties["TIMER_PARKED_REASON"] == "a b " + "x" * 196
