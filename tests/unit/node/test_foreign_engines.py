"""What a Java broker kept in RocksDB: its timers are found in the log, its configuration is named."""

from __future__ import annotations

import os
import time

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.timercheckpoint import TimerCheckpointFields
from tailrace.node.store_opening import StoreParts
from tailrace.timer.timer_checkpoint import TimerCheckpoint

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_timer_log=65536, max_hash_slot_num=100, max_index_num=400)
COUNT = 20


def open_store(path):
    return MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False))


def left_by_java(path):
    """Timers that are not in the wheel of a Java broker, although its queue offset is after them."""
    with open_store(path) as store:
        store.topics.create_if_missing("orders", 1)
        for n in range(COUNT):
            store.put(Message(topic="orders", body=b"%d" % n, delay=3600))
    now = time.time_ns() // 1_000_000
    TimerCheckpoint(OsFileSystem(), f"{path}/config/timercheck").write(
        TimerCheckpointFields(now, 0, COUNT, COUNT, 0, now, 1))
    java = path / "rocksdbstore"
    java.mkdir()
    for name in ("CURRENT", "LOG", "MANIFEST-000005"):
        (java / name).write_bytes(b"x")
    (java / "000004.log").touch()
    return java


def test_timers_that_only_rocksdb_has_are_found_in_the_log_once(tmp_path, caplog):
    caplog.set_level("INFO", "tailrace")
    path = tmp_path / "store"
    java = left_by_java(path)
    with open_store(path) as store:
        assert not list(store.timers()), "nothing was in RocksDB, so the wheel is believed"
    (java / "000013.sst").write_bytes(b"table")
    rebuilt = "timers are rebuilt from the CommitLog reason=a Java broker kept timers"
    for round_ in range(3):
        caplog.clear()
        with open_store(path) as store:
            assert len(list(store.timers())) == COUNT
        assert (rebuilt in caplog.text) == (round_ == 0)
    (java / "000017.log").write_bytes(b"more")  # it was there again
    caplog.clear()
    with open_store(path) as store:
        assert len(list(store.timers())) == COUNT
    assert rebuilt in caplog.text


def test_a_configuration_in_rocksdb_is_named_until_it_was_exported(tmp_path, caplog):
    path = tmp_path / "store"
    with open_store(path) as store:
        store.topics.create_if_missing("orders", 1)
    table = path / "config/consumerOffsets/000004.log"
    table.parent.mkdir()
    said = f"kind=consumerOffsets path={table.parent} export=mqadmin rocksDBConfigToJson -p {path}/config"
    for data, expected in ((b"", False), (b"offsets", True)):
        table.write_bytes(data)
        caplog.clear()
        with open_store(path):
            pass
        assert (said in caplog.text) == expected
        assert "kind=topics" not in caplog.text
    json = path / "config/consumerOffset.json"
    json.write_text('{"offsetTable":{}}')
    for seconds, expected in ((-60, True), (60, False)):  # an older one is from before RocksDB
        when = table.stat().st_mtime + seconds
        os.utime(json, (when, when))
        caplog.clear()
        with open_store(path):
            pass
        assert (said in caplog.text) == expected
