"""Our own figures: put, put_many, put_table, get, to_arrow, open, serve. One JSON line.

See docs/contributing/benchmark-log.md.

The work is that of the reference's StoreBench.java: 8 topics of 4 queues, a body of random bytes,
one key, one tag and one unique key a message; ASYNC_FLUSH, default file sizes. Every measure runs
in a process of its own; files are in the page cache. With ``--rounds N`` a process does its work N times, and
the figure is the median of the last half, as for a JVM that is warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from results import note, output_hash, report

from tailrace.kernels.properties import encode_properties
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore

TOPICS = [f"Topic{number}" for number in range(8)]
PULL = 32


def body_of(size: int) -> bytes:
    return random.Random(1).randbytes(size)


def properties_of(number: int) -> dict[str, str]:
    return {
        "KEYS": f"key{number}", "TAGS": f"Tag{number % 3}",
        "UNIQ_KEY": f"7F0000010000000000000000{number:08X}",
    }


def warm(rates: list[float]) -> float:
    """Return the median of the last half of the rounds."""
    return statistics.median(rates[len(rates) // 2:])


def put_rounds(store: MessageStore, count: int, rounds: int, put_all: Callable[[], None]) -> dict[str, Any]:
    """Put ``count`` messages ``rounds`` times; a round begins when the queues have all of the one before."""
    rates, caught_up = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        put_all()
        rates.append(count / (time.perf_counter() - began))
        store.wait_dispatched(120_000)
        caught_up.append(count / (time.perf_counter() - began))
    return {"per_s": round(warm(rates)), "per_s_caught_up": round(warm(caught_up)), "first_per_s": round(rates[0])}


def put_inner(path: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """What the reference's program does: prepare a message and put it, one by one."""
    body = body_of(size)
    with MessageStore.open(path) as store:
        def put_all() -> None:
            for number in range(count):
                result = store.put_inner(MessageExtBrokerInner(
                    TOPICS[number % 8], number // 8 % 4, body,
                    encode_properties(properties_of(number)),
                    born_timestamp=time.time_ns() // 1_000_000))
                if not result.ok:
                    raise SystemExit(f"put: {result}")
        return put_rounds(store, count, rounds, put_all)


def put(path: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """The public face."""
    body = body_of(size)
    with MessageStore.open(path) as store:
        def put_all() -> None:
            for number in range(count):
                store.put(Message(
                    topic=TOPICS[number % 8], body=body, tags=f"Tag{number % 3}",
                    keys=(f"key{number}",)), queue_id=number // 8 % 4)
        return put_rounds(store, count, rounds, put_all)


def put_many(path: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """1,000 messages of one topic a call."""
    body = body_of(size)
    with MessageStore.open(path) as store:
        def put_all() -> None:
            for call, first in enumerate(range(0, count, 1000)):
                topic = TOPICS[call % 8]
                store.put_many(
                    [Message(topic=topic, body=body, tags=f"Tag{number % 3}", keys=(f"key{number}",))
                     for number in range(first, min(first + 1000, count))],
                    queue_id=call // 8 % 4)
        return put_rounds(store, count, rounds, put_all)


def put_table(path: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """Arrow tables of 10,000 messages of all topics and queues; they are made before the clock starts."""
    import pyarrow as pa

    body, rows = body_of(size), 10_000
    tables = [
        pa.table({
            "body": pa.array([body] * len(numbers), pa.binary()),
            "topic": [TOPICS[number % 8] for number in numbers],
            "queue_id": [number // 8 % 4 for number in numbers],
            "tags": [f"Tag{number % 3}" for number in numbers],
            "keys": [[f"key{number}"] for number in numbers],
        }) for numbers in (range(at, min(at + rows, count)) for at in range(0, count, rows))]
    with MessageStore.open(path) as store:
        def put_all() -> None:
            for table in tables:
                store.put_table(table)
        return put_rounds(store, count, rounds, put_all)


def get(path: str, count: int, _: int, rounds: int) -> dict[str, Any]:
    """Every queue in order, 32 messages a call; then the same, decoded.

    A call returns what a broker sends: the stored records in one bytes object, verified and copied, with
    their number. The reference returns a buffer over the mapped file for each message, or copies them as its broker
    does, and the harness adds up their number and size; it verifies no record.
    """
    with MessageStore.open(path) as store:
        queues, rates, size, result = list(store.queues()), [], 0, None
        for _ in range(rounds):
            began, seen, size = time.perf_counter(), 0, 0
            for topic, queue_id, offset, until in queues:
                while offset < until:
                    result = store.get_message(topic, queue_id, offset, PULL, max_bytes=1 << 20)
                    seen += result.message_count
                    size += len(result.data)
                    offset = result.next_begin_offset
            rates.append(seen / (time.perf_counter() - began))
            assert seen == count, (seen, count)
        assert result is not None
        began = time.perf_counter()
        decoded = sum(
            message.body is not None for topic, queue_id, offset, _ in queues
            for message in store.read(topic, queue_id, offset))
        decoded_took = time.perf_counter() - began
        return {
            "per_s": round(warm(rates)), "mb_per_s": round(size * warm(rates) / count / 1e6),
            "first_per_s": round(rates[0]), "decoded_per_s": round(decoded / decoded_took),
            "output": output_hash(result.records),
        }


MESSAGE = ["queueOffset", "tags", "keys", "body", "storeTimestamp"]


def to_arrow(path: str, count: int, _: int, rounds: int) -> dict[str, Any]:
    """Every queue as an Arrow table of all 22 columns, one table at a time; at least three rounds."""
    return _tables(path, count, rounds, None)


def to_arrow_columns(path: str, count: int, _: int, rounds: int) -> dict[str, Any]:
    """The same with the five columns that most programs want."""
    return _tables(path, count, rounds, MESSAGE)


def _tables(path: str, count: int, rounds: int, columns: list[str] | None) -> dict[str, Any]:
    import pyarrow as pa

    with MessageStore.open(path) as store:
        rates, size = [], 0
        for _ in range(max(rounds, 3)):
            began, seen, size = time.perf_counter(), 0, 0
            for topic, queue_id, *_ in store.queues():
                table = store.to_arrow(topic, queue_id, columns=columns)
                seen += table.num_rows
                size += table.nbytes
            rates.append(seen / (time.perf_counter() - began))
            assert seen == count, (seen, count)
        return {
            "per_s": round(warm(rates)), "first_per_s": round(rates[0]),
            "table_mb": round(size / 1e6), "pyarrow": pa.__version__,
        }


def open_(path: str, *_: int) -> dict[str, Any]:
    """From the call until every message can be read."""
    began = time.perf_counter()
    store = MessageStore.open(path)
    store.wait_dispatched(120_000)
    took = time.perf_counter() - began
    scanned = store.recovery_report["scanned"]
    store.close()
    return {"ms": round(took * 1e3, 1), "scanned": scanned}


def kill_open(path: str, *_: int) -> dict[str, Any]:
    """Open and die, as kill -9 would have it."""
    MessageStore.open(path)
    print("{}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


ACTS: dict[str, Callable[..., dict[str, Any]]] = {
    "put": put, "put_inner": put_inner, "put_many": put_many, "put_table": put_table, "get": get,
    "to_arrow": to_arrow, "to_arrow_columns": to_arrow_columns, "open": open_, "kill_open": kill_open,
}


def act(name: str, path: Path, count: int, size: int, rounds: int = 1) -> dict[str, Any]:
    """Run one measure in a child."""
    done = subprocess.run(
        [sys.executable, __file__, "--act", name, str(path), "--messages", str(count), "--body",
         str(size), "--rounds", str(rounds)], capture_output=True, text=True, check=False)
    if done.returncode not in {0, -signal.SIGKILL}:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    note(f"tailrace {name}: {result}")
    return result


@contextlib.contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str], float]]:
    """A running ``tailrace serve``, its addresses, and the seconds it took."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "tailrace"), "serve", str(path), "--listen",
         "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--log-level", "error", *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        took = time.perf_counter() - began
        if not ready.startswith("ready "):
            raise SystemExit("serve did not start")
        yield process, dict(part.split("=", 1) for part in ready.split()[1:]), took
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def rss_anon_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def measure_serve(scratch: Path) -> dict[str, Any]:
    """Start on an empty directory, three times; memory when idle."""
    took, memory = [], 0.0
    for number in range(3):
        with serving(scratch / f"empty-{number}") as (process, _, seconds):
            took.append(seconds)
            time.sleep(1)
            memory = rss_anon_mb(process.pid)
    return {"ready_s": round(statistics.median(took), 3), "idle_rss_anon_mb": memory}


def measure_import() -> float:
    """Seconds of ``import tailrace`` with the store, the best of five."""
    code = ("import time; t = time.perf_counter(); import tailrace; tailrace.MessageStore; "
            "print(time.perf_counter() - t)")
    return min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True).stdout) for _ in range(5))


def measure(scratch: Path, count: int, size: int, rounds: int = 1) -> dict[str, Any]:
    """Everything."""
    metrics: dict[str, Any] = {}
    for name in ("put", "put_many", "put_table", "put_inner"):
        shutil.rmtree(scratch / "store", ignore_errors=True)
        metrics[name] = act(name, scratch / "store", count, size, rounds)
    for name in ("get", "to_arrow", "to_arrow_columns"):
        metrics[name] = act(name, scratch / "store", count * rounds, size, rounds)
    metrics["open_clean"] = act("open", scratch / "store", count, size)
    act("kill_open", scratch / "store", count, size)
    metrics["open_killed"] = act("open", scratch / "store", count, size)
    shutil.rmtree(scratch / "store")
    metrics["serve"] = measure_serve(scratch)
    note(f"tailrace serve: {metrics['serve']}")
    metrics["import_s"] = round(measure_import(), 3)
    return metrics


def arguments_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--directory", type=Path, help="where stores are made; default: a temporary one")
    parser.add_argument(
        "--rounds", type=int, default=1, help="of each measure in one process; the last half counts")
    return parser


def main() -> int:
    parser = arguments_of(__doc__ or "")
    parser.add_argument("--act", nargs=2, metavar=("NAME", "STORE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.act:
        name, path = arguments.act
        print(json.dumps(ACTS[name](path, arguments.messages, arguments.body, arguments.rounds)))
        return 0
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=arguments.directory) as scratch:
        metrics = measure(Path(scratch), arguments.messages, arguments.body, arguments.rounds)
    report("store", {"messages": arguments.messages, "body": arguments.body, "rounds": arguments.rounds}, metrics)
    return 0


if __name__ == "__main__":
    sys.exit(main())
