"""The tables of an archive: the rows that DuckDB, Polars and PyIceberg read are those of the source."""

import collections
import contextlib
import datetime as dt
import multiprocessing
import os
import pathlib
import random
import shutil
import tarfile
import time
import zlib

import pytest
from releases import CLEAN

from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import ConfigError, CorruptionError, StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
import duckdb
import lake_child
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from lake_tables import (
    FILES,
    SEGMENT,
    add,
    archive,
    archived_until,
    assert_fresh,
    assert_whole,
    business,
    data_files,
    fill,
    key_of,
    lake,
    manifests_of,
    metadata_of,
    paths_of,
    rows_of,
    source_rows,
)
from page_runner import blocks
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from tailrace.node.retention.archive_pins import ArchivePins
from tailrace.spark.archive import task as task_of_archive
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions
from tailrace.spark.archive.job import local_runner as archive_runner
from tailrace.spark.archive.layout import ARCHIVE_SCHEMA
from tailrace.spark.lake import commit as commit_module
from tailrace.spark.lake import job as job_module
from tailrace.spark.lake import message_rows
from tailrace.spark.lake import task as task_module
from tailrace.spark.lake.catalogue import Lake, Mark
from tailrace.spark.lake.job import LakeJob, local_runner
from tailrace.spark.lake.schemas import MESSAGES_SCHEMA
from tailrace.store.archive_manifest import manifest_name, read_manifest
from tailrace.store.archive_store import PosixArchive
from tailrace.store.archive_tables import (
    CommitCounts,
    add_counts,
    attach,
    attached,
    counts_of,
    why_not_again,
)
from tailrace.testing import SimClock

DOCS = pathlib.Path(__file__).parents[4] / "docs"
FIXTURES = pathlib.Path(__file__).parents[3] / "interop" / "fixtures"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]


def test_polars_duckdb_and_pyiceberg_read_the_rows_of_the_source(tmp_path, monkeypatch):
    with tarfile.open(FIXTURES / f"{CLEAN}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    path, target = tmp_path / CLEAN, tmp_path / "archive"
    archive(path, target)
    done = add(path, target)
    assert done.segments == 4
    table = rows_of(target)
    found = {key_of(row): row for row in table.to_pylist()}
    assert len(found) == len(table) == done.message_rows > 2000
    assert {row.pop("broker") for row in found.values()} == {"broker-a"}
    assert {row.pop("body_error") for row in found.values()} == {None}
    assert found == business(source_rows(path, target), archived_until(target))
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
    by_polars = pl.scan_iceberg(metadata_of(target), reader_override="native").collect()
    assert {(one["topic"], one["queue_id"], one["queue_offset"]): (one["body"], one["store_timestamp"])
            for one in by_polars.to_dicts()} == {
        key: (row["body"], row["store_timestamp"]) for key, row in found.items()}
    for name in paths_of(target):
        file = pq.ParquetFile(name)
        for group in range(file.num_row_groups):
            keys = [key_of(row) for row in file.read_row_group(
                group, columns=["topic", "queue_id", "queue_offset"]).to_pylist()]
            assert keys == sorted(keys)
    by_duckdb = duckdb.sql(
        f"SELECT topic, queue_id, queue_offset, body, store_timestamp FROM read_parquet({paths_of(target)})").fetchall()
    assert {one[:3]: (one[3], one[4]) for one in by_duckdb} == {
        key: (row["body"], row["store_timestamp"]) for key, row in found.items()}
    assert done.raw_rows == len(rows_of(target, "raw"))
    raw = rows_of(target, "raw").sort_by("commitLogOffset").to_pylist()
    plain = sorted((
        row for one in manifests_of(target) for file in one.files
        for row in pq.ParquetFile(target / file.path).read().to_pylist()), key=lambda row: row["commitLogOffset"])
    assert raw == plain


def test_a_second_step_adds_what_is_new_and_nothing_twice(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    first = add(path, target)
    assert (first.segments, first.commits) == (len(manifests_of(target)), 2)
    again = add(path, target)
    assert (again.segments, again.commits) == (0, 0)
    pins = ArchivePins(SimClock(), FILES, PosixArchive(str(target)), tuple)
    assert list(pins()) == []
    assert pins.table_commits == CommitCounts(2, 0, 0), "for the metrics of the broker"
    fill(path, 160, 320)
    archive(path, target)
    second = add(path, target)
    assert second.segments == len(manifests_of(target)) - first.segments > 0
    assert_whole(path, target)


@pytest.mark.parametrize("every", [27, pytest.param(2, marks=pytest.mark.long)])
def test_a_kill_at_any_step_leaves_whole_segments_and_the_next_run_adds_the_rest_once(
        tmp_path, killed, monkeypatch, every):
    from tailrace.spark.lake.table_io import TableIO

    path, archived = tmp_path / "s", tmp_path / "archived"
    fill(path, until=200)
    archive(path, archived)
    steps, partial = 0, set()
    for at in range(0, 400, every):
        target = tmp_path / "a"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(archived, target)
        files = killed.KilledFileSystem(at)
        monkeypatch.setattr(TableIO, "file_system", files)
        monkeypatch.setattr(job_module, "_GROUP", 1)
        try:
            add(path, target, at_once=1, runner=local_runner(files))
        except killed.Killed:
            steps += 1
        monkeypatch.undo()
        if (target / "tables" / "catalog.db").exists():
            with contextlib.suppress(StoreError):
                partial.add(len(rows_of(target)))
        add(path, target)
        assert_whole(path, target)
        there, named = data_files(target)
        assert named <= there
        if files.left >= 0:
            break
    assert files.left >= 0, "a run was not killed at last"
    assert steps * every > 50
    assert every > 2 or len(partial) > 2, "some kills came between two commits"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_catalogues_own_commit(tmp_path, killed, monkeypatch, when):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    original = SqlCatalog.commit_table

    def cut(self, *arguments):
        if when == "after":
            original(self, *arguments)
        raise killed.Killed

    with lake(target):  # the tables are created
        pass
    monkeypatch.setattr(SqlCatalog, "commit_table", cut)
    with pytest.raises(killed.Killed):
        add(path, target)
    monkeypatch.undo()
    add(path, target)
    assert_whole(path, target)
    there, named = data_files(target)
    assert there == named, "files of the attempt that was not committed are removed"


def test_the_commit_of_another_program_is_kept_and_ours_is_tried_again(tmp_path, monkeypatch):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    original, seen = SqlCatalog.commit_table, []

    def slow(self, table, requirements, updates):
        if not seen:
            seen.append(table.name())
            with lake(target) as other:
                commit_module.commit(other.raw, [], None, Mark(-1, 0, "", 0))
                other.raw.table.refresh().transaction().set_properties(
                    {other.raw.mark_property: ""}).remove_properties(other.raw.mark_property).commit_transaction()
        return original(self, table, requirements, updates)

    with lake(target):
        pass
    monkeypatch.setattr(SqlCatalog, "commit_table", slow)
    add(path, target)
    assert seen
    assert_whole(path, target)
    with lake(target) as tables:
        assert len(tables.raw.table.snapshots()) == 2


def test_a_commit_whose_answer_is_lost_is_not_made_twice(tmp_path, monkeypatch):
    """A catalogue may answer the second copy of a request that the commit is refused. The metadata must stay."""
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    original = SqlCatalog.commit_table

    def lost(self, *arguments):
        original(self, *arguments)
        raise CommitFailedException("the answer was lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    add(path, target)
    monkeypatch.undo()
    assert_whole(path, target)
    with lake(target) as tables:
        assert len(tables.raw.table.snapshots()) == len(tables.messages.table.snapshots()) == 1


def test_of_two_jobs_with_the_same_broker_one_is_refused(tmp_path, monkeypatch):
    path, target, other = tmp_path / "s", tmp_path / "a", tmp_path / "b"
    fill(path)
    archive(path, target)
    archive(path, other)
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", f"sqlite:///{tmp_path}/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__WAREHOUSE", f"file://{tmp_path}/w")
    original, seen = commit_module._commit, []

    def late(*arguments):
        if not seen:
            seen.append(1)
            add(path, other, catalogue="shared")
        original(*arguments)

    monkeypatch.setattr(commit_module, "_commit", late)
    with pytest.raises(StoreError, match="another job has added segments of the broker broker-a"):
        add(path, target, catalogue="shared")
    monkeypatch.setattr(commit_module, "_commit", original)
    assert_whole(path, target, catalogue="shared")


def test_the_archive_of_another_store_needs_another_broker_name(tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__URI", f"sqlite:///{tmp_path}/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHARED__WAREHOUSE", f"file://{tmp_path}/w")
    for name in "pq":
        fill(tmp_path / name)
        archive(tmp_path / name, tmp_path / f"{name}a")
    add(tmp_path / "p", tmp_path / "pa", catalogue="shared")
    with pytest.raises(StoreError, match=r"another segment there: it is the archive of another store, whose b"):
        add(tmp_path / "q", tmp_path / "qa", catalogue="shared")
    with pytest.raises(StoreError, match=r"tailrace.raw_broker_a has rows of the broker broker-a, not of Broker_A"):
        add(tmp_path / "q", tmp_path / "qa", catalogue="shared", broker="Broker_A")
    add(tmp_path / "q", tmp_path / "qa", catalogue="shared", broker="broker-b")
    rows = rows_of(tmp_path / "pa", catalogue="shared")
    count = len(rows)
    assert collections.Counter(rows["broker"].to_pylist()) == {"broker-a": count / 2, "broker-b": count / 2}


def test_a_segment_that_is_not_archived_yet_holds_back_later_ones(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=320)
    archive(path, target)
    second = manifests_of(target)[1]
    (target / manifest_name(second.segment)).unlink()
    done = add(path, target)
    assert (done.segments, done.waits) == (1, f"segment {second.segment} is in the log and not in the archive")
    archive(path, target)
    assert add(path, target).waits == ""
    assert_whole(path, target)


def test_a_segment_that_is_archived_again_is_exchanged_in_raw(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=320)
    archive(path, target)
    add(path, target)
    second = manifests_of(target)[1]
    (target / second.files[0].path).unlink()
    with ArchiveJob(str(path), str(target), archive_runner(FILES),
                    options=ArchiveOptions(piece_bytes=1 << 16, tables=("tailrace", "tailrace")), clock=Later()) as job:
        assert [one.segment for one in job.step()] == [second.segment]
    done = add(path, target)
    assert (done.segments, done.commits) == (0, 1)
    assert add(path, target).commits == 0
    assert_whole(path, target)


@pytest.mark.parametrize("verify", [False, True])
def test_a_segment_that_a_table_names_is_not_archived_again_without_the_table(tmp_path, verify):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=160)
    archive(path, target)
    add(path, target)
    fill(path, 160, 320)
    second = manifests_of(target)[1]
    wrong = target / second.files[0].path
    if verify:
        data = bytearray(wrong.read_bytes())
        data[len(data) // 2] ^= 1
        wrong.write_bytes(data)
    else:
        wrong.unlink()
    there = read_manifest(PosixArchive(str(target)), second.segment)
    with ArchiveJob(str(path), str(target), archive_runner(FILES),
                    options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        with pytest.raises(StoreError, match=(
                rf"segment {second.segment}: .*tables name its files: it is archived again only with --table tail")):
            (job.verify if verify else job.step)()
        if verify:
            job.step()
    assert read_manifest(PosixArchive(str(target)), second.segment) == there
    assert len(manifests_of(target)) > 3, "other segments are archived"
    with ArchiveJob(str(path), str(target), archive_runner(FILES), options=ArchiveOptions(
            piece_bytes=1 << 16, tables=("tailrace", "tailrace")), clock=Later()) as job:
        (job.verify if verify else job.step)()
    add(path, target)
    assert_whole(path, target)


def test_the_archive_knows_its_tables_and_how_their_commits_went(tmp_path):
    there = PosixArchive(str(tmp_path / "a"))
    attach(there, "my.cat/alogue", "lake")
    add_counts(there, "my.cat/alogue", "lake", CommitCounts(2, 1, 0))
    add_counts(there, "tailrace", "lake", CommitCounts(3, 0, 1))
    attach(there, "tailrace", "lake")
    found = attached(there)
    assert [one.options for one in found] == ["--table lake --catalog my.cat/alogue", "--table lake"]
    assert counts_of(found) == CommitCounts(5, 1, 1)
    assert why_not_again(there, ("tailrace", "lake")) == ""
    assert why_not_again(there, ("", "")).endswith("--table lake --catalog my.cat/alogue or --table lake")
    (tmp_path / "a/_tables/tailrace.lake.json").write_text("{")
    with pytest.raises(CorruptionError, match=r"the file was changed"):
        attached(there)


class Later:
    def now_ms(self):
        return 1 << 42

    def monotonic_ns(self):
        return 0


def test_files_without_field_ids_are_copied_with_those_of_the_table(tmp_path, monkeypatch):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    monkeypatch.setattr(task_of_archive, "WRITTEN_SCHEMA", ARCHIVE_SCHEMA)  # as earlier releases
    archive(path, target)
    monkeypatch.undo()
    add(path, target)
    assert_whole(path, target)
    with lake(target) as tables:
        files = [one.file.file_path for one in tables.raw.table.scan().plan_files()]
    assert all("/tables/" in one for one in files)


def test_a_file_with_a_wrong_field_id_is_refused(tmp_path, monkeypatch):
    """PyIceberg and the readers accept such a file: its column has no values."""
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    wrong = MESSAGES_SCHEMA.set(1, MESSAGES_SCHEMA.field(1).with_metadata({b"PARQUET:field_id": b"77"}))
    monkeypatch.setattr(task_module, "marked", lambda schema, ids: wrong)
    with pytest.raises(StoreError, match=(
            r"segment 0 is not in the tables: CorruptionError: .*its column topic has the field id 77, which is 2 in "
            r"the table tailrace.messages")):
        add(path, target)
    monkeypatch.undo()
    add(path, target)
    assert_whole(path, target)


def test_a_table_that_others_changed(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    with lake(target) as tables, tables.messages.table.update_schema() as change:
        change.add_column("mine", StringType())
        change.move_first("mine")
    add(path, target)
    assert_whole(path, target)
    with lake(target) as tables, tables.messages.table.update_schema() as change:
        change.rename_column("tags", "labels")
    with pytest.raises(StoreError, match=r"the table tailrace.messages has no column tags: it was changed"):
        add(path, target)
    with lake(target) as tables, tables.messages.table.update_schema() as change:
        change.rename_column("labels", "tags")
    with lake(target) as tables, tables.messages.table.update_spec() as spec:
        spec.add_identity("topic")
    with pytest.raises(StoreError, match=r"rows can be added only with days of store_timestamp"):
        add(path, target)


def test_a_catalogue_that_is_not_known_or_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"PyIceberg's configuration has no catalogue other: set it in"):
        lake(tmp_path / "a", catalogue="other")
    with pytest.raises(ConfigError, match="the namespace 'a b' has other characters"):
        Lake(str(tmp_path / "a"), "a b", "b", FILES)
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__URI", f"sqlite:///{tmp_path}/no/such/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__WAREHOUSE", f"file://{tmp_path}/w")
    with pytest.raises(StoreError, match=r"the catalogue other: OperationalError: .*unable to open database file"):
        lake(tmp_path / "a", catalogue="other")


def test_topics_of_the_system_are_rows_only_if_asked(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    for number, topic in enumerate(("orders", "OFFSET_MOVED_EVENT", "rmq_sys_x", "%RETRY%g", "%DLQ%g", "broker-a")):
        fill(path, number * 40, number * 40 + 40, topic=topic)
    fill(path, 240, 360)
    archive(path, target)
    add(path, target)
    assert set(rows_of(target)["topic"].to_pylist()) == {"orders", "%DLQ%g"}
    with pytest.raises(ConfigError, match=(
            r"the table tailrace.messages was created without --system-topics, and keeps that choice")):
        lake(target, every_topic=True)
    shutil.rmtree(target / "tables")
    add(path, target, every_topic=True)
    assert len(set(rows_of(target, every_topic=True)["topic"].to_pylist())) == 6


def test_bodies_are_decompressed_and_one_that_cannot_be_keeps_its_row(tmp_path, monkeypatch):
    path, target = tmp_path / "s", tmp_path / "a"
    plain = b"text " * 100
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT)
    with MessageStore.open(str(path), config=config) as store:
        for number in range(400):
            body = {0: zlib.compress(plain), 1: b"not zlib" * 40}.get(number % 3, plain)
            inner = MessageExtBrokerInner("orders", 0, body, b"", 0, 1 if number % 3 < 2 else 0, 1)
            assert store.put_inner(inner).ok
        store.wait_dispatched(60_000)
    archive(path, target)
    monkeypatch.setattr(message_rows, "_SLICE", 2000)
    add(path, target)
    rows = sorted(rows_of(target).to_pylist(), key=key_of)
    assert len(rows) > 200
    for number, row in enumerate(rows):
        bad = number % 3 == 1
        assert row["queue_offset"] == number
        assert row["body"] == (b"not zlib" * 40 if bad else plain)
        assert (row["body_error"] or "").startswith("body does not decompress" if bad else "")
        assert bool(row["body_error"]) is bad


def test_each_message_of_an_inner_batch_is_a_row(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, mapper_file_size_batch_consume_queue=46 * 400)
    with MessageStore.open(str(path), config=config) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        for number in range(200):
            items = [(0, b"%d-%d " % (number, n) * 40, b"") for n in range(3)]
            names = encode_properties({"INNER_NUM": "3"})
            assert store.put_inner(MessageExtBrokerInner("B", 0, encode_batch(items), names, 0, 0xC0, 1)).ok
        store.wait_dispatched(60_000)
    archive(path, target)
    add(path, target)
    assert len(rows_of(target)) % 3 == 0
    assert_whole(path, target)


def test_partitions_are_days_and_times_that_no_reader_can_show_are_null(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    add(path, target)
    with lake(target) as tables:
        files = [one.file for one in tables.messages.table.scan().plan_files()]
        times = [row["store_timestamp"] for row in rows_of(target).to_pylist()]
        today = {(one.date() - dt.date(1970, 1, 1)).days for one in times}
        assert {one.partition[0] for one in files} == today
        for table, wrong in (
                (tables.messages, "store_timestamp < '2020-01-01T00:00:00+00:00'"), (tables.messages, "topic = 'zzz'"),
                (tables.raw, "topic = 'zzz'")):
            assert not [*table.table.scan(row_filter=wrong).plan_files()]
    times = pa.array([5, None, -1, 1 << 62], pa.timestamp("us", tz="UTC"))
    shown = message_rows._time(pa.chunked_array([times])).cast(pa.int64()).to_pylist()
    assert shown == [5, None, None, None]
    table = pa.table({"store_timestamp": pa.array([5, None, 86_400_000_001], times.type)})
    assert {day: len(rows) for day, rows in message_rows.days_of(table).items()} == {None: 1, 0: 1, 1: 1}


def test_only_the_newest_snapshots_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_module, "_SNAPSHOTS_MAX", 5)
    (tmp_path / "a").mkdir()
    with lake(tmp_path / "a") as tables:
        before = None
        for number in range(8):
            mark = Mark(number, 0, "", 0)
            commit_module.commit(tables.raw, [], before, mark)
            before = mark
        assert commit_module.expire_snapshots(tables.raw) == 3
        assert len(tables.raw.table.refresh().snapshots()) == 5
        assert tables.raw.refresh() == before


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    with Lake(str(target), "lake", "broker-a", FILES) as tables:
        done = LakeJob(str(path), str(target), tables, local_runner(FILES), broker=BrokerConfig()).step()
    page = blocks((DOCS / "how-to/data/lakehouse.md").read_text())
    [code] = [one.text for one in page if "import polars" in one.text]
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    *lines, pandas_line, polars_line, duckdb_line, sql = code.replace("ARCHIVE", str(target)).strip().splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert len(eval(pandas_line, names)) == len(eval(polars_line, names)) == done.message_rows
    exec(duckdb_line, names)
    assert eval(sql, names).fetchall() == [("orders", done.message_rows)]
    names["catalog"].close()
    names["duckdb"].close()


@pytest.mark.parametrize("kills", [pytest.param(200, marks=pytest.mark.long)])
def test_processes_that_are_killed_at_random_add_every_record_to_exactly_one_snapshot(tmp_path, kills):
    """The seed is printed; kill -9 comes at a random moment of a process's work."""
    seed = int(os.environ.get("SEED", "1"))
    print(f"SEED={seed}")
    moments = random.Random(seed)
    path, archived, target = tmp_path / "s", tmp_path / "archived", tmp_path / "a"
    fill(path, until=60)
    archive(path, target, lag_ms=1)
    add(path, target)  # a range, which the first segment replaces
    fill(path, 60, 400)
    archive(path, target, lag_ms=1)
    assert len(manifests_of(target)) > 3
    shutil.copytree(target, archived)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lake_child"])
    killed, rounds, longest = 0, 0, 1.0
    while killed < kills:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(archived, target)
        rounds += 1
        while True:
            child = context.Process(target=lake_child.add, args=(str(path), str(target)))
            began = time.monotonic()
            child.start()
            child.join(moments.uniform(0, longest))
            if child.is_alive():
                child.kill()
                killed += 1
                child.join()
                longest *= 1.2  # a busy machine must let one come to its end
                continue
            assert child.exitcode == 0
            longest = max(0.3, (longest + time.monotonic() - began) / 2)
            break
        assert_fresh(path, target, 400)
        raw = rows_of(target, "raw")["commitLogOffset"].to_pylist()
        assert len(raw) == len(set(raw)) == sum(one.records + one.raw_rows for one in manifests_of(target))
        with lake(target) as tables:
            for table in (tables.raw.table, tables.messages.table):
                files = [one["file_path"] for one in table.inspect.data_files().to_pylist()]
                assert len(files) == len(set(files))
        print(f"{rounds} rounds, {killed} kills", flush=True)
    assert rounds > 1
