"""Bodies that a table gets as they are in the archive, still compressed: every reader sees the rows of the source."""

import io
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from lake_tables import (
    FILES,
    SEGMENT,
    add,
    archive,
    assert_whole,
    fill,
    paths_of,
    rows_of,
    same_rows,
)

from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import CorruptionError
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.spark.archive import task as task_of_archive
from tailrace.spark.archive.parquet_file import SeekableFile
from tailrace.spark.lake import data_file, task
from tailrace.spark.lake.catalogue import Namespace
from tailrace.spark.lake.compact_thrift import read_struct, write_struct
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.copied_pages import SplicedSink, pages_of
from tailrace.spark.lake.forget import forget
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("key", pa.string()), pa.field("body", pa.binary())])
OPTIONS = {
    "compression": "zstd", "compression_level": 1, "use_dictionary": ["key"], "write_statistics": ["n", "key"],
    "write_page_index": True, "bloom_filter_options": {"key": {"ndv": 100, "fpp": 0.01}},
}


class Bytes(SeekableFile):
    def __init__(self, data):
        super().__init__(len(data))
        self._data = data

    def read(self, n=-1):
        found = self._data[self._at :][: None if n < 0 else n]
        self._at += len(found)
        return found


def rows(low, high):
    chance = random.Random(low)
    return pa.table({
        "n": range(low, high), "key": [f"k{n // 3}" for n in range(low, high)],
        "body": [None if n % 11 == 0 else chance.randbytes(n % 40) * 20 for n in range(low, high)]}, schema=SCHEMA)


def parquet(*tables, **options):
    out = io.BytesIO()
    with pq.ParquetWriter(out, tables[0].schema, **{**OPTIONS, **options}) as writer:
        for one in tables:
            writer.write_table(one, row_group_size=len(one))
    return out.getvalue()


def all_pages(data):
    with pq.ParquetFile(pa.BufferReader(data)) as found:
        return [pages_of(found, Bytes(data), number, "body") for number in range(found.num_row_groups)]


def spliced(parts):
    """A file whose row groups have a table, and either its bodies or the pages that hold them."""
    out = io.BytesIO()
    sink = SplicedSink(out, "body")
    with pq.ParquetWriter(pa.PythonFile(sink, "w"), SCHEMA, **OPTIONS) as writer:
        for number, (table, pages) in enumerate(parts):
            shown = table if not pages else table.set_column(2, "body", pa.nulls(len(table), pa.binary()))
            writer.write_table(shown, row_group_size=len(table))
            if pages:
                sink.copy(number, pages)
        sink.begin_end()
    sink.finish()
    return out.getvalue()


def test_every_reader_sees_the_rows_and_finds_single_ones(tmp_path):
    parts = [rows(0, 900), rows(900, 1000), rows(1000, 4000)]
    data = parquet(*parts, data_page_size=4096, write_batch_size=50)
    pages = all_pages(data)
    assert max(len(one.sizes) for one in pages) > 20
    made = spliced([
        (pa.concat_tables(parts[:2]), pages[:2]), (rows(4000, 4100), []), (parts[2], pages[2:])])
    path = str(tmp_path / "made.parquet")
    (tmp_path / "made.parquet").write_bytes(made)
    expected = pa.concat_tables([*parts[:2], rows(4000, 4100), parts[2]])
    assert pq.ParquetFile(path).read().equals(expected)
    assert pl.read_parquet(path).equals(pl.from_arrow(expected))
    assert duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall() == [
        (*row.values(),) for row in expected.to_pylist()]
    for n in (3, 899, 950, 1000, 2222, 4050):  # also by the index of pages and by Bloom filters
        body = next(row["body"] for row in expected.to_pylist() if row["n"] == n)
        assert ds.dataset(path).to_table(filter=pc.field("n") == n)["body"].to_pylist() == [body]
        assert pl.scan_parquet(path).filter(pl.col("n") == n).collect()["body"].to_list() == [body]
        assert duckdb.sql(f"SELECT body FROM read_parquet('{path}') WHERE n = {n}").fetchall() == [(body,)]
        assert n in [one for one, in duckdb.sql(
            f"SELECT n FROM read_parquet('{path}') WHERE key = 'k{n // 3}'").fetchall()]


def test_the_footer_counts_what_is_there():
    data = parquet(rows(0, 3000))
    made = spliced([(rows(0, 3000), all_pages(data))])
    before, after = (pq.ParquetFile(pa.BufferReader(one)).metadata.row_group(0) for one in (data, made))
    for number in range(before.num_columns):
        one, other = before.column(number), after.column(number)
        assert (one.num_values, one.total_uncompressed_size, one.total_compressed_size, one.has_offset_index) == (
            other.num_values, other.total_uncompressed_size, other.total_compressed_size, other.has_offset_index)
    assert before.total_byte_size == after.total_byte_size
    assert all_pages(made)[0] == all_pages(data)[0]  # and can be copied again


def test_a_file_without_copied_pages_is_that_of_the_writer():
    out = io.BytesIO()
    sink = SplicedSink(out, "body")
    with pq.ParquetWriter(pa.PythonFile(sink, "w"), SCHEMA, **OPTIONS) as writer:
        writer.write_table(rows(0, 50))
        sink.begin_end()
    sink.finish()
    assert out.getvalue() == parquet(rows(0, 50))


@pytest.mark.parametrize("options", [
    {"compression": "snappy", "compression_level": None}, {"use_dictionary": ["body"]},
    {"column_encoding": {"body": "DELTA_LENGTH_BYTE_ARRAY"}, "use_dictionary": False}])
def test_pages_of_another_kind_are_not_copied(options):
    assert all_pages(parquet(rows(0, 50), **options)) == [None]


def test_pages_of_a_column_that_is_never_null_are_not_copied():
    schema = pa.schema([pa.field("body", pa.binary(), nullable=False)])
    data = parquet(pa.table({"body": [b"1"]}, schema=schema), bloom_filter_options=None, use_dictionary=False)
    assert all_pages(data) == [None]


def test_pages_that_are_not_those_of_the_footer_are_an_error():
    data = bytearray(parquet(rows(0, 500)))
    with pq.ParquetFile(pa.BufferReader(bytes(data))) as found:
        at = found.metadata.row_group(0).column(2).data_page_offset
        for damage in (b"\x00" * 8, b"\x15\x00\x15\x00\x15\x03", b"\xff" * 30, b"\x19" * 200):
            other = bytearray(data)
            other[at : at + len(damage)] = damage
            with pytest.raises(CorruptionError):
                pages_of(found, Bytes(bytes(other)), 0, "body")


def test_structs_of_a_footer_come_back_as_they_were():
    data = parquet(rows(0, 300), rows(300, 700))
    size = int.from_bytes(data[-8:-4], "little")
    footer, end = read_struct(data, len(data) - 8 - size)
    assert end == len(data) - 8
    assert write_struct(footer) == data[-8 - size : -8]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_an_error(data):
    try:
        found, end = read_struct(data)
    except CorruptionError:
        return
    assert end <= len(data)
    assert read_struct(write_struct(found))[0] == found


# -- in a table


@pytest.fixture
def copied(monkeypatch):
    """The row groups that got copied bodies, of whatever size; the archive has several row groups a file."""
    found = []
    write = data_file.DataFile.write_copied

    def counted(self, table, bodies):
        found.append((len(table), len(bodies)))
        write(self, table, bodies)

    monkeypatch.setattr(task_of_archive, "ROW_GROUP_BYTES", 8 << 10)
    monkeypatch.setattr(task, "_GROUP_BYTES", 16 << 10)
    monkeypatch.setattr(data_file.DataFile, "write_copied", counted)
    return found


def test_a_table_has_the_bodies_of_the_archive(tmp_path, copied, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 200)
    archive(path, target)
    add(path, target)
    assert len(copied) > 1
    assert max(bodies for _, bodies in copied) > 1
    assert sum(count for count, _ in copied) > len(rows_of(target)) // 2
    assert_whole(path, target)
    assert len(same_rows(target)) == len(rows_of(target))
    for one in paths_of(target):
        with pq.ParquetFile(one) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number, columns=["topic", "queue_id", "queue_offset"]).to_pylist()
                order = [(*row.values(),) for row in group]
                assert order == sorted(order)


def test_rows_that_a_table_does_not_have_as_they_are_keep_bodies_from_being_copied(tmp_path, copied):
    path, target = tmp_path / "s", tmp_path / "a"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number in range(200):
            store.put(Message(topic="%RETRY%g" if number % 3 else "orders", body=b"%d " % number * 300))
        store.wait_dispatched(60_000)
    archive(path, target)
    add(path, target)
    assert_whole(path, target)
    counts = [count for count, _ in copied]
    copied.clear()
    whole = tmp_path / "whole"
    archive(path, whole)
    add(path, whole, every_topic=True)
    assert sum(count for count, _ in copied) > 2 * sum(counts)
    assert len(rows_of(whole, every_topic=True)) > 2 * len(rows_of(target))


def test_compressed_bodies_are_decompressed(tmp_path, copied):
    path, target = tmp_path / "s", tmp_path / "a"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number in range(220):
            body = random.Random(number).randbytes(900)
            body = zlib.compress(body) if number > 150 else body
            inner = MessageExtBrokerInner("orders", 0, body, b"", 0, 1 if number > 150 else 0, 1)
            assert store.put_inner(inner).ok
        store.wait_dispatched(60_000)
    archive(path, target)
    add(path, target)
    assert copied
    assert_whole(path, target)


def test_a_forgotten_row_is_not_copied(tmp_path, copied):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 160)
    archive(path, target)
    add(path, target)
    fill(path, 160, 320)
    with Namespace(str(target), "tailrace", FILES) as tables:
        table = next(one for one in tables.tables if one.kind == "messages")
        forget(table, Condition("orders", "k7"), local_runner(run_task), clock=SystemClock(),
               entropy=SeededEntropy(1), file_system=FILES)
    archive(path, target)
    add(path, target)
    keys = [key for row in rows_of(target)["keys"].to_pylist() for key in row]
    assert "k7" not in keys
    assert "k9" in keys
    assert "k200" in keys
