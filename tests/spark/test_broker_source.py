"""Spark reads brokers over the network, in a batch and in a stream with a checkpoint."""

from __future__ import annotations

import pytest
from served_process import served_process

from tailrace import Message
from tailrace.client import Producer

pytestmark = pytest.mark.spark


def test_batches_and_streams_read_a_broker(spark, tmp_path):
    with served_process(tmp_path, {"brokerName": "b"}) as server, Producer(broker=server.broker, group="p") as producer:
        def send(count):
            for number in range(count):
                producer.send(Message(topic="orders", body=b"%d" % number, keys=[f"k{number}"]))

        def stream():
            query = (
                spark.readStream.format("tailrace").option("namesrv", server.namesrv).option("subscribe", "orders")
                .option("startingOffsets", "earliest").option("maxBytesPerTrigger", "3000").load()
                .writeStream.format("parquet").option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start())
            assert query.awaitTermination(120)
            return query.recentProgress

        send(40)
        batch = spark.read.format("tailrace").option("namesrv", server.namesrv).option("subscribe", "orders").load()
        directory = spark.read.format("tailrace").option("store", "b").option("subscribe", "orders").load(
            str(tmp_path / "store"))
        assert batch.count() == 40
        columns = [name for name in batch.columns if name != "properties"]
        assert batch.select(columns).exceptAll(directory.select(columns)).count() == 0
        assert len(stream()) > 1  # several batches
        send(5)
        stream()
        assert spark.read.parquet(str(tmp_path / "out")).count() == 45
        with pytest.raises(Exception, match="a read from brokers names its topics"):
            spark.read.format("tailrace").option("namesrv", server.namesrv).load().count()
