"""Refused puts: counted by reason, logged once a minute with their number, and named until a put can succeed."""

from __future__ import annotations

import errno
import logging

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import MessageIllegalError, StoreNotWritableError
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.store.refused_puts import REASONS
from tailrace.testing import CrashFileSystem, FaultyFileSystem, ManualScheduler, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096, timer_wheel_enable=False)


class Place:
    """A store on a disk that is full whenever ``full`` is set."""

    def __init__(self, **changes):
        self.full = 0
        self.clock, self.scheduler, self.files = SimClock(), ManualScheduler(), CrashFileSystem()
        disk = FaultyFileSystem(
            self.files, lambda _n, name, path: self.full if "commitlog" in path and name in {"open", "allocate"} else 0)
        self.store = MessageStore.open(
            "/store", config=CONFIG,
            parts=StoreParts(clock=self.clock, file_system=disk, scheduler=self.scheduler, entropy=SeededEntropy(1)))

    def put(self):
        return self.store.put(Message(topic="orders", body=bytes(3000)))

    def second(self):
        self.clock.advance(1000)
        self.scheduler.steps["StoreStatsService"]()


@pytest.fixture
def place():
    made = Place()
    yield made
    made.full = 0
    made.store.close()


def lines(caplog, text):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(text)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_put_without_room_is_named_until_there_is_room(place, caplog, error):
    place.put()
    refused = place.store.refused_puts
    assert refused.failing == ""
    place.full = error
    for _ in range(40):
        with pytest.raises(StoreNotWritableError):
            place.put()
        place.second()
    assert place.store.is_writeable  # no flag is set, because the next put may find room
    assert "commitlog" in refused.failing
    assert +refused.counts == {"no_room": 40}
    found = lines(caplog, "sends are refused reason=no_room")
    assert len(found) == 1  # in the first minute
    assert "count=1 " in found[0]
    assert caplog.records[-1].levelno <= logging.WARNING
    place.clock.advance(60_000)
    with pytest.raises(StoreNotWritableError):
        place.put()
    assert "count=40 " in lines(caplog, "sends are refused reason=no_room")[1]
    place.full = 0
    caplog.set_level(logging.INFO)
    place.second()  # no send is needed to find out
    assert refused.failing == ""
    assert lines(caplog, "sends find room again") == ["sends find room again refused=41"]
    place.put()
    place.second()
    assert len(lines(caplog, "sends find room again")) == 1


def test_a_put_that_succeeds_ends_it(place):
    place.full = errno.ENOSPC
    with pytest.raises(StoreNotWritableError):
        place.put()
    assert place.store.refused_puts.failing
    place.full = 0
    place.put()
    assert place.store.refused_puts.failing == ""


def test_the_reasons_of_refusals(place, caplog):
    refused, flags = place.store.refused_puts, place.store.inner.flags
    with pytest.raises(MessageIllegalError):
        place.store.put(Message(topic="orders", body=bytes(5 << 20)))
    assert not lines(caplog, "sends are refused")  # the sender's own mistake
    flags.set(16, "the disk is full")
    with pytest.raises(StoreNotWritableError):
        place.put()
    flags.set(2, "a sync failed")
    with pytest.raises(StoreNotWritableError):
        place.put()
    for status in PutMessageStatus:
        if not status.appended and status.name not in {"MESSAGE_ILLEGAL", "SERVICE_NOT_AVAILABLE"}:
            refused.note(PutMessageResult(status))
    assert refused.counts["disk_full"] == refused.counts["not_writeable"] == 1
    assert {*refused.counts} <= {*REASONS}
    assert refused.counts["timer_flow_control"] == refused.counts["lmq_quota"] == 1
    assert refused.counts["illegal"] == 4
    place.second()  # nothing is tried while a flag forbids to write
    assert refused.failing
    flags.clear(16)
    flags.clear(2)


def test_a_file_system_that_is_too_small_is_named_at_the_start(caplog):
    place = Place()
    assert not lines(caplog, "a file system is too small")
    place.store.close()
    place.files.usage.total, place.files.usage.free, place.files.usage.usable = 30_000, 30_000, 30_000
    MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(clock=place.clock, file_system=place.files, scheduler=ManualScheduler(),
            entropy=SeededEntropy(1))).close()
    [line] = lines(caplog, "a file system is too small for the log")
    assert "path=/store/commitlog bytes=30000 needed=36864 settings=mappedFileSizeCommitLog=1048576," in line
