"""Streams: they end, continue where they were killed, never go back, and give each message once."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytestmark = pytest.mark.spark


def fill(path, first, until, topic="a"):
    with MessageStore.open(str(path)) as store:
        for number in range(first, until):
            store.put(Message(topic=topic, body=b"%d" % number), queue_id=number % 3)
        store.wait_dispatched(60_000)


def start(spark, path, out, **options):
    reader = spark.readStream.format("tailrace").option("columns", "topic,queueId,queueOffset,body")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (
        reader.load(str(path)).writeStream.format("parquet").option("path", str(out / "rows"))
        .option("checkpointLocation", str(out / "checkpoint")).trigger(availableNow=True).start())


def finish(query):
    assert query.awaitTermination(120)
    assert query.exception() is None
    return [p for p in query.recentProgress if p["numInputRows"]]


def bodies(spark, out):
    return sorted(int(bytes(row["body"])) for row in spark.read.parquet(str(out / "rows")).collect())


def offsets_written(out):
    names = sorted((out / "checkpoint" / "offsets").iterdir(), key=lambda path: path.name)
    found = [json.loads(name.read_text().splitlines()[-1]) for name in names if name.name.isdigit()]
    assert all(one.pop("#")["version"] == 2 for one in found)
    return found


def test_available_now_ends_and_goes_on(spark, tmp_path):
    from tailrace.spark.progress import behind

    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 90)
    made = finish(start(spark, path, out, startingOffsets="earliest", maxOffsetsPerTrigger=40))
    assert [p["numInputRows"] for p in made] == [40, 40, 10]
    left = [behind(p["sources"][0], {"path": str(path)}) for p in made]
    assert [one.messages for one in left] == [50, 10, 0]
    assert left[0].bytes > left[1].bytes > left[2].bytes == 0
    assert bodies(spark, out) == list(range(90))
    assert offsets_written(out)[-1] == {"a": {"0": 30, "1": 30, "2": 30}}
    assert not finish(start(spark, path, out))  # nothing new: no batch
    fill(path, 90, 100)
    fill(path, 100, 103, topic="later")
    finish(start(spark, path, out, startingOffsets="latest"))  # only the first start looks at it
    assert bodies(spark, out) == list(range(103))
    ends = offsets_written(out)
    for before, after in itertools.pairwise(ends):
        assert all(
            after[topic][queue] >= offset
            for topic, queues in before.items() for queue, offset in queues.items())


def test_a_new_stream_starts_at_the_end(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 5)
    finish(start(spark, path, out))
    fill(path, 5, 8)
    finish(start(spark, path, out))
    assert bodies(spark, out) == [5, 6, 7]


@pytest.mark.long  # a store that is longer is noticed, and tests of units have each case
def test_a_replaced_store_is_not_read_from_behind(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 30)
    finish(start(spark, path, out, startingOffsets="earliest"))
    shutil.rmtree(path)
    fill(path, 0, 6)
    query = start(spark, path, out)
    with pytest.raises(Exception, match="ends at 2, but the checkpoint has 10"):
        query.awaitTermination(120)
    finish(start(spark, path, out, failOnDataLoss="false"))
    assert offsets_written(out)[-1] == {"a": {"0": 2, "1": 2, "2": 2}}
    assert bodies(spark, out) == sorted([*range(30), *range(6)])
    fill(path, 6, 40)
    finish(start(spark, path, out))
    assert bodies(spark, out) == sorted([*range(30), *range(40)])


def test_a_replaced_store_that_is_longer_is_noticed(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 30)
    finish(start(spark, path, out, startingOffsets="earliest"))
    shutil.rmtree(path)
    fill(path, 100, 160)
    query = start(spark, path, out)
    with pytest.raises(Exception, match="has another message before offset 10 of the checkpoint"):
        query.awaitTermination(120)
    made = finish(start(spark, path, out, failOnDataLoss="false", maxOffsetsPerTrigger=25))
    assert [p["numInputRows"] for p in made] == [25, 25, 10]
    assert bodies(spark, out) == sorted([*range(30), *range(100, 160)])


def test_a_topic_that_was_deleted_and_created_again(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 30)
    finish(start(spark, path, out, startingOffsets="earliest", topic="a"))
    with MessageStore.open(str(path)) as store:
        store.delete_topics({"a"})
    query = start(spark, path, out, topic="a")
    with pytest.raises(Exception, match="topic a does not exist"):
        query.awaitTermination(120)
    assert not finish(start(spark, path, out, topic="a", failOnDataLoss="false"))
    fill(path, 100, 112)
    query = start(spark, path, out, topic="a")
    with pytest.raises(Exception, match="the topic was deleted and created again"):
        query.awaitTermination(120)
    made = finish(start(spark, path, out, topic="a", failOnDataLoss="false", maxOffsetsPerTrigger=10))
    assert [p["numInputRows"] for p in made] == [10, 2]
    fill(path, 112, 120)
    finish(start(spark, path, out, topic="a"))
    assert bodies(spark, out) == [*range(30), *range(100, 120)]


def test_a_checkpoint_of_an_earlier_release_is_continued(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 30)
    finish(start(spark, path, out, startingOffsets="earliest"))
    for name in (out / "checkpoint" / "offsets").iterdir():  # as releases before version 2 have written it
        if name.name.isdigit():
            lines = name.read_text().splitlines()
            offsets = json.loads(lines[-1])
            del offsets["#"]
            name.write_text("\n".join([*lines[:-1], json.dumps(offsets)]))
            name.with_name(f".{name.name}.crc").unlink(missing_ok=True)
    assert not finish(start(spark, path, out))
    fill(path, 30, 40)
    finish(start(spark, path, out))
    assert bodies(spark, out) == list(range(40))
    assert offsets_written_since(out, 1)


def offsets_written_since(out, batch):
    return json.loads((out / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[-1])["#"]["last"]["a"]


def test_options_of_batches_are_refused(spark, tmp_path):
    fill(tmp_path / "store", 0, 1)
    query = start(spark, tmp_path / "store", tmp_path / "out", endingOffsets="latest")
    with pytest.raises(Exception, match="endingOffsets is for batch queries"):
        query.awaitTermination(120)


DRIVER = textwrap.dedent("""
    import sys
    from tailrace.spark.session import local_session
    spark = local_session()
    def slowly(frame, number):
        frame.write.mode("overwrite").parquet(f"{sys.argv[2]}/rows/batch={number}")
        print("wrote", number, flush=True)
    query = (
        spark.readStream.format("tailrace").option("startingOffsets", "earliest")
        .option("columns", "body").option("maxOffsetsPerTrigger", "25").load(sys.argv[1])
        .writeStream.foreachBatch(slowly)
        .option("checkpointLocation", sys.argv[2] + "/checkpoint")
        .trigger(availableNow=True).start())
    query.awaitTermination()
    spark.stop()
""")


@pytest.mark.long
def test_a_killed_driver_goes_on_with_the_same_batches(spark, tmp_path):
    path, out = tmp_path / "store", tmp_path / "out"
    fill(path, 0, 150)
    command = [sys.executable, "-c", DRIVER, str(path), str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True) as driver:
        for line in driver.stdout:
            if line.strip() == "wrote 1":
                break
        os.killpg(driver.pid, signal.SIGKILL)
    fill(path, 150, 160)  # the batch that was cut off must not grow
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = spark.read.parquet(str(out / "rows")).collect()
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(160))
    sizes = {}
    for row in rows:
        sizes[row["batch"]] = sizes.get(row["batch"], 0) + 1
    assert max(sizes.values()) == 25
