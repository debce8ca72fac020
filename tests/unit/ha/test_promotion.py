"""A slave that becomes the master: what the old master has delivered is not delivered again, and the rest once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from broker_world import GROUP, ROOT, TOPIC, BrokerWorld
from pop_client import ack_fields, pop_fields, popped
from read_there import read_there

from tailrace import Message, MessageStore
from tailrace.config import BrokerRole
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreLockedError
from tailrace.formats.names import SCHEDULE_TOPIC
from tailrace.formats.remoting import RequestCode
from tailrace.ha.known_master import KnownMaster, write_known_master
from tailrace.ha.promotion import standing_of
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

STALE = ("consumerOffset.json", "delayOffset.json")
"""Files of the last copy, from before the deliveries of the old master."""


@pytest.fixture
def world():
    return BrokerWorld(CrashFileSystem(), SimClock(), sync=False)


def persisted(world):
    """The files of a copy of the metadata now."""
    world.persist()
    world.store.timer_services.delay_offsets.persist_if_changed()
    found = {}
    for name in (*STALE, "topics.json", "subscriptionGroup.json"):
        if world.files.exists(path := f"{ROOT}/config/{name}"):
            file = world.files.open(path)
            found[name] = file.pread(file.size(), 0)
    return found


def promoted(world, copied, *, killed=False):
    """A slave with the whole log and these copied files, as a master."""
    log, files = world.store.inner.commit_log, CrashFileSystem()
    config = dataclasses.replace(world.store.config, broker_role=BrokerRole.SLAVE)
    parts = StoreParts(services=False, file_system=files, clock=world.clock)
    slave = MessageStore.open(ROOT, config=config, broker_config=world.config, parts=parts)
    at = slave.max_phy_offset
    while at < log.max_offset:
        data = log.queue.read(at, log.max_offset - at)
        at = slave.inner.append_raw(at, memoryview(bytearray(data)))
    slave.wait_dispatched()
    files.makedirs(f"{ROOT}/config")
    if killed:
        files = files.killed()
    else:
        slave.close()
    for name, data in copied.items():
        file = files.open(f"{ROOT}/config/{name}", writable=True, create=True)
        file.truncate(0)
        file.pwrite(data, 0)
    return BrokerWorld(files, world.clock, sync=False)


def pop(world, **changes):
    number = world.ask(world.pop_part.service.pop_message, RequestCode.POP_MESSAGE, pop_fields(
        TOPIC, GROUP, world.clock.now_ms(), **changes))
    return popped(world.answer(number), TOPIC, "broker-a", GROUP)


def bodies(world, topic=TOPIC):
    return Counter(one.body for one in read_there(world.store, topic))


@pytest.mark.parametrize("killed", [False, True])
def test_a_checkpoint_is_revived_once(world, killed):
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    for body in (b"0", b"1", b"2"):
        world.send(body)
    world.send(b"3", 1)
    world.dispatch()
    ones = pop(world, queueId=0)
    assert [one.body for one in ones] == [b"0", b"1", b"2"]
    world.ask(world.pop_part.acks.ack_message, RequestCode.ACK_MESSAGE, ack_fields(ones[0], GROUP))
    assert [one.body for one in pop(world, queueId=1, invisibleTime=40_000)] == [b"3"]
    copied = persisted(world)
    world.run(14_000)
    assert bodies(world, retry) == {b"1": 1, b"2": 1}, "the old master has revived them, which the copy does not know"
    after = promoted(world, copied, killed=killed)
    after.run(10_000)
    assert bodies(after, retry) == {b"1": 1, b"2": 1}
    after.run(30_000)
    assert bodies(after, retry) == {b"1": 1, b"2": 1, b"3": 1}


def test_a_half_message_is_settled_once(world):
    for body in (b"done", b"pending"):
        world.send(body, half=True)
    world.dispatch()
    halves = [*read_there(world.store, "RMQ_SYS_TRANS_HALF_TOPIC")]
    world.end_transaction(halves[0].queue_offset, halves[0].phy_offset, commit=True)
    world.run(2_500)
    assert bodies(world) == {b"done": 1}
    copied = persisted(world)
    after = promoted(world, copied)
    after.run(10_000)
    after.check_pass()
    asked = {int(one.ext["tranStateTableOffset"]) for one in after.connection.asked}
    assert len(after.connection.asked) >= 1
    pending = [one for one in read_there(after.store, "RMQ_SYS_TRANS_HALF_TOPIC") if one.queue_offset in asked]
    assert {one.body for one in pending} == {b"pending"}
    newest = pending[-1]
    after.end_transaction(newest.queue_offset, newest.phy_offset, commit=True, check=True)
    after.run(5_000)
    assert bodies(after) == {b"done": 1, b"pending": 1}


def levels(world, seconds):
    for _ in range(seconds * 2):
        world.clock.advance(500)
        world.dispatch()
        while world.store.timer_services.schedule.step():
            pass
    world.dispatch()


@pytest.mark.parametrize("newer", [False, True], ids=["old offsets", "new offsets"])
def test_a_message_of_a_delay_level_is_delivered_once(world, newer):
    for number, level in enumerate((1, 2, 3)):
        world.store.put(Message(topic=TOPIC, body=b"%d" % number, delay_level=level), queue_id=0)
    world.dispatch()
    copied = persisted(world)
    levels(world, 6)
    assert bodies(world) == {b"0": 1, b"1": 1}
    if newer:
        copied = persisted(world)
    after = promoted(world, copied)
    levels(after, 30)
    assert bodies(after) == {b"0": 1, b"1": 1, b"2": 1}
    assert len([*read_there(after.store, SCHEDULE_TOPIC)]) == 3


def test_what_a_slave_lacks_is_known_from_the_last_answer_of_its_master(tmp_path):
    root, files = str(tmp_path / "s"), OsFileSystem()
    with MessageStore.open(root) as store:
        store.put(Message(topic="T", body=b"x"))
        with pytest.raises(StoreLockedError):
            standing_of(files, root, store.config)
        end = store.max_phy_offset
    found = standing_of(files, root, store.config)
    assert (found.end, found.lacks, found.role) == (end, None, BrokerRole.ASYNC_MASTER)
    assert "not known" in found.sentence()
    for master_end, lacks, role in ((end + 70, 70, "SYNC_MASTER"), (end - 1, 0, "ASYNC_MASTER")):
        write_known_master(files, root, KnownMaster(address="h:1", role=role, end=master_end, time_ms=5))
        found = standing_of(files, root, store.config)
        assert (found.lacks, found.role.value) == (lacks, role)
    (tmp_path / "s" / "tailrace" / "master.json").write_text("{")
    assert standing_of(files, root, store.config).lacks is None
