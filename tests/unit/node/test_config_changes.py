"""A change of a state file is durable before it shows, and a refused one leaves no trace."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading

import pytest

from tailrace import Message, MessageStore
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import StoreError
from tailrace.namesrv.kv_config import KVConfigManager
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.testing import CrashFileSystem, Fault, FaultyFileSystem, SimClock

ROOM = BrokerConfig(max_topics=20, max_subscription_groups=3)


def topics(files):
    return TopicConfigManager(files, "/c", ROOM, SimClock())


def groups(files):
    return SubscriptionGroupManager(files, "/c", ROOM, SimClock())


def kv(files):
    return KVConfigManager(files, "/c")


def offsets(files):
    return ConsumerOffsetManager(files, "/c", SimClock(), limit=4)


def before_topics(manager):
    manager.update(TopicConfig(topic_name="old", attributes={"a": "b"}))


def before_groups(manager):
    manager.update_all([SubscriptionGroupConfig(group_name="old")])


def before_offsets(manager):
    manager.commit("g", "old", 0, 5)
    manager.persist()


CHANGES = {
    "create a topic": (topics, before_topics, lambda m: m.create_if_missing("new", 1)),
    "replace a topic": (
        topics, before_topics, lambda m: m.update(TopicConfig(topic_name="old", perm=2))),
    "delete a topic": (topics, before_topics, lambda m: m.delete("old")),
    "system topics": (topics, before_topics, lambda m: m.ensure_system_topics()),
    "create a group": (groups, before_groups, lambda m: m.find_or_create("new")),
    "replace a group": (groups, before_groups, lambda m: m.update_all(
        [SubscriptionGroupConfig(group_name="old", retry_max_times=1)])),
    "delete a group": (groups, before_groups, lambda m: m.delete("old")),
    "set a value": (kv, lambda m: m.change(m.setting("n", "k", "v")), lambda m: m.change(m.setting("n", "k", "w"))),
    "delete a value": (kv, lambda m: m.change(m.setting("n", "k", "v")), lambda m: m.change(m.deletion("n", "k"))),
    "reset offsets": (offsets, before_offsets, lambda m: m.assign_reset("g", "old", {0: 1, 3: 2})),
    "remove a topic's offsets": (offsets, before_offsets, lambda m: m.remove_topics({"old"})),
    "remove a group's offsets": (offsets, before_offsets, lambda m: m.remove_groups({"g"})),
}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_write_fails_anywhere_leaves_table_version_and_file_as_they_were(change, error):
    make, prepare, apply = CHANGES[change]
    refused = 0
    for number in itertools.count():
        disk = CrashFileSystem()
        prepare(make(disk))
        files = FaultyFileSystem.failing(disk, Fault(number, error))
        manager = make(files)
        manager.load()
        seen, file = manager.to_json(), make(disk)
        try:
            apply(manager)
        except OSError as failed:
            assert failed.errno == error
            refused += 1
        else:
            break
        assert manager.to_json() == seen
        file.load()
        assert file.to_json() == seen, "a restart shows what clients saw"
    assert refused >= 5
    file.load()
    assert file.to_json() == manager.to_json() != seen


def test_after_a_full_disk_or_want_of_descriptors_changes_go_on_and_after_a_failed_sync_of_the_directory_they_do_not():
    for error, goes_on in (
        (errno.ENOSPC, True), (errno.EMFILE, True), (errno.ENFILE, True), (errno.EIO, False),
    ):
        disk = CrashFileSystem()
        before_topics(topics(disk))
        files = FaultyFileSystem(
            disk, lambda _, name, path, left=[error]: left.pop() if left and name == "sync_dir" else 0)
        manager = topics(files)
        manager.load()
        with pytest.raises(OSError, match=os.strerror(error)):
            manager.create_if_missing("new", 1)
        if goes_on:
            assert manager.create_if_missing("new", 1).topic_name == "new"
        else:
            with pytest.raises(OSError, match="no change is taken until a restart"):
                manager.create_if_missing("new", 1)
            assert manager.select("new") is None


class Gate:
    """Files whose next sync waits until the test opens the gate."""

    def __init__(self, files):
        self.files = files
        self.reached, self.opened = threading.Event(), threading.Event()
        self.error = None

    def __getattr__(self, name):
        return getattr(self.files, name)

    def sync_dir(self, path):
        self.reached.set()
        assert self.opened.wait(10)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.files.sync_dir(path)


def test_a_change_is_visible_only_when_it_is_durable_and_waiting_changes_are_written_together():
    gate = Gate(CrashFileSystem())
    manager = topics(gate)
    first = threading.Thread(target=manager.create_if_missing, args=("first", 1))
    first.start()
    assert gate.reached.wait(10)
    assert manager.select("first") is None
    assert manager.data_version.counter == 0
    later = [manager.submit(manager.creation(TopicConfig(topic_name=f"t{i}"))) for i in range(10)]
    others = [threading.Thread(target=manager.write_queued) for _ in range(3)]
    for thread in others:
        thread.start()
    gate.opened.set()
    for thread in (first, *others):
        thread.join(10)
    assert [done.result().topic_name for done in later] == [f"t{i}" for i in range(10)]
    assert len(manager.table) == 11
    assert manager.data_version.counter == 11
    assert manager.writes == 2


def test_a_change_that_fails_does_not_undo_a_concurrent_one():
    gate = Gate(CrashFileSystem())
    gate.error = OSError(errno.ENOSPC, "no room")
    manager = topics(gate)
    refused = manager.submit(manager.creation(TopicConfig(topic_name="refused")))
    first = threading.Thread(target=manager.write_queued)
    first.start()
    assert gate.reached.wait(10)
    taken = manager.submit(manager.creation(TopicConfig(topic_name="taken")))
    second = threading.Thread(target=manager.write_queued)
    second.start()
    gate.opened.set()
    first.join(10)
    second.join(10)
    with pytest.raises(OSError, match="no room"):
        refused.result(10)
    assert taken.result(10).topic_name == "taken"
    again = topics(gate.files)
    again.load()
    assert [t.topic_name for t in again.items()] == [t.topic_name for t in manager.items()] == ["taken"]
    assert again.data_version.counter == manager.data_version.counter == 1


def test_a_deletion_changes_all_its_files_or_none():
    for failing in ("topics.json", "consumerOffset.json", "note"):
        disk = CrashFileSystem()
        before_topics(topics(disk))
        before_offsets(offsets(disk))
        files = FaultyFileSystem.failing(disk, Fault(0, errno.ENOSPC, path=f"{failing}.tmp"))
        tables, consumed = topics(files), offsets(files)
        tables.load()
        consumed.load()
        seen = tables.to_json(), consumed.to_json()

        def note(failing=failing):
            if failing == "note":
                raise OSError(errno.ENOSPC, "no room")

        with pytest.raises(OSError):
            tables.delete("old", also=lambda note=note, consumed=consumed: consumed.remove_topics({"old"}, note))
        assert (tables.to_json(), consumed.to_json()) == seen
        for made, shown in zip((topics(disk), offsets(disk)), seen, strict=True):
            made.load()
            assert made.to_json() == shown
    tables, consumed = topics(disk), offsets(disk)
    tables.load()
    consumed.load()
    assert tables.delete("old", also=lambda: consumed.remove_topics({"old"}))
    assert (consumed.entries(), tables.items()) == ([], [])


def test_offsets_committed_while_others_are_reset_are_kept():
    gate = Gate(CrashFileSystem())
    manager = offsets(gate)
    manager.commit("g", "t", 0, 1)
    reset = threading.Thread(target=manager.assign_reset, args=("g", "t", {1: 9}))
    reset.start()
    assert gate.reached.wait(10)
    manager.commit("g", "t", 0, 2)
    gate.opened.set()
    reset.join(10)
    assert sorted(manager.entries()) == [("t", "g", 0, 2), ("t", "g", 1, 9)]
    assert manager.take_reset("g", "t", 1) == 9


def test_there_are_limits_for_topics_groups_and_offsets_that_are_named():
    files = CrashFileSystem()
    many = topics(files)
    many.update_all([TopicConfig(topic_name=f"t{i}") for i in range(20)])
    with pytest.raises(StoreError, match="over the limit maxTopics=20; delete topics or raise maxTopics"):
        many.create_if_missing("more", 1)
    many.update(TopicConfig(topic_name="t3", perm=2))
    many.delete("t4")
    many.create_if_missing("more", 1)
    some = groups(files)
    some.update_all([SubscriptionGroupConfig(group_name=f"g{i}") for i in range(2)])
    with pytest.raises(StoreError, match="2 consumer groups, 2 more are over the limit maxSub"):
        some.update_all([SubscriptionGroupConfig(group_name=name) for name in ("x", "y")])
    assert len(some.items()) == 2
    consumed = offsets(files)
    for queue_id in range(4):
        consumed.commit("g", "t", queue_id, 1)
    consumed.commit("g", "t", 0, 2)
    for more in (lambda: consumed.commit("h", "t", 0, 1), lambda: consumed.assign_reset("g", "t", {9: 1})):
        with pytest.raises(StoreError, match="over the limit maxConsumerOffsets=4"):
            more()
    assert "h" not in str(consumed.to_json())
    consumed.remove_topics({"t"})
    consumed.commit("h", "t", 0, 1)


def test_a_full_table_of_offsets_is_not_counted_for_each_commit():
    """A pop of a topic with 16,384 queues commits as many; with a table of a million each count takes milliseconds."""
    counts = []

    class Counted(dict):
        def values(self):
            counts.append(len(self))
            return super().values()

    consumed = offsets(CrashFileSystem())
    consumed._table = Counted()
    for queue_id in range(100):
        with contextlib.suppress(StoreError):
            consumed.commit("g", "t", queue_id, 1)
    assert len(consumed.entries()) == 4
    assert counts == []


def test_a_large_file_has_the_same_text_as_one_that_is_written_in_one_piece(tmp_path):
    files = CrashFileSystem()
    manager = TopicConfigManager(files, "/c", BrokerConfig(), SimClock())
    manager.update_all([TopicConfig(topic_name=f"t{i:05}") for i in range(2500)])
    file = files.open("/c/topics.json")
    text = file.pread(file.size(), 0)
    assert text.decode() == json.dumps(manager.to_json(), indent=2, sort_keys=True)


@pytest.mark.parametrize("error", [0, errno.ENOSPC])
def test_topics_that_only_have_queues_are_there_after_an_open_whatever_the_limit_and_the_disk(error):
    disk = CrashFileSystem()
    small = StoreConfig(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=16, max_index_num=64)
    with MessageStore.open(
            "/s", config=small, parts=StoreParts(file_system=disk, services=False, clock=SimClock())) as store:
        for name in ("a", "b", "c"):
            store.put(Message(topic=name, body=b"x"))
    for name in ("topics.json", "topics.json.bak"):
        disk.remove(f"/s/config/{name}")
    files = FaultyFileSystem(disk, lambda _, name, path: error if path.endswith("topics.json.tmp") else 0)
    with MessageStore.open("/s", config=small, broker_config=BrokerConfig(max_topics=1),
                           parts=StoreParts(file_system=files, services=False, clock=SimClock())) as store:
        assert {"a", "b", "c"} <= set(store.topics.table)
        assert store.topics.writes == (0 if error else 1)
        with pytest.raises(StoreError, match="over the limit maxTopics=1"):
            store.topics.create_if_missing("d", 1)


def test_a_listener_of_changes_sees_them_with_their_version():
    # A name server that got the topics with the old version would pass them over.
    manager = topics(CrashFileSystem())
    seen = []
    manager.on_change(lambda: seen.append(
        (manager.to_json()["dataVersion"]["counter"], list(manager.table))))
    manager.update(TopicConfig(topic_name="a"))
    manager.delete("a")
    assert seen == [(1, ["a"]), (2, [])]
