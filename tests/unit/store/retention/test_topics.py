"""Topics with rules of their own, and purged ones: what is shown, which files go, what survives."""

from __future__ import annotations

import errno
import json
import logging

import pytest
from retention_place import HOUR, SIZE, Place

from tailrace import Message
from tailrace.errors import StoreError
from tailrace.model import GetMessageStatus
from tailrace.node.topic_config import TopicConfig
from tailrace.store import lives
from tailrace.store.directory import StoreDirectory
from tailrace.store.retention.min_offsets import LogicalMin, decode_minima, encode_minima
from tailrace.store.retention.pins import PinKind, PinPolicy
from tailrace.store.retention.rules import Rule, SegmentFacts, explain
from tailrace.store.retention.topic_rules import NOWHERE, TopicLimits, TopicNeeds, topic_limits

STATE = "/s/config/tailrace-min-offsets.json"


@pytest.fixture
def place():
    made = Place()
    yield made
    made.store.close()


def keep(place, topic, **attributes):
    """Give a topic attributes, ``_`` for ``.`` in their names."""
    place.store.topics.update(TopicConfig(
        topic_name=topic, attributes={k.replace("_", "."): str(v) for k, v in attributes.items()}))


def reopen(place):
    place.store.close()
    place.open()


def bounds(place, topic, queue=0):
    return place.store.queue_of(topic, queue).min, place.store.queue_of(topic, queue).max


# -- attributes and needs


def test_attributes_and_what_they_mean():
    assert topic_limits({}) == TopicLimits()
    assert topic_limits({"reserve.time": "2"})[:2] == (2 * HOUR, None)
    assert topic_limits({"reserve.time": "-1"}) == TopicLimits(), "RocketMQ's way of not set"
    assert topic_limits({"reserve.time": "2", "retention.ms": "5"})[0] == 5
    assert topic_limits({"retention.ms": "-1"})[0] == -1, "as long as there is room"
    assert topic_limits({"retention.bytes": "0"})[1] == 0
    assert topic_limits({"retention.bytes": "-1"}) == TopicLimits()
    for bad in ("x", "-2", "1.5", ""):
        with pytest.raises(ValueError, match=r"retention\.ms"):
            topic_limits({"retention.ms": bad})


@pytest.mark.parametrize(("age_h", "own_from", "default_from", "force", "rule"), [
    (80, NOWHERE, 0, False, Rule.EXPIRED),
    (10, NOWHERE, 0, False, Rule.NOT_EXPIRED),
    (10, NOWHERE, 100, False, Rule.RELEASED),
    (10, NOWHERE, 99, False, Rule.NOT_EXPIRED),
    (10, 99, 100, False, Rule.NOT_EXPIRED),
    (80, 99, 0, False, Rule.KEPT_BY_TOPIC),
    (80, 100, 0, False, Rule.EXPIRED),
    (80, 99, 0, True, Rule.FORCED),
    (10, 100, 100, True, Rule.RELEASED),
])
def test_a_file_lives_until_its_longest_topic_lets_go(age_h, own_from, default_from, force, rule):
    files = [SegmentFacts("a", 0, 100, 0, "mtime"), SegmentFacts("b", 100, 100, 0, "mtime")]
    verdict = explain(
        files, now_ms=age_h * HOUR, reserved_hours=72, clean_at_once=force,
        policies=dict.fromkeys(PinKind, PinPolicy.DELETE_OLDEST),
        topics=TopicNeeds(own_from, "t", default_from))[0]
    assert verdict.rule is rule
    assert verdict.forced is (rule is Rule.FORCED)


def test_the_state_file_reads_what_it_wrote_and_nothing_else():
    minima = {("a", 0): LogicalMin(3, 400), ("a", 12): LogicalMin(0, 0), ("%RETRY%g", 1): LogicalMin(1, 2)}
    assert decode_minima(encode_minima(minima)) == minima
    odd = {"minOffsets": {"a": {"x": [1, 2], "1": [1], "2": ["1", 2], "3": [-1, 0], "4": 5}, "b": 7}}
    assert decode_minima(odd) == {}
    assert decode_minima({"minOffsets": []}) == {}


# -- rules on a store


def test_a_topic_keeps_its_messages_shorter_than_the_others(place):
    place.store.put(Message(topic="long", body=b"x"))
    place.fill(3, "short")
    keep(place, "short", reserve_time=1)
    place.store.retention.topics.step()
    assert bounds(place, "short")[0] == 0
    oldest = place.store.get_message("short", 0, 0, 1)
    assert oldest.status is GetMessageStatus.FOUND
    place.clock.advance(HOUR - 10_000)
    place.store.retention.topics.step()
    low, high = bounds(place, "short")
    assert 0 < low < high, "message by message, not file by file"
    assert place.store.get_message_store_timestamp("short", 0, low) >= place.clock.now_ms() - HOUR
    assert place.store.get_message_store_timestamp("short", 0, low - 1) < place.clock.now_ms() - HOUR
    place.clock.advance(HOUR)
    place.store.retention.topics.step()
    assert bounds(place, "short") == (high, high)
    found = place.store.get_message("short", 0, 0, 1)
    assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, high)
    assert bounds(place, "long") == (0, 1)
    rules = [v.rule for v in place.clean.verdicts()]
    assert rules == [Rule.NOT_EXPIRED] + [Rule.BEHIND_KEPT] * 2 + [Rule.LAST_FILE], "topic long is there"
    place.dispatch()
    place.store.purge_topic("long")
    assert place.store.retention.delete_now() == 3, "no topic keeps a message of them"
    assert place.store.stats()["forcedDeletedFiles"] == 0


def test_a_topic_keeps_its_messages_longer_than_the_others(place):
    place.fill(2, "short")
    place.fill(2, "long")
    place.fill(2, "short")
    keep(place, "long", retention_ms=200 * HOUR)
    place.clock.advance(80 * HOUR)
    assert place.store.retention.delete_now() == 2
    assert place.clean.verdicts()[0].rule is Rule.KEPT_BY_TOPIC
    low, high = bounds(place, "long")
    assert low == 0
    assert len(list(place.store.read("long"))) == high
    place.clock.advance(120 * HOUR)
    assert place.store.retention.delete_now() == 4


def test_a_topic_without_a_limit_is_deleted_only_when_space_is_short(place):
    place.fill(3, "ledger")
    keep(place, "ledger", retention_ms=-1)
    place.clock.advance(10_000 * HOUR)
    assert place.store.retention.delete_now() == 0
    place.use(88)
    place.run(70_000)
    assert place.store.stats()["forcedDeletedFiles"] == 3
    assert place.store.stats()["forcedDeletedMessages"] > 0


def test_a_queue_keeps_at_most_retention_bytes(place):
    keep(place, "t", retention_bytes=5000)
    place.fill(2)
    place.store.retention.topics.step()
    low, high = bounds(place, "t")
    sizes = [len(r) for r in place.store.get_message("t", 0, low, 32).records]
    assert len(sizes) == high - low
    assert sum(sizes) <= 5000 < sum(sizes) + sizes[0]
    place.fill(1)
    place.store.retention.topics.step()
    again, more = bounds(place, "t")
    assert more - again == high - low, "counted on from where it was"
    keep(place, "t", retention_bytes=0)
    place.store.retention.topics.step()
    assert bounds(place, "t") == (more - 1, more), "the newest message stays"


def test_bytes_are_counted_on_whatever_else_moves_the_queue(place):
    keep(place, "t", retention_bytes=6000)
    for round_ in range(12):
        place.fill(1)
        if round_ == 4:
            place.store.purge_topic("t", before_ms=place.clock.now_ms() - 2000)
        if round_ == 7:
            place.clock.advance(100 * HOUR)
            assert place.store.retention.delete_now() > 0
        place.store.retention.topics.step()
        low, high = bounds(place, "t")
        sizes = [place.store.inner.queues.get("t", 0).unit(n).size for n in range(low, high)]
        kept, first = sum(sizes), sizes[0]
        assert kept <= 6000, round_
        assert round_ in {4, 7} or kept + first > 6000, round_
        counted = place.store.retention.topics._bytes["t", 0]
        assert (counted.start, counted.end, counted.total) == (low, high, kept)


def test_a_limit_in_bytes_alone_leaves_the_time_to_the_settings(place):
    keep(place, "t", retention_bytes=1 << 40)
    place.fill(2)
    place.clock.advance(80 * HOUR)
    assert place.store.retention.delete_now() == 2


def test_attributes_that_are_no_numbers_and_system_topics_change_nothing(place, caplog):
    keep(place, "t", retention_ms="soon")
    keep(place, "SCHEDULE_TOPIC_XXXX", retention_ms=0)
    place.fill(2)
    place.clock.advance(HOUR)
    with caplog.at_level(logging.WARNING):
        place.store.retention.topics.step()
        place.store.retention.topics.step()
    assert bounds(place, "t")[0] == 0
    assert place.store.retention.topics.needs() is None
    assert sum("retention.ms=soon" in r.getMessage() for r in caplog.records) == 1, "said once"


# -- purge


def test_a_purge_is_durable_and_the_bytes_stay_until_their_files_go(place):
    place.fill(2)
    place.store.put(Message(topic="other", body=b"x"))
    place.dispatch()
    key = place.store.get_message("t", 0, 0, 1)
    phy_offset = int.from_bytes(key.records[0][28:36], "big")
    low, high = bounds(place, "t")
    assert place.store.purge_topic("t") == {0: (low, high)}
    for _ in range(2):
        assert bounds(place, "t") == (high, high)
        assert place.store.query_message("t", "k") == []
        assert place.store.look_message_by_offset(phy_offset) is None
        assert place.store.select_record(phy_offset) is None
        assert place.store.get_offset_in_queue_by_time("t", 0, 0) == high
        assert [m.queue_offset for m in place.store.read("t")] == []
        assert bounds(place, "other") == (0, 1)
        reopen(place)
    place.store.put(Message(topic="t", body=b"new", keys=["k"]))
    place.dispatch()
    assert [m.queue_offset for m in place.store.read("t")] == [high]
    assert [m.queue_offset for m in place.store.query_message("t", "k")] == [high]
    assert place.store.retention.delete_now() == 2, "nobody keeps a message of them"
    assert bounds(place, "t") == (high, high + 1)


def test_a_purge_of_a_queue_or_up_to_a_time(place):
    for number in range(6):
        place.store.put(Message(topic="t", body=b"%d" % number), queue_id=number % 2)
        place.clock.advance(1000)
    place.dispatch()
    middle = place.store.get_message_store_timestamp("t", 0, 1)
    assert place.store.purge_topic("t", before_ms=middle) == {0: (0, 1), 1: (0, 1)}
    assert place.store.purge_topic("t", queue_id=1) == {1: (1, 3)}
    assert place.store.purge_topic("t", queue_id=1) == {1: (3, 3)}
    assert bounds(place, "t", 0) == (1, 3)


def test_what_cannot_be_purged_is_refused_and_nothing_changes(place):
    place.fill(1)
    place.store.topics.update(TopicConfig(topic_name="empty"))
    assert place.store.purge_topic("empty") == {}
    for topic, queue in (("none", None), ("t", 7), ("rmq_sys_wheel_timer", None)):
        with pytest.raises(StoreError):
            place.store.purge_topic(topic, queue)
    assert bounds(place, "t")[0] == 0


def test_a_disk_without_room_for_the_state_file_purges_nothing(place, monkeypatch):
    place.fill(1)
    before = bounds(place, "t")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(place.files, "rename", full)
        with pytest.raises(OSError, match="no room"):
            place.store.purge_topic("t")
    assert bounds(place, "t") == before
    assert place.store.purge_topic("t") == {0: (before[0], before[1])}


def test_a_topic_that_was_deleted_and_made_again_hides_nothing(place):
    place.fill(1)
    high = bounds(place, "t")[1]
    place.store.purge_topic("t")
    place.store.delete_topics({"t"})
    begin = place.store.queue_of("t", 0).begin_of_life
    assert begin >= high
    place.store.put(Message(topic="t", body=b"new"))
    place.dispatch()
    assert bounds(place, "t") == (begin, begin + 1)
    reopen(place)
    assert bounds(place, "t") == (begin, begin + 1)


def test_a_queue_that_another_program_started_again_shows_all_its_messages(place, caplog):
    place.fill(1)
    high = bounds(place, "t")[1]
    place.store.purge_topic("t")
    state = place.read(STATE)
    place.store.delete_topics({"t"})
    del place.store.inner.commit_log.queue_offsets["t", 0]
    for _ in range(3):
        place.store.put(Message(topic="t", body=b"new"))
    place.store.close()
    place.write(STATE, state)  # a Java broker does not know this file
    with caplog.at_level(logging.WARNING):
        place.open()
    assert high > 3
    assert bounds(place, "t") == (0, 3)
    assert "is not the one that was purged" in caplog.text


def test_a_damaged_state_file_falls_back_to_its_backup(place):
    place.fill(1)
    place.store.purge_topic("t")
    for _ in range(3):
        place.store.put(Message(topic="t", body=b"x"))
    place.dispatch()
    place.store.purge_topic("t")
    high = bounds(place, "t")[1]
    place.store.close()
    place.write(STATE, b"{ damaged")
    place.open()
    assert bounds(place, "t") == (high - 3, high)


def test_a_rule_is_written_now_and_then_and_at_the_close(place):
    keep(place, "t", retention_ms=1000)
    place.fill(1)
    place.clock.advance(10_000)
    place.store.retention.topics.step()
    high = bounds(place, "t")[1]
    assert bounds(place, "t")[0] == high
    keep(place, "t")
    reopen(place)
    assert bounds(place, "t") == (high, high), "what was let go stays so without the rule"


def test_readers_without_the_lock_do_not_show_released_messages(place):
    place.fill(1)
    place.store.put(Message(topic="t", body=b"y"))
    place.dispatch()
    high = bounds(place, "t")[1]
    place.store.purge_topic("t")
    place.store.close()
    [queue] = StoreDirectory("/s", config=place.config, file_system=place.files).queues()
    assert (queue.min_offset, queue.max_offset) == (high, high)
    [queue] = StoreDirectory("/s", config=place.config, file_system=place.files, raw=True).queues()
    assert queue.min_offset == 0
    place.open()


def test_needs_are_looked_up_once_a_queue(place, monkeypatch):
    place.fill(1)
    place.store.purge_topic("t")
    place.store.put(Message(topic="u", body=bytes(SIZE // 2)))
    place.dispatch()
    topics = place.store.retention.topics
    queue = place.store.inner.queues.get("u", 0)
    first = topics.needs()
    assert first.default_from == queue.unit(0).phy_offset
    monkeypatch.setattr(queue.files, "read", lambda *_: pytest.fail("asked again"))
    assert topics.needs() == first


# -- deleted topics


def lose_queues(place):
    """What a rebuild starts from: no queue, and no hint of ours."""
    for topic in list(place.files.list("/s/consumequeue")):
        for queue in place.files.list(f"/s/consumequeue/{topic}"):
            for name in place.files.list(f"/s/consumequeue/{topic}/{queue}"):
                place.files.remove(f"/s/consumequeue/{topic}/{queue}/{name}")
    for name in place.files.list("/s/tailrace"):
        if name.startswith("progress"):
            place.files.remove(f"/s/tailrace/{name}")


def test_a_deleted_topic_does_not_come_back_when_queues_are_rebuilt(place):
    place.fill(1, "gone")
    place.fill(1, "stays")
    place.store.delete_topics({"gone"})
    place.store.close()
    lose_queues(place)
    place.open()
    assert {topic for topic, *_ in place.store.queues()} == {"stays"}
    assert place.store.topics.select("gone") is None
    assert bounds(place, "stays")[1] > 5
    place.store.put(Message(topic="gone", body=b"again"))
    reopen(place)
    assert [m.body for m in place.store.read("gone")] == [b"again"]
    assert [m.queue_offset for m in place.store.read("gone")] == [place.store.queue_of("gone", 0).begin_of_life]


def test_deleted_topics_are_forgotten_over_a_bound_and_the_oldest_first(place, monkeypatch):
    monkeypatch.setattr(lives, "MOST_ENDED", 3)
    names = [f"gone{number}" for number in range(5)]
    for name in names:
        place.fill(1, name)
        place.store.delete_topics({name})
    place.fill(2, "stays")
    place.clock.advance(100 * HOUR)
    place.store.retention.delete_now()
    assert place.store.min_phy_offset >= place.store.inner.lives.deleted_up_to("gone4")
    place.store.retention.topics.step()
    reopen(place)
    known = json.loads(place.read(STATE))
    assert sorted(known["deletedTopics"]) == sorted(known["nextOffsets"]) == names[2:]
    assert [place.store.queue_of(name, 0).begin_of_life > 0 for name in names] == [False, False, True, True, True]
    assert [place.store.put(Message(topic=name, body=b"x")).queue_offset > 0 for name in names] == [
        False, False, True, True, True]


def test_a_deleted_lmq_queue_is_forgotten_when_the_log_is_past_it(place):
    name = "%LMQ%a"
    place.fill(1)
    place.store.delete_topics({name}, missing_ok=True)
    place.store.retention.topics.step()
    assert name in json.loads(place.read(STATE))["deletedTopics"]
    place.fill(3)
    place.clock.advance(100 * HOUR)
    place.store.retention.delete_now()
    place.store.retention.topics.step()
    reopen(place)
    assert name not in json.loads(place.read(STATE))["deletedTopics"]


def test_a_deletion_that_cannot_be_noted_removes_nothing(place, monkeypatch):
    place.fill(1)
    place.store.purge_topic("t")
    low, high = bounds(place, "t")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(place.files, "rename", full)
        with pytest.raises(OSError, match="no room"):
            place.store.delete_topics({"t"})
    assert bounds(place, "t") == (low, high)
    reopen(place)
    assert bounds(place, "t") == (low, high)


def test_queues_of_deleted_topics_are_removed_by_hand(place):
    place.fill(1)
    place.fill(1, "u")
    place.store.topics.delete("t")
    assert place.store.deletion.delete_unused().topics == ["t"]
    assert place.store.deletion.delete_unused().topics == []
    assert {topic for topic, *_ in place.store.queues()} == {"u"}
