"""``topicQueueMapping.json``: the arithmetic of items, what is refused, what is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from static_topics import item, mapping

from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.node.topic_queue_mapping import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    TopicQueueMappingManager,
    check_items,
    checked_info,
    find_item,
)

JAVA = (  # as fastjson writes it: numeric keys without quotes
    '{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":5},"topicQueueMappingInfoMap":{"st":{"bname":"a",'
    '"currIdMap":{},"dirty":false,"epoch":7,"hostedQueues":{0:[{"bname":"a","endOffset":-1,"gen":0,'
    '"logicOffset":0,"queueId":1,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}],3:[]},"later":{"x":1},'
    '"scope":"__global__","topic":"st","totalQueues":4}}}')


@pytest.fixture
def manager(tmp_path):
    return TopicQueueMappingManager(OsFileSystem(), str(tmp_path), SystemClock())


def written(tmp_path, text):
    (tmp_path / "topicQueueMapping.json").write_text(text)


def test_the_file_of_a_java_broker_is_read_and_written_with_what_is_unknown(manager, tmp_path):
    written(tmp_path, JAVA)
    manager.load()
    detail = manager.table["st"]
    assert detail.hosted_queues == {0: (LogicQueueMappingItem(0, 1, "a", 0),), 3: ()}
    assert (detail.leads(0), detail.leads(3), detail.leads(9)) == (True, False, False)
    assert detail.info()["currIdMap"] == {"0": 1}
    manager.change(manager.setting(TopicQueueMappingDetail(topic="other", bname="a")))
    value = json.loads((tmp_path / "topicQueueMapping.json").read_text())
    assert value["dataVersion"]["counter"] == 3
    kept = value["topicQueueMappingInfoMap"]["st"]
    assert (kept["later"], kept["hostedQueues"]["0"][0]["queueId"], kept["hostedQueues"]["3"]) == ({"x": 1}, 1, [])
    again = TopicQueueMappingManager(OsFileSystem(), str(tmp_path), SystemClock())
    again.load()
    assert again.table == manager.table


@pytest.mark.parametrize(("text", "said"), [
    ('{"topicQueueMappingInfoMap":[1]}', "is not an object"),
    ('{"topicQueueMappingInfoMap":{"st":5}}', "topic st cannot be read: the mapping is not an object"),
    ('{"topicQueueMappingInfoMap":{"st":{"epoch":"x"}}}', "epoch is not a whole number of 64 bits: 'x'"),
    ('{"topicQueueMappingInfoMap":{"st":{"hostedQueues":{"-1":[]}}}}', "the key '-1'"),
    ('{"topicQueueMappingInfoMap":{"st":{"hostedQueues":{"0":[5]}}}}', "an item is not an object: '5'"),
    ('{"topicQueueMappingInfoMap":{"st":{"hostedQueues":{"0":[{"gen":2147483648}]}}}}', "gen is not a whole number"),
])
def test_a_file_that_cannot_be_read_is_refused_with_the_topic(manager, tmp_path, text, said):
    """Served without its mapping, the topic would give messages of wrong queues."""
    written(tmp_path, text)
    with pytest.raises(StoreError, match=said):
        manager.load()


offsets = st.integers(0, 1 << 40)


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 1 << 20)), min_size=1, max_size=6), st.data())
def test_a_physical_offset_has_one_logical_one_and_back(parts, data):
    """Items as remapping makes them: each begins above the end of the one before."""
    items, start = [], 0
    for gen, (gap, count) in enumerate(parts):
        items.append((LogicQueueMappingItem(gen, gen, "a", start), count))
        start += count + gap
    check_items(tuple(one for one, _ in items))
    for one, count in items:
        offset = data.draw(st.integers(0, count))
        logical = one.logical(offset)
        assert one.physical(logical) == offset
        assert find_item([i for i, _ in items], logical) is one
    assert find_item([i for i, _ in items], -5) is items[0][0]


def test_an_item_without_a_logical_offset_is_not_found():
    decided, new = LogicQueueMappingItem(0, 0, "a", 0), LogicQueueMappingItem(1, 0, "b", -1)
    assert find_item([decided, new], 1 << 50) is decided
    assert find_item([new], 0) is None
    assert (LogicQueueMappingItem(0, 0, "a", 10, 0, 5).max_logical_offset, new.max_logical_offset) == (15, -1)


def test_a_change_is_made_to_the_mapping_that_was_seen_only(manager):
    def detail(*items):
        return TopicQueueMappingDetail.from_json(mapping("a", {0: list(items), 1: [item(0, "a", 1)]}, topic="st"))

    manager.change(manager.setting(detail(item(0, "a", 0), item(1, "a", 2, -1))))
    seen = manager.table["st"]
    manager.change(manager.setting(detail(item(0, "a", 0), item(1, "a", 2, 50))))
    manager.change(manager.keeping(seen, {0: seen.hosted_queues[0][1:]}))
    assert [part.logic_offset for part in manager.table["st"].hosted_queues[0]] == [0, 50], "it has changed since"
    seen = manager.table["st"]
    manager.change(manager.keeping(seen, {0: seen.hosted_queues[0][1:], 1: ()}))
    assert manager.table["st"].hosted_queues == {0: (LogicQueueMappingItem(1, 2, "a", 50),)}
    for topic in ("st", "none"):
        manager.change(lambda draft, topic=topic: draft.remove(topic))
    assert manager.table == {}


@pytest.mark.parametrize(("value", "said"), [
    ([], "not an object"), ({"currIdMap": 5}, "currIdMap is not an object"),
    ({"currIdMap": {"x": 1}}, "not numbers of queues"), ({"currIdMap": {"1": -1}}, "not numbers of queues"),
    ({"totalQueues": "4"}, "totalQueues"),
])
def test_the_mapping_of_another_broker_is_checked(value, said):
    with pytest.raises(ValueError, match=said):
        checked_info(value, "st")


def test_the_mapping_of_another_broker_keeps_what_clients_use():
    info = checked_info({"bname": "b", "currIdMap": {"2": 0}, "epoch": 3, "totalQueues": 4, "x": 1}, "st")
    assert info == {
        "bname": "b", "currIdMap": {"2": 0}, "dirty": False, "epoch": 3, "scope": "__global__", "topic": "st",
        "totalQueues": 4}
