"""Stores, archives and tables for the tests of ``spark.lake``, and what must hold of their rows."""

import contextlib
import re
import shutil

from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions
from tailrace.spark.archive.job import local_runner as archive_runner
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.lake.catalogue import Lake, Namespace
from tailrace.spark.lake.job import LakeJob, local_runner
from tailrace.spark.lake.restore import raw_table, restore_table
from tailrace.spark.lake.schemas import SOURCE_NAMES
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

FILES = OsFileSystem()
SEGMENT = 64 << 10


def fill(path, first=0, until=160, topic="orders"):
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT)
    with MessageStore.open(str(path), config=config) as store:
        for number in range(first, until):
            store.put(Message(topic=topic, body=b"%d " % number * 300, tags="T", keys=[f"k{number}", "x"]),
                      queue_id=number % 3)
        store.wait_dispatched(60_000)


def archive(path, target, file_system=FILES, **options):
    with ArchiveJob(str(path), str(target), archive_runner(file_system), file_system=file_system,
                    options=ArchiveOptions(piece_bytes=1 << 16, **options)) as job:
        return job.step()


def lake(target, *, broker="broker-a", **options):
    return Lake(str(target), "tailrace", broker, FILES, **options)


def add(path, target, *, broker="broker-a", at_once=2, runner=None, clock=None, **options):
    with lake(target, broker=broker, **options) as tables:
        return LakeJob(
            str(path), str(target), tables, runner or local_runner(FILES), at_once=at_once, clock=clock,
            broker=BrokerConfig(broker_name=broker)).step()


def rows_of(target, name="messages", **options):
    with lake(target, **options) as tables:
        table = getattr(tables, name).table
        return table.scan().to_arrow()


def metadata_of(target, name="messages"):
    with lake(target) as tables:
        return getattr(tables, name).table.metadata_location


def source_rows(path, target, **options):
    """The rows of the source, with the names of the table, by topic, queue and offset."""
    reader = TailraceDataSource(
        {"path": str(path), "fallback": "archive", "archive": str(target), "body": "decoded", **options}).reader(None)
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return {
        (row["topic"], row["queueId"], row["queueOffset"]): {name: row[of] for name, of in SOURCE_NAMES.items()}
        for row in found}


def key_of(row):
    return row["topic"], row["queue_id"], row["queue_offset"]


def manifests_of(target):
    return [read_manifest(PosixArchive(str(target)), one) for one in list_manifests(PosixArchive(str(target)))]


def archived_until(target):
    return manifests_of(target)[-1].until


def business(rows, until):
    """The rows in the archive whose topic is not of the system."""
    return {
        key: row for key, row in rows.items()
        if row["commit_log_offset"] < until
        and not re.match(r"rmq_sys_|%RETRY%|SCHEDULE_TOPIC|TBW102|RMQ_SYS_", key[0])}


def paths_of(target, name="messages"):
    with lake(target) as tables:
        return [
            one.file.file_path.removeprefix("file://")
            for one in getattr(tables, name).table.scan().plan_files()]


def assert_fresh(path, target, count):
    """The table ``messages`` has all messages of the store once."""
    found = sorted(int(row["body"].split()[0]) for row in rows_of(target).to_pylist())
    assert found == list(range(count))


def assert_whole(path, target, **options):
    """Both tables have every row of the archive once."""
    rows = rows_of(target, **options)
    found = {key_of(row): row["body"] for row in rows.to_pylist()}
    assert len(found) == len(rows)
    assert found == {key: row["body"] for key, row in business(
        source_rows(path, target), archived_until(target)).items()}
    raw = rows_of(target, "raw", **options)["commitLogOffset"].to_pylist()
    assert len(raw) == len(set(raw)) == sum(one.records + one.raw_rows for one in manifests_of(target))


def same_rows(target):
    """The bodies of ``messages`` by topic, queue and offset, which DuckDB, Polars and PyIceberg see alike."""
    import duckdb
    import polars as pl

    bodies = {key_of(row): row["body"] for row in rows_of(target).to_pylist()}
    by_polars = pl.scan_iceberg(metadata_of(target), reader_override="native").collect().to_dicts()
    by_duckdb = duckdb.sql(f"SELECT topic, queue_id, queue_offset, body FROM read_parquet({paths_of(target)})")
    assert {key_of(row): row["body"] for row in by_polars} == bodies
    assert {one[:3]: one[3] for one in by_duckdb.fetchall()} == bodies
    return bodies


def data_files(target):
    """The data files on the disk, and those that the table ``messages`` names."""
    there = {str(one) for one in (target / "tables").rglob("*.parquet")}
    return there, set(paths_of(target))


@contextlib.contextmanager
def raw_of(target, broker="", **options):
    with Namespace(str(target), "tailrace", FILES, kind="raw", **options) as tables:
        yield raw_table(tables, broker)


def restored(target, place, first=0, until=1 << 62, **options):
    with raw_of(target, **options) as table:
        return list(restore_table(table, str(place), first, until))


def lose_the_archive(target):
    """Leave the data files and the catalogue."""
    for one in target.iterdir():
        if one.name not in {"rows", "tables"}:
            shutil.rmtree(one) if one.is_dir() else one.unlink()
