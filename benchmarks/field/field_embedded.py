"""Tailrace's store beside SQLite and LMDB as a queue in one process.

A message is a body of 1,024 bytes with its place in a queue. ``put one``: a transaction, or a put, for each message;
``put many``: 1,000 together; ``read``: all in order. Nothing is synced by a put: SQLite in WAL mode with
synchronous=NORMAL, LMDB with sync off, Tailrace with ASYNC_FLUSH.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BODY = random.Random(1).randbytes(1024)
ROWS = (
    ("put one, a second", "one", "per_s", max),
    ("put 1,000 together, messages a second", "many", "per_s", max),
    ("read in order, messages a second", "read", "per_s", max),
    ("disk, MiB a million messages", "disk", "mb", min),
)


class Queue(ABC):
    """A queue in a directory."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path

    @abstractmethod
    def put(self, body: bytes) -> None:
        """Put one message."""

    @abstractmethod
    def put_many(self, bodies: Sequence[bytes]) -> None:
        """Put messages together."""

    @abstractmethod
    def read(self) -> int:
        """Read all bodies in order; return their bytes."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class Tailrace(Queue):
    def __init__(self, path: Path) -> None:
        from tailrace import MessageStore
        super().__init__(path)
        self._store = MessageStore.open(path / "store")

    def put(self, body: bytes) -> None:
        from tailrace import Message
        self._store.put(Message(topic="queue", body=body), queue_id=0)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        from tailrace import Message
        self._store.put_many([Message(topic="queue", body=body) for body in bodies], queue_id=0)

    def read(self) -> int:
        self._store.wait_dispatched(60_000)
        return sum(len(message.body) for message in self._store.read("queue", 0))

    def close(self) -> None:
        self._store.close()


class Sqlite(Queue):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection = sqlite3.connect(path / "queue.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("CREATE TABLE queue (place INTEGER PRIMARY KEY, body BLOB)")

    def put(self, body: bytes) -> None:
        self._connection.execute("INSERT INTO queue (body) VALUES (?)", (body,))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO queue (body) VALUES (?)", ((body,) for body in bodies))
        self._connection.execute("COMMIT")

    def read(self) -> int:
        return sum(len(body) for (body,) in self._connection.execute("SELECT body FROM queue ORDER BY place"))

    def close(self) -> None:
        self._connection.close()


class Lmdb(Queue):
    def __init__(self, path: Path) -> None:
        import lmdb
        super().__init__(path)
        self._database = lmdb.open(str(path / "queue"), map_size=16 << 30, sync=False)
        self._place = 0

    def put(self, body: bytes) -> None:
        self.put_many((body,))

    def put_many(self, bodies: Sequence[bytes]) -> None:
        with self._database.begin(write=True) as transaction:
            for body in bodies:
                transaction.put(self._place.to_bytes(8, "big"), body, append=True)
                self._place += 1

    def read(self) -> int:
        with self._database.begin() as transaction:
            return sum(len(body) for body in transaction.cursor().iternext(keys=False))

    def close(self) -> None:
        self._database.close()


QUEUES: dict[str, type[Queue]] = {"Tailrace": Tailrace, "SQLite": Sqlite, "LMDB": Lmdb}


def rate(count: int, act: Callable[[], object]) -> dict[str, int]:
    began = time.perf_counter()
    act()
    return {"per_s": round(count / (time.perf_counter() - began))}


def measure(count: int) -> dict[str, dict[str, Any]]:
    """Each store in a directory of its own."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind in QUEUES.items():
        with tempfile.TemporaryDirectory(prefix="tailrace-field-") as scratch:
            queue = kind(Path(scratch) / "one")

            def one(queue: Queue = queue) -> None:
                for _ in range(count):
                    queue.put(BODY)

            figures: dict[str, Any] = {"one": rate(count, one)}
            queue.close()
            queue = kind(Path(scratch) / "many")

            def many(queue: Queue = queue) -> None:
                for _ in range(count // 1000):
                    queue.put_many([BODY] * 1000)

            figures["many"] = rate(count, many)
            size = queue.read()
            if size != count // 1000 * 1000 * len(BODY):
                raise SystemExit(f"{name} gives {size} bytes back")
            figures["read"] = rate(count, queue.read)
            queue.close()
            blocks = sum(path.lstat().st_blocks for path in (Path(scratch) / "many").rglob("*") if path.is_file())
            figures["disk"] = {"mb": round((blocks * 512 >> 20) * 1e6 / count)}
            found[name] = figures
    return found
