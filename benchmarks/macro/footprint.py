"""Bytes of a message on the disk, memory of a server, and what a sync costs; figures to size a machine.

    python benchmarks/macro/footprint.py [--path DIRECTORY]

Prints a JSON line for each part: bytes per message of log, queue and index for bodies of 1 KiB with one key and one
tag; anonymous memory and descriptors of an idle server, with 1,000 connections and with the queues of 1,000 topics; and
syncs a second of the disk beside puts a second of one thread under SYNC_FLUSH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
from tailrace.client import Producer

MESSAGES, CONNECTIONS, TOPICS, SYNCS = 200_000, 1_000, 1_000, 500
SETTLED_S = 2.0


def on_disk(place: Path) -> dict[str, float]:
    """Return bytes per message of the parts of a store."""
    with MessageStore.open(str(place)) as store:
        for first in range(0, MESSAGES, 1000):
            store.put_many([Message(topic="orders", body=bytes(1024), tags="new", keys=(f"key-{first + n}",))
                            for n in range(1000)])
        log = store.max_phy_offset / MESSAGES
    index = sum(file.lstat().st_blocks * 512 for file in (place / "index").iterdir())
    return {"body": 1024, "log": round(log, 1), "queue": 20, "index_allocated": round(index / MESSAGES, 1)}


def in_memory(place: Path) -> dict[str, object]:
    """Return anonymous memory in KiB and descriptors of a server in three states."""
    command = [sys.executable, "-m", "tailrace.cli", "serve", str(place), "--listen", "127.0.0.1:0",
               "--namesrv-listen", "none"]
    with (place.parent / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    found: dict[str, object] = {}

    def note(what: str) -> None:
        time.sleep(SETTLED_S)
        status = Path(f"/proc/{server.pid}/status").read_text()
        anonymous = re.search(r"RssAnon:\s+(\d+)", status)
        assert anonymous is not None
        found[what] = {"kib": int(anonymous[1]), "descriptors": len(os.listdir(f"/proc/{server.pid}/fd"))}

    try:
        address = server.stdout.readline().partition("broker=")[2].split()[0]
        host, _, port = address.partition(":")
        note("idle")
        sockets = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
        note("connections")
        for one in sockets:
            one.close()
        with Producer(broker=address, group="footprint") as producer:
            for topic in range(TOPICS):
                for _ in range(4):
                    producer.send(Message(topic=f"t{topic}", body=b"x"))
        note("topics")
        found["queues"] = sum(1 for _ in (place / "consumequeue").glob("t*/*"))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return found


def syncs(place: Path) -> dict[str, float]:
    """Return syncs a second of a file, and puts a second of one thread under SYNC_FLUSH."""
    with (place.parent / "file").open("wb", buffering=0) as file:
        file.write(bytes(SYNCS * 1200))  # like the log, whose blocks are reserved before
        os.fsync(file.fileno())
        file.seek(0)
        begun = time.perf_counter()
        for _ in range(SYNCS):
            file.write(bytes(1200))
            os.fdatasync(file.fileno())
        disk = SYNCS / (time.perf_counter() - begun)
    with MessageStore.open(str(place), config=StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        begun = time.perf_counter()
        for _ in range(SYNCS):
            store.put(Message(topic="orders", body=bytes(1024)))
        puts = SYNCS / (time.perf_counter() - begun)
    return {"syncs_per_s": round(disk), "puts_per_s": round(puts)}


def main() -> None:
    """Measure the three parts in new directories."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--path", help="a directory on the disk to measure")
    place = options.parse_args().path
    for part in (on_disk, in_memory, syncs):
        with tempfile.TemporaryDirectory(dir=place) as made:
            print(json.dumps({"part": part.__name__, **part(Path(made) / "store")}), flush=True)


if __name__ == "__main__":
    main()
