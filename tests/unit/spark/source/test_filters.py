"""Filters of a query become bounds that never leave out a row that passes them."""

import datetime as dt

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.source.filters import Bounds, bounds_of

COUNT = 60


def at(ms):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def test_conditions_add_up():
    assert bounds_of([IsNotNull(("topic",)), Not(EqualTo(("topic",), "x")), EqualTo(("tags",), "y")]) == Bounds()
    assert bounds_of([
        EqualTo(("topic",), "a"), In(("topic",), ("a", "b")), In(("queueId",), (1, 2)),
        GreaterThan(("commitLogOffset",), 10), LessThanOrEqual(("commitLogOffset",), 20),
        GreaterThanOrEqual(("storeTimestamp",), at(5)), LessThan(("storeTimestamp",), at(9)),
    ]) == Bounds(frozenset({"a"}), frozenset({1, 2}), 10, 21, 5, 10)


@pytest.mark.slow
def test_rows_that_pass_are_read(tmp_path):
    with MessageStore.open(str(tmp_path / "s")) as store:
        for number in range(COUNT):
            store.put(Message(topic="ab"[number % 2], body=b"x"), queue_id=number % 3)
        store.wait_dispatched(60_000)

    def read(*filters):
        reader = TailraceDataSource(
            {"path": str(tmp_path / "s"), "pushFilters": "true"}).reader(None)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return [
            row for task in reader.partitions() for batch in reader.read(task)
            for row in batch.to_pylist()]

    rows = sorted(read(), key=lambda row: row["commitLogOffset"])
    assert len(rows) == COUNT
    place = rows[20]["commitLogOffset"]
    assert {row["topic"] for row in read(EqualTo(("topic",), "b"))} == {"b"}
    assert len(read(EqualTo(("topic",), "nobody"))) == 0
    assert len(read(In(("queueId",), (0, 2)))) == COUNT * 2 // 3
    assert len(read(GreaterThanOrEqual(("commitLogOffset",), place))) == COUNT - 20
    assert len(read(LessThan(("commitLogOffset",), place))) in {20, 21}
    assert [row["commitLogOffset"] for row in read(EqualTo(("commitLogOffset",), place))] == [place]
    for edge in (rows[0], rows[30], rows[-1]):
        time = edge["storeTimestamp"]
        late = [row for row in rows if row["storeTimestamp"] >= time]
        assert len(read(GreaterThanOrEqual(("storeTimestamp",), time))) == len(late)
        early = {row["commitLogOffset"] for row in rows if row["storeTimestamp"] <= time}
        assert early <= {row["commitLogOffset"] for row in read(LessThanOrEqual(("storeTimestamp",), time))}
