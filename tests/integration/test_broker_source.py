"""Spark's source over the network reads the rows of the directory that a broker serves, in batches and streams."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import subprocess
import sys
import time

import pytest
from inner_batches import TOPIC as BATCHES
from inner_batches import send_batch
from served_process import served_process

import tailrace
from tailrace import Message
from tailrace.client import MessageQueue, Producer, PullConsumer
from tailrace.client.admin import AdminClient
from tailrace.errors import ConfigError, DataLossError, RemotingError, StoreError

pytest.importorskip("pyspark")
import pyarrow.compute as pc
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tailrace.spark.data_source import TailraceDataSource

pytestmark = pytest.mark.integration
COUNT = 300
BROKER = "tailrace"


def fill(server, first=0, until=COUNT):
    with Producer(broker=server.broker, group="p", compression="zlib", compress_over=1000) as producer:
        for number in range(first, until):
            producer.send(
                Message(
                    topic=("orders", "paid")[number % 2], body=b"%d " % number * (500 if number % 10 == 0 else 20),
                    tags=("new", "old", None)[number % 3], keys=["k", f"k{number}"], properties={"n": str(number)}),
                queue_id=number // 2 % 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("source")
    with served_process(path, {"brokerName": BROKER, "enablePropertyFilter": "true"}) as server:
        server.store = str(path / "store")
        with Producer(broker=server.broker, group="p") as producer:
            for topic in ("orders", "paid"):
                producer.create_topic(topic, 4)
            producer.create_topic(BATCHES, 1, {"queue.type": "BatchCQ"})
        fill(server)
        for first in range(0, 60, 20):
            assert send_batch(server.broker, first, 20).code == 0
        yield server


def rows(reader, tasks):
    return sorted(
        (row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()),
        key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


def batch(**options):
    reader = TailraceDataSource(options).reader(None)
    return rows(reader, reader.partitions())


def of_directory(server, **options):
    return batch(path=server.store, store=BROKER, **options)


@pytest.mark.parametrize("options", [
    {"subscribe": "orders,paid"}, {"subscribePattern": "orde.*|paid"}, {"subscribe": "orders", "queueId": "2"},
    {"subscribe": "orders,paid", "body": "decoded"}, {"subscribe": "orders", "body": "none"},
    {"subscribe": "paid", "columns": "body,keys,store"}, {"subscribe": BATCHES},
    {"subscribe": "paid", "pullBatch": "1"}, {"subscribe": "orders,paid", "minPartitions": "3"},
])
def test_every_field_is_that_of_the_directory(server, options):
    directory = {name: value for name, value in options.items() if name != "pullBatch"}
    if "columns" in options:
        options = {**options, "columns": f"{options['columns']},topic,queueId,queueOffset"}
        directory = options
    found = batch(namesrv=server.namesrv, **options)
    assert found == of_directory(server, **directory)
    assert found
    assert batch(broker=server.broker, **options) == found


def test_offsets_and_times_bound_a_batch(server):
    every = batch(namesrv=server.namesrv, subscribe="orders")
    found = batch(
        namesrv=server.namesrv, subscribe="orders",
        startingOffsets=json.dumps({"orders": {f"{BROKER}/0": 10, f"{BROKER}/2": -2}}),
        endingOffsets=json.dumps({"orders": {f"{BROKER}/0": 20}}))
    assert found == [row for row in every if row["queueId"] != 0 or 10 <= row["queueOffset"] < 20]
    assert batch(
        namesrv=server.namesrv, assign=json.dumps({"orders": [f"{BROKER}/2"]})) == [
            row for row in every if row["queueId"] == 2]
    time = max(row["storeTimestamp"] for row in every) - dt.timedelta(milliseconds=30)
    since = batch(namesrv=server.namesrv, subscribe="orders", startingTimestamp=time.isoformat())
    assert since == [row for row in every if row["storeTimestamp"] >= time]
    until = batch(namesrv=server.namesrv, subscribe="orders", endingTimestamp=time.isoformat())
    assert until == [row for row in every if row["storeTimestamp"] < time]


def test_the_broker_selects_by_tags_and_by_sql(server):
    every = batch(namesrv=server.namesrv, subscribe="orders,paid")
    assert batch(namesrv=server.namesrv, subscribe="orders,paid", tags="new || none") == [
        row for row in every if row["tags"] == "new"]
    columns = "topic,queueId,queueOffset"
    assert batch(namesrv=server.namesrv, subscribe="paid", tags="old", columns=columns) == [
        {name: row[name] for name in columns.split(",")} for row in every
        if (row["topic"], row["tags"]) == ("paid", "old")]
    assert batch(namesrv=server.namesrv, subscribe="orders,paid", sql="n > 250 AND TAGS = 'new'") == [
        row for row in every if row["tags"] == "new" and int(dict(row["properties"])["n"]) > 250]


def until_there(stream, count):
    """The rows of batches until there are ``count``: brokers serve a message some ms after its acknowledgement."""
    found, until = [], time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += stream.step()
    return found


class Stream:
    """A query: its reader, its offset, and the rows of its batches."""

    def __init__(self, offset=None, **options):
        self.reader = TailraceDataSource(options).streamReader(None)
        self.offset = offset or self.reader.initialOffset()

    def step(self, limit=None):
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())))
        found = [] if end == self.offset else rows(self.reader, self.reader.partitions(self.offset, end))
        self.reader.commit(end)
        self.offset = end
        return found


def test_a_stream_reads_each_message_once_and_reports_its_offsets(server):
    with PullConsumer(broker=server.broker, group="spark-reports") as consumer:
        options = {
            "namesrv": server.namesrv, "subscribe": "orders,paid", "startingOffsets": "earliest",
            "consumerGroup": "spark-reports"}
        stream = Stream(**options)
        assert stream.offset["#"]["brokers"] is True
        assert stream.offset["orders"] == {f"{BROKER}/{number}": 0 for number in range(4)}
        found = stream.step(ReadMaxRows(50))
        assert len(found) == 50
        end = batch(namesrv=server.namesrv, subscribe="orders,paid")
        while more := stream.step(ReadMaxRows(100)):
            assert len(more) <= 100
            found += more
        assert sorted(found, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"])) == end
        for number in range(4):
            queue = MessageQueue("orders", BROKER, number)
            assert consumer.committed(queue) == consumer.max_offset(queue) > 0
        resumed = Stream(stream.offset, **options)
        assert resumed.step() == []
        fill(server, COUNT, COUNT + 20)
        assert len(until_there(resumed, 20)) == 20
        assert Stream(namesrv=server.namesrv, subscribe="orders").step() == []  # a stream starts at the end


def test_a_batch_of_a_stream_has_about_a_number_of_bytes(server):
    stream = Stream(namesrv=server.namesrv, subscribe="orders,paid", startingOffsets="earliest",
                    maxBytesPerTrigger="20000")
    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(20_000)
    sizes, count = [], 0
    while found := stream.step():
        sizes.append(sum(row["storeSize"] for row in found))
        count += len(found)
    assert count == len(batch(namesrv=server.namesrv, subscribe="orders,paid"))
    assert len(sizes) > 3
    assert all(5_000 < size < 60_000 for size in sizes[:-1])


def test_a_topic_that_was_created_again_is_noticed(server):
    topic = "again"

    def send(count):
        with Producer(broker=server.broker, group="p") as producer:
            producer.create_topic(topic, 1)
            for number in range(count):
                producer.send(Message(topic=topic, body=b"%d" % number))

    send(5)
    options = {"namesrv": server.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    stream = Stream(**options)
    assert len(until_there(stream, 5)) == 5

    async def delete():
        async with AdminClient(broker=server.broker) as admin:
            await admin.delete_topic(topic)

    asyncio.run(delete())
    send(8)
    with pytest.raises(StoreError, match=r"created again|not exist|deleted"):
        until_there(stream, 8)
    loose = Stream(stream.offset, failOnDataLoss="false", **options)
    assert [row["body"] for row in until_there(loose, 8)] == [b"%d" % number for number in range(8)]
    assert loose.step() == []


def test_a_broker_that_is_down_ends_the_query_after_the_retries(server):
    with pytest.raises(RemotingError):
        batch(broker="127.0.0.1:1", subscribe="orders", retries="1", timeoutMs="200")


@pytest.mark.parametrize(("options", "text"), [
    ({"broker": "127.0.0.1:1"}, "a read from brokers names its topics"),
    ({"broker": "127.0.0.1:1", "namesrv": "127.0.0.1:1", "subscribe": "a"}, "set one of the options broker and"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "path": "/s"}, "path is for a read of a directory"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "mode": "PERMISSIVE"}, "mode is for a read of a directory"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "startingOffsets": '{"a": {"0": 1}}'}, '{"topic": {"broker/0": 23}}'),
    ({"broker": "127.0.0.1:1", "assign": '{"a": [0]}'}, '"broker/0"'),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "tags": "x", "sql": "a = 1"}, "tags and sql are both given"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "maxBytesPerTrigger": "5", "maxOffsetsPerTrigger": "5"}, "set one of"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "tls": "maybe"}, "tls=maybe"),
    ({"path": "/s", "pullBatch": "5"}, "pullBatch is for a read from brokers"),
    ({"broker": "127.0.0.1:1", "subscribe": "a", "consumerGroup": "g"}, "consumerGroup is for streams"),
])
def test_wrong_options_are_named(options, text):
    with pytest.raises(ConfigError) as error:
        TailraceDataSource(options).reader(None)
    assert text in str(error.value)


def test_a_topic_or_queue_that_does_not_exist_is_named(server):
    with pytest.raises(ConfigError, match="topic none does not exist"):
        batch(namesrv=server.namesrv, subscribe="orders,none")
    with pytest.raises(ConfigError, match=f"topic orders has no queue {BROKER}/9"):
        batch(namesrv=server.namesrv, assign=json.dumps({"orders": [f"{BROKER}/9"]}))
    with pytest.raises(ConfigError, match="which is not read"):
        batch(namesrv=server.namesrv, subscribe="orders", startingOffsets='{"orders": {"other/0": 1}}')
    with pytest.raises(ConfigError, match="is after the end"):
        batch(namesrv=server.namesrv, subscribe="orders",
              startingOffsets=json.dumps({"orders": {f"{BROKER}/0": 10_000}}))
    assert ReadAllAvailable() == Stream(namesrv=server.namesrv, subscribe="orders").reader.getDefaultReadLimit()


def test_a_message_that_the_broker_does_not_have_is_data_loss(tmp_path):
    with served_process(tmp_path, {"brokerName": BROKER}) as server:
        with Producer(broker=server.broker, group="p") as producer:
            for number in range(20):
                producer.send(Message(topic="orders", body=b"%d" % number), queue_id=0)
        [place] = [row["commitLogOffset"] for row in batch(broker=server.broker, subscribe="orders")
                   if row["queueOffset"] == 9]
        file = next((tmp_path / "store" / "commitlog").iterdir())
        with file.open("r+b") as log:
            log.seek(place + 95)
            byte = log.read(1)[0]
            log.seek(place + 95)
            log.write(bytes([byte ^ 1]))
        with pytest.raises(DataLossError) as error:
            batch(broker=server.broker, subscribe="orders")
        assert "9" in str(error.value)
        found = batch(broker=server.broker, subscribe="orders", failOnDataLoss="false")
        assert [row["queueOffset"] for row in found] == [*range(9), *range(10, 20)]


def test_a_dataset_of_brokers_has_the_rows_of_the_directory(server):
    found = tailrace.scan(server.namesrv, topics=["orders", "paid"])
    directory = of_directory(server, subscribe="orders,paid", body="decoded")

    def of(table):
        return sorted(table.to_pylist(), key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))

    assert of(found.to_table()) == directory
    field = pc.field
    assert of(found.to_table(filter=(field("topic") == "orders") & (field("queueOffset") < 10))) == [
        row for row in directory if row["topic"] == "orders" and row["queueOffset"] < 10]
    time = directory[100]["storeTimestamp"]
    assert of(found.to_table(filter=field("storeTimestamp") >= time)) == [
        row for row in directory if row["storeTimestamp"] >= time]
    assert found.to_table(filter=field("storeTimestamp") < time - dt.timedelta(days=2)).num_rows == 0
    assert pickle.loads(pickle.dumps(found)).count_rows() == len(directory)
    assert tailrace.scan(broker=server.broker, topics="orders", columns=["keys"]).schema.names == ["keys"]
    assert tailrace.scan(broker=server.broker).count_rows() >= len(directory)
    with pytest.raises(ConfigError, match="for a directory, not for brokers"):
        tailrace.scan(server.namesrv, mode="PERMISSIVE")
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "sql", server.namesrv,
         "SELECT topic, sum(maxOffset)::INT AS n FROM queues WHERE topic = 'paid' GROUP BY ALL"],
        capture_output=True, text=True, check=False, timeout=60)
    count = sum(row["topic"] == "paid" for row in directory)
    assert (json.loads(done.stdout), done.stderr) == ({"topic": "paid", "n": count}, "")
