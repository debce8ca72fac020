"""Tasks that read their own units give the rows of a plan by messages, and a plan costs what queues and files cost."""

import itertools
import os
import pickle
import resource
import shutil
import time

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels.properties import encode_properties
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyspark")
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.source import own_units, scan
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.store.consume_queue import ConsumeQueue

pytestmark = pytest.mark.slow  # each opens and closes stores
SEGMENT = 64 << 10
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=20 * 16, file_reserved_time=0,
    mapper_file_size_batch_consume_queue=46 * 20)


@pytest.fixture
def by_file(monkeypatch):
    """Every plan is made as for more messages than the driver reads."""
    def use():
        monkeypatch.setattr(scan, "_FEW", -1)
        monkeypatch.setattr(scan, "_BYTES_OF_A_QUEUE", 1)
    return use


def fill(path, first=0, until=300, topics="ab"):
    with MessageStore.open(str(path), config=CONFIG) as store:
        for number in range(first, until):
            store.put(
                Message(topic=topics[number % len(topics)], body=b"%d " % number * 200, tags="T", keys=[f"k{number}"]),
                queue_id=number % 3)
        store.wait_dispatched(60_000)


def fill_batches(path):
    with MessageStore.open(str(path), config=CONFIG) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        for number in range(90):
            items = [(0, b"%d-%d " % (number, n) * 40, b"") for n in range(3)]
            names = encode_properties({"INNER_NUM": "3"})
            assert store.put_inner(MessageExtBrokerInner("B", 0, encode_batch(items), names, 0, 0xC0, 1)).ok
        store.wait_dispatched(60_000)


def planned(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return reader, reader.partitions()


def rows(path, **options):
    reader, tasks = planned(path, **options)
    return sorted(
        (row for task in tasks for batch in reader.read(pickle.loads(pickle.dumps(task))) for row in batch.to_pylist()),
        key=lambda row: (row["commitLogOffset"], row.get("queueOffset") or 0))


OPTIONS = [
    {}, {"topic": "b"}, {"assign": '{"a": [1]}'}, {"minPartitions": "7"}, {"splitBytes": "3000"},
    {"startingOffsets": '{"a": {"0": 7, "1": 40}, "b": {"0": 3}}', "splitBytes": "20000"},
    {"startingCommitLogOffset": "70000", "endingCommitLogOffset": "150000"}, {"subscribe": "a,B", "splitBytes": "9999"},
    {"topic": "B", "startingOffsets": '{"B": {"0": 7}}', "endingOffsets": '{"B": {"0": 200}}', "splitBytes": "5000"},
]


def test_every_row_once_as_by_a_plan_by_messages(tmp_path, by_file):
    path = tmp_path / "s"
    fill(path)
    fill_batches(path)
    before = [rows(path, **options) for options in OPTIONS]
    assert all(before)
    by_file()
    for options, want in zip(OPTIONS, before, strict=True):
        assert rows(path, **options) == want, options
    assert len(planned(path, splitBytes="3000")[1]) > 100
    assert len(planned(path, minPartitions="7")[1]) == 7


@pytest.mark.parametrize("at", [1, 90], ids=["length", "body"])
def test_damage_by_mode(tmp_path, by_file, at):
    path = tmp_path / "s"
    fill(path)
    places = [row["commitLogOffset"] for row in rows(path)]
    for place in (places[7], places[120]):
        with next(one for one in (path / "commitlog").iterdir() if int(one.name) == place // SEGMENT * SEGMENT).open(
                "r+b") as file:
            file.seek(place % SEGMENT + at)
            byte = file.read(1)[0]
            file.seek(place % SEGMENT + at)
            file.write(bytes([byte ^ 0x40]))
    modes = ("PERMISSIVE", "DROPMALFORMED")
    before = [rows(path, mode=mode, splitBytes="20000") for mode in modes]
    by_file()
    assert [rows(path, mode=mode, splitBytes="20000") for mode in modes] == before
    assert len(before[0]) == 300
    assert len(before[1]) == 298


def archive(path, target):
    with ArchiveJob(str(path), str(target), local_runner(OsFileSystem()),
                    options=ArchiveOptions(piece_bytes=1 << 16)) as job:
        job.step()


@pytest.mark.parametrize("units", ["kept", "gone"])
def test_files_deleted_after_planning_are_read_from_the_archive_or_reported(tmp_path, by_file, caplog, units):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    before = rows(path)
    by_file()
    table = {"fallback": "archive", "archive": str(target)}
    plans = [planned(path, splitBytes="40000", **more) for more in (table, {}, {"failOnDataLoss": "false"})]
    deleted = sorted((path / "commitlog").iterdir())[:2]
    for one in deleted:
        one.unlink()
    if units == "gone":
        for topic in "ab":
            for queue in range(3):
                files = sorted((path / "consumequeue" / topic / str(queue)).iterdir())
                files[0].unlink()  # 16 of 50 messages of the queue

    def read(reader, tasks):
        return sorted((row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()),
                      key=lambda row: row["commitLogOffset"])

    own_units.queues_on_disk.cache_clear()
    left = [row for row in before if row["commitLogOffset"] >= 2 * SEGMENT]
    assert read(*plans[0]) == before
    with pytest.raises(StoreError, match="were deleted by retention before they were read"):
        read(*plans[1])
    assert read(*plans[2]) == left
    assert "data lost store=s phy_offset=" in caplog.text


def test_the_tables_of_all_tasks_have_a_limit_and_a_given_size_of_tasks_counts(tmp_path):
    (tmp_path / "s" / "commitlog").mkdir(parents=True)

    def size(queues, table, *, is_read=False, total=100 << 40, **given):
        options = parse_options({"path": str(tmp_path / "s"), **given}, column_names)
        return scan._split_bytes(total, queues, table, options, is_read=is_read)

    assert size(1, 100, total=1 << 40) == 64 << 20
    assert size(1000, 100, total=1 << 40) == 1000 * (256 << 10)
    assert size(1000, 100, total=1 << 40, is_read=True) == 64 << 20
    assert (100 << 40) // size(1000, 20_000) * 20_000 <= 256 << 20
    assert size(1000, 20_000, splitBytes="3000") == 3000


def test_a_plan_reads_as_much_for_ten_times_the_messages(tmp_path, by_file, monkeypatch):
    path = tmp_path / "s"
    by_file()
    seen = []
    original = ConsumeQueue.units
    reads = []
    monkeypatch.setattr(ConsumeQueue, "units", lambda self, *spot: reads.append(1) or original(self, *spot))
    one = ConsumeQueue.unit
    monkeypatch.setattr(ConsumeQueue, "unit", lambda self, offset: reads.append(1) or one(self, offset))
    for until in (60, 600):
        fill(path, until // 20 if until > 60 else 0, until)
        reads.clear()
        assert planned(path, splitBytes="1000000")[1]
        seen.append(len(reads))
    assert seen[1] < 1.5 * seen[0], "a bisection over more files of six queues"


SEGMENTS, QUEUES, FILES = 100_000, 1_000, 20
LONG_SEGMENT, LONG_QUEUE = 1 << 30, 300_000 * 20


@pytest.mark.long
def test_the_plan_of_a_hundred_terabytes_takes_seconds(tmp_path):
    """Sparse files: 100,000 segments of 1 GiB, 1,000 queues with 20 files each, six million messages a queue."""
    path = tmp_path / "s"
    log = path / "commitlog"
    log.mkdir(parents=True)
    for number in range(SEGMENTS):
        with (log / f"{number * LONG_SEGMENT:020d}").open("wb") as file:
            file.truncate(LONG_SEGMENT)
    step = SEGMENTS * LONG_SEGMENT // (FILES * 300_000)
    for queue, at in itertools.product(range(QUEUES), range(FILES)):
        place = path / "consumequeue" / f"T{queue % 100}" / str(queue // 100)
        place.mkdir(parents=True, exist_ok=True)
        with (place / f"{at * LONG_QUEUE:020d}").open("wb") as file:
            file.truncate(LONG_QUEUE)
            first = at * 300_000
            for number in (*range(8), *(range(299_992, 300_000) if at < FILES - 1 else ())):
                os.pwrite(file.fileno(), CQ_UNIT.pack((first + number) * step, 200, 0), number * 20)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, tasks = planned(path)
    sizes = sum(len(pickle.dumps(task)) for task in tasks)
    took, used = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{len(tasks)} tasks, {sizes / 1e6:.0f} MB, {took:.1f} s of a processor, {used >> 10} MiB more")
    shutil.rmtree(path)
    assert took < 30
    assert used < 2 << 20
    assert sizes < 600 << 20
    assert tasks[-1].end - tasks[0].start > 0.94 * SEGMENTS * LONG_SEGMENT
