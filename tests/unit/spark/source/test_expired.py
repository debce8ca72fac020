"""Deleted and purged messages: reported with their offsets, skipped if the options say so, and counted."""

import logging
import re

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import DataLossError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.store.directory import StoreDirectory

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.verification import restored
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.pipeline.audit import audit
from tailrace.spark.source import stream_reader
from tailrace.store.archive_manifest import read_manifest
from tailrace.store.archive_store import PosixArchive
from tailrace.testing.sim_clock import SimClock

pytestmark = pytest.mark.slow  # each opens and closes stores
CONFIG = StoreConfig(mapped_file_size_commit_log=64 << 10, file_reserved_time=0)
FILES = OsFileSystem()
COUNT = 240
SKIPPED = re.compile(r"data lost store=s topic=(\w) queue_id=(\d) from=(\d+) until=(\d+) skipped=(\d+)")


def fill(path):
    with MessageStore.open(str(path), config=CONFIG) as store:
        for number in range(COUNT):
            store.put(Message(topic="ab"[number % 2], body=bytes(1000)), queue_id=number // 2 % 2)
        store.wait_dispatched(60_000)


def expire(path):
    with MessageStore.open(str(path), config=CONFIG) as store:
        assert store.retention.delete_now() > 1


def purge(path):
    with MessageStore.open(str(path), config=CONFIG) as store:
        store.purge_topic("a")


def minima(path):
    """The first offset left of each queue, which is also how many are gone."""
    return {
        (queue.topic, queue.queue_id): queue.min_offset
        for queue in StoreDirectory(str(path), config=CONFIG).queues()}


def rows(reader, planned):
    return [row for task in planned for batch in reader.read(task) for row in batch.to_pylist()]


def skipped(caplog):
    """Messages that were said to be skipped, by queue."""
    found = [SKIPPED.search(one.getMessage()) for one in caplog.records]
    made = {(one[1], int(one[2])): tuple(map(int, one.groups()[2:])) for one in found if one}
    assert all(number == until - first for first, until, number in made.values())
    return {key: number for key, (_, _, number) in made.items()}


START = {"a": {"0": 0, "1": 0}, "b": {"0": 0, "1": 0}}
START_TEXT = str(START).replace("'", '"')


def nexts(offsets):
    """The next offsets of a checkpoint, without what it says about the messages before them."""
    return {topic: queues for topic, queues in offsets.items() if topic != "#"}


@pytest.mark.parametrize("let_go", [expire, purge])
def test_a_batch_says_what_is_gone_or_skips_and_counts_it(tmp_path, caplog, let_go):
    path = tmp_path / "s"
    fill(path)
    let_go(path)
    gone = {key: low for key, low in minima(path).items() if low}
    assert {topic for topic, _ in gone} == ({"a"} if let_go is purge else {"a", "b"})
    source = {"path": str(path), "startingOffsets": START_TEXT}
    with pytest.raises(DataLossError, match=r"a queue 0: offset 0 was deleted, the first offset that is left is "):
        TailraceDataSource(source).reader(None).partitions()
    with caplog.at_level(logging.WARNING):
        reader = TailraceDataSource({**source, "failOnDataLoss": "false"}).reader(None)
        found = rows(reader, reader.partitions())
    assert skipped(caplog) == gone
    assert len(found) == COUNT - sum(gone.values())
    assert all(row["queueOffset"] >= gone.get((row["topic"], row["queueId"]), 0) for row in found)
    plain = TailraceDataSource({"path": str(path)}).reader(None)
    assert rows(plain, plain.partitions()) == found


@pytest.mark.parametrize("let_go", [expire, purge])
def test_a_stream_says_what_is_gone_or_skips_and_counts_it(tmp_path, caplog, let_go):
    path = tmp_path / "s"
    fill(path)
    strict = TailraceDataSource({"path": str(path)}).streamReader(None)
    loose = TailraceDataSource({"path": str(path), "failOnDataLoss": "false"}).streamReader(None)
    end = strict.latestOffset(START, strict.getDefaultReadLimit())
    assert nexts(end) == {"a": {"0": 60, "1": 60}, "b": {"0": 60, "1": 60}}
    let_go(path)  # between the two calls of one batch
    gone = {key: low for key, low in minima(path).items() if low}
    with pytest.raises(DataLossError, match="was deleted, the first offset that is left is"):
        strict.partitions(START, end)
    with caplog.at_level(logging.WARNING):
        found = rows(loose, loose.partitions(START, end))
    assert skipped(caplog) == gone
    assert len(found) == COUNT - sum(gone.values())
    assert loose.latestOffset(end, loose.getDefaultReadLimit()) == end, "offsets do not go back"


def test_an_audit_of_what_is_left_finds_nothing(one_process, tmp_path):
    path = tmp_path / "s"
    fill(path)
    purge(path)
    whole = audit(one_process, str(path), config=CONFIG)
    assert (whole.findings, whole.summary["records"]) == ([], COUNT)
    expire(path)
    left = audit(one_process, str(path), config=CONFIG)
    assert left.findings == []
    assert 0 < left.summary["records"] < COUNT / 2


def test_the_archive_takes_purged_messages_and_not_deleted_segments(tmp_path):
    path = tmp_path / "s"
    fill(path)
    purge(path)
    log = {int(one.name): one.read_bytes() for one in (path / "commitlog").iterdir()}

    def archive(target):
        with ArchiveJob(
            str(path), str(target), local_runner(FILES), config=CONFIG,
            options=ArchiveOptions(piece_bytes=1 << 16)) as job:
            return job.step()

    made = archive(tmp_path / "a")
    assert [one.segment for one in made] == sorted(log)[:-1]
    assert all(one.messages == one.records and not one.damaged for one in made)
    for one in made:
        manifest = read_manifest(PosixArchive(str(tmp_path / "a")), one.segment)
        assert b"".join(restored(PosixArchive(str(tmp_path / "a")), manifest)) == log[one.segment]
    expire(path)
    assert archive(tmp_path / "b") == [], "what is gone cannot be archived, and is no error"


def test_a_batch_waits_for_enough_messages_but_not_for_ever(tmp_path):
    path = tmp_path / "s"
    fill(path)
    clock = SimClock()
    reader = TailraceDataSource({
        "path": str(path), "minOffsetsPerTrigger": "100", "maxTriggerDelay": "2m"}).streamReader(None)
    reader._clock = clock
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(START, limit)
    assert sum(sum(queues.values()) for queues in nexts(end).values()) == COUNT, "the first does not wait"
    before = {"a": {"0": 60, "1": 30}, "b": {"0": 60, "1": 31}}  # 59 wait
    assert reader.latestOffset(before, limit) == before
    clock.advance(119_999)
    assert reader.latestOffset(before, limit) == before
    clock.advance(1)
    assert reader.latestOffset(before, limit) == end, "the delay is over"
    assert reader.latestOffset(before, limit) == before, "and begins again"
    assert reader.latestOffset(START, limit) == end, "enough is there"
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(before, limit) == end, "what is there now is read"


def test_a_trigger_opens_each_store_once(tmp_path, monkeypatch):
    path = tmp_path / "s"
    fill(path)
    opened, original = [], stream_reader.open_directories
    monkeypatch.setattr(
        stream_reader, "open_directories", lambda options: opened.append(1) or original(options))
    reader = TailraceDataSource({"path": str(path)}).streamReader(None)
    end = reader.latestOffset(START, reader.getDefaultReadLimit())
    assert nexts(reader.reportLatestOffset()) == nexts(end)
    assert len(opened) == 1
    tasks = reader.partitions(START, end)
    assert (len(opened), len(tasks)) == (1, 1)
    assert len(rows(reader, tasks)) == COUNT
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert len(opened) == 2
    assert reader.partitions(START, end), "the batch of an earlier run is planned again"
    assert len(opened) == 3
