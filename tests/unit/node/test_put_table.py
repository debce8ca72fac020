"""A table of messages: as many puts, checked before the first one, and forms of columns."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import (
    MessageIllegalError,
    StoreClosedError,
    StoreNotWritableError,
    TimerFlowControlError,
)
from tailrace.node import table_columns
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, max_message_size=6000)
MAPS = pa.map_(pa.string(), pa.string())
WORDS = ("a", "bc", "d" * 40, "ü", "日本")


def opened(path="/s", files=None, config=CONFIG, clock=None):
    return MessageStore.open(
        path, config=config,
        parts=StoreParts(services=False, file_system=files or CrashFileSystem(), clock=clock or SimClock()))


@pytest.fixture
def store():
    with opened() as store:
        yield store


def everything(store):
    """Return all messages by queue, without the fields that differ from put to put."""
    return {
        (topic, queue_id): [
            replace(message, store_timestamp=0, born_timestamp=0, properties={
                name: value for name, value in message.properties.items()
                if name != "UNIQ_KEY" or value.startswith("own")})
            for message in store.read(topic, queue_id)]
        for topic, queue_id, _, _ in store.queues()}


def some_rows(rng, count):
    return [
        {
            "body": rng.randbytes(rng.choice((0, 1, 30, 700))),
            "topic": rng.choice(("A", "B", None, "%RETRY%" + "g" * 200)),
            "queue_id": rng.choice((0, 1, 3, None)),
            "tags": rng.choice((None, "", *WORDS)),
            "keys": rng.choice((None, [], ["k"], list(WORDS))),
            "properties": rng.choice((None, {}, {"p": "v"}, {w: w for w in WORDS},
                                      {"UNIQ_KEY": f"own{rng.random()}"}, {"TAGS": "t", "KEYS": "k"})),
            "flag": rng.choice((0, -1, 1 << 30)),
        }
        for _ in range(count)]


def message_of(row, topic):
    # A row may say both, and its column counts; a message that does is refused.
    own = {name: value for name, value in (row["properties"] or {}).items()
           if not (row["tags"] and name == "TAGS") and not (row["keys"] and name == "KEYS")}
    return Message(
        topic=row["topic"] or topic, body=row["body"], tags=row["tags"] or None, keys=row["keys"] or (),
        properties=own, flag=row["flag"])


def as_lists(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def as_table(rows):
    columns = as_lists(rows)
    columns["properties"] = pa.array(
        [None if found is None else list(found.items()) for found in columns["properties"]], MAPS)
    types = {"body": pa.binary(), "topic": pa.string(), "queue_id": pa.int32(), "tags": pa.string(),
             "keys": pa.list_(pa.string()), "flag": pa.int32()}
    return pa.table({
        name: column if name == "properties" else pa.array(column, types[name])
        for name, column in columns.items()})


def many_batches(rows):
    return pa.concat_tables(
        as_table(rows[at : at + 7]) for at in range(0, len(rows), 7))


def one_slice(rows):
    table = as_table([*rows[:3], *rows, *rows[:2]])
    return table.slice(3, len(rows)).combine_chunks().to_batches()[0]


def large_and_encoded(rows):
    table = as_table(rows)
    return table.set_column(0, "body", table["body"].cast(pa.large_binary())).set_column(
        1, "topic", table["topic"].dictionary_encode()).set_column(
        2, "queueId", table["queue_id"].cast(pa.int64())).set_column(
        4, "keys", table["keys"].cast(pa.large_list(pa.large_string())))


@pytest.mark.parametrize("form", [as_lists, as_table, many_batches, one_slice, large_and_encoded])
def test_rows_are_as_messages_put_one_by_one(form, monkeypatch):
    monkeypatch.setattr(table_columns, "PIECE_ROWS", 16)
    rng = random.Random(form.__name__)
    for _ in range(5):
        rows = some_rows(rng, 45)
        with opened() as one, opened() as other:
            puts = [
                one.put(message_of(row, "D"), queue_id=2 if row["queue_id"] is None else row["queue_id"])
                for row in rows]
            result = other.put_table(form(rows), topic="D", queue_id=2)
            assert len(result) == len(rows)
            assert result.queue_offsets.tolist() == [put.queue_offset for put in puts]
            for store in (one, other):
                store.wait_dispatched()
            expected, found = everything(one), everything(other)
            assert found.keys() == expected.keys()
            for queue, messages in expected.items():
                assert found[queue] == messages
            assert result.phy_offsets.tolist() == [put.phy_offset for put in puts]
            assert result.until == puts[-1].until
            assert [m.body for m in other.query_message("A", "k")] == [
                m.body for m in one.query_message("A", "k")]
            assert not list(other.recovery_report.get("damage", ()))


def test_every_row_has_a_unique_key_of_its_own(store, monkeypatch):
    monkeypatch.setattr(table_columns, "PIECE_ROWS", 10)
    for _ in range(2):
        store.put_table({"body": [b"x"] * 35}, topic="T")
    keys = [message.properties["UNIQ_KEY"] for message in store.read("T")]
    assert len(set(keys)) == 70
    assert {len(key) for key in keys} == {32}


def test_a_checksum_of_the_whole_record_ends_it():
    config = replace(CONFIG, enabled_append_prop_crc=True)
    files = CrashFileSystem()
    with opened(files=files, config=config) as store:
        store.put_table({"body": [b"1", b"2"], "tags": ["t", None]}, topic="T")
        assert [m.body for m in store.read("T")] == [b"1", b"2"]
        assert b"__CRC32#" in store.select_record(0)
    with opened(files=files, config=config) as store:
        assert [m.body for m in store.read("T")] == [b"1", b"2"]


def test_rows_with_a_time_wait(tmp_path):
    clock = SimClock()
    with opened(clock=clock) as store:
        later = clock.now_ms() + 5000
        result = store.put_table({
            "body": [b"now", b"later", b"level", b"past"], "deliver_at": [None, later, None, 1],
            "properties": [None, None, {"DELAY": "2"}, None]}, topic="T")
        assert [m.body for m in store.read("T")] == [b"now", b"past"]
        assert {timer.level for timer in store.timers()} == {0, 2}
        assert list(result.recall_handles) == [1]
        assert (result.phy_offsets >= 0).all()
        store.recall(result.recall_handles[1])


def test_a_timestamp_of_arrow_is_a_time(store):
    ms = store._clock.now_ms() + 5000
    for column in (pa.array([ms * 1000], pa.timestamp("us", "UTC")), pa.array([ms], pa.timestamp("ms"))):
        store.put_table(pa.table({"body": [b"x"], "deliverAt": column}), topic="T")
    assert len(list(store.timers())) == 2


WRONG = [
    ({"body": [b"1", None]}, "body: row 1: is null"),
    ({"body": ["1"]}, "body: row 0: is str, bytes is needed"),
    ({"body": pa.array(["1"])}, "body: is string, binary is needed"),
    ({"body": pa.array([1])}, "body: is int64, binary is needed"),
    ({"body": pa.array([b"1", None])}, "body: row 1: is null"),
    ({"body": pa.nulls(1)}, "body: row 0: is null"),
    ({"tags": ["t"]}, "body: is missing"),
    ({"body": [b"1"] * 3, "topic": ["a", "b", "c d"]}, "topic: row 2: 'c d' must be"),
    ({"body": [b"1"], "topic": [""]}, "topic: row 0: is empty"),
    ({"body": [b"1"], "topic": [b"T"]}, "topic: row 0: is bytes, str"),
    ({"body": [b"1"], "topic": pa.array([b"T"])}, "topic: is binary, string"),
    ({"body": [b"1"], "topic": pa.array([7])}, "topic: is int64, string"),
    ({"body": [b"1"], "topic": pa.array([7]).dictionary_encode()}, "topic: is dictionary"),
    ({"body": [b"1"] * 2, "tags": ["t", "a\x02"]}, "tags: row 1: must not hold"),
    ({"body": [b"1"], "tags": [1]}, "tags: row 0: is int"),
    ({"body": [b"1"], "tags": ["\ud800"]}, "tags: row 0: cannot be stored as UTF-8"),
    ({"body": [b"1"], "keys": ["k"]}, "keys: row 0: is str, a list"),
    ({"body": [b"1"], "keys": pa.array(["k"])}, "keys: is string, a list"),
    ({"body": [b"1"], "keys": [["k", ""]]}, "keys: row 0: a key is empty"),
    ({"body": [b"1"], "keys": [["a b"]]}, "keys: row 0: a key has a blank"),
    ({"body": [b"1"], "keys": [["a\x01"]]}, "keys: row 0: a key must not hold"),
    ({"body": [b"1"], "keys": [["a", None]]}, "keys: row 0: has None"),
    ({"body": [b"1"] * 2, "keys": pa.array([["a"], [None]])}, "keys: row 1: holds a null"),
    ({"body": [b"1"], "properties": [{"": "v"}]}, "properties: row 0: name and value must not be empty"),
    ({"body": [b"1"], "properties": [{"n": ""}]}, "properties: row 0: name and value must not be empty"),
    ({"body": [b"1"], "properties": [{"n": "\x01"}]}, "properties: row 0: name and value must not hold"),
    ({"body": [b"1"], "properties": [{"n": 1}]}, "properties: row 0: 'n': name and value must be strings"),
    ({"body": [b"1"], "properties": [["n"]]}, "properties: row 0: is list, a dict"),
    ({"body": [b"1"], "properties": pa.array([[("n", "1"), ("n", "2")]], MAPS)}, "row 0: a name is given twice"),
    ({"body": [b"1"], "properties": pa.array([[("n", None)]], MAPS)}, "properties: row 0: holds a null"),
    ({"body": [b"1"], "properties": [{"n": "v" * 32760}]}, "properties: row 0: more than 32767"),
    ({"body": [b"1"], "properties": [{"INNER_MULTI_DISPATCH": "%LMQ%a"}]}, "row 0: names LMQ queues"),
    ({"body": [b"1"], "queue_id": [4]}, "queueId: row 0: 4, T has queues 0 to 3"),
    ({"body": [b"1"] * 2, "queue_id": [None, -1]}, "queue_id: row 1: -1 is outside"),
    ({"body": [b"1"], "queue_id": [1 << 31]}, "queue_id: row 0: 2147483648 is outside"),
    ({"body": [b"1"], "queue_id": [1 << 70]}, "queue_id: row 0: 1180591620717411303424 has more"),
    ({"body": [b"1"], "queue_id": [True]}, "queue_id: row 0: True is not a whole number"),
    ({"body": [b"1"], "queue_id": pa.array([1.0])}, "queue_id: is double, whole numbers"),
    ({"body": [b"1"] * 2, "flag": [0, 1 << 31]}, "flag: row 1: 2147483648 has more than 32 bits"),
    ({"body": [b"1"], "flag": np.array([1 << 63], np.uint64)}, "flag: row 0: 9223372036854775808 has"),
    ({"body": [b"1"], "deliver_at": ["soon"]}, "deliver_at: row 0: 'soon' is not a whole number"),
    ({"body": [b"1"] * 2, "deliver_at": [None, -5]}, "deliver_at: row 1: -5 is negative"),
    ({"body": [b"1"], "deliver_at": pa.array([-1001], pa.timestamp("us"))}, "deliver_at: row 0: -1 is negative"),
    ({"body": [b"1"], "deliver_at": [1 << 60]}, "timer: row 0: timer message illegal"),
    ({"body": [b"1", b"x" * 6001]}, "body: row 1: 6001 bytes, maxMessageSize allows 6000"),
    ({"body": [b"1"], "bodies": [b"2"]}, "table: has the column 'bodies', which is not known"),
    ({"body": [b"1"], "queueId": [1], "queue_id": [1]}, "table: has the column queue_id twice"),
    ({"body": [b"1"], "tags": ["a", "b"]}, "table: columns differ in length: body 1, tags 2"),
]


@pytest.mark.parametrize(("table", "why"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_table_is_named_and_nothing_is_written(store, table, why):
    store.put(Message(topic="T", body=b"first"))
    topics, until = set(store.topics.table), store.max_phy_offset
    with pytest.raises(MessageIllegalError) as raised:
        store.put_table(table, topic="T")
    assert why in str(raised.value)
    assert (set(store.topics.table), store.max_phy_offset) == (topics, until)
    assert store.put(Message(topic="T", body=b"next")).queue_offset == 1


def test_a_wrong_row_far_on_leaves_nothing(store, monkeypatch):
    monkeypatch.setattr(table_columns, "PIECE_ROWS", 8)
    with pytest.raises(MessageIllegalError, match="tags: row 99"):
        store.put_table({"body": [b"x"] * 100, "tags": [*["t"] * 99, "\x01"], "topic": ["N"] * 100})
    assert "N" not in store.topics.table
    assert store.max_phy_offset == 0


@pytest.mark.parametrize("table", [[b"x"], b"x", None, 7])
def test_an_object_that_is_not_a_table_is_refused(store, table):
    with pytest.raises(TypeError, match="put_table takes"):
        store.put_table(table, topic="T")


def test_a_row_without_a_topic_is_named(store):
    with pytest.raises(MessageIllegalError, match="topic: row 1: is null or missing"):
        store.put_table({"body": [b"1", b"2"], "topic": ["T", None]})


def test_a_column_given_twice_is_refused(store):
    table = pa.Table.from_arrays([pa.array([b"1"]), pa.array([b"2"])], names=["body", "body"])
    for form in (table, table.to_batches()[0]):
        with pytest.raises(MessageIllegalError, match="'body' twice"):
            store.put_table(form, topic="T")


@pytest.mark.parametrize("table", [
    {"body": []}, pa.table({"body": pa.array([], pa.binary())}),
    pa.schema([("body", pa.binary())]).empty_table()])
def test_a_table_without_rows_puts_nothing(store, table):
    result = store.put_table(table, topic="T")
    assert (len(result), result.until) == (0, -1)


def test_flow_control_of_timers_stops_the_whole_table(monkeypatch):
    clock = SimClock()
    with opened(config=replace(CONFIG, timer_congest_num_each_slot=100), clock=clock) as store:
        monkeypatch.setattr(store.timer_services._hook, "_slot_num", lambda _: 200)
        with pytest.raises(TimerFlowControlError):
            store.put_table(
                {"body": [b"now", b"x"], "deliver_at": [None, clock.now_ms() + 60_000]}, topic="T")
        assert store.max_phy_offset == 0


def test_a_full_disk_leaves_whole_rows_and_says_how_many():
    files = CrashFileSystem()

    def full(number, name, path):
        if name == "create" and path.endswith("32768"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    with opened(files=files) as store:
        files.before = full
        with pytest.raises(StoreNotWritableError, match=r"writable: 30 of 200 rows were put: no space for"):
            store.put_table({"body": [b"%03d" % n * 300 for n in range(200)]}, topic="T")
        files.before = None
        assert [m.body[:3] for m in store.read("T")] == [b"%03d" % n for n in range(30)]
        assert store.put_table({"body": [b"next"]}, topic="T").queue_offsets.tolist() == [30]


@pytest.mark.parametrize("timer_first", [False, True])
def test_an_error_of_put_many_counts_all_its_messages(timer_first):
    files = CrashFileSystem()

    def full(number, name, path):
        if name == "create" and path.endswith("32768"):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    messages = [Message(topic="ABC"[n // 10 % 3], body=b"%03d" % n * 300) for n in range(200)]
    if timer_first:  # such a list goes into the log one by one
        messages[0] = replace(messages[0], delay=3600)
    with opened(files=files) as store:
        files.before = full
        with pytest.raises(StoreNotWritableError) as caught:
            store.put_many(messages)
        files.before = None
        store.wait_dispatched()
        there = sum(until for *_, until in store.queues())
        assert there > 20, "of several topics"
        assert caught.value.reason.startswith(f"{there} of 200 messages were put: no space for")


def test_a_closed_store_takes_no_table():
    store = opened()
    store.close()
    with pytest.raises(StoreClosedError):
        store.put_table({"body": [b"x"]}, topic="T")
