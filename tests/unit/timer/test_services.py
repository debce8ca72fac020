"""The timer services: on time, in order, exactly once."""

import dataclasses
import errno
import re
import threading
from types import SimpleNamespace

import pytest
from timer_world import CONFIG, ROOT, START, World

from tailrace.formats.timerlog import MAGIC_DELETE, MAGIC_ROLL
from tailrace.model import PutMessageResult, PutMessageStatus


def exact(world, topic="T"):
    """Each noted timer was delivered once, at its own millisecond."""
    found = world.delivered(topic)
    assert found == {key: [due] for key, due in world.due.items()}


def test_each_timer_arrives_at_its_own_millisecond():
    world = World()
    for ms in (1, 37, 999, 1000, 1001, 1500, 2000, 7777):
        world.send(TIMER_DELAY_MS=ms)
        world.send(TIMER_DELIVER_MS=START + ms)
    world.send(TIMER_DELAY_SEC=3)
    world.steps()
    world.run(9000)
    exact(world)


def test_a_timer_is_stored_as_the_reference_stores_it():
    world = World()
    key, result = world.send("Dest", 3, TIMER_DELIVER_MS=START + 5000)
    assert result.ok
    waiting = world.records("rmq_sys_wheel_timer")[0]
    assert waiting.queue_id == 0
    assert waiting.properties == {
        "UNIQ_KEY": key, "TIMER_DELIVER_MS": str(START + 5000),
        "TIMER_OUT_MS": str(START + 4000), "REAL_TOPIC": "Dest", "REAL_QID": "3"}
    world.run(6000)
    (back,) = world.records("Dest")
    assert back.queue_id == 3
    assert back.body == waiting.body
    assert back.properties == {
        **waiting.properties, "TIMER_ENQUEUE_MS": str(START), "TIMER_DEQUEUE_MS": str(START + 5000)}


@pytest.mark.parametrize(("properties", "status"), [
    ({"TIMER_DELAY_MS": "x"}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
    ({"TIMER_DELAY_SEC": 3 * 86400 + 1}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
    ({"TIMER_DELAY_SEC": 3 * 86400}, PutMessageStatus.PUT_OK),
    ({"TIMER_DELIVER_MS": START}, PutMessageStatus.PUT_OK),
    ({"TIMER_DELIVER_MS": START, "TIMER_DEL_UNIQKEY": "T+K"}, PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL),
    ({"TIMER_DELAY_MS": 5, "A": "x" * 32700}, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED),
])
def test_checks_of_the_put(properties, status):
    world = World()
    assert world.send(**properties)[1].status is status
    if properties.get("TIMER_DELIVER_MS") == START and status is PutMessageStatus.PUT_OK:
        assert len(world.records()) == 1


def test_thirty_days_and_ten_years_are_numbers_of_64_bits(caplog):
    config = dataclasses.replace(CONFIG, timer_max_delay_sec=10 * 366 * 86_400)
    assert not config.validate()
    world = World(config=config)
    for days in (25, 30, 3650):
        assert world.send(TIMER_DELAY_SEC=days * 86_400)[1].ok
    world.steps()
    assert world.timers.queue_offset == 3
    assert world.delivered() == {}
    assert "max_delay_s=316224000 rounds=5270400 window_s=60" in caplog.text


def test_switched_off_it_refuses():
    world = World(config=dataclasses.replace(CONFIG, timer_wheel_enable=False))
    assert world.send(TIMER_DELAY_SEC=1)[1].status is PutMessageStatus.WHEEL_TIMER_NOT_ENABLE


def test_congestion_rises_from_the_limit_to_twice_the_limit():
    """W18: the reference refuses nearly all just above the limit and few near twice of it."""
    world = World(config=dataclasses.replace(CONFIG, timer_congest_num_each_slot=100))
    refused = {}
    for num in (100, 110, 150, 190, 200):
        world.hook._slot_num = lambda _, num=num: num
        refused[num] = sum(
            world.send(TIMER_DELAY_SEC=9)[1].status is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
            for _ in range(300))
    assert refused[100] == 0
    assert refused[200] == 300
    assert 0 < refused[110] < refused[150] < refused[190] < 300


def test_far_timers_roll_and_keep_their_millisecond():
    world = World()
    world.send(TIMER_DELAY_MS=400_123)
    world.send(TIMER_DELIVER_MS=START + 200_456)
    world.send(TIMER_DELAY_MS=61_000)
    world.steps()
    world.run(410_000, step=250)  # roughly, then to the millisecond
    found = world.delivered()
    for key, due in world.due.items():
        assert len(found[key]) == 1
        assert 0 <= found[key][0] - due < 250
    assert world.timers.put_back.counters["timerRolled"] > 8


def test_a_rolled_delay_is_exact_to_the_millisecond():
    world = World()
    world.send(TIMER_DELAY_MS=90_123)
    world.run(90_000, step=100)
    world.run(500)
    exact(world)


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("wait", [0, 2500, 4300])
def test_a_recall_works_in_both_forms_until_the_timer_is_due(bare, wait):
    world = World()
    gone, _ = world.send(TIMER_DELIVER_MS=START + 4500)
    stays, _ = world.send(TIMER_DELIVER_MS=START + 4500)
    world.run(wait, step=50)
    assert world.recall(gone, bare=bare).ok
    world.run(3000 + 4500 - wait)
    assert world.delivered() == {stays: [START + 4500]}
    assert world.timers.put_back.counters["timerRecalled"] == 1


def test_the_unit_of_a_recall_is_marked_and_counts_down():
    world = World()
    key, _ = world.send(TIMER_DELIVER_MS=START + 400_000)
    world.recall(key)
    world.steps()
    magics = [m for _, units in world.timers.timer_log.scan() for m in units["magic"].tolist()]
    assert magics == [1 | MAGIC_ROLL, 1 | MAGIC_ROLL | MAGIC_DELETE]
    world.run(401_000, step=500)
    assert world.delivered() == {}


def test_a_timer_of_any_legal_size_passes():
    """W15: the reference's buffer is the body limit and some."""
    config = dataclasses.replace(CONFIG, max_message_size=900_000)
    world = World(config=config)
    world.send(body=b"x" * 900_000, TIMER_DELAY_MS=1500)
    world.send(TIMER_DELAY_MS=1600)
    world.run(2000)
    exact(world)


@pytest.mark.parametrize("delay_ms", [1500, 150_000])
@pytest.mark.parametrize("odd", [False, True])
def test_a_timer_with_the_longest_body_and_the_longest_properties_passes(odd, delay_ms):
    """W15: in 5.5.1 the reference's buffer is the body limit and 64 KiB."""
    config = dataclasses.replace(CONFIG, max_message_size=900_000)
    world = World(config=config, odd=odd)
    world.send(body=b"before", TIMER_DELAY_MS=delay_ms - 1)
    longest = next(
        length for length in range(32_767, 0, -1)
        if world.send(body=b"x" * 900_000, TIMER_DELAY_MS=delay_ms, FILLER="y" * length)[1].ok)
    assert longest > 32_400
    key = max(world.due)
    world.send(body=b"after", TIMER_DELAY_MS=delay_ms + 1)
    world.run(delay_ms + 500, step=50 if delay_ms > 2000 else 1)
    found = {message.unique_key: message for message in world.records()}
    assert set(found) == set(world.due)
    assert len(found[key].body) == 900_000
    assert len(found[key].properties["FILLER"]) == longest


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("odd", [False, True])
def test_a_put_back_that_fails_is_tried_for_ever(odd, count):
    """W17: the reference drops it after three tries."""
    world = World(odd=odd)
    for _ in range(count):
        world.send(TIMER_DELAY_MS=1000)
    world.run(900)
    append = world.store.append
    world.store.append = lambda *_, **__: PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)
    world.run(20_000, step=100)
    assert world.delivered() == {}
    assert world.timers.put_back.counters["timerPutFailed"] > 10
    assert world.timers.stats()["timerOverdue"] == count
    world.store.append = append
    world.run(600, step=100)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_the_figures_are_never_those_of_half_a_step():
    """Timers that a step has in hand were pending, but not overdue."""
    world = World()
    for _ in range(20):
        world.send(TIMER_DELAY_MS=1000)
    world.run(900)
    seen, threads, append = [], [], world.store.append

    def look():
        stats = world.timers.stats()
        seen.append((stats["timerPending"], stats["timerOverdue"]))

    def looked_at(*args, **kwargs):
        threads.append(thread := threading.Thread(target=look))
        thread.start()
        thread.join(0.2)
        return append(*args, **kwargs)

    world.store.append = looked_at
    world.run(200, step=100)
    for thread in threads:
        thread.join()
    assert seen
    assert all(pending == overdue for pending, overdue in seen), seen


def test_a_put_back_that_can_never_work_is_parked_with_its_reason():
    world = World()
    key, _ = world.send("a b", TIMER_DELAY_MS=1000)  # no record may have such a topic
    world.run(2000)
    (parked,) = world.records("%DLQ%TAILRACE_TIMER")
    assert parked.unique_key == key
    assert "topic" in parked.properties["TIMER_PARKED_REASON"]
    assert parked.properties["REAL_TOPIC"] == "a b"


def test_a_failed_append_to_the_timer_log_moves_nothing():
    world = World()
    world.send(TIMER_DELAY_MS=3000)
    while world.store.reput.step():
        pass

    def fail(number, name, path):
        if "/timerlog/" in path:
            raise OSError(errno.ENOSPC, "no space")

    world.files.before = fail
    assert not world.timers.enqueue_step()
    assert world.timers.queue_offset == 0
    assert world.timers.put_back.counters["timerAppendFailed"] == 1
    world.files.before = None
    world.run(4000)
    exact(world)


def test_the_switches_stop_and_start():
    world = World(config=dataclasses.replace(CONFIG, timer_stop_enqueue=True))
    world.send(TIMER_DELAY_MS=500)
    world.run(1000, step=100)
    assert (world.timers.queue_offset, world.delivered()) == (0, {})
    world.timers.config = dataclasses.replace(CONFIG, timer_stop_dequeue=True)
    world.run(1000, step=100)
    assert (world.timers.queue_offset, world.delivered()) == (1, {})
    world.timers.config = CONFIG
    world.timers.should_running_dequeue = False
    world.flush()
    before = world.timers.checkpoint.fields
    world.run(3000, step=100)
    assert world.delivered() == {}
    assert world.timers.checkpoint.fields.master_timer_queue_offset == before.master_timer_queue_offset
    world.timers.should_running_dequeue = True
    world.run(100, step=50)
    assert len(world.delivered()) == 1


def test_without_dequeue_the_read_time_is_that_of_timercheck():
    """Whoever writes it has delivered what is before: another broker."""
    world = World()
    for ms in (2_000, 9_000):
        world.send(TIMER_DELAY_MS=ms)
    world.run(500, step=50)
    world.flush()
    world.timers.should_running_dequeue = False
    fields = world.timers.checkpoint.fields
    world.run(5_600, step=100)
    assert world.timers.state.frontier_ms == fields.last_read_time_ms == START
    world.timers.checkpoint.write(fields._replace(last_read_time_ms=START + 5_000))
    world.run(1_000, step=100)
    assert world.timers.state.frontier_ms == START + 5_000
    assert world.timers.checkpoint.fields.last_read_time_ms == START + 5_000
    assert world.timers.checkpoint.fields.counter == fields.counter
    world.timers.should_running_dequeue = True
    world.run(4_000, step=50)
    assert [len(times) for times in world.delivered().values()] == [1]


def test_commit_log_timer_log_and_wheel_are_synced_in_this_order_before_the_checkpoint():
    world = World()
    synced = []
    world.files.before = lambda _number, name, path: (
        synced.append(path.removeprefix(f"{ROOT}/")) if name == "sync_data" else None)
    for _ in range(2):
        world.send(TIMER_DELAY_MS=60_000)
        world.steps()
        synced.clear()
        world.timers.flush_step()
        parts = [path.partition("/")[0].partition(".")[0] for path in synced]
        found = [part for part in dict.fromkeys(parts) if part in {
            "commitlog", "timerlog", "timerwheel"}]
        assert found == ["commitlog", "timerlog", "timerwheel"]
        checks = [number for number, path in enumerate(synced) if "timercheck" in path]
        assert min(checks) > max(n for n, part in enumerate(parts) if part in set(found))


def test_the_version_counts_only_what_moved():
    world = World()
    world.send(TIMER_DELAY_MS=60_000)
    world.steps()
    world.flush()
    counter = world.timers.checkpoint.fields.counter
    world.flush()
    world.flush()
    assert world.timers.checkpoint.fields.counter == counter
    world.clock.advance(1000)
    world.steps()
    world.flush()
    assert world.timers.checkpoint.fields.counter == counter + 1


def test_a_store_without_timers_gets_none_of_their_files():
    world = World()
    world.send()
    world.run(3000, step=500)
    world.close()
    assert not {"timerwheel", "timerlog"} & set(world.files.list(ROOT))


def test_a_clock_that_goes_back_an_hour_delivers_nothing_early_or_twice():
    world = World()
    for ms in (500, 3_000, 30_000):
        world.send(TIMER_DELAY_MS=ms)
    world.run(5_000, step=10)
    world.clock.advance(-3_600_000)
    world.steps()
    later, _ = world.send(TIMER_DELAY_MS=2_000)
    world.run(2_500, step=10)
    assert len(world.delivered()[later]) == 1
    world.run(3_640_000, step=500)
    found = world.delivered()
    assert {key: len(times) for key, times in found.items()} == dict.fromkeys(world.due, 1)
    assert all(found[key][0] >= due for key, due in world.due.items())


def put_back_at(world):
    """Wall time at which each timer was put back, once. Store times do not step back with the clock."""
    found = world.records()
    assert len({m.unique_key for m in found}) == len(found)
    return {m.unique_key: int(m.properties["TIMER_DEQUEUE_MS"]) for m in found}


@pytest.mark.parametrize("off", [-7_000, 0, 13_000])
@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("odd", [False, True])
def test_a_clock_set_back_by_the_length_of_the_ring_holds_nobody_up(off, kill, odd):
    """New slots need the places that hold the timers of a time that is far ahead by now."""
    world = World(odd=odd)
    ring = 2 * world.slots * world.timers.precision_ms
    before = [world.send(TIMER_DELAY_MS=ms)[0] for ms in range(20_000, 50_000, 900)]
    gone, _ = world.send(TIMER_DELAY_MS=41_000)
    world.recall(gone)
    world.run(2_000, step=50)
    world.clock.step_wall(off - ring)
    world.steps()
    now = world.clock.now_ms()
    after = [world.send(TIMER_DELIVER_MS=now + ms)[0] for ms in range(500, 59_000, 700)]
    never, _ = world.send(TIMER_DELAY_MS=30_100)
    world.recall(never)
    world.run(20_000, step=50)
    if kill:
        world.files = world.files.killed()
        world.open()
    world.run(41_000, step=50)
    found = put_back_at(world)
    assert set(found) == set(after)
    assert all(0 <= found[key] - world.due[key] <= 50 for key in after)
    world.run(ring, step=200)
    found = put_back_at(world)
    assert set(found) == {*before, *after}
    assert all(0 <= found[key] - world.due[key] <= 200 for key in before)


def test_way_is_made_for_no_slot_whose_timers_are_only_overdue():
    world = World()
    world.send(TIMER_DELAY_MS=20_000)
    world.steps()
    timers, now = world.timers, START
    ring = 2 * world.slots * timers.precision_ms
    for slot_time in (START + 20_000, START + 21_000, START + 20_000 + ring):
        assert not timers.enqueue.make_way(slot_time, now)


def test_a_clock_that_goes_forward_a_day_delivers_all_once():
    world = World()
    for ms in (500, 30_000, 50_000_000):
        world.send(TIMER_DELAY_MS=ms)
    world.run(1_000, step=10)
    world.clock.advance(86_400_000)
    world.run(5_000, step=100)
    assert {key: len(times) for key, times in world.delivered().items()} == dict.fromkeys(world.due, 1)


def test_the_progress_line_comes_at_its_interval_if_something_has_moved(caplog):
    world = World()
    for ms in (500, 30_000, 40_000):
        world.send(TIMER_DELAY_MS=ms)
    with caplog.at_level("INFO", "tailrace.timer.timer_message_store"):
        world.run(25_000, step=250)
    lines = [r.getMessage() for r in caplog.records if "timer progress" in r.getMessage()]
    assert len(lines) == 1  # after 10 s; nothing has changed after 20 s
    assert "offset_behind=0 to_look_at=0 waiting=0 put_back=1 congestion=2" in lines[-1]
    with caplog.at_level("INFO", "tailrace.timer.timer_message_store"):
        world.run(10_000, step=250)
    assert "put_back=2 congestion=1" in caplog.records[-1].getMessage()


def test_the_share_that_congestion_refuses_is_what_is_above_the_limit():
    """At 100 + n of 100 allowed, n sends of 100 are refused: those whose random number is below n."""
    world = World(config=dataclasses.replace(CONFIG, timer_congest_num_each_slot=100))
    for num in (101, 150, 199):
        world.hook._slot_num = lambda _, num=num: num
        refused = 0
        for number in range(100):
            world.hook._entropy = SimpleNamespace(randrange=lambda n, number=number: number % n)
            refused += not world.send(TIMER_DELAY_SEC=9)[1].ok
        assert refused == num - 100


def test_a_refusal_of_long_properties_names_the_length_that_passes():
    world = World()
    result = world.send(TIMER_DELAY_MS=5, A="x" * 32_700)[1]
    length, most = map(int, re.findall(r"\d+", result.remark))
    room = most - (length - 32_700)
    assert world.send(TIMER_DELAY_MS=5, A="x" * room)[1].ok
    result = world.send(TIMER_DELAY_MS=5, A="x" * (room + 1))[1]
    assert result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert f"properties: {most + 1} bytes" in result.remark
