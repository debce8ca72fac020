"""Executors in processes of their own read a store, even when they are killed, audit it and build its queues again."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=8000, max_hash_slot_num=50,
    max_index_num=500, commit_log_allocate_step=4096)
PROGRAM = textwrap.dedent("""
    import json, os, signal, sys, time
    from tailrace.spark.session import local_session
    spark = local_session("local-cluster[2,1,1024]")
    frame = (
        spark.read.format("tailrace").option("columns", "queueOffset,body")
        .option("minPartitions", "8").load(sys.argv[1]))
    rows = sorted((row["queueOffset"], bytes(row["body"]).decode()) for row in frame.collect())
    # Workers are children of a daemon, one an executor.
    daemons = (
        spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).distinct().collect())
    # A task that has read something kills its executor, once a round.
    def kill_once(batches, marker=None):
        for batch in batches:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                yield batch
                continue
            daemon = os.getppid()
            fields = open(f"/proc/{daemon}/stat").read().rpartition(")")[2].split()
            yield batch
            os.kill(int(fields[1]), signal.SIGKILL)
            time.sleep(60)
    killed = []
    for number in range(3):
        marker = f"{sys.argv[1]}.killed{number}"
        read = frame.mapInArrow(
            lambda batches, marker=marker: kill_once(batches, marker), frame.schema)
        killed.append(sorted(row["queueOffset"] for row in read.collect()))
        os.remove(marker)
    from tailrace.spark.pipeline.audit import audit
    from tailrace.spark.pipeline.recover import recover
    found = audit(spark, sys.argv[1]).summary
    told = []
    report = recover(spark, sys.argv[1], rebuild=True, tell=told.append)
    print(json.dumps({
        "rows": rows, "killed": killed, "parts": frame.rdd.getNumPartitions(), "daemons": daemons, "audit": found,
        "report": report, "told": told, "again": audit(spark, sys.argv[1]).summary}))
    spark.stop()
""")


@pytest.mark.long
def test_executors_read_audit_and_rebuild_a_store(spark_home, tmp_path):
    with MessageStore.open(str(tmp_path / "store"), config=CONFIG, parts=StoreParts(services=False)) as store:
        for number in range(200):
            store.put(Message(topic="a", body=b"%d" % number))
    queue = tmp_path / "store" / "consumequeue" / "a" / "0" / "0".zfill(20)
    sound = queue.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1",
             "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=600, check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("\tat ", "WARNING"))]
    assert done.returncode == 0, "\n".join(said[:60])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["rows"] == [[number, str(number)] for number in range(200)]
    assert found["parts"] == 8
    assert len(found["daemons"]) == 2
    assert found["killed"] == [list(range(200))] * 3
    assert list((spark_home / "work").iterdir())
    assert (found["audit"]["records"], found["audit"]["findings"]) == (200, 0)
    assert (found["report"]["mode"], found["report"]["scanned"]) == ("rebuild", 200)
    assert not [line for line in found["told"] if "scanned here" in line]
    assert found["again"] == found["audit"]
    assert queue.read_bytes() == sound
