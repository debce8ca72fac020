"""Latency of sends, quiet and beside clients that pull messages which are not in memory. JSON lines.

    cold_readers.py [--gigabytes 2.5] [--readers 16] [--per-s 200] [--seconds 10] [--disk-ms 5]

The log is written, the server is stopped, and the page cache gives up its files. Then one client sends at a steady
rate, first alone, then while the readers pull 32 messages at random places, each as fast as it is answered. A second
run has a disk that answers each read after ``--disk-ms`` more (0: no second run). The server, the readers and the
sender are processes of their own. ``cold_reads`` counts the pulls for which the server read from the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from results import note, report

from tailrace import Message, MessageStore
from tailrace.cli import main as command
from tailrace.client import Producer
from tailrace.formats.remoting import RemotingCommand, RequestCode, decode_frame, encode

QUEUES = 16
BODY = 1024
ROWS = 16_384
PULL = {
    "consumerGroup": "cold", "topic": "old", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG"}
READY = re.compile(r"ready broker=(\S+) ")


def fill(path: str, size: int) -> int:
    """Write messages until the log has ``size`` bytes. Return the number of messages of a queue."""
    noise, count = random.Random(1), 0
    with MessageStore.open(path) as store:
        while store.max_phy_offset < size:
            bodies = [noise.randbytes(BODY) for _ in range(ROWS)]
            store.put_table({"body": bodies, "queue_id": np.arange(ROWS, dtype=np.int32) % QUEUES}, topic="old")
            count += ROWS // QUEUES
        store.wait_dispatched(120_000)
    return count


def evict(path: str) -> None:
    """Take the files of a store out of the page cache; a page that a process has mapped stays."""
    os.sync()
    for name in Path(path).rglob("*"):
        if name.is_file():
            fd = os.open(name, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def serve(disk_ms: float, words: list[str]) -> None:
    """``tailrace serve`` on a disk whose reads take ``disk_ms`` longer; pages in memory are read without that wait."""
    pread, preadv = os.pread, os.preadv

    def slow_pread(*arguments: Any) -> Any:
        time.sleep(disk_ms / 1000)
        return pread(*arguments)

    def slow_preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if not flags & os.RWF_NOWAIT:
            time.sleep(disk_ms / 1000)
        return preadv(fd, buffers, offset, flags)

    if disk_ms:
        os.pread, os.preadv = slow_pread, slow_preadv
    sys.argv = ["tailrace", "serve", *words]
    command()


async def read(broker: str, readers: int, count: int) -> None:
    """Pull at random places until the process is ended."""
    host, port = broker.rsplit(":", 1)

    async def one(number: int) -> None:
        places = random.Random(number)
        source, sink = await asyncio.open_connection(host, int(port))
        data = b""
        while True:
            queue, offset = places.randrange(QUEUES), places.randrange(max(count - 32, 1))
            sink.write(encode(RemotingCommand(
                RequestCode.PULL_MESSAGE, {**PULL, "queueId": str(queue), "queueOffset": str(offset)}, opaque=1)))
            while True:
                answer, end = decode_frame(data, 0, len(data))
                if answer is not None:
                    data = data[end:]
                    break
                more = await source.read(1 << 18)
                assert more, "the server closed the connection"
                data += more

    await asyncio.gather(*(one(number) for number in range(readers)))


def sends(broker: str, per_s: int, seconds: float) -> dict[str, float]:
    """Return percentiles, ms, of sends at a steady rate. A late send counts from the time at which it was due."""
    took = []
    with Producer(broker=broker, group="sender") as producer:
        producer.create_topic("new", 4)
        message = Message(topic="new", body=bytes(BODY))
        for _ in range(200):
            producer.send(message)
        began = time.perf_counter()
        for number in range(int(per_s * seconds)):
            due = began + number / per_s
            time.sleep(max(due - time.perf_counter(), 0))
            producer.send(message)
            took.append((time.perf_counter() - due) * 1000)
    took.sort()
    return {
        "sends": len(took), "p50_ms": round(took[len(took) // 2], 2), "p99_ms": round(took[len(took) * 99 // 100], 2),
        "max_ms": round(took[-1], 2)}


def cold_reads(address: str) -> tuple[int, int]:
    """Return the number of reads from the disk for pulls, and their bytes, from the server's metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = [re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
             for name in ("tailrace_cold_reads_total", "tailrace_cold_read_bytes_total")]
    assert all(found), "the server has no metrics of cold reads"
    return tuple(int(float(one[1])) for one in found if one)  # type: ignore[return-value]


def measure(path: str, options: argparse.Namespace, count: int, disk_ms: float) -> dict[str, Any]:
    evict(path)
    own = [sys.executable, __file__]
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        [*own, "--serve", str(disk_ms), path, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0",
         "--http", http, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        broker = READY.match(line)
        assert broker, line
        quiet = sends(broker[1], options.per_s, options.seconds)
        readers = subprocess.Popen([*own, "--read", broker[1], str(options.readers), str(count)])
        try:
            time.sleep(1)
            before = cold_reads(http)
            beside = sends(broker[1], options.per_s, options.seconds)
            after = cold_reads(http)
            assert readers.poll() is None, "the readers have ended"
        finally:
            readers.kill()
            readers.wait()
    finally:
        server.terminate()
        server.wait()
    return {"quiet": quiet, "beside": beside, "cold_reads": after[0] - before[0],
            "cold_mb": round((after[1] - before[1]) / 1e6)}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(float(sys.argv[2]), sys.argv[3:])
        return
    if sys.argv[1:2] == ["--read"]:
        asyncio.run(read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.5)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--per-s", type=int, default=200, help="sends a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--disk-ms", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/store"
        note("writing the log")
        count = fill(path, int(options.gigabytes * 1e9))
        for disk_ms in (0.0, options.disk_ms) if options.disk_ms else (0.0,):
            note(f"sends, quiet and beside {options.readers} readers; reads take {disk_ms:g} ms more")
            report("cold-readers", {
                "gigabytes": options.gigabytes, "readers": options.readers, "per_s": options.per_s,
                "seconds": options.seconds, "disk_ms": disk_ms}, measure(path, options, count, disk_ms))


if __name__ == "__main__":
    main()
