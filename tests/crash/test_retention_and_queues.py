"""A CommitLog file that is deleted takes no queue offset with it."""

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=4000, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False,
    file_reserved_time=1.0, delete_when=";".join(map(str, range(24))))


def test_a_power_loss_after_a_deletion_leaves_queues_where_they_were():
    clock = SimClock()
    files = CrashFileSystem(clock=clock)

    def opened():
        return MessageStore.open(
            "/store", config=CONFIG,
            parts=StoreParts(clock=clock, file_system=files, services=False, entropy=SeededEntropy(1)))

    store = opened()
    for n in range(60):
        store.put(Message(topic="quiet" if n < 8 else "busy", body=bytes(1500)))
    store.flush()
    store.wait_dispatched()
    clock.advance(2 * 3_600_000)
    assert store.retention.delete_now()
    assert store.min_phy_offset > 8 * 1500
    files = files.power_lost(SeededEntropy(1), 0)
    assert opened().put(Message(topic="quiet", body=b"8")).queue_offset == 8
