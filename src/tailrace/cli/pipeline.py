"""``tailrace pipeline``: jobs on Spark. Spark is imported only when a job runs."""

import importlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import (
    AsJson,
    Config,
    Store,
    errors,
    finite,
    key_values,
    read_properties,
    usage,
)
from tailrace.cli.contexts import tls_of
from tailrace.cli.output import print_fields, print_kinds, print_lines, show, wants_table
from tailrace.cli.problems import need_room
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, MissingPackageError, NotAStoreError, StoreError
from tailrace.formats.filenames import COMMITLOG, LOCK
from tailrace.node.serve_hint import locked_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as Session

__all__ = ["Conf", "Job", "Master", "audit", "need_spark", "rebuild", "recover_store", "replay", "run_job"]

_MASTERS = r"local(\[[0-9*, ]+\])?|local-cluster\[[0-9, ]+\]|(spark|k8s|sc)://.+|yarn"

Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="The Spark master, as for spark-submit, or sc://HOST:PORT: Spark "
                      "Connect.")]
Conf = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]


class Job:
    """A run of a job: it has a Spark session, prints progress lines on stderr and a report on stdout."""

    def __init__(self, name: str, spark: "Session", *, as_json: bool) -> None:
        self.name = name
        self.spark = spark
        self._as_json = as_json

    def tell(self, text: str) -> None:
        """Print a progress line."""
        print(f"tailrace pipeline {self.name}: {text}", file=sys.stderr, flush=True)

    def report(self, *lines: dict[str, Any]) -> None:
        """Print JSON lines in a pipe; on a terminal a table, or the members of a single line below each other."""
        if wants_table(as_json=self._as_json) and len(lines) == 1:
            print_fields(lines[0])
        else:
            show(lines, as_json=self._as_json)

    def report_kinds(self, lines: Iterable[dict[str, Any]]) -> None:
        """Print lines with one member each, which names their kind."""
        (print_kinds if wants_table(as_json=self._as_json) else print_lines)(lines)


def need_spark() -> None:
    """Raise MissingPackageError if a package of the extra `spark` is not installed."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise MissingPackageError("jobs on Spark", error.name or package, "spark") from None


@contextmanager
def run_job(
    name: str, master: str, conf: list[str] | None, stores: Iterable[Path] = (), *, archive: str = "",
    out: Path | None = None, as_json: bool = False, stage_bar: bool = True,
) -> Iterator[Job]:
    """Yield a job with its session. An error is printed as one line, with exit code 1 or 3.

    The session is stopped at the end if this function started it. Master, settings and paths are checked first,
    because the start of Spark takes seconds: ``stores``, an ``archive`` that is read, and ``out``, which the job makes.
    With ``stage_bar=False`` Spark shows no bar of its stages, because the job has a bar of its own.
    """
    settings = {}
    if not re.fullmatch(_MASTERS, master):
        raise usage(f"--master {master} is not local[N], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://URL")
    for item in conf or []:
        key, separator, value = item.partition("=")
        if not separator or not key.startswith("spark."):
            raise usage(f"--conf {item!r} is not spark.NAME=VALUE")
        settings[key] = value
    with errors():
        from tailrace.store.archive_store import MANIFESTS, is_remote  # noqa: PLC0415 - loads the store

        for store in stores:
            if not (store / COMMITLOG).is_dir():
                raise NotAStoreError(str(store), "it has no commitlog")
        if archive and not is_remote(archive) and not Path(archive, MANIFESTS).is_dir():
            raise ConfigError(f"{archive} is not an archive: it has no {MANIFESTS}")
        if out is not None:
            if out.exists():
                raise usage(f"{out} exists already")
            need_room(out)
        need_spark()
        from py4j.protocol import Py4JError  # noqa: PLC0415 - with PySpark
        from pyspark.logger import PySparkLogger  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from tailrace.spark.session import (  # noqa: PLC0415
            CONNECT,
            connect_session,
            local_session,
            spark_reason,
        )

        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it repeats the error messages
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # noqa: TID251 - its errors are raised as well
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if stage_bar and sys.stderr.isatty() and not master.startswith(CONNECT):
            settings.setdefault("spark.ui.showConsoleProgress", "true")
        spark: Session | None = None
        mine = SparkSession.getActiveSession() is None
        try:
            if master.startswith(CONNECT):
                spark = connect_session(master, conf=settings)
            else:
                spark = local_session(master, app_name=f"tailrace {name}", conf=settings)
            yield Job(name, spark, as_json=as_json)
        except (StoreError, OSError, typer.Exit):
            raise
        except Exception as error:
            reason = spark_reason(error)
            if reason is None:
                raise
            raise StoreError(f"pipeline {name}: {reason}") from error
        finally:
            if spark is not None and mine:
                with suppress(Py4JError, OSError):  # a signal to the process group ends Spark's JVM as well
                    spark.stop()


def audit(
    store: Store,
    out: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--out", metavar="DIR", help="Write findings as Parquet to DIR, and print only the summary."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Check a directory as `tailrace verify`, with Spark.

    Each task checks a segment. Prints each finding, and a summary. The exit code is 1 if there are findings.

    Nothing in STORE changes.
    """
    with run_job("audit", master, conf, [store], out=out, as_json=as_json) as job:
        from tailrace.spark.pipeline.audit import audit as run_audit  # noqa: PLC0415

        settings = StoreConfig.from_properties(read_properties(config))
        done = run_audit(job.spark, str(store), config=settings, tell=job.tell)
        if out is not None:
            done.findings.write.parquet(str(out))
        else:
            job.report_kinds({"finding": row.asDict()} for row in done.findings.toLocalIterator())
        job.tell(f"{done.summary['findings']} findings")
        job.report_kinds([{"summary": done.summary}])
        if done.summary["findings"]:
            raise typer.Exit(1)


def recover_store(
    name: str, store: Path, master: str, conf: list[str] | None, staging: str, config: Path | None,
    *, rebuild: bool, as_json: bool,
) -> None:
    """Run the job of `tailrace recover --spark` and `tailrace pipeline rebuild`."""
    with errors():
        if OsFileSystem().lock_holder(f"{store}/{LOCK}") is not None:
            raise locked_error(OsFileSystem(), str(store))  # the open raises it only after the start of Spark
    with run_job(name, master, conf, [store], as_json=as_json) as job:
        from tailrace.spark.pipeline.recover import recover  # noqa: PLC0415

        settings = StoreConfig.from_properties(read_properties(config))
        job.report(recover(
            job.spark, str(store), config=settings, rebuild=rebuild, staging=staging, tell=job.tell))


def rebuild(
    store: Store,
    staging: Annotated[
        str, typer.Option("--staging", metavar="DIR", help="A directory that all executors can reach; "
                          "default: inside the store.")] = "",
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Rebuild queues and index as `tailrace repair`, with Spark.

    Tasks read the log, from which queues and index are rebuilt. The last line is the report, as of
    `tailrace recover`. That command has --spark to recover without a rebuild.

    This command writes to STORE.
    """
    recover_store("rebuild", store, master, conf, staging, config, rebuild=True, as_json=as_json)


def replay(
    store: Store,
    topic: Annotated[list[str], typer.Option(
        "--topic", help="Replay this topic; may be repeated.", autocompletion=completion.topics)],
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Only messages that match this condition on the source's "
                          "columns.")] = "",
    to_broker: Annotated[str, typer.Option(metavar="HOST:PORT", help="Send to this broker.")] = "",
    to_namesrv: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Send to the brokers of this name server.")] = "",
    to_store: Annotated[
        str, typer.Option(metavar="DIR", help="Append to this directory, which no server may have open.")] = "",
    to_topic: Annotated[str, typer.Option(help="Send to this topic instead of the original one.")] = "",
    rate: Annotated[float, typer.Option(min=0, callback=finite, help="Messages a second; 0: no limit.")] = 0,
    ids: Annotated[str, typer.Option(help="Unique keys of the messages: keep or new.")] = "keep",
    progress: Annotated[
        str, typer.Option(metavar="FILE", help="Write the progress to this file; a second run continues there.")] = "",
    window: Annotated[
        int, typer.Option(min=1, help="Number of messages per send. After a kill at most this many are sent twice.")
    ] = 64,
    archive: Annotated[
        str, typer.Option(metavar="ARCHIVE", help="Archive with the messages that the log no longer has.")] = "",
    option: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--option", metavar="NAME=VALUE", help="Option of the source; may be repeated."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Send selected messages of a directory again.

    They are sent in the order of the log, each at least once.

    Nothing in STORE changes.
    """
    if bool(to_broker) + bool(to_namesrv) + bool(to_store) != 1:
        raise usage("use one of --to-broker, --to-namesrv and --to-store")
    if ids not in {"keep", "new"}:
        raise usage(f"--ids {ids} is not keep or new")
    if to_store and Path(to_store).resolve() == store.resolve():
        raise usage("--to-store is the same directory as STORE")
    options = key_values(option or [], "--option")
    if archive:
        options |= {"fallback": "archive", "archive": archive}
    if config is not None:
        options["config"] = str(config)
    with run_job("replay", master, conf, [store], archive=archive, as_json=as_json) as job:
        from tailrace.spark.pipeline import replay as jobs  # noqa: PLC0415

        wanted = jobs.Replay(
            path=str(store), topics=tuple(topic), where=where, options=options, to_topic=to_topic,
            rate=rate, keep_ids=ids == "keep", window=window, progress=progress)
        wanted.check()
        jobs.chosen_rows(job.spark, wanted)  # reports an invalid filter before a target is created
        with (
            jobs.StoreTarget(to_store) if to_store
            else jobs.BrokerTarget(broker=to_broker, namesrv=to_namesrv, tls=tls_of())
        ) as target:
            job.report(jobs.replay(job.spark, wanted, target, tell=job.tell))
