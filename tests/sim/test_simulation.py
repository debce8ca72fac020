"""Whole stores from seeds; the same seed gives the same run; faults that are planted are found.

``SEED`` is the first and ``RUNS`` counts them; `make sim` runs many.
"""

import logging
import os
import subprocess
import sys

import pytest

from tailrace import kernels
from tailrace.config import FlushDiskType
from tailrace.model import PutMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.group_commit import FlushCommitLogService
from tailrace.testing.crash_filesystem import CrashFileSystem, _Data
from tailrace.testing.simulation import Simulation, ViolationError

FIRST = int(os.environ.get("SEED", "1"))
RUNS = int(os.environ.get("RUNS", "16"))


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_a_store_keeps_its_promises(seed):
    simulation = Simulation(seed)
    try:
        simulation.run()
    except ViolationError as error:
        trace = "\n".join(simulation.trace[-60:])
        raise AssertionError(f"{trace}\n`make sim SEED={seed}` shows it again: {error}") from error
    assert simulation.counts["compared"] > 2


def test_a_seed_gives_the_same_run_in_every_process():
    """Neither the order of sets nor the number of the process has a part in it."""
    program = (
        "import hashlib, logging; logging.disable(50)\n"
        "from tailrace.testing.simulation import Simulation\n"
        "simulation = Simulation(11)\n"
        "simulation.run()\n"
        "print(hashlib.md5('\\n'.join(simulation.trace).encode()).hexdigest())")
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")}
    assert len(seen) == 1


def test_a_seed_gives_the_same_run():
    runs = [Simulation(7, 120), Simulation(7, 120), Simulation(8, 120)]
    for simulation in runs:
        simulation.run()
    assert runs[0].trace == runs[1].trace
    assert runs[0].trace != runs[2].trace
    for name in ("sends in the lane", "batches in the lane"):
        assert (sum(run.counts[name] for run in runs) > 0) == kernels.compiled()


def finds(first, most=60):
    """Whether a run of one of some seeds ends with a violation."""
    for seed in range(first, first + most):
        try:
            Simulation(seed, 150).run()
        except Exception:
            return True
    return False


def lying_sync(monkeypatch):
    """The disk says that it is durable, and it is not."""
    monkeypatch.setattr(_Data, "sync", lambda _: None)


def lying_sync_dir(monkeypatch):
    """Names are never durable."""
    monkeypatch.setattr(CrashFileSystem, "sync_dir", lambda *_: None)


def early_acknowledgement(monkeypatch):
    """Senders get answers before the sync."""
    monkeypatch.setattr(
        FlushCommitLogService, "when_durable",
        lambda _, __, callback: callback(PutMessageStatus.PUT_OK))


def forgotten_queue_offsets(monkeypatch):
    """After an open queues continue one place too early."""
    real = MessageStore.__init__

    def init(store, *args):
        real(store, *args)
        offsets = store.inner.commit_log.queue_offsets
        for key in offsets:
            offsets[key] = max(offsets[key] - 1, 0)

    monkeypatch.setattr(MessageStore, "__init__", init)


def lost_units(monkeypatch):
    """A queue does not write every unit."""
    real = ConsumeQueue.write
    monkeypatch.setattr(
        ConsumeQueue, "write",
        lambda queue, offset, *args, **options: None if offset % 7 == 6 else real(
            queue, offset, *args, **options))


@pytest.mark.crash
@pytest.mark.parametrize(("plant", "first"), [  # the first seed is one that finds it, or near to it
    (lying_sync, 1), (lying_sync_dir, 1), (early_acknowledgement, 1), (forgotten_queue_offsets, 1), (lost_units, 6),
])
def test_a_planted_fault_is_found(plant, first, monkeypatch):
    plant(monkeypatch)
    assert finds(first), plant.__doc__


def test_both_disk_types_are_among_the_seeds():
    kinds = {Simulation(seed)._config.flush_disk_type for seed in range(FIRST, FIRST + RUNS)}
    assert kinds == set(FlushDiskType)
