"""``tailrace pipeline``: jobs on Spark. Nothing of Spark is loaded before a job runs."""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli.arguments import (
    Config,
    Store,
    errors,
    finite,
    key_values,
    read_properties,
    usage,
)
from tailrace.cli.connections import tls_of
from tailrace.cli.output import print_lines
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import NotAStoreError, StoreError, StoreLockedError
from tailrace.formats.filenames import COMMITLOG, LOCK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as Session

__all__ = ["Conf", "Job", "Master", "audit", "rebuild", "recover_store", "replay", "run_job"]

_MASTERS = r"local(\[[0-9*, ]+\])?|local-cluster\[[0-9, ]+\]|(spark|k8s)://.+|yarn"

Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs, as for spark-submit.")]
Conf = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]


class Job:
    """One run of a job: its session, a progress line on stderr, a JSON report on stdout."""

    def __init__(self, name: str, spark: "Session") -> None:
        self.name = name
        self.spark = spark

    def tell(self, text: str) -> None:
        """Say how far it is."""
        print(f"tailrace pipeline {self.name}: {text}", file=sys.stderr, flush=True)

    @staticmethod
    def report(*lines: dict[str, Any]) -> None:
        """Print JSON lines."""
        print_lines(lines)


@contextmanager
def run_job(
    name: str, master: str, conf: list[str] | None, stores: Iterable[Path] = ()
) -> Iterator[Job]:
    """A job with its session, which ends with it when it made it; an error is one line and exit code 1 or 3.

    What can be known to be wrong is said before Spark starts, which takes seconds: a master that
    cannot be, a setting that is none, a path of ``stores`` that is no store.
    """
    settings = {}
    if not re.fullmatch(_MASTERS, master):
        raise usage(f"--master {master} is not local[N], spark://HOST:PORT, yarn or k8s://URL")
    for item in conf or []:
        key, separator, value = item.partition("=")
        if not separator or not key.startswith("spark."):
            raise usage(f"--conf {item!r} is not spark.NAME=VALUE")
        settings[key] = value
    with errors():
        for store in stores:
            if not (store / COMMITLOG).is_dir():
                raise NotAStoreError(str(store), "it has no commitlog")
        try:
            for package in ("pyspark", "pyarrow"):
                importlib.import_module(package)
        except ModuleNotFoundError as error:
            print(f"tailrace: {error.name} is not installed, jobs on Spark need it: "
                  "pip install 'tailrace[spark]'", file=sys.stderr)
            raise typer.Exit(3) from None
        from pyspark.logger import PySparkLogger  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from tailrace.spark.session import local_session, spark_reason  # noqa: PLC0415

        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it repeats what we say
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if sys.stderr.isatty():
            settings.setdefault("spark.ui.showConsoleProgress", "true")
        spark: Session | None = None
        mine = SparkSession.getActiveSession() is None
        try:
            spark = local_session(master, app_name=f"tailrace {name}", conf=settings)
            yield Job(name, spark)
        except (StoreError, OSError, typer.Exit):
            raise
        except Exception as error:
            reason = spark_reason(error)
            if reason is None:
                raise
            raise StoreError(f"pipeline {name}: {reason}") from error
        finally:
            if spark is not None and mine:
                spark.stop()


def audit(
    store: Store,
    out: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--out", metavar="DIR", help="Write findings as Parquet there, print the summary alone."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    config: Config = None,
) -> None:
    """Do what `tailrace verify` does in tasks.

    Segment by segment. A JSON line for each finding and a summary; exit code 1 when there are findings.
    """
    with run_job("audit", master, conf, [store]) as job:
        from tailrace.spark.pipeline.audit import audit as run_audit  # noqa: PLC0415

        settings = StoreConfig.from_properties(read_properties(config))
        done = run_audit(job.spark, str(store), config=settings, tell=job.tell)
        if out is not None:
            done.findings.write.parquet(str(out))
        else:
            for row in done.findings.toLocalIterator():
                job.report({"finding": row.asDict()})
        job.tell(f"{done.summary['findings']} findings")
        job.report({"summary": done.summary})
        if done.summary["findings"]:
            raise typer.Exit(1)


def recover_store(
    name: str, store: Path, master: str, conf: list[str] | None, staging: str, config: Path | None,
    *, rebuild: bool,
) -> None:
    """The job behind `tailrace recover --spark` and `tailrace pipeline rebuild`."""
    with errors():
        if OsFileSystem().lock_holder(f"{store}/{LOCK}") is not None:
            raise StoreLockedError(str(store))  # as the open would, seconds later
    with run_job(name, master, conf, [store]) as job:
        from tailrace.spark.pipeline.recover import recover  # noqa: PLC0415

        settings = StoreConfig.from_properties(read_properties(config))
        job.report(recover(
            job.spark, str(store), config=settings, rebuild=rebuild, staging=staging, tell=job.tell))


def rebuild(
    store: Store,
    staging: Annotated[
        str, typer.Option("--staging", metavar="DIR", help="A directory that every executor sees; "
                          "default: inside the store.")] = "",
    master: Master = "local[*]",
    conf: Conf = None,
    config: Config = None,
) -> None:
    """Do what `tailrace repair` does in tasks.

    Tasks read the log; queues and index are built anew. The last line is the report of
    `tailrace recover`, which has --spark for the same.
    """
    recover_store("rebuild", store, master, conf, staging, config, rebuild=True)


def replay(
    store: Store,
    topic: Annotated[list[str], typer.Option("--topic", help="Replay this topic; may be repeated.")],
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Which messages, by the source's columns.")] = "",
    to_broker: Annotated[str, typer.Option(metavar="HOST:PORT", help="Send to this broker.")] = "",
    to_namesrv: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Send to the brokers of this name server.")] = "",
    to_store: Annotated[
        str, typer.Option(metavar="DIR", help="Put into this directory, which no server has open.")] = "",
    to_topic: Annotated[str, typer.Option(help="Under this topic instead of their own.")] = "",
    rate: Annotated[float, typer.Option(min=0, callback=finite, help="Messages a second; 0: as fast as it goes.")] = 0,
    ids: Annotated[str, typer.Option(help="keep or new: the messages' unique keys.")] = "keep",
    progress: Annotated[
        str, typer.Option(metavar="FILE", help="Note there how far it is; a second run goes on.")] = "",
    window: Annotated[
        int, typer.Option(min=1, help="So many are sent together; no more come twice after a kill.")
    ] = 64,
    archive: Annotated[
        str, typer.Option(metavar="DIR", help="Read there what the log has no more.")] = "",
    option: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--option", metavar="NAME=VALUE", help="Of the source; may be repeated."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    config: Config = None,
) -> None:
    """Send chosen messages of a directory again.

    In the order of its log, each at least once.
    """
    if bool(to_broker) + bool(to_namesrv) + bool(to_store) != 1:
        raise usage("say one of --to-broker, --to-namesrv and --to-store")
    if ids not in {"keep", "new"}:
        raise usage(f"--ids {ids} is not keep or new")
    if to_store and Path(to_store).resolve() == store.resolve():
        raise usage("--to-store is the directory that is read")
    options = key_values(option or [], "--option")
    if archive:
        options |= {"fallback": "archive", "archive": archive}
    if config is not None:
        options["config"] = str(config)
    with run_job("replay", master, conf, [store]) as job:
        from tailrace.spark.pipeline import replay as jobs  # noqa: PLC0415

        wanted = jobs.Replay(
            path=str(store), topics=tuple(topic), where=where, options=options, to_topic=to_topic,
            rate=rate, keep_ids=ids == "keep", window=window, progress=progress)
        wanted.check()
        jobs.chosen_rows(job.spark, wanted)  # a filter that cannot be, before a target is made
        with (
            jobs.StoreTarget(to_store) if to_store
            else jobs.BrokerTarget(broker=to_broker, namesrv=to_namesrv, tls=tls_of())
        ) as target:
            job.report(jobs.replay(job.spark, wanted, target, tell=job.tell))
