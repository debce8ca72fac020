"""An act of the demo: archive a store, let retention delete, and query both as one table with Spark and with DuckDB.

Run as a program, it is the query: ``demo_archive.py STORE ARCHIVE``.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tailrace.client import Producer
from tailrace.model import Message

MESSAGES = 4000
QUERY = (
    "SELECT topic, tags, count(*) AS messages, count(DISTINCT body) AS bodies, min(commitLogOffset) AS first, "
    "max(commitLogOffset) AS last FROM messages GROUP BY topic, tags ORDER BY topic, tags")


def archive_act(
    scratch: Path, console: Console, tailrace: Callable[..., list[dict[str, Any]]], serve: Any
) -> None:
    """Archive, deletion by the running broker, one query over archive and log."""
    store, archive, config = scratch / "history", scratch / "archive", scratch / "history.conf"
    # Files of 1 MiB that expire immediately: the story of three days in a second.
    config.write_text(
        "mappedFileSizeCommitLog=1048576\nfileReservedTime=0\n"
        f"deleteCommitLogFilesInterval=0\narchiveDirectory={archive}\n")
    server = serve(store, config)
    try:
        with Producer(broker=server.broker, group="history") as producer:
            for first in range(0, MESSAGES, 50):
                producer.send_batch([
                    Message(topic="visits", body=b"visit %d " % number * 60, tags=("web", "app")[number % 2],
                            keys=[f"visit-{number}"])
                    for number in range(first, first + 50)])
        files = sorted((store / "commitlog").iterdir())
        console.print(f"  {MESSAGES} messages in {len(files)} CommitLog files, the broker is running")
        oldest = next(
            line for line in tailrace("retention", store, "--config", config, "--json")
            if line["kind"] == "file")
        if oldest["deletable"] or not oldest["pins"]:
            raise SystemExit(f"retention does not wait for the archive: {oldest}")
        why = str(oldest["pins"][0]["holder"]).removeprefix(str(archive))
        console.print(f"  all have expired, the oldest stays: the archive{why}")
        report = tailrace("pipeline", "archive", store, archive, "--master", "local[2]")[-1]
        console.print(
            f"  {report['segments']} sealed files as zstd Parquet: {report['bytes'] / 1e6:.1f} MB became "
            f"{report['archiveBytes'] / 1e6:.1f} MB, [green]read back and compared byte for byte[/green]")
        gone = tailrace("retention", store, "--delete-now", "--config", config, "--json")[0]
        console.print(f"  {len(gone['files'])} CommitLog files deleted by {gone['by']}")
        if not gone["files"]:
            raise SystemExit("retention deleted nothing")
        done = subprocess.run(
            [sys.executable, __file__, store, archive], capture_output=True, text=True, timeout=300,
            check=False)
        if done.returncode:
            raise SystemExit(f"Spark failed: {done.stderr[-2000:]}")
        result = json.loads(done.stdout.strip().splitlines()[-1])
        if result["messages"] != MESSAGES or result["live"] >= MESSAGES:
            raise SystemExit(f"{result['messages']} messages of {MESSAGES}, {result['live']} in the log")
        console.print(f"  the log alone has {result['live']} of them; one query over archive and log, by Spark:")
        console.print('  [bold]spark.read.format("tailrace").option("fallback", "archive")'
                      f'.option("archive", ARCHIVE).load(HISTORY); {QUERY}[/bold]')
        _show(console, result["rows"])
        console.print(f"  [green]all {result['messages']}[/green], in {result['took_s']:.1f} s")
        _with_duckdb(console, tailrace, store, archive, result["rows"])
    finally:
        server.end(signal.SIGTERM)


def _show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2))
    for name in rows[0]:
        table.add_column(name, justify="right" if name not in {"topic", "tags"} else "left")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def _with_duckdb(
    console: Console, tailrace: Callable[..., list[dict[str, Any]]], store: Path, archive: Path,
    by_spark: list[dict[str, Any]],
) -> None:
    """The same query without Spark."""
    if importlib.util.find_spec("duckdb") is None:
        console.print("  [yellow]skipped[/yellow] the same query by DuckDB: install the extra sql")
        return
    began = time.perf_counter()
    rows = tailrace("sql", store, QUERY, "--archive", archive)
    took = time.perf_counter() - began
    _show(console, rows)
    if rows != by_spark:
        raise SystemExit(f"DuckDB and Spark differ: {rows} and {by_spark}")
    console.print(f"  [green]the same answer by DuckDB[/green], in {took:.1f} s with the start of Python")


def query(store: str, archive: str) -> dict[str, Any]:
    """One query over archive and log."""
    from tailrace.spark.session import local_session

    spark = local_session("local[2]", app_name="tailrace demo")
    columns = "topic,tags,commitLogOffset,body"
    live = spark.read.format("tailrace").option("columns", columns).load(store).count()
    began = time.perf_counter()
    spark.read.format("tailrace").option("fallback", "archive").option("archive", archive).option(
        "columns", columns).load(store).createOrReplaceTempView("messages")
    rows = spark.sql(QUERY).collect()
    took = time.perf_counter() - began
    spark.stop()
    return {
        "live": live, "took_s": took, "messages": sum(row["bodies"] for row in rows),
        "rows": [row.asDict() for row in rows]}


if __name__ == "__main__":
    print(json.dumps(query(*sys.argv[1:])))
