"""Everything that belongs to a topic or a group is deleted with it, in every way to delete, all of it or nothing."""

from __future__ import annotations

import errno
import json

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import FatalStorageError, StoreError, UnknownTopicError
from tailrace.node import deletion
from tailrace.node.config_manager import read_config, write_config
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash
from tailrace.testing.faulty_filesystem import FaultyFileSystem

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=100, max_hash_slot_num=16, max_index_num=20,
    commit_log_allocate_step=4096, mapped_file_size_timer_log=52 * 40)
OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")


@pytest.fixture
def files():
    return CrashFileSystem()


def opened(files):
    return MessageStore.open("/s", config=CONFIG, parts=StoreParts(clock=SimClock(), file_system=files, services=False))


def state(files, name, **members):
    write_config(files, "/s/config", name, json.dumps(members).encode())


def keys(files, name, member):
    return sorted((read_config(files, f"/s/config/{name}") or {}).get(member, {}))


def groups(files, *names):
    state(files, "subscriptionGroup.json", subscriptionGroupTable={name: {"groupName": name} for name in names})


def fill(store, *topics):
    for topic in topics:
        store.topics.update(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
        store.put(Message(topic=topic, body=topic.encode()))
    store.wait_dispatched()


def topics_of(store):
    queues = {topic for topic, *_ in store.queues()}
    configs = {config.topic_name for config in store.topics.items() if not store.topics.is_system_topic(
        config.topic_name)}
    assert queues <= configs, "a queue without a topic"
    return configs


def test_names_are_looked_at_in_steps_with_pauses_for_other_threads(files, monkeypatch):
    monkeypatch.setattr(deletion, "STEP", 5)
    pauses = []
    with opened(files) as store:
        fill(store, *(f"t{number}" for number in range(20)))
        monkeypatch.setattr(store.deletion.state, "pause", lambda: pauses.append(None))
        assert store.delete_topics(["t1"]) == (["t1"], [])
    assert len(pauses) >= 3 * 20 // 5, "of the queues, for Lite topics and for retry topics"


def test_offsets_pops_expressions_and_modes_go_with_the_topic(files):
    with opened(files) as store:
        fill(store, "t", "u")
    for name in OFFSETS:
        state(files, name, offsetTable={"t@g": {"0": 1}, "u@g": {"0": 1}}, lmqOffsetTable={"t@%LMQ%g": 1})
    state(files, "consumerOrderInfo.json", table={"t@g": {}, "u@g": {}})
    state(files, "consumerFilter.json", filterDataByTopic={"t": {}, "u": {}})
    state(files, "messageRequestMode.json", messageRequestModeMap={"t": {}, "u": {}}, newer=1)
    with opened(files) as store:
        assert store.delete_topics(["t"]) == (["t"], [])
        assert topics_of(store) == {"u"}
    for name in OFFSETS:
        assert keys(files, name, "offsetTable") == ["u@g"]
    assert keys(files, "lmqConsumerOffset.json", "lmqOffsetTable") == []
    assert keys(files, "consumerOrderInfo.json", "table") == ["u@g"]
    assert keys(files, "consumerFilter.json", "filterDataByTopic") == ["u"]
    assert keys(files, "messageRequestMode.json", "messageRequestModeMap") == ["u"]
    assert read_config(files, "/s/config/messageRequestMode.json")["newer"] == 1


@pytest.mark.parametrize("lmq", [False, True])
def test_offsets_are_forgotten_in_the_file_that_a_broker_reads_next(files, lmq):
    with opened(files) as store:
        fill(store, "t")
    offsets = ConsumerOffsetManager(files, "/s/config", SystemClock(), lmq=lmq)
    offsets.commit("g", "t", 0, 7)
    offsets.persist()
    with opened(files) as store:
        store.delete_topics(["t"])
    again = ConsumerOffsetManager(files, "/s/config", SystemClock(), lmq=lmq)
    again.load()
    assert again.query("g", "t", 0) == -1


def test_pop_retry_topics_of_known_groups_go_with_the_topic(files):
    mine = ["%RETRY%g_t", "%RETRY%g+t", "%RETRY%by-offsets_t"]
    others = ["%RETRY%stranger_t", "%RETRY%g_other_t", "%RETRY%g", "%DLQ%g", "%RETRY%g_tt"]
    with opened(files) as store:
        fill(store, "t", "other_t", "tt", *mine, *others)
    groups(files, "g")
    state(files, OFFSETS[0], offsetTable={"x@by-offsets": {"0": 1}, "%RETRY%g_t@g": {"0": 1}})
    with opened(files) as store:
        assert store.delete_topics(["t"]) == (sorted(["t", *mine]), [])
        assert topics_of(store) == {"other_t", "tt", *others}
    assert keys(files, OFFSETS[0], "offsetTable") == ["x@by-offsets"]


def test_a_retry_topic_of_two_pairs_is_kept_and_named(files):
    with opened(files) as store:
        fill(store, "x", "a_x", "%RETRY%g_a_x")
    groups(files, "g", "g_a")
    with opened(files) as store:
        done = store.delete_topics(["x"])
        assert done == (["x"], ["%RETRY%g_a_x"])
        assert done.reasons == ["%RETRY%g_a_x, the retry topic of another topic or group as well"]
        assert store.delete_topics(["a_x"]) == (["%RETRY%g_a_x", "a_x"], [])


def test_a_group_takes_its_retries_and_dead_letters_along(files):
    mine = ["%RETRY%g", "%DLQ%g", "%RETRY%g_t", "%RETRY%g+t"]
    with opened(files) as store:
        fill(store, "t", *mine, "%RETRY%gg", "%RETRY%h_t")
    groups(files, "g", "gg", "h")
    with opened(files) as store:
        called = []
        assert store.deletion.delete_groups({"g"}, lambda: called.append(1)).topics == sorted(mine)
        assert called == [1]
        assert topics_of(store) == {"t", "%RETRY%gg", "%RETRY%h_t"}
        assert store.deletion.delete_groups({"nobody"}, lambda: called.append(2)) == ([], [])
        assert called == [1, 2]


def test_a_retry_topic_goes_with_the_last_of_its_groups(files):
    with opened(files) as store:
        fill(store, "x", "a_x", "%RETRY%g_a_x", "%RETRY%g", "%RETRY%g_a+x", "%RETRY%h_%RETRY%g_a+x")
    groups(files, "g", "g_a", "h")
    with opened(files) as store:
        assert store.deletion.delete_groups({"g"}, lambda: None) == (["%RETRY%g"], ["%RETRY%g_a_x"])
        fill(store, "%RETRY%g")
        assert store.deletion.delete_groups({"g", "g_a"}, lambda: None) == (
            ["%RETRY%g", "%RETRY%g_a+x", "%RETRY%g_a_x"], [])
        assert topics_of(store) == {"x", "a_x", "%RETRY%h_%RETRY%g_a+x"}
        fill(store, "%RETRY%g_a+x")
        assert store.delete_topics(["%RETRY%g_a+x"]).topics == ["%RETRY%g_a+x", "%RETRY%h_%RETRY%g_a+x"]


def test_unused_queues_take_their_retries_along(files):
    with opened(files) as store:
        fill(store, "t", "%RETRY%g_t", "u")
        store.topics.delete("t")
        groups(files, "g")
        assert store.deletion.delete_unused().topics == ["%RETRY%g_t", "t"]
        assert topics_of(store) == {"u"}


def test_a_system_topic_is_not_deleted(files):
    with opened(files) as store:
        fill(store, "t")
        with pytest.raises(StoreError, match="SCHEDULE_TOPIC_XXXX: a system topic"):
            store.delete_topics(["t", "SCHEDULE_TOPIC_XXXX"])
        assert topics_of(store) == {"t"}


def test_a_deletion_out_of_the_dispatch_is_a_programming_error(files):
    with opened(files) as store:
        fill(store, "t")
        append = store.inner.queues.get("t", 0).append
        store.inner.queues.get("t", 0).append = lambda *_: store.delete_topics(["t"])
        store.put(Message(topic="t", body=b"x"))
        with pytest.raises(AssertionError, match="wait for itself"):
            store.inner.reput.step()
        store.inner.queues.get("t", 0).append = append
        store.wait_dispatched()
        assert [m.body for m in store.read("t")] == [b"t", b"x"]


def scene(files):
    """A directory with two topics, offsets and a mapping."""
    with opened(files) as store:
        fill(store, "t", "%RETRY%g_t", "u")
        store.topics.mappings.change(lambda draft: None)
    groups(files, "g")
    for name in OFFSETS:
        state(files, name, offsetTable={"t@g": {"0": 1}, "%RETRY%g_t@g": {"0": 1}, "u@g": {"0": 1}})
    files.sync_dir("/s/config")


def bodies_of(store, topic):
    """The bodies of a topic; none of one that is unknown, because it was deleted."""
    try:
        return [m.body for m in store.read(topic)]
    except UnknownTopicError:
        return []


def found(files):
    """What an open finds: topics, bodies, offsets; and that a new message has an offset of its own."""
    with opened(files) as store:
        names = topics_of(store)
        bodies = {topic: bodies_of(store, topic) for topic in ("t", "%RETRY%g_t", "u")}
    offsets = [keys(files, name, "offsetTable") for name in OFFSETS]
    return names, bodies, offsets


BEFORE = ({"t", "%RETRY%g_t", "u"}, {"t": [b"t"], "%RETRY%g_t": [b"%RETRY%g_t"], "u": [b"u"]},
          [["%RETRY%g_t@g", "t@g", "u@g"]] * 2)
AFTER = ({"u"}, {"t": [], "%RETRY%g_t": [], "u": [b"u"]}, [["u@g"]] * 2)


def attempt(files, store, number, act):
    """Do something that crashes before an operation; return whether it was done."""
    first = files.operations

    def before(at, *_):
        if at >= first + number:
            raise SimulatedCrash

    files.before = before
    try:
        act(store)
    except SimulatedCrash:
        return False
    finally:
        files.before = None
    return True


@pytest.mark.parametrize("how", ["killed", 0, 50, 100])
def test_after_a_crash_at_any_moment_nothing_is_deleted_or_all_of_it(how):
    seen, number, done = set(), 0, False
    while not done:
        files = CrashFileSystem()
        scene(files)
        store = opened(files)
        store.flush()
        done = attempt(files, store, number, lambda store: store.delete_topics(["t"]))
        after = files.killed() if how == "killed" else files.power_lost(SeededEntropy(number), how)
        result = found(after)
        assert result in (BEFORE, AFTER), number
        assert result == AFTER or not done
        seen.add(result == AFTER)
        number += 1
    assert number > 30
    assert seen == {False, True}


def test_after_a_failure_of_any_operation_nothing_is_deleted_or_all_of_it():
    number, refused, accepted = 0, 0, 0
    while True:
        disk = CrashFileSystem()
        scene(disk)
        at = -1
        files = FaultyFileSystem(disk, lambda n, *_: errno.ENOSPC if n == at else 0)  # noqa: B023
        store = opened(files)
        at = files.operations + number
        try:
            store.delete_topics(["t"])
            done = True
        except (OSError, FatalStorageError):
            done = False
        is_over, at = files.operations <= at, -1
        assert (bodies_of(store, "t") == []) == done, number
        assert (store.topics.select("t") is None) == done, number
        refused, accepted = refused + (not done), accepted + done
        store.close()
        assert found(disk) == (AFTER if done else BEFORE), number
        if is_over:
            break
        number += 1
    assert refused > 5
    assert accepted > 1
