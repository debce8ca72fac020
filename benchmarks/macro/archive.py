"""What an archive costs against its size, in a directory and in an object store. One JSON line.

Real: a log of ``--gb`` is archived and verified into a directory, and into SeaweedFS on loopback (``make object-store``
installs it), in this process, without Spark. Synthetic: archives of ``--plan-gb`` have an index and manifests of
``--queues`` queues and no rows; planning a read of all messages is what the driver of a job does with them.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from results import ROOT, note, report
from spark_growth import SEGMENT, grow

from spark import body_pool
from tailrace.dataset.store import archive_alone
from tailrace.env.filesystem import OsFileSystem
from tailrace.spark.archive.index import GROUP, group_of, write_group
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.layout import part_path
from tailrace.spark.source.archive_scan import plan_archive
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.store.archive_manifest import (
    ArchivedFile,
    Manifest,
    ManifestLink,
    QueueRange,
    manifest_name,
    write_manifest,
)
from tailrace.store.archive_store import PosixArchive

_SEGMENT_BYTES = 1 << 30
_PIECE = 64 << 20


def cost(work: Callable[[], Any]) -> dict[str, Any]:
    """Seconds by the clock and of this process; and the most memory that it had so far, in MiB."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return {"s": round(time.perf_counter() - began, 2), "processor_s": round(time.process_time() - used, 2),
            "most_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def archived(store: Path, target: str) -> dict[str, Any]:
    """Archive what is sealed; its cost, its bytes, and GB of the log a second."""
    made: list[Manifest] = []

    def run() -> None:
        with ArchiveJob(str(store), target, local_runner(OsFileSystem()), options=ArchiveOptions(at_once=1)) as job:
            made.extend(job.step())

    found = cost(run)
    size = sum(one.size for one in made)
    return {**found, "bytes": size, "gb_s": round(size / found["s"] / 1e9, 3),
            "archive_bytes": sum(file.size for one in made for file in one.files)}


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
    """Plan a read of all messages of an archive; its cost and the number of tasks."""
    tasks: list[Any] = []

    def run() -> None:
        directory = archive_alone(str(target))
        options = parse_options({"path": str(target)}, column_names, is_store=False)
        label = options.roots[0][0]
        ranges = {(label, one.topic, one.queue_id): (one.min_offset, one.max_offset) for one in directory.queues()}
        tasks.extend(plan_archive(label, directory, ranges, options))

    return {**cost(run), "tasks": len(tasks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1, help="size of the log that is archived")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a body")
    parser.add_argument("--plan-gb", type=int, nargs="*", default=[1, 100, 100_000], help="sizes that are only planned")
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--directory", help="where stores and archives are made; they are removed at the end")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tailrace-archive-", dir=arguments.directory) as name:
        scratch = Path(name)
        for gb in sorted(arguments.plan_gb):
            segments = synthetic(scratch / f"plan-{gb}", gb * 10**9, arguments.queues)
            found[f"plan_{gb}_gb"] = {"segments": segments, **planned(scratch / f"plan-{gb}")}
            note(f"planning of {gb} GB: {found[f'plan_{gb}_gb']}")
        if arguments.gb:
            grow(scratch / "store", int(arguments.gb * 1e9) + SEGMENT, arguments.size, body_pool("json"))
            found["directory"] = archived(scratch / "store", str(scratch / "archive"))
            note(f"directory: {found['directory']}")
            sys.path.insert(0, str(ROOT / "tests" / "support"))
            from seaweedfs import seaweedfs

            os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}
            with seaweedfs() as endpoint:
                found["seaweedfs"] = archived(scratch / "store", f"s3://lake/archive?endpoint={endpoint}")
            note(f"SeaweedFS: {found['seaweedfs']}")
    report("archive", {
        "gb": arguments.gb, "size": arguments.size, "queues": arguments.queues, "segment_mib": SEGMENT >> 20,
        "load": os.getloadavg()[0]}, found)


if __name__ == "__main__":
    main()
