"""A backup of a broker under load, restored, verified and served."""

from __future__ import annotations

import json
import threading
import time

import commands
import pytest
from patience import until

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.pytest_plugin import TailraceBroker

pytestmark = pytest.mark.integration


def run(*words):
    done = commands.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(tailrace_broker, tmp_path):
    store, ended, sent = tailrace_broker.store_path, threading.Event(), []

    def load():
        with Producer(broker=tailrace_broker.broker, group="p") as producer:
            while not ended.is_set():
                sent.append(producer.send(Message(topic="orders", body=b"%d" % len(sent)), queue_id=0))
                time.sleep(0.002)  # for the other processes of the test

    with Producer(broker=tailrace_broker.broker, group="q") as producer:
        producer.create_topic("orders", 1)
        producer.send(Message(topic="later", body=b"soon", delay=0.2))
        producer.send(Message(topic="later", body=b"far", delay=3600.0))
    worker = threading.Thread(target=load)
    worker.start()
    try:
        with PullConsumer(broker=tailrace_broker.broker, group="stock") as consumer:
            until(lambda: len(sent) >= 50)
            queue = consumer.queues("orders")[0]
            consumer.commit(queue, 20)
            until(lambda: list(consumer.messages("later", start="first", follow=False)))
        tailrace_broker_flushes(consumer_offsets=store / "config" / "consumerOffset.json")
        acknowledged = len(sent)
        first = run("backup", store, tmp_path / "b")
        second = run("backup", store, tmp_path / "b", "--verify")
    finally:
        ended.set()
        worker.join()
    assert second["logEnd"] > first["logEnd"] > 0
    assert second["verified"]
    report = run("restore", tmp_path / "b", tmp_path / "r")
    assert report["mode"] == "rebuild"
    assert report["messages"] >= acknowledged + 1
    assert report["lastStoreTime"].startswith("20")
    assert abs(report["lastStoreTimestamp"] - second["createdMs"]) < 60_000
    assert run("verify", tmp_path / "r")["summary"]["findings"] == 0
    with MessageStore.open(tmp_path / "r", parts=StoreParts(services=False)) as opened:
        found = [int(message.body) for message in opened.read("orders", 0)]
        assert found == [*range(len(found))]
        assert len(found) >= acknowledged
        assert [timer.topic for timer in opened.timers()] == ["later"]
    served = TailraceBroker(tmp_path / "r")
    served.start()
    try:
        with PullConsumer(broker=served.broker, group="stock") as consumer:
            assert consumer.committed(consumer.queues("orders")[0]) == 20
            assert [m.body for m in consumer.messages("later", start="first", follow=False)] == [b"soon"]
    finally:
        assert served.stop() == 0


def tailrace_broker_flushes(consumer_offsets):
    """Wait until the broker has written its offsets, which it does every 5 s."""
    waited = threading.Event()
    for _ in range(200):
        if consumer_offsets.exists() and "stock" in consumer_offsets.read_text():
            return
        waited.wait(0.05)
    raise AssertionError("the offsets were not written")
