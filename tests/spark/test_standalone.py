"""A standalone cluster as docs/how-to/data/spark.md sets it up: master and worker in processes of their own."""

import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

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


class Daemon:
    """A process of Spark's, with the first line of its log that matches."""

    def __init__(self, home: Path, name: str, *arguments: str) -> None:
        from tailrace.spark.session import find_java_home

        environment = {
            **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m", "JAVA_HOME": str(find_java_home())}
        self.lines: list[str] = []
        self._found = threading.Event()
        self._pattern = re.compile("$^")
        self.process = subprocess.Popen(
            [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            if self._pattern.search(line):
                self._found.set()
        self._found.set()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches; the test's own limit of time applies."""
        self._pattern = re.compile(pattern)
        if not self._reader.is_alive() and not self.lines:
            self._reader.start()
        self._found.wait(240)
        for line in self.lines:
            if match := self._pattern.search(line):
                return match
        raise AssertionError("".join(self.lines[-40:]))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        if self._reader.ident is not None:
            self._reader.join(60)
        self.process.stdout.close()


@pytest.fixture
def cluster(spark_home, tmp_path):
    """A master and a worker on loopback, on ports that the system chose."""
    (tmp_path / "work").mkdir()
    running = [Daemon(spark_home, "master.Master", "--host", "127.0.0.1", "--port", "0",
                      "--webui-port", "0")]
    try:
        master = running[0].wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        running.append(Daemon(
            spark_home, "worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
            "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), master))
        running[1].wait_for("Successfully registered with master")
        yield master
    finally:
        for one in reversed(running):
            one.stop()


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
    assert list((tmp_path / "work").glob("app-*/0/stderr")), "the worker's executor did the work"
