"""Transactions, POP and SQL92 filters of both brokers in one run, and what pending ones cost to open.

Transactions: the reference's own TransactionProducer against both brokers. POP: one client pops 32
messages at a time and acknowledges them, in one request or each by itself. Filter: the same client pulls a
backlog with an expression that keeps 1 of 100. Each gives messages a second and the processor time of the
broker per message, both sides in turns. Pending: Tailrace alone, opened after a kill with half messages
and with popped messages that are not settled. One JSON line, then a table; ratios above 1 are in our
favour, except for processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from peer import (
    cpu_seconds,
    reference,
    reference_broker,
    reference_release,
    run_program,
    wait_for_route,
)
from request_client import (
    POPPED,
    Connection,
    PopConsumer,
    commit_half,
    in_threads,
    properties_of,
    pull_matching,
    send_half,
)
from results import note, report
from store import body_of, serving

from tailrace.errors import RemotingError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

TOPIC = "BenchRequests"
QUEUES = 8
CONNECTIONS = 4
TRANSACTIONS = ("TransactionProducer", "-w", "64", "-s", "1024")
DIRECTORIES = {"tailrace": "ours", "reference": "java"}
SIDES = tuple(DIRECTORIES)
PARTS = ("transactions", "pop", "filter", "pending")
POPS = {"pop_batch": False, "pop_single": True}
GOALS = {
    "transactions": 1.0, "transactions cpu": 0.7, "pop_batch": 1.0, "pop_single": 1.0, "filter": 1.0}
OPEN_S, MEMORY_MB = 2.0, 150.0
"""Goals of an open with pending messages."""


@contextlib.contextmanager
def broker_of(side: str, scratch: Path, flush: str = "ASYNC_FLUSH") -> Iterator[tuple[int, str, str]]:
    """Process, name server and broker on the store of its side below ``scratch``."""
    if side == "tailrace":
        conf = scratch / "tailrace.conf"
        conf.write_text(f"flushDiskType={flush}\nenablePropertyFilter=true\n")
        with serving(scratch / DIRECTORIES[side], "--config", str(conf)) as (process, at, _):
            yield process.pid, at["namesrv"], at["broker"]
        return
    with reference_broker(scratch, flush, extra=("enablePropertyFilter=true",)) as (
            processes, namesrv, broker, _):
        yield processes[1].pid, namesrv, broker


def clear(scratch: Path) -> None:
    for name in DIRECTORIES.values():
        shutil.rmtree(scratch / name, ignore_errors=True)


def fill(path: Path, count: int, size: int) -> None:
    """A clean directory with a backlog, which either broker can open."""
    body = body_of(size)
    with MessageStore.open(path) as store:
        store.topics.create_if_missing(TOPIC, QUEUES)
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            store.put_many([
                Message(topic=TOPIC, body=body, tags="t", keys=[f"k{n}"], properties=properties_of(n))
                for n in numbers], queue_id=start // 1000 % QUEUES)
        store.wait_dispatched(600_000)


class Counted:
    """Time and processor time of a broker between two moments."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began, self._cpu = time.perf_counter(), cpu_seconds(pid)

    def per(self, count: int) -> dict[str, Any]:
        took = time.perf_counter() - self._began
        cpu = cpu_seconds(self._pid) - self._cpu
        return {"count": count, "per_s": round(count / took), "broker_cpu_us": round(cpu / count * 1e6, 2)}


# -- the parts, one side


def measure_transactions(side: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    flush = "SYNC_FLUSH" if arguments.sync else "ASYNC_FLUSH"
    with broker_of(side, scratch, flush) as (pid, namesrv, broker):
        wait_for_route(namesrv)
        found = run_program(namesrv, broker, pid, program=TRANSACTIONS, seconds=arguments.seconds)
    clear(scratch)
    return {"transactions": found}


def measure_pop(side: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    fill(scratch / DIRECTORIES[side], arguments.messages, arguments.body)
    found = {}
    with broker_of(side, scratch) as (pid, _, broker):
        for name, single in POPS.items():
            found[name] = pop(broker, f"{name}_g", pid, arguments, single=single)
    clear(scratch)
    return found


def pop(
    broker: str, group: str, pid: int, arguments: argparse.Namespace, *, single: bool
) -> dict[str, Any]:
    """Pop and acknowledge: 10 s of warm-up, then the seconds of a measure, or until nothing is left."""
    consumers = [
        PopConsumer(broker, TOPIC, group, arguments.invisible, single=single) for _ in range(CONNECTIONS)]
    while not consumers[0].cycle():  # a broker that has just started needs a moment for its revive log
        time.sleep(0.2)

    def work(consumer: PopConsumer, until: float) -> None:
        while time.perf_counter() < until and consumer.cycle():
            pass

    in_threads([partial(work, one, time.perf_counter() + arguments.warm_up) for one in consumers])
    before, counted = sum(one.count for one in consumers), Counted(pid)
    in_threads([partial(work, one, time.perf_counter() + arguments.seconds) for one in consumers])
    count = sum(one.count for one in consumers) - before
    if not count:
        raise SystemExit("nothing was left after the warm-up; choose more --messages")
    result = counted.per(count)
    for one in consumers:
        one.connection.close()
    return {**result, "came_back": sum(one.came_back for one in consumers)}


def measure_filter(side: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    fill(scratch / DIRECTORIES[side], arguments.messages, arguments.body)
    with broker_of(side, scratch) as (pid, _, broker):
        scan(broker, "filter_warm_up", arguments.messages)
        counted = Counted(pid)
        kept, requests = 0, 0
        for _ in range(arguments.scans):
            more = scan(broker, "filter_g", arguments.messages)
            kept, requests = kept + more[0], requests + more[1]
        result = counted.per(arguments.messages * arguments.scans)
    clear(scratch)
    if kept != arguments.messages // 100 * arguments.scans:
        raise SystemExit(f"{side} kept {kept} messages")
    return {"filter": {**result, "kept": kept, "requests": requests}}


def scan(broker: str, group: str, count: int) -> tuple[int, int]:
    """Pull all queues with the expression, two at a time; messages and requests."""
    found: list[tuple[int, int]] = []

    def work(first: int) -> None:
        for queue in range(first, QUEUES, 2):
            blocks = len(range(queue, -(-count // 1000), QUEUES))
            found.append(pull_matching(broker, TOPIC, group, queue, min(blocks * 1000, count)))

    in_threads([partial(work, first) for first in range(2)])
    return sum(one for one, _ in found), sum(one for _, one in found)


# -- pending messages, and the open after a kill


def memory_mb(pid: int) -> dict[str, float]:
    """RSS of a process, and the parts of it that are no pages of files."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        for name, key in (("VmRSS:", "rss_mb"), ("RssAnon:", "rss_anon_mb")):
            if line.startswith(name):
                found[key] = round(int(line.split()[1]) / 1024, 1)
    return found


def open_killed(scratch: Path, ready: Any, *, watch_s: float = 0) -> dict[str, Any]:
    """Serve a directory that a killed process left; ``ready(broker)`` waits until its part serves.

    The open ends with the ready line; ``served_s`` is until the part serves, ``cpu_s`` the processor time until
    then. ``most_`` is the highest memory in the ``watch_s`` seconds after it.
    """
    began = time.perf_counter()
    with serving(scratch / DIRECTORIES["tailrace"]) as (process, at, took):
        ready(at["broker"])
        found: dict[str, Any] = {
            "open_s": round(took, 2), "served_s": round(time.perf_counter() - began, 2),
            "cpu_s": round(cpu_seconds(process.pid), 2), **memory_mb(process.pid)}
        until = time.perf_counter() + watch_s
        while time.perf_counter() < until:
            time.sleep(0.2)
            now = memory_mb(process.pid)
            found |= {f"most_{key}": max(value, found.get(f"most_{key}", 0)) for key, value in now.items()}
        os.kill(process.pid, signal.SIGKILL)  # the directory is not needed any more
    return found


def pending_transactions(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Half messages that are not settled."""
    with broker_of("tailrace", scratch) as (pid, namesrv, broker):
        wait_for_route(namesrv)
        connection = Connection(broker)
        place = send_half(connection, "BenchPeer", arguments.half, arguments.body)
        before = memory_mb(pid)
        os.kill(pid, signal.SIGKILL)

    def commit(broker: str) -> None:
        connection = Connection(broker)
        while commit_half(connection, *place) != 0:
            time.sleep(0.01)
        connection.close()

    found = open_killed(scratch, commit, watch_s=arguments.watch)
    clear(scratch)
    return {"half": arguments.half, "before_kill": before, **found}


def pending_pops(scratch: Path, arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    """Messages that were popped ``size`` at a time and are not acknowledged, a kill, and their return.

    First their time is not over for long. Then it is: the broker is stopped until that moment.
    """
    count = arguments.unacknowledged if size == POPPED else arguments.unacknowledged // 10
    fill(scratch / DIRECTORIES["tailrace"], count, arguments.body)
    invisible_ms = arguments.due * 1000
    with broker_of("tailrace", scratch) as (pid, _, broker):
        began, popped = time.time(), [0] * CONNECTIONS

        def work(number: int) -> None:
            consumer = PopConsumer(broker, TOPIC, "unacknowledged", invisible_ms, single=False)
            while (one := consumer.pop(size)) is not None:
                popped[number] += one.count
            consumer.connection.close()

        in_threads([partial(work, number) for number in range(CONNECTIONS)])
        before = memory_mb(pid)
        os.kill(pid, signal.SIGKILL)

    def answers(broker: str) -> None:
        consumer = PopConsumer(broker, TOPIC, "unacknowledged", invisible_ms, single=False)
        consumer.pop(1)
        consumer.connection.close()

    found: dict[str, Any] = {"popped": sum(popped), "of_pop": size, "before_kill": before}
    if time.time() < began + arguments.due - 10:
        found["waiting"] = open_killed(scratch, answers)
    time.sleep(max(0, began + arguments.due - 5 - time.time()))
    found["due"] = open_killed(scratch, answers, watch_s=arguments.watch + 20)
    clear(scratch)
    return found


def measure_pending(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"pending_transactions": pending_transactions(scratch, arguments)}
    note(f"pending_transactions: {found['pending_transactions']}")
    for size in (POPPED, 1):
        name = f"pending_pops_{size}"
        found[name] = pending_pops(scratch, arguments, size)
        note(f"{name}: {found[name]}")
    return found


# -- all of it

MEASURES = {"transactions": measure_transactions, "pop": measure_pop, "filter": measure_filter}


def run(scratch: Path, arguments: argparse.Namespace, *, ours_first: bool) -> dict[str, Any]:
    """Measure both sides once."""
    metrics: dict[str, Any] = {side: {} for side in arguments.sides}
    for part, measure in MEASURES.items():
        if part in arguments.parts:
            for side in arguments.sides if ours_first else arguments.sides[::-1]:
                found = measure(side, scratch, arguments)
                note(f"{side} {found}")
                metrics[side] |= found
    if len(arguments.sides) == 2:
        ours, theirs = metrics["tailrace"], metrics["reference"]
        metrics["ratios"] = {}
        for name in ours:
            metrics["ratios"][name] = ours[name]["per_s"] / theirs[name]["per_s"]
            metrics["ratios"][f"{name} cpu"] = ours[name]["broker_cpu_us"] / theirs[name]["broker_cpu_us"]
    return metrics


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Each ratio's median and range."""
    found = {}
    for name in runs[0].get("ratios", ()):
        values = [one["ratios"][name] for one in runs]
        found[name] = {
            "median": round(statistics.median(values), 2), "least": round(min(values), 2),
            "most": round(max(values), 2)}
    return found


def table(metrics: dict[str, Any]) -> str:
    """What was found, a line each, for a terminal."""
    lines = [f"{'':18}{'ours':>22}{'reference':>22}   ratio (least to most)       cpu ratio   goal"]
    for name, ours in metrics["runs"][-1].get("tailrace", {}).items():
        theirs = metrics["runs"][-1].get("reference", {}).get(name)
        cells = [f"{one['per_s']}/s {one['broker_cpu_us']} us" if one else "-" for one in (ours, theirs)]
        rate, cpu = (metrics["ratios"].get(key) for key in (name, f"{name} cpu"))
        if rate and cpu:
            goal = f">= {GOALS[name]}" + (f", cpu <= {GOALS[f'{name} cpu']}" if f"{name} cpu" in GOALS else "")
            cells.append(f"   {rate['median']:<6} ({rate['least']} to {rate['most']})".ljust(31)
                         + f"{cpu['median']:<6} ({cpu['least']} to {cpu['most']})  {goal}")
        lines.append(f"{name:18}{cells[0]:>22}{cells[1]:>22}{''.join(cells[2:])}")
    for name, found in metrics.get("pending", {}).items():
        for when, one in ([("", found)] if "open_s" in found else [
                (when, found[when]) for when in ("waiting", "due") if when in found]):
            is_met = one["served_s"] <= OPEN_S and one["rss_mb"] <= MEMORY_MB
            later = (
                f"; later at most {one['most_rss_mb']} MB, {one['most_rss_anon_mb']} of them without pages of files"
                if "most_rss_mb" in one else "")
            lines.append(
                f"{name} {when}: served after {one['served_s']} s (goal {OPEN_S}), {one['cpu_s']} s of it processor "
                f"time, RSS {one['rss_mb']} MB (goal {MEMORY_MB}){later}: {'met' if is_met else 'MISSED'}")
    return "\n".join(lines)


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", choices=SIDES, help="one broker alone")
    parser.add_argument("--pair", type=int, default=3, metavar="N", help="run both sides N times, in turns")
    parser.add_argument("--seconds", type=int, default=20, help="of each measure")
    parser.add_argument("--warm-up", type=int, default=10, help="seconds before each measure of pops")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the backlog")
    parser.add_argument("--body", type=int, default=256, help="bytes of a body")
    parser.add_argument("--scans", type=int, default=3, help="of the backlog with the filter")
    parser.add_argument("--invisible", type=int, default=10_000, help="ms for which pops are invisible")
    parser.add_argument("--sync", action="store_true", help="transactions with SYNC_FLUSH")
    parser.add_argument("--half", type=int, default=10_000, help="pending transactions")
    parser.add_argument("--unacknowledged", type=int, default=1_000_000, help="popped messages")
    parser.add_argument("--due", type=int, default=120, help="seconds until those are visible again")
    parser.add_argument("--watch", type=float, default=10, help="seconds of looking at the memory")
    parser.add_argument("--directory", type=Path, help="where stores are made; default: a temporary one")
    arguments = parser.parse_args()
    arguments.sides = (arguments.only,) if arguments.only else SIDES
    return arguments


def main() -> int:
    arguments = arguments_of()
    if "reference" in arguments.sides and arguments.parts != ["pending"]:
        if shutil.which("mvn") is None or shutil.which("javac") is None:
            print("needs Maven and a Java 17 JDK on the PATH", file=sys.stderr)
            return 3
        reference("setup")
    metrics: dict[str, Any] = {"runs": []}
    with tempfile.TemporaryDirectory(prefix="tailrace-requests-", dir=arguments.directory) as name:
        for number in range(max(arguments.pair, 1) if set(arguments.parts) & set(MEASURES) else 0):
            metrics["runs"].append(run(Path(name), arguments, ours_first=number % 2 == 1))
        metrics["runs"] = metrics["runs"] or [{}]
        metrics["ratios"] = summary(metrics["runs"])
        if "pending" in arguments.parts and "tailrace" in arguments.sides:
            metrics["pending"] = measure_pending(Path(name), arguments)
    report("requests", {
        name: getattr(arguments, name) for name in (
            "messages", "body", "seconds", "pair", "scans", "invisible", "sync", "half", "unacknowledged", "due")
    } | {"reference": reference_release()}, metrics)
    note(table(metrics))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RemotingError as error:
        raise SystemExit(f"the broker went away: {error}") from error
