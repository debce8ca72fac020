"""Polars, DuckDB and pandas read an archive as they read any directory of Parquet files; older archives are moved."""

import shutil
import tarfile
from pathlib import Path

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import tailrace
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.layout import ARCHIVE_SCHEMA
from tailrace.spark.data_source import TailraceDataSource
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

SEGMENT = 32 << 10
COUNT = 120
VERSION_1 = Path(__file__).with_name("archive-version-1.tar.xz")
FILES = OsFileSystem()


def opened(path):
    return MessageStore.open(
        str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT, file_reserved_time=0))


def archive(path, target, files=FILES):
    with ArchiveJob(str(path), str(target), local_runner(files), file_system=files,
                    options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        return job.step()


def fill(path, first=0, until=COUNT):
    with opened(path) as store:
        for number in range(first, until):
            store.put(Message(topic="ab"[number % 2], body=b"%d " % number * 200, keys=[f"k{number}"]),
                      queue_id=number % 3)
        store.wait_dispatched(60_000)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("readers")
    fill(path / "s")
    assert len(archive(path / "s", path / "a")) > 1
    return path


@pytest.fixture
def both(filled, tmp_path):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s", tmp_path / "a"


def messages(target):
    archive = PosixArchive(str(target))
    return sum(read_manifest(archive, one).messages for one in list_manifests(archive))


def test_other_programs_read_the_directory(both):
    _, target = both
    wanted = messages(target)
    assert wanted > 80
    rows = f"{target}/rows"
    lazy = pl.scan_parquet(rows).filter(pl.col("kind") == "message")
    assert lazy.select(pl.len()).collect().item() == wanted
    by_topic = lazy.group_by("topic").len().collect()
    assert dict(by_topic.iter_rows()) == {"a": wanted / 2, "b": wanted / 2}
    assert {"dt", "segment"} <= set(lazy.collect_schema())
    found = duckdb.sql(
        f"SELECT topic, count(*) FROM '{rows}/**/*.parquet' WHERE kind = 'message' GROUP BY topic ORDER BY topic")
    assert found.fetchall() == [("a", wanted // 2), ("b", wanted // 2)]
    frame = pd.read_parquet(rows, filters=[("kind", "==", "message")])
    assert len(frame) == wanted
    assert [str(frame.dtypes[name]) for name in ("queueId", "queueOffset")] == ["int32", "int64"]
    assert {str(kind) for kind in pd.read_parquet(rows, columns=["queueId", "queueOffset"]).dtypes} == {"float64"}


def ids_of(schema):
    """The Parquet field id of each leaf of an Arrow schema, by its path."""
    def walk(field, path):
        kind = field.type
        below = [kind.value_field] if pa.types.is_list(kind) else (
            [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [])
        yield ".".join([*path, field.name]), int(field.metadata[b"PARQUET:field_id"])
        for one in below:
            yield from walk(one, [*path, field.name])
    return dict(found for field in schema for found in walk(field, []))


def test_files_have_field_ids_a_page_index_and_encodings_for_columns_that_grow(both):
    _, target = both
    file = pq.ParquetFile(next((target / "rows").rglob("*.parquet")))
    ids = ids_of(file.schema_arrow)
    assert [ids[name] for name in ARCHIVE_SCHEMA.names] == list(range(1, len(ARCHIVE_SCHEMA) + 1))
    assert {name: number for name, number in ids.items() if "." in name} == {
        "keys.element": 28, "properties.key": 29, "properties.value": 30}
    group = file.metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert columns["queueOffset"].has_offset_index
    assert columns["queueOffset"].has_column_index
    for name in ("queueOffset", "commitLogOffset", "storeSize", "bornTimestamp", "storeTimestamp", "deliverAt"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings, name
    for name in ("msgId", "uniqKey"):
        assert "DELTA_BYTE_ARRAY" in columns[name].encodings, name


def test_a_dataset_of_the_archive_has_the_same_messages(both):
    _, target = both
    assert tailrace.scan(target).count_rows() == messages(target)


def test_a_job_that_runs_leaves_only_whole_parquet_files_below_rows(both):
    _, target = both
    assert {path.name for path in target.iterdir()} == {"rows", "_manifests", "_staging", "_lock"}
    assert {path.suffix for path in (target / "rows").rglob("*") if path.is_file()} == {".parquet"}


def read(path, target):
    reader = TailraceDataSource({"path": str(path), "fallback": "archive", "archive": str(target)}).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()),
        key=lambda row: row["commitLogOffset"])


class Killed(Exception):
    """The process ends here."""


class KilledFiles:
    """The files of this machine, until a number of renames were done."""

    def __init__(self, renames):
        self.left = renames

    def __getattr__(self, name):
        return getattr(FILES, name)

    def rename(self, old, new):
        if self.left == 0:
            raise Killed
        self.left -= 1
        FILES.rename(old, new)


def test_an_older_archive_is_moved_by_the_next_job_and_read_at_each_step(tmp_path):
    with tarfile.open(VERSION_1) as packed:
        packed.extractall(tmp_path, filter="data")
    path, target = tmp_path / "store", tmp_path / "archive"
    with MessageStore.open(str(path), config=StoreConfig(
            mapped_file_size_commit_log=64 << 10, file_reserved_time=0, commit_log_roll_time=0)) as store:
        store.retention.delete_now()
    sound = read(path, target)
    files = len([*target.glob("dt=*/*/*.parquet")])
    assert files > 1
    for renames in range(files):
        shutil.copytree(target, tmp_path / "copy")
        with pytest.raises(Killed):
            archive(path, tmp_path / "copy", KilledFiles(renames))
        assert len([*(tmp_path / "copy").glob("rows/dt=*/*/*.parquet")]) == renames
        assert read(path, tmp_path / "copy") == sound
        archive(path, tmp_path / "copy")
        assert not [*(tmp_path / "copy").glob("dt=*")]
        assert read(path, tmp_path / "copy") == sound
        shutil.rmtree(tmp_path / "copy")
    archive(path, target)
    assert len(pl.scan_parquet(target / "rows").filter(pl.col("kind") == "message").collect()) == messages(target)
