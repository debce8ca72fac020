"""Streams into a broker: each message once, however often the process that sends is killed."""

import os
import pathlib
import signal
import time

import pytest
from certificates import Ca
from served_process import served_process

from tailrace.client import PullConsumer, TlsOptions
from tailrace.errors import RemotingCommandError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytestmark = pytest.mark.spark
COUNT, BATCHES = 4500, 6


@pytest.fixture
def broker(tailrace_session_broker):
    return tailrace_session_broker


def fill(path, count):
    with MessageStore.open(str(path)) as store:
        for number in range(count):
            store.put(Message(topic="in", body=b"%d" % number, keys=[f"k{number}"]),
                      queue_id=number % 4)
        store.wait_dispatched(60_000)


def senders():
    """Processes below this one that send for Spark."""
    below, found = {}, []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                text = (entry / "cmdline").read_text()
            except OSError:  # it has ended
                continue
            below.setdefault(parent, []).append((int(entry.name), text))
    waiting = [os.getpid()]
    while waiting:
        for pid, text in below.get(waiting.pop(), []):
            waiting.append(pid)
            if "python_streaming_sink_runner" in text:
                found.append(pid)
    return found


def in_log(consumer, topic):
    try:
        return sum(map(consumer.max_offset, consumer.queues(topic)))
    except RemotingCommandError:  # the topic is not there yet
        return 0


@pytest.mark.long
def test_a_stream_is_sent_once_over_kills(spark, broker, tmp_path):
    fill(tmp_path / "s", COUNT)

    from pyspark.errors import StreamingQueryException

    def start():
        return (
            spark.readStream.format("tailrace").option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", COUNT // BATCHES).option("columns", "body,keys")
            .load(str(tmp_path / "s"))
            .writeStream.format("tailrace").option("broker", broker.broker).option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start())

    kills = 0
    with PullConsumer(broker=broker.broker) as consumer:
        for wanted in (300, 1500, 3000):  # in a batch, where one ends
            query = start()
            until = time.monotonic() + 60
            while in_log(consumer, "out") < wanted and query.isActive and time.monotonic() < until:
                time.sleep(0.002)
            if query.isActive:
                for pid in senders():
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(60)
        query = start()
        assert query.awaitTermination(120)
        assert query.exception() is None
        bodies = sorted(int(m.body) for m in consumer.messages("out", follow=False))
        key = next(iter(consumer.messages("out", follow=False))).keys
    assert kills >= 3
    assert bodies == list(range(COUNT))
    assert key[0].startswith("k")
    assert not list((tmp_path / "c" / "tailrace-sink" / "staged").iterdir())


def test_a_batch_is_sent(spark, broker, tmp_path):
    fill(tmp_path / "s", 500)
    frame = spark.read.format("tailrace").load(str(tmp_path / "s"))
    chosen = frame.selectExpr("'copy' AS topic", "body", "keys", "queueId")
    chosen.write.format("tailrace").option("broker", broker.broker).mode("append").save()
    with PullConsumer(broker=broker.broker) as consumer:
        found = list(consumer.messages("copy", follow=False))
    assert sorted((int(m.body), m.queue_id) for m in found) == [(n, n % 4) for n in range(500)]
    with pytest.raises(Exception, match="column storeSize is not written"):
        frame.write.format("tailrace").option("broker", broker.broker).mode("append").save()
    with pytest.raises(Exception, match="only be appended"):
        chosen.write.format("tailrace").option("broker", broker.broker).mode("overwrite").save()


@pytest.mark.long
def test_a_batch_is_sent_over_tls_and_its_options_are_checked(spark, tmp_path):
    ca = Ca(tmp_path)
    cert, key = ca.make("server")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": cert, "tls.server.keyPath": key}
    rows = spark.createDataFrame([(b"%d" % n,) for n in range(20)], "body binary")
    with served_process(tmp_path, settings) as ours:
        write = rows.write.format("tailrace").mode("append").option("namesrv", ours.namesrv).option("topic", "secret")
        for options, text in (
            ({"tls": "perhaps"}, "neither true nor false"), ({"tlsTrustCertPath": ca.path}, "need tls=true"),
            ({"tls": "true", "tlsTrustCertPath": "/missing.pem"}, "/missing.pem"),
            ({"tls": "true", "tlsKeyPassword": "x"}, "unknown option tlskeypassword"),
        ):
            with pytest.raises(Exception, match=text):
                rows.write.format("tailrace").mode("append").options(
                    namesrv=ours.namesrv, topic="secret", **options).save()
        write.options(tls="true", tlsTrustCertPath=ca.path).save()
        with PullConsumer(namesrv=ours.namesrv, tls=TlsOptions(trust_cert_path=ca.path)) as consumer:
            assert len([*consumer.messages("secret", start="first", follow=False)]) == 20
