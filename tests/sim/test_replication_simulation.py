"""Masters and slaves from seeds; the same seed gives the same run; faults that are planted are found.

``SEED`` is the first and ``RUNS`` counts them; `make sim` runs many.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replication_world import play

from tailrace.broker.core import slaves
from tailrace.broker.core.registration import BrokerGroup
from tailrace.broker.messages import query
from tailrace.broker.pop.revive import PopReviveService
from tailrace.broker.transactions.half_queue import HalfQueue
from tailrace.broker.transactions.service import TransactionService
from tailrace.formats.pop import PopCheckPoint
from tailrace.ha import metadata_copy, slave_comparison
from tailrace.ha.comparison import Compared, Verdict
from tailrace.ha.replicas import NOT_YET, Replicas
from tailrace.ha.timer_positions import TimerPositions
from tailrace.node import deletion
from tailrace.store import slave_lives
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.replication import Replication
from tailrace.testing.sent import ViolationError

FIRST = int(os.environ.get("SEED", "1"))
RUNS = int(os.environ.get("RUNS", "2"))
STEPS = int(os.environ.get("STEPS", "20"))
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_slaves_have_what_their_master_promises(seed):
    try:
        counts = play(seed, steps=STEPS).counts
    except ViolationError as error:
        trace = "\n".join(error.world.trace[-60:])
        raise AssertionError(f"{trace}\n`STEPS={STEPS} make sim SEED={seed}` shows it again: {error}") from error
    assert counts["acknowledged"] > 10
    assert counts["checks"] > 40


def trace_of(seed, hash_seed):
    program = (
        "import hashlib, logging, sys; logging.disable(50)\n"
        f"sys.path.append({str(SUPPORT)!r})\n"
        "from replication_world import play\n"
        f"world = play({seed}, steps=8)\n"
        "print(hashlib.md5(repr((world.trace, sorted(world.counts.items()))).encode()).hexdigest())")
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed}).stdout


def test_a_seed_gives_the_same_run_in_every_process():
    """Neither the order of sets nor the number of the process has a part in it."""
    world = play(5, steps=8)
    here = hashlib.md5(repr((world.trace, sorted(world.counts.items()))).encode()).hexdigest()
    assert trace_of(5, "1").strip() == here


# --- planted faults


def believes_reports(monkeypatch):
    """H2: a report above the end of the log counts."""
    def report(replicas, replica, position):
        if replica.next == NOT_YET:
            replica.next = position or replicas._start()
        replica.acknowledged = max(replica.acknowledged, position)
        replicas.update()

    monkeypatch.setattr(Replicas, "report", report)
    monkeypatch.setattr(Replicas, "check_first", lambda *_: None)


def compares_nothing(monkeypatch):
    """H3: the transfer continues where the slave's log ends, whatever its bytes are."""
    async def begin(comparison):
        low, high = await comparison._master.bounds()
        comparison.master_end = high
        return comparison._store.commit_log.max_offset

    async def same(*_):
        return Compared(Verdict.SAME, 0, "")

    monkeypatch.setattr(slave_comparison.SlaveComparison, "begin", begin)
    monkeypatch.setattr(slaves, "compare", same)


def acknowledges_unsynced(monkeypatch):
    """H5: a slave reports the end of its log under SYNC_FLUSH."""
    monkeypatch.setattr(DefaultMessageStore, "acknowledged_until", lambda store: store.commit_log.max_offset)


def counts_connections(monkeypatch):
    """H11: two connections of one slave are two copies."""
    def add(replicas, replica, most):
        replicas._all[replica] = None
        return []

    monkeypatch.setattr(Replicas, "add", add)


def takes_offsets_back(monkeypatch):
    """H17: the copy of the master's offsets replaces those that were committed at the slave."""
    monkeypatch.setattr(
        metadata_copy, "merged_offsets", lambda own, before, theirs: {key: dict(one) for key, one in theirs.items()})


def shows_each_checkpoint(monkeypatch):
    """H19: a slave may copy a timer checkpoint that is ahead of its log."""
    def shown(positions, acknowledged, least):
        positions.note()
        return positions._kept[-1][1] if positions._kept else None

    monkeypatch.setattr(TimerPositions, "shown", shown)


def gives_no_released_record(monkeypatch):
    """A record of a deleted topic is not given to a broker that compares its log."""
    monkeypatch.setattr(query, "ALSO_RELEASED", "")


def shows_ended_lives(monkeypatch):
    """H23: a slave shows the messages of the life that its master has ended."""
    monkeypatch.setattr(slave_lives, "end_of_life", lambda *_: 0)
    monkeypatch.setattr(slave_lives, "has_ended", lambda *_: False)


def ends_too_much(monkeypatch):
    """A slave that learns of a deletion ends the life of the topic where its own log ends."""
    end_lives = slave_lives.end_lives

    def end(store, ended, note):
        return end_lives(store, {
            topic: one._replace(position=store.commit_log.max_offset) for topic, one in ended.items()}, note)

    monkeypatch.setattr(deletion, "end_lives", end)


def commits_again(monkeypatch):
    """A transaction that the log has committed is committed again after a start."""
    monkeypatch.setattr(TransactionService, "_is_committed", lambda *_: False)


def forgets_half_messages(monkeypatch):
    """A master does not check the half messages that it finds in its log."""
    monkeypatch.setattr(HalfQueue, "grow", lambda *_: None)


def forgets_acknowledgements(monkeypatch):
    """A master redelivers popped messages that were acknowledged."""
    monkeypatch.setattr(PopCheckPoint, "acknowledge", lambda *_: None)


def forgets_checkpoints(monkeypatch):
    """A master does not redeliver what was popped before its start."""
    opened = PopReviveService._opened

    def at_end(service, queue_id):
        queue = opened(service, queue_id)
        queue.next_offset = queue.known_until
        return queue

    monkeypatch.setattr(PopReviveService, "_opened", at_end)


def starts_a_second_master(monkeypatch):
    """H40: an old master starts besides the new one."""
    async def refuse(*_):
        pass

    monkeypatch.setattr(BrokerGroup, "refuse_second", refuse)


def acknowledges_alone(monkeypatch):
    """A master without its slaves needs no slave."""
    monkeypatch.setattr(
        Replication, "needed", property(lambda copies: min(copies._config.replicas_needed, copies.in_sync)))


PLANTS = [
    (believes_reports, "I2", 1, {}), (compares_nothing, "I1", 1, {}), (acknowledges_unsynced, "I2", 1, {"sync": True}),
    (counts_connections, "I2", 1, {"slaves": 2, "need": 3}), (takes_offsets_back, "I4", 1, {}),
    (shows_each_checkpoint, "H19", 1, {}), (gives_no_released_record, "I6", 9006, {"passes": True}),
    (shows_ended_lives, "I3", 1, {"passes": True}), (ends_too_much, "I7", 1, {"passes": True}),
    (commits_again, "TX1", 1, {"transactions": True}), (forgets_half_messages, "TX1", 5, {"transactions": True}),
    (forgets_acknowledgements, "I9", 1, {"pops": True}), (forgets_checkpoints, "P3", 1, {"pops": True}),
    (starts_a_second_master, "I10", 1, {"splits": True}), (acknowledges_alone, "I10", 1, {"splits": True, "need": 2}),
]
"""Faults, what finds them, the first seed, and what the seeds have in common."""


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.caught  # a read that fails
@pytest.mark.parametrize(
    ("plant", "wanted", "first", "options"), PLANTS, ids=lambda one: getattr(one, "__name__", None))
def test_a_planted_fault_is_found(plant, wanted, first, options, monkeypatch):
    plant(monkeypatch)
    found = []
    for seed in range(first, first + 40):
        try:
            play(seed, **options)
        except ViolationError as error:
            found.append(f"{error}"[:200])
            if wanted in found[-1]:
                return
    raise AssertionError(f"{plant.__doc__} {found}")
