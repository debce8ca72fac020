"""Repeated kill -9 of concurrent writers, and of stores that are being recovered.

Each round starts a writer of several threads, kills it when it has acknowledged a number of messages,
then starts up to three opens one after the other that are killed in the middle of recovery, then
opens the store and looks for every acknowledged message. Then one writer under group commit is stopped
STOPS times, and each time a copy of its directory is opened: the copy is what a kill at that moment leaves.
Every open must start from own progress if there is one. ROUNDS=n, STOPS=n and SEED=n; prints counts.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tailrace import FlushDiskType, MessageStore
from tailrace.node.store_opening import StoreParts

WRITERS = 4
NESTED = 3
SIZES = ("mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000, "
         "max_hash_slot_num=50, max_index_num=200, "
         "flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=10")
WRITER = f"""
import os, sys, threading
from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
path, generation, flush, writers = sys.argv[1:]
config = StoreConfig(flush_disk_type=FlushDiskType(flush), {SIZES})
store = MessageStore.open(path, config=config)
os.write(1, b"open\\n")
def write(queue_id):
    for number in range(1_000_000):
        key = f"{{generation}}/{{number}}"
        m = Message(topic="T", body=key.ljust(50 + 37 * number % 700).encode(), tags="a", keys=[key])
        # The time in which this process is stopped also counts: a copy of the directory may take long.
        offset = store.put(m, queue_id=queue_id, timeout_ms=600_000).queue_offset
        os.write(1, b"%d %d %d\\n" % (queue_id, offset, number))
for queue_id in range(int(writers)):
    threading.Thread(target=write, args=[queue_id]).start()
"""
OPENER = f"""
import os, sys
from tailrace import MessageStore, StoreConfig
os.write(1, b"go\\n")
MessageStore.open(sys.argv[1], config=StoreConfig({SIZES}))
os.write(1, b"open\\n")
sys.stdin.read()
"""


def write_and_kill(path: Path, generation: int, count: int, flush: FlushDiskType):
    """Kill writers after ``count`` acknowledgements; return (queue id, queue offset, number) of each."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(generation), flush.value, str(WRITERS)],
        stdout=subprocess.PIPE)
    with process.stdout:
        if process.stdout.readline() != b"open\n":
            raise AssertionError("the writer cannot open the store")
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == count:
                process.send_signal(signal.SIGKILL)
        process.wait(30)
    return [tuple(map(int, line.split())) for line in lines if line.endswith(b"\n")]


def open_and_kill(path: Path, after_s: float) -> bool:
    """Kill an open so long after it began; whether it was still at it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPENER, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with process.stdout, process.stdin:
        process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait(30)
    return rest == b""


class Loop:
    """One store directory and what it acknowledged."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.acknowledged: dict[tuple[int, int], str] = {}
        self.recovered = 0
        self.in_recovery: collections.Counter[str] = collections.Counter()
        self.took_ms: list[float] = []
        self.starts: collections.Counter[str] = collections.Counter()

    def round(self, generation: int, most: int = 400) -> None:
        """Write, kill, kill again while recovering, open, compare. Raises AssertionError."""
        flush = FlushDiskType.SYNC_FLUSH if generation % 2 else FlushDiskType.ASYNC_FLUSH
        count = self.rng.randrange(20, most)
        for queue_id, offset, number in write_and_kill(self.path, generation, count, flush):
            assert (queue_id, offset) not in self.acknowledged, "an offset was given twice"
            self.acknowledged[queue_id, offset] = f"{generation}/{number}"
        if generation % 3 == 2:  # what a second kill resumes from is not there: a longer walk
            for slot in (self.path / "tailrace").glob("progress.*"):
                slot.unlink()
        for depth in range(self.rng.randrange(NESTED + 1)):
            was_at_it = open_and_kill(self.path, self.rng.uniform(0, 0.03))
            self.in_recovery[f"depth {depth + 1}"] += was_at_it
        self.check()

    def check(self) -> None:
        """Open it and compare everything."""
        with MessageStore.open(self.path) as store:
            report = store.recovery_report
            self.took_ms.append(report["ms"])
            assert report["mode"] == "abnormal", report
            self.starts[report["decision"]] += 1
            assert "own progress does not match" not in report["why"], report
            assert not report["steppedOver"], report
            found = {}
            for queue_id in range(WRITERS):
                messages = list(store.read("T", queue_id))
                assert [m.queue_offset for m in messages] == list(range(len(messages)))
                order = [tuple(map(int, m.keys[0].split("/"))) for m in messages]
                assert order == sorted(set(order)), "messages changed places, or came twice"
                assert all(m.body.startswith(m.keys[0].encode()) for m in messages)
                found.update({(queue_id, m.queue_offset): m.keys[0] for m in messages})
                for m in messages[-5:]:
                    there = [f.phy_offset for f in store.query_message("T", m.keys[0])]
                    assert m.phy_offset in there, "not found by key"
        missing = [p for p, key in self.acknowledged.items() if found.get(p) != key]
        assert not missing, f"acknowledged and lost: {missing[:5]} of {len(missing)}"
        self.recovered = len(found)


def starts_after_stops(directory: Path, stops: int, seed: int) -> collections.Counter[str]:
    """Stop a writer under group commit ``stops`` times, and open a copy of its directory each time.

    Return how often each start was decided. Progress is there before the first stop.
    """
    rng, decisions = random.Random(seed), collections.Counter()
    path, copy = directory / "store", directory / "copy"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "0", FlushDiskType.SYNC_FLUSH.value, str(WRITERS)],
        stdout=subprocess.PIPE)
    reader = threading.Thread(target=collections.deque, args=(process.stdout, 0), daemon=True)  # a full pipe blocks
    try:
        while not list((path / "tailrace").glob("progress.*")):
            assert process.stdout.readline(), "the writer ended"
        reader.start()
        for _ in range(stops):
            time.sleep(rng.uniform(0.001, 0.02))
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            shutil.copytree(path, copy)
            process.send_signal(signal.SIGCONT)
            with MessageStore.open(copy, parts=StoreParts(services=False)) as store:
                report = store.recovery_report
                decisions[report["decision"] if report["decision"] == "PROGRESS" else report["why"]] += 1
            shutil.rmtree(copy)
    finally:
        process.kill()
        process.wait(30)
        reader.join(30)
        process.stdout.close()
    return decisions


def main() -> int:
    seed, rounds = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "300"))
    acknowledged = recovered = 0
    killed: collections.Counter[str] = collections.Counter()
    starts: collections.Counter[str] = collections.Counter()
    began = time.time()
    longest = 0.0
    each = 20  # a store grows with every round, so that a new one is begun now and then
    for first in range(0, rounds, each):
        with tempfile.TemporaryDirectory() as directory:
            loop = Loop(Path(directory) / "store", seed * 1000 + first)
            for generation in range(min(each, rounds - first)):
                try:
                    loop.round(generation)
                except AssertionError as error:
                    print(f"VIOLATION seed={seed} round={first + generation}: {error}")
                    return 1
            acknowledged += len(loop.acknowledged)
            recovered += loop.recovered
            killed += loop.in_recovery
            starts += loop.starts
            longest = max([longest, *loop.took_ms])
        print(f"{first + generation + 1} rounds, {WRITERS} writers: {acknowledged} acknowledged, "
              f"{recovered} recovered, {time.time() - began:.0f} s", flush=True)
    stops = int(os.environ.get("STOPS", "200"))
    with tempfile.TemporaryDirectory() as directory:
        stopped = starts_after_stops(Path(directory), stops, seed)
    print(f"kills while recovering: {dict(sorted(killed.items()))}; longest recovery {longest:.0f} ms; "
          f"starts: {dict(sorted(starts.items()))}; starts after {stops} stops under group commit: {dict(stopped)}")
    if set(stopped) > {"PROGRESS"}:
        print(f"VIOLATION seed={seed}: an open did not start from own progress")
        return 1
    print(f"0 violations, seed {seed}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
