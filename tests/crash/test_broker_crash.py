"""Crashes at the operations of brokers with transactions and POP, in several lives, and real kills of one."""

from __future__ import annotations

import errno
import logging

import broker_life
import broker_world
import pytest
from broker_life import ViolationError

from tailrace import kernels
from tailrace.broker.pop.revive import PopReviveService, ReviveLog
from tailrace.broker.transactions.service import TransactionService
from tailrace.model import PutMessageStatus
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.testing import CrashFileSystem, SimClock

pytestmark = pytest.mark.crash
SEED, STEP = 1, 41


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("keep", [None, 0, 50, 100])
def test_a_crash_loses_and_doubles_nothing(keep, sync):
    print(f"seed {SEED}")
    counts = broker_life.sweep(SEED, keep, sync=sync, step=STEP)
    print(counts)
    assert counts["cases"] >= 3


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_reads_that_fail_lose_and_double_nothing(sync):
    counts = broker_life.sweep_reads(SEED + 1, sync=sync, step=67)
    counts += broker_life.sweep_reads(SEED + 1, sync=sync, step=113, percent=30, width=60)
    print(counts)
    assert counts["reads that failed"] >= 10


def test_an_acknowledgement_comes_before_its_checkpoint_whose_read_failed():
    """It was dropped, and the message delivered again."""
    for place, number, sync in ((423, errno.EIO, True), (428, errno.EMFILE, False)):
        assert broker_life.fail_reads(2, range(place, place + 1), number, sync=sync).clients.counts["acknowledged"]


def test_a_changed_message_is_there_when_a_power_loss_keeps_only_what_was_put_last():
    """The end of the old checkpoint was kept, and the new checkpoint in the page before it was not."""
    assert broker_life.crash_at(7, (161, 151, 141), 100, sync=True).clients.counts["changed"]


def test_one_answer_that_never_comes_has_a_message_and_its_copy():
    """The pop of both is over for two copies; the model counted one for each request."""
    broker_life.crash_at(3902, (104, 104, 104), 0)


@pytest.mark.parametrize(("places", "keep", "sync"), [((86, 110, 134), 0, True), ((41, 50, 59), None, False)])
def test_a_crash_takes_an_offset_and_messages_are_popped_again_at_the_time_of_a_change(places, keep, sync):
    """One acknowledgement, or one of the checkpoints, was dropped as a copy of the other one."""
    assert broker_life.crash_at(20261127, places, keep, sync=sync).clients.counts["changed"]


def test_every_kind_of_message_and_request_is_in_the_lives():
    counts = broker_life.sweep(2, None, sync=True, step=STEP)
    for kind in ("sent plain", "sent commit", "sent rollback", "sent open-commit", "sent open-rollback", "checks",
                 "commits answered", "popped", "popped again after a crash", "came back", "acknowledged", "changed"):
        assert counts[kind], kind


def first_violation(keep, *, sync, seeds=range(1, 9)):
    """Sweep until something is found."""
    for seed in seeds:
        try:
            broker_life.sweep(seed, keep, sync=sync, step=STEP)
        except ViolationError as error:
            return str(error)
    return ""


def test_planted_commits_that_are_not_looked_for(monkeypatch):
    monkeypatch.setattr(TransactionService, "_is_committed", lambda *_: False)
    assert "TX1" in first_violation(None, sync=True)


def test_planted_checks_of_half_messages_that_are_forgotten(monkeypatch):
    monkeypatch.setattr(TransactionService, "load", lambda self: setattr(self, "is_loaded", True) or True)
    assert first_violation(None, sync=True)


def test_planted_copies_that_are_not_looked_for(monkeypatch):
    monkeypatch.setattr(PopReviveService, "_has_come_back", lambda *_: False)
    assert "P3" in first_violation(None, sync=True)


def test_planted_acknowledgements_that_are_not_read(monkeypatch):
    monkeypatch.setattr("tailrace.broker.pop.revive.ACK_TAG", "no such tag")
    assert "P3" in first_violation(None, sync=True)


def test_planted_progress_ahead_of_the_checkpoints(monkeypatch):
    """Offsets that are written before their checkpoints are durable: messages are lost."""
    monkeypatch.setattr(ReviveLog, "sync", lambda _: None)
    assert first_violation(0, sync=False)


def test_planted_answers_that_wait_for_no_sync(monkeypatch):
    monkeypatch.setattr(DefaultMessageStore, "when_durable", lambda _self, _until, callback: callback(
        PutMessageStatus.PUT_OK))
    assert first_violation(0, sync=True)


@pytest.mark.skipif(not kernels.compiled(), reason="without compiled kernels there is no lane")
def test_plain_sends_of_these_worlds_take_the_lane():
    world = broker_world.BrokerWorld(CrashFileSystem(), SimClock())
    for number in range(3):
        world.send(b"%d" % number)
    world.flush_log()
    world.loop.run()
    assert world.broker.traffic.sends == {"lane": 2, "ordinary": 1}
    assert [world.answer(number).code for number in (1, 2, 3)] == [0, 0, 0]
    world.close()
