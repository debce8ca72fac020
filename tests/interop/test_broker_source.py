"""Spark's source over the network reads a Java broker: the rows are those of its directory when it has stopped."""

from __future__ import annotations

import time

import pytest
from java_peer import java_broker, java_name_server, patiently, wait_for_route

from tailrace import Message
from tailrace.client import Producer

pytest.importorskip("pyspark")
from tailrace.spark.data_source import TailraceDataSource

pytestmark = [pytest.mark.slow, pytest.mark.interop]
COUNT = 200


def rows(**options):
    reader = TailraceDataSource(options).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()),
        key=lambda row: (row["queueId"], row["queueOffset"]))


@pytest.mark.long
def test_a_java_broker_gives_the_rows_of_its_directory(reference, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    with (
        java_name_server(reference, tmp_path) as namesrv,
        java_broker(reference, store, {"namesrvAddr": namesrv, "enablePropertyFilter": "true"}) as broker,
    ):
        with Producer(broker=broker, group="p", compression="zlib", compress_over=500) as producer:
            patiently(lambda: producer.create_topic("orders", 4))
            for number in range(COUNT):
                message = Message(
                    topic="orders", body=b"%d " % number * (300 if number % 9 == 0 else 9), keys=[f"k{number}"],
                    tags=("new", "old", None)[number % 3], properties={"n": str(number)})
                patiently(lambda message=message, queue_id=number % 4: producer.send(message, queue_id=queue_id))
        wait_for_route(namesrv, "orders")
        found = patiently(lambda: rows(namesrv=namesrv, subscribe="orders"))
        assert rows(broker=broker, subscribe="orders", minPartitions="9", pullBatch="7") == found
        new = rows(namesrv=namesrv, subscribe="orders", tags="new")
        assert new == [row for row in found if row["tags"] == "new"]
        chosen = rows(namesrv=namesrv, subscribe="orders", sql="n > 150 AND TAGS = 'old'")
        assert chosen == [row for row in found if row["tags"] == "old" and int(dict(row["properties"])["n"]) > 150]
        reader = TailraceDataSource({
            "namesrv": namesrv, "subscribe": "orders", "startingOffsets": "earliest",
            "consumerGroup": "spark-reports"}).streamReader(None)
        at, streamed, until = reader.initialOffset(), [], time.monotonic() + 60
        while len(streamed) < COUNT and time.monotonic() < until:
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            streamed += [row for task in (reader.partitions(at, end) if end != at else [])
                         for batch in reader.read(task) for row in batch.to_pylist()]
            reader.commit(end)
            at = end
        assert sorted(streamed, key=lambda row: (row["queueId"], row["queueOffset"])) == found
    assert len(found) == COUNT
    assert found == rows(path=str(store), subscribe="orders", store="broker-a")
