"""Placeholders over damage of every size, which a scan, a recovery and a Java broker read as records."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.formats.commitlog import MIN_RECORD_LENGTH, SysFlag
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.sealing import placeholder, sealed_rows
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import rows_of_a_chunk

FILE = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=200,
    commit_log_allocate_step=4096, timer_wheel_enable=False)
CHECK = C.CHECK_PHY_OFFSET | C.CHECK_BODY_CRC
SHORTEST = MIN_RECORD_LENGTH + len("t")


class File:
    file_from_offset = 0
    size = FILE


def rows_of(data, at):
    rows = rows_of_a_chunk()
    count, stop, _ = record.scan(data, 0, len(data), at, CHECK, rows)
    return rows[:count], stop


@pytest.mark.parametrize("size", [*range(SHORTEST, SHORTEST + 20), 300])
def test_damage_of_any_size_is_covered_by_one_record_of_its_length(size):
    data = placeholder(Damage(700, 700 + size, "", ""), File, 1_700_000_000_000)
    rows, stop = rows_of(data, 700)
    assert (len(data), len(rows), stop) == (size, 1, size)
    assert rows[0, C.SYS_FLAG] & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK
    assert [(one.phy_offset, one.until) for one in sealed_rows(data, rows)] == [(700, 700 + size)]
    topic = data[int(rows[0, C.TOPIC_POS]) :][: int(rows[0, C.TOPIC_LEN])]
    assert b"TAILRACE_SEALED".startswith(topic)


def test_fewer_bytes_are_not_sealed():
    assert placeholder(Damage(700, 700 + SHORTEST - 1, "", ""), File, 0) == b""


@pytest.mark.parametrize("at", [4 + 4 + 4, 4 + 4 + 4 + 4 + 4, MIN_RECORD_LENGTH - 2])
def test_a_short_record_that_differs_in_a_byte_is_none(at):
    data = bytearray(placeholder(Damage(700, 700 + 95, "", ""), File, 1_700_000_000_000))
    data[at] ^= 1
    rows, _ = rows_of(bytes(data), 700)
    assert len(rows) == 1
    assert sealed_rows(bytes(data), rows) == []


def opened(path, **parts):
    return MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, **parts))


def damaged(path, number):
    """A store of short records, of which one has another body than its checksum says; position and length of that."""
    with opened(path) as store:
        ends = [store.put_inner(MessageExtBrokerInner("t", 0, b"%02d" % n)).until for n in range(60)]
        store.wait_dispatched()
    at, size = ends[number - 1], ends[number] - ends[number - 1]
    file = path / "commitlog" / f"{at - at % FILE:020d}"
    data = bytearray(file.read_bytes())
    place = data.index(b"%02d" % number, at % FILE + MIN_RECORD_LENGTH - 10)
    data[place] ^= 0xff
    file.write_bytes(data)
    return at, size


def test_the_shortest_records_of_a_log_are_sealed_and_what_follows_is_dispatched(tmp_path):
    at, size = damaged(tmp_path / "store", 20)
    assert size < MIN_RECORD_LENGTH + len("TAILRACE_SEALED")
    with opened(tmp_path / "store", rebuild=True, seal_damage=True) as store:
        assert store.recovery_report["sealed"] == [{"physicalOffset": at, "length": size}]
    for _ in range(2):
        with opened(tmp_path / "store", rebuild=True) as store:
            assert store.recovery_report["steppedOver"] == []
            assert [one.body for one in store.read("t", 0)] == [b"%02d" % n for n in range(60) if n != 20]


def test_damage_over_the_end_of_a_segment_is_sealed_in_both(tmp_path, caplog):
    path = tmp_path / "store"
    with opened(path) as store:
        put = [store.put(Message(topic="t", body=b"%02d" % n * 20), queue_id=0) for n in range(120)]
        store.wait_dispatched()
    places = [one.phy_offset for one in put]
    first = next(n for n, at in enumerate(places) if at >= FILE)
    start, until = places[first - 2], places[first + 2]
    for file, low, high in ((0, start, FILE), (FILE, 0, until - FILE)):
        with (path / "commitlog" / f"{file:020d}").open("r+b") as segment:
            segment.seek(low)
            segment.write(b"\xee" * (high - low))
    with opened(path, rebuild=True, seal_damage=True) as store:
        sealed = [(one["physicalOffset"], one["length"]) for one in store.recovery_report["sealed"]]
        assert sealed == [(start, FILE - start), (FILE, until - FILE)]
    assert "damage cannot be sealed" not in caplog.text
    with opened(path, rebuild=True) as store:
        assert store.recovery_report["steppedOver"] == []
        assert len(list(store.read("t", 0))) == 116
