"""Topics that are deleted and created again: no offset is used twice, and no message is of the wrong life."""

from __future__ import annotations

import errno
import json
import logging
import threading

import pytest
from retention_place import Place

from tailrace import Message
from tailrace.errors import UnknownTopicError
from tailrace.model import GetMessageStatus
from tailrace.store.directory import StoreDirectory
from tailrace.store.lives import Ended, EndedLives
from tailrace.store.retention.min_offsets import decode_ended, encode_ended
from tailrace.store.verification import Verification

STATE = "/s/config/tailrace-min-offsets.json"
PER_FILE = 5
"""Units of a queue file of `Place`."""


@pytest.fixture
def place():
    made = Place()
    yield made
    made.store.close()


def put(place, *bodies, topic="t", queue_id=0):
    offsets = [
        place.store.put(Message(topic=topic, body=body.encode()), queue_id=queue_id).queue_offset for body in bodies]
    place.dispatch()
    return offsets


def delete(place, topic="t"):
    assert topic in place.store.delete_topics({topic}, missing_ok=True).topics


def bodies(place, topic="t", queue_id=0):
    try:
        return [(message.queue_offset, message.body.decode()) for message in place.store.read(topic, queue_id)]
    except UnknownTopicError:
        return []


def findings(place):
    return list(Verification(StoreDirectory("/s", config=place.config, file_system=place.files, raw=True)).findings())


def lose_progress(place):
    for name in place.files.list("/s/tailrace"):
        if name.startswith("progress"):
            place.files.remove(f"/s/tailrace/{name}")


def lose_queues(place):
    for topic in list(place.files.list("/s/consumequeue")):
        for queue in place.files.list(f"/s/consumequeue/{topic}"):
            for name in place.files.list(f"/s/consumequeue/{topic}/{queue}"):
                place.files.remove(f"/s/consumequeue/{topic}/{queue}/{name}")
    lose_progress(place)


def killed(place):
    """The directory as a process leaves it that was killed after everything was flushed."""
    place.store.flush()
    place.store.inner.release()
    place.store._lock.release()
    place.files.open("/s/abort", writable=True, create=True).close()


def reopened(place, how):
    if how == "killed":
        killed(place)
    else:
        place.store.close()
    if how == "rebuilt":
        lose_queues(place)
    place.open()


WAYS = ("closed", "killed", "rebuilt")


@pytest.mark.parametrize("how", WAYS)
def test_a_queue_continues_at_the_next_file_after_its_last_offset(place, how):
    assert put(place, "a", "b") == [0, 1]
    delete(place)
    assert put(place, "c") == [5]
    reopened(place, how)
    assert put(place, "d") == [6]
    assert bodies(place) == [(5, "c"), (6, "d")]
    delete(place)
    reopened(place, how)
    assert bodies(place) == []
    assert put(place, "e", "f", "g", "h", "i") == [10, 11, 12, 13, 14]
    delete(place)
    assert put(place, "j") == [15]
    reopened(place, how)
    assert bodies(place) == [(15, "j")]
    place.store.close()
    assert findings(place) == []
    place.open()


@pytest.mark.parametrize("how", WAYS)
def test_a_queue_without_a_message_stays_where_it_begins(place, how):
    put(place, "a")
    delete(place)
    for _ in range(3):
        delete(place)
        reopened(place, how)
    assert put(place, "b") == [5]
    assert put(place, "b", queue_id=1) == [0]


def test_records_that_are_not_dispatched_belong_to_the_ended_life(place):
    put(place, "a")
    place.store.put(Message(topic="t", body=b"late"))
    delete(place)
    place.store.put(Message(topic="t", body=b"new"))
    place.dispatch()
    assert bodies(place) == [(5, "new")]
    assert place.store.inner.lives.deleted_up_to("t") > 0
    assert place.store.inner.lives.deleted_up_to("u") == 0


def test_a_reader_with_an_offset_of_the_ended_life_is_told_that_it_is_too_small(place):
    put(place, "a", "b", "c")
    delete(place)
    for offset, status, following in (
        (0, GetMessageStatus.OFFSET_TOO_SMALL, 5), (3, GetMessageStatus.OFFSET_TOO_SMALL, 5),
        (5, GetMessageStatus.OFFSET_OVERFLOW_ONE, 5), (9, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
    ):
        found = place.store.get_message("t", 0, offset, 32)
        assert (found.status, found.next_begin_offset, found.min_offset, found.max_offset) == (status, following, 5, 5)
    assert (place.store.queue_of("t", 0).min, place.store.queue_of("t", 0).max) == (5, 5)
    assert place.store.queue_of("t", 0).by_time(0) == 5
    put(place, "d")
    found = place.store.get_message("t", 0, 3, 32)
    assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 5)
    assert place.store.queue_of("t", 0).begin_of_life == place.store.min_offset_in_queue("t", 0) == 5


def test_messages_of_the_ended_life_are_not_found_by_key(place):
    for body in (b"old", b"new"):
        place.store.put(Message(topic="t", body=body, keys=["k"]))
        place.dispatch()
        if body == b"old":
            delete(place)
    assert [message.body for message in place.store.query_message("t", "k")] == [b"new"]


def test_a_directory_that_is_only_read_shows_the_new_life(place):
    put(place, "a", "b")
    delete(place)
    put(place, "c")
    killed(place)
    lose_queues(place)
    for crashed in (True, False):
        if not crashed:
            place.open()
            place.store.close()
        directory = StoreDirectory("/s", config=place.config, file_system=place.files)
        [queue] = directory.queues()
        assert (queue.topic, queue.min_offset, queue.max_offset) == ("t", 5, 6)
        assert directory.lives.begin("t", 0) == 5
    place.open()


def test_a_deletion_that_cannot_be_noted_loses_no_message_that_was_put_meanwhile(place, monkeypatch):
    put(place, "a", "b")

    def fail(*_, before=lambda: place.store.put(Message(topic="t", body=b"meanwhile"))):
        before()
        raise OSError(errno.ENOSPC, "no room")

    place.store.create_topic("t")
    with monkeypatch.context() as patch:
        patch.setattr(place.files, "rename", fail)
        with pytest.raises(OSError, match="no room"):
            place.store.delete_topics({"t"})
    assert place.store.topics.select("t") is not None
    put(place, "after")
    expected = [(0, "a"), (1, "b"), (5, "meanwhile"), (6, "after")]
    assert bodies(place) == expected
    for how in WAYS:
        reopened(place, how)
        assert bodies(place) == expected
    with monkeypatch.context() as patch:
        patch.setattr(place.files, "rename", lambda *_: fail(before=lambda: None))
        with pytest.raises(OSError, match="no room"):
            place.store.delete_topics({"t"})
    assert put(place, "next") == [7]


def test_a_new_life_is_found_without_the_note(place):
    """The log has no room for the messages between the lives, and the state file is lost."""
    put(place, "a")
    delete(place)
    put(place, "b", "c")
    place.store.close()
    place.files.remove(STATE)
    lose_queues(place)
    place.open()
    assert bodies(place) == [(0, "a"), (5, "b"), (6, "c")]


@pytest.mark.parametrize("begin", [5, 10, 15])
def test_an_empty_file_of_a_later_life_hides_no_message_if_the_note_is_lost(place, begin):
    """A power loss may leave the first file of a life and take its units; each earlier life has one message."""
    for body in "abc":
        put(place, body)
        delete(place)
    killed(place)
    place.files.remove(STATE)
    place.files.remove(f"{STATE}.bak")
    lose_queues(place)
    place.files.makedirs("/s/consumequeue/t/0")
    file = place.files.open(f"/s/consumequeue/t/0/{20 * begin:020}", writable=True, create=True)
    file.truncate(100)
    file.close()
    place.open()
    assert bodies(place) == [(0, "a"), (5, "b"), (10, "c")]


def test_a_queue_that_a_java_broker_began_again_hides_nothing(place):
    put(place, "a", "b")
    delete(place)
    place.store.inner.commit_log.queue_offsets["t", 0] = 0  # a Java broker does not know of the deletion
    put(place, "c", "d")
    for how in WAYS:
        reopened(place, how)
        assert bodies(place) == [(0, "c"), (1, "d")]
    assert put(place, "e") == [2]
    delete(place)
    assert put(place, "f") == [5]


def test_a_queue_that_a_java_broker_built_from_the_log_shows_the_new_life_only(place):
    put(place, "a", "b")
    place.store.close()
    files = place.files
    kept = {name: place.read(f"/s/consumequeue/t/0/{name}") for name in files.list("/s/consumequeue/t/0")}
    place.open()
    delete(place)
    place.store.close()
    files.makedirs("/s/consumequeue/t/0")
    for name, data in kept.items():  # built again from the log, which still has the records
        place.write(f"/s/consumequeue/t/0/{name}", data)
    lose_progress(place)
    state = place.read(STATE)
    files.remove(STATE)
    place.open()
    assert put(place, "c") == [2], "a broker that does not know of the deletion continues"
    place.store.close()
    place.write(STATE, state)
    place.open()
    assert bodies(place) == [(2, "c")]
    directory = StoreDirectory("/s", config=place.config, file_system=files)
    assert [(queue.min_offset, queue.max_offset) for queue in directory.queues()] == [(2, 3)]


def test_a_queue_that_is_left_by_a_deletion_is_removed_by_the_next_open(place, monkeypatch, caplog):
    put(place, "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(place.files, "remove", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "bad", path)))
        with caplog.at_level(logging.WARNING):
            delete(place)
    assert "files of a deleted topic stay" in caplog.text
    assert bodies(place) == []
    for how in ("closed", "killed"):
        reopened(place, how)
        assert place.store.queues() == []
        assert place.files.list("/s/consumequeue") == []
    assert put(place, "c") == [5]


@pytest.mark.parametrize("lost", [0, 1])
def test_queue_files_of_the_ended_life_that_a_power_loss_brings_back_do_not_hide_the_new_one(place, lost):
    """The removal of a queue's files is durable only after a sync of the directory; zeros may be all that they have."""
    put(place, *"abcdefg")
    delete(place)
    at = place.store.put(Message(topic="t", body=bytes(50)), queue_id=0).phy_offset
    put(place, "newer")
    log = place.names()[0]
    killed(place)
    lose_progress(place)
    queue = "/s/consumequeue/t/0"
    for name in place.files.list(queue):
        place.files.remove(f"{queue}/{name}")
    old = place.files.open(f"{queue}/{0:020}", writable=True, create=True)
    old.truncate(100)
    old.close()
    if lost:  # the first message of the new life is damaged
        place.files._files[log].volatile[at + 100] ^= 1
    place.open()
    assert [offset for offset, _ in bodies(place)] == [10, 11][lost:]
    assert "00000000000000000000" not in place.files.list(queue)
    assert findings(place) == []


def test_an_end_of_the_log_that_is_lost_does_not_hide_new_messages(place):
    put(place, "a")
    end = place.store.max_phy_offset
    put(place, "b", "c")
    delete(place)
    killed(place)
    [name] = place.files.list("/s/commitlog")
    file = place.files.open(f"/s/commitlog/{name}", writable=True)
    file.pwrite(bytes(4096 - end), end)
    file.close()
    lose_progress(place)
    place.open()
    assert place.store.max_phy_offset == end
    assert json.loads(place.read(STATE))["deletedTopics"] == {"t": end}
    assert put(place, "new") == [5]
    for how in WAYS:
        reopened(place, how)
        assert bodies(place) == [(5, "new")]


def test_the_state_file_of_an_earlier_release_is_read(place):
    put(place, "a")
    delete(place)
    place.store.close()
    state = json.loads(place.read(STATE))
    assert state.pop("nextOffsets") == {"t": {"0": 5}}
    place.write(STATE, json.dumps(state).encode())
    lose_queues(place)
    place.open()
    assert bodies(place) == []
    assert put(place, "b") == [0]
    reopened(place, "rebuilt")
    assert bodies(place) == [(0, "b")]


def test_the_state_file_keeps_every_deletion():
    table = {"b": Ended(7, {}), "a": Ended(0, {3: 10, 0: 5})}
    assert decode_ended({**json.loads(json.dumps(encode_ended(table))), "else": 1}) == table
    assert decode_ended({"deletedTopics": {"a": 1, "b": "x", "c": -1}, "nextOffsets": {"a": {"x": 1, "2": -1}}}) == {
        "a": Ended(1, {})}
    assert decode_ended({"deletedTopics": 5, "nextOffsets": []}) == {}


def test_where_the_next_life_begins():
    lives = EndedLives(5)
    assert [lives.next_begin("t", 0, end) for end in (0, 1, 4, 5, 6)] == [0, 5, 5, 5, 10]
    lives.end({"t": Ended(100, {0: 10})})
    assert [lives.next_begin("t", 0, end) for end in (0, 3, 10, 11)] == [10, 10, 10, 15]
    assert (lives.until, lives.deleted_up_to("t"), lives.begin("t", 0), lives.begin("t", 1)) == (100, 100, 10, 0)
    lives.lower(50)
    assert (lives.until, lives.deleted_up_to("t"), lives.is_lowered) == (50, 50, True)
    lives.forget(["t"])
    assert (lives.until, lives.deleted_up_to("t")) == (0, 0)


def test_dispatch_and_deletion_exclude_each_other(place):
    """A record whose unit is being written when the topic is deleted leaves no file, and the next life is whole."""
    put(place, "a")
    queue = place.store.inner.queues.get("t", 0)
    append, deleter = queue.append, threading.Thread(target=lambda: delete(place))

    def append_while_deleting(units):
        deleter.start()
        deleter.join(0.2)
        assert deleter.is_alive(), "the deletion waits for the dispatch"
        return append(units)

    queue.append = append_while_deleting
    put(place, "b")
    deleter.join(10)
    assert place.files.list("/s/consumequeue") == []
    assert place.store.inner.queues.dirty == set()
    assert put(place, "c") == [5]
    assert bodies(place) == [(5, "c")]


def test_a_flush_that_is_under_way_does_not_bring_progress_of_a_deleted_queue_back(place):
    put(place, "a")
    flush = place.store.inner.flush_consume_queue
    deleter = threading.Thread(target=lambda: delete(place))
    sync = place.store.inner.queues.flush

    def flush_while_deleting(least):
        deleter.start()
        deleter.join(0.2)
        assert deleter.is_alive(), "the deletion waits for the flush"
        return sync(least)

    place.store.inner.queues.flush = flush_while_deleting
    flush.flush(0)
    place.store.inner.queues.flush = sync
    deleter.join(10)
    assert place.store.inner.progress.read() is None
    assert not flush._pending


def test_an_expired_file_is_not_deleted_while_its_queue_is_removed(place):
    place.fill(3)
    cleaner = place.store.retention.clean_consume_queue
    queue = place.store.inner.queues.get("t", 0)
    cleaner._pending, cleaner._min_phy_offset = iter([queue]), place.store.max_phy_offset
    delete(place)
    cleaner.step()
    assert not cleaner._failed
    assert cleaner.deleted_queue_files == 0


def test_dispatch_lets_a_deletion_go_first(place):
    """Dispatch that always has more to do neither finishes its work before a deletion nor begins more."""
    reput, order, is_in, may_leave = place.store.inner.reput, [], threading.Event(), threading.Event()
    for _ in range(3):
        place.store.put(Message(topic="t", body=b"x"))

    def pause():
        with reput.paused():
            order.append("pause")
            is_in.set()
            may_leave.wait(10)
            order.append("over")

    pauser, dispatch = threading.Thread(target=pause), reput._dispatcher.dispatch_short

    def dispatch_until_a_pause_waits(*arguments):
        pauser.start()
        while not reput._pauses:
            pauser.join(0.001)
        order.append("dispatch")
        return dispatch(*arguments)

    reput._dispatcher.dispatch_short = dispatch_until_a_pause_waits
    reput.step()
    assert is_in.wait(10)
    reput._dispatcher.dispatch_short = dispatch
    place.store.put(Message(topic="t", body=b"y"))
    follower = threading.Thread(target=lambda: (reput.step(), order.append("step")))
    follower.start()
    follower.join(0.1)
    assert order == ["dispatch", "pause"]
    may_leave.set()
    follower.join(10)
    pauser.join(10)
    assert order == ["dispatch", "pause", "over", "step"]
