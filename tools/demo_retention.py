"""The demo's act about disk space: deletion by time, by a full disk, by hand beside a reader."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.retention import explain_directory
from tailrace.doctor.retention_report import answer_lines
from tailrace.env import OsFileSystem
from tailrace.env.clock import SystemClock
from tailrace.errors import StoreNotWritableError
from tailrace.node.store_opening import StoreParts

__all__ = ["with_retention"]

KIB = 1024
SEGMENT = 256 * KIB
BODY = bytes(8 * KIB)
MINUTE_NS = 60_000_000_000
WAIT_S = 10.0
Say = Callable[[str], None]


@final
class LaterClock:
    """The machine's clock, put forward; a demo cannot wait for three days."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._later_ns = 0

    def forward(self, hours: float) -> None:
        """Move the clock forward by a number of hours."""
        self._later_ns += round(hours * 60 * MINUTE_NS)

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._real.now_ms() + self._later_ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since some moment."""
        return self._real.monotonic_ns() + self._later_ns


def settings(**more: object) -> StoreConfig:
    """Small files, and a look at them twice a second at any hour."""
    values = {
        "mappedFileSizeCommitLog": SEGMENT, "deleteWhen": ";".join(map(str, range(24))),
        "maxHashSlotNum": 100, "maxIndexNum": 2000, "commitLogAllocateStep": 64 * KIB,
        "cleanResourceInterval": 200, **more}
    return StoreConfig.from_properties({name: str(value) for name, value in values.items()})


def fill(store: MessageStore, topic: str, segments: int) -> None:
    """Put as many messages as ``segments`` segments hold."""
    store.put_many([Message(topic=topic, body=BODY)] * (segments * SEGMENT // len(BODY)))
    store.flush()


def segments_of(path: Path) -> list[str]:
    """Names of the CommitLog files, without those made ahead."""
    return sorted(p.name for p in (path / "commitlog").glob("[0-9]*"))


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a service of the store."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise SystemExit("retention did not do what the demo waits for")
        time.sleep(0.02)


def by_time(path: Path, say: Say) -> None:
    """A store whose clock advances by 72 hours."""
    clock, config = LaterClock(), settings()
    with MessageStore.open(path, config=config, parts=StoreParts(clock=clock)) as store:
        fill(store, "old", 4)
        clock.forward(config.file_reserved_time - 1)
        fill(store, "new", 3)
        store.wait_dispatched()
        before, low = segments_of(path), store.min_phy_offset
        say(f"  by time: {config.file_reserved_time - 1:g} hours after the last message of topic old")
        for verdict in explain_directory(str(path), config, clock, OsFileSystem()).segments[:5:4]:
            say(f"    {verdict.facts.path.rpartition('/')[2]}: {verdict.rule.value}")
        clock.forward(1.1)
        wait_until(lambda: store.min_phy_offset >= 4 * SEGMENT)
        wait_until(lambda: store.min_offset_in_queue("old", 0) >= 4 * (SEGMENT // len(BODY) - 1))
        say(f"    and at {config.file_reserved_time:g} hours (fileReservedTime) "
            f"{len(set(before) - set(segments_of(path)))} of {len(before)} files are gone")
        say(f"    first byte of the log {low} -> {store.min_phy_offset}, topic old begins at offset "
            f"{store.min_offset_in_queue('old', 0)}, topic new still at "
            f"{store.min_offset_in_queue('new', 0)}")


def by_pressure(path: Path, say: Say) -> None:
    """A cap that the store outgrows, and a disk with less room than settings ask for."""
    clock, cap = LaterClock(), 5 * SEGMENT
    with MessageStore.open(path, config=settings(maxStoreBytes=cap), parts=StoreParts(clock=clock)) as store:
        store.put(Message(topic="reminders", body=b"in ten minutes", delay_level=14))
        clock.forward(1 / 60)
        fill(store, "orders", 9)
        store.wait_dispatched()
        wait_until(lambda: not store.retention.disk.verdict.clean and store.min_phy_offset > 0)
        stats = store.stats()
        say(f"  by pressure: maxStoreBytes={cap} and {9 * SEGMENT} bytes put: the "
            f"{stats['forcedDeletedFiles']} oldest files went before their time, with "
            f"{stats['forcedDeletedMessages']} messages of orders; that is on record for "
            "`tailrace retention`")

        def came() -> int:
            return sum(store.max_offset_in_queue("reminders", queue) for queue in range(4))

        if came():
            raise SystemExit("a delayed message came before its time")
        clock.forward(10 / 60)
        wait_until(lambda: came() == 1)
        say(f"    a message that waited in the first of them for ten minutes was written again "
            f"({stats['scheduleHandedOver']} handed to the timer wheel) and came at its time")
    free = shutil.disk_usage(path).free
    config = settings(diskFreeBytesWarningLevel=free + (1 << 40), cleanFileForciblyEnable="false")
    with MessageStore.open(path, config=config) as store:
        try:
            store.put(Message(topic="orders", body=b"one more"))
        except StoreNotWritableError as error:
            say("  a disk with less room than diskFreeBytesWarningLevel asks for: a put gets")
            say("    " + str(error).replace(str(path), "STORE"))
        else:
            raise SystemExit("a put on a full disk was taken")
        low = store.min_offset_in_queue("orders", 0)
        found = store.get_message("orders", 0, low, 32)
        say(f"    and reads go on: {len(found.records)} messages from offset {low}")
    say("  [bold]$ tailrace retention STORE[/bold]  (its first lines)")
    for line in list(answer_lines(
        explain_directory(str(path), settings(maxStoreBytes=cap), SystemClock(), OsFileSystem()),
        "STORE", settings()))[2:7]:
        say(f"    {line.replace(str(path), 'STORE')}")


def by_hand(path: Path, say: Say) -> None:
    """A request to delete, while a reader holds the oldest file."""
    config = settings(
        fileReservedTime=0, deleteWhen=(time.localtime().tm_hour + 12) % 24,
        destroyMapedFileIntervalForcibly=300, redeleteHangedFileInterval=100)
    with MessageStore.open(path, config=config) as store:
        fill(store, "orders", 4)
        store.wait_dispatched()
        [oldest, *_] = store.inner.commit_log.queue.files
        reader = oldest.select(0, 4 * KIB)
        assert reader is not None
        seen = bytes(reader.buffer)
        store.execute_delete_files_manually()
        wait_until(lambda: store.stats()["hangedFile"] != "")
        say(f"  by hand: {store.stats()['hangedFile'].rpartition('/')[2]} is to go and is being read: "
            "no new reader gets it, it stays for 300 ms")
        assert oldest.select(0, 4 * KIB) is None
        wait_until(lambda: store.min_phy_offset >= 3 * SEGMENT)
        same = bytes(reader.buffer) == seen
        say(f"    then its name goes, {len(segments_of(path))} files are left, and the reader still "
            f"has its bytes: {'the same' if same else 'OTHERS'}")
        reader.release()
        if not same:
            raise SystemExit("a reader lost its bytes")


def with_retention(scratch: Path, say: Say) -> None:
    """The act."""
    logging.disable(logging.ERROR)  # the story below says the same in other words
    for name, part in (("time", by_time), ("pressure", by_pressure), ("hand", by_hand)):
        path = scratch / f"retention-{name}"
        part(path, say)
        shutil.rmtree(path)
    logging.disable(logging.NOTSET)
