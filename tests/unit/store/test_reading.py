"""A pull over damaged messages continues after the messages that it returned."""

import os
import random
import time

import pytest
from cold_reads import nothing_is_cached

from tailrace import Message, MessageStore, kernels
from tailrace.config import StoreConfig
from tailrace.env import linux_calls
from tailrace.formats.commitlog import decode_message
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.node.store_opening import StoreParts
from tailrace.segments import MappedFile, MappedFileQueue
from tailrace.store import reading
from tailrace.store.commit_log import CommitLog
from tailrace.testing import SimClock


def damage(log: CommitLog, phy_offset: int) -> None:
    file = log.queue.find(phy_offset)
    at = phy_offset - file.file_from_offset + 90
    file.buffer[at] ^= 0xFF


@pytest.mark.parametrize("damaged", [(3,), (0, 1, 2), (5, 6, 7, 20), tuple(range(9, 19)), (39,)])
def test_no_message_is_pulled_twice_and_none_is_left_out(tmp_path, damaged):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        puts = [store.put(Message(topic="T", body=b"%02d" % n * 8)) for n in range(40)]
        store.wait_dispatched()
        for number in damaged:
            damage(store.inner.commit_log, puts[number].phy_offset)
        for most in (1, 7, 10, 32):
            found, at = [], 0
            while at < 40:
                result = store.get_message("T", 0, at, most)
                assert all(at <= offset < result.next_begin_offset for offset in result.queue_offsets)
                assert len(result.records) <= most
                found += [int(decode_message(data).body[:2]) for data in result.records]
                assert result.next_begin_offset > at
                at = result.next_begin_offset
            assert found == [n for n in range(40) if n not in damaged], most


@pytest.mark.parametrize("place", [-(1 << 63) + 500, -1, (1 << 63) - 1, 1 << 62])
def test_a_unit_that_names_a_position_that_no_log_has_is_stepped_over(tmp_path, place):
    """A flipped sign bit of a position: the difference of two positions must not overflow."""
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        puts = [store.put(Message(topic="T", body=b"%d" % n)) for n in range(8)]
        store.wait_dispatched()
        queue = store.inner.queues.get("T", 0)
        queue.files.files[0].write_at(
            CQ_UNIT.pack(place, puts[4].until - puts[4].phy_offset, 0), 4 * CQ_UNIT.size)
        assert [m.body for m in store.read("T")] == [b"%d" % n for n in range(8) if n != 4]
        assert store.to_arrow("T")["queueOffset"].to_pylist() == [n for n in range(8) if n != 4]
        assert store.get_message("T", 0, 5, 32, only_cached=True).message_count == 3


def test_a_pull_for_a_tag_without_messages_continues_after_the_messages_that_it_examined(tmp_path):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        for n in range(5):
            store.put(Message(topic="T", body=b"%d" % n, tags="a"))
        store.wait_dispatched()
        assert store.get_message("T", 0, 1, 32, codes=[-1]).next_begin_offset == 5


def evict(path) -> None:
    """Take the pages of a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_records_that_are_not_cached_are_read_by_a_system_call(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        store.put_many([Message(topic="T", body=b"%04d" % n * 1000) for n in range(500)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    calls = []
    hold = MappedFileQueue.hold_around

    def counted(self, offset, n, *, mapped=True):
        calls.append(mapped)
        return hold(self, offset, n, mapped=mapped)

    monkeypatch.setattr(MappedFileQueue, "hold_around", counted)
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        evict(segment)
        none = store.get_message("T", 0, 100, 32, only_cached=True)
        cold = store.get_message("T", 0, 100, 32)
        if all(calls):
            pytest.skip("this file system keeps what should leave the page cache")
        assert (none.is_cold, none.records, none.next_begin_offset) == (True, [], 100)
        assert calls.count(False) == 1, "32 records of 4 KB in a row are one read from the disk"
        assert cold.queue_offsets == list(range(100, 132))
        assert [decode_message(data).body for data in cold.records] == [b"%04d" % n * 1000 for n in range(100, 132)]
        calls.clear()
        assert store.get_message("T", 0, 100, 32) == cold
        assert calls == [], "the segment that was read last is not looked up"
        assert store.get_message("T", 0, 100, 32, only_cached=True) == cold


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_a_read_that_may_not_wait_returns_what_is_cached(tmp_path):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        store.put_many([Message(topic="T", body=b"%04d" % n * 4000) for n in range(500)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        evict(segment)
        if not store.get_message("T", 0, 0, 1, only_cached=True).is_cold:
            pytest.skip("this file system keeps what should leave the page cache")
        store.get_message("T", 0, 0, 2)  # the system reads ahead, but not the whole file
        begin = store.get_message("T", 0, 0, 500, only_cached=True)
        assert 1 < begin.message_count < 500
        assert begin.next_begin_offset == begin.message_count
        # What follows may be on its way already: the system reads ahead without waiting.
        assert store.get_message("T", 0, 450, 32, only_cached=True).is_cold


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_pages_that_were_cached_are_not_looked_up_again_for_a_moment(tmp_path):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        store.put_many([Message(topic="T", body=b"%04d" % n * 1000) for n in range(200)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    clock = SimClock()
    with MessageStore.open(tmp_path, parts=StoreParts(services=False, clock=clock)) as store:
        seen = store.inner.reader._seen
        evict(segment)
        if not store.get_message("T", 0, 100, 32, only_cached=True).is_cold:
            pytest.skip("this file system keeps what should leave the page cache")
        assert not any(seen.of(0)), "a page that is not there is looked up every time"
        found = store.get_message("T", 0, 0, 200)
        assert store.get_message("T", 0, 0, 200, only_cached=True) == found
        assert sum(seen.of(0)) * 4096 >= sum(map(len, found.records)), "every page counts"
        evict(segment)
        assert store.get_message("T", 0, 0, 200, only_cached=True) == found, "it may wait for the disk, once"
        evict(segment)
        clock.advance(100)
        assert store.get_message("T", 0, 100, 32, only_cached=True).is_cold
        assert not any(seen.of(0))


def read_as_if_nothing_was_cached(monkeypatch):
    time.sleep(0.11)  # pages that were in memory count as cached
    return nothing_is_cached(monkeypatch)


def is_being_deleted(monkeypatch, file):
    monkeypatch.setattr(file, "hold_view", lambda: None)
    monkeypatch.setattr(file, "read", lambda *_, **__: b"")


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
@pytest.mark.parametrize("seed", range(4))
def test_a_read_from_the_disk_finds_what_a_read_from_memory_finds(tmp_path, monkeypatch, seed):
    """Topics that alternate, gaps of all sizes, tags, ends of segments, damaged and removed records."""
    rng = random.Random(seed)
    config = StoreConfig(mapped_file_size_commit_log=1 << 18)
    with MessageStore.open(tmp_path, config=config, parts=StoreParts(services=False)) as store:
        puts = []
        for number in range(400):
            size = rng.choice((10, 500, 4_000, 20_000))
            topic = rng.choice(("T", "T", "U"))
            put = store.put(Message(topic=topic, body=b"%d" % number * size, tags=rng.choice("ab")), queue_id=0)
            if topic == "T":
                puts.append(put)
        store.wait_dispatched()
        for put in rng.sample(puts, 12):
            damage(store.inner.commit_log, put.phy_offset)
        reads = [
            (("T", 0, rng.randrange(len(puts)), rng.choice((1, 3, 32, 200))), {
                "max_bytes": rng.choice((1, 5_000, 100_000, 1 << 20)),
                "codes": rng.choice((None, None, [97], [98], [97, 98], [5]))})
            for _ in range(300)]
        warm = [store.get_message(*where, **how) for where, how in reads]
        read_as_if_nothing_was_cached(monkeypatch)
        assert [store.get_message(*where, **how) for where, how in reads] == warm
        first = store.inner.commit_log.queue.files[0]
        is_being_deleted(monkeypatch, first)
        gone = store.get_message("T", 0, 0, 3)
        monkeypatch.undo()
        is_being_deleted(monkeypatch, first)
        assert store.get_message("T", 0, 0, 3) == gone


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
@pytest.mark.parametrize("far", [False, True])
def test_a_read_from_the_disk_starts_all_that_it_needs_and_a_consumer_s_next_read(tmp_path, monkeypatch, far):
    """The first read asks for its own records. One that continues asks for twice as many, near ones in one piece."""
    config, between = StoreConfig(mapped_file_size_commit_log=16 << 20), 66_000 if far else 20_000
    with MessageStore.open(tmp_path, config=config, parts=StoreParts(services=False)) as store:
        for number in range(140):
            store.put(Message(topic="T", body=b"%03d" % number, tags="ab"[number % 2]), queue_id=0)
            store.put(Message(topic="U", body=bytes(between)), queue_id=0)
        store.wait_dispatched()
        warm = {at: store.get_message("T", 0, at, 32) for at in (10, 42, 74)}
        records = [(m.phy_offset, m.phy_offset + m.store_size) for m in store.read("T", 0)]
        asked, addresses = [], read_as_if_nothing_was_cached(monkeypatch)

        def will_need(at, n):
            (base,) = addresses.values()
            asked.append((at - base, at - base + n))

        monkeypatch.setattr(linux_calls, "will_need", will_need)

        def asked_for(wanted, *, reads_on):
            found = asked.copy()
            asked.clear()
            return found == ([(wanted[0][0], wanted[-1][1])] if reads_on and not far else wanted)

        assert store.get_message("T", 0, 10, 32) == warm[10]
        assert asked_for(records[10:42], reads_on=False)
        assert store.get_message("T", 0, 42, 32) == warm[42]
        assert asked_for(records[42:106], reads_on=True)
        assert store.get_message("T", 0, 106, 4, codes=[97]).record_count == 4
        assert asked_for(records[106:140:2], reads_on=True)
        assert store.get_message("T", 0, 10, 4, codes=[97]).record_count == 4
        assert asked_for(records[10:18:2], reads_on=False)
        monkeypatch.setattr(reading, "_AHEAD_BYTES", 1000)
        assert store.get_message("T", 0, 74, 32) == warm[74]
        assert 1000 <= sum(end - start for start, end in asked) < 1000 + (records[0][1] - records[0][0])
        asked.clear()
        assert store.get_message("T", 0, 10, 32, only_cached=True).is_cold
        assert not asked, "the event loop does not wait for the disk to take its orders"


def test_queue_units_that_are_not_cached_are_not_waited_for(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        store.put(Message(topic="T", body=b"x"))
        store.wait_dispatched()
        assert store.get_message("T", 0, 0, 1, only_cached=True).message_count == 1
        monkeypatch.setattr(MappedFile, "read_cached", lambda *_: None)
        found = store.get_message("T", 0, 0, 1, only_cached=True)
        assert (found.is_cold, found.next_begin_offset, found.max_offset) == (True, 0, 1)
        assert store.get_message("T", 0, 0, 1).message_count == 1
