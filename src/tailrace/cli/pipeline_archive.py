"""``tailrace pipeline archive`` and ``restore``: sealed segments are written to Parquet, and back."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import AsJson, Config, duration, errors, read_properties, usage
from tailrace.cli.output import Progress, show
from tailrace.cli.pipeline import Conf, Job, Master, need_spark, run_job
from tailrace.cli.problems import explained, need_room
from tailrace.cli.signals import ending_signals
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError

if TYPE_CHECKING:
    from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions
    from tailrace.spark.lake.bodies.topics import TopicSchemas
    from tailrace.spark.lake.catalogue import Lake
    from tailrace.spark.lake.job import LakeReport
    from tailrace.store.archive_manifest import Manifest

__all__ = ["Archive", "archive", "restore"]

Archive = Annotated[str, typer.Argument(
    metavar="ARCHIVE", help="One store's archive: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME.")]

Stores = Annotated[list[Path], typer.Argument(
    metavar="STORE...", help="A store directory, or several in one job.", autocompletion=completion.stores)]
Archives = Annotated[str, typer.Argument(
    metavar="ARCHIVE", help="The archive: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME. Each of several "
    "stores has its archive below it, in a directory with its name.")]
Names = Annotated[
    str, typer.Option("--names", metavar="LIST", help="Names of several stores; default: those of the directories.")]

PERIOD_MIN_MS = 100
_LAG_MIN_MS = 1_000
_STORES = 16
"""How many stores are archived at a time, unless the command follows."""
Verify = Annotated[
    Optional[bool],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(
        "--verify/--no-verify", show_default=False,
        help="Without these options each written segment is read back and compared byte for byte. --verify: also read "
        "every segment that is in the archive already, and archive a damaged one again if the log has it. "
        "--no-verify: do not read back; retention does not count such a segment as archived."),
]

Lag = Annotated[
    str, typer.Option("--lag", metavar="TIME", help="Also archive synced messages of the last file; with --follow a "
                      "message waits for about this time at most, such as 60s.")]
Table = Annotated[
    str, typer.Option("--table", metavar="NAMESPACE", help="Also add the segments to two Iceberg tables of this "
                      "namespace: messages, and the archive's rows.")]
Catalog = Annotated[
    str, typer.Option("--catalog", metavar="NAME", help="With --table: a catalogue in PyIceberg's configuration. "
                      "Default: an SQLite file in ARCHIVE.")]
Types = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--types", metavar="FILE", help="With --table: also make typed tables of the topics in "
                 "this TOML file.")]
SystemTopics = Annotated[
    bool, typer.Option("--system-topics", help="With --table: messages also has topics of the system and of "
                       "retries.")]


def archive(
    stores: Stores,
    target: Archives,
    names: Names = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and archive each segment when it is sealed.")] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="Period of --follow, such as 500ms, 10s or 5m.")] = "10s",
    verify: Verify = None,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="With --verify: continue although manifests are missing that "
                           "other manifests name.")] = False,
    piece_mib: Annotated[
        int, typer.Option(min=1, max=1024, metavar="MIB", help="Bytes of the log in one file, in MiB.")
    ] = 64,
    lag: Lag = "",
    table: Table = "",
    catalog: Catalog = "tailrace",
    system_topics: SystemTopics = False,
    types: Types = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write sealed CommitLog files as Parquet.

    Each segment has a manifest. Segments that are in the archive are skipped, unless one of their files is missing.
    The last file of the log is still written and needs --lag, and is archived again when it is sealed. The exit code is
    1 if a segment could not be archived or stays damaged. A store that fails does not stop the others.

    Nothing in STORE changes.
    """
    if accept_missing and not verify:
        raise usage("--accept-missing needs --verify")
    if follow and verify:
        raise usage("--verify reads the archive once: run it without --follow")
    each = _places(stores, target, names, table)
    needs_table = system_topics or types is not None or catalog != "tailrace"
    _check_table(table, verify=verify is not False, needs_table=needs_table)
    period_ms, lag_ms = _times(every, lag)
    with errors():
        need_spark()
        from tailrace.spark.archive.job import ArchiveOptions  # noqa: PLC0415 - PyArrow

        checked = stores if len(stores) == 1 else []  # one of several that fails does not stop the others
        _check_target(target, checked)
        properties = read_properties(config)
        schemas = None if types is None else _schemas(types)
        lake = _lake(target, table, catalog, properties, system_topics=system_topics) if table else nullcontext()
    signals = _set_by_signals() if follow else nullcontext(threading.Event())
    with (
        lake as tables, run_job("archive", master, conf, checked, as_json=as_json, stage_bar=follow) as job,
        signals as ended,
    ):
        from tailrace.spark.tasks import parallelism  # noqa: PLC0415 - PySpark

        settings, width = StoreConfig.from_properties(properties), parallelism(job.spark)
        options = ArchiveOptions(
            piece_bytes=piece_mib << 20, at_once=width, verify=verify is not False,
            lag_ms=lag_ms if follow else min(lag_ms, 1), tables=(catalog, table) if table else ("", ""))
        step: _Step = partial(_follow, every=period_ms / 1_000, ended=ended) if follow else partial(
            _once, verify=verify is True, accept_missing=accept_missing, bar=len(each) == 1)
        adding = None if tables is None else partial(
            _Adding, job, stores[0], target, tables, settings, BrokerConfig.from_properties(properties), width, schemas)
        run = partial(_archive_store, job, options, settings, step, adding)
        _report_all(job, _archive_all(job, each, run, follow=follow) if len(each) > 1 else [run(each[0])])


class _Place(NamedTuple):
    """A store and its archive; ``name`` is empty if it is the only one."""

    store: Path
    target: str
    name: str


def _places(stores: list[Path], target: str, names: str, table: str) -> list[_Place]:
    """Return the archive of each store. Raises usage errors for several stores with tables or with unfit names."""
    if len(stores) == 1:
        if names:
            raise usage("--names needs several stores")
        return [_Place(stores[0], target, "")]
    if table:
        raise usage("--table needs a single STORE: run a job for each, with its brokerName in --config")
    found = names.split(",") if names else [store.absolute().name for store in stores]
    if len(found) != len(stores):
        raise usage(f"--names {names} has {len(found)} names for {len(stores)} stores")
    for name in found:
        if not re.fullmatch(r"[\w%.-]+", name) or name.startswith(("_", ".")) or found.count(name) > 1:
            raise usage(
                f"the name {name!r} is not the name of one store: give each one another name with --names, of letters, "
                "digits and -")
    place, mark, query = target.partition("?") if target.startswith("s3://") else (target, "", "")
    return [
        _Place(store, f"{place.rstrip('/')}/{name}{mark}{query}", name)
        for store, name in zip(stores, found, strict=True)]


_Step = Callable[["ArchiveJob", "_Adding | None", "_Archived"], str]
"""Archives, and returns the errors as text."""


def _archive_store(
    job: Job, options: "ArchiveOptions", settings: StoreConfig, step: _Step,
    make_adding: "Callable[[], _Adding] | None", place: _Place,
) -> dict[str, Any]:
    """Archive a store, and return its report."""
    from tailrace.spark.archive.job import ArchiveJob, spark_runner  # noqa: PLC0415 - PyArrow

    done = _Archived(job, place.name)
    with ArchiveJob(
        str(place.store), place.target, spark_runner(job.spark), config=settings, progress=done.add, options=options,
    ) as archiving:
        adding = None if make_adding is None else make_adding()
        failed = step(archiving, adding, done)
    return done.report(archiving, adding, failed)


def _archive_all(
    job: Job, each: list[_Place], run: Callable[[_Place], dict[str, Any]], *, follow: bool
) -> list[dict[str, Any]]:
    """Archive stores beside each other, and return their reports by name. One that fails does not stop the others."""
    from tailrace.env.read_ahead import as_finished  # noqa: PLC0415 - the start of the command needs no threads
    from tailrace.spark.session import spark_reason  # noqa: PLC0415 - PySpark

    def attempt(place: _Place) -> dict[str, Any]:
        try:
            return run(place)
        except (StoreError, OSError) as error:
            reason = explained(error)
        except Exception as error:
            found = spark_reason(error)
            if found is None:
                raise
            reason = found
        job.tell(f"{place.name}: {reason}")
        return {"store": place.name, "error": reason}

    return sorted(
        as_finished(attempt, each, len(each) if follow else min(len(each), _STORES), job.spark.interruptAll),
        key=lambda one: str(one["store"]))


def _check_table(table: str, *, verify: bool, needs_table: bool) -> None:
    """Raise usage errors of the options for tables."""
    if table and not verify:
        raise usage("--table needs verified segments: leave --no-verify out")
    if not table and needs_table:
        raise usage("--catalog, --system-topics and --types need --table")


def _check_target(target: str, stores: list[Path]) -> None:
    """Raise ConfigError, OSError or MissingPackageError if the archive cannot be at its place."""
    from tailrace.spark.archive.job import check_places  # noqa: PLC0415 - PyArrow
    from tailrace.store.archive_store import is_remote  # noqa: PLC0415 - loads the store

    for store in stores:
        check_places(str(store), target)
    if not is_remote(target):
        need_room(Path(target))


def _times(every: str, lag: str) -> tuple[int, int]:
    """Return the period of --follow and the lag, in ms; 0 without a lag. Raises usage errors."""
    if (period_ms := duration(every, "--every")) < PERIOD_MIN_MS:
        raise usage(f"--every {every!r} is shorter than {PERIOD_MIN_MS}ms")
    if not lag:
        return period_ms, 0
    if (lag_ms := duration(lag, "--lag")) < _LAG_MIN_MS:
        raise usage(f"--lag {lag!r} is shorter than {_LAG_MIN_MS // 1_000}s")
    return min(period_ms, lag_ms // 2), lag_ms


def _lake(
    target: str, namespace: str, catalog: str, properties: dict[str, str], *, system_topics: bool
) -> "Lake":
    """Open the tables before Spark starts, so that a catalogue that is down is named first."""
    from tailrace.spark.lake.catalogue import Lake  # noqa: PLC0415 - PyIceberg
    from tailrace.store.archive_store import absolute_location  # noqa: PLC0415 - loads the store

    return Lake(
        absolute_location(target), namespace, BrokerConfig.from_properties(properties).broker_name, OsFileSystem(),
        catalogue=catalog, every_topic=system_topics)


def _schemas(path: Path) -> "TopicSchemas":
    """Read the file of --types, and its schemas, before Spark starts."""
    from tailrace.spark.lake.bodies.topics import TopicSchemas  # noqa: PLC0415 - PyArrow

    return TopicSchemas(str(path.absolute()), OsFileSystem())


def _report_all(job: Job, reports: list[dict[str, Any]]) -> None:
    """Print reports. Raises typer.Exit with code 1 if one has an error."""
    job.report(*reports)
    if any(one["error"] for one in reports):
        raise typer.Exit(1)


class _Archived:
    """The segments that a run has archived, for its progress and its report."""

    def __init__(self, job: Job, name: str = "") -> None:
        self._job = job
        self._name = name
        self._done: list[Manifest] = []
        self._ranges: list[Manifest] = []
        self._lag_ms = 0
        self._began = time.perf_counter()  # noqa: TID251 - a duration for people

    def add(self, manifest: "Manifest") -> None:
        """Print a segment."""
        self._done.append(manifest)
        self.tell(
            f"segment {manifest.segment}: {manifest.messages} messages, {len(manifest.files)} files"
            f"{', verified' if manifest.verified else ''}")

    def add_ranges(self, archiving: "ArchiveJob") -> None:
        """Print what a step has archived of the file that is still written."""
        self._lag_ms = max(self._lag_ms, archiving.lag_ms)
        for one in archiving.ranges:
            self._ranges.append(one)
            self.tell(
                f"the last segment up to {one.until}: {one.messages} messages, the oldest stored "
                f"{archiving.lag_ms / 1_000:.1f} s ago")

    def tell(self, text: str) -> None:
        """Print a line, which begins with the name of the store if there are several."""
        self._job.tell(f"{self._name}: {text}" if self._name else text)

    def report(self, archiving: "ArchiveJob", adding: "_Adding | None", failed: str) -> dict[str, Any]:
        """Print what failed, and return the report."""
        took = time.perf_counter() - self._began  # noqa: TID251
        done, size = self._done, sum(one.size for one in self._done)
        if failed:
            self.tell(failed)
        return {
            **({"store": self._name} if self._name else {}),
            "segments": len(done), "alreadyArchived": archiving.skipped, "readAgain": archiving.checked,
            "gone": archiving.gone, "bytes": size, "messages": sum(one.messages for one in done),
            "damagedMessages": sum(len(one.damaged) for one in done), "files": sum(len(one.files) for one in done),
            "archiveBytes": sum(file.size for one in done for file in one.files),
            "verified": all(one.verified for one in done), "seconds": round(took, 3),
            "gbPerSecond": round(size / took / 1e9, 3), "error": failed, "ranges": len(self._ranges),
            "messagesOfRanges": sum(one.messages for one in self._ranges), "lagSeconds": round(self._lag_ms / 1_000, 3),
            **({} if adding is None else adding.figures())}


class _Adding:
    """Adds archived segments to the tables, and counts them."""

    def __init__(
        self, job: Job, store: Path, target: str, tables: "Lake", settings: StoreConfig, broker: BrokerConfig,
        at_once: int, schemas: "TopicSchemas | None",
    ) -> None:
        from tailrace.spark.lake.job import LakeJob, spark_runner  # noqa: PLC0415 - PyIceberg

        self._job = job
        self._lake_job = LakeJob(
            str(store), target, tables, spark_runner(job.spark), broker=broker, config=settings, at_once=at_once,
            schemas=schemas)
        self._done: list[LakeReport] = []

    def step(self) -> None:
        """Add the segments that the archive has. Raises StoreError."""
        found = self._lake_job.step()
        self._done.append(found)
        if found.segments:
            self._job.tell(f"{found.segments} segments with {found.message_rows} messages are in the tables")
        elif found.ranges:
            self._job.tell(f"{found.message_rows} messages of the last segment are in the tables")
        if found.typed_rows:
            self._job.tell(
                f"{found.typed_rows} messages are in typed tables, {found.bad_bodies} with a body that does not fit")
        if found.waits:
            self._job.tell(f"the tables wait: {found.waits}")
        if found.refused:
            raise StoreError("; ".join(found.refused))

    def figures(self) -> dict[str, int]:
        """Return the members of the report."""
        return {
            "tableSegments": sum(one.segments for one in self._done),
            "tableMessages": sum(one.message_rows for one in self._done),
            "tableCommits": sum(one.commits for one in self._done),
            "tableRetries": sum(one.retries for one in self._done),
            "typedMessages": sum(one.typed_rows for one in self._done),
            "badBodies": sum(one.bad_bodies for one in self._done)}


def _once(
    archiving: "ArchiveJob", adding: _Adding | None, done: _Archived, *, verify: bool, accept_missing: bool, bar: bool
) -> str:
    """Verify the archive if ``verify``, then archive the sealed segments; return the errors as text."""
    failed = []
    try:
        if verify:
            with Progress("verify the archive") as progress:
                archiving.verify(accept_missing=accept_missing, share=progress if bar else None)
    except (StoreError, OSError) as error:
        failed.append(str(error))
    try:
        with Progress("archive") as progress:
            archiving.step(progress if bar else None)
        done.add_ranges(archiving)
    except (StoreError, OSError) as error:
        failed.append(str(error))
    if adding is not None:
        try:
            adding.step()
        except StoreError as error:
            failed.append(str(error))
    return "; ".join(dict.fromkeys(failed))


@contextmanager
def _set_by_signals() -> Iterator[threading.Event]:
    """Yield an event that a signal sets; further signals have no effect until the block ends."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in ending_signals()}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(
    archiving: "ArchiveJob", adding: _Adding | None, done: _Archived, every: float, ended: threading.Event
) -> str:
    """Archive until ``ended`` is set; return the last error. Each error is printed once."""
    done.tell("following; SIGINT, SIGTERM or SIGHUP ends it")
    failed, behind = "", adding is not None
    while not ended.is_set():
        try:
            made = archiving.step()
            done.add_ranges(archiving)
            if adding is not None and (made or archiving.ranges or behind):
                behind = True
                adding.step()
                behind = False
            failed = ""
        except (StoreError, OSError) as error:
            if str(error) != failed:
                done.tell(f"{error}; the next period tries again")
            failed = str(error)
        except Exception as error:
            if not ended.is_set():
                raise
            failed = f"the last step was cut off: {error}"  # the same signal has also ended Spark's JVM
        ended.wait(every)
    return failed


def restore(
    source: Annotated[str, typer.Argument(
        metavar="ARCHIVE", help="An archive. With --table and --catalog it may be gone.")],
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The directory to create.")],
    first: Annotated[int, typer.Option("--from", min=0, help="Position of the first segment.")] = 0,
    until: Annotated[int, typer.Option(min=0, help="Position after the last segment; 0: up to the last one.")] = 0,
    table: Annotated[
        str, typer.Option("--table", metavar="NAMESPACE", help="Read the table raw_BROKER, not manifests.")] = "",
    catalog: Annotated[str, typer.Option("--catalog", metavar="NAME", help="As for archive.")] = (
        "tailrace"),
    broker: Annotated[
        str, typer.Option("--broker", metavar="NAME", help="With --table: which broker's.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write archived CommitLog files back.

    The files are the same as before, byte for byte. Then run `tailrace recover STORE`, which creates their queues
    and index. Prints a line for each file.

    This command writes to STORE.
    """
    with errors():
        need_room(store)
    if store.exists() and any(store.iterdir()):
        raise usage(f"{store} is not empty")
    if not table and (broker or catalog != "tailrace"):
        raise usage("--catalog and --broker need --table")
    with errors(), ExitStack() as stack:
        from tailrace.spark.archive.restore import restore_segments  # noqa: PLC0415 - PyArrow
        from tailrace.store.archive_store import absolute_location, archive_at  # noqa: PLC0415

        end = until or 1 << 63
        if table:
            from tailrace.spark.lake.catalogue import Namespace  # noqa: PLC0415 - PyIceberg
            from tailrace.spark.lake.restore import raw_table, restore_table  # noqa: PLC0415

            there = stack.enter_context(
                Namespace(absolute_location(source), table, OsFileSystem(), catalogue=catalog, kind="raw"))
            segments = restore_table(raw_table(there, broker), str(store), first, end)
        else:
            segments = restore_segments(archive_at(source), str(store), first, end)
        show(segments, as_json=as_json)
