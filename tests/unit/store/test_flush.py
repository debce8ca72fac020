"""Flush services and the checkpoint: no field is ever after the last synced position."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.checkpoint import Checkpoint
from tailrace.metrics import LOG_SYNC
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.store.store_checkpoint import StoreCheckpoint, read_checkpoint
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

SMALL = {
    "mapped_file_size_commit_log": 16384, "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 16, "max_index_num": 64, "commit_log_allocate_step": 4096,
}


def opened(kind=FlushDiskType.ASYNC_FLUSH, files=None):
    files = files or CrashFileSystem()
    clock, scheduler = SimClock(), ManualScheduler()
    store = MessageStore.open(
        "/s", config=StoreConfig(flush_disk_type=kind, **SMALL),
        parts=StoreParts(clock=clock, file_system=files, scheduler=scheduler, entropy=SeededEntropy(1)))
    return store, files, clock, scheduler.steps


def inner(body=b"x", topic="t"):
    return MessageExtBrokerInner(topic, 0, body)


def test_the_checkpoint_never_names_a_record_that_is_not_durable_itself():
    store, _, clock, steps = opened()
    checkpoint = store.inner.checkpoint
    for round_ in range(5):
        results = [store.put_inner(inner()) for _ in range(10)]
        steps["ReputMessageService"]()
        clock.advance(60_000)
        steps["FlushConsumeQueueService"]()
        assert checkpoint.fields.logics_physical_offset < max(
            store.inner.commit_log.queue.flushed_where, 1), round_
        assert checkpoint.fields.logics_msg_timestamp <= checkpoint.fields.physic_msg_timestamp
        clock.advance(10_000)
        steps["FlushRealTimeService"]()
        clock.advance(1_000)
        steps["FlushConsumeQueueService"]()
        # Units and log are both durable by now, so the last record may be named.
        assert checkpoint.fields.logics_physical_offset == results[-1].phy_offset
        assert checkpoint.fields.logics_msg_timestamp == results[-1].store_timestamp
    store.close()


def test_syncs_are_timed_and_a_step_without_bytes_is_not_one(monkeypatch):
    store, files, clock, steps = opened(FlushDiskType.SYNC_FLUSH)
    times = store.inner.flush_commit_log.sync_times
    before = sum(times.counts)
    sync = type(store.inner.commit_log.queue).flush

    def slow(self, least_pages=0):
        clock.advance(70)
        return sync(self, least_pages)

    monkeypatch.setattr(type(store.inner.commit_log.queue), "flush", slow)
    steps["GroupCommitService"]()
    assert sum(times.counts) == before
    store.put_inner(inner())
    steps["GroupCommitService"]()
    counts = dict(zip((*LOG_SYNC.buckets, "more"), times.counts, strict=True))
    assert sum(times.counts) == before + 1
    assert counts[100] == 1
    assert store.stats()["logSyncMs"] == {"counts": times.counts, "sum": times.sum}
    assert times.sum >= 70
    store.close()


def test_the_checkpoint_moves_while_messages_keep_coming(monkeypatch):
    store, _, clock, steps = opened(FlushDiskType.SYNC_FLUSH)
    queues = store.inner.queues
    sync = type(queues.find_or_create("t", 0).files).flush

    def busy(self, least_pages=0):
        done = sync(self, least_pages)
        if not self._mapped:
            queues.dirty.add(queues.find_or_create("t", 0))  # dispatch was faster
        return done

    first = store.put_inner(inner())
    steps["GroupCommitService"]()
    steps["ReputMessageService"]()
    monkeypatch.setattr(type(queues.find_or_create("t", 0).files), "flush", busy)
    steps["FlushConsumeQueueService"]()
    assert store.inner.checkpoint.fields.logics_msg_timestamp == first.store_timestamp
    monkeypatch.undo()
    store.close()


def test_a_clean_close_leaves_a_checkpoint_that_names_the_last_record():
    store, files, _, _ = opened()
    results = [store.put_inner(inner(b"%d" % n)) for n in range(200)]
    store.close()
    fields = read_checkpoint(files, "/s/checkpoint")
    assert fields.logics_physical_offset == results[-1].phy_offset
    assert fields.logics_msg_timestamp == results[-1].store_timestamp
    assert fields.physic_msg_timestamp == results[-1].store_timestamp
    assert 0 < fields.index_msg_timestamp <= fields.physic_msg_timestamp or not (
        fields.index_msg_timestamp), "messages without keys are in no index file"
    assert files.stat("/s/checkpoint").size == 4096


def test_the_checkpoint_is_lowered_before_the_log_is_cut():
    store, files, _, _ = opened()
    results = [store.put_inner(inner(b"%d" % n)) for n in range(20)]
    store.close()
    end = results[10].phy_offset
    log = files.open("/s/commitlog/00000000000000000000", writable=True)
    log.pwrite(b"\xff" * 40, end)  # the bytes from `end` onwards are not a record
    log.pwrite(bytes(results[-1].until - end - 40), end + 40)
    files.open("/s/abort", writable=True, create=True)
    seen = []

    def watch(_number, name, path):
        if "commitlog" in path and name in {"pwrite", "remove", "allocate"}:
            seen.append(read_checkpoint(files, "/s/checkpoint").logics_physical_offset)

    files.before = watch
    again, _, _, _ = opened(files=files)
    files.before = None
    assert again.max_phy_offset == end
    assert seen
    assert max(seen) == results[9].phy_offset
    fields = again.inner.checkpoint.fields
    assert fields.logics_physical_offset == results[9].phy_offset
    assert fields.physic_msg_timestamp <= results[9].store_timestamp
    again.close()


@pytest.mark.parametrize("damage", [b"", b"\xff" * 48, b"short"])
def test_a_checkpoint_that_cannot_be_right_reads_as_nothing(damage):
    files = CrashFileSystem()
    files.makedirs("/s")
    files.open("/s/checkpoint", writable=True, create=True).pwrite(damage, 0)
    assert read_checkpoint(files, "/s/checkpoint") == Checkpoint(0, 0, 0, 0, 0, 0)
    checkpoint = StoreCheckpoint(files, "/s/checkpoint")
    checkpoint.update(physic_msg_timestamp=5)
    checkpoint.flush(checkpoint.fields)
    assert read_checkpoint(files, "/s/checkpoint").physic_msg_timestamp == 5


@pytest.mark.parametrize("kind", list(FlushDiskType))
def test_a_put_during_the_write_of_progress_does_not_make_progress_worthless(kind):
    store, files, clock, steps = opened(kind)
    flush_log = next(step for name, step in steps.items() if name in {"GroupCommitService", "FlushRealTimeService"})
    for _ in range(100):
        store.put_inner(inner())
    clock.advance(20_000)
    flush_log()
    steps["ReputMessageService"]()
    inside = []

    def watch(_number, name, path):
        if name == "sync_data" and "/progress." in path:
            inside.append(path)
            files.before = None
            clock.advance(20_000)
            store.put_inner(inner(b"another thread"))
            flush_log()
            files.before = watch

    for _ in range(3):
        files.before = watch
        clock.advance(60_000)
        steps["FlushConsumeQueueService"]()
        files.before = None
        steps["ReputMessageService"]()
        again, _, _, _ = opened(kind, files.killed())
        assert again.recovery_report["decision"] == "PROGRESS", again.recovery_report["why"]
        again.close()
    assert len(inside) == 3
    store.close()


def test_one_sync_answers_all_waiting_puts():
    store, files, _, steps = opened(FlushDiskType.SYNC_FLUSH)
    told = []
    for _ in range(50):
        store.inner.when_durable(store.put_inner(inner()).until, told.append)
    assert told == []
    before = files.operations
    steps["GroupCommitService"]()
    assert told == [PutMessageStatus.PUT_OK] * 50
    syncs = files.operations - before
    assert syncs <= 4, "the log once, and the hint beside it"
    store.close()


def test_a_put_that_waits_too_long_gets_flush_disk_timeout(monkeypatch):
    store, _, clock, steps = opened(FlushDiskType.SYNC_FLUSH)
    told = []
    store.inner.when_durable(store.put_inner(inner()).until, told.append)
    clock.advance(5001)
    monkeypatch.setattr(type(store.inner.commit_log.queue), "flush", lambda *_: False)
    steps["GroupCommitService"]()
    assert told == [PutMessageStatus.FLUSH_DISK_TIMEOUT]
    monkeypatch.undo()
    store.close()


def test_under_sync_flush_only_durable_messages_are_shown():
    store, _, _, steps = opened(FlushDiskType.SYNC_FLUSH)
    store.put_inner(inner())
    steps["ReputMessageService"]()
    assert store.queue_of("t", 0).max == 0
    assert store.dispatch_behind_bytes > 0
    steps["GroupCommitService"]()
    steps["ReputMessageService"]()
    assert store.queue_of("t", 0).max == 1
    assert store.dispatch_behind_bytes == 0
    store.close()


def test_asynchronous_flush_waits_for_four_dirty_pages_or_ten_seconds():
    store, _, clock, steps = opened()
    log = store.inner.commit_log.queue
    store.put_inner(inner())
    steps["FlushRealTimeService"]()
    assert log.flushed_where == 0
    for _ in range(5):
        store.put_inner(inner(bytes(3500)))
    steps["FlushRealTimeService"]()
    assert log.flushed_where == store.max_phy_offset
    store.put_inner(inner())
    clock.advance(10_000)
    steps["FlushRealTimeService"]()
    assert log.flushed_where == store.max_phy_offset
    store.close()


def test_puts_from_many_threads_are_all_durable_and_in_order(tmp_path):
    config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, **SMALL)
    with MessageStore.open(tmp_path / "s", config=config) as store:
        def put(queue_id):
            for n in range(20):
                result = store.put(Message(topic="t", body=b"%d" % n), queue_id=queue_id)
                assert result.queue_offset == n
                assert store.inner.commit_log.queue.flushed_where >= result.until

        threads = [threading.Thread(target=put, args=(q,)) for q in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for queue_id in range(4):
            assert [m.body for m in store.read("t", queue_id)] == [b"%d" % n for n in range(20)]


def test_a_queue_that_was_synced_is_not_synced_again():
    store, files, _, steps = opened()
    queues = store.inner.queues
    for topic in ("a", "b"):
        store.put_inner(inner(topic=topic))
    steps["ReputMessageService"]()
    assert len(queues.dirty) == 2
    assert not queues.flush(1), "two queues have less than a page"
    assert len(queues.dirty) == 2
    assert queues.flush(0)
    assert not queues.dirty
    before = files.operations
    assert queues.flush(0)
    assert files.operations == before
    store.close()


def test_waiting_for_dispatch_wakes_it_and_does_not_wait_for_its_period():
    class Woken:
        """A scheduler whose services do nothing but what they are woken for."""

        def every(self, _name, _period_ms, step, **_more):
            return SimpleNamespace(wake=step, hurry=step, stop=lambda: None)

        def stop_all(self):
            pass

    store = MessageStore.open(
        "/s", config=StoreConfig(**SMALL),
        parts=StoreParts(clock=SimClock(), file_system=CrashFileSystem(), scheduler=Woken(), entropy=SeededEntropy(1)))
    log = store.inner.commit_log
    log.tail.append(log.message_writer(inner()))  # like a put while dispatch is running, which wakes no service
    assert store.wait_dispatched(0)
    assert [m.body for m in store.read("t", 0)] == [b"x"]
    store.close()
