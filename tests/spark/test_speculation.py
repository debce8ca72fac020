"""Tasks that Spark runs twice at a time: a cluster whose two workers have addresses of their own.

Spark gives a slow task's twin to another host only, so ``local-cluster`` never has one.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from tailrace.client import PullConsumer
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.spark.session import find_java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COUNT, BATCHES = 120, 3
PROGRAM = textwrap.dedent("""
    import json, os, sys, time
    from pyspark import TaskContext
    from tailrace.spark.session import local_session
    master, store, broker, checkpoint, marks, most = sys.argv[1:]
    spark = local_session(master, conf={
        "spark.speculation": "true", "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.25", "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms", "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})

    def one_is_slow(batches):  # its first try has read a part and does not go on until its twin is through
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId")
        name = f"{marks}/{batch}"
        slow = context.partitionId() == 0 and context.attemptNumber() == 0
        for one in batches:
            if slow:
                yield one.slice(0, one.num_rows // 2)
                for _ in range(600):
                    if os.path.exists(name):
                        break
                    time.sleep(0.1)
                yield one.slice(one.num_rows // 2)
            else:
                yield one
        if context.partitionId() == 0 and not slow:
            open(name, "w").close()

    rows = (
        spark.readStream.format("tailrace").option("startingOffsets", "earliest")
        .option("columns", "body").option("minPartitions", "4").option("maxOffsetsPerTrigger", most)
        .load(store))
    query = (
        rows.mapInArrow(one_is_slow, rows.schema)
        .writeStream.format("tailrace").option("broker", broker).option("topic", "twice")
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    query.awaitTermination()
    print(json.dumps({"batches": query.lastProgress["batchId"] + 1 if query.lastProgress else 0}))
    spark.stop()
""")


@contextlib.contextmanager
def running(*command, env, until):
    """A process of the cluster, from when it has said something on; its match."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        start_new_session=True) as process:
        try:
            for line in process.stdout:
                if found := re.search(until, line):
                    break
            else:
                raise AssertionError(f"{command} ended")
            yield found
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_twins_of_slow_tasks_double_nothing(spark_home, tailrace_broker, tmp_path):
    with MessageStore.open(str(tmp_path / "in")) as store:
        for number in range(COUNT):
            store.put(Message(topic="in", body=b"%d" % number))
        store.wait_dispatched(60_000)
    (tmp_path / "marks").mkdir()
    env = {**os.environ, "JAVA_HOME": find_java_home(), "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable,
           "SPARK_LOCAL_IP": "127.0.0.1"}
    start = str(spark_home / "bin" / "spark-class"), "org.apache.spark.deploy.{}"
    with contextlib.ExitStack() as cluster:
        master = cluster.enter_context(running(
            start[0], start[1].format("master.Master"), "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0", env=env, until=r"Starting Spark master at (spark://\S+)"))[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            cluster.enter_context(running(
                start[0], start[1].format("worker.Worker"), "--host", host, "--webui-port", "0",
                "--cores", "2", "--memory", "600m", master,
                env={**env, "SPARK_LOCAL_IP": host}, until="Successfully registered"))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, str(tmp_path / "in"), tailrace_broker.broker,
             str(tmp_path / "checkpoint"), str(tmp_path / "marks"), str(COUNT // BATCHES)],
            env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {"batches": BATCHES}
    assert len(list((tmp_path / "marks").iterdir())) == BATCHES  # each batch had a twin
    with PullConsumer(broker=tailrace_broker.broker) as consumer:
        bodies = sorted(int(one.body) for one in consumer.messages("twice", follow=False))
    assert bodies == list(range(COUNT))
