"""Spark 4.1 with the Iceberg runtime reads the rows that DuckDB, Polars, PyIceberg and the source of Spark 4.3 read."""

import base64
import hashlib
import json
import lzma
import shutil
import tarfile

import pytest
from iceberg_spark import iceberg_spark
from lake_tables import (
    FILES,
    SEGMENT,
    add,
    archive,
    archived_until,
    business,
    fill,
    key_of,
    lake,
    lose_the_archive,
    restored,
    rows_of,
    same_rows,
    source_rows,
)
from releases import CLEAN, FIXTURES

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
from tailrace.spark.session import local_session
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
        there = assert_same(spark, second)
    # The last restored segment is the last file of the new log, so it is not sealed.
    assert there
    assert all(first[key] == row for key, row in there.items())


class Readers:
    """The bodies of ``messages`` by topic, queue and offset, as every reader sees them: all see the same."""

    def __init__(self, ours, target):
        self._ours, self._target = ours, target

    def bodies(self, theirs, path=None):
        """With ``path`` also by the source of Spark 4.3, from the log and the archive."""
        found = same_rows(self._target)  # DuckDB, Polars, PyIceberg
        rows = theirs.sql("SELECT topic, queue_id, queue_offset, body FROM tailrace.tailrace.messages")
        assert len(rows) == len(found)
        assert {key_of(row): base64.b64decode(row["body"]) for row in rows} == found
        if path is not None:
            frame = self._ours.read.format("tailrace").options(
                fallback="archive", archive=str(self._target), body="decoded",
                columns="topic,queueId,queueOffset,body").load(str(path))
            by_source = {tuple(row)[:3]: bytes(row.body) for row in frame.collect()}
            assert {key: by_source[key] for key in found} == found
        return found


def test_five_readers_agree_on_a_java_brokers_rows_after_archive_deletion_compaction_and_restore(
        tmp_path, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
    with tarfile.open(FIXTURES / f"{CLEAN}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    with lzma.open(FIXTURES / f"{CLEAN}.jsonl.xz", "rt", encoding="utf-8") as lines:
        sent = {(one["topic"], one["queueId"], one["queueOffset"]): one for one in (
            line["message"] for line in map(json.loads, lines) if "message" in line)}
    path, target, again, second = (tmp_path / one for one in (CLEAN, "a", "again", "second"))
    log = sorted((path / "commitlog").iterdir())
    kept, size = {one.name: one.read_bytes() for one in log}, log[0].stat().st_size
    archive(path, target)
    add(path, target)
    keys = business(
        {key: {"commit_log_offset": one["physicalOffset"]} for key, one in sent.items()}, archived_until(target))
    assert len(keys) > 1_000
    spark = local_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    try:
        readers = Readers(spark, target)
        with iceberg_spark(target / "tables" / "catalog.db") as theirs:
            first = readers.bodies(theirs, path)
            assert first.keys() == keys.keys()
            # Of compressed bodies the fixture has the sum of the bytes in the log.
            for key, one in sent.items():
                if key in first and not one["sysFlag"] & 1:
                    assert hashlib.sha256(first[key]).hexdigest() == one["bodySha256"]
            for one in log[:-1]:
                one.unlink()
            assert readers.bodies(theirs, path) == first
            with Namespace(str(target), "tailrace", FILES) as tables:
                assert compact(next(one for one in tables.tables if one.kind == "messages"), RUN).files_before > 1
            assert readers.bodies(theirs, path) == first
            lose_the_archive(target)
            for one in restored(target, again):
                assert (again / "commitlog" / one["file"]).read_bytes() == kept[one["file"]]
            assert readers.bodies(theirs) == first
        shutil.copytree(path / "config", again / "config")
        with MessageStore.open(str(again), config=StoreConfig(mapped_file_size_commit_log=size)) as store:
            store.wait_dispatched(60_000)
        archive(again, second, lag_ms=1)
        add(again, second)
        with iceberg_spark(second / "tables" / "catalog.db") as theirs:
            assert first.items() <= Readers(spark, second).bodies(theirs, again).items()
    finally:
        spark.stop()
