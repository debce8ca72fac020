"""Replication and a cluster beside the reference, in one run on one machine. Needs Maven and a Java 17 JDK.

Each part runs with Tailrace for both brokers, and with RocketMQ for both:

- ``backlog``: an empty slave gets ``--backlog-mb`` of log, from its first bytes to the end; with the processor time of
  both brokers. The log is one file, because a slave of RocketMQ gets only the last one.
- ``producer``: the reference's Producer program against a SYNC_MASTER with one slave (``inSyncReplicas=2``), after 10 s
  of warm-up, with the processor time of both brokers for each message.
- ``latency``: the time of a send of a Java client at 1,000 a second, quiet and while slaves with empty directories, one
  after the other, copy the whole log of the master; ``catching_up`` is their share of that time, the rest is starts.
  On one disk the copies' writes hold up those of the master, so give the slaves another one (``--slave-directory``).
- ``cluster``: the Producer program against one broker that has one processor, and against two of one cluster that have
  one each.

One JSON line; ratios above 1 are in our favour, except for processor time and latency. Ratios named ``slow``
are of one side alone: catching up beside quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from peer import (
    FILE_SIZE,
    FILL,
    LATENCY_WARM_S,
    PROGRAMS,
    REFERENCE,
    REPORT_S,
    TOPIC,
    cpu_seconds,
    free_port,
    program_of,
    reference,
    reference_broker,
    reference_release,
    run_latency,
    stored,
    wait_for_route,
)
from results import note, report
from store import serving

from tailrace.client import Producer, PullConsumer
from tailrace.client.admin import AdminClient
from tailrace.errors import RemotingError

SIDES = ("tailrace", "reference")
READY_S = 60
COPIED_S = 600
"""Longest time of a copy."""


class Broker:
    """A broker that runs: its address, and the id of its process."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid = address, pid


def asked(address: str, question: Callable[[AdminClient], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the answer of a broker. Raises RemotingError."""
    async def ask() -> dict[str, Any]:
        async with AdminClient(broker=address) as admin:
            return await question(admin)

    return asyncio.run(ask())


def end_of(address: str) -> int:
    """Return the end of a broker's log; 0 while it does not answer."""
    try:
        return int(asked(address, AdminClient.runtime_info)[address]["commitLogMaxOffset"])
    except RemotingError:
        return 0


def wait_until(condition: Any, what: str, seconds: float = READY_S) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"{what} after {seconds:g} s")
        time.sleep(0.05)


def has_slave(master: str) -> bool:
    """Return whether a slave has everything that its master has."""
    status = asked(master, AdminClient.ha_status)
    return any(one["slaveAckOffset"] == status["masterCommitLogMaxOffset"] for one in status["haConnectionInfo"])


# -- brokers of both sides


@contextlib.contextmanager
def master(side: str, scratch: Path, role: str, *more: str) -> Iterator[tuple[str, Broker]]:
    """Yield the name server and the master of a side; ``more`` are settings."""
    settings = [f"brokerRole={role}", "brokerIP2=127.0.0.1", f"mappedFileSizeCommitLog={FILE_SIZE}", *more]
    if role == "SYNC_MASTER":
        settings.append("inSyncReplicas=2")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch / "master", ignore_errors=True)
        stack.callback(shutil.rmtree, scratch / "java", ignore_errors=True)
        if side == "tailrace":
            conf = scratch / "master.conf"
            conf.write_text("\n".join([*settings, "haAllowedHosts=127.0.0.1", ""]))
            process, at, _ = stack.enter_context(serving(scratch / "master", "--config", str(conf)))
            wait_for_route(at["namesrv"])
            yield at["namesrv"], Broker(at["broker"], process.pid)
        else:
            processes, namesrv, broker, _ = stack.enter_context(
                reference_broker(scratch, "ASYNC_FLUSH", extra=settings))
            yield namesrv, Broker(broker, processes[1].pid)


@contextlib.contextmanager
def another_broker(side: str, root: Path, lines: list[str]) -> Iterator[Broker]:
    """Yield a broker of a side with these settings and without a name server, on an empty directory."""
    conf = root.with_suffix(".conf")
    try:
        if side == "tailrace":
            conf.write_text("\n".join([*lines, ""]))
            with serving(root, "--config", str(conf), "--namesrv-listen", "none") as (process, at, _):
                yield Broker(at["broker"], process.pid)
        else:
            with java_broker(conf, root, lines) as found:
                yield found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def slave(side: str, parent: Path, namesrv: str) -> contextlib.AbstractContextManager[Broker]:
    """Return a slave of a side with an empty directory below ``parent``."""
    return another_broker(side, parent / "slave", [
        "brokerRole=SLAVE", "brokerId=1", "brokerName=broker-a", "brokerClusterName=DefaultCluster",
        f"mappedFileSizeCommitLog={FILE_SIZE}", f"namesrvAddr={namesrv}", "brokerIP1=127.0.0.1", "brokerIP2=127.0.0.1"])


@contextlib.contextmanager
def java_broker(conf: Path, root: Path, lines: list[str]) -> Iterator[Broker]:
    """Yield another broker of the reference, beside the one of `reference_broker`."""
    port = free_port()
    conf.write_text("\n".join([
        *lines, f"listenPort={port}", f"storePathRootDir={root}", f"storePathCommitLog={root}/commitlog",
        "transactionMetricFlushInterval=100", ""]))
    process = subprocess.Popen(
        [str(REFERENCE), "broker", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)
    try:
        yield Broker(f"127.0.0.1:{port}", process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


# -- parts


def fill(namesrv: str, broker: str, size: int) -> None:
    """Send until the log of a broker has ``size`` bytes."""
    with program_of(namesrv, *FILL):
        while end_of(broker) < size:
            time.sleep(0.05)


def measure_backlog(side: str, scratch: Path, size: int) -> dict[str, Any]:
    with master(side, scratch, "ASYNC_MASTER") as (namesrv, first):
        fill(namesrv, first.address, size)
        total = end_of(first.address)
        if total > FILE_SIZE:
            raise SystemExit(f"the log has {total} bytes, more than one file; lower --backlog-mb")
        with slave(side, scratch, namesrv) as second:
            wait_until(lambda: end_of(second.address) > 0, "the slave has nothing", COPIED_S)
            begun, began = end_of(second.address), time.perf_counter()
            cpu = cpu_seconds(first.pid), cpu_seconds(second.pid)
            wait_until(lambda: end_of(second.address) >= total, "the slave does not have everything", COPIED_S)
            took, copied = time.perf_counter() - began, total - begun
            used = cpu_seconds(first.pid) - cpu[0] + cpu_seconds(second.pid) - cpu[1]
    found = {"mb": round(total / 1e6), "seconds": round(took, 2)}
    if copied:  # else the first look at the slave was too late
        found |= {"mb_per_s": round(copied / took / 1e6, 1), "cpu_ms_per_mb": round(used / copied * 1e9, 2)}
    return found


def count_of(address: str) -> int:
    """Return the number of messages of a broker, which may be too busy to answer immediately."""
    until = time.monotonic() + READY_S
    while True:
        try:
            return stored(address)
        except RemotingError:
            if time.monotonic() > until:
                raise


def measure_program(namesrv: str, brokers: list[Broker], counted: list[Broker], seconds: int) -> dict[str, Any]:
    """Run the Producer program; ``counted`` are the brokers whose messages count, all of them use processor time."""
    with program_of(namesrv, *PROGRAMS["producer"]) as reports:
        for _ in range(2):
            next(reports)
        before, cpu = [count_of(one.address) for one in counted], [cpu_seconds(one.pid) for one in brokers]
        began = time.perf_counter()
        for _ in range(max(1, seconds // REPORT_S)):
            next(reports)
        counts = [count_of(one.address) - earlier for one, earlier in zip(counted, before, strict=True)]
        took = time.perf_counter() - began
        used = sum(cpu_seconds(one.pid) - earlier for one, earlier in zip(brokers, cpu, strict=True))
    total = sum(counts)
    return {
        "per_s": round(total / took), "brokers_cpu_us": round(used / total * 1e6, 1) if total else None,
        "each_per_s": [round(count / took) for count in counts]}


def measure_producer(side: str, scratch: Path, seconds: int) -> dict[str, Any]:
    with master(side, scratch, "SYNC_MASTER") as (namesrv, first), slave(side, scratch, namesrv) as second:
        wait_until(lambda: has_slave(first.address), "the slave does not follow", COPIED_S)
        return measure_program(namesrv, [first, second], [first], seconds)


def measure_latency(
    side: str, scratch: Path, slaves: Path, size: int, seconds: int, most: int
) -> dict[str, Any]:
    """``slaves`` is the parent of the slaves' directories; ``most`` bytes a second are copied, 0: no limit."""
    limit = ["haFlowControlEnable=true", f"maxHaTransferByteInSecond={most}"] if most else []
    with master(side, scratch, "ASYNC_MASTER", *limit) as (namesrv, first):
        fill(namesrv, first.address, size)
        quiet = run_latency(namesrv, first.address, first.pid, seconds=seconds)
        done, copies = threading.Event(), []

        def copy_again() -> None:
            while not done.is_set():
                with slave(side, slaves, namesrv) as second:
                    while not done.is_set() and not end_of(second.address):
                        time.sleep(0.02)
                    began = time.perf_counter()
                    while not done.is_set() and end_of(second.address) < size:
                        time.sleep(0.02)
                    copies.append((began, time.perf_counter()))

        thread = threading.Thread(target=copy_again)
        began = time.perf_counter() + LATENCY_WARM_S
        thread.start()
        try:
            busy = run_latency(namesrv, first.address, first.pid, seconds=seconds)
        finally:
            ended = time.perf_counter()
            done.set()
            thread.join()
    share = sum(max(0.0, min(end, ended) - max(start, began)) for start, end in copies) / max(ended - began, 1e-9)
    return {"quiet": quiet, "catching_up": {**busy, "copies": len(copies), "catching_up": round(share, 2)}}


def pin(broker: Broker, processor: int) -> None:
    """Let all threads of a broker run on one processor."""
    for thread in Path(f"/proc/{broker.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {processor})


def measure_cluster(side: str, scratch: Path, seconds: int) -> dict[str, Any]:
    processors, found = sorted(os.sched_getaffinity(0)), dict[str, Any]()
    if len(processors) < 2:
        raise SystemExit("two brokers with a processor each need two processors")
    for count in (1, 2):
        with master(side, scratch, "ASYNC_MASTER") as (namesrv, first), contextlib.ExitStack() as stack:
            brokers = [first]
            if count == 2:
                brokers.append(stack.enter_context(second_broker(side, scratch, namesrv)))
                wait_until(partial(has_topic, namesrv, brokers[1].address), "the topic is not on both brokers")
            for broker, processor in zip(brokers, processors, strict=False):
                pin(broker, processor)
            found["one" if count == 1 else "two"] = measure_program(namesrv, brokers, brokers, seconds)
    return found


def has_topic(namesrv: str, broker: str) -> bool:
    """Create the topic on the second broker; return whether the name server has two brokers for it.

    By the name server it would be created on the broker only that has it already.
    """
    try:
        with Producer(broker=broker) as producer, PullConsumer(namesrv=namesrv) as consumer:
            producer.create_topic(TOPIC, 8)
            return len({queue.broker_name for queue in consumer.queues(TOPIC)}) == 2
    except RemotingError:  # the broker or its registration is not ready
        return False


def second_broker(side: str, scratch: Path, namesrv: str) -> contextlib.AbstractContextManager[Broker]:
    """Return a second master of the cluster."""
    return another_broker(side, scratch / "second", [
        "brokerRole=ASYNC_MASTER", "brokerId=0", "brokerName=broker-b", "brokerClusterName=DefaultCluster",
        f"namesrvAddr={namesrv}", "brokerIP1=127.0.0.1", "brokerIP2=127.0.0.1", "autoCreateTopicEnable=true"])


# -- the run


def measure(part: str, side: str, scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    size, seconds = arguments.backlog_mb * 1_000_000, arguments.seconds
    if part == "backlog":
        return measure_backlog(side, scratch, size)
    if part == "producer":
        return measure_producer(side, scratch, seconds)
    if part == "latency":
        with tempfile.TemporaryDirectory(prefix="tailrace-slaves-", dir=arguments.slave_directory or scratch) as slaves:
            return measure_latency(
                side, scratch, Path(slaves), size, seconds, arguments.copy_mb_per_s * 1_000_000)
    return measure_cluster(side, scratch, seconds)


def ratios(metrics: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the budgets are stated in."""
    found: dict[str, float | None] = {}

    def ratio(name: str, one: float | None, other: float | None) -> None:
        found[name] = one / other if one and other else None

    if part := metrics.get("backlog"):
        ratio("backlog", part["tailrace"].get("mb_per_s"), part["reference"].get("mb_per_s"))
        ratio("backlog cpu", part["tailrace"].get("cpu_ms_per_mb"), part["reference"].get("cpu_ms_per_mb"))
    if part := metrics.get("producer"):
        ratio("producer SYNC_MASTER", part["tailrace"]["per_s"], part["reference"]["per_s"])
        ratio("producer SYNC_MASTER cpu", part["tailrace"]["brokers_cpu_us"], part["reference"]["brokers_cpu_us"])
    for side in SIDES:
        if part := metrics.get("latency"):
            ratio(f"slow p99 {side}", part[side]["catching_up"]["p99_us"], part[side]["quiet"]["p99_us"])
        if part := metrics.get("cluster"):
            ratio(f"two brokers {side}", part[side]["two"]["per_s"], part[side]["one"]["per_s"])
    return {name: round(value, 2) for name, value in found.items() if value is not None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="for scratch files (default: the system's)")
    parser.add_argument("--backlog-mb", type=int, default=1000, help="at most 1,000, which is one file")
    parser.add_argument("--seconds", type=int, default=20, help="of each program, after its warm-up")
    parser.add_argument(
        "--slave-directory", help="for the slaves of ``latency``, as on another disk (default: beside the master)")
    parser.add_argument(
        "--copy-mb-per-s", type=int, default=0, help="limit of the master for each slave in ``latency``; 0: none")
    parser.add_argument("--parts", default="backlog,producer,latency,cluster")
    parser.add_argument("--sides", default=",".join(SIDES), help="without one of them there are no ratios")
    arguments = parser.parse_args()
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        print("needs Maven and a Java 17 JDK on the PATH", file=sys.stderr)
        return 3
    reference("setup")
    metrics: dict[str, dict[str, Any]] = {}
    sides = [side for side in SIDES if side in arguments.sides.split(",")]
    with tempfile.TemporaryDirectory(prefix="tailrace-replication-", dir=arguments.directory) as name:
        for part in arguments.parts.split(","):
            for side in sides:
                metrics.setdefault(part, {})[side] = measure(part, side, Path(name), arguments)
                note(f"{side} {part}: {metrics[part][side]}")
    found = ratios(metrics) if len(sides) == len(SIDES) else {}
    note("\n".join(f"{name:32} {value}" for name, value in found.items()))
    report("replication", {
        "backlog_mb": arguments.backlog_mb, "copy_mb_per_s": arguments.copy_mb_per_s,
        "has_own_disk": bool(arguments.slave_directory), "seconds": arguments.seconds,
        "parts": arguments.parts, "sides": sides, "reference": reference_release(),
    }, {**metrics, "ratios": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
