"""Failures that the sweep of test_store_crash does not cover.

Crashes between two stores through a mapping and in recovery itself, everything a reader can ask
after a recovery, planted bugs that must be caught, and what is said after a sync has failed.
"""

from __future__ import annotations

import errno
import random

import pytest
from long_runs import LONG, some
from read_there import query_there, read_there

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import FatalStorageError, StoreError, StoreNotWritableError
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimulatedCrash

pytestmark = pytest.mark.crash


class Files:
    """A CrashFileSystem that logs its operations, crashes at one of them and fails others."""

    def __init__(self, crash_at=None, fail=None, inner=None, ms=1_700_000_000_000):
        self.inner = inner or CrashFileSystem()
        self.inner.before = self.before
        self.crash_at, self.fail, self.ms, self.log = crash_at, fail or {}, ms, []
        self.look = None

    @property
    def ops(self):
        return self.inner.operations

    def before(self, number, name, path):
        if self.crash_at is not None and number >= self.crash_at:
            raise SimulatedCrash
        if self.look is not None:
            self.look(number)
        self.log.append((name, path))
        code = self.fail.pop(number, None)
        if code is not None:
            raise OSError(code, f"{name} made to fail", path)

    def power_lost(self, seed, keep):
        entropy = SeededEntropy(seed)
        return Files(inner=self.inner.power_lost(entropy, round(keep * 100)), ms=self.ms)

    def state(self):
        """Return all that an open of these files after a power loss depends on, to compare it."""
        files = {path: bytes(data.volatile) for path, data in self.inner._files.items()}
        return self.ms, tuple(sorted(self.inner._directories)), tuple(sorted(files.items()))


class CrashClock:
    """Time that a look moves on by a millisecond; a look is also a place to crash."""

    def __init__(self, files):
        self.files = files

    def now_ms(self):
        self.files.inner.operation("clock", "")
        self.files.ms += 1
        return self.files.ms

    def monotonic_ns(self):
        return self.files.ms * 1_000_000


CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=24, flush_disk_type=FlushDiskType.SYNC_FLUSH, commit_log_allocate_step=4096)
QUEUES = [("orders", 0), ("orders", 1), ("other", 0)]


def open_store(fs):
    return MessageStore.open(
        "/s", config=CONFIG,
        parts=StoreParts(services=False, clock=CrashClock(fs), file_system=fs.inner, entropy=SeededEntropy(fs.ms)))


def life(fs, sent=None, acked=None):
    """Put, roll, flush, dispatch, close, open again, put; (sent, acknowledged) by queue."""
    sent = {} if sent is None else sent
    acked = {} if acked is None else acked
    sent.update({key: [] for key in QUEUES})
    acked.update(dict.fromkeys(QUEUES, 0))
    rng = random.Random(3)
    try:
        for generation in range(2):
            store = open_store(fs)
            for i in range(14):
                topic, queue_id = QUEUES[rng.randrange(3)]
                body = f"{generation}-{i}-".encode() * rng.choice((1, 30, 200, 1400))
                key = topic, queue_id
                if i % 5 == 4:
                    messages = [
                        Message(topic=topic, body=body + bytes([n]), tags="t") for n in range(3)]
                    sent[key] += [m.body for m in messages]
                    store.put_many(messages, queue_id=queue_id)
                else:
                    sent[key].append(body)
                    store.put(
                        Message(topic=topic, body=body, tags="t", keys=[f"k{i}"]), queue_id=queue_id)
                acked[key] = len(sent[key])
                if i % 6 == 3:
                    store.wait_dispatched()
                if i == 9:
                    store.inner.flush_consume_queue.flush(0)
            store.close()
    except SimulatedCrash:
        pass
    return sent, acked


def contents(store, *, gaps=False):
    """Every queue with its bodies, found by queue; each is also found by key and by position."""
    found = {}
    assert store.wait_dispatched()
    for topic, queue_id, low, high in store.queues():
        messages = list(read_there(store, topic, queue_id))
        assert gaps or low == 0
        offsets = [m.queue_offset for m in messages]
        assert offsets == sorted(set(offsets)), (topic, queue_id)
        assert gaps or offsets == list(range(high)), (topic, queue_id)
        assert {(m.topic, m.queue_id) for m in messages} <= {(topic, queue_id)}
        found[topic, queue_id] = [m.body for m in messages]
        for m in messages:
            assert store.look_message_by_offset(m.phy_offset).body == m.body
            assert store.queue_of(topic, queue_id).by_time(m.store_timestamp) <= m.queue_offset
            assert m.phy_offset in [
                f.phy_offset for f in query_there(store, topic, m.unique_key)], "not in the index"
            for k in m.keys:
                assert m.phy_offset in [f.phy_offset for f in query_there(store, topic, k)]
    return found


def check(fs, sent, acked, what):
    store = open_store(fs)
    # A torn record that was never synced, :with a whole one after it, is stepped over:: its place
    # stays empty. Nothing that was acknowledged may be missing for it.
    gaps = bool(store.recovery_report["steppedOver"])
    first = contents(store, gaps=gaps)
    ends = {(topic, queue_id): high for topic, queue_id, _, high in store.queues()}
    for key in QUEUES:
        got = first.get(key, [])
        assert got[: acked[key]] == sent[key][: acked[key]], (what, key, len(got), acked[key])
        left = iter(sent[key])
        assert all(body in left for body in got), (what, key, "not in the order of sending")
        assert gaps or got == sent[key][: len(got)], (what, key)
    assert check_checkpoint(store), what
    # The next message takes the next place.
    for topic, queue_id in QUEUES:
        result = store.put(Message(topic=topic, body=b"after"), queue_id=queue_id)
        assert result.queue_offset == ends.get((topic, queue_id), 0), what
    second = contents(store, gaps=gaps)
    store.close()
    assert not fs.inner.exists("/s/abort"), what
    for _ in range(2):  # opening again changes nothing
        store = open_store(fs)
        assert store.recovery_report["mode"] == "normal", (what, store.recovery_report)
        assert contents(store, gaps=gaps) == second, what
        store.close()


def check_checkpoint(store):
    """logicsPhysicalOffset names a record, or nothing."""
    at = store.inner.checkpoint.fields.logics_physical_offset
    return at <= 0 or store.look_message_by_offset(at) is not None


def power_losses(losses, wanted=lambda _: True):
    """Return (operation, seed, keep, files, sent, acknowledged) of power losses before ``wanted`` operations of a life.

    ``losses(operation)`` has the (seed, keep) of each. A stopped machine runs nothing more, so one life has the files
    of a stop at each of its operations. Losses with equal files, time and messages are one case and come once.
    """
    sent, acked, seen, found = {}, {}, set(), []

    def look(at):
        if not wanted(at):
            return
        for seed, keep in losses(at):
            after = fs.power_lost(seed, keep)
            state = after.state(), repr(sent), repr(acked)
            if state not in seen:
                seen.add(state)
                found.append((at, seed, keep, after, {key: [*bodies] for key, bodies in sent.items()}, dict(acked)))

    fs = Files()
    fs.look = look
    life(fs, sent, acked)
    look(fs.ops)
    return found


def crash_points():
    whole = Files()
    life(whole)
    return whole.ops


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_crash_at_any_operation_loses_nothing_that_was_acknowledged(keep):
    offsets = (0, 7919) if LONG and 0 < keep < 1 else (0,)

    def wanted(at):
        return LONG or at % 6 == 4 * keep

    for at, seed, _, after, sent, acked in power_losses(lambda at: [(at + offset, keep) for offset in offsets], wanted):
        check(after, sent, acked, f"crash_at={at} keep={keep} seed={seed}")


@pytest.mark.slow
def test_a_crash_in_recovery_is_recovered_from_as_well():
    points = crash_points()
    for at in range(5, points, max(1, points // (12 if LONG else 4))):
        fs = Files(crash_at=at)
        sent, acked = life(fs)
        down = fs.power_lost(at, 0.5)
        step = 0
        while True:
            again = down.power_lost(0, 1.0)
            again.crash_at = step
            try:
                open_store(again)
            except SimulatedCrash:
                pass
            else:
                break
            after = again.power_lost(step, 0.5)
            check(after, sent, acked, f"crash_at={at} then={step} {again.log[-1:]}")
            step += 3 if LONG else 5


# -- the sweep itself: planted bugs must be caught


def sweep_finds_something():
    whole = Files()
    life(whole)
    syncs = [at for at, (kind, path) in enumerate(whole.log) if kind == "sync_data" and "log" in path]
    wanted = {*syncs, *range(0, whole.ops + 1, 7)}
    losses = [*enumerate((0.0, 1.0, 0.5, 0.5, 0.5, 0.5))]
    try:
        for at, _, keep, after, sent, acked in power_losses(lambda _: losses, wanted.__contains__):
            check(after, sent, acked, f"{at} {keep}")
    except (AssertionError, StoreError, IndexError):
        return True
    return False


@pytest.mark.long  # a crash at any operation is a test of its own
def test_the_sweep_finds_nothing_in_the_store_as_it_is():
    assert not sweep_finds_something()


def test_the_sweep_catches_an_acknowledgement_without_a_sync(monkeypatch):
    def lies(self, least_pages=0):
        self.flushed_where = self.max_offset
        return True

    monkeypatch.setattr("tailrace.segments.MappedFileQueue.flush", lies)
    assert sweep_finds_something()


def test_the_sweep_catches_a_directory_that_is_not_synced(monkeypatch):
    monkeypatch.setattr(
        CrashFileSystem, "sync_dir", lambda self, path: self.operation("sync_dir", path))
    assert sweep_finds_something()


def test_the_sweep_catches_a_scan_without_checksums(monkeypatch):
    monkeypatch.setattr("tailrace.store.recovery.passes.checks_of", lambda _: 0)
    assert sweep_finds_something()


def test_the_sweep_catches_progress_that_is_ahead_of_its_units(monkeypatch):
    def lies(self, least_pages):
        self.dirty.clear()
        return True

    monkeypatch.setattr("tailrace.store.consume_queue_store.ConsumeQueueStore.flush", lies)
    # The comparison with the queues' last units and the coverage of the log would both notice.
    monkeypatch.setattr("tailrace.store.recovery.start.RecoveryStart._queue_mismatch", lambda *_: "")
    monkeypatch.setattr("tailrace.store.recovery.start.Coverage.first_gap", lambda _, until: until)
    # A walk starts 64 records before the end of the progress, which is more than this life has.
    monkeypatch.setattr("tailrace.store.reput._BEFORE", 2)
    assert sweep_finds_something()


# -- calls that fail


def test_a_failed_sync_is_final():
    fs = Files()
    store = open_store(fs)
    store.put(Message(topic="orders", body=b"kept"))
    end = store.max_phy_offset
    told = []
    result = store.put_inner(MessageExtBrokerInner("orders", 0, b"lost?"))
    assert result.status is PutMessageStatus.PUT_OK, "put_inner waits for no sync"
    fs.fail[fs.ops] = errno.EIO
    with pytest.raises(FatalStorageError):
        store.flush()
    assert fs.log[-1][0] == "sync_data"
    assert not store.is_writeable
    assert "sync of" in store.not_writeable_reason
    with pytest.raises(StoreNotWritableError):
        store.put(Message(topic="orders", body=b"refused"))
    assert store.put_inner(
        MessageExtBrokerInner("orders", 0, b"")).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    try:
        store.inner.when_durable(result.until, told.append)
    except FatalStorageError:
        pass
    assert PutMessageStatus.PUT_OK not in told
    assert [m.body for m in read_there(store, "orders")][:1] == [b"kept"]
    store.close()
    assert fs.inner.exists("/s/abort"), "an unclean stop must be seen by the next open"
    down = fs.power_lost(1, 0.0)
    with open_store(down) as again:
        assert [m.body for m in read_there(again, "orders")] == [b"kept"]
        assert again.max_phy_offset >= end


def test_waiters_of_a_failed_sync_are_told_no():
    fs = Files()
    store = open_store(fs)
    store.put(Message(topic="orders", body=b"kept"))
    told = []
    flush = store.inner.flush_commit_log
    store.inner.start(ManualScheduler(), 1)
    for _ in range(3):
        result = store.put_inner(MessageExtBrokerInner("orders", 0, b"x"))
        store.inner.when_durable(result.until, told.append)
    assert told == []
    fs.fail[fs.ops] = errno.EIO
    with pytest.raises(FatalStorageError):
        flush.step()
    assert told == [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 3
    late = []
    store.inner.when_durable(result.until, late.append)
    assert late == [PutMessageStatus.SERVICE_NOT_AVAILABLE], "who comes later is told at once"


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_operation_may_fail_once(code):
    seen = set()
    for at in some(range(crash_points()), 6, code % 6):
        fs = Files(fail={at: code})
        sent, acked = {key: [] for key in QUEUES}, dict.fromkeys(QUEUES, 0)
        try:
            sent, acked = life_with_failures(fs)
        except OSError as error:
            assert error.errno == code
        assert not fs.inner.locked, (at, "the lock must be given back")
        what = f"fail_at={at} {fs.log[at : at + 1]}"
        for keep in (1.0, 0.0):
            after = fs.power_lost(at, keep)
            state = after.state(), repr(sent), repr(acked)
            if state not in seen:  # equal ones are the same case, such as those of a failure that comes after the end
                seen.add(state)
                check_failed(after, sent, acked, what)


def life_with_failures(fs):
    """As a program lives on when puts are refused: what was refused may or may not be there."""
    sent = {key: [] for key in QUEUES}
    acked = {key: [] for key in QUEUES}
    store = None
    try:
        store = open_store(fs)
        for i in range(24):
            key = QUEUES[i % 3]
            body = f"{i}-".encode() * 90
            sent[key].append(body)
            try:
                store.put(Message(topic=key[0], body=body, keys=[f"k{i}"]), queue_id=key[1])
                acked[key].append(body)
            except (StoreError, OSError):
                pass
            if i % 6 == 3:
                try:
                    store.wait_dispatched()
                except (StoreError, OSError):
                    pass
    except StoreError:
        pass
    finally:
        if store is not None:
            try:
                store.close()
            except (StoreError, OSError):
                pass
    return sent, acked


def check_failed(fs, sent, acked, what):
    fs.fail.clear()
    store = open_store(fs)
    gaps = bool(store.recovery_report["steppedOver"])
    found = contents(store, gaps=gaps)
    for key in QUEUES:
        got = found.get(key, [])
        left = iter(sent[key])
        assert all(body in left for body in got), (what, "not in the order of sending")
        left = iter(got)
        missing = [body[:8] for body in acked[key] or () if body not in left]
        assert not missing, (what, key, missing)
    store.close()
    with open_store(fs) as again:
        assert contents(again, gaps=gaps) == found, what
