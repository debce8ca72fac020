"""Source, sink and jobs over Spark Connect: the client has no Java and no SparkContext, the server is a process."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from spark_daemons import connect_server

from tailrace.client import PullConsumer
from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts

pytest.importorskip("grpc_status")
pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=8000, commit_log_allocate_step=4096)
COUNT = 100
PROGRAM = textwrap.dedent("""
    import json, sys
    from typer.testing import CliRunner
    from tailrace.cli.app import app
    from tailrace.spark.session import connect_session
    url, store, archive, broker, checkpoint = sys.argv[1:]
    spark = connect_session(url)
    assert not hasattr(spark, "sparkContext")
    rows = spark.read.format("tailrace").option("minPartitions", "3").load(store)
    rows = rows.selectExpr("CAST(body AS string) body")
    found = {"rows": sorted(int(row["body"]) for row in rows.collect())}

    def run(*arguments):
        done = CliRunner().invoke(app, ["pipeline", *arguments, "--master", url])
        lines = done.stdout.splitlines()
        return done.exit_code, json.loads(lines[-1]) if lines else None, done.stderr

    found["archive"] = run("archive", store, archive)
    found["verify"] = run("archive", store, archive, "--verify")
    found["audit"] = run("audit", store)
    found["lag"] = run("lag", store)
    found["static"] = run("lag", store, "--conf", "spark.executor.cores=2")
    rows.write.format("tailrace").mode("append").option("broker", broker).option("topic", "batch").save()
    query = (
        spark.readStream.format("tailrace").option("startingOffsets", "earliest").load(store).select("body")
        .writeStream.format("tailrace").option("broker", broker).option("topic", "stream")
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    query.awaitTermination()
    found["rebuild"] = run("rebuild", store)
    print(json.dumps(found))
    spark.stop()
""")


@pytest.mark.long
def test_source_sink_and_jobs_work_over_spark_connect(spark_home, tailrace_broker, tmp_path):
    store = tmp_path / "in"
    with MessageStore.open(str(store), config=CONFIG, parts=StoreParts(services=False)) as opened:
        for number in range(COUNT):
            opened.put(Message(topic="a", body=b"%d" % number), queue_id=number % 3)
    with connect_server(spark_home) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, str(store), str(tmp_path / "archive"), tailrace_broker.broker,
             str(tmp_path / "checkpoint")],
            env={**os.environ, "JAVA_HOME": "/nowhere"}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["rows"] == list(range(COUNT))
    code, report, told = found["archive"]
    assert (code, report["error"], report["verified"]) == (0, "", True), told
    assert report["segments"] > 2
    code, again, told = found["verify"]
    assert (code, again["readAgain"]) == (0, report["segments"]), told
    code, line, told = found["audit"]
    assert (code, line["summary"]["records"], line["summary"]["findings"]) == (0, COUNT, 0), told
    assert found["lag"][0] == 0, found["lag"]
    assert found["static"][0] == 1
    assert "spark.executor.cores" in found["static"][2], "a setting that has no effect is refused"
    code, line, told = found["rebuild"]
    assert (code, line["mode"], line["scanned"]) == (0, "rebuild", COUNT), told
    with PullConsumer(broker=tailrace_broker.broker) as consumer:
        for topic in ("batch", "stream"):
            assert sorted(int(one.body) for one in consumer.messages(topic, follow=False)) == list(range(COUNT)), topic
