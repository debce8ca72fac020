"""A standalone cluster with two workers of which one is killed in the archive, the batch sink and the stream.

Killed with -9 is the process group of the worker: the worker, its executors, their Python.
"""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
from spark_daemons import master_and_workers, worker_of

from tailrace.client import PullConsumer
from tailrace.config import StoreConfig
from tailrace.errors import RemotingError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.spark.session import find_java_home
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = StoreConfig(mapped_file_size_commit_log=32 << 10, commit_log_allocate_step=4096)
COUNT = 1500
PROGRAM = textwrap.dedent("""
    import json, sys, time
    from tailrace.spark.archive.job import ArchiveOptions, archive_store
    from tailrace.spark.session import local_session, register
    master, store, archive, broker, checkpoint = sys.argv[1:]
    spark = register(local_session(master, conf={
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m", "spark.executor.cores": "1"}))

    def phase(name, result=None):
        print(json.dumps([name, result]), flush=True)
        sys.stdin.readline()  # two workers are there

    def slow(batches):
        for batch in batches:
            for at in range(0, batch.num_rows, 20):
                yield batch.slice(at, 20)
                time.sleep(0.05)

    phase("ready")
    made = archive_store(spark, store, archive, options=ArchiveOptions(piece_bytes=1 << 16))
    phase("archived", len(made))
    rows = (spark.read.format("tailrace").option("columns", "body,queueId").option("minPartitions", "8").load(store)
            .select("body").mapInArrow(slow, "body binary"))
    rows.write.format("tailrace").mode("append").option("broker", broker).option("topic", "batch").save()
    phase("written")
    query = (
        spark.readStream.format("tailrace").option("startingOffsets", "earliest").option("columns", "body")
        .option("minPartitions", "4").option("maxOffsetsPerTrigger", "300").load(store)
        .mapInArrow(slow, "body binary").writeStream.format("tailrace").option("broker", broker)
        .option("topic", "stream").option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    query.awaitTermination()
    phase("streamed", query.lastProgress["batchId"] + 1)
    spark.stop()
""")


class Cluster:
    """The driver, and workers of which one is killed."""

    def __init__(self, home, work, master, workers, driver):
        self.home, self.work, self.master, self.workers, self.driver = home, work, master, workers, driver

    def said(self, phase):
        """What the driver says at the end of a phase."""
        line = self.driver.stdout.readline()
        assert line, f"the driver has ended before {phase}"
        name, result = json.loads(line)
        assert name == phase
        return result

    def go_on(self):
        self.driver.stdin.write("\n")
        self.driver.stdin.flush()

    def kill_when(self, what, reached):
        until = time.monotonic() + 120
        while not (count := reached()):
            assert time.monotonic() < until, what
            time.sleep(0.01)
        killed = self.workers.pop()
        killed.kill()
        print(f"killed the worker {killed.process.pid} and its executor after {count} {what}")
        return count

    def replace(self):
        self.workers.append(worker_of(self.home, self.master, self.work / f"again{time.monotonic_ns()}", 1))


def bodies(broker, topic):
    with PullConsumer(broker=broker) as consumer:
        try:
            return [int(one.body) for one in consumer.messages(topic, follow=False)]
        except RemotingError:
            return []  # there is no such topic yet


@pytest.mark.long
def test_a_worker_is_killed_in_archive_sink_and_stream(spark_home, tailrace_broker, tmp_path):
    store, archive = tmp_path / "in", PosixArchive(str(tmp_path / "archive"))
    with MessageStore.open(str(store), config=CONFIG, parts=StoreParts(services=False)) as opened:
        for number in range(COUNT):
            opened.put(Message(topic="a", body=b"%d" % number + b" " * 700), queue_id=number % 3)
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable,
           "JAVA_HOME": str(find_java_home())}
    broker = tailrace_broker.broker
    with master_and_workers(spark_home, tmp_path / "work", 2, 1) as (master, workers), (
        tmp_path / "driver.log").open("w") as log, subprocess.Popen(
            [sys.executable, "-c", PROGRAM, master, str(store), archive.location, broker, str(tmp_path / "checkpoint")],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as driver:
        try:
            cluster = Cluster(spark_home, tmp_path / "work", master, workers, driver)
            cluster.said("ready")
            cluster.go_on()
            before = cluster.kill_when("manifests", lambda: len(list_manifests(archive)))
            made = cluster.said("archived")
            assert made > before + 2, "the worker was killed in between"
            manifests = [read_manifest(archive, one) for one in list_manifests(archive)]
            assert len(manifests) == made == len(list((store / "commitlog").iterdir())) - 1
            assert all(one.verified for one in manifests)
            named = {file.path for one in manifests for file in one.files}
            files = (tmp_path / "archive" / "rows").rglob("*.parquet")
            there = {str(path.relative_to(archive.location)) for path in files}
            assert there == named, "no row is there twice"
            assert sum(one.messages for one in manifests) == sum(
                one.end - one.start for manifest in manifests for one in manifest.queues)

            cluster.replace()
            cluster.go_on()
            cluster.kill_when("messages", lambda: len(bodies(broker, "batch")))
            cluster.said("written")
            assert set(bodies(broker, "batch")) == set(range(COUNT)), "at least once"

            cluster.replace()
            cluster.go_on()
            cluster.kill_when("messages", lambda: len(bodies(broker, "stream")))
            assert cluster.said("streamed") == 5
            assert sorted(bodies(broker, "stream")) == list(range(COUNT)), "once"
            cluster.go_on()
            assert driver.wait(60) == 0
        finally:
            driver.kill()
