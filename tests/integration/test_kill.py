"""A writer that is killed: every SYNC_FLUSH acknowledgement it gave is found again, in order."""

from __future__ import annotations

import importlib.util
import pathlib
import random
import signal
import subprocess
import sys

import pytest

from tailrace import FlushDiskType, MessageStore, StoreConfig

_spec = importlib.util.spec_from_file_location(
    "kill_loop", pathlib.Path(__file__).parents[2] / "tools" / "kill_loop.py")
kill_loop = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kill_loop)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WRITER = """
import sys
from tailrace import FlushDiskType, Message, MessageStore, StoreConfig
path, generation = sys.argv[1:]
config = StoreConfig(
    flush_disk_type=FlushDiskType.SYNC_FLUSH, mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=200)
with MessageStore.open(path, config=config) as store:
    print("open", flush=True)
    for number in range(1_000_000):
        queue_id = number % 3
        body = f"{generation}/{number}".ljust(50 + number % 700).encode()
        m = Message(topic="T", body=body, tags="a", keys=[f"{generation}/{number}"])
        if number % 10 == 9:
            many = store.put_many([m] * 3, queue_id=queue_id)
            print(queue_id, many[0].queue_offset, generation, number, 3, flush=True)
        else:
            result = store.put(m, queue_id=queue_id)
            print(queue_id, result.queue_offset, generation, number, 1, flush=True)
"""


def write_and_kill(path, generation, acknowledgements):
    """Let a writer work until it has acknowledged this many, then kill it; return its lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(generation)], stdout=subprocess.PIPE, text=True)
    lines = []
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        for line in process.stdout:
            lines.append(line)
            if len(lines) == acknowledgements:
                process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]


def test_every_acknowledgement_is_found_again_after_kill_9(tmp_path):
    rng = random.Random(4)
    acked = {}
    for generation in range(5):
        for queue_id, offset, gen, number, count in write_and_kill(
            tmp_path / "store", generation, rng.randrange(50, 400)
        ):
            for extra in range(count):
                place = queue_id, offset + extra
                assert place not in acked, "an offset was given twice"
                acked[place] = f"{gen}/{number}"
        with MessageStore.open(
            tmp_path / "store", config=StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        ) as store:
            assert store.recovery_report["mode"] == "abnormal"
            assert not store.recovery_report["steppedOver"]
            found = {}
            for queue_id in range(3):
                messages = list(store.read("T", queue_id))
                assert [m.queue_offset for m in messages] == list(range(len(messages)))
                found.update({(queue_id, m.queue_offset): m.keys[0] for m in messages})
                order = [tuple(map(int, m.keys[0].split("/"))) for m in messages]
                assert order == sorted(order), "messages of one queue changed places"
                for m in messages[-5:]:
                    assert m.phy_offset in [
                        f.phy_offset for f in store.query_message("T", m.keys[0])]
            missing = {place: key for place, key in acked.items() if found.get(place) != key}
            assert not missing, list(missing.items())[:5]


def test_concurrent_writers_and_recoveries_that_are_killed_lose_nothing(tmp_path):
    """A part of tools/kill_loop.py."""
    loop = kill_loop.Loop(tmp_path / "store", 7)
    for generation in range(4):
        loop.round(generation, most=200)
    assert loop.recovered >= len(loop.acknowledged) >= 80


def test_every_open_after_a_kill_under_group_commit_starts_from_own_progress(tmp_path):
    """A part of tools/kill_loop.py."""
    assert kill_loop.starts_after_stops(tmp_path, 40, seed=3) == {"PROGRESS": 40}
