"""A store with timers that lost segment files of its log: no queue offset is given a second time.

A consumer that had a lost message would never see the new one at its offset. The life before is the same
for all cases; then files are removed, and after the open timers become due and messages are put.
"""

from __future__ import annotations

import itertools

import pytest
from long_runs import some
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

pytestmark = pytest.mark.crash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, mapped_file_size_timer_log=52 * 8 + 30)
SERVICES = ("TimerEnqueueService", "TimerDequeueService", "TimerFlushService", "ScheduleMessageService")
TOPICS = ("T", "U")
"""Timers of T become due after the loss; U has ordinary messages only, none in the last segment."""


def opened(files, clock):
    store = MessageStore.open(
        "/s", config=CONFIG,
        parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(clock.now_ms())))
    steps = ManualScheduler()
    store.timer_services.start(steps)
    return store, steps


def turn(store, steps):
    store.wait_dispatched()
    for name in SERVICES:
        while steps.steps[name]():
            pass
    store.wait_dispatched()


def messages(store):
    """(topic, queue offset): bodies."""
    found = {}
    for topic, queue_id, *_ in store.queues():
        if topic in TOPICS:
            for message in read_there(store, topic, queue_id):
                found.setdefault((topic, message.queue_offset), []).append(message.body[:8])
    return found


def paths(files, root):
    if not files.exists(root):
        return []
    found = []
    for name in files.list(root):
        path = f"{root}/{name}"
        found += paths(files, path) if files.stat(path).is_dir else [path]
    return found


class Before:
    """The store before the loss: six segments, what each queue offset was, and where queues ended."""

    def __init__(self, *, clean):
        clock, files = SimClock(1_700_000_000_000), CrashFileSystem()
        store, steps = opened(files, clock)
        number = itertools.count(1)

        def put(topic, delay=None, size=500):
            store.put(Message(topic=topic, body=(b"%08d" % next(number)).ljust(size, b"."), delay=delay))

        for i in range(48):
            put("T" if i % 2 or i > 40 else "U")
            if i % 3 == 0:
                put("T", delay=60 + i * 0.1, size=50)
            if i % 5 == 0:
                put("T", delay=1.0, size=50)
            if i % 6 == 5:
                clock.advance(300)
                turn(store, steps)
            if i == 30:
                store.inner.flush_consume_queue.flush(0)
        clock.advance(3000)
        turn(store, steps)
        self.messages = messages(store)
        self.ends = {topic: store.queue_of(topic, 0).max for topic in TOPICS}
        self.until = store.inner.flush_consume_queue.durable_until
        self.now = clock.now_ms()
        if clean:
            store.close()
        self.files = files.killed()
        self.segments = paths(self.files, "/s/commitlog")
        assert len(self.segments) == 6


@pytest.fixture(scope="module")
def lives():
    return {clean: Before(clean=clean) for clean in (True, False)}


LOST = {"first": [0], "second": [1], "middle": [2], "fourth": [3], "second-last": [4], "last": [5],
        "last two": [4, 5], "last three": [3, 4, 5], "all but the first": [1, 2, 3, 4, 5],
        "first and last": [0, 5], "two apart": [2, 4], "all": [0, 1, 2, 3, 4, 5]}
AT_THE_END = {"last", "last two", "last three", "all but the first", "first and last"}
"""The log ends before these: offsets after the last remaining message are used again."""


OWN = ["own progress", "none of our own", "no timer files"]
CLOSED, KILLED = ("closed", True), ("killed", False)


# Steps that have no common divisor with the numbers of values: each value of each parameter is in some case.
@pytest.mark.parametrize(("lost", "clean", "own"), [
    pytest.param(lost, clean, own, id=f"{lost}-{how}-{own}")
    for lost, (how, clean), own in some(list(itertools.product(LOST, (CLOSED, KILLED), OWN)), 5)])
def test_a_due_timer_and_a_put_never_get_the_offset_of_a_lost_message(lives, lost, clean, own):
    before = lives[clean]
    files, clock = before.files.killed(), SimClock(before.now + 1000)
    for number in LOST[lost]:
        files.remove(before.segments[number])
    gone = {"none of our own": ["/s/tailrace"], "no timer files": ["/s/timerlog", "/s/timerwheel"]}
    for root in gone.get(own, []):
        for path in paths(files, root) or [root]:
            files.remove(path)
    check(before, files, clock, known=lost not in AT_THE_END)


@pytest.mark.parametrize(("lost", "clean"), [
    pytest.param(lost, clean, id=f"{lost}-{how}")
    for lost, (how, clean) in some(list(itertools.product(LOST, (CLOSED, KILLED))), 3)])
def test_without_queue_files_own_progress_says_how_far_they_came(lives, lost, clean):
    before = lives[clean]
    files, clock = before.files.killed(), SimClock(before.now + 1000)
    for path in [before.segments[n] for n in LOST[lost]] + paths(files, "/s/consumequeue"):
        files.remove(path)
    # After a kill own progress is as old as the last flush: no file names the messages after it.
    check(before, files, clock, known=clean and lost not in AT_THE_END)


def check(before, files, clock, *, known=True):
    store, steps = opened(files, clock)
    for _ in range(3):
        clock.advance(40_000)
        for _ in range(4):
            turn(store, steps)
    for topic in TOPICS:
        store.put(Message(topic=topic, body=b"after-" + topic.encode()))
    after = messages(store)
    assert {(b"after-T",), (b"after-U",)} <= {tuple(bodies) for bodies in after.values()}
    assert all(len(bodies) == 1 for bodies in after.values())
    if known:
        changed = {at: (before.messages[at], bodies) for at, bodies in after.items()
                   if at in before.messages and before.messages[at] != bodies}
        assert not changed, f"queue offsets that came twice, ended at {before.ends}"
        for topic in TOPICS:
            assert max(at for name, at in after if name == topic) >= before.ends[topic]
    store.close()
    ends = {topic: store.queue_of(topic, 0).max for topic in TOPICS}
    for killed in (False, True):  # opening again changes nothing
        again, _ = opened(files, clock)
        assert messages(again) == after
        assert {topic: again.queue_of(topic, 0).max for topic in TOPICS} == ends
        if killed:
            files = files.killed()
        else:
            again.close()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("lost", ["second-last", "two apart", "all"])
def test_the_ends_of_queues_are_known_at_later_opens_before_anything_is_put(lives, lost, killed):
    before = lives[True]
    files, clock = before.files.killed(), SimClock(before.now + 1000)
    for number in LOST[lost]:
        files.remove(before.segments[number])
    for _ in range(3):
        store, _ = opened(files, clock)
        assert {topic: store.queue_of(topic, 0).max for topic in TOPICS} == before.ends
        if killed:
            store.inner.flush()
            files = files.killed()
            for path in paths(files, "/s/tailrace"):
                files.remove(path)
        else:
            store.close()
    store, _ = opened(files, clock)
    for topic in TOPICS:
        assert store.put(Message(topic=topic, body=b"x")).queue_offset == before.ends[topic]
