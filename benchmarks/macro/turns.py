"""Processor time of put, get, to_arrow and dispatch of two source trees, in turns, so that other programs disturb both.

``turns.py OLD/src NEW/src`` runs a process for each tree on a store of its own and prints a line for each measure: the
least and the median of the rounds, in microseconds. ``put`` and ``get`` count their own thread only. The kernels of
both trees must be compiled for this interpreter.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.node.store_opening import StoreParts

COUNT = 60_000
TOPICS = [f"Topic{number}" for number in range(8)]
BODY = bytes(range(256)) * 4
PUTS = 1000
READ = 8  # queues that a round reads


def measures(path: str) -> dict[str, Callable[[], float]]:
    """Open stores of the tree that is imported. Return a function for each measure: nanoseconds of one round."""
    from tailrace.model import Message
    from tailrace.node.message_store import MessageStore

    def messages(count: int) -> list[tuple[Message, int]]:
        return [
            (Message(topic=TOPICS[n % 8], body=BODY, tags=f"Tag{n % 3}", keys=(f"key{n}",)), n // 8 % 4)
            for n in range(count)]

    store = MessageStore.open(f"{path}/served")
    quiet = MessageStore.open(f"{path}/quiet", parts=StoreParts(services=False))  # its dispatch is run by hand
    for message, queue_id in messages(COUNT):
        store.put(message, queue_id=queue_id)
    store.wait_dispatched(120_000)
    queues, some = store.queues()[:READ], messages(PUTS)

    def put() -> float:
        began = time.thread_time_ns()
        for message, queue_id in some:
            store.put(message, queue_id=queue_id)
        took = time.thread_time_ns() - began
        store.wait_dispatched(120_000)
        return took / PUTS

    def get(count: int) -> float:
        calls, began = 0, time.thread_time_ns()
        for topic, queue_id, offset, until in queues:
            while offset < until:
                offset = store.get_message(topic, queue_id, offset, count, max_bytes=1 << 20).next_begin_offset
                calls += 1
        return (time.thread_time_ns() - began) / calls

    def to_arrow(columns: list[str] | None) -> float:
        began = time.process_time_ns()
        rows = sum(store.to_arrow(topic, queue_id, columns=columns).num_rows for topic, queue_id, *_ in queues)
        return (time.process_time_ns() - began) / rows

    def dispatch(count: int) -> float:
        took = calls = 0
        for first in range(0, 400, count):
            for message, queue_id in some[first : first + count]:
                quiet.put(message, queue_id=queue_id)
            began = time.thread_time_ns()
            quiet.wait_dispatched()
            took += time.thread_time_ns() - began
            calls += 1
        return took / calls

    return {
        "put": put, "get of 32": lambda: get(32), "get of 1": lambda: get(1),
        "to_arrow, a message": lambda: to_arrow(None),
        "to_arrow of 3 columns, a message": lambda: to_arrow(["queueOffset", "keys", "body"]),
        **{f"dispatch of {count}": partial(dispatch, count) for count in (1, 2, 4, 40)},
    }


def work(source: str, path: str) -> None:
    """Run the measures whose names come in, one a line."""
    sys.path.insert(0, source)
    import tailrace
    from tailrace import kernels

    if not (tailrace.__file__ or "").startswith(source) or not kernels.compiled():
        raise SystemExit(f"{source}: not this tree, or not compiled")
    known = measures(path)
    print(*known, sep="\t", flush=True)
    for line in sys.stdin:
        print(known[line.strip()](), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", nargs=2, type=Path, metavar="SRC")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(str(arguments.sources[0]), arguments.work)
        return 0
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as scratch:
        workers: list[Any] = []
        for number, source in enumerate(arguments.sources):
            command = [sys.executable, __file__, str(source.resolve()), "-", "--work", f"{scratch}/{number}"]
            workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        heads = [worker.stdout.readline() for worker in workers]
        for name in heads[0].strip().split("\t"):
            found: list[list[float]] = [[], []]
            for turn in range(2 * arguments.rounds):
                side = (turn + turn // 2) % 2
                workers[side].stdin.write(f"{name}\n")
                workers[side].stdin.flush()
                found[side].append(float(workers[side].stdout.readline()) / 1000)
            print(f"{name:34}", *(f"{min(one):9.2f} {statistics.median(one):9.2f}" for one in found), flush=True)
        for worker in workers:
            worker.stdin.close()
            worker.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
