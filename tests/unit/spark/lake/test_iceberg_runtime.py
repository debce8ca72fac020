"""Spark 4.1 with the Iceberg runtime reads the rows that PyIceberg and the source of Spark 4.3 read."""

import base64
import shutil

import pytest
from iceberg_spark import iceberg_spark
from lake_tables import FILES, SEGMENT, add, archive, fill, key_of, lake, rows_of, source_rows

from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.node.message_store import MessageStore
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.lake.catalogue import Namespace
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.forget import forget
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner
from tailrace.spark.lake.upkeep import compact
from tailrace.store.archive_store import archive_at

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark]
RUN = local_runner(run_task)
COLUMNS = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "store_timestamp", "tags", "keys", "properties", "body")


def plain(row):
    """A row as the other process prints it."""
    shown = dict(row)
    shown["body"] = base64.b64encode(row["body"]).decode()
    shown["store_timestamp"] = row["store_timestamp"].replace(tzinfo=None).isoformat()
    shown["properties"] = dict(row["properties"])
    return shown


def assert_same(spark, target):
    found = {key_of(row): row for row in spark.sql(f"SELECT {', '.join(COLUMNS)} FROM tailrace.tailrace.messages")}
    ours = {key_of(row): plain({one: row[one] for one in COLUMNS}) for row in rows_of(target).to_pylist()}
    for row in found.values():
        row["store_timestamp"] = row["store_timestamp"].replace("+00:00", "")
    assert found == ours
    raw = spark.sql("SELECT commitLogOffset FROM tailrace.tailrace.raw_broker_a")
    positions = [row["commitLogOffset"] for row in raw]
    assert sorted(positions) == sorted(rows_of(target, "raw")["commitLogOffset"].to_pylist())
    return found


def test_the_same_rows_after_archive_deletion_compaction_forgetting_and_restore(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    fill(path, 160, 320, topic="clicks")
    archive(path, target)
    add(path, target)
    with iceberg_spark(target / "tables" / "catalog.db") as spark:
        first = assert_same(spark, target)
        of_source = source_rows(path, target)
        assert {key: base64.b64decode(row["body"]) for key, row in first.items()} == {
            key: of_source[key]["body"] for key in first}
        # The log no longer has the archived segments.
        log = sorted((path / "commitlog").iterdir())
        for one in log[:-1]:
            one.unlink()
        assert assert_same(spark, target) == first
        with Namespace(str(target), "tailrace", FILES) as tables:
            table = next(one for one in tables.tables if one.kind == "messages")
            assert compact(table, RUN).files_after == 1
        assert assert_same(spark, target) == first
        assert [row["n"] for row in spark.sql("SELECT count(*) AS n FROM tailrace.tailrace.messages.files")] == [1]
        with Namespace(str(target), "tailrace", FILES) as tables:
            table = next(one for one in tables.tables if one.kind == "messages")
            forget(
                table, Condition("orders", "k7"), RUN, clock=SystemClock(), entropy=SeededEntropy(1), file_system=FILES)
        assert len(assert_same(spark, target)) == len(first) - 1

        again, second = tmp_path / "again", tmp_path / "a2"
        list(restore_segments(archive_at(str(target)), str(again), 0, 1 << 62))
        shutil.copytree(path / "config", again / "config")
        with MessageStore.open(str(again), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
            store.wait_dispatched(60_000)
        archive(again, second)
        add(again, second)
    with iceberg_spark(second / "tables" / "catalog.db") as spark, lake(second):
        restored = assert_same(spark, second)
    # The last restored segment is the last file of the new log, so it is not sealed.
    assert restored
    assert all(first[key] == row for key, row in restored.items())
