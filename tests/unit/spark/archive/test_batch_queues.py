"""The archive of topics with batch queues: every record as it was, and each message of an inner batch once."""

import json
import shutil
from itertools import pairwise

import pytest
from archives import write_manifest_over

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow.parquet as pq

from tailrace.node.store_opening import StoreParts
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.source import archived_batches
from tailrace.spark.source.offsets import open_directories, queues_of
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.scan import plan_tasks, read_task
from tailrace.spark.source.schema import column_names
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

SEGMENT = 1 << 14
BATCHES = 300
FILES = OsFileSystem()
pytestmark = pytest.mark.slow  # each opens and closes stores


def opened(path, **settings):
    return MessageStore.open(path, parts=StoreParts(services=False), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=4000, file_reserved_time=0,
        mapper_file_size_batch_consume_queue=46 * 40, **settings))


def put(store, number):
    count = number % 7
    if count < 2:
        store.put(Message(topic="B" if count else "T", body=b"%d" % number, tags="single", keys=[f"s{number}"]),
                  queue_id=0)
        return
    items = [
        (at, b"%d-%d" % (number, at) * 9, encode_properties(
            {"UNIQ_KEY": f"m{number}-{at}", "KEYS": f"k{number} j{at}", "TAGS": f"tag{at}", "n": str(at)}))
        for at in range(count)]
    names = encode_properties({"UNIQ_KEY": f"u{number}", "INNER_NUM": str(count), "TAGS": "whole"})
    assert store.put_inner(MessageExtBrokerInner("B", number % 2, encode_batch(items), names, 0, 0xC0, 1)).ok


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "store"
    with opened(place) as store:
        store.create_topic("B", 2, {"queue.type": "BatchCQ"})
        for number in range(BATCHES):
            put(store, number)
        store.wait_dispatched(60_000)
    return place


def archive(path, target):
    with ArchiveJob(
        str(path), str(target), local_runner(FILES), options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        return job.step()


def manifests(target):
    return [read_manifest(PosixArchive(str(target)), one) for one in list_manifests(PosixArchive(str(target)))]


def read(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()),
        key=lambda row: (row["commitLogOffset"], row["queueOffset"] or 0))


def with_archive(tmp_path):
    return {"fallback": "archive", "archive": str(tmp_path / "a")}


def delete(path):
    with opened(path) as store:
        return store.retention.delete_now()


def test_every_record_comes_back(path, tmp_path):
    made = archive(path, tmp_path / "a")
    assert len(made) > 3
    assert all(one.verified for one in made)
    for one in made:
        for queue in one.queues:
            assert queue.is_batch is (queue.topic == "B")
            if queue.is_batch:
                assert queue.end - queue.start > queue.count, "an end counts messages, a count counts records"
    by_queue = {}
    for one in made:
        for queue in one.queues:
            by_queue.setdefault((queue.topic, queue.queue_id), []).append((queue.start, queue.end))
    for spans in by_queue.values():
        assert all(end == start for (_, end), (start, _) in pairwise(spans)), "no hole between segments"
    list(restore_segments(PosixArchive(str(tmp_path / "a")), str(tmp_path / "r"), 0, 1 << 63))
    for one in made:
        name = f"commitlog/{one.segment:020d}"
        assert (tmp_path / "r" / name).read_bytes() == (path / name).read_bytes()


def test_a_restored_store_has_batch_queues_again(path, tmp_path):
    """Without topics.json the directories say which topics have batch queues."""
    made = archive(path, tmp_path / "a")
    list(restore_segments(PosixArchive(str(tmp_path / "a")), str(tmp_path / "r"), 0, 1 << 63))
    until = made[-1].until
    with opened(path) as store:
        wanted = {queue: [(m.queue_offset, m.body, m.properties) for m in store.read("B", queue)
                          if m.phy_offset < until] for queue in (0, 1)}
    with opened(tmp_path / "r") as store:
        assert store.topics.has_batch_queues("B")
        assert not store.topics.has_batch_queues("T")
        for queue in (0, 1):
            assert [(m.queue_offset, m.body, m.properties) for m in store.read("B", queue)] == wanted[queue]
    assert [line for line in verify(str(tmp_path / "r")) if "finding" in line] == []


@pytest.mark.parametrize("name", ["../B", "a/b", "..", ".", "", "x" * 300, "a\0b"])
def test_restore_makes_no_directory_for_a_name_that_is_no_topic(path, tmp_path, name):
    archive(path, tmp_path / "a")
    from dataclasses import replace

    first = manifests(tmp_path / "a")[0]
    changed = replace(first, queues=tuple(
        replace(one, topic=name) if one.is_batch else one for one in first.queues))
    write_manifest_over(PosixArchive(str(tmp_path / "a")), changed)
    before = sorted(file.name for file in tmp_path.iterdir())
    with pytest.raises(CorruptionError, match="is not the name of a topic"):
        list(restore_segments(PosixArchive(str(tmp_path / "a")), str(tmp_path / "r"), 0, SEGMENT))
    assert sorted(file.name for file in tmp_path.iterdir()) == before


@pytest.mark.parametrize("options", [
    {}, {"topic": "B"}, {"topic": "B", "body": "decoded"},
    {"columns": "commitLogOffset,queueOffset,store,keys,uniqKey"},
    {"splitBytes": "20000", "minPartitions": "3"}, {"body": "none"}, {"mode": "PERMISSIVE"},
    {"startingOffsets": '{"B": {"0": 78, "1": 101}}', "endingOffsets": '{"B": {"0": 402, "1": 333}}', "topic": "B"},
    {"topic": "B", "startingCommitLogOffset": "20000", "endingCommitLogOffset": "40000"},
])
def test_deleted_messages_come_from_the_archive(path, tmp_path, options, monkeypatch):
    monkeypatch.setattr(archived_batches, "_SPAN", 3000)
    before = read(path, **options)
    assert len(before) > 100
    archive(path, tmp_path / "a")
    assert delete(path) > 2
    assert len(read(path)) < len(before)
    assert read(path, **with_archive(tmp_path), **options) == before


def test_the_time_of_a_message_is_found_in_the_archive(path, tmp_path):
    every = read(path, topic="B")
    start = str(int(every[150]["storeTimestamp"].timestamp() * 1000))
    before = read(path, topic="B", startingTimestamp=start)
    archive(path, tmp_path / "a")
    delete(path)
    assert read(path, topic="B", startingTimestamp=start, **with_archive(tmp_path)) == before


def test_two_ranges_that_meet_in_an_inner_batch_have_each_message_once(path, tmp_path):
    archive(path, tmp_path / "a")
    with opened(path) as store:
        wanted = [(m.queue_offset, m.body) for m in store.read("B", 1)]
    delete(path)
    options = parse_options(
        {"path": str(path), "topic": "B", "queueId": "1", **with_archive(tmp_path)}, column_names)
    directories = open_directories(options)
    (label, directory), = directories.items()
    key, = queues_of(directories, options)
    live = next(queue for queue in directory.live.queues() if (queue.topic, queue.queue_id) == ("B", 1)).min_offset
    assert live > 100
    for cut in (0, 1, 2, 3, 50, 51, 52, 53, 54, live - 1, live, live + 1, live + 2, len(wanted)):
        found = []
        for span in ((0, cut), (cut, len(wanted))):
            for task in plan_tasks(label, directory, {key: span} if span[0] < span[1] else {}, options):
                for batch in read_task(task, options):
                    found += [(row["queueOffset"], row["body"]) for row in batch.to_pylist()]
        assert sorted(found) == wanted, cut


def test_files_that_are_deleted_between_planning_and_reading(path, tmp_path):
    before = read(path)
    archive(path, tmp_path / "a")
    reader = TailraceDataSource({"path": str(path), **with_archive(tmp_path)}).reader(None)
    planned = reader.partitions()
    delete(path)
    rows = [row for task in planned for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: (row["commitLogOffset"], row["queueOffset"])) == before


def test_messages_of_an_inner_batch_do_not_make_up_for_records_that_are_lost(path, tmp_path):
    """Data loss is found by counting records: the archive has all files that were deleted but one."""
    archive(path, tmp_path / "a")
    reader = TailraceDataSource({"path": str(path), "topic": "B", **with_archive(tmp_path)}).reader(None)
    planned = reader.partitions()
    delete(path)
    first = min(int(file.name) for file in (path / "commitlog").iterdir())
    (tmp_path / "a" / "_manifests" / f"{first - SEGMENT:020d}.json").unlink()
    with pytest.raises(StoreError, match=r"records between .* were deleted by retention"):
        [list(reader.read(task)) for task in planned]


def test_a_damaged_inner_batch_is_named_with_its_messages(path, tmp_path):
    with opened(path) as store:
        message = next(m for m in store.read("B", 0) if m.queue_offset >= 40 and m.body.startswith(b"4"))
        before = [(m.queue_offset, m.body) for m in store.read("B", 0)]
    segment = path / "commitlog" / f"{message.phy_offset // SEGMENT * SEGMENT:020d}"
    with segment.open("r+b") as file:
        file.seek(message.phy_offset % SEGMENT + 120)
        file.write(b"\xff\xfe\xfd")
    archive(path, tmp_path / "a")
    lost, = (one for manifest in manifests(tmp_path / "a") for one in manifest.damaged)
    covered = range(lost.queue_offset, lost.queue_offset + lost.messages)
    assert (lost.topic, lost.queue_id, lost.position) == ("B", 0, message.phy_offset)
    assert message.queue_offset in covered
    assert lost.messages > 1
    delete(path)
    table = {**with_archive(tmp_path), "topic": "B", "queueId": "0"}
    with pytest.raises(CorruptionError, match="damaged record"):
        read(path, **table, mode="FAILFAST")
    rows = read(path, **table, mode="PERMISSIVE")
    assert [row["commitLogOffset"] for row in rows if row["damaged"]] == [message.phy_offset]
    assert sorted((row["queueOffset"], row["body"]) for row in rows if not row["damaged"]) == [
        one for one in before if one[0] not in covered]
    for first, named in ((covered[-1], 1), (covered[-1] + 1, 0)):
        rows = read(path, **table, mode="PERMISSIVE", startingOffsets=json.dumps({"B": {"0": first}}))
        assert sum(bool(row["damaged"]) for row in rows) == named


def test_a_queue_that_is_created_again_as_a_plain_one_starts_anew(path, tmp_path):
    archive(path, tmp_path / "a")
    delete(path)
    with opened(path) as store:
        store.delete_topics({"B"})
        store.create_topic("B", 2)
        for number in range(5):
            store.put(Message(topic="B", body=b"new%d" % number), queue_id=0)
        store.wait_dispatched(60_000)
    rows = read(path, topic="B", queueId="0", **with_archive(tmp_path))
    assert [row["body"] for row in rows] == [b"new%d" % number for number in range(5)]


def test_queues_that_became_plain_ones_go_on_after_the_archive(path, tmp_path):
    """Without topics.json and queue files a topic gets plain queues, in which each message keeps its offset."""
    archive(path, tmp_path / "a")
    delete(path)
    before = [row["queueOffset"] for row in read(path, topic="B", queueId="0", **with_archive(tmp_path))]
    for name in ("batchconsumequeue", "config", "tailrace"):
        shutil.rmtree(path / name)
    with opened(path) as store:
        assert not store.topics.has_batch_queues("B")
        low = store.min_offset_in_queue("B", 0)
    rows = [row["queueOffset"] for row in read(path, topic="B", queueId="0", **with_archive(tmp_path))]
    assert [one for one in rows if one < low] == [one for one in before if one < low] == list(range(low))


def test_the_rows_are_those_of_the_records(path, tmp_path):
    made = archive(path, tmp_path / "a")
    rows = [row for one in made for file in one.files
            for row in pq.read_table(tmp_path / "a" / file.path, partitioning=None).to_pylist()]
    inner = [row for row in rows if row["topic"] == "B" and row["sysFlag"] & 0xC0]
    assert inner
    assert {row["kind"] for row in inner} == {"message"}
    assert all(dict(row["properties"])["INNER_BASE"] == str(row["queueOffset"]) for row in inner)
    text = (tmp_path / "a" / "_manifests" / f"{made[0].segment:020d}.json").read_text()
    assert all(("is_batch" in one) is (one["topic"] == "B") for one in json.loads(text)["queues"])


def test_a_damaged_row_of_a_batch_is_an_error(path, tmp_path):
    """A file is compared with its checksum; if it were wrong all the same, no row is made from it."""
    archive(path, tmp_path / "a")
    one = manifests(tmp_path / "a")[0]
    table = pq.read_table(tmp_path / "a" / one.files[0].path, partitioning=None)
    table = table.filter([topic == "B" for topic in table["topic"].to_pylist()])
    sizes = [size + 1 for size in table["storeSize"].to_pylist()]
    changed = table.set_column(table.schema.get_field_index("storeSize"), "storeSize", [sizes]).cast(table.schema)
    options = parse_options({"path": str(path), "topic": "B"}, column_names)
    with pytest.raises(CorruptionError, match="rows of the archive give no records"):
        list(archived_batches.batch_messages([changed], [], "", options))


def test_an_archive_goes_on_after_a_restart_and_is_verified(path, tmp_path):
    archive(path, tmp_path / "a")
    with opened(path) as store:
        for number in range(BATCHES, BATCHES + 80):
            put(store, number)
        store.wait_dispatched(60_000)
    before = read(path)
    assert archive(path, tmp_path / "a")
    with ArchiveJob(
        str(path), str(tmp_path / "a"), local_runner(FILES), options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        assert job.verify() == []
        assert job.checked == len(manifests(tmp_path / "a"))
    shutil.rmtree(path / "batchconsumequeue")
    delete(path)
    assert read(path, **with_archive(tmp_path)) == before
