"""Topics with compaction while reads fail."""

from __future__ import annotations

import errno

from tailrace import Message, MessageStore, StoreConfig
from tailrace.formats.consumequeue import BATCH_CQ_UNIT
from tailrace.node.store_opening import StoreParts
from tailrace.store.compaction.compaction_log import CompactionLog
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 13, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=400,
    compaction_cq_mapped_file_size=BATCH_CQ_UNIT.size * 7, compaction_mapped_file_size=2000, max_message_size=800,
    timer_wheel_enable=False, max_open_files=4)


def test_a_queue_that_cannot_be_read_while_messages_are_copied_gets_none_of_them_twice():
    files, failing = CrashFileSystem(), False

    def before_read(_number, name, path, *_):
        if failing and name == "pread" and "compactionCq" in path:
            raise OSError(errno.ENOMEM, "injected", path)

    files.before_read, files.cold = before_read, True
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock()),
    ) as store:
        store.create_topic("C", 1, {"cleanup.policy": "COMPACTION"})
        for number in range(40):
            store.put(Message(topic="C", body=b"x", keys=[f"once{number}"]))
            store.wait_dispatched()
            failing = number % 3 == 1
            store.inner.flush()
            failing = False
        store.inner.flush()
        store.inner.compaction.step()
        assert [message.queue_offset for message in store.read("C")] == list(range(40))


def test_no_read_names_a_negative_least_offset_while_a_compaction_log_is_removed(monkeypatch):
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=CrashFileSystem(), clock=SimClock()),
    ) as store:
        store.create_topic("C", 1, {"cleanup.policy": "COMPACTION"})
        for number in range(5):
            store.put(Message(topic="C", body=b"x", keys=[f"k{number}"]))
        store.inner.flush()
        store.inner.compaction.step()
        assert store.inner.compaction.logs["C", 0].max_offset
        monkeypatch.setattr(CompactionLog, "min_offset", -1)  # as after its messages were removed
        assert [store.get_message("C", 0, offset, 8).min_offset for offset in (0, 4, 5, 9)] == [0] * 4
