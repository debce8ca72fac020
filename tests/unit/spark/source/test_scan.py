"""Tasks read what the driver planned: damage follows the mode, missing messages are reported, bounds hold."""

import pathlib
import pickle

import pytest

from tailrace.errors import ConfigError, CorruptionError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.store.directory import StoreDirectory

pytest.importorskip("pyspark")
from tailrace.spark.data_source import TailraceDataSource

pytestmark = pytest.mark.slow  # each opens and closes stores
COUNT = 40


def fill(path, *, topic="a", count=COUNT):
    with MessageStore.open(str(path)) as store:
        places = [
            store.put(Message(topic=topic, body=b"body %d" % number, tags="T", keys=["k"]),
                      queue_id=number % 2).phy_offset
            for number in range(count)
        ]
        store.wait_dispatched(60_000)
    return places


@pytest.fixture
def root(tmp_path):
    return tmp_path / "s"


def tasks(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return reader, reader.partitions()


def rows(path, **options):
    reader, planned = tasks(path, **options)
    return [
        row for task in planned for batch in reader.read(pickle.loads(pickle.dumps(task)))
        for row in batch.to_pylist()]


def flip(path, place, at):
    """Change a byte of a record; returns how long the record is."""
    name = next((path / "commitlog").iterdir())
    with name.open("r+b") as file:
        file.seek(place)
        size = int.from_bytes(file.read(4), "big")
        file.seek(place + at)
        byte = file.read(1)[0]
        file.seek(place + at)
        file.write(bytes([byte ^ 0x40]))
    return size


BODY, LENGTH = 90, 1  # inside the body; in the length, so that the next record is not found by it


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "killed"])
@pytest.mark.parametrize("split", ["1000000", "500"])
def test_damage_by_mode(root, abort, split):
    places = fill(root)
    if abort:
        (root / "abort").write_text("1")
    flip(root, places[7], BODY)
    with pytest.raises(CorruptionError, match=f"bad body checksum.*phy_offset={places[7]}"):
        rows(root, splitBytes=split)
    dropped = rows(root, splitBytes=split, mode="DROPMALFORMED")
    assert [row["commitLogOffset"] for row in dropped] == [p for p in places if p != places[7]]
    kept = rows(root, splitBytes=split, mode="PERMISSIVE")
    assert sorted(row["commitLogOffset"] for row in kept) == places
    (bad,) = [row for row in kept if row["damaged"] is not None]
    assert (bad["commitLogOffset"], bad["damaged"], bad["store"]) == (
        places[7], "bad body checksum", "s")
    assert bad["body"] is bad["topic"] is bad["queueOffset"] is None


def test_a_broken_length_costs_one_record(root):
    places = fill(root)
    flip(root, places[7], LENGTH)
    flip(root, places[8], LENGTH)
    kept = rows(root, mode="PERMISSIVE")
    assert sorted(row["commitLogOffset"] for row in kept) == places
    assert [r["commitLogOffset"] for r in kept if r["damaged"]] == [places[7], places[8]]


def test_damage_of_another_topic_is_not_ours(root):
    places = fill(root)
    others = fill(root, topic="b", count=4)
    flip(root, others[1], BODY)
    assert len(rows(root, topic="a")) == COUNT
    flip(root, places[-1], BODY)
    assert len(rows(root, topic="b", mode="DROPMALFORMED")) == 3


def test_tasks_open_nothing_but_log_files(root, monkeypatch):
    places = fill(root)
    (root / "abort").write_text("1")
    reader, planned = tasks(root, splitBytes="1000")
    monkeypatch.setattr(StoreDirectory, "__init__", None)
    found = [row for task in planned for batch in reader.read(task) for row in batch.to_pylist()]
    assert [row["commitLogOffset"] for row in found] == places
    assert len(planned) > 3


def test_what_is_gone_is_said(root, caplog):
    fill(root)
    reader, planned = tasks(root)
    lenient, again = tasks(root, failOnDataLoss="false")
    for name in (root / "commitlog").iterdir():
        name.unlink()
    with pytest.raises(StoreError, match=f"{COUNT} of {COUNT} records .* were deleted"):
        list(reader.read(planned[0]))
    assert not list(lenient.read(again[0]))
    assert f"skipped={COUNT}" in caplog.text


def test_positions_of_the_log_narrow_a_read(root):
    places = fill(root)
    found = rows(root, startingCommitLogOffset=str(places[5]), endingCommitLogOffset=str(places[9] + 1))
    assert [row["commitLogOffset"] for row in found] == places[5:10]


def test_a_served_store_is_read_up_to_what_is_durable(root):
    with MessageStore.open(str(root)) as store:
        for number in range(9):
            store.put(Message(topic="a", body=b"%d" % number))
        store.wait_dispatched(60_000)
        store.flush()
        before = len(rows(root, topic="a"))
        store.put(Message(topic="a", body=b"last"))
        assert before <= len(rows(root, topic="a")) <= 10
        assert pathlib.Path(root, "abort").exists()


def test_stores_are_read_together(root, tmp_path):
    fill(root)
    fill(tmp_path / "t", count=3)
    both = {"paths": f'["{tmp_path / "t"}"]'}  # load([...]) alone gives paths
    found = rows(root, **both)
    assert [r["store"] for r in found].count("t") == 3
    assert len(found) == COUNT + 3
    assert {r["store"] for r in rows(root, **both, store="one,two")} == {"one", "two"}


def test_columns_are_alike_alone_and_together(root):
    fill(root)
    whole = rows(root)
    for name in whole[0]:
        assert [row[name] for row in rows(root, columns=name)] == [row[name] for row in whole]


def test_a_batch_has_no_limit_a_trigger_and_no_latest_start(root):
    fill(root, count=1)
    for given in ({"maxOffsetsPerTrigger": "5"}, {"startingOffsets": "latest"}):
        with pytest.raises(ConfigError):
            tasks(root, **given)


def test_records_longer_than_a_read_are_read_whole(root):
    bodies = [bytes([number]) * size for number, size in enumerate((5, 3 << 20, 7, 3 << 20, 9))]
    with MessageStore.open(str(root)) as store:
        for body in bodies:
            store.put(Message(topic="a", body=body))
        store.wait_dispatched(60_000)
    assert [row["body"] for row in rows(root, columns="body")] == bodies
