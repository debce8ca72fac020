"""State files: what survives a crash, a Java broker's dialect, unknown members."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

import tailrace
from tailrace.config import BrokerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.node import consumer_offset
from tailrace.node.config_manager import read_config, write_config
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import (
    TopicConfig,
    TopicConfigManager,
    merged_attributes,
    validate_topic,
)


class Clock:
    def now_ms(self):
        return 1234

    def monotonic_ns(self):
        return 0


class StoppingFileSystem:
    """The real files, until operation ``stop_at`` raises."""

    def __init__(self, stop_at):
        self.left = stop_at
        self.real = OsFileSystem()

    def __getattr__(self, name):
        method = getattr(self.real, name)
        if name not in {"open", "rename", "sync_dir", "remove"}:
            return method

        def counted(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise OSError("stopped")
            return method(*args, **kwargs)

        return counted


@pytest.fixture
def files():
    return OsFileSystem()


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "config")


def test_a_text_and_the_one_before_it_are_kept(files, directory):
    write_config(files, directory, "x.json", b'{"n":1}')
    write_config(files, directory, "x.json", b'{"n":2}')
    assert read_config(files, f"{directory}/x.json") == {"n": 2}
    assert read_config(files, f"{directory}/x.json.bak") == {"n": 1}
    assert files.list(directory) == ["x.json", "x.json.bak"]


def test_a_shorter_text_leaves_nothing_of_a_longer_one(files, directory):
    for stop_at in range(6):
        write_config(files, directory, "x.json", b'{"n":"%s"}' % (b"long" * 50))
        try:
            write_config(StoppingFileSystem(stop_at), directory, "x.json", b'{"m":"longer"}')
        except OSError:
            pass
        write_config(files, directory, "x.json", b'{"n":1}')
        assert read_config(files, f"{directory}/x.json") == {"n": 1}


def test_whatever_operation_fails_a_whole_text_is_read(files, directory):
    seen = set()
    for stop_at in range(8):
        write_config(files, directory, "x.json", b'{"n":1}')
        write_config(files, directory, "x.json", b'{"n":2}')
        try:
            write_config(StoppingFileSystem(stop_at), directory, "x.json", b'{"n":3}')
        except OSError:
            pass
        found = read_config(files, f"{directory}/x.json")
        assert found in ({"n": 2}, {"n": 3})
        seen.add(found["n"])
    assert seen == {2, 3}


@pytest.mark.parametrize("damage", [b"", b"  \n", b"\0\0\0\0", b'{"n":', b"[]"])
def test_a_damaged_file_falls_back_to_its_backup_and_does_not_replace_it(files, directory, damage):
    write_config(files, directory, "x.json", b'{"n":1}')
    write_config(files, directory, "x.json", b'{"n":2}')
    file = files.open(f"{directory}/x.json", writable=True)
    file.truncate(0)
    file.pwrite(damage, 0)
    file.close()
    assert read_config(files, f"{directory}/x.json") == {"n": 1}
    write_config(files, directory, "x.json", b'{"n":3}')
    assert read_config(files, f"{directory}/x.json.bak") == {"n": 1}


def test_without_a_file_and_a_backup_there_is_no_config(files, directory):
    assert read_config(files, f"{directory}/x.json") is None


def topics(files, directory, **config):
    manager = TopicConfigManager(files, directory, BrokerConfig(**config), Clock())
    manager.load()
    return manager


def test_topics_survive_a_restart_with_members_we_do_not_know(files, directory, tmp_path):
    files.makedirs(directory)
    (tmp_path / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":7},"future":[1],'
        '"topicConfigTable":{"T":{"attributes":{"message.type":"FIFO"},"order":true,"perm":6,'
        '"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
        '"writeQueueNums":2,"newMember":{"x":1}}}}'
    )
    manager = topics(files, directory)
    config = manager.select("T")
    assert (config.read_queue_nums, config.write_queue_nums, config.order) == (4, 2, True)
    manager.update(TopicConfig(topic_name="U"))
    written = json.loads((tmp_path / "config" / "topics.json").read_text())
    assert written["future"] == [1]
    assert written["topicConfigTable"]["T"]["newMember"] == {"x": 1}
    assert written["topicConfigTable"]["T"]["attributes"] == {"message.type": "FIFO"}
    assert written["dataVersion"]["counter"] == 4
    assert topics(files, directory).select("U") == TopicConfig(topic_name="U")


def created_in_send(manager, topic, *template):
    return manager.select(topic) or manager.change(manager.creation_in_send(topic, *template))


def test_a_send_creates_its_topic_from_the_template(files, directory):
    manager = topics(files, directory)
    assert created_in_send(manager, "T", "TBW102", 4) is None
    manager.ensure_system_topics()
    made = created_in_send(manager, "T", "TBW102", 4)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert created_in_send(manager, "U", "TBW102", 100).write_queue_nums == 8
    assert created_in_send(manager, "V", "TBW102", -5).write_queue_nums == 0
    assert created_in_send(manager, "W", "T", 4) is None  # T does not pass itself on
    assert created_in_send(manager, "T", "nothing", 1) is made


def test_a_topic_that_a_send_creates_is_logged_once(files, directory, caplog):
    caplog.set_level("INFO")
    manager = topics(files, directory)
    manager.ensure_system_topics()
    created_in_send(manager, "ordres", "TBW102", 4)
    created_in_send(manager, "ordres", "TBW102", 4)
    assert caplog.text.count("a send creates a topic topic=ordres queues=4 default_topic=TBW102") == 1


def test_without_auto_creation_a_send_creates_nothing(files, directory):
    manager = topics(files, directory, auto_create_topic_enable=False)
    manager.ensure_system_topics()
    assert manager.select("TBW102") is None
    assert created_in_send(manager, "T", "TBW102", 4) is None


def test_system_topics_are_made_once_and_known(files, directory):
    manager = topics(files, directory)
    manager.ensure_system_topics()
    version = manager.data_version.counter
    manager.ensure_system_topics()
    assert manager.data_version.counter == version == 1
    assert {
        made.topic_name: (made.read_queue_nums, made.write_queue_nums, made.perm)
        for made in manager.items()
    } == {  # each as release 5.5.0 makes it; that has two more, for transactions in RocksDB
        "BenchmarkTest": (1024, 1024, 6), "DefaultCluster": (16, 16, 7),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6), "OFFSET_MOVED_EVENT": (1, 1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6), "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6), "SELF_TEST_TOPIC": (1, 1, 6), "TBW102": (8, 8, 7),
        "broker-a": (1, 1, 7), "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1, 1), "rmq_sys_wheel_timer": (1, 1, 6)}
    assert manager.is_system_topic("broker-a")
    assert manager.is_system_topic("rmq_sys_anything")
    assert not manager.is_system_topic("orders")
    assert "TRANS_CHECK_MAX_TIME_TOPIC" in manager.system_topic_names()


def test_deleting_a_topic_tells_listeners(files, directory):
    manager, heard = topics(files, directory), []
    manager.on_change(lambda: heard.append(1))
    manager.update(TopicConfig(topic_name="T"))
    assert manager.delete("T")
    assert not manager.delete("T")
    assert heard == [1, 1]
    assert topics(files, directory).items() == []


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("orders", ""), ("a" * 127, ""), ("%RETRY%" + "g" * 200, ""), ("a|b-c_D%9", ""),
        ("", "blank"), ("a b", "illegal characters"), ("a.b", "illegal characters"),
        ("ä", "illegal characters"), ("a\n", "illegal characters"), ("a" * 128, "127"),
        ("%DLQ%" + "g" * 300, "255"),
    ],
)
def test_topic_names_are_checked(topic, reason):
    found = validate_topic(topic)
    assert reason in found
    assert bool(found) == bool(reason)


def test_attributes_change_by_plus_and_minus():
    assert merged_attributes({}, "+message.type=FIFO, +reserve.time=5", creating=True) == {
        "message.type": "FIFO", "reserve.time": "5",
    }
    assert merged_attributes({}, "+cleanup.policy=COMPACTION", creating=True) == {"cleanup.policy": "COMPACTION"}
    for change in ("+cleanup.policy=COMPACTION", "-cleanup.policy"):
        with pytest.raises(ValueError, match=r"unchangeable attribute. key: cleanup.policy"):
            merged_attributes({}, change, creating=False)
    assert merged_attributes({"a": "b", "c": "d"}, "-a", creating=False) == {"c": "d"}
    with pytest.raises(ValueError, match="format is wrong: k"):
        merged_attributes({}, "k=v", creating=True)
    with pytest.raises(ValueError, match="only add"):
        merged_attributes({}, "-k", creating=True)
    assert merged_attributes({}, "+queue.type=BatchCQ", creating=True) == {"queue.type": "BatchCQ"}
    for change in ("+queue.type=BatchCQ", "+queue.type=SimpleCQ", "-queue.type"):
        with pytest.raises(ValueError, match=r"unchangeable attribute. key: queue.type"):
            merged_attributes({"queue.type": "BatchCQ"}, change, creating=False)


@pytest.mark.parametrize(("change", "complaint"), [
    ("+lite.topic.expiration=43201", "lite.topic.expiration=43201 is not a number from -1 to 43200"),
    ("+a=b", "unsupported key: a; known are cleanup.policy, lite.topic.expiration, message.type"),
    ("+cleanup.policy=ODD", "cleanup.policy=ODD is not supported; known are COMPACTION, DELETE"),
    ("+cleanup.policy=COMPACTION,+reserve.time=5", "reserve.time and cleanup.policy=COMPACTION exclude each other"),
    ("+queue.type=BatchCQ,+cleanup.policy=COMPACTION", "queue.type=BatchCQ and cleanup.policy=COMPACTION exclude"),
    ("+queue.type=OfTomorrow", "queue.type=OfTomorrow is not supported; known are BatchCQ, SimpleCQ"),
    ("+message.type=ODD", "message.type=ODD is not supported; known are DELAY, FIFO"),
    ("+reserve.time=soon", "reserve.time=soon is not a whole number"),
])
def test_attributes_that_nothing_heeds_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        merged_attributes({}, change, creating=True)


def test_offsets_survive_a_restart(files, directory):
    manager = ConsumerOffsetManager(files, directory, Clock())
    manager.load()
    manager.commit("g", "T", 0, 5)
    manager.commit("g", "T", 1, 6)
    manager.commit("h", "U", 0, 1)
    manager.commit_pull("g", "T", 0, 9)
    manager.persist_if_changed()
    again = ConsumerOffsetManager(files, directory, Clock())
    again.load()
    assert again.query("g", "T", 1) == 6
    assert again.query("g", "T", 2) == again.query("x", "T", 0) == -1
    assert again.query_pull("g", "T", 0) == -1
    assert again.topics_of("g") == ["T"]
    assert again.groups_of("U") == ["h"]
    again.remove_topics({"T"})
    assert again.query("g", "T", 1) == -1


def test_offsets_are_written_only_when_one_changed(files, directory):
    manager = ConsumerOffsetManager(files, directory, Clock())
    manager.persist_if_changed()
    assert files.list(directory) == []
    manager.commit("g", "T", 0, 5)
    manager.persist_if_changed()
    before = files.stat(manager.path).mtime_ms
    manager.commit("g", "T", 0, 5)
    manager.persist_if_changed()
    assert files.list(directory) == ["consumerOffset.json"]
    assert files.stat(manager.path).mtime_ms == before


def test_offsets_that_could_not_be_written_are_tried_again(files, directory):
    manager = ConsumerOffsetManager(StoppingFileSystem(0), directory, Clock())
    manager.commit("g", "T", 0, 5)
    with pytest.raises(OSError, match="stopped"):
        manager.persist_if_changed()
    manager._file_system = files
    manager.persist_if_changed()
    assert read_config(files, manager.path)["offsetTable"] == {"T@g": {"0": 5}}


def test_the_offsets_of_a_java_broker_are_read(files, directory, tmp_path):
    files.makedirs(directory)
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},'
        '"groupTopicMap":{"g":["T"]},\n\t"offsetTable":{"T@g":{0:5,1:6\n\t}\n},"pullOffsetTable":{"T@g":{0:9}},"new":1}'
    )
    manager = ConsumerOffsetManager(files, directory, Clock())
    assert manager.load()
    assert [manager.query("g", "T", q) for q in range(3)] == [5, 6, -1]
    manager.commit_pull("g", "T", 0, 12)
    manager.persist()
    written = read_config(files, manager.path)
    assert written["new"] == 1
    assert "pullOffsetTable" not in written  # which a broker that reads it would take for the present places


def test_groups_survive_a_restart_and_are_created_when_allowed(files, directory):
    manager = SubscriptionGroupManager(files, directory, BrokerConfig(), Clock())
    manager.ensure_system_groups()
    manager.update_all([SubscriptionGroupConfig(group_name="g", retry_max_times=3)])
    assert manager.find_or_create("h").group_name == "h"
    assert manager.find_or_create("no group") is None
    assert manager.find_or_create("x" * 121) is None
    again = SubscriptionGroupManager(
        files, directory, BrokerConfig(auto_create_subscription_group=False), Clock()
    )
    again.load()
    assert again.select("g").retry_max_times == 3
    assert again.find_or_create("i") is None
    assert again.delete("h")
    assert not again.delete("h")
    assert again.select("TOOLS_CONSUMER") is not None


# -- LMQ


def offsets_of(path, *, lmq):
    made = ConsumerOffsetManager(OsFileSystem(), str(path), Clock(), lmq=lmq)
    made.load()
    return made


@pytest.mark.parametrize("lmq", [False, True])
def test_a_command_reads_the_file_that_the_stopped_broker_wrote_last(tmp_path, lmq):
    for first, offset in ((not lmq, 3), (lmq, 7)):
        made = offsets_of(tmp_path, lmq=first)
        made.commit("%LMQ%g", "t", 0, offset)
        made.persist()
        os.utime(tmp_path / NAMES[first], (offset, offset))
    found = ConsumerOffsetManager.of_stopped(OsFileSystem(), str(tmp_path), Clock())
    found.load()
    assert found.query("%LMQ%g", "t", 0) == 7
    empty = ConsumerOffsetManager.of_stopped(OsFileSystem(), str(tmp_path / "none"), Clock())
    assert not empty.load()


def test_no_command_reads_offsets_without_saying_of_which_file():
    source = Path(tailrace.__file__).parent
    found = {
        str(path.relative_to(source)) for path in source.rglob("*.py")
        if "ConsumerOffsetManager(" in (text := path.read_text()) for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ConsumerOffsetManager"
        and "lmq" not in {keyword.arg for keyword in node.keywords}}
    assert not found


NAMES = ("consumerOffset.json", "lmqConsumerOffset.json")
JAVA_LMQ = (  # as a Java broker writes it
    '{\n\t"dataVersion":{"counter":0,"stateVersion":0,"timestamp":%d},\n\t"groupTopicMap":{},\n'
    '\t"lmqOffsetTable":{"%%LMQ%%a@%%LMQ%%g":12,"t@%%LMQ%%g":3},\n'
    '\t"offsetTable":{"%%LMQ%%a@plain":{0:7},"t@plain":{0:1,1:2}}\n}')


def test_offsets_of_lmq_groups_have_a_table_of_their_own_in_a_file_of_their_own(tmp_path):
    (tmp_path / "lmqConsumerOffset.json").write_text(JAVA_LMQ % 5)
    offsets = offsets_of(tmp_path, lmq=True)
    assert offsets.query("%LMQ%g", "%LMQ%a", 0) == offsets.query("%LMQ%g", "%LMQ%a", 9) == 12
    assert offsets.query("plain", "%LMQ%a", 0) == 7
    assert offsets.query("plain", "%LMQ%a", 9) == -1
    assert offsets.topics_of("%LMQ%g") == ["%LMQ%a", "t"]
    offsets.commit("%LMQ%g", "%LMQ%b", 4, 99)
    offsets.commit("plain", "%LMQ%b", 4, 98)
    offsets.persist_if_changed()
    assert not (tmp_path / "consumerOffset.json").exists()
    table = json.loads((tmp_path / "lmqConsumerOffset.json").read_text())
    assert table["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 12, "t@%LMQ%g": 3, "%LMQ%b@%LMQ%g": 99}
    assert table["offsetTable"] == {
        "%LMQ%a@plain": {"0": 7}, "t@plain": {"0": 1, "1": 2}, "%LMQ%b@plain": {"4": 98}}
    offsets.remove_groups({"%LMQ%g"})
    offsets.persist_if_changed()
    again = offsets_of(tmp_path, lmq=True)
    assert (again.query("%LMQ%g", "t", 0), again.query("plain", "t", 1)) == (-1, 2)


@pytest.mark.parametrize(("offsets", "kept"), [({3: 8}, 8), ({0: 5, 1: 6, 2: 7}, 5), ({2: 7, 1: 6}, 6)])
def test_a_reset_of_an_lmq_group_is_that_of_its_only_offset(tmp_path, offsets, kept):
    made = offsets_of(tmp_path, lmq=True)
    made.commit("%LMQ%g", "t", 1, 99)
    made.assign_reset("%LMQ%g", "t", offsets)
    made.assign_reset("plain", "t", offsets)
    for found in (made, offsets_of(tmp_path, lmq=True)):
        assert [found.query("%LMQ%g", "t", queue_id) for queue_id in (0, 1, 9)] == [kept] * 3
        assert {q: found.query("plain", "t", q) for q in offsets} == offsets
    assert {q: made.take_reset("%LMQ%g", "t", q) for q in offsets} == offsets


def test_offsets_are_taken_over_when_lmq_is_switched_on_or_off(tmp_path, caplog):
    (tmp_path / "lmqConsumerOffset.json").write_text(JAVA_LMQ % 5)
    offsets = offsets_of(tmp_path, lmq=False)
    assert offsets.query("plain", "t", 1) == 2
    assert "are taken over from the other file" in caplog.text
    assert "offsets of LMQ groups are not read, enableLmq is false" in caplog.text
    offsets.persist_if_changed()
    written = json.loads((tmp_path / "consumerOffset.json").read_text())
    assert written["offsetTable"]["t@plain"] == {"0": 1, "1": 2}
    (tmp_path / "lmqConsumerOffset.json").unlink()
    caplog.clear()
    offsets = offsets_of(tmp_path, lmq=True)
    assert offsets.query("plain", "t", 1) == 2
    assert offsets.query("%LMQ%g", "t", 0) == 3, "the table of LMQ groups was kept on the way"
    assert "are taken over from the other file" in caplog.text


@pytest.mark.parametrize(("stamp", "told"), [(4, False), (1_000_000, True)])
def test_a_newer_file_of_the_other_setting_is_named(tmp_path, caplog, stamp, told):
    present = offsets_of(tmp_path, lmq=True)
    present.data_version.timestamp = 100
    present.commit("plain", "t", 0, 5)
    present.persist_if_changed()
    (tmp_path / "consumerOffset.json").write_text(
        f'{{"dataVersion":{{"counter":1,"timestamp":{stamp}}},"offsetTable":{{"t@plain":{{0:1}}}}}}')
    caplog.clear()
    assert offsets_of(tmp_path, lmq=True).query("plain", "t", 0) == 5
    assert ("newer consumer offsets are not read" in caplog.text) == told


def test_lmq_names_are_topics_and_groups_without_an_entry(tmp_path):
    topics = TopicConfigManager(OsFileSystem(), str(tmp_path), BrokerConfig(), Clock())
    groups = SubscriptionGroupManager(OsFileSystem(), str(tmp_path), BrokerConfig(), Clock())
    assert topics.select("%LMQ%a") is None
    assert groups.select("%LMQ%g") is None
    topics.update(TopicConfig(topic_name="%LMQ%old", read_queue_nums=4, write_queue_nums=4))
    topics.enable_lmq = groups.enable_lmq = True
    for config in (topics.select("%LMQ%a"), topics.create_if_missing("%LMQ%a", 4), topics.select("%LMQ%old"),
                   created_in_send(topics, "%LMQ%a", "TBW102", 4)):
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    assert groups.find_or_create("%LMQ%g").group_name == "%LMQ%g"
    assert groups.items() == []
    assert list(topics.table) == ["%LMQ%old"]
    assert topics.select("t") is None


def test_offsets_of_pulls_are_bounded_in_number_and_in_characters(files, directory, monkeypatch):
    manager = ConsumerOffsetManager(files, directory, Clock())
    for number in range(60_000):  # as of a client that pulls from queues with names that it makes up
        manager.commit_pull("g", f"%LMQ%{number}-{'x' * 200}", 0, 1)
    manager.commit_pull("g", "x" * 900_000, 0, 1)
    names = list(manager._pulls._table)
    assert sum(map(len, names)) == manager._pulls._chars <= 4_000_000
    assert manager.query_pull("g", f"%LMQ%59999-{'x' * 200}", 0) == 1
    assert manager.query_pull("g", f"%LMQ%0-{'x' * 200}", 0) == -1
    monkeypatch.setattr(consumer_offset, "PULLS_MAX", 10)
    manager.commit_pull("g", "T", 0, 7)
    assert len(manager._pulls._table) == 10
    manager.remove_topics({"T"})
    assert manager.query_pull("g", "T", 0) == -1
    assert sum(map(len, manager._pulls._table)) == manager._pulls._chars


def test_names_of_lmq_queues_and_groups_have_a_limit(files, directory):
    topics = TopicConfigManager(files, directory, BrokerConfig(), Clock())
    groups = SubscriptionGroupManager(files, directory, BrokerConfig(), Clock())
    topics.enable_lmq = groups.enable_lmq = True
    for table in (topics, groups):
        assert table.select("%LMQ%" + "x" * 250) is not None
        assert table.select("%LMQ%" + "x" * 251) is None


@pytest.mark.parametrize(("backup", "used", "reason"), [
    ('{"a": 1}', "x.json.bak", "no value at position 1"), (None, "nothing", "no value at position 1"),
    ("[]", "nothing", "no value at position 1; backup: no object")])
def test_a_file_that_cannot_be_read_is_named_once_with_what_was_used(tmp_path, caplog, backup, used, reason):
    (tmp_path / "x.json").write_text("{gar")
    if backup is not None:
        (tmp_path / "x.json.bak").write_text(backup)
    found = read_config(OsFileSystem(), str(tmp_path / "x.json"))
    assert found == ({"a": 1} if used != "nothing" else None)
    [line] = [record.getMessage() for record in caplog.records]
    where = str(tmp_path / used) if used != "nothing" else used
    assert line == f"config file unreadable file={tmp_path}/x.json reason={reason} used={where}"
