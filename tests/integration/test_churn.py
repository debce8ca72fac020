"""A group of programs that join, leave and are killed while messages come, against `tailrace serve`.

Each message is consumed. In order, the calls for a queue in all programs are in the order of its messages: no message
is skipped, and a new member that consumes messages again starts at an earlier one. ``SEED`` chooses the run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tailrace import Message, Producer

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SEED = int(os.environ.get("SEED", "1"))
QUEUES = 8
MEMBERS_MAX = 4
PROGRAM = Path(__file__).parents[1] / "support" / "churn_member.py"
PATIENCE_S = 180
"""A lock of a killed member is given to another one after a minute."""


class Churn:
    """One run."""

    def __init__(self, broker, log, *, in_order, kills):
        self.broker = broker
        self.log = log
        self.log.touch()
        self.order = "in-order" if in_order else "concurrent"
        self.kills = kills
        self.rng = random.Random(SEED)
        self.members = []
        self.leaving = []
        self.joined = 0
        self.calls = []
        """Queue, offset and member of each call of a listener."""
        self.consumed = set()
        self.read = 0

    def join(self):
        self.joined += 1
        self.members.append(subprocess.Popen(
            [sys.executable, PROGRAM, self.broker.namesrv, self.order, self.log, str(self.joined)]))

    def leave(self):
        member = self.members.pop(self.rng.randrange(len(self.members)))
        member.terminate()
        self.leaving.append(member)

    def kill(self):
        member = self.members.pop(self.rng.randrange(len(self.members)))
        member.kill()
        member.wait()

    def step(self):
        kinds = ["join"] * (MEMBERS_MAX - len(self.members))
        if len(self.members) > 1:
            kinds += ["leave", *(["kill"] if self.kills else [])]
        getattr(self, self.rng.choice(kinds))()

    def look(self):
        """Read the calls of listeners that are new in the log."""
        with self.log.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.read += len(whole)
        new = [tuple(map(int, line.split())) for line in whole.splitlines()]
        self.calls += new
        self.consumed.update(call[:2] for call in new)

    def run(self, messages, steps):
        with Producer(namesrv=self.broker.namesrv, timeout_ms=10_000, linger_ms=2) as producer:
            producer.create_topic("churn", QUEUES)
            self.join()
            for number in range(steps):
                some = messages * (number + 1) // steps - messages * number // steps
                for future in [producer.send_async(Message(topic="churn", body=b"x")) for _ in range(some)]:
                    future.result()
                self.step()
                self.wait_for(messages * number // steps)
        self.wait_for(messages)
        for member in self.members:
            member.terminate()
        for member in [*self.members, *self.leaving]:
            assert member.wait(60) in {0, -signal.SIGTERM}  # the latter before it could set its handler

    def wait_for(self, count):
        """Wait until this many different messages are consumed."""
        end = time.monotonic() + PATIENCE_S
        while len(self.consumed) < count:
            assert time.monotonic() < end, f"SEED={SEED}: {len(self.consumed)} of {count} messages are consumed"
            time.sleep(0.05)
            self.look()

    def end(self):
        for member in [*self.members, *self.leaving]:
            member.kill()
            member.wait()


def churned(broker, log, messages, steps, *, in_order, kills):
    churn = Churn(broker, log, in_order=in_order, kills=kills)
    try:
        churn.run(messages, steps)
    finally:
        churn.end()
    churn.look()
    ends = Counter()
    for queue, offset in churn.consumed:
        ends[queue] = max(ends[queue], offset + 1)
    assert sum(ends.values()) == len(churn.consumed) == messages
    if in_order:
        last = {}
        for queue, offset, member in churn.calls:
            before, its_member = last.get(queue, (-1, member))
            assert offset == before + 1 or (offset <= before and member != its_member), (
                f"SEED={SEED}: queue {queue}: member {member} has {offset} after {before} of member {its_member}")
            last[queue] = offset, member
        if not kills:
            assert len(churn.calls) == messages  # a clean handover repeats nothing


@pytest.mark.parametrize(("in_order", "kills"), [(False, True), (True, False)], ids=["concurrent", "in order"])
def test_nothing_is_lost_while_members_come_and_go(tailrace_broker, tmp_path, in_order, kills):
    churned(tailrace_broker, tmp_path / "log", 2_000, 5, in_order=in_order, kills=kills)


@pytest.mark.long
@pytest.mark.parametrize(("in_order", "kills"), [(False, True), (True, False), (True, True)],
                         ids=["concurrent", "in order", "in order with kills"])
def test_nothing_of_100_000_messages_is_lost(tailrace_broker, tmp_path, in_order, kills):
    churned(tailrace_broker, tmp_path / "log", 100_000, 40, in_order=in_order, kills=kills)
