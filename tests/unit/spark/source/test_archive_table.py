"""Archive and log are one table: each message once, whatever retention deletes, and when."""

import shutil

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, CorruptionError, DataLossError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.data_source import TailraceDataSource

SEGMENT = 64 << 10
COUNT = 330
pytestmark = pytest.mark.slow  # each opens and closes stores


def opened(path, **settings):
    return MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, file_reserved_time=0, **settings))


def fill(path, first=0, until=COUNT):
    with opened(path) as store:
        for number in range(first, until):
            store.put(
                Message(topic=("a", "b", "c")[number % 3], body=b"%d " % number * 200, tags="T",
                        keys=["k", f"k{number}"], properties={"n": str(number)}),
                queue_id=number % 2)
        store.wait_dispatched(60_000)


def archive(path, target):
    with ArchiveJob(
        str(path), str(target), local_runner(OsFileSystem()),
        options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        return job.step()


def delete(path):
    """What retention deletes when every message has expired: all files but the last."""
    with opened(path) as store:
        return store.retention.delete_now()


def read(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task)
         for row in batch.to_pylist()),
        key=lambda row: row["commitLogOffset"])


@pytest.fixture
def both(tmp_path):
    fill(tmp_path / "s")
    archive(tmp_path / "s", tmp_path / "a")
    return tmp_path / "s", {"fallback": "archive", "archive": str(tmp_path / "a")}


def test_deleted_rows_come_from_the_archive(both):
    path, table = both
    before = read(path)
    assert len(before) == COUNT
    assert read(path, **table) == before
    assert delete(path) == 4
    assert len(read(path)) < COUNT / 2
    assert read(path, **table, splitBytes="20000", minPartitions="3") == before
    fill(path, COUNT, COUNT + 20)
    after = read(path, **table)
    assert after[:COUNT] == before
    assert len(after) == COUNT + 20


@pytest.mark.parametrize("options", [
    {"topic": "b"}, {"assign": '{"a": [1]}'}, {"subscribePattern": "[ab]", "queueId": "0"},
    {"startingOffsets": '{"a": {"0": 7, "1": 40}, "b": {"0": 3}}'},
    {"startingOffsets": '{"a": {"0": 7}}', "endingOffsets": '{"a": {"0": 9}}', "topic": "a", "queueId": "0"},
    {"startingTimestamp": "150"}, {"endingTimestamp": "150"}, {"startingTimestamp": "320"},
    {"startingCommitLogOffset": "70000", "endingCommitLogOffset": "250000"},
    {"body": "none", "columns": "body,commitLogOffset"}, {"body": "decoded"},
    {"columns": "commitLogOffset,store,keys"}, {"mode": "PERMISSIVE"},
])
def test_options_choose_the_same_rows(both, options):
    path, table = both
    every = read(path)
    if time := {name for name in options if name.endswith("Timestamp")}:
        place = int(options[next(iter(time))])
        options = {next(iter(time)): str(
            int(every[place]["storeTimestamp"].timestamp() * 1000))}
    before = read(path, **options)
    delete(path)
    assert read(path, **table, **options) == before
    assert before


def test_files_deleted_between_planning_and_reading(both):
    path, table = both
    before = read(path)
    reader = TailraceDataSource({"path": str(path), **table}).reader(None)
    planned = reader.partitions()
    assert len(planned) == 1
    batches = reader.read(planned[0])
    rows = next(batches).to_pylist()  # the first file is open by now
    delete(path)
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row["commitLogOffset"]) == before
    plain = TailraceDataSource({"path": str(path)}).reader(None)
    fill(path, COUNT, COUNT + 200)
    planned = plain.partitions()
    delete(path)
    with pytest.raises(StoreError, match="were deleted by retention"):
        list(plain.read(planned[0]))


def test_a_file_that_is_cut_while_it_is_read(both):
    path, table = both
    before = read(path)
    reader = TailraceDataSource({"path": str(path), **table}).reader(None)
    planned = reader.partitions()
    for name in sorted((path / "commitlog").iterdir())[:3]:
        with name.open("r+b") as file:
            file.truncate(30_000)
    gone = path / "elsewhere"
    gone.mkdir()
    task = planned[0]
    from tailrace.spark.source import scan

    opened_files = [scan._Segment(*file) for file in task.files]
    for file in opened_files:
        file.read(0, 1)
    for name in sorted((path / "commitlog").iterdir())[:3]:
        name.rename(gone / name.name)
    rows = [
        row for batch in scan._read_files(opened_files, task, reader._options)
        for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row["commitLogOffset"]) == before


def test_a_hole_in_the_archive_is_data_lost(both, tmp_path):
    path, table = both
    before = read(path)
    delete(path)
    (tmp_path / "a" / "_manifests" / f"{SEGMENT:020d}.json").unlink()
    with pytest.raises(DataLossError):
        read(path, **table)
    some = read(path, **table, failOnDataLoss="false")
    assert some == [
        row for row in before if not SEGMENT <= row["commitLogOffset"] < 2 * SEGMENT]
    assert read(path, **table, startingCommitLogOffset=str(2 * SEGMENT)) == [
        row for row in before if row["commitLogOffset"] >= 2 * SEGMENT]


def test_a_topic_made_anew_counts_from_its_beginning(tmp_path):
    path, table = tmp_path / "s", {"fallback": "archive", "archive": str(tmp_path / "a")}
    fill(path)
    archive(path, tmp_path / "a")
    with opened(path) as store:
        store.delete_topics({"a"})
        for number in range(200):
            store.put(Message(topic="a", body=b"%d" % number * 300), queue_id=0)
        store.wait_dispatched(60_000)
    archive(path, tmp_path / "a")
    before = read(path, topic="a")
    assert len(before) == 200
    delete(path)
    assert read(path, topic="a", **table, queueId="0") == before


def test_what_an_archive_cannot_be_is_said(both, tmp_path):
    path, table = both
    delete(path)
    with pytest.raises(ConfigError, match="must be given together"):
        read(path, fallback="archive")
    with pytest.raises(ConfigError, match="has no _manifests"):
        read(path, fallback="archive", archive=str(path))
    part = next((tmp_path / "a").rglob("part-*.parquet"))
    kept = part.read_bytes()
    part.write_bytes(kept[:-1])
    with pytest.raises(CorruptionError, match="not what its manifest says"):
        read(path, **table)
    part.unlink()
    with pytest.raises(CorruptionError, match="cannot be read"):
        read(path, **table)
    part.write_bytes(kept)
    fill(tmp_path / "other", until=300)
    shutil.copy(tmp_path / "a" / "_manifests" / f"{0:020d}.json",
                tmp_path / "a" / "_manifests" / f"{1:020d}.json")
    with pytest.raises(CorruptionError, match="is the manifest of another segment"):
        read(path, **table)


def test_what_a_topic_let_go_is_archived_and_stays_in_the_table(tmp_path):
    path, table = tmp_path / "s", {"fallback": "archive", "archive": str(tmp_path / "a")}
    fill(path)
    before = read(path)
    with opened(path) as store:
        store.purge_topic("a")
    assert not read(path, topic="a")
    archive(path, tmp_path / "a")
    assert read(path, **table) == before
    delete(path)
    assert read(path, **table) == before


def test_a_log_in_several_paths(tmp_path):
    path = tmp_path / "s"
    settings = {"store_path_commit_log": f"{tmp_path}/one,{tmp_path}/two"}
    with opened(path, **settings) as store:
        for number in range(300):
            store.put(Message(topic="a", body=b"%d " % number * 200), queue_id=0)
        store.wait_dispatched(60_000)
    config = tmp_path / "broker.conf"
    config.write_text(f"storePathCommitLog={tmp_path}/one,{tmp_path}/two\n")
    before = read(path, config=str(config))
    assert len(before) == 300
    with ArchiveJob(
        str(path), str(tmp_path / "a"), local_runner(OsFileSystem()),
        config=StoreConfig(**settings)) as job:
        made = job.step()
        assert job.step() == []
    assert [one.segment for one in made] == [n * SEGMENT for n in range(len(made))]
    with opened(path, **settings) as store:
        assert store.retention.delete_now() == len(made)
    assert read(
        path, config=str(config), fallback="archive", archive=str(tmp_path / "a")) == before
