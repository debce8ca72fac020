"""Pops, acknowledgements, resets, waits, restarts and kills against a model with time; `make crash` runs more."""

from __future__ import annotations

import logging

import pop_model
import pytest

from tailrace.broker.pop.polling import PopLongPollingService
from tailrace.broker.pop.revive import PopReviveService, ReviveLog
from tailrace.formats.pop import Ack, PopCheckPoint
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager, OrderInfo

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [*range(1, 9), 95])
def test_each_answer_is_what_the_model_says(seed):
    print(f"seed {seed}: {dict(pop_model.Model(seed).run())}")


def plant_early(monkeypatch):
    """Messages are visible again too early."""
    monkeypatch.setattr(PopCheckPoint, "revive_time", property(lambda self: self.pop_time + self.invisible_time - 700))


def plant_nothing_comes_back(monkeypatch):
    monkeypatch.setattr(PopReviveService, "step", lambda _: False)


def plant_acknowledgements_lost(monkeypatch):
    monkeypatch.setattr("tailrace.broker.pop.revive.ACK_TAG", "no such tag")


def plant_batches_lost(monkeypatch):
    monkeypatch.setattr("tailrace.broker.pop.revive.BATCH_ACK_TAG", "no such tag")


def plant_checkpoint_of_changes_lost(monkeypatch):
    put = ReviveLog.put_checkpoint
    monkeypatch.setattr(ReviveLog, "put_checkpoint", lambda self, checkpoint, queue: put(
        self, checkpoint, queue) if checkpoint.num > 1 or len(checkpoint.diffs) != 1 else self.put_ack(
            Ack((0,), 0, 0, 0, "none", "none", "none"), 0, queue))


def plant_second_copies(monkeypatch):
    monkeypatch.setattr(PopReviveService, "_has_come_back", lambda *_: False)


def plant_order_not_blocked(monkeypatch):
    monkeypatch.setattr(ConsumerOrderInfoManager, "is_blocked", lambda *_: False)


def plant_order_skips(monkeypatch):
    """What a Java broker does with an acknowledgement of a pop that it does not know."""
    commit = ConsumerOrderInfoManager.commit
    monkeypatch.setattr(ConsumerOrderInfoManager, "commit", lambda self, topic, group, queue_id, offset, pop_time: (
        commit(self, topic, group, queue_id, offset, pop_time)
        if self._table.get(f"{topic}@{group}", {}).get(queue_id) else offset + 1))


def plant_order_commits_the_last(monkeypatch):
    monkeypatch.setattr(OrderInfo, "next_offset", lambda self: self.offsets[-1] + 1)


def plant_no_waking(monkeypatch):
    monkeypatch.setattr(PopLongPollingService, "arriving", lambda *_: None)


def plant_one_millisecond(monkeypatch):
    """The fault that was mended: a changed time in the millisecond of the pop."""
    monkeypatch.setattr("tailrace.broker.pop.ack.max", lambda *values: values[0], raising=False)


def run_seeds(seeds):
    for seed in seeds:
        pop_model.Model(seed).run()


PLANTS = [value for name, value in list(globals().items()) if name.startswith("plant_")]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_model_finds_a_planted_fault(monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(pop_model.ViolationError):
        run_seeds(range(1, 25))
