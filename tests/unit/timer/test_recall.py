"""A request to delete names a timer of its own topic, in the form of either release, and no other."""

import dataclasses

import pytest
from timer_world import CONFIG, START, World

from tailrace.formats.recall_handle import RecallHandle
from tailrace.timer.pending import pending_timers
from tailrace.timer.properties import Identity, delete_keys, named_by
from tailrace.timer.recall import recall_messages

DUE = START + 4500


def twins(world, *, key="SAME", topics=("A", "B"), due=DUE):
    """Timers of different topics with one unique key, due at the same moment."""
    for topic in topics:
        assert world.send(topic, UNIQ_KEY=key, TIMER_DELIVER_MS=due)[1].ok


def ask(world, topic, text, due=DUE):
    """A request to delete, as a producer can write it."""
    number = world.number
    assert world.send(topic, body=b"0", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=text,
                      UNIQ_KEY=f"R{number}")[1].ok


def came(world, topics=("A", "B")):
    return {topic: sorted(world.delivered(topic)) for topic in topics}


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("text", ["SAME", "A+SAME"])
@pytest.mark.parametrize("wait", [0, 2500, 4300])
def test_a_recall_takes_no_timer_of_another_topic(text, wait, odd):
    world = World(odd=odd)
    twins(world)
    world.run(wait, step=50)
    ask(world, "A", text)
    world.run(8000 - wait, step=10)
    assert came(world) == {"A": [], "B": ["SAME"]}
    assert world.timers.put_back.counters["timerRecalled"] == 1


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("wait", [0, 4300])
def test_a_key_that_names_another_topic_takes_nothing(wait, odd):
    """The handle of a topic one may write to, with a key made up for a topic one may not."""
    world = World(odd=odd)
    twins(world)
    world.run(wait, step=50)
    ask(world, "A", "B+SAME")
    world.run(8000 - wait, step=10)
    assert came(world) == {"A": ["SAME"], "B": ["SAME"]}


def test_a_key_with_a_plus_in_it_is_found_in_both_forms():
    for text in ("x+SAME", "A+x+SAME"):
        world = World()
        twins(world, key="x+SAME")
        ask(world, "A", text)
        world.run(6000, step=10)
        assert came(world) == {"A": [], "B": ["x+SAME"]}
    # A key that begins with its own topic: the bare form of one is the whole form of the other.
    world = World()
    twins(world, key="A+SAME", topics=("A",))
    ask(world, "A", "A+SAME")
    world.run(6000, step=10)
    assert came(world) == {"A": [], "B": []}


@pytest.mark.parametrize("text", ["SAME", "A+SAME"])
def test_a_recall_of_a_far_timer_stays_in_its_topic(text):
    world = World()
    due = START + 400_500
    twins(world, due=due)
    ask(world, "A", text, due)
    world.run(403_000, step=500)
    assert came(world) == {"A": [], "B": ["SAME"]}


@pytest.mark.parametrize("form", ["SAME", "A+SAME"])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("rebuild", [False, True])
def test_requests_of_a_directory_of_either_setting_are_obeyed_after_a_crash(form, odd, rebuild):
    """A Java broker wrote one of the forms, according to appendTopicForTimerDeleteKey."""
    world = World(odd=odd)
    twins(world)
    ask(world, "A", form)
    world.steps()
    world.flush()
    world.files = world.files.killed()
    if rebuild:
        world.files.remove("/store/config/timercheck")
    world.clock.advance(1000)
    world.open()
    world.run(6000, step=10)
    assert came(world) == {"A": [], "B": ["SAME"]}


@pytest.mark.parametrize("odd", [False, True])
def test_a_request_in_the_timer_queue_is_obeyed_after_an_open_that_is_too_late(odd):
    """T6: nothing is delivered before what was in the timer queue at the open is in the wheel."""
    world = World(odd=odd)
    twins(world)
    world.steps()
    world.flush()
    ask(world, "A", "SAME")
    world.store.flush_commit_log.flush()
    world.files = world.files.killed()
    world.clock.advance(10_000)
    world.open()
    assert not world.timers.dequeue_step(), "the request is not in the wheel yet"
    world.run(2000, step=10)
    assert came(world) == {"A": [], "B": ["SAME"]}


@pytest.mark.parametrize("text", ["SAME", "A+SAME", "B+SAME"])
def test_the_list_of_pending_timers_leaves_out_what_is_recalled_in_its_topic(text):
    world = World()
    twins(world)
    ask(world, "A", text)
    world.steps()
    left = {timer.topic for timer in pending_timers(world.timers)}
    assert left == ({"A", "B"} if text == "B+SAME" else {"B"})


def test_a_request_names_timers_of_its_topic():
    def named(topic, text):
        return {(i.real_topic, i.unique_key) for i in named_by(
            {"REAL_TOPIC": topic, "TIMER_DEL_UNIQKEY": text}, 7)}

    assert named("A", "K") == {("A", "K")}
    assert named("A", "A+K") == {("A", "A+K"), ("A", "K")}
    assert named("A", "B+K") == {("A", "B+K")}
    assert named_by({}, 7) == (Identity("", "", 7),)


@pytest.mark.parametrize(("append_topic", "keys"), [
    (False, ["A+K", "K"]),  # for brokers of any release
    (True, ["A+K"]),  # what appendTopicForTimerDeleteKey makes 5.5.0 look for
])
def test_a_recall_is_written_in_the_forms_of_the_setting(append_topic, keys):
    assert list(delete_keys("A", "K", append_topic=append_topic)) == keys
    made = recall_messages(
        RecallHandle("A", "broker-a", START + 1, "K"), START, b"", append_topic=append_topic)
    assert [f"TIMER_DEL_UNIQKEY\x01{key}\x02".encode() in m.properties
            for key, m in zip(keys, made, strict=True)] == [True] * len(keys)
    assert {m.topic for m in made} == {"A"}


def test_the_setting_has_the_name_and_the_default_of_the_reference():
    assert CONFIG.append_topic_for_timer_delete_key is False
    changed = dataclasses.replace(CONFIG, append_topic_for_timer_delete_key=True)
    assert not changed.validate()


@pytest.mark.parametrize("odd", [False, True])
def test_a_recall_of_the_only_timer_that_waits_keeps_the_others_of_a_slot_that_is_begun_again(odd):
    """The clock steps back while the slot waits for one timer; then that timer is recalled, and others come."""
    world = World(odd=odd)
    assert world.send("A", UNIQ_KEY="SAME", TIMER_DELIVER_MS=DUE)[1].ok
    world.run(4300, step=50)
    assert START + 4000 in world.timers.due.slots
    world.clock.advance(-3000)
    world.steps()
    ask(world, "A", "SAME")
    assert world.send("B", UNIQ_KEY="LATER", TIMER_DELIVER_MS=DUE + 100)[1].ok
    world.run(8000, step=50)
    assert came(world) == {"A": [], "B": ["LATER"]}
