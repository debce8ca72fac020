"""Spark reads every message that a running server has acknowledged."""

from __future__ import annotations

import pytest
from served_process import served_process

from tailrace import Message
from tailrace.client import Producer

pytestmark = pytest.mark.spark
LATE = {"flushCommitLogThoroughInterval": 3_600_000, "flushCommitLogLeastPages": 100_000}
"""The log is synced only on request."""


def test_batches_and_streams_see_acknowledged_messages(spark, tmp_path):
    with served_process(tmp_path, LATE) as server, Producer(broker=server.broker, group="p") as producer:
        def send(count):
            for _ in range(count):
                producer.send(Message(topic="orders", body=b"x"))

        send(10)
        store = str(tmp_path / "store")
        assert spark.read.format("tailrace").option("topic", "orders").load(store).count() == 10
        send(5)
        query = (
            spark.readStream.format("tailrace").option("topic", "orders").option("startingOffsets", "earliest")
            .load(store).writeStream.format("memory").queryName("seen")
            .option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start())
        assert query.awaitTermination(120)
        assert spark.table("seen").count() == 15
