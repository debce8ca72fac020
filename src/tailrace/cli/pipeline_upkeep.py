"""``tailrace pipeline compact|expire|forget``: jobs on the tables of an archive."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli.arguments import AsJson, duration, errors, key_values, usage
from tailrace.cli.pipeline import Conf, Job, Master, need_spark, run_job
from tailrace.cli.pipeline_archive import Archive
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError

if TYPE_CHECKING:
    from tailrace.spark.lake.catalogue import LakeTable
    from tailrace.spark.lake.swap import Rewriter

__all__ = ["compact", "expire", "forget"]

Table = Annotated[str, typer.Option("--table", metavar="NAMESPACE", help="Namespace of the tables.")]
Catalog = Annotated[str, typer.Option("--catalog", metavar="NAME", help="As for archive.")]
_ORPHANS_MIN_MS = 3_600_000


@contextmanager
def _tables(
    name: str, archive: str, namespace: str, catalog: str, master: str, conf: list[str] | None, *, as_json: bool
) -> Iterator[tuple[Job, "list[LakeTable]", "Rewriter"]]:
    """Yield a job, the tables of a namespace, and what runs their tasks. Tables are opened before Spark starts."""
    with errors():
        need_spark()
        from tailrace.spark.lake.catalogue import Namespace  # noqa: PLC0415 - PyIceberg
        from tailrace.spark.lake.rewrite import run_task  # noqa: PLC0415
        from tailrace.spark.lake.swap import spark_runner  # noqa: PLC0415
        from tailrace.store.archive_store import absolute_location  # noqa: PLC0415

        opened = Namespace(absolute_location(archive), namespace, OsFileSystem(), catalogue=catalog)
    with opened, run_job(name, master, conf, as_json=as_json) as job:
        yield job, opened.tables, spark_runner(job.spark, run_task)


def compact(
    archive: Archive,
    table: Table,
    catalog: Catalog = "tailrace",
    target_mib: Annotated[
        int, typer.Option("--target-mib", min=1, max=16_384, metavar="MIB", help="Size of new files in MiB.")] = 512,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write the small files of each day of the tables together.

    Rows are sorted by topic. Programs that read the tables are not disturbed, and the archive job may run.
    """
    with _tables("compact", archive, table, catalog, master, conf, as_json=as_json) as (job, tables, run):
        from tailrace.spark.lake.upkeep import compact as compact_table  # noqa: PLC0415

        for one in _written(tables):
            done = compact_table(one, run, target_bytes=target_mib << 20)
            job.report({"table": done.table, "filesBefore": done.files_before, "filesAfter": done.files_after})


def expire(
    archive: Archive,
    table: Table,
    catalog: Catalog = "tailrace",
    snapshots: Annotated[
        str, typer.Option("--snapshots", metavar="TIME", help="Forget snapshots that are older.")] = "7d",
    orphans: Annotated[
        str, typer.Option("--orphans", metavar="TIME", help="Remove older files that no snapshot names.")] = "3d",
    rows: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option("--rows", metavar="TOPIC=TIME", help="Remove older rows of a topic; may be repeated."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Remove old rows, old snapshots and unused files of the tables.

    Files of the archive stay.
    """
    lifetimes = {topic: duration(text, "--rows") for topic, text in key_values(rows or [], "--rows").items()}
    snapshots_ms, orphans_ms = duration(snapshots, "--snapshots"), duration(orphans, "--orphans")
    if orphans_ms < _ORPHANS_MIN_MS:
        raise usage(f"--orphans {orphans!r} is shorter than 1h: files of a job that still runs could be removed")
    now_ms = SystemClock().now_ms()
    with _tables("expire", archive, table, catalog, master, conf, as_json=as_json) as (job, tables, run):
        from tailrace.spark.lake.orphans import expire_older_snapshots, remove_orphans  # noqa: PLC0415
        from tailrace.spark.lake.upkeep import remove_old_rows  # noqa: PLC0415

        for one in tables:
            removed = 0
            if lifetimes and one.kind != "raw":
                removed = remove_old_rows(
                    one, run, {topic: (now_ms - age) * 1_000 for topic, age in lifetimes.items()}).rows_removed
            expired = expire_older_snapshots(one, now_ms - snapshots_ms)
            files, size = remove_orphans(one, OsFileSystem(), now_ms - orphans_ms)
            job.report({
                "table": one.name, "rowsRemoved": removed, "snapshotsExpired": expired, "filesRemoved": files,
                "bytesRemoved": size})


def forget(
    archive: Archive,
    table: Table,
    proof: Annotated[Path, typer.Option("--proof", metavar="FILE", help="A new file that says what was removed.")],
    topic: Annotated[str, typer.Option("--topic", help="Only messages of this topic.")] = "",
    key: Annotated[str, typer.Option("--key", help="Only messages with this key or unique key.")] = "",
    catalog: Catalog = "tailrace",
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Remove a topic, or a key, from all files of the tables.

    Older snapshots are forgotten, and no job adds the rows again. Files of the archive and of the broker stay: the
    proof counts the rows that they have. The exit code is 1 if tables got such rows in the meantime.
    """
    if not topic and not key:
        raise usage("--topic or --key is needed")
    if proof.exists():
        raise usage(f"{proof} exists already")
    with _tables("forget", archive, table, catalog, master, conf, as_json=as_json) as (job, tables, run):
        from tailrace.spark.lake import forget as forgetting  # noqa: PLC0415
        from tailrace.spark.lake.conditions import Condition  # noqa: PLC0415

        wanted, files = Condition(topic, key), OsFileSystem()
        done: list[forgetting.TableProof] = []
        in_raw: dict[str, int] = {}
        try:
            for one in _written(tables):
                if (earlier := forgetting.finish_forgetting(one, run, files)) is not None:
                    job.tell(f"finished an earlier run for {earlier.topic} {earlier.key}".rstrip())
                    done.append(earlier)
                if one.kind == "messages" or not topic or one.topic == topic:
                    done.append(forgetting.forget(
                        one, wanted, run, clock=SystemClock(), entropy=SystemEntropy(), file_system=files))
            in_raw |= {one.name: forgetting.rows_left(one, wanted, run) for one in tables if one.kind == "raw"}
        finally:
            if done:  # a later table may have failed
                forgetting.write_proof(
                    str(proof.absolute()), forgetting.Proof(topic, key, done, in_raw), files)
        job.report(_summary(proof, done, in_raw))
        if left := sum(one.rows_left for one in done):
            raise StoreError(f"the tables have {left} rows that were added in the meantime: run it again")


def _written(tables: "list[LakeTable]") -> "list[LakeTable]":
    """Return the tables whose files are their own: those of ``raw`` are the archive's."""
    return [one for one in tables if one.kind != "raw"]


def _summary(proof: Path, done: list[Any], in_raw: dict[str, int]) -> dict[str, Any]:
    return {
        "proof": str(proof), "rowsRemoved": sum(one.rows_removed for one in done),
        "filesRemoved": sum(len(one.files_removed) for one in done), "rowsInArchive": sum(in_raw.values())}
