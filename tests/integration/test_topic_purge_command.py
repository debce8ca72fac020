"""`tailrace topic purge` and topic attributes, on a directory and through its server."""

from __future__ import annotations

import json
import subprocess
import sys

import commands
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import PullConsumer
from tailrace.node.store_opening import StoreParts

pytestmark = pytest.mark.integration

SIZE = 64 * 1024


def tailrace(*arguments, code=0):
    done = commands.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines() if code == 0 else done.stderr


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    config = StoreConfig(
        mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=200,
        max_hash_slot_num=100, max_index_num=400)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for number in range(60):
            store.put(Message(topic="t", body=bytes(4000)), queue_id=number % 2)
        store.put(Message(topic="u", body=b"stays"))
    return path


def test_a_purge_of_a_directory_and_the_mistakes_one_makes(store, tmp_path):
    assert "has no topic none; it has t, u" in tailrace("topic", "purge", store, "none", "--yes", code=1)
    assert "no messages in a queue 9" in tailrace("topic", "purge", store, "t", "--queue", 9, "--yes", code=1)
    assert "is not a time" in tailrace("topic", "purge", store, "t", "--before", "noon", code=2)
    assert "belongs to the broker" in tailrace("topic", "purge", store, "TBW102", "--yes", code=1)
    lines = [json.loads(line) for line in tailrace("topic", "purge", store, "t", "--queue", "1", "--yes")]
    assert lines == [{"topic": "t", "queueId": 1, "from": 0, "to": 30, "purged": 30}]
    lines = [json.loads(line) for line in tailrace("topic", "purge", store, "t", "--yes")]
    assert [(line["queueId"], line["purged"]) for line in lines] == [(0, 30), (1, 0)]
    shown = [json.loads(line) for line in tailrace("dump", store, "--only", "queues")]
    assert {"queue": {"topic": "t", "queueId": 0, "min": 30, "max": 30}} in shown
    config = tmp_path / "broker.conf"
    config.write_text(f"mappedFileSizeCommitLog={SIZE}\n")
    answer = tailrace("retention", store, "--config", config)
    assert "topic t: queue 0 released below offset 30, queue 1 released below offset 30" in answer
    assert sum("no topic keeps a message of it" in line for line in answer) >= 3
    tailrace("topic", "create", store, "u", "--attribute", "retention.ms=-1")
    assert "retention.ms=x" in tailrace(
        "topic", "create", store, "u", "--attribute", "retention.ms=x", code=1)
    config.write_text(f"mappedFileSizeCommitLog={SIZE}\nfileReservedTime=0\n")
    assert tailrace("retention", store, "--config", config, "--delete-now")[0].count("0000") >= 3
    with MessageStore.open(store, parts=StoreParts(services=False)) as opened:
        assert [m.body for m in opened.read("u")] == [b"stays"]
        assert opened.topics.select("u").attributes == {"retention.ms": "-1"}


def test_a_purge_through_the_server_of_a_directory(store):
    server = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", str(store), "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        ready = server.stdout.readline()
        broker = ready.split("broker=")[1].split()[0]
        [line] = tailrace("topic", "purge", store, "t", "--queue", "0", "--yes")
        assert json.loads(line)["purged"] == 30
        assert "there is no topic none" in tailrace("topic", "purge", "--broker", broker, "none", "--yes", code=1)
        tailrace("topic", "create", "--broker", broker, "u", "--attribute", "reserve.time=5")
        [topic] = [t for line in tailrace("topic", "list", "--broker", broker)
                   if (t := json.loads(line))["topicName"] == "u"]
        assert topic["attributes"] == {"reserve.time": "5"}
        assert "reserve.time=-7" in tailrace(
            "topic", "create", "--broker", broker, "u", "--attribute", "reserve.time=-7", code=1)
        with PullConsumer(broker=broker, group="g") as consumer:
            found = list(consumer.messages("t", start="first", follow=False))
            assert sorted({m.queue_id for m in found}) == [1]
            assert len(found) == 30
    finally:
        server.terminate()
        assert server.wait(20) == 0
        server.stdout.close()
