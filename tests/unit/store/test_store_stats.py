"""Counters of puts and reads start at 0 and count what was done."""

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock

NAMES = (
    "putMessageTimesTotal", "putMessageFailedTimes", "putMessageSizeTotal", "getMessageFoundTimes",
    "getMessageMissTimes", "getMessageTransferredMsgCount")


def test_counters_start_at_zero_and_rates_follow_them():
    clock, scheduler = SimClock(), ManualScheduler()
    store = MessageStore.open(
        "/s", config=StoreConfig(mapped_file_size_commit_log=65_536, max_hash_slot_num=16, max_index_num=64),
        parts=StoreParts(clock=clock, file_system=CrashFileSystem(), scheduler=scheduler, entropy=SeededEntropy(1)))
    assert [store.stats()[name] for name in NAMES] == [0] * 6
    scheduler.steps["StoreStatsService"]()
    for _ in range(20):
        store.put(Message(topic="t", body=b"1234567890"))
    while scheduler.steps["ReputMessageService"]():
        pass
    for offset in (0, 5, 20):
        store.get_message("t", 0, offset, 10)
    clock.advance(10_000)
    scheduler.steps["StoreStatsService"]()
    stats = store.stats()
    assert [stats[name] for name in NAMES] == [20, 0, stats["putMessageSizeTotal"], 2, 1, 20]
    assert stats["putMessageSizeTotal"] >= 20 * 10
    assert [stats[name] for name in ("putTps", "getFoundTps", "getMissTps", "getTransferredTps")] == [
        [2.0], [0.2], [0.1], [2.0]]
    assert sum(stats["putMessageDistributeTime"].values()) == 20
    store.close()
