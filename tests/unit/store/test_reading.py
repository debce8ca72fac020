"""A pull over damaged messages goes on behind what it returned."""

import os

import pytest

from tailrace import Message, MessageStore, kernels
from tailrace.formats.commitlog import decode_message
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog


def damage(log: CommitLog, phy_offset: int) -> None:
    file = log.queue.find(phy_offset)
    at = phy_offset - file.file_from_offset + 90
    file.buffer[at] ^= 0xFF


@pytest.mark.parametrize("damaged", [(3,), (0, 1, 2), (5, 6, 7, 20), tuple(range(9, 19)), (39,)])
def test_no_message_is_pulled_twice_and_none_is_left_out(tmp_path, damaged):
    with MessageStore.open(tmp_path, services=False) as store:
        puts = [store.put(Message(topic="T", body=b"%02d" % n * 8)) for n in range(40)]
        store.wait_dispatched()
        for number in damaged:
            damage(store._store.commit_log, puts[number].phy_offset)
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


def test_a_pull_whose_tag_nothing_has_goes_on_behind_what_it_looked_at(tmp_path):
    with MessageStore.open(tmp_path, services=False) as store:
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
    with MessageStore.open(tmp_path, services=False) as store:
        store.put_many([Message(topic="T", body=b"%04d" % n * 1000) for n in range(500)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    calls = []
    select = MappedFile.select_around

    def counted(self, at, n, *, mapped=True):
        calls.append(mapped)
        return select(self, at, n, mapped=mapped)

    monkeypatch.setattr(MappedFile, "select_around", counted)
    with MessageStore.open(tmp_path, services=False) as store:
        evict(segment)
        none = store.get_message("T", 0, 100, 32, only_cached=True)
        cold = store.get_message("T", 0, 100, 32)
        if all(calls):
            pytest.skip("this file system keeps what should leave the page cache")
        assert (none.is_cold, none.records, none.next_begin_offset) == (True, [], 100)
        assert cold.queue_offsets == list(range(100, 132))
        assert [decode_message(data).body for data in cold.records] == [b"%04d" % n * 1000 for n in range(100, 132)]
        calls.clear()
        assert store.get_message("T", 0, 100, 32) == cold
        assert calls == [True]
        assert store.get_message("T", 0, 100, 32, only_cached=True) == cold


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_a_read_that_may_not_wait_returns_what_is_cached(tmp_path):
    with MessageStore.open(tmp_path, services=False) as store:
        store.put_many([Message(topic="T", body=b"%04d" % n * 4000) for n in range(500)])
    (segment,) = (tmp_path / "commitlog").iterdir()
    with MessageStore.open(tmp_path, services=False) as store:
        evict(segment)
        if not store.get_message("T", 0, 0, 1, only_cached=True).is_cold:
            pytest.skip("this file system keeps what should leave the page cache")
        store.get_message("T", 0, 0, 2)  # the system reads ahead, but not the whole file
        begin = store.get_message("T", 0, 0, 500, only_cached=True)
        assert 1 < begin.message_count < 500
        assert begin.next_begin_offset == begin.message_count
        # What follows may be on its way already: the system reads ahead without waiting.
        assert store.get_message("T", 0, 450, 32, only_cached=True).is_cold


def test_queue_units_that_are_not_cached_are_not_waited_for(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path, services=False) as store:
        store.put(Message(topic="T", body=b"x"))
        store.wait_dispatched()
        assert store.get_message("T", 0, 0, 1, only_cached=True).message_count == 1
        monkeypatch.setattr(MappedFile, "read_cached", lambda *_: None)
        found = store.get_message("T", 0, 0, 1, only_cached=True)
        assert (found.is_cold, found.next_begin_offset, found.max_offset) == (True, 0, 1)
        assert store.get_message("T", 0, 0, 1).message_count == 1
