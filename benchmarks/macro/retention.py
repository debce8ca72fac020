"""Deletion beside traffic, and what a pass costs that finds nothing to delete. One JSON line.

Latency: puts at a steady rate from one thread, first quiet, then while really written segments are
deleted; the same in the reference, in the same run (``--no-reference`` leaves it out). The pass: a
store of many queues and segments, processor time of the pass over both, and of explaining every file.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import ROOT, note, report

from tailrace import Message, MessageStore, StoreConfig
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts

REFERENCE = ROOT / "tests" / "interop" / "reference" / "rocketmq"
LARGE = 64 * 1024
POLL = 500
LATENCY = re.compile(r"(quiet|deleting) n=(\d+) p50=([\d.]+) p99=([\d.]+) p999=([\d.]+) max=([\d.]+)")


def put(store: MessageStore, number: int, body: bytes) -> None:
    store.put_inner(MessageExtBrokerInner(
        f"Topic{number % 8}", number // 8 % 4, body, b"", 0, 0, number))


def paced(store: MessageStore, body: bytes, per_s: int, seconds: float, until: Any) -> list[int]:
    """Nanoseconds of each put at a steady rate, for a time and until something holds."""
    took: list[int] = []
    clock, step = time.perf_counter_ns, 1_000_000_000 // per_s
    began = clock()
    number = 0
    while number % POLL or not (until() and clock() - began >= seconds * 1e9):
        wait = began + number * step - clock()
        if wait > 0:
            time.sleep(wait / 1e9)
        start = clock()
        put(store, number, body)
        took.append(clock() - start)
        number += 1
    return took


def spread(took: list[int]) -> dict[str, float]:
    """Count and percentiles in microseconds."""
    took.sort()
    return {"puts": len(took), **{
        name: round(took[min(int(len(took) * share), len(took) - 1)] / 1000, 1)
        for name, share in (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999), ("max_us", 1.0))}}


def latency(path: str, a: argparse.Namespace) -> dict[str, Any]:
    """Ours."""
    config = StoreConfig(
        mapped_file_size_commit_log=a.segment_mb << 20, file_reserved_time=0.0,
        delete_file_batch_max=a.segments, delete_when=_other_hour())
    body, large = random.Random(2).randbytes(a.body), random.Random(1).randbytes(LARGE)
    with MessageStore.open(path, config=config) as store:
        batch = [Message(topic="Topic0", body=large)] * 64
        while store.max_phy_offset < (a.segments * a.segment_mb << 20) + 1024:
            store.put_many(batch)
        store.wait_dispatched(120_000)
        store.flush()
        paced(store, body, a.per_s, max(a.seconds / 2, 2), lambda: True)
        quiet = spread(paced(store, body, a.per_s, a.seconds, lambda: True))
        retention = store.retention
        first = store.min_phy_offset
        began = time.perf_counter()
        store.execute_delete_files_manually()
        done: list[float] = []

        def is_done() -> bool:
            gone = store.stats()["deletedFiles"] >= a.segments and not retention.trash.total_bytes
            if gone and not done:
                done.append(time.perf_counter() - began)
            return gone

        deleting = spread(paced(store, body, a.per_s, a.seconds, is_done))
        return {
            "quiet": quiet, "deleting": deleting, "deleted": store.stats()["deletedFiles"],
            "deleted_bytes": store.min_phy_offset - first, "took_s": round(done[0], 2),
            "p99_ratio": round(deleting["p99_us"] / quiet["p99_us"], 2)}


def turns(path: str, a: argparse.Namespace) -> dict[str, Any]:
    """Windows of puts in turn: quiet, and while one segment is deleted. Other load meets both alike."""
    config = StoreConfig(
        mapped_file_size_commit_log=a.segment_mb << 20, delete_when=_other_hour(), delete_rate=a.delete_rate)
    body, large = random.Random(2).randbytes(a.body), random.Random(1).randbytes(LARGE)
    taken: dict[str, list[int]] = {"quiet": [], "deleting": []}
    with MessageStore.open(path, config=config) as store:
        batch = [Message(topic="Topic0", body=large)] * 64
        while store.max_phy_offset < (a.segments * a.segment_mb << 20) + 1024:
            store.put_many(batch)
        store.wait_dispatched(120_000)
        store.flush()
        paced(store, body, a.per_s, 2, lambda: True)
        service, trash = store.retention.clean_commit_log, store.retention.trash
        for _ in range(a.segments - 1):
            taken["quiet"] += paced(store, body, a.per_s, a.seconds, lambda: True)
            request = service.request_free(1)
            taken["deleting"] += paced(
                store, body, a.per_s, a.seconds, lambda held=request: held.ended and not trash.total_bytes)
        found: dict[str, Any] = {name: spread(took) for name, took in taken.items()}
        return {**found, "deleted": store.stats()["deletedFiles"],
                "p99_ratio": round(found["deleting"]["p99_us"] / found["quiet"]["p99_us"], 3),
                "p999_ratio": round(found["deleting"]["p999_us"] / found["quiet"]["p999_us"], 3)}


def _other_hour() -> str:
    """An hour in which nothing is deleted by itself."""
    return str((time.localtime().tm_hour + 12) % 24)


def reference_latency(path: Path, a: argparse.Namespace) -> dict[str, Any]:
    """The reference's."""
    done = subprocess.run(
        [str(REFERENCE), "store-retention", str(path), str(a.segment_mb << 20), str(a.segments),
         str(a.body), str(a.per_s), str(a.seconds)],
        capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"the reference failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = {}
    for match in LATENCY.finditer(done.stdout):
        names = ("puts", "p50_us", "p99_us", "p999_us", "max_us")
        found[match[1]] = dict(zip(names, map(float, match.groups()[1:]), strict=True))
    deleted, took = re.findall(r"deleted=(\d+) took_ms=(\d+)", done.stdout)[0]
    return {**found, "deleted": int(deleted), "took_s": int(took) / 1000,
            "p99_ratio": round(found["deleting"]["p99_us"] / found["quiet"]["p99_us"], 2)}


def empty_pass(path: str, a: argparse.Namespace) -> dict[str, Any]:
    """Processor time of a pass that finds nothing to delete."""
    config = StoreConfig(
        mapped_file_size_commit_log=64 * 1024, mapped_file_size_consume_queue=20 * 100,
        commit_log_allocate_step=4096, max_hash_slot_num=1000, max_index_num=4000,
        delete_when=";".join(map(str, range(24))))
    began = time.perf_counter()
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for number in range(a.queues):
            store.put_inner(MessageExtBrokerInner(
                f"T{number // 10}", number % 10, b"x", b"", 0, 0, number))
        body = bytes(60_000)
        while len(store.inner.commit_log.queue.files) < a.pass_segments:
            store.put_inner(MessageExtBrokerInner("T0", 0, body, b"", 0, 0, 0))
        store.wait_dispatched(600_000)
        store.flush()
        note(f"made {a.queues} queues, {a.pass_segments} segments in {time.perf_counter() - began:.0f} s")
        retention = store.retention
        queues = retention.clean_consume_queue
        found = {"queues": len(store.queues()), "segments": len(store.inner.commit_log.queue.files)}
        passes, explained, rules = [], [], []
        for _ in range(a.repeat):
            queues._done_until = -1  # as when the least offset of the log has moved
            cpu = time.process_time()
            retention.topics.step()
            if retention.clean_commit_log.run_pass() or queues.deleted_queue_files:
                raise SystemExit("something was deleted")
            queues.run_pass()
            passes.append(time.process_time() - cpu)
            cpu = time.process_time()
            retention.clean_commit_log.verdicts()
            explained.append(time.process_time() - cpu)
        store.purge_topic("T1")
        for _ in range(a.repeat):
            cpu = time.process_time()
            retention.topics.needs()
            rules.append(time.process_time() - cpu)
    return {
        **found, "pass_cpu_s": round(min(passes), 3), "pass_cpu_first_s": round(passes[0], 3),
        "explain_all_cpu_s": round(min(explained), 3), "topic_needs_cpu_s": round(min(rules), 3),
        "topic_needs_first_cpu_s": round(rules[0], 3)}


def measured(what: str, path: Path, options: list[str]) -> dict[str, Any]:
    """Run one measure in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, "--path", str(path), *options],
        capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(f"{what} failed")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    note(f"{what}: {result}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--segment-mb", type=int, default=1024)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--per-s", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--pass-segments", type=int, default=2_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--delete-rate", type=int, default=2 << 30, help="of --measure turns, bytes a second")
    parser.add_argument("--directory", default=None, help="where to write; the temporary directory")
    parser.add_argument("--measure", choices=("latency", "pass", "turns"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure = {"latency": latency, "turns": turns, "pass": empty_pass}[arguments.measure]
        print(json.dumps(measure(arguments.path, arguments)))
        return
    scratch = Path(tempfile.mkdtemp(prefix="tailrace-retention-", dir=arguments.directory))
    options = sys.argv[1:]
    metrics: dict[str, Any] = {}
    try:
        metrics["tailrace"] = measured("latency", scratch / "ours", options)
        shutil.rmtree(scratch / "ours")
        if not arguments.no_reference:
            metrics["reference"] = reference_latency(scratch / "theirs", arguments)
            shutil.rmtree(scratch / "theirs")
        metrics["nothing_to_delete"] = measured("pass", scratch / "many", options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    parameters = {
        name: getattr(arguments, name) for name in
        ("segments", "segment_mb", "body", "per_s", "seconds", "queues", "pass_segments")}
    report("retention", parameters, metrics)


if __name__ == "__main__":
    main()
