"""Random sends, recalls, failing reads, kills, power losses, clock steps and lost files against a dictionary."""

import errno
import importlib.util
import pathlib
import sys

from tailrace.env.entropy import SeededEntropy

_spec = importlib.util.spec_from_file_location(
    "timer_world", pathlib.Path(__file__).parents[1] / "unit" / "timer" / "world.py")
_module = importlib.util.module_from_spec(_spec)
sys.modules["timer_world"] = _module
_spec.loader.exec_module(_module)

ROOT, World = _module.ROOT, _module.World
LOST = ("timerwheel", "timerlog/", "config/timercheck", "config/delayOffset.json")


class Model:
    def __init__(self, seed):
        self.entropy = SeededEntropy(seed)
        # The small ring is the one that comes round, and that a step of the clock may be longer than.
        self.step_ms, slots = ((150_000, 512), (2_000_000, 4096), (2_000_000, 512))[
            2 if seed % 5 == 0 else seed % 2]
        self.world = World(seed=seed, slots=slots, odd=seed % 3 == 0)
        self.recalled = {}
        self.places = {}
        """Where the record of each send ends; what was not synced may go with the power."""
        self.levels = set()
        self.stepped_back = False
        self.faults = 0
        self.faulty_until = -1
        self.failed_reads = 0
        self.stops = 0
        self.last = 0

    def note(self, key, result):
        self.places[key] = result.until

    def send(self):
        kind, delay = self.entropy.randrange(4), self.entropy.randrange(20_000) + 1
        if kind == 3:
            key, result = self.world.send(f"T{delay % 2}", DELAY=1 + self.entropy.randrange(4))
            self.levels.add(key)
            return self.note(key, result)
        if self.entropy.randrange(8) == 0:
            delay += self.entropy.randrange(150_000)
        if kind == 0:
            sent = self.world.send(TIMER_DELAY_MS=delay)
        elif kind == 1:
            sent = self.world.send(TIMER_DELIVER_MS=self.world.clock.now_ms() + delay)
        else:
            sent = self.world.send(TIMER_DELAY_SEC=delay // 1000 + 1)
        return self.note(*sent)

    def recall(self):
        known = sorted(set(self.world.due) - set(self.recalled) - self.levels)
        if known:
            key = known[self.entropy.randrange(len(known))]
            due, now = self.world.due[key], self.world.clock.now_ms()
            result = self.world.recall(key, bare=bool(self.entropy.randrange(2)))
            if result.ok:
                # In the last moment, or after a delivery while the clock was ahead, it is too late.
                # A request that cannot be read comes into the wheel when it can.
                self.recalled[key] = (
                    result.until if due - now > 100 + self.delay_of_reads() and key not in self.world.delivered()
                    else 0)

    # -- failing reads

    def delay_of_reads(self):
        """Time for which a message that is put now may be unread, ms: until the faults end, and then 5 s at most."""
        left = self.faulty_until - self.world.clock.monotonic_ns() // 1_000_000
        return left + 5100 if left > -5100 else 0

    def fail_reads(self):
        """Let reads fail for a while, some of them or all; descriptors are short, or the disk returns errors."""
        entropy, reads = self.entropy, self.world.reads
        percent = (10, 30, 60, 100)[entropy.randrange(4)]
        numbers = ((errno.EMFILE,), (errno.EIO,), (errno.EMFILE, errno.EIO, errno.ENOMEM))[entropy.randrange(3)]
        what = (("log",), ("log", "timerlog", "queue", "index"))[entropy.randrange(2)]
        self.faults += 1
        duration = 100 * (1 + entropy.randrange(20))
        self.faulty_until = self.world.clock.monotonic_ns() // 1_000_000 + duration
        self.world.steps()  # requests to delete that are there are in the wheel
        before = reads.failed
        reads.at_random(entropy, percent, numbers, what)
        for _ in range(4):
            if entropy.randrange(3) == 0:
                self.send()
            elif entropy.randrange(4) == 0:
                self.recall()
            self.world.run(duration // 4, step=25)
        if entropy.randrange(6) == 0:
            self.stop()  # a kill in the middle
        reads.end()
        self.failed_reads += reads.failed - before

    def stop(self):
        kind = self.entropy.randrange(6)
        world = self.world
        self.stops += 1
        if kind == 0:
            with world.reads.paused():
                world.close()
            world.files = world.files.killed()
            self.open(clean=True)
            return
        if kind in (1, 5):
            if kind == 1:
                world.flush()
            self.forget_behind(world.store.commit_log.queue.flushed_where)
            world.files = world.files.power_lost(self.entropy, self.entropy.randrange(101))
        else:
            world.files = world.files.killed()
        if kind == 2:
            lost = LOST[self.entropy.randrange(len(LOST))]
            for path in [p for p in world.files._files if p.startswith(f"{ROOT}/{lost}")]:
                world.files.remove(path)
        if kind == 3:
            world.clock.advance(self.entropy.randrange(3_000_000))
        self.open()

    def open(self, *, clean=False):
        """Open the store; an open that a read fails may be tried again, at last when the faults have ended."""
        for _ in range(3):
            try:
                self.world.open(clean=clean)
            except OSError:
                assert self.world.reads.active
                self.world.files, clean = self.world.files.killed(), False
            else:
                return
        self.world.reads.end()
        self.world.open(clean=clean)

    def forget_behind(self, flushed):
        """Sends and recalls after the last sync may be lost."""
        for key in [key for key, until in self.places.items() if until > flushed]:
            self.last = max(self.last, self.world.due.pop(key, 0))
        for key, until in self.recalled.items():
            if until > flushed:
                self.recalled[key] = 0

    def run(self):
        for _ in range(60):
            what = self.entropy.randrange(20)
            if what < 9:
                self.send()
            elif what < 11:
                self.recall()
            elif what < 12:
                self.stop()
            elif what < 13 and self.entropy.randrange(2) == 0:
                self.fail_reads()
            elif what < 13 and self.entropy.randrange(3) == 0:
                step = self.entropy.randrange(2 * self.step_ms) - self.step_ms
                self.stepped_back |= step < 0
                self.world.clock.advance(step)
                self.world.steps()
            else:
                self.world.run(self.entropy.randrange(4000), step=25)
        now = self.world.clock.now_ms()
        last = max([*self.world.due.values(), self.last, now])
        last += 63_000  # after a step back a level waits its delay again, at most a minute
        self.world.run(last - now, step=max((last - now) // 1500, 25))
        if self.failed_reads:
            self.world.timers.check_metrics_step()  # a topic that could not be read is counted again
        found = self.world.delivered()
        for topic in ("T0", "T1"):
            found |= self.world.delivered(topic)
        return found


def violations(seed):
    """What went wrong in the run of a seed, in words; and counts of what happened in it."""
    model = Model(seed)
    found, due = model.run(), model.world.due
    must = {key for key in due if key not in model.recalled}
    never = {key for key, until in model.recalled.items() if until}
    # After the clock was stepped back a level waits its delay by the new one.
    early = {
        key for key in set(found) & set(due)
        if min(found[key]) < due[key] and not (key in model.levels and model.stepped_back)}
    wrong = {
        "lost": must - set(found), "early": early, "recalled and delivered": never & set(found),
        "doubled": {key for key, times in found.items() if len(times) > 1},
        "pending at the end": {
            topic for topic, count in model.world.timers.metrics.counts().items()
            if count and not model.stepped_back},
    }
    counts = {
        "sends": len(model.places), "delivered": len(found), "recalls": len(model.recalled),
        "stops": model.stops, "faults of reads": model.faults, "failed reads": model.failed_reads, "doubles known": (
            model.world.timers.put_back.counters["timerDouble"]
            + model.world.schedule.counters["scheduleDouble"]),
    }
    return [f"{what}: {sorted(keys)}" for what, keys in wrong.items() if keys], counts
