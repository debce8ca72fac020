"""What the dispatch of a slave asks before it makes a queue, or begins one again."""

from __future__ import annotations

import errno

import pytest
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.errors import DispatchWaitsError
from tailrace.node.store_opening import StoreParts
from tailrace.store.lives import Ended
from tailrace.store.slave_lives import begin_queue_again, end_lives
from tailrace.testing import CrashFileSystem, SimClock

SIZES = {
    "mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 64,
    "max_index_num": 256, "commit_log_allocate_step": 4096, "timer_wheel_enable": False}


def opened(files, **more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, file_system=files, clock=SimClock()))


class Follower:
    """Takes notes, and lets nothing happen."""

    def __init__(self):
        self.known, self.asked, self.again = {"t", "u"}, [], []

    def may_create(self, topic):
        self.asked.append(topic)
        if topic not in self.known:
            raise DispatchWaitsError(topic)

    def begins_again(self, topic, queue_id, phy_offset):
        self.again.append((topic, queue_id, phy_offset))
        raise DispatchWaitsError(topic)


def as_java_deletes(store, topic):
    """Have a master continue a topic as RocketMQ does after a deletion: its offsets begin at 0."""
    for key in [key for key in store.inner.commit_log.queue_offsets if key[0] == topic]:
        store.inner.commit_log.queue_offsets[key] = 0
    store.inner.queues.delete({key for key in store.inner.queues.table if key[0] == topic})


def put(store, body, queue_id=0, topic="t"):
    return store.put(Message(topic=topic, body=body), queue_id=queue_id).phy_offset


def copy(master, slave, until=None):
    log, at = master.inner.commit_log, slave.max_phy_offset
    until = log.max_offset if until is None else until
    slave.inner.append_raw(at, memoryview(bytearray(log.read(at, until - at))))


@pytest.fixture
def pair():
    files = CrashFileSystem()
    with opened(CrashFileSystem()) as master, opened(files, broker_role=BrokerRole.SLAVE) as slave:
        follower = Follower()
        slave.inner.reput.follow(follower)
        yield master, slave, follower


def seen(store, queue_id=0, topic="t"):
    return [(one.queue_offset, one.body) for one in read_there(store, topic, queue_id)]


def test_dispatch_waits_for_a_topic_that_is_not_known(pair):
    master, slave, follower = pair
    put(master, b"0")
    put(master, b"1", topic="new")
    put(master, b"2")
    copy(master, slave)
    assert not slave.inner.reput.step(), "it does not spin"
    assert not slave.inner.reput.has_dispatched(slave.max_phy_offset)
    assert slave.inner.queues.get("new", 0) is None
    follower.known.add("new")
    slave.wait_dispatched()
    assert (seen(slave), seen(slave, topic="new")) == ([(0, b"0"), (1, b"2")], [(0, b"1")])
    asked = len(follower.asked)
    put(master, b"3", topic="new")
    copy(master, slave)
    slave.wait_dispatched()
    assert len(follower.asked) == asked, "only before the first unit of a queue"


def test_few_records_take_the_short_step_unless_a_body_is_damaged(pair, monkeypatch):
    """It makes the checks of a longer step, so that a record from the network is never trusted more."""
    master, slave, _ = pair
    put(master, b"0")
    put(master, b"1")
    copy(master, slave)
    long = []
    dispatcher = slave.inner.reput._dispatcher
    dispatch = dispatcher.dispatch_batch
    monkeypatch.setattr(type(dispatcher), "dispatch_batch", lambda _, batch: [long.append(1), dispatch(batch)])
    slave.wait_dispatched()
    assert (seen(slave), long) == ([(0, b"0"), (1, b"1")], [])
    at = slave.max_phy_offset
    put(master, b"body of this")
    log = master.inner.commit_log
    data = bytearray(log.read(at, log.max_offset - at))
    data[data.index(b"body of this")] ^= 1
    slave.inner.append_raw(at, memoryview(data))
    slave.inner.reput.step()
    assert (seen(slave), slave.inner.reput.reput_from_offset) == ([(0, b"0"), (1, b"1")], at)


@pytest.mark.parametrize("in_one_step", [True, False])
@pytest.mark.parametrize("many", [1, 300])
def test_a_queue_that_begins_again_at_0_has_only_the_new_messages(pair, in_one_step, many):
    master, slave, follower = pair
    for number in range(5):
        put(master, b"old %d" % number)
        put(master, b"other %d" % number, queue_id=1)
    if not in_one_step:
        copy(master, slave)
        slave.wait_dispatched()
        assert len(seen(slave)) == 5
    as_java_deletes(master, "t")
    places = [put(master, b"new 0", queue_id=1)]
    places += [put(master, b"new %d" % number) for number in range(many)]
    copy(master, slave)
    for _ in range(4):
        slave.inner.reput.step()
        while follower.again:
            begin_queue_again(slave.inner, *follower.again.pop())
    assert slave.inner.reput.has_dispatched(slave.max_phy_offset)
    assert seen(slave) == [(number, b"new %d" % number) for number in range(many)]
    assert seen(slave, 1) == [(0, b"new 0")]
    put(master, b"last")
    copy(master, slave)
    slave.wait_dispatched()
    assert seen(slave)[-1] == (many, b"last")
    assert places == sorted(places)


@pytest.mark.parametrize("is_deleted_only", [True, False])
def test_a_life_ends_when_its_queue_can_be_read_again(is_deleted_only):
    """Nothing is noted before, because lives that are noted are not ended a second time."""
    files, noted = CrashFileSystem(), []
    with opened(CrashFileSystem()) as master, opened(files, broker_role=BrokerRole.SLAVE) as slave:
        for number in range(5):
            put(master, b"old %d" % number)
        ended = {"t": Ended(master.max_phy_offset, {0: 20})}
        if not is_deleted_only:
            put(master, b"new")
        copy(master, slave)
        slave.wait_dispatched()

        def fail(_number, name, path, *_):
            if name == "pread" and "/consumequeue/" in path:
                raise OSError(errno.EIO, "Input/output error", path)

        files.before_read = fail
        with pytest.raises(OSError, match="Input/output error"):
            end_lives(slave.inner, ended, noted.append)
        files.before_read = None
        assert (noted, slave.inner.lives.deleted_up_to("t")) == ([], 0)
        assert end_lives(slave.inner, ended, noted.append) == {"t"}
        assert noted == [ended]
        assert seen(slave) == ([] if is_deleted_only else [(5, b"new")])


def test_a_dispatch_that_is_repeated_begins_nothing_again(pair):
    master, slave, follower = pair
    for number in range(5):
        put(master, b"%d" % number)
    copy(master, slave)
    slave.wait_dispatched()
    slave.inner.reput.start_from(0, None)
    slave.wait_dispatched()
    assert follower.again == []
    assert len(seen(slave)) == 5
