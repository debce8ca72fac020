"""Gaps in the log of a master are found at each start, even if they are zeros that nothing was copied of."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.ha.log_gaps import log_gaps
from tailrace.ha.replicas import Replicas
from tailrace.node.store_opening import StoreParts

FILE = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=200,
    commit_log_allocate_step=4096, timer_wheel_enable=False)


def opened(path, **parts):
    return MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, **parts))


def put(store, count):
    found = [store.put(Message(topic="t", body=b"%03d" % n * 30), queue_id=0).phy_offset for n in range(count)]
    store.wait_dispatched()
    return found


@pytest.mark.parametrize("damage", ["zeros", "other bytes", "a body"])
def test_a_gap_is_named_at_each_start_until_it_is_sealed_or_deleted(tmp_path, damage):
    path = tmp_path / "store"
    with opened(path) as store:
        places = put(store, 20)
    with (path / "commitlog" / f"{0:020d}").open("r+b") as segment:
        segment.seek(places[7] + (100 if damage == "a body" else 0))
        segment.write((b"\0" if damage == "zeros" else b"\xee") * (
            7 if damage == "a body" else places[9] - places[7]))
    for name in (path / "tailrace").glob("progress*"):
        name.unlink()
    (path / "checkpoint").unlink()
    (path / "abort").write_text("1")
    for start in range(3):
        with opened(path) as store:
            assert log_gaps(store.inner) == [places[7]], start
            assert bool(store.recovery_report["steppedOver"]) is (start == 0)
            put(store, 100)  # later starts read only the last segments
    lines = (path / "tailrace" / "quarantine" / "manifest.jsonl").read_text().splitlines()
    assert len(lines) == 1
    with opened(path) as store:
        replicas = Replicas(SystemClock(), store.inner)
        replicas.gaps = [places[7]]
        assert replicas.to_json()["gapOffsets"] == [places[7]]
        assert store.inner.commit_log.queue.files[0].file_from_offset == 0
    with opened(path, rebuild=True, seal_damage=True) as store:
        assert len(store.recovery_report["sealed"]) == 1
    with opened(path) as store:
        assert log_gaps(store.inner) == []


def test_a_gap_of_a_segment_that_was_deleted_is_not_shown():
    class Log:
        min_offset = FILE

    class Store:
        commit_log = Log()
        config = CONFIG

    replicas = Replicas.__new__(Replicas)
    replicas._store, replicas._gaps = Store(), [700, FILE + 5]
    assert replicas.gaps == [FILE + 5]
