"""A row that the broker refuses for good is refused before the manifest of its batch, or the batch is staged again.

A manifest names the rows of a batch for all tries, so a batch with such a row would never be sent.
"""

import json
import time

import pytest

from tailrace.client import Producer
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import MessageIllegalError, RemotingCommandError
from tailrace.formats import names
from tailrace.node.topic_config import SYSTEM_TOPICS
from tailrace.pytest_plugin import SMALL_FILES, TailraceBroker

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from tailrace.spark.sink.commit import commit_batch, stage
from tailrace.spark.sink.options import parse_write_options
from tailrace.spark.sink.publish import Publisher
from tailrace.spark.sink.requests import requests_of
from tailrace.spark.sink.rows import STAGED_SCHEMA, staged

FILES = OsFileSystem()
BODY, SEGMENT, DELAY_S = 100_000, 400_000, 3600
pytestmark = pytest.mark.slow  # a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with low limits."""
    made = TailraceBroker(tmp_path_factory.mktemp("limits") / "store", settings={
        **SMALL_FILES, "maxMessageSize": BODY, "mappedFileSizeCommitLog": SEGMENT, "timerMaxDelaySec": DELAY_S})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def sink(broker, tmp_path):
    """A function that stages rows of the topic of this test, and sends them as batch 0: the number of messages."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "query"}))
    options = parse_write_options(
        {"broker": broker.broker, "checkpointLocation": str(tmp_path), "topic": tmp_path.name[:100]},
        StructType([StructField("body", BinaryType())]), stream=True, overwrite=False)
    manifest = tmp_path / "tailrace-sink" / "0.json"

    def send(rows, connect=Publisher):
        made = pa.RecordBatch.from_pylist([{"body": b"b", **row} for row in rows], schema=STAGED_SCHEMA)
        sent = commit_batch(
            FILES, options, 0, [stage(FILES, options, 0, 0, "0", iter([made]))], time.sleep, connect=connect)
        with Publisher(options, time.sleep) as publisher:
            assert publisher.last_number("query/0/", json.loads(manifest.read_text())["starts"]) == len(rows) - 1
        return sent

    send.manifest = manifest
    return send


def are_staged(rows):
    """Whether a task accepts rows."""
    try:
        staged(pa.RecordBatch.from_pylist(rows, schema=STAGED_SCHEMA), "")
    except MessageIllegalError:
        return False
    return True


@pytest.mark.parametrize("together", [1, 2])
def test_a_topic_or_property_with_a_meaning_is_refused_by_its_task_or_sent(sink, tmp_path, together):
    """In a request of one message, and in one of several: brokers have other rules for them."""
    known = sorted({text for name, text in vars(names).items() if name.isupper() and isinstance(text, str)})
    values = ("1", "-1", "x", "a,b", "a b", "%LMQ%q", "%RETRY%g", "true")
    own = [
        {"properties": [(name, value)]} for name in known if name.isascii() and name.isprintable() for value in values]
    named = [{"topic": one} for one in (*known, *sorted(SYSTEM_TOPICS), "%RETRY%g", "%DLQ%g", "%LMQ%q", "%LMQ%$p$l")]
    rows = [
        [{"topic": f"{tmp_path.name[:100]}-{number % 9}", "body": b"b", **row}] * together
        for number, row in enumerate(own + named)]
    sent = [row for row in rows if are_staged(row)]
    assert len(rows) > len(sent) > 300
    assert sink([row for part in sent for row in part]) == len(sent) * together


@pytest.mark.parametrize("column", STAGED_SCHEMA.names[:5])
def test_a_text_that_is_not_utf_8_is_refused_by_its_task(column):
    """Spark makes such strings of binary values. A body may have any bytes."""
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    one = pa.array([0, 1], pa.int32())
    made = {
        "keys": [texts, pa.ListArray.from_arrays(one, texts)],
        "properties": [pa.MapArray.from_arrays(one, texts, texts)]}.get(column, [texts])
    for value in made:
        columns = {"topic": pa.array(["t"]), "body": pa.array([b"b"]), column: value}
        batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if column == "body":
            assert staged(batch, "")["body"].to_pylist() == [b"\xff"]
            continue
        with pytest.raises(MessageIllegalError, match=f"{column}: cannot be stored as UTF-8"):
            staged(batch, "")


@pytest.mark.parametrize(("row", "match"), [
    ({"body": bytes(BODY + 1)}, f"body: .* {BODY + 1} bytes, .* {BODY} "),
    ({"queueId": 8}, "queueId: 8, topic .* has 4 writable queues"),
    ({"deliverAt": int(time.time() * 1000) + (DELAY_S + 600) * 1000}, f"deliverAt: .*timerMaxDelaySec={DELAY_S}"),
])
def test_a_row_over_a_limit_of_the_broker_is_refused_before_the_manifest(sink, row, match):
    with pytest.raises(MessageIllegalError, match=match):
        sink([{}] * 3 + [row])
    assert not sink.manifest.exists()
    assert sink([{}] * 4) == 4


@pytest.mark.parametrize("rows", [
    [{"body": bytes(BODY)}] * 3, [{"body": bytes(1000)}] * 300, [{"properties": [("n", "v" * 20_000)]}] * 40,
    [{"properties": [("n", "\u20ac" * 6_000)]}] * 40, [{"keys": ["k" * 10_000]}, {"tags": "t" * 10_000}] * 20,
    [{"queueId": 3, "deliverAt": int(time.time() * 1000) + (DELAY_S - 600) * 1000}],
])
def test_rows_within_the_limits_are_sent_however_many_there_are(sink, rows):
    assert sink(rows) == len(rows)


def test_long_properties_fit_a_request_of_a_broker_with_the_usual_limits():
    """4 MiB: a request of 1,024 such rows would have 20."""
    row = {"topic": "t", "body": b"b", "properties": [("n", "v" * 20_000)]}
    made = staged(pa.RecordBatch.from_pylist([row] * 300, schema=STAGED_SCHEMA), "")
    requests = list(requests_of([(10, made.slice(10))]))
    assert len(requests) == 6
    assert sum(one.count for one in requests) == 290
    assert all(len(one.body) <= 1 << 20 for one in requests)


def test_a_batch_that_is_refused_before_anything_is_stored_is_staged_again(broker, sink):
    """The query can be corrected, and gives other rows for the batch."""
    with Producer(broker=broker.broker) as producer:
        producer.create_topic("compacted", 1, {"cleanup.policy": "COMPACTION"})
    with pytest.raises(RemotingCommandError, match="key is missing"):
        sink([{"topic": "compacted"}] * 3)
    assert not sink.manifest.exists()
    assert sink([{"topic": "compacted", "keys": ["k"]}] * 2) == 2


def test_a_batch_that_is_refused_later_keeps_its_rows(broker, sink):
    """A part of them is stored, under their numbers."""
    with Producer(broker=broker.broker) as producer:
        producer.create_topic("compacted-later", 1, {"cleanup.policy": "COMPACTION"})
    with pytest.raises(RemotingCommandError, match="key is missing"):
        sink([{}, {"topic": "compacted-later"}])
    assert sink.manifest.exists()
