"""Checkpoints of streams: their text, and queues that are not the ones that were read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config import StoreConfig
from tailrace.errors import DataLossError, StoreError
from tailrace.formats.commitlog import decode_message
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.spark.offset_ranges import units_of
from tailrace.spark.source.checkpoints import Checkpoint, LastMessage, from_json, to_json
from tailrace.spark.source.offsets import (
    batch_ranges,
    ended_at,
    resumed,
    share,
    stream_ranges,
    tips,
)
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.store.directory import StoreDirectory
from tailrace.testing import SimClock

UNITS = 50
"""Units of a queue file: a topic that is made again begins at a multiple of it."""
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * UNITS, max_hash_slot_num=1000,
    max_index_num=4000, commit_log_allocate_step=1 << 16, mapped_file_size_timer_log=52 * 200)
KEY = "s", "orders", 0
keys = st.tuples(st.sampled_from(["s"]), st.sampled_from(["a", "b", "version"]), st.integers(0, 12))
numbers = st.integers(0, 1 << 62)
checkpoints = st.builds(
    lambda entries: Checkpoint(
        {key: offset for key, (offset, _) in entries.items()},
        {key: last for key, (_, last) in entries.items() if last is not None}),
    st.dictionaries(keys, st.tuples(numbers, st.none() | st.builds(LastMessage, numbers, numbers)), max_size=8))


class Stream:
    """A stream over a directory: `run` reads the stored messages as a query does, and returns the bodies."""

    def __init__(self, path, **given):
        self.path, self.given = path, given
        self.text, self.labels = {}, ("s",)
        self.batches = 0

    @property
    def options(self):
        return parse_options({"path": self.path, **self.given}, column_names)

    def look(self):
        return {"s": StoreDirectory(self.path)}

    def run(self, limit=None):
        bodies = []
        while True:
            directories, options = self.look(), self.options
            start = from_json(self.text, self.labels)
            at = resumed(directories, start, options, log=False)
            parts = share(start.offsets, at, tips(directories, options), limit, options)
            if not sum(parts.values()):
                return bodies
            text = json.loads(json.dumps(to_json(ended_at(directories, start, at, parts), self.labels)))
            bodies += self.read(self.text, text)
            self.text = text
            self.batches += 1

    def read(self, start, end):
        first, last = from_json(start, self.labels), from_json(end, self.labels)
        directories = self.look()
        directory = directories["s"]
        return [
            decode_message(directory.read(unit["phy_offset"], unit["size"])).body
            for (_, topic, queue_id), (low, high) in sorted(
                stream_ranges(directories, first, last, self.options).items())
            for unit in units_of(directory.queue((topic, queue_id)), low, high, 0)]


def bodies_of(name, count, first=0):
    return [b"%s%d" % (name, number) for number in range(first, first + count)]


def fill(path, bodies, clock, queue_id=0, delete=False):
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, clock=clock)) as store:
        if delete:
            store.delete_topics({"orders"})
        if bodies:
            store.create_topic("orders", 4)
        for body in bodies:
            clock.advance(7)
            store.put(Message(topic="orders", body=body), queue_id=queue_id)


@pytest.fixture
def clock():
    return SimClock()


@pytest.fixture
def path(tmp_path, clock):
    path = str(tmp_path / "s")
    fill(path, bodies_of(b"old", 100), clock)
    return path


def golden(name):
    return (Path(__file__).with_name(f"checkpoint-version-{name}.json")).read_text().strip()


def test_golden_texts():
    offsets = {("s", "b", 10): 4, ("s", "b", 2): 0, ("s", "a", 0): 12}
    last = {("s", "b", 10): LastMessage(1000, 1_700_000_000_000), ("s", "a", 0): LastMessage(77, 5)}
    assert json.dumps(to_json(Checkpoint(offsets, last), ("s",))) == golden("2")
    two = Checkpoint({("t", "a", 0): 1, ("s", "a", 0): 2}, {("t", "a", 0): LastMessage(3, 4)})
    assert json.dumps(to_json(two, ("t", "s"))) == golden("2-of-two-stores")
    assert from_json(json.loads(golden("2")), ("s",)) == Checkpoint(offsets, last)
    assert from_json(json.loads(golden("1")), ("s",)) == Checkpoint(offsets, {})


@given(checkpoints, st.randoms())
def test_one_text_for_one_meaning(made, random):
    items = list(made.offsets.items())
    random.shuffle(items)
    text = json.dumps(to_json(Checkpoint(dict(items), made.last), ("s",)))
    assert text == json.dumps(to_json(made, ("s",)))
    assert from_json(json.loads(text), ("s",)) == made


@pytest.mark.parametrize("bad", [
    {"a": 5}, {"a": {"x": 5}}, {"a": {"0": -1}}, {"a": {"0": "5"}}, {"a": {"0": True}}, {"#": 1}, {"#": {}},
    {"#": {"version": 2}}, {"#": {"version": 2, "last": {"a": {"0": [1]}}}}, {"#": {"version": "2", "last": {}}}])
def test_other_texts_are_refused(bad):
    with pytest.raises(StoreError, match="no offsets of this source"):
        from_json(bad, ("s",))


def test_texts_of_a_later_release_and_of_other_stores_are_refused():
    with pytest.raises(StoreError, match="version 3, and this release reads versions up to 2"):
        from_json({"#": {"version": 3, "last": {}}}, ("s",))
    with pytest.raises(StoreError, match="stores that are not read: z"):
        from_json({"z": {"a": {"0": 1}}}, ("s", "t"))


@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize("more", [0, 10])  # a new life begins at 100, or at 150
@pytest.mark.parametrize("count", [30, 150])
@pytest.mark.parametrize("loses", ["false", "true"])
def test_a_topic_that_was_made_again_is_an_error_or_read_from_its_first_message(
    path, clock, caplog, limit, more, count, loses
):
    fill(path, bodies_of(b"old", more, 100), clock)
    stream = Stream(path, subscribe="orders", failOnDataLoss=loses)
    assert stream.run(limit) == bodies_of(b"old", 100 + more)
    fill(path, bodies_of(b"new", count), clock, delete=True)
    stream.batches = 0
    if loses == "true":
        with pytest.raises(StoreError, match=(
            f"orders queue 0 begins at {150 if more else 100}, but the checkpoint has {100 + more}: "
            "the topic was deleted and created again; failOnDataLoss=false reads the queue from its first message")):
            stream.run(limit)
        return
    assert stream.run(limit) == bodies_of(b"new", count)
    assert stream.batches == (1 if limit is None else -(-count // limit))
    assert sum("queue is another one than the checkpoint names" in one for one in caplog.messages) == 1
    assert "data lost" not in caplog.text
    fill(path, bodies_of(b"more", 40), clock)
    assert stream.run(limit) == bodies_of(b"more", 40)
    assert sum("another one" in one for one in caplog.messages) == 1


@pytest.mark.parametrize("loses", ["false", "true"])
def test_a_topic_that_does_not_exist_for_a_while(path, clock, caplog, loses):
    stream = Stream(path, subscribe="orders", failOnDataLoss=loses)
    stream.run()
    fill(path, [], clock, delete=True)
    if loses == "true":
        with pytest.raises(StoreError, match="orders does not exist"):
            stream.run()
        return
    assert stream.run() == []
    assert "queue went back store=s topic=orders queue_id=0 known=100 end=0" in caplog.text
    fill(path, bodies_of(b"new", 5), clock)
    assert stream.run() == bodies_of(b"new", 5)
    fill(path, bodies_of(b"also", 5), clock, queue_id=3)
    assert stream.run() == bodies_of(b"also", 5)


def test_a_queue_that_appears_later_in_a_topic_that_was_made_again_has_lost_nothing(path, clock):
    fill(path, bodies_of(b"old", 60), clock, queue_id=1)
    fill(path, bodies_of(b"new", 5), clock, delete=True)
    stream = Stream(path, subscribe="orders")
    assert stream.run() == bodies_of(b"new", 5)
    fill(path, bodies_of(b"late", 5), clock, queue_id=1)  # it begins after the 60 messages of the life before
    assert stream.run() == bodies_of(b"late", 5)


@pytest.mark.parametrize("count", [30, 100, 150])
@pytest.mark.parametrize("kind", ["another store", "restored from a copy", "made again by a Java broker"])
@pytest.mark.parametrize("loses", ["false", "true"])
def test_a_directory_that_was_replaced_is_an_error_or_read_from_its_first_message(
    path, clock, caplog, kind, count, loses
):
    stream = Stream(path, subscribe="orders", failOnDataLoss=loses)
    stream.run()
    expected = bodies_of(b"new", count)
    if kind == "another store":
        shutil.rmtree(path)
        clock.advance(-1_000_000)
        fill(path, expected, clock)
    elif kind == "restored from a copy":
        shutil.rmtree(path)
        fill(path, bodies_of(b"old", 20), clock)
        expected = bodies_of(b"old", 20) + bodies_of(b"new", count - 20)
        fill(path, expected[20:], clock)
    else:  # the queue begins at 0 again, in the same log
        with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, clock=clock)) as store:
            store.inner.queues.delete({("orders", 0)})
            store.inner.commit_log.queue_offsets.pop(("orders", 0), None)
            for body in expected:
                clock.advance(7)
                store.put(Message(topic="orders", body=body), queue_id=0)
    if loses == "true":
        with pytest.raises(StoreError, match=r"the topic was deleted and created again, or the store was replaced"):
            stream.run()
        return
    assert stream.run() == expected
    lines = [one for one in caplog.messages if one.startswith("queue is another one than the checkpoint names")]
    assert len(lines) == 1
    assert "known=100 first=0 reason=" in lines[0]
    fill(path, bodies_of(b"more", 40), clock)
    assert stream.run() == bodies_of(b"more", 40)


def test_a_batch_that_was_planned_before_its_directory_was_replaced_is_noticed(path, clock):
    stream = Stream(path, subscribe="orders")
    stream.run()
    before = stream.text
    fill(path, bodies_of(b"more", 20), clock)
    stream.run()
    shutil.rmtree(path)
    fill(path, bodies_of(b"new", 200), clock)
    with pytest.raises(StoreError, match="another message before offset 100"):
        stream.read(before, stream.text)


def test_an_expired_message_before_the_offset_is_no_loss(path, clock):
    stream = Stream(path, subscribe="orders")
    stream.run()
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, clock=clock)) as store:
        store.purge_topic("orders")
    fill(path, bodies_of(b"more", 5), clock)
    assert stream.run() == bodies_of(b"more", 5)
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, clock=clock)) as store:
        store.put(Message(topic="orders", body=b"lost"), queue_id=0)
        store.purge_topic("orders")
    fill(path, bodies_of(b"last", 5), clock)
    with pytest.raises(DataLossError, match="offset 105 was deleted, the first offset that is left is 106"):
        stream.run()


def test_a_checkpoint_of_version_1_is_read_and_gets_the_last_messages(path, clock):
    stream = Stream(path, subscribe="orders")
    stream.text = {"orders": {"0": 90}}
    assert stream.run() == bodies_of(b"old", 10, 90)
    assert [*stream.text["#"]["last"]["orders"]] == ["0"]
    stream.text = {"orders": {"0": 100}}
    assert stream.run() == []
    assert stream.text == {"orders": {"0": 100}}  # the same text, so Spark runs no batch


def test_a_batch_read_that_names_an_offset_of_the_ended_topic(path, clock, caplog):
    fill(path, bodies_of(b"new", 30), clock, delete=True)
    given = {"path": path, "topic": "orders", "startingOffsets": '{"orders": {"0": 40}}'}
    look = {"s": StoreDirectory(path)}
    with pytest.raises(StoreError, match=(
        "orders queue 0 begins at 100, but offset 40 is named: the topic was deleted and created again")):
        batch_ranges(look, parse_options(given, column_names))
    assert batch_ranges(look, parse_options({**given, "failOnDataLoss": "false"}, column_names)) == {KEY: (100, 130)}
    assert "data lost" not in caplog.text


def test_a_clock_that_is_corrected_after_the_checkpoint_makes_no_other_queue(tmp_path):
    """The time by the wall clock of messages from before a correction changes with it; their stored time does not."""
    path, clock = tmp_path / "s", SimClock()
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(clock=clock)) as store:
        store.create_topic("orders", 1)
        store.put(Message(topic="orders", body=b"one"), queue_id=0)
        end, now_ms = store.max_phy_offset, clock.now_ms()
    stream = Stream(str(path))
    assert stream.run() == [b"one"]
    (path / "tailrace" / "wall-times.json").write_text(
        json.dumps({"v": 1, "marks": [[end, now_ms - 3_600_000, now_ms]]}))
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(clock=clock)) as store:
        store.put(Message(topic="orders", body=b"two"), queue_id=0)
    assert stream.run() == [b"two"]
