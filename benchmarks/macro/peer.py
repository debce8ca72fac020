"""Tailrace beside the reference, in one run on one machine. Needs Maven and a Java 17 JDK.

Store: put, get, to_arrow and open of ``store.py`` beside StoreBench.java, both with ``--rounds`` in one process, of
which the last half counts, so the JVM is warm. Both sides get 32 messages a call and make no object of a message:
ours returns verified copies of the stored records; the reference copies the records of a call into one buffer, as its
broker does, and ``get_references`` is its get of buffers over its mapped files, without a copy. ``to_arrow`` is
compared with the get that copies, and every kind of put with its put. An open of the reference is in a JVM of its own
and counts from its call to ``load``, so without the loading of most classes; ours counts none of Python's either.
Wire: the reference's own Producer (with its binary headers, and with the JSON of ordinary clients) and BatchProducer
programs against both brokers, the time of a send of a Java client at 1,000 a second, and with ``--backlog N`` its
Consumer program on N messages of 128 bytes that are there before it starts, with the processor time of the broker.
One JSON line; ratios above 1 are in our favour, except for processor time, latency and memory. ``--pair N`` runs
everything N times, the sides taking turns to be first, and reports the median and the range of each ratio; the metrics
are those of the run with the median get.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from results import ROOT, note, report
from store import arguments_of, measure, rss_anon_mb, serving, warm

from tailrace.client import Producer, PullConsumer
from tailrace.errors import RemotingError

REFERENCE = ROOT / "tests" / "interop" / "reference" / "rocketmq"
FILE_SIZE = 1 << 30
TOPIC = "BenchPeer"
REPORT_S = 5
PROGRAMS = {
    "producer": ("bench", "Producer", "-w", "64", "-s", "1024"),
    "json_producer": ("bench-json", "Producer", "-w", "64", "-s", "1024"),
    "batch_producer": ("bench", "BatchProducer", "-w", "8", "-b", "32", "-s", "1024"),
}
FILL = ("bench", "BatchProducer", "-w", "8", "-b", "32", "-s", "128")
LATENCY = re.compile(r"sends=(\d+) p50=([\d.]+) p99=([\d.]+) max=([\d.]+)")
LATENCY_PER_S, LATENCY_WARM_S = 1000, 15
GROUP = "BenchPeerGroup"
CONSUMED_S = 600
"""At most, for all of a backlog."""
Run = Callable[[str, str, int], dict[str, Any]]
"""Measures a broker; takes the addresses of name server and broker, and the process id of the broker."""


def number_of(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"the reference printed no {pattern}: {text[-1000:]}")
    return float(found.group(1))


def reference(*arguments: object) -> str:
    done = subprocess.run(
        [str(REFERENCE), *map(str, arguments)], capture_output=True, text=True, timeout=1800,
        check=False)
    if "kill" not in arguments and done.returncode:
        raise SystemExit(f"the reference failed: {done.stderr[-2000:]}")
    return done.stdout


def reference_store(path: Path, count: int, size: int, rounds: int) -> dict[str, Any]:
    """The reference's store in process; a figure is that of the last half of the rounds of one JVM."""
    put = reference("store-bench", "put", path, FILE_SIZE, count, size, 1, rounds)
    took = [count / float(per_s) for per_s in re.findall(r"= (\d+)/s", put)]
    behind = [float(seconds) for seconds in re.findall(r"caught up \+([\d.]+)s", put)]
    caught_up = [count / (each + late) for each, late in zip(took, behind, strict=True)]
    metrics: dict[str, Any] = {
        "put": {"per_s": round(warm([count / each for each in took])), "per_s_caught_up": round(warm(caught_up)),
                "first_per_s": round(count / took[0])}}
    for name, form in (("get", "copy"), ("get_references", "refer")):
        get = reference("store-bench", "get", path, FILE_SIZE, rounds, form)
        rates = [float(per_s) for per_s in re.findall(r"= (\d+)/s", get)]
        metrics[name] = {"per_s": round(warm(rates)), "first_per_s": round(rates[0])}
        metrics["open_clean"] = {"ms": number_of(r"load ms ([\d.]+)", get)}
    # One more message and no shutdown: an abort file, and a checkpoint that is current.
    reference("store-bench", "put", path, FILE_SIZE, 1, size, 1, 1, "kill")
    metrics["open_killed"] = {
        "ms": number_of(r"load ms ([\d.]+)", reference("store-bench", "open", path, FILE_SIZE))}
    metrics["java"] = java_release()
    note(f"reference store: {metrics}")
    return metrics


def java_release() -> dict[str, str]:
    """Name, heap and collector of the JVM that runs the reference's store."""
    options = os.environ.get("ROCKETMQ_JAVA_OPTS", "-Xms256m -Xmx1g").split()
    flags = subprocess.run(
        ["java", *options, "-XX:+PrintFlagsFinal", "-version"], capture_output=True, text=True, check=True)
    collector = re.findall(r"Use(G1|Parallel|Serial|Shenandoah|Z)GC += true", flags.stdout)
    return {"jdk": flags.stderr.splitlines()[0], "options": " ".join(options), "collector": ", ".join(collector)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def reference_broker(
    scratch: Path, flush: str, ready_s: float = 60, extra: Sequence[str] = ()
) -> Iterator[tuple[list[subprocess.Popen[bytes]], str, str, float]]:
    """A Java name server and broker: processes, name server, broker, seconds until it served."""
    namesrv, listen = free_port(), free_port()
    # The broker keeps one processor busy until the first interval of its transaction metrics is over, by default
    # 10 s. That would count as the cost of the first messages.
    extra = ("transactionMetricFlushInterval=100", *extra)
    conf = scratch / "reference.conf"
    conf.write_text("\n".join((
        "brokerClusterName=DefaultCluster", "brokerName=broker-a", "brokerId=0",
        "brokerIP1=127.0.0.1", f"listenPort={listen}", f"namesrvAddr=127.0.0.1:{namesrv}",
        f"storePathRootDir={scratch}/java", f"storePathCommitLog={scratch}/java/commitlog",
        "autoCreateTopicEnable=true", f"flushDiskType={flush}", *extra, "")))
    began = time.perf_counter()
    processes = [
        subprocess.Popen([str(REFERENCE), *map(str, arguments)], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)
        for arguments in (("namesrv", namesrv), ("broker", conf))
    ]
    try:
        wait_for_route(f"127.0.0.1:{namesrv}", ready_s)
        took = time.perf_counter() - began
        yield processes, f"127.0.0.1:{namesrv}", f"127.0.0.1:{listen}", took
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_route(namesrv: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with Producer(namesrv=namesrv, timeout_ms=1000) as producer:
                producer.create_topic(TOPIC, 8)
                return
        except RemotingError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stored(broker: str) -> int:
    with PullConsumer(broker=broker) as consumer:
        return sum(consumer.max_offset(queue) for queue in consumer.queues(TOPIC))


@contextlib.contextmanager
def program_of(namesrv: str, command: str, name: str, *options: str) -> Iterator[Iterator[str]]:
    """One of the reference's programs while it runs: the lines of its reports."""
    process = subprocess.Popen(
        [str(REFERENCE), command, name, "-n", namesrv, "-t", TOPIC, "-ri", str(REPORT_S * 1000),
         *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True)
    try:
        assert process.stdout is not None
        yield (line for line in process.stdout if "TPS" in line)
    except StopIteration:
        raise SystemExit(f"{name} ended by itself") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_program(
    namesrv: str, broker: str, pid: int, *, program: tuple[str, ...], seconds: int
) -> dict[str, Any]:
    """Run one of the reference's programs that send; the first two reports are warm-up."""
    with program_of(namesrv, *program) as reports:
        for _ in range(2):
            next(reports)
        before, cpu, began = stored(broker), cpu_seconds(pid), time.perf_counter()
        last = ""
        for _ in range(max(1, seconds // REPORT_S)):
            last = next(reports)
        count = stored(broker) - before
        took = time.perf_counter() - began
        cpu = cpu_seconds(pid) - cpu
    failed = re.search(r"Send Failed: (\d+)", last)
    return {
        "per_s": round(count / took),
        "broker_cpu_us": round(cpu / count * 1e6, 1) if count else None,
        "failed": int(failed.group(1)) if failed else 0,
    }


def run_latency(namesrv: str, broker: str, pid: int, *, seconds: int) -> dict[str, Any]:
    """Send at a steady rate with a Java client, after seconds that warm both sides; times are in microseconds."""
    cpu = cpu_seconds(pid)
    text = reference("send-latency", namesrv, TOPIC, LATENCY_PER_S, LATENCY_WARM_S, seconds, 1024)
    found = LATENCY.search(text)
    if found is None:
        raise SystemExit(f"the reference printed no times: {text[-1000:]}")
    sends = LATENCY_PER_S * (LATENCY_WARM_S + seconds)
    return {
        "sends": int(found[1]), "p50_us": float(found[2]), "p99_us": float(found[3]), "max_us": float(found[4]),
        "broker_cpu_us": round((cpu_seconds(pid) - cpu) / sends * 1e6, 1)}


def run_consumer(namesrv: str, broker: str, pid: int, *, backlog: int) -> dict[str, Any]:
    """Run the reference's Consumer program on a backlog.

    The rate is from the moment at which its group has a twentieth of the backlog until it lacks a twentieth. The last
    offsets come late, because clients send an offset with the next pull of its queue.
    """
    with program_of(namesrv, *FILL):
        while stored(broker) < backlog:
            time.sleep(0.2)
    time.sleep(2)  # until all of it is dispatched
    total, until = stored(broker), time.monotonic() + CONSUMED_S
    with (
        program_of(namesrv, "bench", "Consumer", "-g", GROUP, "-p", "false"),
        PullConsumer(broker=broker, group=GROUP) as offsets,
    ):
        queues, first = offsets.queues(TOPIC), None
        while True:
            done = sum(offsets.committed(queue) or 0 for queue in queues)
            now, cpu = time.perf_counter(), cpu_seconds(pid)
            if first is None and done >= total // 20:
                first = done, now, cpu
            if first is not None and done >= total - total // 20:
                break
            if time.monotonic() > until:
                raise SystemExit(f"the Consumer program has {done} of {total} messages after {CONSUMED_S} s")
            time.sleep(0.1)
    count = done - first[0]
    return {
        "per_s": round(count / (now - first[1])), "broker_cpu_us": round((cpu - first[2]) / count * 1e6, 1),
        "backlog": total}


def wire(
    scratch: Path, seconds: int, flush: str, backlog: int, *, ours_first: bool
) -> dict[str, dict[str, Any]]:
    """Both brokers under the same programs, one after the other."""
    found: dict[str, dict[str, Any]] = {"tailrace": {}, "reference": {}}
    sides = {"tailrace": wire_tailrace, "reference": wire_reference}
    runs: dict[str, Run] = {
        name: partial(run_program, program=program, seconds=seconds)
        for name, program in PROGRAMS.items() if seconds}
    if seconds:
        runs["latency"] = partial(run_latency, seconds=seconds)
    if backlog:
        runs["consumer"] = partial(run_consumer, backlog=backlog)
    for name, run in runs.items():
        for side in sides if ours_first else reversed(sides):
            sides[side](found[side], scratch, name, run, flush)
            note(f"{side} {flush} {name}: {found[side][name]}")
    return found


def wire_tailrace(found: dict[str, Any], scratch: Path, name: str, run: Run, flush: str) -> None:
    store, conf = scratch / f"wire-{name}", scratch / "tailrace.conf"
    conf.write_text(f"flushDiskType={flush}\n")
    with serving(store, "--config", str(conf)) as (process, at, took):
        wait_for_route(at["namesrv"])
        found["ready_s"] = round(took, 2)
        found[name] = run(at["namesrv"], at["broker"], process.pid)
        found["rss_anon_mb"] = rss_anon_mb(process.pid)
    shutil.rmtree(store)


def wire_reference(found: dict[str, Any], scratch: Path, name: str, run: Run, flush: str) -> None:
    with reference_broker(scratch, flush) as (processes, namesrv, broker, took):
        found["ready_s"] = round(took, 2)
        found[name] = run(namesrv, broker, processes[1].pid)
        found["rss_anon_mb"] = sum(rss_anon_mb(p.pid) for p in processes)
    shutil.rmtree(scratch / "java", ignore_errors=True)


def ratios(metrics: dict[str, Any]) -> dict[str, float]:
    """What the budgets are stated in."""
    found: dict[str, float] = {}
    if "store" in metrics:
        ours, theirs = metrics["store"]["tailrace"], metrics["store"]["reference"]
        for name in ("put", "put_inner", "put_many", "put_table"):
            found[name] = ours[name]["per_s_caught_up"] / theirs["put"]["per_s_caught_up"]
        for name in ("get", "to_arrow", "to_arrow_columns"):
            found[name] = ours[name]["per_s"] / theirs["get"]["per_s"]
        found["get_references"] = ours["get"]["per_s"] / theirs["get_references"]["per_s"]
        for name in ("open_clean", "open_killed"):
            found[name] = theirs[name]["ms"] / ours[name]["ms"]
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        if flush in metrics:
            ours, theirs = metrics[flush]["tailrace"], metrics[flush]["reference"]
            for name in (name for name in (*PROGRAMS, "consumer") if name in ours):
                found[f"{name} {flush}"] = ours[name]["per_s"] / theirs[name]["per_s"]
                found[f"{name} {flush} cpu"] = (
                    ours[name]["broker_cpu_us"] / theirs[name]["broker_cpu_us"])
            for each in ("p50", "p99") if "latency" in ours else ():
                found[f"latency {flush} {each}"] = ours["latency"][f"{each}_us"] / theirs["latency"][f"{each}_us"]
    return {name: round(value, 2) for name, value in found.items()}


def main() -> int:
    parser = arguments_of(__doc__ or "")
    parser.add_argument(
        "--seconds", type=int, default=20, help="of each program that sends, after 10 s of warm-up; 0 leaves these out")
    parser.add_argument("--backlog", type=int, default=0, metavar="N", help="messages for the Consumer program")
    parser.set_defaults(rounds=6)
    parser.add_argument("--pair", type=int, default=1, metavar="N", help="run both sides N times, in turns")
    parser.add_argument("--skip-store", action="store_true")
    parser.add_argument("--skip-wire", action="store_true")
    parser.add_argument("--sync", action="store_true", help="SYNC_FLUSH over the wire, too")
    arguments = parser.parse_args()
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        print("needs Maven and a Java 17 JDK on the PATH", file=sys.stderr)
        return 3
    reference("setup")
    runs = []
    with tempfile.TemporaryDirectory(prefix="tailrace-peer-", dir=arguments.directory) as name:
        for number in range(max(arguments.pair, 1)):
            runs.append(run(Path(name), arguments, ours_first=number % 2 == 1))
            note("\n".join(f"{name:32} {value}" for name, value in runs[-1]["ratios"].items()))
    metrics = summary(runs)
    note("\n".join(f"{name:32} {value}" for name, value in metrics["ratios"].items()))
    report("peer", {
        "messages": arguments.messages, "body": arguments.body, "rounds": arguments.rounds,
        "seconds": arguments.seconds, "backlog": arguments.backlog, "pairs": len(runs), "file_size": FILE_SIZE,
        "reference": reference_release(),
    }, metrics)
    return 0


def reference_release() -> str:
    """Return the release of RocketMQ that runs as the peer."""
    line = ROOT / "tests" / "interop" / "reference" / "RELEASE"
    return os.environ.get("ROCKETMQ_VERSION") or line.read_text().strip()


def run(scratch: Path, arguments: argparse.Namespace, *, ours_first: bool) -> dict[str, Any]:
    """Measure both sides once."""
    metrics: dict[str, Any] = {}
    if not arguments.skip_store:
        store: dict[str, Any] = {}
        for side in ("tailrace", "reference") if ours_first else ("reference", "tailrace"):
            if side == "tailrace":
                store[side] = measure(scratch, arguments.messages, arguments.body, arguments.rounds)
            else:
                store[side] = reference_store(
                    scratch / "store-java", arguments.messages, arguments.body, arguments.rounds)
                shutil.rmtree(scratch / "store-java")
        metrics["store"] = store
    if not arguments.skip_wire:
        for flush in ("ASYNC_FLUSH", *(["SYNC_FLUSH"] if arguments.sync else [])):
            metrics[flush] = wire(
                scratch, arguments.seconds, flush, arguments.backlog, ours_first=ours_first)
    metrics["ratios"] = ratios(metrics)
    return metrics


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median get (or first ratio); of several runs, each ratio's median and range."""
    name = "get" if "get" in runs[0]["ratios"] else next(iter(runs[0]["ratios"]))
    middle = sorted(runs, key=lambda one: one["ratios"][name])[len(runs) // 2]
    if len(runs) == 1:
        return middle
    ranges = {}
    for name in middle["ratios"]:
        found = [one["ratios"][name] for one in runs]
        ranges[name] = {
            "median": round(statistics.median(found), 2), "least": min(found), "most": max(found)}
    return {**middle, "ratios": ranges}


if __name__ == "__main__":
    sys.exit(main())
