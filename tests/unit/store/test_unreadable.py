"""A record counts as damaged after several failed reads over some time, and no other record with it."""

from __future__ import annotations

import errno

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.store.unreadable import PATIENCE_MS, TRIES, UnreadableRecords
from tailrace.testing import CrashFileSystem, SimClock

BAD = OSError(errno.EIO, "bad sector", "/s/commitlog/0")
SHORT = OSError(errno.EMFILE, "too many", "/s/commitlog/0")
CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096, max_message_size=2000, timer_wheel_enable=False)


def test_both_tries_and_time_are_needed():
    clock = SimClock()
    records = UnreadableRecords(clock)
    for _ in range(10 * TRIES):
        assert not records.gives_up(100, BAD)
    clock.advance(PATIENCE_MS)
    assert not records.gives_up(200, BAD)
    assert records.gives_up(100, BAD)
    assert records.gives_up(100, SHORT)
    clock.advance(PATIENCE_MS)
    for _ in range(TRIES - 2):
        assert not records.gives_up(200, BAD)
    assert records.gives_up(200, BAD)
    assert records.count == 2


def test_a_shortage_does_not_count():
    clock = SimClock()
    records = UnreadableRecords(clock)
    for _ in range(10 * TRIES):
        clock.advance(PATIENCE_MS)
        assert not records.gives_up(100, SHORT)


def test_what_is_remembered_has_a_bound():
    clock = SimClock()
    records = UnreadableRecords(clock)
    for position in range(3000):
        records.gives_up(position, BAD)
    clock.advance(PATIENCE_MS)
    for position in range(3000):
        for _ in range(TRIES):
            records.gives_up(position, BAD)
    assert len(records._failures) <= 1000
    assert len(records._given_up) <= 1000


@pytest.fixture
def store():
    """Three full segments, of which a record in the first one cannot be read; they are not mapped."""
    files, clock = CrashFileSystem(), SimClock()
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(1))
    ) as opened:
        places = [opened.put(Message(topic="t", body=b"%04d" % n + bytes(400), keys=[f"k{n}"])) for n in range(20)]
        opened.wait_dispatched()
        bad = places[2]

        def before_read(_number, name, path, pos, n):
            if name == "map to read":
                raise OSError(errno.EACCES, "no mapping", path)
            at = int(path.rpartition("/")[2]) + pos if "/commitlog/" in path else -1
            if name == "pread" and at >= 0 and at < bad.until and at + n > bad.phy_offset:
                raise OSError(errno.EIO, "bad sector", path)

        files.before_read, files.cold = before_read, True
        for file in opened.inner.commit_log.queue.files[:-1]:
            file.unmap()
        yield opened, clock, places
        files.before_read = None


def test_a_consumer_gets_all_before_it_then_waits_then_all_after_it(store):
    opened, clock, _ = store
    found = opened.get_message("t", 0, 0, 32)
    assert [int(one[88:92]) for one in found.records] == [0, 1]
    assert found.next_begin_offset == 2
    for _ in range(TRIES - 1):
        with pytest.raises(OSError, match="bad sector"):
            opened.get_message("t", 0, 2, 32)
    clock.advance(PATIENCE_MS)
    left_out = opened.get_message("t", 0, 2, 32)
    assert not left_out.records
    assert left_out.next_begin_offset == 3
    assert [one.queue_offset for one in opened.read("t", 0, 2)] == list(range(3, 20))
    assert opened.stats()["unreadableRecords"] == 1


def test_a_scan_leaves_out_one_row(store):
    opened, clock, _ = store
    for _ in range(TRIES - 1):
        with pytest.raises(OSError, match="bad sector"):
            opened.to_arrow("t", 0, 0)
    clock.advance(PATIENCE_MS)
    assert opened.to_arrow("t", 0, 0)["queueOffset"].to_pylist() == [0, 1, *range(3, 20)]


def test_look_ups_by_key_and_position_find_the_others(store):
    opened, clock, places = store
    for _ in range(TRIES - 1):
        with pytest.raises(OSError, match="bad sector"):
            opened.look_message_by_offset(places[2].phy_offset)
    clock.advance(PATIENCE_MS)
    assert opened.look_message_by_offset(places[2].phy_offset) is None
    assert opened.query_message("t", "k2") == []
    assert [m.body[:4] for m in opened.query_message("t", "k1")] == [b"0001"]
    assert [m.body[:4] for m in opened.query_message("t", "k3")] == [b"0003"]
