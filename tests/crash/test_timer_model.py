"""Random sends, recalls, kills, power losses, clock steps and lost files against a dictionary.

``SEED`` starts and ``SEEDS`` counts the runs; a failure names its seed.
"""

import importlib.util
import os
import pathlib
import sys

import pytest

from tailrace.env.entropy import SeededEntropy

_spec = importlib.util.spec_from_file_location(
    "timer_world", pathlib.Path(__file__).parents[1] / "unit" / "timer" / "world.py")
_module = importlib.util.module_from_spec(_spec)
sys.modules["timer_world"] = _module
_spec.loader.exec_module(_module)

ROOT, World = _module.ROOT, _module.World
FIRST = int(os.environ.get("SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "12")))
LOST = ("timerwheel", "timerlog/", "config/timercheck")


class Model:
    def __init__(self, seed):
        self.entropy = SeededEntropy(seed)
        self.world = World(seed=seed)
        self.recalled = {}

    def send(self):
        kind, delay = self.entropy.randrange(3), self.entropy.randrange(20_000) + 1
        if self.entropy.randrange(8) == 0:
            delay += self.entropy.randrange(150_000)
        if kind == 0:
            self.world.send(TIMER_DELAY_MS=delay)
        elif kind == 1:
            self.world.send(TIMER_DELIVER_MS=self.world.clock.now_ms() + delay)
        else:
            self.world.send(TIMER_DELAY_SEC=delay // 1000 + 1)

    def recall(self):
        known = sorted(set(self.world.due) - set(self.recalled))
        if known:
            key = known[self.entropy.randrange(len(known))]
            due, now = self.world.due[key], self.world.clock.now_ms()
            result = self.world.recall(key, bare=bool(self.entropy.randrange(2)))
            if result.ok:
                # In the last moment, or after a delivery while the clock was ahead, it is too late.
                self.recalled[key] = due - now > 100 and key not in self.world.delivered()

    def stop(self):
        kind = self.entropy.randrange(5)
        world = self.world
        if kind == 0:
            world.close()
            world.files = world.files.killed()
            world.open(clean=True)
            return
        if kind == 1:
            world.flush()
            world.files = world.files.power_lost(self.entropy, self.entropy.randrange(101))
        else:
            world.files = world.files.killed()
        if kind == 2:
            lost = LOST[self.entropy.randrange(3)]
            for path in [p for p in world.files._files if p.startswith(f"{ROOT}/{lost}")]:
                world.files.remove(path)
        if kind == 3:
            world.clock.advance(self.entropy.randrange(3_000_000))
        world.open()

    def run(self):
        for _ in range(60):
            what = self.entropy.randrange(20)
            if what < 9:
                self.send()
            elif what < 11:
                self.recall()
            elif what < 12:
                self.stop()
            elif what < 13 and self.entropy.randrange(3) == 0:
                self.world.clock.advance(self.entropy.randrange(4_000_000) - 2_000_000)
                self.world.steps()
            else:
                self.world.run(self.entropy.randrange(4000), step=25)
        now = self.world.clock.now_ms()
        last = max([*self.world.due.values(), now])
        self.world.run(last - now + 2_000, step=max((last - now) // 1500, 25))
        return self.world.delivered()


@pytest.mark.crash
@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_early_or_doubled(seed):
    model = Model(seed)
    found, due = model.run(), model.world.due
    must = {key for key in due if key not in model.recalled}
    never = {key for key, in_time in model.recalled.items() if in_time}
    early = {key for key, times in found.items() if min(times) < due[key]}
    assert not must - set(found), f"SEED={seed}: lost"
    assert not early, f"SEED={seed}: early"
    assert not {key for key, times in found.items() if len(times) > 1}, f"SEED={seed}: doubled"
    assert not never & set(found), f"SEED={seed}: recalled and delivered"
