"""``tailrace pipeline traffic|lag|timers|retention``: tables on a terminal, as JSON lines or as Parquet."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import AsJson, Config, Store, errors, read_properties
from tailrace.cli.pipeline import Conf, Job, Master, run_job
from tailrace.config import StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["lag", "retention", "timers", "traffic"]

_PERIODS: Final = ("minute", "hour", "day")


def _period(value: str) -> str:
    """Return a period of the command line. Raises BadParameter for another word."""
    if value not in _PERIODS:
        raise typer.BadParameter(f"{value} is not one of {', '.join(_PERIODS)}")
    return value


By = Annotated[str, typer.Option(
    "--by", help="minute, hour or day, in UTC.", callback=_period, autocompletion=completion.one_of(*_PERIODS))]
Out = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--out", metavar="DIR", help="Write the rows as Parquet to DIR, not to stdout."),
]


def _show(job: Job, table: "DataFrame", out: Path | None) -> list[dict[str, Any]]:
    """Print or write a table; return its rows if they were printed."""
    from tailrace.spark.pipeline.tables import plain  # noqa: PLC0415

    if out is not None:
        table.write.parquet(str(out))
        job.report({"written": str(out)})
        return []
    rows = [dict(plain(row.asDict())) for row in table.collect()]
    job.tell(f"{len(rows)} rows")
    job.report(*rows)
    return rows


def traffic(
    store: Store, by: By = "hour",
    archive: Annotated[
        str,
        typer.Option("--archive", metavar="ARCHIVE", help="Also count messages that only this archive has."),
    ] = "",
    out: Out = None, master: Master = "local[*]", conf: Conf = None, as_json: AsJson = False, config: Config = None,
) -> None:
    """Print messages and bytes of each topic over store time.

    Nothing in STORE changes.
    """
    with run_job("traffic", master, conf, [store], archive=archive, out=out, as_json=as_json) as job:
        from tailrace.spark.pipeline import tables  # noqa: PLC0415

        _show(job, tables.traffic(
            job.spark, str(store), bucket=by, config_file=str(config or ""), archive=archive), out)


def lag(
    store: Store, out: Out = None, master: Master = "local[*]", conf: Conf = None,
    as_json: AsJson = False, config: Config = None,
) -> None:
    """Print the lag of consumer groups.

    There is a row for each group and queue.

    Nothing in STORE changes.
    """
    with run_job("lag", master, conf, [store], out=out, as_json=as_json) as job:
        from tailrace.spark.pipeline import tables  # noqa: PLC0415

        _show(job, tables.lag(job.spark, str(store), config_file=str(config or "")), out)


def timers(
    store: Store, by: By = "hour",
    revise: Annotated[
        bool, typer.Option("--revise", help="First rewrite config/timermetrics from a new count; no server may have "
                           "the directory open.")] = False,
    out: Out = None, master: Master = "local[*]", conf: Conf = None,
    as_json: AsJson = False, config: Config = None,
) -> None:
    """Print pending timers.

    There is a row for each period and topic. After the rows come the topics whose count in config/timermetrics
    differs.

    Without --revise nothing in STORE changes. This command writes to STORE only with --revise.
    """
    if revise:
        from tailrace.node.message_store import MessageStore  # noqa: PLC0415
        from tailrace.node.store_opening import StoreParts  # noqa: PLC0415

        with errors():
            settings = StoreConfig.from_properties(read_properties(config))
            # Each open counts the timers of the timer log. Without services it delivers nothing.
            MessageStore.open(
                store, config=settings, create=False, parts=StoreParts(services=False, must_write=True)).close()
    with run_job("timers", master, conf, [store], out=out, as_json=as_json) as job:
        from tailrace.spark.pipeline import tables  # noqa: PLC0415

        rows = _show(job, tables.timers_by_time(
            job.spark, str(store), bucket=by, config_file=str(config or "")), out)
        if out is None:
            pending: Counter[str] = Counter()
            for row in rows:
                pending[row["topic"]] += row["pending"]
            job.report(*({"timermetrics": odd} for odd in tables.timer_metrics(str(store), pending)))


def retention(
    store: Store,
    archive: Annotated[
        str,
        typer.Option("--archive", metavar="ARCHIVE", help="Show which segments this archive has, verified; "
                     "default: archiveDirectory of --config."),
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="All segments except the last, not only those that may be deleted.")
    ] = False,
    out: Out = None, master: Master = "local[*]", conf: Conf = None,
    as_json: AsJson = False, config: Config = None,
) -> None:
    """Print what the next deletions remove.

    For each segment and topic: messages and bytes, messages that groups have not consumed, pending timers, and what
    is not archived. `tailrace retention` shows which segments may be deleted.

    Nothing in STORE changes.
    """
    with run_job("retention", master, conf, [store], archive=archive, out=out, as_json=as_json) as job:
        from tailrace.cli.retention import explain_retention  # noqa: PLC0415
        from tailrace.spark.pipeline import tables  # noqa: PLC0415

        settings = StoreConfig.from_properties(read_properties(config))
        view = explain_retention(str(store), settings)
        going = [
            tables.Deletion(
                verdict.facts.file_from_offset, verdict.facts.file_from_offset + verdict.facts.size,
                verdict.rule.name, verdict.expires_ms)
            for verdict in (view.segments[:-1] if every else view.segments)
            if every or verdict.rule.deletable
        ]
        job.tell(f"{len(going)} of {len(view.segments)} segments")
        _show(job, tables.retention(
            job.spark, str(store), going, archive=archive or settings.archive_directory,
            config_file=str(config or "")), out)
