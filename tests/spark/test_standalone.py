"""A standalone cluster as docs/how-to/data/spark.md says: master and worker in processes of their own."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from spark_daemons import master_and_workers

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = textwrap.dedent("""
    import json, os, sys
    os.environ.pop("PYSPARK_PYTHON", None)  # as without an activated environment
    from pyspark.sql import SparkSession
    from tailrace.spark.session import register
    spark = (
        SparkSession.builder.master(sys.argv[1]).appName("standalone")
        .config("spark.pyspark.python", sys.argv[3])
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m").config("spark.cores.max", "2")
        .config("spark.ui.enabled", "false").getOrCreate())
    register(spark)
    frame = (
        spark.read.format("tailrace").option("columns", "queueOffset,body")
        .option("minPartitions", "4").load(sys.argv[2]))
    rows = sorted((row["queueOffset"], bytes(row["body"]).decode()) for row in frame.collect())
    where = spark.sparkContext.parallelize(range(4), 4).map(
        lambda _: (sys.executable, os.path.exists("/proc/%d" % os.getppid()))).collect()
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    print(json.dumps({
        "rows": rows, "parts": frame.rdd.getNumPartitions(), "python": sorted({one for one, _ in where}),
        "executors": len(executors) - 1, "master": spark.sparkContext.master}))
    spark.stop()
""")


@pytest.fixture
def cluster(spark_home, tmp_path):
    """A master and a worker on loopback, on ports that the system chose."""
    with master_and_workers(spark_home, tmp_path / "work", 1) as (master, _):
        yield master


@pytest.mark.long
def test_a_standalone_cluster_reads_a_store(cluster, spark_home, tmp_path):
    with MessageStore.open(str(tmp_path / "store"), config=StoreConfig(
        mapped_file_size_commit_log=4096, commit_log_allocate_step=4096)) as store:
        for number in range(100):
            store.put(Message(topic="a", body=b"%d" % number), queue_id=0)
        store.wait_dispatched(60_000)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home)}
    environment["PATH"] = "/usr/bin:/bin"  # its python3 has no PySpark
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster, str(tmp_path / "store"), sys.executable],
        env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["rows"] == [[number, str(number)] for number in range(100)]
    assert found["parts"] == 4
    assert found["python"] == [sys.executable]
    assert found["executors"] == 1
    assert found["master"] == cluster
    assert list((tmp_path / "work").glob("0/app-*/0/stderr")), "the worker's executor did the work"
