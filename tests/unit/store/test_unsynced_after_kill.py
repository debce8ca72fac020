"""What a killed process left in the page cache is synced by the next one, before it counts as durable."""

from dataclasses import replace

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import FlushDiskType
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock


@pytest.mark.parametrize("kind", FlushDiskType)
@pytest.mark.parametrize("open_files", [0, 4])
def test_a_power_loss_after_a_recovery_takes_nothing(kind, open_files):
    config = StoreConfig(
        mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
        max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH)

    def opened(files, flush):
        return MessageStore.open(
            "/s", parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(1)),
            config=replace(config, flush_disk_type=flush, max_open_files=open_files))

    files, clock = CrashFileSystem(), SimClock()
    store = opened(files, FlushDiskType.ASYNC_FLUSH)
    for number in range(60):
        store.put(Message(topic="T", body=b"%d" % number * 200))
    files = files.killed()
    store = opened(files, kind)
    if kind is FlushDiskType.ASYNC_FLUSH:
        store.flush()
    files = files.power_lost(SeededEntropy(2), keep_percent=0)
    with opened(files, kind) as again:
        assert [m.queue_offset for m in again.read("T")] == list(range(60))
