"""``tailrace pipeline archive`` and ``restore``: sealed segments to Parquet, and back."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli.arguments import Config, Store, errors, finite, read_properties, usage
from tailrace.cli.output import print_lines
from tailrace.cli.pipeline import Conf, Job, Master, run_job
from tailrace.cli.signals import ending_signals
from tailrace.config import StoreConfig
from tailrace.errors import StoreError

if TYPE_CHECKING:
    from tailrace.spark.archive.job import ArchiveJob
    from tailrace.store.archive_manifest import Manifest

__all__ = ["archive", "restore"]

Archive = Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A directory of its own for one store.")]

Verify = Annotated[
    Optional[bool],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(
        "--verify/--no-verify", show_default=False,
        help="--verify: also read every segment that is in the archive already, and archive a damaged "
        "one again if the log has it. --no-verify: do not read back what is written; retention does "
        "not count such a segment as archived. Without either, what is written is read back and every "
        "byte is compared."),
]


def archive(
    store: Store,
    target: Archive,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on and take each segment when it is sealed.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, callback=finite, metavar="SECONDS", help="How often --follow looks.")] = 10.0,
    verify: Verify = None,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="With --verify: go on without manifests that are "
                           "missing and that others name.")] = False,
    piece_mib: Annotated[
        int, typer.Option(min=1, max=1024, metavar="MIB", help="How much of the log goes into a file.")
    ] = 64,
    master: Master = "local[*]",
    conf: Conf = None,
    config: Config = None,
) -> None:
    """Write sealed CommitLog files as Parquet.

    With a manifest each; what is there already is left, unless a file of it is missing. The last file
    of the log, which is still written to, is not taken. A line of JSON at the end says what was
    done; exit code 1 when a segment could not be archived or stays damaged.
    """
    if accept_missing and not verify:
        raise usage("--accept-missing goes with --verify")
    if follow and verify:
        raise usage("--verify reads the archive once: run it without --follow")
    with errors():
        from tailrace.spark.archive.job import (  # noqa: PLC0415 - PyArrow
            ArchiveJob,
            ArchiveOptions,
            check_places,
            spark_runner,
        )

        check_places(str(store), str(target))
    signals = _set_by_signals() if follow else nullcontext(threading.Event())
    with run_job("archive", master, conf, [store]) as job, signals as ended:
        done: list[Manifest] = []
        began = time.perf_counter()  # noqa: TID251 - a duration for people

        def show(manifest: "Manifest") -> None:
            done.append(manifest)
            job.tell(
                f"segment {manifest.segment}: {manifest.messages} messages, {len(manifest.files)} files"
                f"{', verified' if manifest.verified else ''}")

        with ArchiveJob(
            str(store), str(target), spark_runner(job.spark),
            options=ArchiveOptions(
                piece_bytes=piece_mib << 20, at_once=job.spark.sparkContext.defaultParallelism,
                verify=verify is not False),
            config=StoreConfig.from_properties(read_properties(config)), progress=show,
        ) as archiving:
            failed = _follow(archiving, job, every, ended) if follow else _once(
                archiving, verify=verify is True, accept_missing=accept_missing)
        took = time.perf_counter() - began  # noqa: TID251
        if failed:
            job.tell(failed)
        job.report(_report(done, archiving, took, failed))
        if failed:
            raise typer.Exit(1)


def _once(archiving: "ArchiveJob", *, verify: bool, accept_missing: bool) -> str:
    """Verify the archive if asked, then archive what is sealed; return what went wrong."""
    failed = []
    try:
        if verify:
            archiving.verify(accept_missing=accept_missing)
    except StoreError as error:
        failed.append(str(error))
    try:
        archiving.step()
    except StoreError as error:
        failed.append(str(error))
    return "; ".join(dict.fromkeys(failed))


@contextmanager
def _set_by_signals() -> Iterator[threading.Event]:
    """An event that signals set; further signals change nothing until the block ends."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in ending_signals()}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(archiving: "ArchiveJob", job: Job, every: float, ended: threading.Event) -> str:
    """Archive until ``ended`` is set; return what went wrong last, said once."""
    job.tell("following; SIGINT, SIGTERM or SIGHUP ends it")
    failed = ""
    while not ended.is_set():
        try:
            archiving.step()
            failed = ""
        except (StoreError, OSError) as error:
            if str(error) != failed:
                job.tell(f"{error}; it is tried again")
            failed = str(error)
        except Exception as error:
            if not ended.is_set():
                raise
            failed = f"the last step was cut off: {error}"  # the same signal ended Spark's JVM, too
        ended.wait(every)
    return failed


def _report(done: "list[Manifest]", archiving: "ArchiveJob", took: float, failed: str) -> dict[str, Any]:
    size = sum(one.size for one in done)
    return {
        "segments": len(done), "alreadyArchived": archiving.skipped, "readAgain": archiving.checked,
        "gone": archiving.gone,
        "bytes": size, "messages": sum(one.messages for one in done),
        "damagedMessages": sum(len(one.damaged) for one in done),
        "files": sum(len(one.files) for one in done),
        "archiveBytes": sum(file.size for one in done for file in one.files),
        "verified": all(one.verified for one in done), "seconds": round(took, 3),
        "gbPerSecond": round(size / took / 1e9, 3), "error": failed,
    }


def restore(
    source: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="An archive.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A directory to make.")],
    first: Annotated[int, typer.Option("--from", min=0, help="Position of the first segment.")] = 0,
    until: Annotated[int, typer.Option(min=0, help="Position behind the last; 0: all of them.")] = 0,
) -> None:
    """Write archived CommitLog files back.

    They are what they were, byte for byte. Afterwards `tailrace recover STORE` makes their queues
    and index. A line of JSON for each file.
    """
    if store.exists() and any(store.iterdir()):
        raise usage(f"{store} is not empty")
    with errors():
        from tailrace.spark.archive.restore import restore_segments  # noqa: PLC0415 - PyArrow

        print_lines(restore_segments(str(source), str(store), first, until or 1 << 63))
