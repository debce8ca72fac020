"""How long an open takes: after a clean stop, after a kill, with derived state gone, on a terabyte.

Part one, beside the reference when Maven and a JDK are there: messages of 1 KiB, default file
sizes, killed while writing. Part two grows the log and the number of queues. Part three is a
sparse terabyte: 1,024 segments, records in the first and the last ones, 10,000 queues, killed
while writing. Files are in the page cache; every open runs in a process of its own. Before each one the
disk is let finish what was written before (``sync``), on either side: a gigabyte on its way there makes
the same open take twice as long, or not. Memory that a virtual machine's host has to find first costs as
much, so rebuilds are repeated and the median counts, on either side.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from peer import FILE_SIZE, number_of, reference
from results import note, report
from store import body_of, rss_anon_mb

from tailrace.formats import filenames
from tailrace.formats.commitlog import BLANK, BLANK_MAGIC
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

GIB = 1 << 30
DERIVED = ("consumequeue", "index", "checkpoint", "tailrace")


def write(path: str, count: int, size: int, queues: int, run: int, kill: bool) -> dict[str, Any]:
    """Put ``count`` messages over ``queues`` queues, ``run`` a call; perhaps die before the close."""
    body = body_of(size)
    topics = max(queues // 100, 1)
    store = MessageStore.open(path)
    for topic in range(topics):
        store.topics.create_if_missing(f"T{topic}", max(queues // topics, 1))
    began = time.perf_counter()
    number = 0
    while number < count:
        queue = number // run % queues
        part = range(number, min(number + run, count))
        messages = [Message(topic=f"T{queue % topics}", body=body, tags="t", keys=[f"k{n}"]) for n in part]
        if run > 1:
            store.put_many(messages, queue_id=queue // topics)
        else:
            store.put(messages[0], queue_id=queue // topics)
        number += len(part)
    took = time.perf_counter() - began
    print(json.dumps({"per_s": round(count / took)}), flush=True)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    store.wait_dispatched(600_000)
    store.close()
    return {}


def open_(path: str) -> dict[str, Any]:
    """From the call until every message can be read."""
    began = time.perf_counter()
    store = MessageStore.open(path)
    store.wait_dispatched(120_000)
    took = time.perf_counter() - began
    found = store.recovery_report
    line = {
        "ms": round(took * 1e3, 1), "scanned": found["scanned"], "why": found["why"],
        "rss_anon_mb": rss_anon_mb(os.getpid()),
    }
    os.write(1, json.dumps(line).encode() + b"\n")
    store.close()
    return {}


def child(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--act", *map(str, arguments)], capture_output=True, text=True,
        check=False)
    if done.returncode not in {0, -signal.SIGKILL}:
        raise SystemExit(f"{arguments} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def without_derived(path: Path) -> None:
    for name in DERIVED:
        target = path / name
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
    (path / "abort").write_text("1")


def opens(path: Path, name: str, rebuilds: int, once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the median open, and how long each took: ``rebuilds`` rebuilds, and one of the other opens."""
    runs = []
    for _ in range(rebuilds if name == "open_rebuild" else 1):
        if name == "open_rebuild":
            without_derived(path)
        os.sync()
        runs.append(once())
    times = [run["ms"] for run in runs]
    middle = sorted(times)[len(times) // 2]
    return {**runs[times.index(middle)], "runs_ms": times}


def measure(
    scratch: Path, count: int, size: int, queues: int, run: int = 100, rebuilds: int = 1
) -> dict[str, Any]:
    """Measure the three kinds of opens for one size, the rebuild several times."""
    path = scratch / "store"
    shutil.rmtree(path, ignore_errors=True)
    metrics: dict[str, Any] = {"write": child("write", path, count, size, queues, run, 1)}
    for name in ("open_killed", "open_clean", "open_rebuild"):
        metrics[name] = opens(path, name, rebuilds, lambda: child("open", path))
        note(f"tailrace {count} messages, {queues} queues, {name}: {metrics[name]}")
    shutil.rmtree(path)
    return metrics


def reference_open(path: Path, act: str, *arguments: object) -> dict[str, Any]:
    return {"ms": number_of(r"load ms ([\d.]+)", reference("store-bench", act, path, FILE_SIZE, *arguments))}


def measure_reference(scratch: Path, count: int, size: int, rebuilds: int) -> dict[str, Any]:
    """The same opens by the reference's store."""
    path = scratch / "reference"
    reference("store-bench", "put", path, FILE_SIZE, count, size, 1, 1, "kill")
    metrics: dict[str, Any] = {}
    for name in ("open_killed", "open_rebuild", "open_clean"):
        if name == "open_clean":
            reference("store-bench", "get", path, FILE_SIZE, 1, "refer")
        act = ("get", 1, "refer") if name == "open_clean" else ("open",)
        metrics[name] = opens(path, name, rebuilds, partial(reference_open, path, *act))
        note(f"reference {count} messages, {name}: {metrics[name]}")
    shutil.rmtree(path)
    return metrics


def terabyte(scratch: Path, queues: int) -> dict[str, Any]:
    """A log of 1,024 segments of 1 GiB, all but the outermost ones a blank from their first byte."""
    path = scratch / "terabyte"
    shutil.rmtree(path, ignore_errors=True)
    child("write", path, queues * 100, 200, queues, 100, 0)
    segments = path / "commitlog"
    first = segments / filenames.offset_to_file_name(0)
    end = json.loads(subprocess.run(
        [str(Path(sys.executable).parent / "tailrace"), "dump", str(path), "--only", "store"],
        capture_output=True, text=True, check=True).stdout.splitlines()[0])["store"]["maxPhyOffset"]
    if end >= GIB:
        raise SystemExit("the first records do not fit one segment")
    with first.open("r+b") as segment:
        segment.seek(end)
        segment.write(BLANK.pack(GIB - end, BLANK_MAGIC))
    for number in range(1, 1023):
        with (segments / filenames.offset_to_file_name(number * GIB)).open("wb") as file:
            file.write(BLANK.pack(GIB, BLANK_MAGIC))
            file.truncate(GIB)
    child("write", path, 200_000, 200, queues, 100, 1)
    opened = child("open", path)
    note(f"tailrace sparse terabyte, {queues} queues, killed while writing: {opened}")
    log_bytes = sum(file.stat().st_size for file in segments.iterdir())
    shutil.rmtree(path)
    return {**opened, "log_bytes": log_bytes, "queues": queues}


def main() -> int:
    if sys.argv[1:2] == ["--act"]:
        act, path, *rest = sys.argv[2:]
        if act == "write":
            count, size, queues, run = map(int, rest[:4])
            write(path, count, size, queues, run, kill=rest[4] == "1")
        else:
            open_(path)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--rebuilds", type=int, default=5, help="beside the reference; the median counts")
    parser.add_argument("--part", action="append", choices=["peer", "growth", "terabyte"])
    parser.add_argument("--sizes", default="1,4,16", help="GB of log for growth")
    parser.add_argument("--queues", default="100,1000,10000", help="numbers of queues for growth")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    parts = options.part or ["peer", "growth", "terabyte"]
    with tempfile.TemporaryDirectory(dir=options.directory) as made:
        scratch = Path(made)
        if "peer" in parts:
            # one by one, as the reference
            ours = measure(scratch, options.messages, options.body, 32, 1, options.rebuilds)
            theirs = measure_reference(scratch, options.messages, options.body, options.rebuilds)
            ratios = {
                name: round(theirs[name]["ms"] / ours[name]["ms"], 1) for name in theirs}
            report("recovery-peer", {"messages": options.messages, "body": options.body},
                   {"ours": ours, "reference": theirs, "times_faster": ratios})
        if "growth" in parts:
            for size in map(int, options.sizes.split(",")):
                report("recovery-growth", {"gb": size, "queues": 100},
                       measure(scratch, size * 900_000, options.body, 100))
            for queues in map(int, options.queues.split(",")):
                report("recovery-growth", {"messages": 300_000, "queues": queues},
                       measure(scratch, 300_000, options.body, queues))
        if "terabyte" in parts:
            report("recovery-terabyte", {"queues": 10_000}, terabyte(scratch, 10_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
