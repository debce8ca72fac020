"""Queues: pre-blank units, searches over them, many queues together."""

from __future__ import annotations

import random

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env import OsFileSystem
from tailrace.errors import UnknownTopicError
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.segments import MappedFileQueue, OpenFiles
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.testing import CrashFileSystem


def queue_in(files, directory, size=100, open_files=None):
    return ConsumeQueue("t", 0, MappedFileQueue(
        files, directory, size, mapped=False, open_files=open_files or OpenFiles()))


def queue_of(files, units, start=0):
    queue = queue_in(files, "/q")  # five units a file
    queue.write(start, b"".join(PRE_BLANK if u is None else CQ_UNIT.pack(u, 5, 7) for u in units))
    return queue


@pytest.mark.parametrize("seed", range(150))
def test_searches_step_over_places_without_a_message(seed):
    rng = random.Random(seed)
    start = rng.choice((0, 0, 3, 7))
    units = [
        None if rng.random() < 0.4 else 100 + 10 * (start + n) for n in range(rng.randrange(1, 23))]
    queue = queue_of(CrashFileSystem(), units, start)
    limit = rng.randrange(90, 360)
    queue.correct_min_offset(limit)
    expected = [start + n for n, u in enumerate(units) if u is not None and u >= limit]
    assert queue.min_offset == (expected or [queue.max_offset])[0]
    # A rewind ends the queue after its last message below a position and the places without a message
    # that follow it; nothing is cleared yet.
    queue.rewind(limit)
    kept = [start + n for n, u in enumerate(units) if u is not None and u < limit]
    after = kept[-1] + 1 - start if kept else 0
    assert queue.max_offset == start + next(
        (n for n in range(after, len(units)) if units[n] is not None), len(units))
    assert queue.last_phy_offset == (units[kept[-1] - start] if kept else -1)


@pytest.mark.parametrize("start", [0, 3, 5, 12])
def test_a_queue_that_starts_above_zero_is_pre_blank_up_to_its_first_unit(start):
    files = CrashFileSystem()
    queue_of(files, [500, 600], start)
    again = queue_in(files, "/q")
    assert again.load() == ""
    assert again.min_offset == again.max_offset == start // 5 * 5, "nothing shows before the end is known"
    again.find_end()
    assert (again.min_offset, again.max_offset) == (start // 5 * 5, start + 2)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (start, start + 2)
    first = files.list("/q")[0]
    assert int(first) == start // 5 * 100
    assert files.open(f"/q/{first}").pread(20 * (start % 5), 0) == PRE_BLANK * (start % 5)


@pytest.mark.parametrize("change", ["written over", "truncated", "rewound", "ended", "begun again"])
def test_a_read_after_units_have_changed_finds_the_new_ones(change):
    """A read keeps the units that follow; they count only until the queue changes below its end."""
    queue = queue_of(CrashFileSystem(), [100, 200, 300, 400])
    assert queue.units_ahead(0, 1).startswith(CQ_UNIT.pack(100, 5, 7))
    before = queue.ahead
    new = CQ_UNIT.pack(900, 5, 7)
    if change == "written over":
        queue.write(2, new)
    elif change == "begun again":
        queue.restart_at(2)
        queue.write(2, new)
    else:
        {"truncated": queue.truncate, "ended": queue.set_end, "rewound": lambda _: queue.rewind(250)}[change](2)
        queue.write(2, new)
    assert before[0] != queue.version
    assert queue.units_ahead(2, 1) == queue.units_ahead(2, 1, only_cached=True)
    assert queue.units_ahead(2, 1).startswith(new)
    assert queue.unit(2).phy_offset == 900


def test_a_reader_that_continues_reads_several_units_in_one_call(monkeypatch):
    queue = queue_in(CrashFileSystem(), "/r", 20_000)
    units = b"".join(CQ_UNIT.pack(n * 100, 5, 7) for n in range(500))
    queue.write(0, units)
    assert queue.units_ahead(32, 64) == units[32 * 20 : 192 * 20]
    assert queue.ahead == (queue.version, 32, units[32 * 20 : 192 * 20])


def test_units_that_were_cut_off_do_not_come_back():
    files = CrashFileSystem()
    queue = queue_of(files, list(range(100, 112)))
    queue.truncate(3)
    for _ in range(2):
        again = queue_in(files, "/q")
        again.load()
        again.find_end()
        assert not again.settle(clear_after_end=True, unflushed_files=0)
        assert again.max_offset == 3
        assert files.list("/q") == ["0" * 20]
    again.write(3, CQ_UNIT.pack(900, 5, 7))
    assert [again.unit(n).phy_offset for n in range(4)] == [100, 101, 102, 900]


def test_thousands_of_queues_share_a_few_descriptors(tmp_path):
    opened = OpenFiles(limit=8)
    queues = [
        queue_in(OsFileSystem(), str(tmp_path / str(n)), open_files=opened) for n in range(60)]
    for offset in range(3):
        for n, queue in enumerate(queues):
            queue.write(offset, CQ_UNIT.pack(n * 10 + offset, 5, 7))
    assert len(opened._used) <= 8
    assert [q.unit(2).phy_offset for q in queues] == [n * 10 + 2 for n in range(60)]
    assert sum(q.files.flush(0) for q in queues) == 60, "a sync opens the file again"
    for queue in queues:
        queue.files.close()


def test_reading_a_queue_that_does_not_exist_makes_none(tmp_path):
    with MessageStore.open(tmp_path / "s", parts=StoreParts(services=False)) as store:
        store.get_message("none", 3, 0, 32)
        with pytest.raises(UnknownTopicError):
            next(store.read("none", 3))
        assert store.queue_of("none", 3).by_time(0) == 0
        assert store.queues() == []
        assert not (tmp_path / "s" / "consumequeue").exists()


def test_a_pull_looks_at_a_bounded_part_of_the_queue(tmp_path):
    with MessageStore.open(tmp_path / "s", parts=StoreParts(services=False)) as store:
        store.put_many([Message(topic="t", body=b"x", tags="a", keys=["k"])] * 2000)
        store.put_inner(MessageExtBrokerInner("t", 0, b"last", b"TAGS\x01z\x02"))
        store.wait_dispatched()
        offset, looks = 0, 0
        while not (found := store.get_message("t", 0, offset, 32, codes=[ord("z")])).records:
            assert found.next_begin_offset == offset + 800
            offset, looks = found.next_begin_offset, looks + 1
        assert (looks, found.queue_offsets) == (2, [2000])


def test_file_sizes_are_taken_from_the_files_whatever_the_config_says(tmp_path):
    small = StoreConfig(
        mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400,
        max_hash_slot_num=25, max_index_num=100)
    with MessageStore.open(tmp_path / "s", config=small) as store:
        store.put_many([Message(topic="t", body=bytes(500), keys=[f"k{n}"]) for n in range(90)])
    with MessageStore.open(tmp_path / "s") as store:
        assert store.config.mapped_file_size_commit_log == 8192
        assert store.config.mapped_file_size_consume_queue == 400
        assert (store.config.max_hash_slot_num, store.config.max_index_num) == (25, 100)
        assert len(list(store.read("t", 0))) == 90
        assert [m.queue_offset for m in store.query_message("t", "k77")] == [77]


def test_a_queue_that_was_emptied_starts_at_its_next_unit():
    """As after a rebuild: a slave whose damaged first record was sealed on its master has no place for it."""
    files = CrashFileSystem()
    queue = queue_of(files, [100])
    queue.truncate(0)
    queue.write(1, CQ_UNIT.pack(200, 5, 7), gap=CQ_UNIT.pack(7, 1, 0))
    queue.correct_min_offset(0)
    assert (queue.min_offset, queue.max_offset) == (1, 2)
    again = queue_in(files, "/q")
    again.load()
    again.find_end()
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (1, 2)
