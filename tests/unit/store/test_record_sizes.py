"""A length in a record header that no record has, negative ones included, ends neither a walk nor the log."""

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.formats.commitlog import MIN_RECORD_LENGTH, PLAUSIBLE_LENGTH, plausible_size
from tailrace.node.store_opening import StoreParts
from tailrace.store.walk.scan import is_record
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096, timer_wheel_enable=False)
SIZES = (-1, -8, -(1 << 31), 0, 1, MIN_RECORD_LENGTH - 1, 8193, (1 << 31) - 1)


def opened(files):
    return MessageStore.open("/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock()))


@pytest.mark.parametrize("size", SIZES)
def test_it_is_stepped_over(size):
    files = CrashFileSystem()
    with opened(files) as store:
        places = [store.put(Message(topic="t", body=b"%d" % n * 20)).phy_offset for n in range(8)]
        record = bytes(store.select_record(places[3]) or b"")
    damaged = size.to_bytes(4, "big", signed=True) + record[4:]
    assert is_record(record, places[3])
    assert not is_record(damaged, places[3])
    assert plausible_size(damaged[:PLAUSIBLE_LENGTH], places[3]) in ({size} if size > 8000 else {0})
    segment = files.open("/s/commitlog/00000000000000000000", writable=True)
    segment.pwrite(damaged[:4], places[3])
    segment.close()
    for name in files.list("/s/consumequeue/t/0"):
        files.remove(f"/s/consumequeue/t/0/{name}")  # so that the log is walked from its begin
    for name in files.list("/s/tailrace"):
        if name.startswith("progress"):
            files.remove(f"/s/tailrace/{name}")
    files.open("/s/abort", writable=True, create=True).close()
    with opened(files) as store:
        assert [found["physicalOffset"] for found in store.recovery_report["steppedOver"]] == [places[3]]
        assert [m.body[:1] for m in store.read("t", 0)] == [b"%d" % n for n in range(8) if n != 3]
