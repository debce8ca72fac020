"""Reads of a queue that keep messages by their properties."""

from __future__ import annotations

import time

import pytest
from cold_reads import nothing_is_cached

from tailrace import Message, MessageStore, kernels
from tailrace.config import StoreConfig
from tailrace.formats.commitlog import decode_message
from tailrace.model import GetMessageStatus
from tailrace.node.store_opening import StoreParts

COUNT = 3000


class LooksAtN:
    names, cost = (b"n",), 1

    def __init__(self, condition):
        self.condition, self.asked = condition, 0

    def matches(self, values):
        self.asked += 1
        return self.condition(int(values[0]))


class Keep:
    """Keeps messages whose property ``n`` satisfies a condition."""

    names = (b"n", b"none", b"color")

    def __init__(self, condition, cost=1):
        self.condition, self.cost, self.asked = condition, cost, 0

    def matches(self, values):
        self.asked += 1
        n, none, color = values
        assert none is None
        assert color == ("röd" if int(n) % 3 == 0 else None)
        return self.condition(int(n))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    config = StoreConfig(mapped_file_size_commit_log=1 << 16)
    with MessageStore.open(tmp_path_factory.mktemp("store"), config=config, parts=StoreParts(services=False)) as made:
        made.put_many([
            Message(topic="T", body=bytes(50), tags="a", keys=[f"k{n}"],
                    properties={"n": str(n), **({"color": "röd"} if n % 3 == 0 else {})})
            for n in range(COUNT)])
        made.wait_dispatched()
        yield made


def kept(store, keep, most=32, **how):
    """Numbers of all messages that a filter keeps, pulled one after another, and the number of pulls."""
    found, at, pulls = [], 0, 0
    while at < COUNT:
        result = store.get_message("T", 0, at, most, property_filter=keep, **how)
        assert not result.is_cold
        assert result.next_begin_offset > at
        assert all(at <= offset < result.next_begin_offset for offset in result.queue_offsets)
        messages = [decode_message(record) for record in result.records]
        assert [message.queue_offset for message in messages] == result.queue_offsets
        assert len(messages) <= most
        assert result.status is (
            GetMessageStatus.FOUND if messages else GetMessageStatus.NO_MATCHED_MESSAGE)
        found += [int(message.properties["n"]) for message in messages]
        at = result.next_begin_offset
        pulls += 1
    return found, pulls


@pytest.mark.parametrize("only_cached", [False, True])
@pytest.mark.parametrize("step", [1, 2, 7, 100, 2999, COUNT])
def test_every_message_that_is_kept_is_read_once(store, step, only_cached):
    found, pulls = kept(store, Keep(lambda n: n % step == step - 1), only_cached=only_cached)
    assert found == list(range(step - 1, COUNT, step))
    assert pulls <= max(-(-len(found) // 32), 0) + -(-COUNT // 800) + 1


def test_a_filter_that_selects_nothing_still_advances_the_offset(store):
    result = store.get_message("T", 0, 10, 32, property_filter=Keep(lambda n: False))
    assert (result.status, result.data) == (GetMessageStatus.NO_MATCHED_MESSAGE, b"")
    assert result.next_begin_offset == 810


def test_a_read_ends_with_its_last_message_and_looks_at_no_more(store):
    keep = Keep(lambda n: n % 10 == 0)
    result = store.get_message("T", 0, 0, 3, property_filter=keep)
    assert (result.queue_offsets, result.next_begin_offset, keep.asked) == ([0, 10, 20], 21, 21)


def test_the_bytes_of_a_result_are_bounded(store):
    size = len(store.get_message("T", 0, 0, 1).data)
    result = store.get_message("T", 0, 0, 32, max_bytes=4 * size + 20, property_filter=Keep(lambda n: n % 2 == 0))
    assert 3 <= result.message_count <= 4
    assert result.next_begin_offset == 2 * result.message_count
    first = store.get_message("T", 0, 0, 32, max_bytes=1, property_filter=Keep(lambda n: n == 5))
    assert first.queue_offsets == [5]


def test_a_costly_filter_looks_at_fewer_messages(store):
    for cost, looked in ((1, 800), (32, 800), (64, 400), (256, 100), (10**6, 1)):
        keep = Keep(lambda n: False, cost)
        result = store.get_message("T", 0, 0, 32, property_filter=keep)
        assert (result.next_begin_offset, keep.asked) == (looked, looked)


def test_long_records_are_looked_at_up_to_a_bound(tmp_path):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        store.put_many([Message(topic="T", body=bytes(3 << 20), properties={"n": str(n)}) for n in range(12)])
        store.wait_dispatched()
        keep = LooksAtN(lambda n: n == 11)
        results = [store.get_message("T", 0, at, 32, max_bytes=1 << 30, property_filter=keep) for at in (0, 5, 10)]
    assert [one.next_begin_offset for one in results] == [5, 10, 12], "a read looks at 16 MiB"
    assert results[2].queue_offsets == [11]
    assert keep.asked == 12


@pytest.mark.parametrize("damaged", [(0,), (7, 8), (31, 64, 65), tuple(range(100, 140))])
def test_damaged_messages_are_skipped_and_the_others_kept(tmp_path, damaged):
    with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
        puts = [store.put(Message(topic="T", body=bytes(40), properties={"n": str(3 * n + 1)}))
                for n in range(COUNT // 10)]
        store.wait_dispatched()
        log = store.inner.commit_log.queue
        for number in damaged:
            file = log.find(puts[number].phy_offset)
            at = puts[number].phy_offset - file.file_from_offset
            file.buffer[at + (90 if number % 2 else 20)] ^= 0xFF  # its body, or its place in the queue
        found, at = [], 0
        while at < COUNT // 10:
            result = store.get_message("T", 0, at, 32, property_filter=Keep(lambda n: n % 2 == 1))
            found += result.queue_offsets
            assert result.next_begin_offset > at
            at = result.next_begin_offset
        assert found == [n for n in range(0, COUNT // 10, 2) if n not in damaged]


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_records_that_are_not_cached_are_read_from_the_disk(store, monkeypatch):
    time.sleep(0.11)  # pages that were in memory count as cached
    addresses = nothing_is_cached(monkeypatch)
    assert store.get_message("T", 0, 0, 32, property_filter=Keep(lambda n: True), only_cached=True).is_cold
    found, _ = kept(store, Keep(lambda n: n % 100 == 99))
    assert found == list(range(99, COUNT, 100))
    assert addresses
