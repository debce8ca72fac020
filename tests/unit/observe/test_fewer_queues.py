"""A topic that gets fewer queues while the others hold messages: nothing is hidden, and what is stranded is said."""

from __future__ import annotations

import json

import pytest
from broker_kit import admin_of, wired

from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.config import StoreConfig
from tailrace.console.figures import Figures
from tailrace.formats import fastjson
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.observe.exposition import Exposition
from tailrace.store.queue_reader import QueueReader

PHRASE = "messages are in queues that are not read any more"


@pytest.fixture
def store(tmp_path, clock):
    with MessageStore.open(tmp_path / "store", config=StoreConfig(
        mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 5000, max_hash_slot_num=1000,
        max_index_num=40_000, commit_log_allocate_step=1 << 20, mapped_file_size_timer_log=52 * 2000,
    ), parts=StoreParts(services=False, clock=clock)) as opened:
        opened.topics.update(TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=8))
        for number in range(160):
            opened.put_inner(MessageExtBrokerInner("t", number % 8, b"x"))
        opened.wait_dispatched()
        yield opened


@pytest.fixture
def broker(store, loop, clock, kit):
    return kit.make_broker(store, loop, clock=clock)


@pytest.fixture
def topics(broker, kit):
    broker.groups.find_or_create("g")
    for queue_id in range(8):
        broker.offsets.commit("g", "t", queue_id, 10)
    return kit.served(admin_of(broker))


@pytest.fixture
def ask(topics, kit, channel):
    def asked(method, code, ext, body=b""):
        return getattr(topics, method)(channel, kit.request(code, {k: str(v) for k, v in ext.items()}, body=body))
    return asked


@pytest.fixture
def change(ask):
    def changed(queues, topic="t"):
        return ask("update_topic", 17, {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"})
    return changed


NOTE = ("t: queues 4 to 7 are no longer read, with 80 messages, of which group g has not consumed 40; "
        "give the topic 8 queues to read (readQueueNums) until they are consumed")


def test_the_answer_and_a_line_say_how_many_messages_are_stranded(change, caplog):
    answer = change(4)
    assert (answer.code, answer.remark) == (0, NOTE)
    assert [one for one in caplog.messages if PHRASE in one] == [
        f"{PHRASE} topic=t read_queues=4 queues=4 messages=80 not_consumed=40"]
    assert change(4).remark is None  # it has no fewer than before
    assert change(8).remark is None


def test_a_list_of_topics_says_so_too(ask, caplog):
    config = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 8, "perm": 6, "attributes": {}}
    answer = ask("update_topics", 18, {}, json.dumps({"topicConfigList": [config]}).encode())
    assert (answer.code, answer.remark) == (0, NOTE)


def test_many_topics_need_one_look_at_the_offsets(store, broker, ask, monkeypatch):
    names = [f"many{number}" for number in range(5)]
    store.topics.update_all([TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2) for name in names])
    for name in names:
        store.put_inner(MessageExtBrokerInner(name, 1, b"x"))
        broker.offsets.commit("g", name, 0, 0)
    store.wait_dispatched()
    looks, pairs = [], broker.offsets.pairs
    monkeypatch.setattr(broker.offsets, "pairs", lambda: looks.append(1) or pairs())
    configs = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in names]
    answer = ask("update_topics", 18, {}, json.dumps({"topicConfigList": configs}).encode())
    assert answer.remark.count("of which group g has not consumed 1") == 5
    assert len(looks) == 1


def test_nothing_is_said_of_queues_without_messages(change, broker, caplog):
    broker.topics.update(TopicConfig(topic_name="empty", read_queue_nums=8, write_queue_nums=8))
    assert change(2, "empty").remark is None
    assert change(8).remark is None
    assert not [one for one in caplog.messages if PHRASE in one]


def queues_of(answer, name="offsetTable"):
    return {fastjson.loads(key)["queueId"]: value for key, value in fastjson.loads(answer.body)[name].items()}


def test_lags_and_statistics_count_all_queues_that_hold_messages(change, ask, broker):
    def lags():
        yield sum(one["brokerOffset"] - one["consumerOffset"] for one in queues_of(
            ask("consume_stats", 208, {"consumerGroup": "g"})).values())
        yield fastjson.loads(ask("broker_consume_stats", 317, {"isOrder": "false"}).body)["totalDiff"]
        yield sum(lag.behind for lag in broker.lags.queues() if lag.group == "g")
        yield wired(Figures, broker).pairs()["g", "t"].behind
        exposition = Exposition("c", "b")
        exposition.broker = broker
        samples = [s for family in exposition.collect() for s in family.samples]
        yield sum(s.value for s in samples if s.name == "rocketmq_consumer_lag_messages"
                  and s.labels["consumer_group"] == "g")

    assert [*lags()] == [80] * 5
    change(4)
    assert [*lags()] == [80] * 5
    found = queues_of(ask("topic_stats", 202, {"topic": "t"}))
    assert sum(one["maxOffset"] - one["minOffset"] for one in found.values()) == 160
    assert [*found] == [*range(8)]
    spans = fastjson.loads(ask("consume_time_span", 303, {"topic": "t", "group": "g"}).body)["consumeTimeSpanSet"]
    assert len(spans) == 8


def test_a_reset_moves_queues_that_are_not_read_as_well(change, kit, channel, broker):
    change(4)
    reset = kit.served(broker.make(GroupOffsetsProcessor)).reset_offset
    ext = {"topic": "t", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert reset(channel, kit.request(222, ext)).code == 0
    assert [broker.offsets.query("g", "t", queue_id) for queue_id in range(8)] == [20] * 8
    assert reset(channel, kit.request(222, {**ext, "queueId": "7", "offset": "3"})).code == 0
    assert broker.offsets.query("g", "t", 7) == 3
    assert reset(channel, kit.request(222, {**ext, "queueId": "8"})).code != 0


def test_offsets_outside_of_a_queue_count_as_its_ends(ask, broker, store, monkeypatch):
    monkeypatch.setattr(QueueReader, "min", 12)
    broker.offsets.commit("g", "t", 0, 5)
    broker.offsets.commit("g", "t", 1, 25)
    broker.offsets.commit_pull("g", "t", 1, 30)
    found = queues_of(ask("consume_stats", 208, {"consumerGroup": "g"}))
    assert [(found[q]["consumerOffset"], found[q]["pullOffset"]) for q in (0, 1)] == [(12, 12), (20, 20)]


def test_a_program_that_embeds_the_store_gets_the_line(store, caplog):
    store.create_topic("t", queues=7)
    assert f"{PHRASE} topic=t read_queues=7 queues=1 messages=20 not_consumed=0" in caplog.messages
