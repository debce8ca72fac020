"""What a scan and an archive cost against the size of the log. One JSON line and a drawing.

One store grows to each of the sizes ``--gb``; at each it is scanned into the ``noop`` sink, all columns and two
of them, and its sealed files are archived without verification into a directory that is then removed.
Planning is the part of the body's scan that the driver does alone. The drawing needs the extra ``plot``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from results import ROOT, note, report

from spark import BATCH, COLUMNS, body_pool, processor_seconds
from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.spark.archive.job import ArchiveOptions, archive_store
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.session import local_session

DRAWING = ROOT / "docs" / "contributing" / "design" / "spark-growth.svg"
SEGMENT = 256 << 20
NAMES = {"full": "scan, all columns", "body": "scan, body and position", "archive": "archive"}


def grow(path: Path, until: int, size: int, pool: bytes) -> int:
    """Put messages over 8 topics of 4 queues until the log has ``until`` bytes; how many it has then."""
    with MessageStore.open(
        str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)
    ) as store:
        number = sum(end for _, _, _, end in store.queues())
        while store.max_phy_offset < until:
            items = [
                Message(
                    topic=f"Topic{number // BATCH % 8}",
                    body=pool[(at := one * 977 % (len(pool) - size)) : at + size],
                    properties={"KEYS": f"key{one}", "TAGS": f"Tag{one % 3}",
                                "UNIQ_KEY": f"7F0000010000000000000000{one:08X}"})
                for one in range(number, number + BATCH)
            ]
            store.put_many(items, queue_id=number // BATCH // 8 % 4)
            number += BATCH
        store.wait_dispatched(600_000)
        return store.max_phy_offset


def cost(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the clock and of processor time."""
    began, used = time.perf_counter(), processor_seconds()
    work()
    return {"s": round(time.perf_counter() - began, 2),
            "processor_s": round(processor_seconds() - used, 2)}


def measure(spark: SparkSession, path: Path, scratch: Path) -> dict[str, Any]:
    """Both scans, planning alone, and the archive of what is sealed."""
    found: dict[str, Any] = {}
    for name, columns in COLUMNS.items():
        scan = spark.read.format("tailrace").option("columns", columns).load(str(path))
        found[name] = cost(scan.write.format("noop").mode("overwrite").save)
        note(f"  {NAMES[name]}: {found[name]}")
    source = TailraceDataSource({"path": str(path), "columns": COLUMNS["body"]})
    found["planning"] = cost(lambda: source.reader(None).partitions())
    archived: list[int] = []
    found["archive"] = cost(lambda: archived.extend(one.size for one in archive_store(
        spark, str(path), str(scratch / "archive"), options=ArchiveOptions(verify=False, at_once=64),
        progress=lambda made: note(f"  archived {made.segment:020d}"))))
    found["archive"]["bytes"] = sum(archived)
    shutil.rmtree(scratch / "archive")
    note(f"  {NAMES['archive']}: {found['archive']}")
    return found


def draw(points: list[dict[str, Any]], target: Path) -> None:
    """Seconds against the size of the log, both on logarithmic axes: a slope of one is what to hope for."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "tailrace"
    figure, axes = plt.subplots(figsize=(7, 4.5))
    sizes = [point["log_bytes"] / 1e9 for point in points]
    for name, label in NAMES.items():
        axes.plot(sizes, [point[name]["s"] for point in points], marker="o", label=label)
    axes.plot(sizes, [point["planning"]["s"] for point in points], marker="o", label="planning of a scan")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:.1f}" for size in sizes])
    axes.set(xlabel="log, GB", ylabel="seconds", title="Cost against the size of the log, local[2]")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, nargs="+", default=[1, 4, 16], help="sizes of the log, growing")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a body")
    parser.add_argument("--directory", help="where the store is made; it is removed at the end")
    parser.add_argument("--drawing", type=Path, default=DRAWING)
    arguments = parser.parse_args()
    pool = body_pool("json")
    with tempfile.TemporaryDirectory(prefix="tailrace-growth-", dir=arguments.directory) as name:
        scratch = Path(name)
        if (free := shutil.disk_usage(scratch).free) < (most := max(arguments.gb)) * 1.5e9:
            parser.error(f"{most} GB of log and their archive need {most * 1.5:.0f} GB, {free / 1e9:.0f} are free")
        spark = local_session("local[2]", app_name="tailrace growth")
        try:
            points: list[dict[str, Any]] = []
            for gb in sorted(arguments.gb):
                began = time.perf_counter()
                log_bytes = grow(scratch / "store", int(gb * 1e9), arguments.size, pool)
                note(f"{log_bytes / 1e9:.2f} GB: filled in {time.perf_counter() - began:.0f} s")
                if not points:
                    note("  once before it counts:")
                    measure(spark, scratch / "store", scratch)
                points.append({"log_bytes": log_bytes, **measure(spark, scratch / "store", scratch)})
        finally:
            spark.stop()
    report("spark-growth", {
        "gb": sorted(arguments.gb), "size": arguments.size, "segment_mib": SEGMENT >> 20,
        "master": "local[2]", "sink": "noop", "load": os.getloadavg()[0]}, {"points": points})
    try:
        draw(points, arguments.drawing)
        note(f"drawn: {arguments.drawing}")
    except ImportError:
        note("not drawn: pip install 'tailrace[plot]'")


if __name__ == "__main__":
    main()
