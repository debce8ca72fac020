"""A crash at every operation of a broker's life with transactions: no message is lost or delivered twice."""

from __future__ import annotations

import collections
import importlib.util
import pathlib
from types import SimpleNamespace

import pytest
from broker_world import InPlace
from long_runs import some
from read_there import read_there

from tailrace import MessageStore, StoreConfig
from tailrace.broker.clients.client_manager import ProducerManager
from tailrace.broker.messages.transaction_checks import TransactionChecks
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.names import HALF_TOPIC, TRANSACTION_GROUP
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

_spec = importlib.util.spec_from_file_location("lives", pathlib.Path(__file__).with_name("lives.py"))
lives = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lives)
pytestmark = pytest.mark.crash

real = MessageStore.flush
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=100, commit_log_allocate_step=4096, timer_wheel_enable=False)
BROKER = BrokerConfig(transaction_op_batch_interval=20_000)
COUNT = 12


def finish(coroutine):
    """Run what never waits."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


class Broker:
    """The part of a broker that has to do with transactions, without sockets."""

    def __init__(self, files, clock):
        self.store = store = MessageStore.open(
            "/s", config=CONFIG,
            parts=StoreParts(clock=clock, file_system=files, services=False, entropy=SeededEntropy(7)))
        self.offsets = ConsumerOffsetManager(store.file_system, store.config_dir, clock)
        self.offsets.load()
        self.service = TransactionService(
            clock, SeededEntropy(8), store, store.topics, self.offsets, BROKER)
        self.service.load()
        self.checks = TransactionChecks(
            None, clock, store, BROKER, SimpleNamespace(transactions=InPlace()),
            SimpleNamespace(producers=ProducerManager(clock, 1)), self.service, None)
        store.topics.create_if_missing("orders", 1)

    def half(self, key, born_ms):
        properties = {"TRAN_MSG": "true", "PGROUP": "G", "UNIQ_KEY": key}
        message = MessageExtBrokerInner(
            "orders", 0, key.encode(), encode_properties(properties), born_timestamp=born_ms)
        half = self.service.prepare(message, properties)
        result = self.store.put_inner(message)
        assert result.status.appended
        self.service.prepared(half, result)
        return result

    def end(self, phy_offset, *, commit):
        since = self.service.begin_search()
        found = self.service.look(self.service.half_at(phy_offset), since, with_copies=True)
        self.service.end(found, commit=commit)

    def run_pass(self):
        self.store.wait_dispatched()
        finish(self.checks.run_pass())
        self.offsets.persist_if_changed()

    def close(self):
        self.store.close()


class Life:
    """Half messages that are durable; some are committed, some rolled back, all others checked."""

    def __init__(self):
        self.clock = SimClock()
        self.commit_wanted = set()
        self.rollback_wanted = set()
        self.began = self.ended = 0

    def run(self, files):
        broker = Broker(files, self.clock)
        try:
            places = {}
            for number in range(COUNT):
                key = f"K{number}"
                places[key] = broker.half(key, self.clock.now_ms()).phy_offset
            broker.store.flush()
            self.began = files.operations
            for number in range(0, COUNT, 3):
                self.commit_wanted.add(f"K{number}")
                broker.end(places[f"K{number}"], commit=True)
                self.rollback_wanted.add(f"K{number + 1}")
                broker.end(places[f"K{number + 1}"], commit=False)
                self.clock.advance(7000)
                broker.run_pass()
                broker.service.write_operations_if_due()
            broker.end(places["K2"], commit=True)  # which was checked since
            broker.run_pass()
            self.ended = files.operations
            broker.close()
        finally:
            files.locked.clear()

    def check(self, files, what):
        """Commit all that is left, as their producer would; each comes once, and may come if it was rolled back."""
        broker = Broker(files, self.clock)
        self.clock.advance(60_000)
        for _ in range(3):
            broker.run_pass()
            queue, at = broker.service.queue, -1
            while (at := queue.next_pending(at + 1)) < queue.until:
                half, = read_there(broker.store, HALF_TOPIC, 0, at, max_count=1)
                since = broker.service.begin_search()
                broker.service.end(broker.service.look(half, since, with_copies=True), commit=True)
            broker.store.wait_dispatched()
        found = collections.Counter(m.body.decode() for m in read_there(broker.store, "orders", 0))
        assert set(found.values()) <= {1}, (what, found)
        keys = {f"K{number}" for number in range(COUNT)}
        assert keys - self.rollback_wanted <= found.keys(), (what, found)
        until = broker.store.queue_of(HALF_TOPIC, 0).max
        assert broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) <= until, what
        broker.close()


def operations():
    life = Life()
    life.run(CrashFileSystem())
    return life.began, life.ended


def sweep(first, last, keep):
    for place in range(first, last):
        lives.crash_at(Life, place, keep)


@pytest.mark.parametrize(("keep", "beginning"), [(None, 0), (0, 1), (50, 2), (100, 3)])
def test_a_crash_loses_no_transaction_and_delivers_none_twice(keep, beginning):
    """A run that is not long has each operation with one of the four ends."""
    first, last = operations()
    assert last - first > 20
    for place in some(range(first, last), 4, beginning):
        lives.crash_at(Life, place, keep)


def test_the_sweep_sees_a_commit_that_is_not_looked_for(monkeypatch):
    """A planted bug: the reference's behaviour."""
    monkeypatch.setattr("tailrace.broker.transactions.service.TransactionService._is_committed", lambda *_: False)
    first, last = operations()
    with pytest.raises(AssertionError):
        sweep(first, last, None)


def test_the_sweep_sees_progress_that_is_not_synced(monkeypatch):
    first, last = operations()
    monkeypatch.setattr(MessageStore, "flush", lambda self: None if self.max_phy_offset > 6000 else real(self))
    with pytest.raises(AssertionError):
        sweep(first, last, 0)


def test_a_life_without_a_crash_delivers_what_was_committed():
    life, files = Life(), CrashFileSystem()
    life.run(files)
    life.check(files, "no crash")
