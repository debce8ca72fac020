"""Quarantine: no byte is cut whose copy was deleted for the next copy of the same open."""

from __future__ import annotations

import orjson
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import StoreNotWritableError
from tailrace.node.store_opening import StoreParts
from tailrace.store.recovery.quarantine import (
    AFTER_THE_END,
    COMPACTION,
    NOT_AT_THE_MASTER,
    QUEUE,
    TOO_LONG,
    Quarantine,
)
from tailrace.testing import CrashFileSystem, SimClock

SEGMENT = 1 << 16
LOG = "/s/commitlog/00000000000000000000"


def config(limit):
    return StoreConfig(
        mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
        max_index_num=64, commit_log_allocate_step=4096, quarantine_max_bytes=limit)


def opened(files, limit, clock=None):
    return MessageStore.open("/s", config=config(limit),
        parts=StoreParts(services=False, clock=clock or SimClock(), file_system=files))


def damaged_store(*numbers):
    """Six messages of 5,000 bytes in one segment, some of them damaged, after a kill."""
    files = CrashFileSystem()
    with opened(files, 1 << 30) as store:
        places = [store.put(Message(topic="t", body=bytes([65 + n]) * 5000)).phy_offset for n in range(6)]
    for path in files.list("/s/tailrace"):
        if "progress" in path:
            files.remove(f"/s/tailrace/{path}")
    files.open("/s/abort", writable=True, create=True)
    log = files.open(LOG, writable=True)
    for number in numbers:
        log.pwrite(b"~", places[number] + 1000)
    return files, places


def copies(files):
    return [name for name in files.list("/s/tailrace/quarantine") if name.endswith(".bin")]


def quarantine(files, limit, clock):
    return Quarantine(clock, files, "/q", limit)


def test_only_copies_of_earlier_opens_make_room():
    files, clock = CrashFileSystem(), SimClock()
    first = quarantine(files, 100, clock)
    first.keep("f", 0, 0, b"a" * 40, "")
    clock.advance(1)
    first.keep("f", 40, 40, b"b" * 40, "")
    second = quarantine(files, 100, clock)
    clock.advance(1)
    assert second.keep("f", 40, 40, b"b" * 40, "") == 40, "it is there already, and now it is of this open, too"
    second.keep("f", 80, 80, b"c" * 50, "")
    assert [int(name[:20]) for name in files.list("/q") if name.endswith(".bin")] == [40, 80]
    with pytest.raises(OSError, match="quarantineMaxBytes is 100, and this open has copied 90"):
        second.keep("f", 200, 200, b"d" * 11, "")
    assert [int(name[:20]) for name in files.list("/q") if name.endswith(".bin")] == [40, 80]
    assert second.keep("f", 200, 200, b"d" * 10, "") == 10


@pytest.mark.parametrize("numbers", [(1, 3), (4, 5)], ids=["stepped over", "one of them cut"])
def test_without_room_nothing_is_cut_and_the_store_opens_read_only(numbers):
    files, _ = damaged_store(*numbers)
    before = files.open(LOG).pread(SEGMENT, 0)
    limit = 9_000  # of 10,200
    if numbers == (4, 5):
        limit = 4_000  # they are one piece at the end of the log
    with opened(files, limit) as store:
        assert "quarantineMaxBytes" in store.read_only
        assert store.recovery_report["cut"] == []
        assert store.max_offset_in_queue("t", 0) == (6 if numbers == (1, 3) else 4)
        with pytest.raises(StoreNotWritableError):
            store.put(Message(topic="t", body=b"x"))
    assert files.open(LOG).pread(SEGMENT, 0) == before
    with opened(files, 1 << 20) as store:
        assert not store.read_only
        report = store.recovery_report
        kept = sum(files.stat(f"/s/tailrace/quarantine/{name}").size for name in copies(files))
        assert kept == report["quarantinedBytes"] > 10_000
        store.put(Message(topic="t", body=b"x"))


def test_with_room_for_all_pieces_each_has_its_copy():
    files, _ = damaged_store(1, 3)
    with opened(files, 11_000) as store:
        assert len(store.recovery_report["steppedOver"]) == len(copies(files)) == 2


@pytest.mark.parametrize("left", [b"", b"\0" * 9, b"b" * 9], ids=["not grown", "zeros", "whole"])
def test_a_copy_without_a_line_in_the_manifest_is_written_again(left):
    """What a power loss during the copy leaves has the right name, and perhaps the right length."""
    files, clock = CrashFileSystem(), SimClock()
    quarantine(files, 100, clock).keep("f", 0, 0, b"a" * 9, "")
    name = next(name for name in files.list("/q") if name.endswith(".bin"))
    files.remove("/q/manifest.jsonl")
    copy = files.open(f"/q/{name}", writable=True)
    copy.truncate(0)
    copy.pwrite(left, 0)
    for _ in range(2):
        assert quarantine(files, 100, clock).keep("f", 0, 0, b"a" * 9, "") == 9
        assert files.open(f"/q/{name}").pread(99, 0) == b"a" * 9
        assert files.open("/q/manifest.jsonl").pread(9999, 0).count(b"\n") == 1


def test_a_torn_line_of_the_manifest_takes_no_other_line_with_it():
    files, clock = CrashFileSystem(), SimClock()
    quarantine(files, 100, clock).keep("f", 0, 0, b"a" * 9, "")
    manifest = files.open("/q/manifest.jsonl", writable=True)
    manifest.pwrite(b'{"file": "f", "posi', manifest.size())
    quarantine(files, 100, clock).keep("f", 40, 40, b"b" * 9, "")
    quarantine(files, 100, clock).keep("f", 80, 80, b"c" * 9, "")
    lines = manifest.pread(9999, 0).splitlines()
    assert [orjson.loads(lines[at])["position"] for at in (0, 2, 3)] == [0, 40, 80]


def test_only_damage_in_the_middle_of_the_log_was_stepped_over():
    """Positions in other files, and of what was cut off, are no places where logs are compared."""
    files, clock = CrashFileSystem(), SimClock()
    for number, reason in enumerate((
        f"{AFTER_THE_END}bad length", f"{NOT_AT_THE_MASTER}h:1", f"{QUEUE}t/0 without a log", COMPACTION, TOO_LONG,
        "bad length", "body checksum; 4096 of 9000 bytes are zeros")):
        quarantine(files, 1000, clock).keep("f", number, number, b"%d" % number, reason)
    quarantine(files, 1000, clock).note("f", 90, 90, 20, "zeros")
    assert quarantine(files, 1000, clock).stepped_over() == [5, 6, 90]
