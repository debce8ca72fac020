"""A stream's batch is in the log once, wherever the driver dies, and a bad row is refused before it."""

import datetime as dt
import json
import time

import pytest
from patience import until

from tailrace.client import PullConsumer
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import (
    ConfigError,
    CorruptionError,
    MessageIllegalError,
    RemotingCommandError,
    RemotingError,
    StoreLockedError,
)
from tailrace.formats.remoting import ResponseCode

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tailrace.spark.sink import requests
from tailrace.spark.sink.commit import commit_batch, discard, stage
from tailrace.spark.sink.options import parse_write_options
from tailrace.spark.sink.publish import Publisher
from tailrace.spark.sink.requests import TXN
from tailrace.spark.sink.rows import STAGED_SCHEMA, _check, are_messages

FILES = OsFileSystem()
QUERY = "1f0e"
pytestmark = pytest.mark.slow  # a broker


@pytest.fixture
def broker(tailrace_session_broker):
    return tailrace_session_broker


def schema(text):
    """A schema of plain columns, without a session."""
    kinds = {
        "string": StringType(), "binary": BinaryType(), "int": IntegerType(), "long": LongType(),
        "array<int>": ArrayType(IntegerType())}
    return StructType([
        StructField(name, kinds[kind]) for name, kind in map(str.split, text.split(", "))])


def options(broker, checkpoint, **more):
    (checkpoint / "metadata").parent.mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    return parse_write_options(
        {"broker": broker.broker, "checkpointLocation": str(checkpoint), **more},
        schema("topic string, body binary"), stream=True, overwrite=False)


def rows(topic, first, until, **more):
    return [{"topic": topic, "body": b"%d" % n, **more} for n in range(first, until)]


def batch_of(found):
    return pa.RecordBatch.from_pylist(found)


def staged(made, batch, parts, attempt="0"):
    return [
        stage(FILES, made, batch, n, attempt, iter([batch_of(part)])) for n, part in enumerate(parts)]


def stored(broker, topic):
    """Bodies by the number in the property, in the order of each queue."""
    found = []
    with PullConsumer(broker=broker.broker) as consumer:
        for queue in consumer.queues(topic):
            until(lambda: int(next(iter(consumer.runtime_info(topic).values()))["dispatchBehindBytes"]) == 0)
            numbers = []
            at = 0
            while at < consumer.max_offset(queue):
                got = consumer.pull(queue, at, max_count=200)
                for message in got.messages:
                    query, batch, number = message.properties[TXN].split("/")
                    assert query == QUERY
                    numbers.append((int(batch), int(number)))
                    found.append((int(batch), int(number), int(message.body)))
                at = got.next_begin_offset
            assert numbers == sorted(numbers)
    return sorted(found)


def wait(seconds):
    time.sleep(min(seconds, 0.05))


@pytest.fixture
def small_requests(monkeypatch):
    monkeypatch.setattr(requests, "_ROWS", 64)


@pytest.mark.usefixtures("small_requests")
def test_a_kill_at_any_step_leaves_each_message_once(broker, tmp_path, killed):
    class Dying(Publisher):
        left = 0

        def send(self, request):
            if Dying.left == 0:
                raise killed.Killed
            Dying.left -= 1
            super().send(request)
            if Dying.left == 0:
                raise killed.Killed

    def attempt(name, file_system, sends):
        made = options(broker, tmp_path / name)
        parts = staged(made, 7, [rows(name, 0, 100), [], rows(name, 100, 150)][::2])
        Dying.left = sends
        died = False
        try:
            commit_batch(file_system, made, 7, parts, wait, connect=Dying)
        except killed.Killed:
            died = True
        again = staged(made, 7, [rows(name, 0, 60), rows(name, 60, 150)], "1")  # other tasks this time
        commit_batch(FILES, made, 7, again, wait)
        assert stored(broker, name) == [(7, n, n) for n in range(150)], name
        assert commit_batch(FILES, made, 7, staged(made, 7, [rows(name, 0, 3)]), wait) == 0
        assert not (tmp_path / name / "tailrace-sink" / "staged" / "7").exists()
        return died

    probe = killed.KilledFileSystem(10**9)
    assert not attempt("whole", probe, 10**9)
    for at in range(probe.done):
        assert attempt(f"files{at}", killed.KilledFileSystem(at), 10**9)
    for sends in range(4):
        assert attempt(f"sends{sends}", FILES, sends)


def test_a_batch_waits_for_a_sender_that_is_still_at_work(broker, tmp_path):
    made = options(broker, tmp_path / "alone")
    parts = staged(made, 7, [rows("alone", 0, 50)])
    (tmp_path / "alone" / "tailrace-sink").mkdir(exist_ok=True)
    lock = FILES.lock(str(tmp_path / "alone" / "tailrace-sink" / "_lock"))
    waits = []

    def wait_and_let_go(seconds):
        waits.append(seconds)
        if len(waits) == 250:
            lock.release()

    with pytest.raises(StoreLockedError, match="a sender that is still running"):
        commit_batch(FILES, made, 7, parts, wait_and_let_go)
    assert 50 < sum(waits) < 70
    assert commit_batch(FILES, made, 7, parts, wait_and_let_go) == 50
    assert len(waits) == 250
    assert stored(broker, "alone") == [(7, n, n) for n in range(50)]


@pytest.mark.usefixtures("small_requests")
def test_an_answer_that_is_lost_doubles_nothing(broker, tmp_path):
    class Deaf(Publisher):
        lost = busy = 0

        def send(self, request):
            if request.first == 128 and Deaf.busy < 2:
                Deaf.busy += 1
                raise RemotingCommandError(ResponseCode.SYSTEM_BUSY, "later")
            if request.first != 64 or Deaf.lost != 1:
                super().send(request)
            if request.first in {0, 64} and Deaf.lost < 2:
                Deaf.lost += 1
                raise RemotingError("no answer")

    made = options(broker, tmp_path / "c")
    parts = staged(made, 0, [rows("deaf", 0, 150)])
    commit_batch(FILES, made, 0, parts, wait, connect=Deaf)
    assert (Deaf.lost, Deaf.busy) == (2, 2)  # one was stored, one was not
    assert stored(broker, "deaf") == [(0, n, n) for n in range(150)]


def test_a_refusal_ends_the_batch(broker, tmp_path):
    class Refused(Publisher):
        def send(self, request):
            raise RemotingCommandError(ResponseCode.MESSAGE_ILLEGAL, "too long")

    made = options(broker, tmp_path / "c")
    parts = staged(made, 0, [rows("refused", 0, 3)])
    with pytest.raises(RemotingCommandError, match="too long"):
        commit_batch(FILES, made, 0, parts, wait, connect=Refused)
    assert commit_batch(FILES, made, 0, parts, wait) == 3
    assert stored(broker, "refused") == [(0, n, n) for n in range(3)]


def test_messages_for_later_are_not_sent_again(broker, tmp_path, killed):
    class Dying(Publisher):
        sent = 0

        def send(self, request):
            super().send(request)
            Dying.sent += 1
            if Dying.sent == 3:
                raise killed.Killed

    made = options(broker, tmp_path / "c")
    due = int(time.time() * 1000) + 2500
    parts = staged(made, 1, [rows("later", 0, 5, deliverAt=due)])
    with pytest.raises(killed.Killed):
        commit_batch(FILES, made, 1, parts, wait, connect=Dying)
    assert commit_batch(FILES, made, 1, parts, wait) == 2
    with PullConsumer(broker=broker.broker) as consumer:
        until(lambda: sum(map(consumer.max_offset, consumer.queues("later"))) >= 5)
        assert time.time() * 1000 >= due
        time.sleep(0.5)
    assert sorted(stored(broker, "later")) == [(1, n, n) for n in range(5)]


def test_columns_become_a_message(broker, tmp_path):
    made = options(broker, tmp_path / "c", topic="whole-message")
    batch = pa.RecordBatch.from_arrays([
        pa.array([None, "other"]), pa.array(["text", "x"]),
        pa.array(["T", None]), pa.array(["a b", None]),
        pa.array([[("p", "1")], None], pa.map_(pa.string(), pa.string())),
        pa.array([2, None], pa.int64()),
        pa.array([None, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
                 pa.timestamp("us", tz="UTC")),
    ], names=["topic", "body", "tags", "keys", "properties", "queueId", "deliverAt"])
    file = stage(FILES, made, 0, 0, "0", iter([batch]))
    assert (file.rows, [one.topic for one in file.needs]) == (2, ["other", "whole-message"])
    commit_batch(FILES, made, 0, [file], wait)
    with PullConsumer(broker=broker.broker) as consumer:
        message, = consumer.messages("whole-message", follow=False)
    assert (message.body, message.tags, list(message.keys), message.queue_id) == (
        b"text", "T", ["a", "b"], 2)
    assert message.properties["p"] == "1"


def test_a_row_that_is_no_message_is_refused_by_its_task(broker, tmp_path):
    made = options(broker, tmp_path / "c")
    for row, match in (
        ({"topic": None, "body": b""}, "topic: is null"), ({"topic": "t", "body": None}, "body: is null"),
        ({"topic": "t", "body": b""}, "or empty"),
        ({"topic": "t", "body": b"b", "properties": [("a", "\x01")]}, "properties"),
        ({"topic": "t", "body": b"b", "properties": [("a", "1"), ("a", "2")]}, "a name is given twice"),
        ({"topic": "t", "body": b"b", "queueId": -1}, "queueId"),
        ({"topic": "t", "body": b"b", "keys": ["a b"]}, "keys"),
    ):
        table = pa.RecordBatch.from_pylist([row], schema=pa.schema([
            (name, kind) for name, kind in {
                "topic": pa.string(), "body": pa.binary(), "queueId": pa.int32(),
                "keys": pa.list_(pa.string()), "properties": pa.map_(pa.string(), pa.string()),
            }.items() if name in row]))
        with pytest.raises(MessageIllegalError, match=match):
            stage(FILES, made, 0, 0, "0", iter([table]))


def test_a_row_that_a_batch_cannot_honour_is_sent_alone(broker, tmp_path):
    """All the others in their order; the broker refuses a batch with such a property."""
    topic, made = f"alone-{tmp_path.name}"[:100], options(broker, tmp_path / "c")
    first = {"topic": topic, "properties": [("_SYS_MSG_PRIORITY_", "0")]}
    table = pa.RecordBatch.from_pylist(
        [{"topic": topic, "body": b"0"}, {**first, "body": b"1"}, {"topic": topic, "body": b"2"}],
        schema=pa.schema([("topic", pa.string()), ("body", pa.binary()),
                          ("properties", pa.map_(pa.string(), pa.string()))]))
    assert commit_batch(FILES, made, 0, [stage(FILES, made, 0, 0, "0", iter([table]))], wait) == 3
    assert stored(broker, topic) == [(0, number, number) for number in range(3)]


def test_the_fast_check_of_a_batch_accepts_what_the_check_of_each_row_accepts():
    odd = {
        "topic": [None, "", "a b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "%RETRY%g"], "body": [None, b""], "queueId": [-1],
        "tags": ["a\x01", "\x02", "x" * 40_000], "deliverAt": [-1],
        "keys": [[None], [""], ["a b"], ["a\x01"], ["good", "b\x02"], ["k" * 100] * 400],
        "properties": [
            [("", "v")], [("n", "")], [("n", None)], [("n\x01", "v")], [("n", "v\x02"), ("m", "w")],
            [("TAGS", "U")], [("KEYS", "k")], [("DELAY", "3")], [("TIMER_DELIVER_MS", "7")], [("TRAN_MSG", "true")],
            [("INNER_NUM", "2")], [("__LITE_TOPIC", "a b")],
            [(f"n{number}", "v" * 100) for number in range(400)]]}
    valid = {
        "topic": ["t"], "body": [b"\x01 \x02"], "queueId": [None, 0, 7], "tags": ["T G", None, ""],
        "keys": [["k", "l"], None, []], "deliverAt": [None, 0, 1 << 41],
        "properties": [None, [], [("n n", "v v"), ("m", "w")], [("_SYS_MSG_PRIORITY_", "1")]]}
    base = {name: values[0] for name, values in valid.items()}

    def accepted(found):
        for row in found.to_pylist():
            try:
                _check(row)
            except MessageIllegalError:
                return False
        return True

    for name in valid:
        for value in odd[name] + valid[name]:
            found = pa.RecordBatch.from_pylist([base, {**base, name: value}, base], schema=STAGED_SCHEMA)
            assert accepted(found) == (value in valid[name])
            assert are_messages(found) == accepted(found), (name, value)
            assert are_messages(found.slice(1, 1)) <= accepted(found.slice(1, 1))
    assert are_messages(found.slice(0, 0))


def test_a_batch_that_was_sent_in_part_goes_on_inside_of_a_row_group(broker, tmp_path, monkeypatch):
    class Dying(Publisher):
        def send(self, request):
            if request.first:
                raise RemotingCommandError(ResponseCode.MESSAGE_ILLEGAL, "refused")
            super().send(request)

    monkeypatch.setattr(requests, "_ROWS", 7)
    made = options(broker, tmp_path / "c")
    groups = [batch_of(rows("groups", low, low + 5)) for low in range(0, 20, 5)]
    parts = [stage(FILES, made, 3, 0, "0", iter(groups))]
    with pytest.raises(RemotingCommandError, match="refused"):
        commit_batch(FILES, made, 3, parts, wait, connect=Dying)
    assert commit_batch(FILES, made, 3, parts, wait) == 13
    assert stored(broker, "groups") == [(3, n, n) for n in range(20)]


def test_a_batch_that_an_earlier_release_has_begun_is_sent(broker, tmp_path):
    made = options(broker, tmp_path / "c")
    part, = staged(made, 0, [rows("earlier", 0, 3)])
    (tmp_path / "c" / "tailrace-sink" / "0.json").write_text(json.dumps({
        "query": QUERY, "batch": 0, "files": [{
            "path": part.path, "partition": 0, "rows": 3, "sha256": part.sha256, "topics": ["earlier"]}],
        "starts": {}, "sent": False}))
    assert commit_batch(FILES, made, 0, staged(made, 0, [rows("earlier", 0, 9)], "1"), wait) == 3
    assert stored(broker, "earlier") == [(0, n, n) for n in range(3)]


def test_what_an_abort_may_remove(broker, tmp_path, killed):
    class Dying(Publisher):
        def send(self, request):
            raise killed.Killed

    made = options(broker, tmp_path / "c")
    parts = staged(made, 0, [rows("aborted", 0, 3)])
    discard(FILES, made, parts, 0)
    assert not list((tmp_path / "c").rglob("*.arrow"))
    parts = staged(made, 0, [rows("aborted", 0, 3)])
    with pytest.raises(killed.Killed):
        commit_batch(FILES, made, 0, parts, wait, connect=Dying)
    discard(FILES, made, parts, 0)
    part, = (tmp_path / "c").rglob("*.arrow")
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match="staged rows"):
        commit_batch(FILES, made, 0, parts, wait)


@pytest.mark.parametrize(("given", "columns", "match"), [
    ({}, "body binary", "set one of the options broker and namesrv"),
    ({"broker": "a:1", "namesrv": "b:2"}, "topic string, body binary", "set one of the options"),
    ({"broker": "a:1", "tpic": "x"}, "topic string, body binary", "unknown option tpic"),
    ({"broker": "a:1"}, "body binary", "no column topic and no option topic"),
    ({"broker": "a:1", "topic": "t"}, "topic string", "no column body"),
    ({"broker": "a:1"}, "topic string, body int", "column body cannot be int"),
    ({"broker": "a:1"}, "topic string, body binary, queueOffset long", "column queueOffset is not written"),
    ({"broker": "a:1"}, "topic string, body binary, keys array<int>", "column keys cannot be"),
    ({"broker": "a:1", "checkpointLocation": "hdfs://x/y"}, "topic string, body binary", "staged there as files"),
    ({"broker": "a:1", "timeoutMs": "0"}, "topic string, body binary", "timeoutMs=0"),
    ({"broker": "a:1", "path": "/x"}, "topic string, body binary", "not a path"),
])
def test_bad_options_are_named(given, columns, match):
    with pytest.raises(ConfigError, match=match):
        parse_write_options(given, schema(columns), stream=True, overwrite=False)
    with pytest.raises(ConfigError, match="only be appended"):
        parse_write_options(given, schema(columns), stream=False, overwrite=True)
