"""The Spark source beside the transport's ceiling. One JSON line; see docs/contributing/design/spark.md.

A store of one-KiB messages is scanned into the ``noop`` sink, all columns and two of them. The
ceiling is a source whose tasks map one batch and yield that same batch repeatedly until they
gave as many rows, in the same session, so that machine, JVM and settings are equal. Both run ``--runs``
times in turns; ``ratio`` is that of the third runs, ``ratio_of_best`` that of the fastest, and
``processor_ratio`` that of the processor time of JVM and workers, the median, which says most where
other work shares the machine. Files are in the page cache.

With ``--archive`` it is the archive of the sealed files of such a store, without and with
verification, beside two loops that pull: our consumer that writes Parquet, and the reference's
pull consumer that writes plain rows to a file, from the same broker of ours. A segment is one task:
an odd number of segments leaves one of two processors idle at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from peer import number_of, reference
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from results import note, report

from tailrace.client import PullConsumer
from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.pytest_plugin import TailraceBroker
from tailrace.spark.archive.job import ArchiveOptions, archive_store
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.session import local_session

COLUMNS = {"full": "", "body": "body,commitLogOffset"}
BATCH = 10_000
CONSUMED = "Topic0"
AT_ONCE = 256  # messages a pull


class RepeatReader(DataSourceReader):
    """Tasks that yield the batch of a file until they gave ``rows`` rows; the file is mapped."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        count = int(self.options["partitions"])
        return [InputPartition(int(self.options["rows"]) // count) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.options["path"]) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, left) if left < batch.num_rows else batch
            left -= batch.num_rows


class RepeatSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "repeat"

    def schema(self) -> StructType:
        from tailrace.spark.source.schema import column_names, spark_schema

        names = tuple(name for name in self.options["columns"].split(",") if name)
        return spark_schema(names or column_names("FAILFAST"))

    def reader(self, schema: StructType) -> RepeatReader:
        return RepeatReader(dict(self.options))


def fill(path: str, count: int, size: int) -> None:
    """Messages over 8 topics of 4 queues, each with keys, a tag and properties, as a client's."""
    body = random.Random(1).randbytes(size)
    with MessageStore.open(path) as store:
        for first in range(0, count, BATCH):
            items = [
                Message(
                    topic=f"Topic{first // BATCH % 8}", body=body,
                    properties={
                        "KEYS": f"key{number}", "TAGS": f"Tag{number % 3}", "WAIT": "true",
                        "UNIQ_KEY": f"7F0000010000000000000000{number:08X}",
                    })
                for number in range(first, min(first + BATCH, count))
            ]
            store.put_many(items, queue_id=first // BATCH // 8 % 4)
        store.wait_dispatched(120_000)


def keep_batch(path: str, columns: str, target: str) -> None:
    """The first batch of a store as an Arrow file."""
    reader = TailraceDataSource({"path": path, "columns": columns}).reader(None)
    batch = next(iter(reader.read(reader.partitions()[0])))
    with pa.OSFile(target, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def processor_seconds() -> float:
    """What this process and all below it, the JVM and the workers, used so far."""
    below: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            below.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0)
        waiting += below.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def take_turns(count: int, *runs: Callable[[], Any]) -> list[list[tuple[float, float]]]:
    """(seconds, processor seconds) of ``count`` runs of each, in turns."""
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(count):
        for run, times in zip(runs, found, strict=True):
            began, used = time.perf_counter(), processor_seconds()
            run()
            times.append((time.perf_counter() - began, processor_seconds() - used))
            note(f"{times[-1][0]:.1f} s, {times[-1][1]:.1f} s of processor time")
    return found


def measure(spark: SparkSession, path: str, count: int, scratch: str, turns: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    log_bytes = sum(
        file.stat().st_blocks * 512 for file in (Path(path) / "commitlog").iterdir())
    for name, columns in COLUMNS.items():
        scan = spark.read.format("tailrace").option("columns", columns).load(path)
        rows, partitions = scan.count(), scan.rdd.getNumPartitions()
        assert rows == count, f"{rows} rows of {count}"
        keep_batch(path, columns, f"{scratch}/{name}.arrow")
        again = (
            spark.read.format("repeat").option("path", f"{scratch}/{name}.arrow").option("columns", columns)
            .option("rows", count).option("partitions", partitions).load())
        ceilings, scans = take_turns(
            turns, *(lambda frame=frame: frame.write.format("noop").mode("overwrite").save()
              for frame in (again, scan)))
        third = min(2, turns - 1)
        ceiling, took = ceilings[third][0], scans[third][0]
        least = [statistics.median(used for _, used in runs) for runs in (ceilings, scans)]
        found[name] = {
            "ratio": round(ceiling / took, 3), "rows_per_s": round(rows / took),
            "ceiling_rows_per_s": round(rows / ceiling), "partitions": partitions,
            "ratio_of_best": round(min(ceilings)[0] / min(scans)[0], 3),
            "processor_ratio": round(least[0] / least[1], 3),
            "processor_s": round(least[1], 2), "ceiling_processor_s": round(least[0], 2),
            "gb_per_s": round(log_bytes / took / 1e9, 3),
        }
        note(f"{name}: {found[name]}")
    return found


def body_pool(kind: str) -> bytes:
    """8 MiB of which bodies are parts: JSON, random bytes, or hexadecimal digits (half as random)."""
    chance = random.Random(1)
    if kind == "random":
        return chance.randbytes(8 << 20)
    if kind == "hex":
        return chance.randbytes(4 << 20).hex().encode()
    made = bytearray()
    while len(made) < 8 << 20:
        made += json.dumps({
            "orderId": chance.randrange(1 << 40), "customer": f"c-{chance.randrange(10**6)}",
            "at": 1_763_700_000_000 + len(made), "lines": [
                {"sku": f"sku-{chance.randrange(10**5)}", "quantity": chance.randrange(1, 9),
                 "price": chance.randrange(10**5) / 100, "from": chance.choice(["north", "south"])}
                for _ in range(chance.randrange(1, 9))]}).encode()
    return bytes(made)


def fill_segments(path: str, count: int, size: int, segment: int, kind: str) -> None:
    """Messages whose bodies differ, in CommitLog files of ``segment`` bytes."""
    pool = body_pool(kind)
    with MessageStore.open(path, config=StoreConfig(mapped_file_size_commit_log=segment)) as store:
        for first in range(0, count, BATCH):
            items = [
                Message(
                    topic=f"Topic{first // BATCH % 8}",
                    body=pool[(at := number * 977 % (len(pool) - size)) : at + size],
                    properties={
                        "KEYS": f"key{number}", "TAGS": f"Tag{number % 3}", "WAIT": "true",
                        "UNIQ_KEY": f"7F0000010000000000000000{number:08X}",
                    })
                for number in range(first, min(first + BATCH, count))
            ]
            store.put_many(items, queue_id=first // BATCH // 8 % 4)
        store.wait_dispatched(300_000)


def consume(broker: str, target: str, most: int) -> float:
    """GB/s of our pull consumer that writes what it gets of a topic as Parquet."""
    with PullConsumer(broker=broker) as consumer:
        began, size = time.perf_counter(), 0
        rows: list[dict[str, Any]] = []
        for queue in consumer.queues(CONSUMED):
            at = consumer.min_offset(queue)
            while len(rows) < most:
                found = consumer.pull(queue, at, max_count=AT_ONCE)
                if not found.messages:
                    break
                at = found.next_begin_offset
                for one in found.messages:
                    size += one.store_size
                    rows.append({
                        "topic": one.topic, "queueId": one.queue_id, "queueOffset": one.queue_offset,
                        "body": one.body, "keys": list(one.keys), "properties": list(one.properties.items())})
        pq.write_table(pa.Table.from_pylist(rows), target, compression="zstd")
        return size / (time.perf_counter() - began) / 1e9


def consume_by_reference(name_server: str, target: str, most: int) -> dict[str, Any]:
    """The same loop with the reference's pull consumer; it writes plain rows, nothing compressed."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        note(f"the reference's consumer is left out: {(why := 'needs Maven and a Java 17 JDK')}")
        return {"java_consumer_left_out": why}
    printed = reference("pull-to-file", name_server, CONSUMED, most, AT_ONCE, target)
    size, seconds = (
        number_of(rf"\b{name} ([\d.]+)", printed) for name in ("bytes", "seconds"))
    return {"java_consumer_gb_per_s": round(size / seconds / 1e9, 4)}


def measure_consumers(path: str, scratch: str, most: int) -> dict[str, Any]:
    """Both consumers, one after the other, from one broker of ours on the store."""
    broker = TailraceBroker(Path(path))
    broker.start()
    try:
        found = {"consumer_gb_per_s": round(
            consume(broker.broker, f"{scratch}/consumed.parquet", most), 4)}
        return found | consume_by_reference(broker.namesrv, f"{scratch}/consumed.rows", most)
    finally:
        broker.stop()


def measure_archive(spark: SparkSession, path: str, scratch: str, turns: int) -> dict[str, Any]:
    """Archive all sealed files, without and with verification, ``turns`` times in turns."""
    sizes: dict[str, Any] = {}
    sealed = len(list((Path(path) / "commitlog").iterdir())) - 1
    if sealed < 1:
        raise SystemExit(
            f"{path} has no sealed CommitLog file to archive: more --messages or a smaller --segment")

    def run(verify: bool) -> None:
        shutil.rmtree(f"{scratch}/archive", ignore_errors=True)
        made = archive_store(
            spark, path, f"{scratch}/archive", options=ArchiveOptions(verify=verify, at_once=64))
        assert len(made) == sealed, f"{len(made)} segments of {sealed}"
        sizes.update(
            segments=len(made), bytes=sum(one.size for one in made),
            archive_bytes=sum(file.size for one in made for file in one.files))

    plain, verified = take_turns(turns, lambda: run(False), lambda: run(True))
    found = {**sizes, **measure_consumers(path, scratch, 50_000)}
    for name, runs in (("plain", plain), ("verified", verified)):
        found[name] = {
            "gb_per_s": round(sizes["bytes"] / runs[min(2, turns - 1)][0] / 1e9, 3),
            "best_gb_per_s": round(sizes["bytes"] / min(runs)[0] / 1e9, 3),
            "processor_s_per_gb": round(
                statistics.median(used for _, used in runs) / (sizes["bytes"] / 1e9), 2),
        }
    note(f"archive: {found}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5, help="of each kind, in turns")
    parser.add_argument("--bodies", choices=("hex", "json", "random"), default="hex")
    parser.add_argument(
        "--segment", type=int, default=64, help="MiB of a file, with --archive; results in the "
        "documents are of 1024")
    parser.add_argument("--store", help="a store to use, made when it does not exist")
    parser.add_argument(
        "--archive", action="store_true", help="measure the archive of the sealed files")
    parser.add_argument("--unclean", action="store_true", help="as if its process had been killed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as scratch:
        path = arguments.store or f"{scratch}/store"
        if not Path(path).exists():
            note("filling the store")
            if arguments.archive:
                fill_segments(path, arguments.messages, arguments.size, arguments.segment << 20,
                              arguments.bodies)
            else:
                fill(path, arguments.messages, arguments.size)
        abort = Path(path) / "abort"
        if arguments.unclean:
            abort.write_text("1")
        spark = local_session("local[2]", app_name="tailrace benchmark")
        spark.dataSource.register(RepeatSource)
        try:
            if arguments.archive:
                metrics = measure_archive(spark, path, scratch, arguments.runs)
            else:
                metrics = measure(spark, path, arguments.messages, scratch, arguments.runs)
        finally:
            spark.stop()
            if arguments.unclean:
                abort.unlink()
    if arguments.archive:
        report("spark-archive", {"messages": arguments.messages, "size": arguments.size,
                                 "bodies": arguments.bodies, "segment_mib": arguments.segment,
                                 "load": os.getloadavg()[0],
                                 "master": "local[2]", "runs": arguments.runs}, metrics)
        return
    report(
        "spark",
        {"messages": arguments.messages, "size": arguments.size, "unclean": arguments.unclean,
         "master": "local[2]", "sink": "noop", "runs": arguments.runs, "load": os.getloadavg()[0]},
        metrics)


if __name__ == "__main__":
    main()
