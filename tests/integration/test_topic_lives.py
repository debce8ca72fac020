"""A topic is deleted and made again under running consumers of all kinds, against `tailrace serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from pathlib import Path

import commands
import pytest
from patience import until

from tailrace import Message, Producer, PullConsumer, PushConsumer
from tailrace.client.instance import Target
from tailrace.client.pop_groups import pop_mode
from tailrace.errors import RemotingCommandError, RemotingError
from tailrace.formats.requests.message_headers import PullMessageRequestHeader
from tailrace.pytest_plugin import SMALL_FILES, TailraceBroker
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SECONDS = 20.0
"""A consumer has all messages of a new topic within this time, on a busy machine."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    served = TailraceBroker(tmp_path_factory.mktemp("lives") / "store", settings=SMALL_FILES)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def producer(broker):
    with Producer(namesrv=broker.namesrv, timeout_ms=10_000) as made:
        yield made


def tailrace(*words):
    done = commands.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def delete(broker, topic):
    tailrace("topic", "delete", topic, "--broker", broker.broker, "--yes")


def fill(producer, topic, name, count, queues):
    for number in range(count):
        producer.send(Message(topic=topic, body=b"%s%d" % (name, number)), queue_id=number % queues)
    return {b"%s%d" % (name, number): 1 for number in range(count)}


class Reading:
    """Consumers of all kinds of one topic; ``seen`` counts the bodies for each."""

    def __init__(self, broker, topic, directory):
        self.broker, self.topic, self.offset_file = broker, topic, str(directory / f"{topic}.json")
        self.seen = {}
        self._stack = contextlib.ExitStack()
        self._stopping = False

    def __enter__(self):
        self.push("push")
        self.push("ordered", in_order=True)
        self.push("last", start="last")
        self.push("popped", client_rebalance=False)
        self.push("broadcasting", broadcasting=True, offset_file=self.offset_file)
        self.pull("subscribe", lambda reader: reader.subscribe(self.topic))
        self.pull("assign", lambda reader: reader.assign(reader.queues(self.topic)))
        self.pull("messages", None)
        return self

    def __exit__(self, *_):
        self._stopping = True
        self._stack.close()

    def push(self, kind, **options):
        if kind == "popped":
            asyncio.run(pop_mode(Target(self.broker.namesrv, "", 10_000), self.topic, f"{self.topic}-{kind}"))
        seen = self.seen[kind] = Counter()
        self._stack.enter_context(PushConsumer(
            f"{self.topic}-{kind}", lambda message: seen.update([message.body]), namesrv=self.broker.namesrv,
            topics=self.topic, timeout_ms=10_000, **{"start": "first", **options}))

    def pull(self, kind, begin):
        seen = self.seen[kind] = Counter()
        reader = PullConsumer(namesrv=self.broker.namesrv, group=f"{self.topic}-{kind}", timeout_ms=10_000)

        def run():
            try:
                if begin is None:
                    for message in reader.messages(self.topic, start="first", commit=True):
                        seen.update([message.body])
                    return
                begin(reader)
                while not self._stopping:
                    seen.update(message.body for message in reader.poll(timeout_ms=200))
            except RemotingError as error:
                if not self._stopping:
                    seen.update([repr(error)])

        thread = threading.Thread(target=run, daemon=True)
        self._stack.callback(thread.join, 30)
        self._stack.callback(reader.close)
        thread.start()

    def wait_for(self, expected):
        with contextlib.suppress(AssertionError):
            until(lambda: all(seen >= Counter(expected) for seen in self.seen.values()), SECONDS)
        assert {kind: (sum(seen.values()), Counter(expected) - seen) for kind, seen in self.seen.items()} == {
            kind: (len(expected), Counter()) for kind in self.seen}


@pytest.mark.parametrize(("pause_s", "count", "queues"), [
    (0, 40, 2), pytest.param(4, 250, 3, marks=pytest.mark.long)])
def test_every_kind_of_consumer_reads_the_new_topic_once(broker, producer, tmp_path, pause_s, count, queues):
    topic = tmp_path.name
    producer.create_topic(topic, 2)
    with Reading(broker, topic, tmp_path) as reading:
        old = fill(producer, topic, b"old", 120, 2)
        reading.wait_for(old)
        time.sleep(1.5)  # all have committed
        delete(broker, topic)
        time.sleep(pause_s)
        producer.create_topic(topic, queues)
        new = fill(producer, topic, b"new", count, queues)
        if queues > 2:
            del reading.seen["assign"]  # it reads the queues that it was given
        reading.wait_for({**old, **new})
        for kind in ("push", "ordered", "subscribe", "messages"):
            until(lambda kind=kind: lag_of(broker, f"{topic}-{kind}", topic) == (0, count), 20)
    offsets = json.loads(Path(reading.offset_file).read_text())["offsets"]
    assert all(one["offset"] >= 6000 for one in offsets if one["topic"] == topic and one["queueId"] < 2)


def lag_of(broker, group, topic):
    """The lag of a group, and the number of messages that it has consumed of the new topic."""
    lines = tailrace("group", "show", group, "--broker", broker.broker).splitlines()
    rows = [json.loads(line)["queue"] for line in lines
            if '"queue"' in line]
    rows = [row for row in rows if row["topic"] == topic]
    return sum(row["lag"] for row in rows), sum(row["consumerOffset"] % 6000 for row in rows)


def test_a_broadcasting_consumer_that_was_stopped_in_the_meantime_reads_the_new_topic(broker, producer, tmp_path):
    producer.create_topic("stopped", 1)
    seen = Counter()

    def consumer():
        return PushConsumer(
            "stopped", lambda message: seen.update([message.body]), namesrv=broker.namesrv, topics="stopped",
            start="last", broadcasting=True, offset_file=str(tmp_path / "offsets.json"), timeout_ms=10_000)

    with consumer():
        old = fill(producer, "stopped", b"old", 20, 1)
        until(lambda: seen == Counter(old))
    delete(broker, "stopped")
    producer.create_topic("stopped", 1)
    new = fill(producer, "stopped", b"new", 50, 1)
    with consumer():
        until(lambda: seen == Counter({**old, **new}), SECONDS)


def test_an_offset_of_the_ended_topic_that_is_committed_late_does_no_harm(broker, producer):
    producer.create_topic("late", 1)
    fill(producer, "late", b"old", 20, 1)
    with PullConsumer(namesrv=broker.namesrv, group="late", timeout_ms=10_000) as reader:
        queue, = reader.queues("late")
        reader.commit(queue, 20)
        delete(broker, "late")
        with pytest.raises(RemotingCommandError):
            reader.commit(queue, 20)
        producer.create_topic("late", 1)
        assert reader.committed(queue) is None
        reader.commit(queue, 20)
        assert lag_of(broker, "late", "late") == (0, 0)
        fill(producer, "late", b"new", 7, 1)
        until(lambda: lag_of(broker, "late", "late") == (7, 0), 20)
        found = [message.body for message in reader.messages("late", follow=False)]
        assert found == [b"new%d" % number for number in range(7)]


def test_a_member_that_still_runs_joins_its_deleted_group_again_and_commits_its_position(broker, producer):
    producer.create_topic("kept", 1)
    seen = Counter()
    with PushConsumer("kept", lambda message: seen.update([message.body]), namesrv=broker.namesrv, topics="kept",
                      start="first", timeout_ms=10_000) as consumer:
        old = fill(producer, "kept", b"old", 20, 1)
        until(lambda: seen == Counter(old))
        consumer.commit()
        tailrace("group", "delete", "kept", "--broker", broker.broker, "--yes")
        new = fill(producer, "kept", b"new", 20, 1)
        until(lambda: seen == Counter({**old, **new}), 60)  # the next heartbeat makes the group again
    with PullConsumer(namesrv=broker.namesrv, group="kept", timeout_ms=10_000) as reader:
        queue, = reader.queues("kept")
        assert reader.committed(queue) == 40  # the group continues where its member was


def test_a_pull_that_waits_is_answered_when_its_topic_is_deleted(broker, producer):
    producer.create_topic("held", 1)

    async def pull():
        client = RemotingClient()
        header = PullMessageRequestHeader(
            "held", "held", 0, 0, 32, sys_flag=2 | 4, commit_offset=0, suspend_timeout_millis=25_000, sub_version=0,
            expression_type="TAG", subscription="*")
        try:
            began = time.monotonic()
            asked = asyncio.create_task(client.invoke(broker.broker, 11, header.to_ext(), timeout_ms=30_000))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(delete, broker, "held")
            answer = await asked
            return answer.code, time.monotonic() - began
        finally:
            await client.close()

    code, took_s = asyncio.run(pull())
    assert code == 17
    assert took_s < 15


CREATED_BY_CLIENTS = (
    "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC", "rmq_sys_mine", "%RETRY%mine", "%DLQ%" + "d" * 250, "-x", "a" * 127)


def test_topics_that_clients_have_created_are_deleted_in_a_running_server_and_offline(tmp_path):
    served = TailraceBroker(tmp_path / "store", settings=SMALL_FILES)
    served.start()
    try:
        for again in (False, True):
            with Producer(namesrv=served.namesrv, timeout_ms=10_000) as made:
                for topic in CREATED_BY_CLIENTS:
                    made.send(Message(topic=topic, body=b"x"))
            if not again:
                for topic in CREATED_BY_CLIENTS:
                    tailrace("topic", "delete", "--broker", served.broker, "--yes", "--", topic)
    finally:
        served.stop()
    for topic in CREATED_BY_CLIENTS:
        tailrace("topic", "delete", "--yes", "--", str(tmp_path / "store"), topic)
    left = {json.loads(line)["topicName"] for line in tailrace("topic", "list", str(tmp_path / "store")).splitlines()}
    assert not left & set(CREATED_BY_CLIENTS)
