"""Tailrace beside other brokers on the same work, each with its own Python client. `make bench-field` runs it.

A server has one processor for itself and the client another. For each promise (``async``: acknowledged before a sync,
``synced``: after it) it measures: the start until a first send is acknowledged, memory when idle, sends one at a
time, sends with 64 in flight, a backlog in the fastest form of the client, its consumption, the time from send
to program at 1,000 messages a second, messages with a due time, memory and disk with the backlog, and the restart
after ``kill -9``. Bodies have 1,024 random bytes. The winner of a row is marked, whoever it is; a system that is not on
this machine is named. One JSON line, then the tables.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import field_embedded as embedded
from field_servers import PROMISES, ROOT, SERVERS, Server

sys.path.insert(0, str(ROOT / "benchmarks" / "macro"))
from results import note, report

SERVER_CPU, CLIENT_CPU = 0, 1
LATENCY_S = 8
SLOW = {"rocketmq-grpc"}
"""Clients that get a twentieth of the messages, as all do with the promise ``synced``."""
ROWS = (  # name of a row, measure, field, the better one
    ("start until it serves, s", "start", "s", min),
    ("memory when idle, MiB", "idle", "mb", min),
    ("send one at a time, a second", "one", "per_s", max),
    ("send, 64 in flight, a second", "many", "per_s", max),
    ("the same: processor time of the server, us a message", "many", "server_cpu_us", min),
    ("send a backlog, a second", "fill", "per_s", max),
    ("the same: processor time of the server, us a message", "fill", "server_cpu_us", min),
    ("consume the backlog, a second", "drain", "per_s", max),
    ("the same: processor time of the server, us a message", "drain", "server_cpu_us", min),
    ("from send to program at 1,000 a second, p50, ms", "latency", "p50_ms", min),
    ("the same, p99, ms", "latency", "p99_ms", min),
    ("messages of one due time: the last is late by, ms", "delay", "max_ms", min),
    ("memory with the backlog, MiB", "loaded", "mb", min),
    ("disk, MiB a million messages", "loaded", "disk_mb", min),
    ("restart after kill -9 until it serves, s", "restart", "s", min),
)


def client(server: Server, name: str, act: str, count: int) -> dict[str, float]:
    """Run one measure in a process on the other processor."""
    done = subprocess.run(
        ["taskset", "-c", str(CLIENT_CPU), sys.executable, str(Path(__file__).parent / "field_clients.py"), name,
         server.address(name), act, str(count), *(map(str, server.pids()) if not act.startswith("ready") else ())],
        capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(f"{server.name} {act}: {done.stderr[-1500:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def started(server: Server, act: str) -> float:
    """Start it; return seconds until a send was acknowledged."""
    began = time.monotonic()
    server.start()
    took = client(server, server.clients[-1], act, 1)["at"] - began
    return round(took, 2)


def measure(server: Server, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rows of a server with one of its clients."""
    slow = server.promise == "synced" or name in SLOW
    messages = options.messages // (20 if slow else 1)
    found: dict[str, Any] = {"start": {"s": started(server, "ready-1")}}
    try:
        time.sleep(3)
        found["idle"] = {"mb": server.rss_anon_mb()}
        filled = 0
        counts = {
            "one": 1, "many": messages // 4, "fill": messages, "drain": messages, "latency": LATENCY_S * 1000}
        if server.has_delay and name == "tailrace":
            counts["delay"] = 2000
        for act, count in counts.items():
            before = server.disk_mb()
            found[act] = client(server, name, act, count)
            if act == "fill":
                filled = round((server.disk_mb() - before) * 1e6 / count)
            note(f"{server.name} ({name}) {server.promise} {act}: {found[act]}")
        found["loaded"] = {"mb": server.rss_anon_mb()}
        if not slow:
            found["loaded"]["disk_mb"] = filled
        server.kill()
        found["restart"] = {"s": started(server, "ready-2")}
        note(f"{server.name} ({name}) {server.promise}: {found}")
    finally:
        server.kill()
    return found


def table(systems: dict[str, dict[str, Any]], rows: Any, title: str) -> str:
    """A table of Markdown; the best figure of a row is bold."""
    lines = [f"| {title} | " + " | ".join(systems) + " |", "|---" * (len(systems) + 1) + "|"]
    for label, act, field, better in rows:
        values = {name: found.get(act, {}).get(field) for name, found in systems.items()}
        there = [value for value in values.values() if value is not None]
        best = better(there) if len(there) > 1 else None
        cells = [
            "-" if value is None else f"**{value:,}**" if value == best else f"{value:,}" for value in values.values()]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure."""
    return {act: {field: round(statistics.median(run[act][field] for run in runs), 2) for field in figures}
            for act, figures in runs[0].items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=400_000, help="of the backlog; for synced a twentieth of them")
    parser.add_argument("--rounds", type=int, default=1, help="of everything, in turns; the median is reported")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these systems: Tailrace Kafka")
    parser.add_argument("--promise", choices=PROMISES, action="append", help="one of the two; default: both")
    parser.add_argument("--skip-embedded", action="store_true", help="leave out SQLite and LMDB")
    options = parser.parse_args()
    present = [server for server in SERVERS if not options.only or server.name in options.only]
    for server in present:
        if server.missing():
            note(f"{server.name} is left out: {server.missing()} is missing")
    present = [server for server in present if not server.missing()]
    metrics: dict[str, Any] = {"versions": {server.name: server.version() for server in present}}
    tables = []
    for promise in options.promise or PROMISES:
        runs: dict[str, list[dict[str, Any]]] = {}
        for _ in range(options.rounds):
            for kind in present:
                for name in kind.clients:
                    label = kind.name if len(kind.clients) == 1 else f"{kind.name} ({name})"
                    with tempfile.TemporaryDirectory(prefix="tailrace-field-") as scratch:
                        found = measure(kind(Path(scratch) / "server", promise, SERVER_CPU), name, options)
                    runs.setdefault(label, []).append(found)
        metrics[promise] = {label: middle(found) for label, found in runs.items()}
        tables.append(table(metrics[promise], ROWS, promise))
    if not options.skip_embedded:
        metrics["embedded"] = embedded.measure(options.messages // 2)
        tables.append(table(metrics["embedded"], embedded.ROWS, "in one process"))
    report("field", {"messages": options.messages, "rounds": options.rounds}, metrics)
    print("\n\n".join(tables))
    return 0


if __name__ == "__main__":
    if shutil.which("taskset") is None:
        sys.exit("needs taskset")
    sys.exit(main())
