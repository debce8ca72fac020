"""Random pops, acknowledgements, changes of the time, kills and waits against a model of what may be seen."""

from __future__ import annotations

import random

import pytest

from tailrace.formats.pop import ExtraInfo


class Model:
    """Every message is seen again until it is acknowledged in time; never before its time, never after that."""

    def __init__(self, world, seed):
        self.world, self.random = world, random.Random(seed)
        self.held = {}
        """By body: the message with its last receipt."""
        self.acknowledged = set()
        self.seen = set()
        self.sent = 0

    def now(self):
        return self.world.clock.now_ms()

    def due(self, one):
        info = ExtraInfo.decode(one.receipt)
        return info.pop_time + info.invisible_time

    def send(self):
        self.world.send(b"%d" % self.sent, queue_id=self.random.randrange(2))
        self.sent += 1

    def pop(self, invisible_ms=None):
        invisible_ms = invisible_ms or self.random.choice([500, 3_000, 8_000, 20_000])
        for one in self.world.pop(invisibleTime=invisible_ms, maxMsgNums=self.random.randrange(1, 33)):
            assert one.body not in self.acknowledged
            before = self.held.get(one.body)
            assert before is None or self.due(before) <= self.now()
            self.held[one.body] = one
            self.seen.add(one.body)

    def take(self):
        live = [one for one in self.held.values() if self.due(one) > self.now()]
        return self.random.choice(live) if live else None

    def ack(self):
        if (one := self.take()) is not None:
            acked = self.world.ack(one) if self.random.random() < 0.5 else self.world.ack_all([one])
            assert acked.code == 0
            del self.held[one.body]
            self.acknowledged.add(one.body)

    def change(self):
        if (one := self.take()) is not None:
            answer, self.held[one.body] = self.world.change(one, self.random.choice([1_000, 5_000, 15_000]))
            assert answer.code == 0

    def wait(self):
        self.world.run(self.random.choice([200, 1_000, 4_000]), step=200)

    def persist(self):
        self.world.broker.offsets.persist_if_changed()

    def kill(self):
        # Offsets that were not written are lost: what was popped since is popped again, as with a pull.
        self.persist()
        self.world.kill()
        self.world.open()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_seen_is_what_may_be_seen(world, seed):
    model = Model(world, seed)
    steps = [model.send] * 6 + [model.pop] * 4 + [model.ack] * 4 + [model.change] + [model.wait] * 2 + [model.persist]
    for number in range(250):
        model.random.choice(steps)()
        if number % 60 == 59:
            model.kill()
    for _ in range(60):
        world.run(5_000)
        model.pop(30_000)
        while model.take() is not None:
            model.ack()
        if len(model.acknowledged) == model.sent:
            break
    assert len(model.acknowledged) == model.sent
    world.run(60_000, step=2_000)
    assert world.pop() == []
    assert world.pop_part.revive.pending == 0
