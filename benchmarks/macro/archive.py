"""The goals of the data pipeline, measured in one run on two processors. One JSON line, and a table on stderr.

    archive.py [PART ...]

Parts: ``planning`` of synthetic archives, which have an index and manifests and no rows; ``commit`` of 1,000 data files
to a table; ``driver``: what an archive, its tables, a plan and a read of one topic and day cost the driver; ``scan`` of
bodies into Arrow; ``archive`` plain, verified and with the tables of Iceberg, in turns; ``reads`` of one topic and day;
``s3``, which is SeaweedFS on loopback (``make object-store`` installs it); ``network``
source beside our pull consumer; ``sink`` beside 64 messages a request, one request at a time, as it was until
November 2026.
Without names all of them run.

Rates are of bytes of the log, if nothing else is said. Beside each are the processor time of this process and all below
it, and the rate that two processors would reach with that processor time, which says most where other work shares the
machine. Jobs run in Spark, ``local[2]``, as commands do. The best of ``--runs`` counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from results import ROOT, note, processor, report

import tailrace
from spark import CONSUMED, consume, fill_segments, processor_seconds
from tailrace.client import Producer
from tailrace.config import BrokerConfig
from tailrace.dataset.store import archive_alone
from tailrace.env.filesystem import OsFileSystem
from tailrace.model import Message
from tailrace.pytest_plugin import TailraceBroker
from tailrace.spark.archive.index import GROUP, group_of, write_group
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions
from tailrace.spark.archive.job import spark_runner as archive_runner
from tailrace.spark.archive.layout import part_path
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.lake.catalogue import Lake, LakeTable, Mark
from tailrace.spark.lake.commit import commit
from tailrace.spark.lake.files import WrittenFile
from tailrace.spark.lake.job import LakeJob, spark_runner
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner
from tailrace.spark.lake.upkeep import compact
from tailrace.spark.session import local_session
from tailrace.spark.sink.commit import StagedFile, commit_batch, stage
from tailrace.spark.sink.options import WriteOptions
from tailrace.spark.sink.requests import TXN
from tailrace.spark.source.archive_scan import plan_archive
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.store.archive_manifest import (
    ArchivedFile,
    Manifest,
    ManifestLink,
    QueueRange,
    list_manifests,
    manifest_name,
    write_manifest,
)
from tailrace.store.archive_store import PosixArchive, archive_at

_SEGMENT_BYTES: Final = 1 << 30
_PIECE: Final = 64 << 20
_GB: Final = 1e9
_FILES: Final = 1_000
_BROKER: Final = "broker-a"
_SENT: Final = "Sent"
_CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}
_CONSUMED_COLUMNS: Final = "topic,queueId,queueOffset,body,keys,properties"
_Result = TypeVar("_Result")


class Figures:
    """What was measured, by name, each with its goal."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def add(
        self, name: str, value: float, unit: str, goal: float | None = None, *, most: bool = False, **beside: Any
    ) -> None:
        """Note a figure, which should be at least ``goal``, or at most."""
        met = None if goal is None else value <= goal if most else value >= goal
        self.found[name] = {"value": round(value, 3), "unit": unit, "goal": goal, "met": met, **beside}
        note(f"{name}: {value:.3g} {unit} {beside or ''}")

    def add_rate(
        self, name: str, size: int, runs: list[tuple[float, float]], goal: float | None = None, **beside: Any
    ) -> None:
        """Note the GB/s of the best run; ``runs`` are (seconds, processor seconds)."""
        took, used = min(one for one, _ in runs), min(one for _, one in runs)
        self.add(name, size / took / _GB, "GB/s", goal, processor_s_per_gb=round(used / (size / _GB), 2),
                 gb_per_s_of_two_processors=round(2 * size / used / _GB, 3), **beside)


def timed(times: list[tuple[float, float]], work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Do some work, and note its seconds by the clock and of processor time, of this process and all below it."""
    began, used = time.perf_counter(), processor_seconds()
    done = work(*arguments)
    times.append((time.perf_counter() - began, processor_seconds() - used))
    return done


# -- planning


def synthetic(target: Path, size: int, queues: int) -> int:
    """Make an archive of ``size`` bytes of a log without rows. Return the number of its segments."""
    archive, segments = PosixArchive(str(target)), -(-size // _SEGMENT_BYTES)
    (target / "_manifests").mkdir(parents=True)
    before: ManifestLink | None = None
    for first in range(0, segments, GROUP):
        whole = first + GROUP <= segments
        manifests = []
        for number in range(first, min(first + GROUP, segments)):
            start = number * _SEGMENT_BYTES
            ranges = tuple(
                QueueRange("Topic", queue, number * 9, number * 9 + 9, 9, start, start + _SEGMENT_BYTES - 1, 1, 2)
                for queue in (range(queues) if number == first or not whole else ()))
            manifests.append(Manifest(
                start, _SEGMENT_BYTES, 1, f"{number:064d}", 1, 9, 9, 0, 1, 2, ranges, () if whole else _files(start),
                verified=True, before=before))
            before = ManifestLink(start, f"{number:064d}")
            if whole:
                (target / manifest_name(start)).touch()
            else:
                write_manifest(archive, manifests[-1])
        made = group_of(manifests) if whole else None
        if made is not None:
            last = (first + GROUP) * _SEGMENT_BYTES - 1
            write_group(archive, replace(
                made, runs=tuple(replace(one, end=(first + GROUP) * 9, last=last) for one in made.runs)))
    return segments


def _files(start: int) -> tuple[ArchivedFile, ...]:
    return tuple(
        ArchivedFile(part_path("2026-11-27", start, number, "0" * 16), 30 << 20, "0" * 64, 9, start + number * _PIECE,
                     start + (number + 1) * _PIECE) for number in range(_SEGMENT_BYTES // _PIECE))


def planned(target: Path) -> dict[str, Any]:
    """Plan a read of all messages of an archive: seconds, processor time, tasks, manifests that are listed, memory."""
    tasks: list[Any] = []
    began, used = time.perf_counter(), time.process_time()
    directory = archive_alone(str(target))
    options = parse_options({"path": str(target)}, column_names, is_store=False)
    label = options.roots[0][0]
    ranges = {(label, one.topic, one.queue_id): (one.min_offset, one.max_offset) for one in directory.queues()}
    tasks.extend(plan_archive(label, directory, ranges, options))
    return {
        "s": round(time.perf_counter() - began, 2), "processor_s": round(time.process_time() - used, 2),
        "most_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "tasks": len(tasks),
        "manifests": len(list_manifests(archive_at(str(target))))}


def measure_planning(figures: Figures, scratch: Path, sizes: list[int], queues: int) -> None:
    """Each size in a process of its own, because the most memory of a process never falls."""
    for gb in sorted(sizes):
        target = scratch / f"plan-{gb}"
        segments = synthetic(target, gb * 10**9, queues)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, json.dumps(planned(target)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            found = json.loads(answer.read())
        shutil.rmtree(target)
        figures.add(f"planning of {gb} GB", found.pop("s"), "s", 30, most=True, segments=segments, **found)
        figures.add(f"memory of planning {gb} GB", found["most_mib"], "MiB", 2048, most=True)


# -- tables


def measure_commit(figures: Figures, scratch: Path, count: int = _FILES) -> None:
    """Commit data files of one commit to ``messages``, with sizes, counts and bounds as tasks return them."""
    archive = scratch / "commit"
    archive.mkdir()
    with Lake(str(archive), "tailrace", _BROKER, OsFileSystem()) as lake:
        table = lake.messages
        known = [table.ids.of[name] for name in ("broker", "topic", "queue_id", "queue_offset", "commit_log_offset")]
        numbers = [*table.ids.of.values()]
        files = [
            WrittenFile(
                f"file://{archive}/tables/p{number:020d}.parquet", 30 << 20, 60_000, 20_000 + number % 30,
                dict.fromkeys(numbers, 1 << 20), dict.fromkeys(known, 60_000), dict.fromkeys(known, 0),
                dict.fromkeys(known, b"\0" * 8), dict.fromkeys(known, b"\1" * 8), (4,)) for number in range(count)]
        used = time.process_time()
        commit(table, files, None, Mark(1, 0, "0", 1))
        figures.add(
            f"driver's processor time of a commit of {count} files", time.process_time() - used, "s", 0.5, most=True)


def _archived(spark: Any, store: str, target: str, verify: bool) -> list[Manifest]:
    options = ArchiveOptions(verify=verify, at_once=64)
    with ArchiveJob(store, target, archive_runner(spark), options=options) as job:
        return job.step()


def _with_tables(spark: Any, store: str, target: str) -> list[Manifest]:
    options = ArchiveOptions(at_once=64)
    with ArchiveJob(store, target, archive_runner(spark), options=options) as job, Lake(
            target, "tailrace", _BROKER, OsFileSystem()) as lake:
        adding = LakeJob(
            store, target, lake, spark_runner(spark), broker=BrokerConfig(broker_name=_BROKER), at_once=64)
        made = job.step()
        done = adding.step()
    assert done.segments == len(made), f"{done.segments} segments of {len(made)} are in the tables: {done.waits}"
    return made


def measure_archive(figures: Figures, spark: Any, store: Path, scratch: Path, runs: int) -> None:
    """The archive plain, verified, and with both tables, in turns. The last one stays in ``scratch / "lake"``."""
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "verified": [], "Iceberg": []}
    made: list[Manifest] = []
    for _ in range(runs):
        for name, times in found.items():
            target = scratch / "lake"
            shutil.rmtree(target, ignore_errors=True)
            if name == "Iceberg":
                made = timed(times, _with_tables, spark, str(store), str(target))
            else:
                made = timed(times, _archived, spark, str(store), str(target), name == "verified")
            note(f"  archive {name}: {times[-1][0]:.1f} s, {times[-1][1]:.1f} s of processor time")
    size = sum(one.size for one in made)
    figures.add_rate("archive, plain", size, found["plain"], 0.25, archive_bytes=sum(
        file.size for one in made for file in one.files))
    figures.add_rate("archive, verified", size, found["verified"], 0.2)
    figures.add_rate("archive, verified, and both tables of Iceberg", size, found["Iceberg"], 0.25)
    least = {name: [min(one) for one in zip(*times, strict=True)] for name, times in found.items()}
    for other in ("plain", "verified"):
        figures.add(
            f"Iceberg beside {other}", least[other][0] / least["Iceberg"][0], "of its rate", 0.9,
            of_processor_time=round(least[other][1] / least["Iceberg"][1], 3))


def _most_mib() -> int:
    """The most memory of this process since ``_forget_most``, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def _forget_most() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure_driver(figures: Figures, spark: Any, store: Path, scratch: Path) -> None:
    """What a pipeline costs its driver, without the JVM, and all of its processes: for the table of growth."""
    target = scratch / "driver"
    day: list[str] = []

    def archive() -> int:
        return sum(one.size for one in _archived(spark, str(store), str(target), verify=True))

    def tables() -> int:
        with Lake(str(target), "tailrace", _BROKER, OsFileSystem()) as lake:
            done = LakeJob(str(store), str(target), lake, spark_runner(spark), broker=BrokerConfig(
                broker_name=_BROKER), at_once=64).step()
            times = lake.messages.table.scan(selected_fields=("store_timestamp",), limit=1).to_arrow()
            day.append(f"{times['store_timestamp'][0].as_py():%Y-%m-%d}T00:00:00+00:00")
        return done.message_rows

    def plan() -> int:
        return int(planned(target)["tasks"])

    def scan() -> int:
        with Lake(str(target), "tailrace", _BROKER, OsFileSystem()) as lake:
            found = lake.messages.table.scan(row_filter=And(
                EqualTo("topic", CONSUMED), GreaterThanOrEqual("store_timestamp", day[0])))
            return sum(len(batch) for batch in found.to_arrow_batch_reader())

    for name, work in (
            ("archive", archive), ("tables", tables), ("plan", plan), ("one topic and day of the table", scan)):
        _forget_most()
        times: list[tuple[float, float]] = []
        used = time.process_time()
        made = timed(times, work)
        figures.add(f"driver: {name}", time.process_time() - used, "s of processor time", most_mib=_most_mib(),
                    of_all_processes_s=round(times[0][1], 2), result=made)


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _bytes_of(table: LakeTable, topic: str) -> int:
    """Return the bytes of the rows of a topic: of row groups with other topics, by its share of their rows."""
    total = 0.0
    for task in table.table.scan().plan_files():
        with pq.ParquetFile(task.file.file_path.removeprefix("file://")) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number, columns=["topic"])["topic"]
                group = file.metadata.row_group(number)
                size = sum(group.column(place).total_compressed_size for place in range(group.num_columns))
                total += size * pa.compute.sum(pa.compute.equal(rows, topic)).as_py() / max(len(rows), 1)
    return int(total)


def measure_reads(figures: Figures, scratch: Path) -> None:
    """What PyIceberg reads of the files for one topic and day, as the kernel counts it, before and after compaction."""
    with Lake(str(scratch / "lake"), "tailrace", _BROKER, OsFileSystem()) as lake:
        table = lake.messages
        for name in ("as archived", "after `pipeline compact`"):
            if name != "as archived":
                compact(table, local_runner(run_task))
            table.reload()
            rows = table.table.scan(selected_fields=("store_timestamp",)).to_arrow()["store_timestamp"]
            day = rows[0].as_py().replace(hour=0, minute=0, second=0, microsecond=0)
            before = _read_bytes()
            found = table.table.scan(row_filter=And(
                EqualTo("topic", CONSUMED), GreaterThanOrEqual("store_timestamp", day.isoformat()))).to_arrow()
            size, own = _read_bytes() - before, _bytes_of(table, CONSUMED)
            figures.add(
                f"one topic and day of the table, {name}", size / own, "times its bytes",
                None if name == "as archived" else 2, most=True, rows=len(found), bytes=own)


# -- an object store


def measure_s3(figures: Figures, spark: Any, store: Path, runs: int) -> None:
    """The plain and the verified archive into a bucket. The server shares the processors; its time is counted."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from seaweedfs import seaweedfs

    with seaweedfs() as endpoint:
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        server: list[float] = []
        size = 0
        for number in range(runs):
            for verify, times in found.items():
                before = _seconds_of("weed")
                made = timed(
                    times, _archived, spark, str(store), f"s3://lake/{number}-{verify}?endpoint={endpoint}", verify)
                server.append(_seconds_of("weed") - before)
                size = sum(one.size for one in made)
    for verify, times in found.items():
        figures.add_rate(f"archive to S3, {'verified' if verify else 'plain'}", size, times, 0.15,
                         of_the_server_s=round(min(server), 2))


def _seconds_of(name: str) -> float:
    """Processor time of programs of a name below this process."""
    used = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            after = fields.rpartition(")")[2].split()
            if f"({name})" in fields and int(after[1]) == os.getpid():
                used += sum(map(int, after[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


# -- reads without Spark, brokers


def _read(dataset: Any, batches: bool) -> int:
    if batches:
        return sum(batch.column(0).nbytes for batch in dataset.to_batches())
    return int(dataset.to_table().nbytes)


def measure_scan(figures: Figures, store: Path, runs: int) -> None:
    """Bodies of the log into Arrow batches, and into one table; rates are of the bytes of the bodies."""
    for name in ("batches", "one table"):
        times: list[tuple[float, float]] = []
        size = 0
        for _ in range(runs + 1):  # the first one fills the page cache
            size = timed(times, _read, tailrace.scan(store, columns=["body"]), name == "batches")
        took, used = (min(one) for one in zip(*times[1:], strict=True))
        figures.add(f"scan of bodies into Arrow, {name}", size / took / _GB, "GB/s", 1.0 if name == "batches" else None,
                    gb_per_processor_s=round(size / max(used, 0.01) / _GB, 3), processor_s=round(used, 2))


@contextmanager
def served(store: Path) -> Iterator[TailraceBroker]:
    broker = TailraceBroker(store)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def measure_network(figures: Figures, spark: Any, broker: TailraceBroker, scratch: Path, runs: int) -> None:
    """Messages from the broker into Parquet: all topics by the source, one topic by a loop with our pull consumer."""
    spark.dataSource.register(TailraceDataSource)
    source = spark.read.format("tailrace").option("broker", broker.broker).option("subscribePattern", "Topic.*")
    size = int(source.option("columns", "storeSize").load().groupBy().sum("storeSize").collect()[0][0])
    frame = source.option("columns", _CONSUMED_COLUMNS).load()
    into_parquet: list[tuple[float, float]] = []
    into_nothing: list[tuple[float, float]] = []
    best = 0.0
    for _ in range(runs):
        timed(into_parquet, frame.write.mode("overwrite").option("compression", "zstd").parquet, f"{scratch}/network")
        timed(into_nothing, frame.write.format("noop").mode("overwrite").save)
        best = max(best, consume(broker.broker, f"{scratch}/consumed.parquet", 50_000))
    figures.add("our pull consumer into Parquet", best, "GB/s")
    figures.add_rate("network source into Parquet", size, into_parquet)
    figures.add_rate("network source, rows into nothing", size, into_nothing)
    figures.add("network source into Parquet beside our pull consumer",
                size / min(took for took, _ in into_parquet) / _GB / best, "times its rate", 3)


def _one_at_a_time(producer: Producer, staged: Callable[[], str]) -> None:
    """Send staged rows as the sink did until November 2026. The check of each row, which it also did, is left out."""
    held: list[Message] = []
    number = 0
    data = Path(staged()).read_bytes()
    hashlib.sha256(data)
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        for place in range(reader.num_record_batches):
            for row in reader.get_batch(place).to_pylist():
                message = Message(
                    topic=row["topic"], body=row["body"], tags=row["tags"] or None, keys=row["keys"] or (),
                    properties=dict(row["properties"] or ()), deliver_at=row["deliverAt"])
                held.append(replace(message, properties={**message.properties, TXN: f"query/0/{number}"}))
                number += 1
                if len(held) == 64:
                    producer.send_batch(held)
                    held = []
    if held:
        producer.send_batch(held)


def measure_sink(figures: Figures, broker: TailraceBroker, store: Path, scratch: Path, runs: int, count: int) -> None:
    """What the tasks and the driver of a stream do with a batch: stage it, send it once. Rates are of messages."""
    batches, left = [], count
    for batch in tailrace.scan(store, columns=["topic", "tags", "keys", "body"]).to_batches():
        batches.append(batch.slice(0, left).set_column(
            0, "topic", pa.array([_SENT] * min(left, batch.num_rows), pa.string())))
        left -= batches[-1].num_rows
        if not left:
            break
    if left:
        raise SystemExit(f"the store has {count - left} messages, and --sent is {count}: use less, or a larger --gb")
    checkpoint, files = scratch / "checkpoint", OsFileSystem()
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query"}')
    options = WriteOptions(broker.broker, "", "", "benchmark", 10_000, str(checkpoint))
    sink: list[tuple[float, float]] = []
    before: list[tuple[float, float]] = []

    def write(number: int) -> None:
        assert commit_batch(files, options, number, [rows_of(number)], time.sleep) == count

    def rows_of(number: int) -> StagedFile:
        return stage(files, options, number, 0, "0", iter(batches))

    with Producer(broker=broker.broker, timeout_ms=10_000) as producer:
        producer.create_topic(_SENT, queues=8)
        for number in range(runs):
            timed(before, _one_at_a_time, producer, lambda: str(checkpoint / rows_of(1_000_000).path))
            timed(sink, write, number)
    rates = [count / min(took for took, _ in one) for one in (before, sink)]
    used = [min(seconds for _, seconds in one) for one in (before, sink)]
    figures.add("sink, 64 messages a request, one at a time", rates[0], "messages/s", processor_s=round(used[0], 2))
    figures.add("sink", rates[1], "messages/s", processor_s=round(used[1], 2))
    figures.add("sink beside one request at a time", rates[1] / rates[0], "times its rate", 3,
                of_processor_time=round(used[0] / used[1], 2))


PARTS: Final = ("planning", "commit", "driver", "scan", "archive", "reads", "s3", "network", "sink")


def measure(figures: Figures, arguments: argparse.Namespace, scratch: Path) -> None:
    """Run the chosen parts."""
    parts, store, runs = arguments.parts or PARTS, scratch / "store", arguments.runs
    if "planning" in parts:
        measure_planning(figures, scratch, arguments.plan_gb, arguments.queues)
    if "commit" in parts:
        measure_commit(figures, scratch)
    if set(parts) <= {"planning", "commit"}:
        return
    count = int(arguments.gb * (1 << 30) / (arguments.size + 225))
    fill_segments(str(store), count, arguments.size, arguments.segment << 20, "json")
    note(f"the store has {count} messages")
    if "scan" in parts:
        measure_scan(figures, store, runs)
    if set(parts) & {"driver", "archive", "reads", "s3", "network"}:
        os.environ |= _CREDENTIALS  # workers of Spark inherit them
        spark = local_session("local[2]", app_name="tailrace benchmark")
        try:
            if "driver" in parts:
                measure_driver(figures, spark, store, scratch)
            if set(parts) & {"archive", "reads"}:
                measure_archive(figures, spark, store, scratch, runs)
            if "reads" in parts:
                measure_reads(figures, scratch)
            if "s3" in parts:
                measure_s3(figures, spark, store, runs)
            if "network" in parts:
                with served(store) as broker:
                    measure_network(figures, spark, broker, scratch, runs)
        finally:
            spark.stop()
    if "sink" in parts:
        with served(scratch / "target") as broker:
            measure_sink(figures, broker, store, scratch, runs, arguments.sent)


def show(figures: Figures) -> None:
    """Print the table."""
    note(f"\n{processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    for name, one in figures.found.items():
        processor_s = next((one[key] for key in ("processor_s", "processor_s_per_gb") if key in one), "")
        goal = "" if one["goal"] is None else f"{one['goal']:g} {'met' if one['met'] else 'MISSED'}"
        note(f"{name:62} {one['value']:>10} {one['unit']:16} {processor_s!s:>8} {goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--gb", type=float, default=1.05, help="GiB of the log; its whole segments are archived")
    parser.add_argument("--segment", type=int, default=256, help="MiB of a segment")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3, help="of each work; the best counts")
    parser.add_argument("--sent", type=int, default=100_000, help="messages of a batch of the sink")
    parser.add_argument("--plan-gb", type=int, nargs="*", default=[1, 100, 100_000], help="sizes that are only planned")
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--directory", help="where stores and archives are made; they are removed at the end")
    arguments = parser.parse_args()
    figures, load = Figures(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tailrace-archive-", dir=arguments.directory) as name:
        measure(figures, arguments, Path(name))
        place = os.path.realpath(name)
    show(figures)
    report("archive", {
        **{name: value for name, value in vars(arguments).items() if name not in {"directory", "parts"}},
        "load": load, "on": "memory" if place.startswith("/dev/shm") else "disk"}, figures.found)


if __name__ == "__main__":
    main()
