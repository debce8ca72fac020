"""Stores in SQL, paths as URIs, schemas that a query names, and a checkpoint that a setting names."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.pytest_plugin import TailraceBroker

pytestmark = pytest.mark.spark
PROGRAM = textwrap.dedent("""
    import json, os, sys
    os.environ.pop("PYSPARK_PYTHON", None)  # as without an activated environment
    from pyspark.sql import SparkSession
    from tailrace.spark.session import register
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.read.format("tailrace").load(sys.argv[1])
        before = ""
    except Exception as error:
        before = str(error)
    count = register(spark).read.format("tailrace").load(sys.argv[1]).count()
    print(json.dumps({"before": "DATA_SOURCE_NOT_FOUND" in before, "count": count}))
    spark.stop()
""")
ROOTS = "spark.sql.streaming.checkpointLocation"


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "a store"  # a blank is %20 in a URI
    with MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=1 << 20)) as opened:
        for number in range(20):
            opened.put(Message(topic="a", body=b"%d" % number), queue_id=0)
        opened.wait_dispatched(60_000)
    return path


def test_a_view_in_sql_and_a_uri_are_read(spark, store):
    spark.sql(f"CREATE TEMPORARY VIEW messages USING tailrace OPTIONS (path '{store}', topic 'a')")
    assert spark.sql("SELECT max(queueOffset) AS top FROM messages").first().top == 19
    for path in (f"file:{store}", f"file://{store}", store.as_uri()):
        assert spark.read.format("tailrace").load(path).count() == 20


def test_a_table_of_the_catalog_is_refused_with_what_works(spark, store):
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING tailrace"):
        spark.sql(f"CREATE TABLE messages_table USING tailrace OPTIONS (path '{store}')")


def test_a_schema_may_choose_columns(spark, store):
    frame = spark.read.format("tailrace").schema("body binary, queueOffset bigint").load(str(store))
    assert frame.columns == ["body", "queueOffset"]
    assert sorted((row.queueOffset, bytes(row.body)) for row in frame.collect()) == [
        (number, b"%d" % number) for number in range(20)]


@pytest.mark.parametrize(("schema", "why"), [
    ("body string", "column body is binary, not string"),
    ("body binary, nothing bigint", "the source has no column nothing")])
def test_another_schema_is_refused_before_any_task(spark, store, schema, why):
    frame = spark.read.format("tailrace").schema(schema).load(str(store))
    with pytest.raises(Exception, match=why) as caught:
        frame.collect()
    assert type(caught.value).__name__ == "AnalysisException"


@pytest.mark.parametrize("name", [pytest.param("", marks=pytest.mark.long), "named"])
def test_a_checkpoint_that_a_setting_names_is_the_sinks(spark, store, tmp_path, name):
    broker = TailraceBroker(tmp_path / "to")
    broker.start()
    spark.conf.set(ROOTS, f"file://{tmp_path}/checkpoints")
    try:
        for _ in range(2):
            writer = (
                spark.readStream.format("tailrace").option("startingOffsets", "earliest")
                .option("columns", "body").load(str(store))
                .writeStream.format("tailrace").option("broker", broker.broker)
                .option("topic", "copy").trigger(availableNow=True))
            query = (writer.queryName(name) if name else writer).start()
            assert query.awaitTermination(120)
            assert query.exception() is None
            if not name:
                break  # Spark gives a query without a name another checkpoint each time
        [checkpoint] = (tmp_path / "checkpoints").iterdir()
        assert (checkpoint / "tailrace-sink" / "0.json").exists()
    finally:
        spark.conf.unset(ROOTS)
        broker.stop()
    copied = spark.read.format("tailrace").option("topic", "copy").load(str(tmp_path / "to"))
    assert copied.count() == 20, "once each, also when the query is started again"


@pytest.mark.long
@pytest.mark.slow
def test_a_session_whose_workers_run_another_python_needs_a_call(store):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store)], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {"before": True, "count": 20}
