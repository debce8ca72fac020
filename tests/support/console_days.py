"""A broker in this process with the console, on a good day and on a bad one, for tests and for pictures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from flat_open import flat_open
from patience import until

from tailrace import Message, MessageStore, Producer, PushConsumer, StoreConfig
from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig
from tailrace.console import Console
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.observe.http_status import HttpStatusServer

__all__ = ["Day", "bad_day", "consoled", "damaged", "good_day"]

GIB = 1 << 30
SMALL = {"mapped_file_size_commit_log": 8 << 20, "mapped_file_size_consume_queue": 120_000,
         "max_hash_slot_num": 10_000, "max_index_num": 40_000}


class ShiftedClock(SystemClock):
    """The wall clock, late by a time that tests change."""

    __slots__ = ("behind_ms",)

    def __init__(self, behind_ms: int = 0) -> None:
        self.behind_ms = behind_ms

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


class FullDisk(OsFileSystem):
    """The files of the machine on a disk of 500 GiB that is as full as a test says."""

    percent = 28.0

    def disk_usage(self, path: str) -> Any:
        del path
        free = int(500 * GIB * (100 - self.percent) / 100)
        return SimpleNamespace(total=500 * GIB, free=free, usable=free)


class Day:
    """A served store. ``url`` is the address of its first page, with a slash at its end."""

    def __init__(self, store: MessageStore, clock: ShiftedClock, disk: FullDisk) -> None:
        self.store, self.clock, self.disk = store, clock, disk
        self.controller: BrokerController
        self.url = self.namesrv = ""

    def has_consumed(self, group: str) -> bool:
        """Return True if the members of a group have committed all orders, which they do once a second."""
        offsets = self.controller.broker.offsets
        return all(offsets.query(group, "orders", queue_id) == self.store.queue_of("orders", queue_id).max
                   for queue_id in range(4))

    async def _serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        config = BrokerConfig()
        http = HttpStatusServer(config, pages=Console())
        controller = self.controller = BrokerController(self.store, config)
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        host, port = await http.start("127.0.0.1", 0)
        http.serving(controller.broker, controller.access.enforced, pages=Console(controller.broker))
        self.url, self.namesrv = f"http://{host}:{port}/console/", controller.namesrv_address
        ready.set()
        try:
            await stop.wait()
        finally:
            await http.stop()
            await controller.stop()


@contextlib.contextmanager
def consoled(path: Path, *, clock: ShiftedClock | None = None, disk: FullDisk | None = None) -> Iterator[Day]:
    """A console of the store at ``path``; it is served in a thread."""
    clock, disk, ready = clock or ShiftedClock(), disk or FullDisk(), threading.Event()
    with (
        mock.patch("tailrace.console.health.compiled", return_value=True),  # no trouble of the machine
        mock.patch.dict("tailrace.env.supervision.FAILURES", clear=True),  # nor of other tests of this process
        flat_open(path, config=StoreConfig(**SMALL), clock=clock, file_system=disk) as store,
    ):
        day, loop = Day(store, clock, disk), asyncio.new_event_loop()
        stop = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.run_until_complete(day._serve(ready, stop)))
        thread.start()
        try:
            assert ready.wait(60)
            yield day
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()


def order(number: int) -> Message:
    """The order with a number; a pear cannot be shipped."""
    fruit = "pear" if number % 40 == 7 else "apple"
    body = {
        "order": number, "fruit": fruit, "paid": number % 3 != 0, "note": None,
        "customer": {"id": 70_000 + number, "name": "Ana Ibáñez", "tags": ["new", "vip"]},
        "lines": [{"sku": "A-1", "count": 2, "price": 3.5}, {"sku": "B-7", "count": 1, "price": 12.0}]}
    return Message(topic="orders", body=json.dumps(body, ensure_ascii=False).encode(), keys=[f"order-{number}"],
                   tags=fruit)


def damaged(path: Path, clock: SystemClock | None = None, count: int = 600, places: int = 2) -> None:
    """Make a store of orders that was killed, with damaged messages among others."""
    whole = path.with_name(f"{path.name}-whole")
    with flat_open(whole, config=StoreConfig(**SMALL), clock=clock) as store:
        for number in range(count):
            store.put(order(number), queue_id=number % 4)
        store.flush()
        store.wait_dispatched()
        at = [message.phy_offset for message in store.read("orders", 1, 40, max_count=places * 10)][::10]
        shutil.copytree(whole, path)
    [first, *_] = sorted((path / "commitlog").glob("[0-9]*"))
    with first.open("r+b") as file:
        for place in at:
            file.seek(place + 110)
            file.write(b"damage" * 8)
    shutil.rmtree(whole)


@contextlib.contextmanager
def good_day(path: Path, seconds: float = 0.0) -> Iterator[Day]:
    """All messages are consumed, the disk has room, and timers wait. Orders are sent for at least ``seconds``."""
    with consoled(path) as day, Producer(namesrv=day.namesrv, group="shop") as producer:
        seen: list[str] = []
        producer.create_topic("orders", 4)
        producer.create_topic("payments", 2)
        with (
            PushConsumer("stock", lambda message: seen.append("s"), namesrv=day.namesrv, topics="orders",
                         start="first"),
            PushConsumer("billing", lambda message: seen.append("b"), namesrv=day.namesrv, topics="orders",
                         start="first"),
        ):
            sent, began = 0, time.monotonic()
            while sent < 120 or time.monotonic() - began < seconds:
                producer.send(order(sent))
                if not sent % 4:
                    producer.send(Message(topic="payments", body=b"paid", keys=[f"order-{sent}"]))
                sent += 1
                if seconds and not sent % (20 + 40 * math.sin(sent / 900) ** 2 // 1):
                    time.sleep(0.1)
            for number in range(12):
                producer.send(Message(topic="payments", body=b"remind", keys=[f"reminder-{number}"],
                                      delay=3600.0 + 60 * number))
            until(lambda: len(seen) >= 2 * sent and day.store.stats()["timerPending"] >= 12)
            until(lambda: day.has_consumed("stock") and day.has_consumed("billing"))
            yield day


@contextlib.contextmanager
def bad_day(path: Path, lag: int = 2_000) -> Iterator[Day]:
    """A group has a great lag, another one has dead letters, the disk is nearly full, and the store was damaged."""
    stopped, clock = threading.Event(), ShiftedClock(47 * 60_000)
    damaged(path, clock)
    with consoled(path, clock=clock) as day, Producer(namesrv=day.namesrv, group="shop") as producer:
        shipped: list[str] = []

        def ship(message: Any) -> None:
            shipped.append(message.msg_id)
            if message.tags == "pear":
                raise ValueError("pears are not shipped")

        def bill(message: Any) -> None:
            stopped.wait()

        with (
            PushConsumer("billing", bill, namesrv=day.namesrv, topics="orders", start="first"),
            PushConsumer("shipping", ship, namesrv=day.namesrv, topics="orders", start="first",
                         max_reconsume_times=0),
        ):
            for number in range(600, lag):
                producer.send(order(number))
            producer.send(Message(topic="orders", body=b"remind", keys=["reminder-1"], delay=3600.0))
            until(lambda: len(shipped) >= lag - 2 and day.store.queue_of("%DLQ%shipping", 0).max >= lag // 40)
            until(lambda: day.has_consumed("shipping"))
            clock.behind_ms = 0
            day.disk.percent = 87.6
            day.store.retention.disk.check()
            until(lambda: day.store.stats()["timerReadBehindMs"] < 5_000)
            try:
                yield day
            finally:
                stopped.set()
