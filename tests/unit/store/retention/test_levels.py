"""Messages of delay levels in a file that must be deleted: in time, not early, and no loss without a report."""

from __future__ import annotations

import logging

import pytest
from retention_place import Place

from tailrace import Message
from tailrace.formats.commitlog import decode_message
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.store.dispatch import parse_delay_levels
from tailrace.store.retention.forced_deletions import ForcedDeletions

LEVELS = "1s 60s 600s"


def put_levels(place, topic="later", level=3, count=3, step_ms=100):
    """Messages of a level with the moment they are due."""
    due = {}
    for number in range(count):
        body = b"%s %d" % (topic.encode(), number)
        result = place.store.put(Message(
            topic=topic, body=body, delay_level=level, properties={"UNIQ_KEY": f"{topic}-{number}"}))
        stored = place.store.look_message_by_offset(result.phy_offset)
        due[body] = stored.store_timestamp + parse_delay_levels(LEVELS)[level - 1]
        place.clock.advance(step_ms)
    return due, result.phy_offset


def arrivals(place, topic):
    """(body, moment) of what was delivered."""
    return [(m.body, m.store_timestamp) for m in place.store.read(topic)]


def force_out(place, last):
    """Fill the disk until the log begins after a position; then there is room again."""
    place.use(95)
    for _ in range(10):
        place.run(10_000)
        if place.store.min_phy_offset > last:
            break
    place.use(10)
    place.run(10_000)
    assert place.store.is_writeable


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("topic", ["later", "%RETRY%orders"])
def test_a_message_of_a_delay_level_is_handed_to_the_wheel_and_delivered_on_time(
    topic, stays, monkeypatch
):
    place = Place(message_delay_level=LEVELS)
    due, last = put_levels(place, topic)
    place.fill(3)
    place.run_timers()
    if stays:  # the copies are there, and so is the file
        def refuse(_file):
            raise OSError("not now")
        monkeypatch.setattr(place.store.retention.trash, "take", refuse)
    force_out(place, last)
    assert (place.store.min_phy_offset > last) is not stays
    stats = place.store.stats()
    assert (stats["scheduleHandedOver"], stats["forcedDeletedTimers"]) == (3, 0)
    assert stats["schedulePending"] == 0
    later, _ = put_levels(place, topic + "2", count=1)  # its level continues
    place.run_timers(max(due.values()) - place.clock.now_ms() - 2000)
    assert arrivals(place, topic) == []
    place.run_timers(4000)
    found = arrivals(place, topic)
    assert [body for body, _ in found] == list(due), "in their order"
    for body, at in found:
        assert due[body] <= at <= due[body] + 2000
    if not stays:
        record = ForcedDeletions(place.files, "/s").read()[0]
        assert (record["timersRewritten"], record["timersLost"]) == (3, 0)
        assert set(record["messages"]) == {"t"}, "what waits elsewhere is not lost"
    monkeypatch.undo()
    place.store.close()
    place.open()
    place.run_timers(700_000)
    assert arrivals(place, topic) == found, "and not again"
    [(body, at)] = arrivals(place, topic + "2")
    assert later[body] <= at <= later[body] + 2000
    place.store.close()


def test_a_message_that_was_handed_over_has_its_topic_and_no_level():
    place = Place(message_delay_level=LEVELS)
    original, last = put_levels(place, count=1)
    place.fill(2)
    force_out(place, last)
    place.dispatch()
    queue = place.store.inner.queues.get("rmq_sys_wheel_timer", 0)
    copy = decode_message(place.log.record_at(queue.unit(0).phy_offset))
    [moment] = original.values()
    out = (moment - 1) // 1000 * 1000
    assert copy.properties == {
        "UNIQ_KEY": "later-0", "REAL_TOPIC": "later", "REAL_QID": "0",
        "TIMER_DELIVER_MS": str(moment), "TIMER_OUT_MS": str(out)}
    assert copy.body == b"later 0"
    place.store.close()


def test_without_the_wheel_a_level_of_the_same_or_longer_delay_is_used():
    place = Place(message_delay_level=LEVELS, timer_wheel_enable=False)
    due, last = put_levels(place)
    place.fill(2)
    place.clock.advance(560_000)  # 40 s are left
    force_out(place, last)
    place.dispatch()
    assert place.store.stats()["schedulePendingByLevel"] == {2: 3, 3: 0}
    place.run_timers(70_000)
    found = arrivals(place, "later")
    assert [body for body, _ in found] == list(due)
    for body, at in found:
        assert due[body] <= at <= due[body] + 60_000
    place.store.close()


@pytest.mark.parametrize("real_topic", ["", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_message_that_no_topic_can_store_is_parked_at_its_time(real_topic):
    place = Place(message_delay_level=LEVELS)
    place.store.put(Message(topic="later", body=b"x", delay_level=3))
    properties = encode_properties({"DELAY": "3", "REAL_TOPIC": real_topic, "REAL_QID": "0"})
    last = place.store.inner.put(MessageExtBrokerInner(
        "SCHEDULE_TOPIC_XXXX", 2, b"nowhere", properties)).phy_offset
    place.fill(2)
    force_out(place, last)
    place.run_timers(1_300_000)
    assert [m.body for m in place.store.read("%DLQ%TAILRACE_TIMER")] == [b"nowhere"]
    place.store.close()


def test_properties_that_leave_no_room_for_a_timers_go_to_a_level():
    place = Place(message_delay_level=LEVELS, mapped_file_size_commit_log=1 << 17)
    long = {"UNIQ_KEY": "long", "filler": "x" * (32767 - 70)}
    result = place.store.put(Message(topic="later", body=b"long", delay_level=3, properties=long))
    due, last = put_levels(place, count=1)
    moment = place.clock.now_ms() - 100 + 600_000
    place.fill(2, step_ms=10)
    place.clock.advance(545_000)
    force_out(place, last)
    place.run_timers(70_000)
    assert place.store.stats()["scheduleHandedOver"] == 2
    assert place.store.stats()["forcedDeletedTimers"] == 0
    found = dict(arrivals(place, "later"))
    by_timer = [m.body for m in place.store.read("later") if "TIMER_OUT_MS" in m.properties]
    assert by_timer == [b"later 0"]
    assert result.phy_offset < last
    assert moment <= found[b"long"] <= moment + 60_000, "by the level of a minute"
    assert due[b"later 0"] <= found[b"later 0"] <= due[b"later 0"] + 2000
    place.store.close()


def test_a_file_of_only_delayed_messages_is_not_copied_and_its_loss_is_reported(caplog):
    place = Place(message_delay_level=LEVELS)
    due, last = put_levels(place, count=45)
    place.fill(1)
    with caplog.at_level(logging.WARNING):
        force_out(place, 1)
    stats = place.store.stats()
    assert stats["scheduleHandedOver"] == 0
    assert stats["forcedDeletedTimers"] > 10
    assert f"timers_lost={stats['forcedDeletedTimers']}" in caplog.text
    place.run_timers(700_000)
    assert len(arrivals(place, "later")) == len(due) - stats["forcedDeletedTimers"]
    place.store.close()


def test_a_log_without_room_loses_the_rest_of_a_level_and_tells_how_many(monkeypatch):
    place = Place(message_delay_level=LEVELS)
    due, last = put_levels(place, count=5)
    place.fill(2)
    inside = place.store.inner
    put, seen = inside.put, []

    def full(message, **kind):
        seen.append(message)
        if len(seen) > 2:
            return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="no room")
        return put(message, **kind)
    monkeypatch.setattr(inside, "put", full)
    place.use(95)
    place.run(70_000)
    monkeypatch.undo()
    assert place.store.min_phy_offset > last
    stats = place.store.stats()
    assert (stats["scheduleHandedOver"], stats["forcedDeletedTimers"]) == (2, 3)
    place.use(10)
    place.run(10_000)
    place.run_timers(700_000)
    assert [body for body, _ in arrivals(place, "later")] == list(due)[:2]
    place.store.close()
