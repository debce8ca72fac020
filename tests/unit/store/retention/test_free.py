"""A request to free bytes: the oldest files without a pin are deleted, whatever their age, and no more than needed."""

from __future__ import annotations

import pytest
from retention_place import HOUR, SIZE, Place

from tailrace import Message
from tailrace.errors import StoreError
from tailrace.model import MessageExtBrokerInner
from tailrace.store.retention.forced_deletions import ForcedDeletions
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.store.retention.rules import Rule

FOREVER = 1 << 50


@pytest.fixture
def place():
    made = Place(hour=12)
    yield made
    made.store.close()


def test_young_files_are_deleted_until_the_bytes_are_freed(place):
    place.fill(5)
    before = place.names()
    planned = place.clean.plan_free(SIZE + 1)
    assert place.names() == before, "a plan deletes nothing"
    done = place.store.retention.free_now(SIZE + 1)
    assert place.names() == before[2:] == place.on_disk()
    assert done == planned
    assert done.files == [name.rpartition("/")[2] for name in before[:2]]
    assert (done.freed_bytes, done.stopped, done.ended) == (2 * SIZE, "", True)
    assert place.files.list("/s/tailrace/trash") == []
    queue = place.store.inner.queues.get("t", 0)
    assert queue.unit(queue.min_offset).phy_offset == place.store.min_phy_offset == 2 * SIZE


def test_what_is_deleted_before_its_time_is_counted_and_on_record(place):
    place.fill(3)
    place.store.retention.free_now(1)
    stats = place.store.stats()
    assert (stats["deletedFiles"], stats["forcedDeletedFiles"]) == (1, 1)
    assert stats["forcedDeletedMessages"] > 0
    place.clock.advance(80 * HOUR)
    place.store.retention.free_now(1)
    stats = place.store.stats()
    assert (stats["deletedFiles"], stats["forcedDeletedFiles"]) == (2, 1), "the second one had expired"
    [entry] = ForcedDeletions(place.files, "/s").read()
    assert (entry["file"], entry["reason"]) == ("0" * 20, "1 bytes were requested")
    assert entry["messages"] == {"t": stats["forcedDeletedMessages"]}


def test_the_last_file_stays_and_is_the_reason(place):
    place.fill(2)
    done = place.store.retention.free_now(FOREVER)
    assert len(done.files) == 2
    assert done.stopped == f"/s/commitlog/{2 * SIZE:020d} stays, it is the last file"
    assert place.store.retention.free_now(1).files == []


@pytest.mark.parametrize("kind", list(PinKind))
@pytest.mark.parametrize("hours", [0, 100])
def test_a_pin_stops_it_also_where_a_full_disk_would_not(place, kind, hours):
    place.fill(4)
    place.clock.advance(hours * HOUR)
    pins = [Pin(kind, SIZE + 5, "somebody")]
    place.clean.needs.pins.append(lambda: pins)
    done = place.store.retention.free_now(FOREVER)
    assert done.files == ["0" * 20]
    rule = Rule.PINNED if hours else Rule.HELD
    assert done.stopped == (
        f"/s/commitlog/{SIZE:020d} stays, {rule.value}: {kind.value} somebody from {SIZE + 5}")
    assert place.store.is_writeable, "no put is refused because of it"
    pins.clear()
    assert len(place.store.retention.free_now(2 * SIZE).files) == 2


def test_a_pending_timer_of_the_store_itself_stops_it():
    place = Place(hour=12, timer_wheel_enable=True)
    place.fill(1)
    place.store.put(Message(topic="later", body=b"x", delay_level=18))
    place.fill(2)
    done = place.store.retention.free_now(FOREVER)
    assert done.files == ["0" * 20]
    assert "it is pinned: timer of delay level 18" in done.stopped
    place.store.close()


def test_topics_that_keep_messages_longer_do_not_stop_it(place):
    place.store.create_topic("t", attributes={"retention.ms": "-1"})
    place.fill(3)
    place.clock.advance(100 * HOUR)
    assert place.store.retention.delete_now() == 0
    assert len(place.store.retention.free_now(SIZE).files) == 1


def test_a_file_whose_queues_are_not_written_stays(place):
    while len(place.log.queue.files) < 3:
        place.store.put_inner(MessageExtBrokerInner("t", 0, bytes(900)))
    place.store.inner.flush_commit_log.flush()
    assert "its queues are not written yet" in place.store.retention.free_now(1).stopped
    place.dispatch()
    assert len(place.store.retention.free_now(1).files) == 1


def test_the_service_deletes_a_file_a_step_and_takes_one_request_at_a_time(place):
    place.fill(5)
    first = place.clean.request_free(2 * SIZE)
    with pytest.raises(StoreError, match="a request to free 16384 bytes is under way; 0 are freed"):
        place.clean.request_free(1)
    assert place.clean.step() is False, "the scheduler waits deleteCommitLogFilesInterval"
    assert (first.freed_bytes, first.ended) == (SIZE, False)
    place.clock.advance(80 * HOUR)
    assert place.clean.run_pass(manual=True) == 4, "a pass by hand in between"
    assert not first.ended
    place.clean.step()
    assert first.ended
    assert first.stopped.endswith("it is the last file")
    place.fill(1)
    assert place.clean.request_free(1) is place.clean.free_request
    place.clean.step()
    assert place.clean.free_request.done


def test_a_file_that_is_read_ends_it_and_is_deleted_later(place):
    place.fill(3)
    file = place.log.queue.files[0]
    lease = file.select(0, 10)
    done = place.store.retention.free_now(FOREVER)
    assert done.files == []
    assert done.stopped == f"{file.path} stays, it is being read or cannot be moved; it is tried again later"
    lease.release()
    place.run(130_000, step_ms=10_000)
    assert len(place.names()) == 3


def test_pin_sources_have_one_caller_at_a_time(place):
    """An administrator's plan in a thread of its own must not run them beside a pass of the service."""
    place.fill(3)
    asked = []

    def source():
        asked.append(place.clean._lock.locked())
        return ()

    place.clean.needs.pins.append(source)
    for call in (
        lambda: place.clean.plan_free(1), place.clean.verdicts, lambda: place.clean.run_free(1),
        lambda: place.clean.run_pass(manual=True), lambda: (place.clean.request_free(1), place.clean.step()),
    ):
        asked.clear()
        call()
        assert asked
        assert all(asked)
