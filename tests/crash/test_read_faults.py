"""Reads that fail once, often, or for good: nothing is missing, twice or waiting afterwards. A part of the sweep."""

from __future__ import annotations

import errno
import importlib.util
import pathlib
import sys

import pytest
from long_runs import LONG, some

from tailrace.errors import StoreError
from tailrace.store.commit_log import CommitLog
from tailrace.store.flush import FlushConsumeQueueService
from tailrace.store.reput import ReputMessageService


def _loaded(name):
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


faults = _loaded("read_faults")
commands = _loaded("read_fault_commands")
pytestmark = pytest.mark.crash
FEWER = 1 if LONG else 6
"""A sweep that is not long takes each case of this distance."""
STEPS = [pytest.param(199, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def count():
    """Number of reads of a life without faults."""
    return len(faults.reads(delays=False))


def test_a_life_without_faults_is_sound_and_reads_in_every_service():
    modules = {module for one in faults.reads() for module, _ in one}
    for part in (
        "store/reput.py", "store/flush.py", "store/index_service.py", "store/retention/clean_commit_log.py",
        "store/retention/clean_consume_queue.py", "store/compaction/compaction_store.py",
        "store/reading.py", "store/batch_consume_queue.py", "store/recovery/passes.py", "node/retention/topics.py",
        "node/lock.py", "timer/dequeue.py", "timer/enqueue.py", "timer/schedule_message_service.py",
        "doctor/verify.py",
    ):
        assert part in modules, f"no read fails in {part}"


def sweep(places, *, delays):
    """Let each of these reads fail once, with the errors in turn."""
    for number, place in enumerate(places):
        faults.fail_at(place, faults.ERRORS[number % 3], delays=delays)


@pytest.mark.parametrize("step", STEPS)
def test_a_read_that_fails_once_costs_nothing(step):
    sweep(faults.places(delays=False)[::step], delays=False)


@pytest.mark.parametrize("step", [pytest.param(89, id="some"), STEPS[1]])
def test_a_read_that_fails_once_costs_no_timer(step):
    sweep(faults.places(only=["timer/"])[::step], delays=True)


@pytest.mark.parametrize("seed", some(range(1, 13), 4))
def test_many_reads_that_fail_for_a_while_cost_nothing(seed, count):
    faults.storm(seed, count, delays=False)


def test_many_reads_that_fail_for_a_while_cost_no_timer():
    for seed in range(1, 8, FEWER):
        faults.storm(seed, len(faults.reads()))


@pytest.mark.parametrize("number", range(1, 60, 7))
def test_a_record_that_cannot_be_read_for_good_is_left_out_and_no_other(number):
    faults.bad_record(number, delays=False)


def test_a_record_that_cannot_be_read_for_good_delays_no_timer():
    for number in range(11, 60, 6 * FEWER):
        faults.bad_record(number)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", commands.READING)
def test_a_command_that_reads_names_the_file_and_changes_nothing(name, clean):
    runs = commands.Runs(name, clean=clean)
    step = FEWER if clean else 6 * FEWER  # a killed store is recovered in each run
    for number, place in enumerate(runs.places[::step]):
        runs.fail_at(place, commands.ERRORS[number % 3])


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", commands.WRITING)
def test_a_command_that_writes_completes_in_the_next_run(name, clean):
    runs = commands.Runs(name, clean=clean)
    for number, place in enumerate(runs.places[:: 3 * FEWER]):
        runs.fail_at(place, commands.ERRORS[number % 3])


# -- faults that the sweep must find


def finds(monkeypatch, place, planted, *only):
    """Assert that the sweep finds a planted fault of a method at one of the reads of some modules."""
    monkeypatch.setattr(place[0], place[1], planted)
    with pytest.raises(faults.ViolationError):
        sweep(faults.places(2, delays=False, only=only), delays=False)


def test_the_sweep_finds_a_dispatch_that_takes_before_it_reads(monkeypatch):
    read = ReputMessageService._read

    def planted(self, start, until, recent):
        file = self._log.queue.find(start)
        end = min(until, file.file_from_offset + file.wrote_position) if file is not None else start
        self.reput_from_offset = end
        try:
            stop = read(self, start, until, recent)
        except OSError:
            return end
        self.reput_from_offset = start
        return stop

    finds(monkeypatch, (ReputMessageService, "_read"), planted, "store/reput")


def test_the_sweep_finds_a_compaction_that_counts_what_it_could_not_read(monkeypatch):
    read = CommitLog.read_record

    def planted(self, phy_offset, size):
        try:
            return read(self, phy_offset, size)
        except OSError:
            return b""

    finds(monkeypatch, (CommitLog, "read_record"), planted, "store/compaction/", "store/commit_log")


def test_the_sweep_finds_a_store_that_takes_no_messages_after_a_read(monkeypatch):
    flush = FlushConsumeQueueService._flush

    def planted(self, least_pages, *, clean):
        if self._index is not None:
            try:
                _ = self._index.full_until
            except OSError as error:
                self._reput._flags.set(2, f"the checkpoint cannot be written: {error}")
                raise StoreError(str(error)) from error
        return flush(self, least_pages, clean=clean)

    finds(monkeypatch, (FlushConsumeQueueService, "_flush"), planted, "store/flush", "store/index")


def test_a_shortage_is_no_reason_to_give_a_record_up():
    life = faults.Life(lambda _n, name, path, *_: errno.EMFILE if name == "pread" and "/commitlog/" in path else 0)
    life.open()
    error = OSError(errno.EMFILE, "injected", "/store/commitlog/0")
    unreadable = life.store.inner.commit_log.unreadable
    for _ in range(50):
        life.clock.advance(1000)
        assert not unreadable.gives_up(0, error)
    assert not unreadable.count
