"""Nothing is found in a directory that is written to while it is audited."""

from __future__ import annotations

import threading

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.formats.indexfile import index_file_size

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=40_000, max_hash_slot_num=500,
    max_index_num=20_000, flush_interval_commit_log=50, commit_log_allocate_step=1 << 16)


def test_a_store_that_is_written_to_is_sound(tmp_path):
    path = tmp_path / "store"
    stop = threading.Event()

    def put():
        number = 0
        while not stop.wait(0.002):
            store.put_many(
                [Message(topic=f"T{n % 3}", body=bytes(200), keys=[f"k{number}-{n}"]) for n in range(50)],
                queue_id=number % 4)
            if number % 3 == 0:
                store.put(Message(topic="L", body=b"t", delay=0.5 + number % 9))
            number += 1

    with MessageStore.open(path, config=CONFIG) as store:
        thread = threading.Thread(target=put)
        thread.start()
        counts = []
        try:
            while len(counts) < 30 and len(set(counts)) < 4:
                stop.wait(0.3)
                *found, summary = verify(str(path))
                assert found == []
                assert summary["summary"]["state"] == "live"
                counts.append(summary["summary"]["records"])
        finally:
            stop.set()
            thread.join()
        assert len(set(counts)) == 4, "it grew meanwhile"
    *found, summary = verify(str(path))
    assert found == []
    assert summary["summary"]["records"] >= counts[-1]


@pytest.mark.parametrize("size", [0, index_file_size(CONFIG.max_hash_slot_num, CONFIG.max_index_num)])
def test_an_index_file_that_is_just_made_is_sound(tmp_path, size):
    """Its name is there before its length, and its length before its header."""
    path = tmp_path / "store"
    with MessageStore.open(path, config=CONFIG) as store:
        store.put(Message(topic="T", body=b"x", keys=["k"]))
        store.wait_dispatched()
        (path / "index" / "29991231235959999").write_bytes(bytes(size))
        *found, summary = verify(str(path))
        assert found == []
        assert summary["summary"]["state"] == "live"
