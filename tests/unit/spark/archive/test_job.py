"""The archive reproduces every byte of a segment, and a kill at any step leaves nothing half published."""

import json
import pathlib
import shutil
import tarfile

import numpy as np
import pytest
from releases import CLEAN, CRASHED

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, StoreError, StoreLockedError
from tailrace.kernels import record
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.kernels.shared import constants as C
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.verification import restored
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

FIXTURES = pathlib.Path(__file__).parents[3] / "interop" / "fixtures"
FILES = OsFileSystem()
SEGMENT = 64 << 10
COLUMNS = ["kind", "topic", "queueId", "queueOffset", "commitLogOffset", "raw"]
pytestmark = pytest.mark.slow  # each opens and closes stores


def fill(path, *, count=160, size=1000, **settings):
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, **settings)
    with MessageStore.open(str(path), config=config) as store:
        for number in range(count):
            store.put(
                Message(topic="ab"[number % 2], body=bytes([number % 251]) * size, tags="T",
                        keys=[f"k{number}"]), queue_id=number % 3)
        store.wait_dispatched(60_000)


def archive(path, target, **options):
    file_system = options.pop("file_system", FILES)
    with ArchiveJob(
        str(path), str(target), local_runner(file_system), file_system=file_system,
        options=ArchiveOptions(piece_bytes=1 << 16, **options)) as job:
        return job.step()


def manifests(target):
    return [read_manifest(PosixArchive(str(target)), n) for n in list_manifests(PosixArchive(str(target)))]


def segments(path):
    return {int(p.name): p.read_bytes() for p in (path / "commitlog").iterdir()}


def assert_restored(path, target, sealed):
    found = manifests(target)
    there = segments(path)
    assert [one.segment for one in found] == sorted(there)[:sealed]
    for one in found:
        assert one.verified
        assert b"".join(restored(PosixArchive(str(target)), one)) == there[one.segment]
    return found


def assert_times_of_queues(target, manifest):
    """Each queue has the least and the greatest store time of its rows, from all pieces."""
    rows = pa.concat_tables(
        pq.read_table(target / one.path, columns=["kind", "topic", "queueId", "storeTimestamp"], partitioning=None)
        for one in manifest.files)
    rows = rows.filter(pc.equal(rows["kind"], "message"))
    rows = rows.set_column(3, "ms", pc.divide(rows["storeTimestamp"].cast("int64"), 1000))
    found = rows.group_by(["topic", "queueId"]).aggregate([("ms", "min"), ("ms", "max")]).to_pylist()
    assert {(one["topic"], one["queueId"]): (one["ms_min"], one["ms_max"]) for one in found} == {
        (one.topic, one.queue_id): (one.min_store_timestamp, one.max_store_timestamp)
        for one in manifest.queues if one.count}


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_a_java_brokers_segments_come_back(tmp_path, name):
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    made = archive(tmp_path / name, tmp_path / "archive")
    found = assert_restored(tmp_path / name, tmp_path / "archive", 4)
    assert sum(one.messages for one in found) == sum(one.messages for one in made) > 4000
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "archive").rglob("*.*")}
    assert archive(tmp_path / name, tmp_path / "archive") == []
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "archive").rglob("*.*")}
    for one in manifests(tmp_path / "archive"):
        assert_times_of_queues(tmp_path / "archive", one)


def test_the_segment_that_is_written_to_is_left_alone(tmp_path):
    fill(tmp_path / "s", count=10)
    assert archive(tmp_path / "s", tmp_path / "a") == []
    fill(tmp_path / "s", count=150)
    assert [one.segment for one in archive(tmp_path / "s", tmp_path / "a")] == [0, SEGMENT]
    fill(tmp_path / "s", count=60)
    assert [one.segment for one in archive(tmp_path / "s", tmp_path / "a")] == [2 * SEGMENT]


def test_a_served_store_is_archived_behind_its_dispatch(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with MessageStore.open(str(tmp_path / "s"), config=config) as store:
        for _ in range(160):
            store.put(Message(topic="a", body=b"x" * 1000), queue_id=0)
        store.wait_dispatched(60_000)
        made = archive(tmp_path / "s", tmp_path / "a")
        assert made
        assert all(one.queues[0].count == one.messages == one.records for one in made)


def rows(target):
    return [
        row for one in manifests(target) for file in one.files
        for row in pq.ParquetFile(target / file.path).read(columns=COLUMNS).to_pylist()]


def test_damage_is_kept_as_it_is_and_named(tmp_path):
    fill(tmp_path / "s")
    segment = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    scanned = np.zeros((99, C.COLUMNS), dtype=np.int64)
    count, _, _ = record.scan(data, 0, len(data), 0, 7, scanned)
    bad = [int(scanned[n, C.PHY]) for n in (5, 20, 21, count - 1)]
    data[bad[0] + 90] ^= 1
    data[bad[1] : bad[1] + 1500] = bytes(1500)
    data[bad[3] : bad[3] + 4] = b"\x7f\xff\xff\xff"
    segment.write_bytes(data)
    archive(tmp_path / "s", tmp_path / "a")
    found = assert_restored(tmp_path / "s", tmp_path / "a", 2)
    assert [one.position for one in found[0].damaged] == sorted(bad)
    assert found[0].damaged[0].reason == "bad body checksum"
    kinds = [row["kind"] for row in rows(tmp_path / "a")]
    assert kinds.count("damaged") == 3
    assert kinds.count("message") == found[0].messages + found[1].messages == len({
        (row["topic"], row["queueId"], row["queueOffset"])
        for row in rows(tmp_path / "a") if row["kind"] == "message"})


def test_records_that_columns_do_not_give_back_keep_their_bytes(tmp_path):
    fill(tmp_path / "s")
    segment = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    scanned = np.zeros((99, C.COLUMNS), dtype=np.int64)
    record.scan(data, 0, len(data), 0, 7, scanned)
    data[int(scanned[3, C.TOPIC_POS])] = 0xFF  # no UTF-8: as text it is another byte
    at = int(scanned[4, C.PHY]) + 56
    data[at : at + 8] = b"\x7f" * 8  # a store time that microseconds cannot hold
    segment.write_bytes(data)
    archive(tmp_path / "s", tmp_path / "a")
    assert_restored(tmp_path / "s", tmp_path / "a", 2)
    odd = [row for row in rows(tmp_path / "a") if row["raw"] and row["kind"] in {"record", "message"}]
    assert sorted(row["commitLogOffset"] for row in odd) == scanned[3:5, C.PHY].tolist()


def test_a_record_longer_than_a_piece_and_a_short_segment(tmp_path):
    config = StoreConfig(mapped_file_size_commit_log=1 << 20)
    with MessageStore.open(str(tmp_path / "s"), config=config) as store:
        for size in (10, 300_000, 20, 600_000, 500_000, 1_000_000):
            store.put(Message(topic="a", body=b"z" * size), queue_id=0)
        store.wait_dispatched(60_000)
    archive(tmp_path / "s", tmp_path / "a")
    found = assert_restored(tmp_path / "s", tmp_path / "a", 2)
    assert [one.messages for one in found] == [4, 1]


def test_rows_lie_in_the_day_of_their_time(tmp_path):
    fill(tmp_path / "s")
    segment = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    scanned = np.zeros((99, C.COLUMNS), dtype=np.int64)
    count, _, _ = record.scan(data, 0, len(data), 0, 7, scanned)
    for n in range(count):
        at = int(scanned[n, C.PHY]) + 56
        data[at : at + 8] = (86_400_000 * (20_000 + n // 30)).to_bytes(8, "big")
    segment.write_bytes(data)
    archive(tmp_path / "s", tmp_path / "a")
    found = assert_restored(tmp_path / "s", tmp_path / "a", 2)
    days = {file.path.split("/")[1] for file in found[0].files}
    assert days == {"dt=2024-10-04", "dt=2024-10-05"}
    for file in found[0].files:
        own = pq.ParquetFile(tmp_path / "a" / file.path).read().to_pylist()
        assert {f"dt={row['storeTimestamp']:%Y-%m-%d}" for row in own if row["topic"]} == {
            file.path.split("/")[1]}
        keys = [(row["topic"], row["queueId"], row["queueOffset"]) for row in own if row["topic"]]
        assert keys == sorted(keys)


def test_a_kill_at_any_step_leaves_nothing_half_published(tmp_path, killed):
    fill(tmp_path / "s")
    probe = killed.KilledFileSystem(10**9)
    archive(tmp_path / "s", tmp_path / "whole", file_system=probe)
    messages = sum(one.messages for one in manifests(tmp_path / "whole"))
    assert probe.done > 30
    for at in range(probe.done):
        target = tmp_path / "killed"
        shutil.rmtree(target, ignore_errors=True)
        with pytest.raises(killed.Killed):
            archive(tmp_path / "s", target, file_system=killed.KilledFileSystem(at))
        published = manifests(target)
        for one in published:
            assert b"".join(restored(PosixArchive(str(target)), one)) == segments(tmp_path / "s")[one.segment]
        made = archive(tmp_path / "s", target)
        found = assert_restored(tmp_path / "s", target, 2)
        assert len(made) + len(published) == len(found)
        named = [file.path for one in found for file in one.files]
        assert sorted(str(p.relative_to(target)) for p in target.rglob("*.parquet")) == sorted(named)
        assert sum(one.messages for one in found) == messages
    assert len([r for r in rows(target) if r["kind"] == "message"]) == messages


def test_files_are_compared_before_they_count(tmp_path):
    fill(tmp_path / "s")
    made = archive(tmp_path / "s", tmp_path / "a", verify=False)
    assert not any(one.verified for one in made)
    assert all(one.verified for one in archive(tmp_path / "s", tmp_path / "a"))
    shutil.rmtree(tmp_path / "a")
    made = archive(tmp_path / "s", tmp_path / "a", verify=False)
    part = tmp_path / "a" / made[0].files[0].path
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(StoreError, match=r"segment 0: ChecksumMismatchError.*part-00000"):
        archive(tmp_path / "s", tmp_path / "a")
    assert [one.verified for one in manifests(tmp_path / "a")] == [False, True]


def test_what_cannot_be_archived_is_said(tmp_path):
    fill(tmp_path / "s")
    archive(tmp_path / "s", tmp_path / "a")
    fill(tmp_path / "other", size=999)
    with pytest.raises(StoreError, match="an archive is for one store"):
        archive(tmp_path / "other", tmp_path / "a")
    with pytest.raises(ConfigError, match="must not be inside the store"):
        archive(tmp_path / "s", tmp_path / "s" / "a")
    with pytest.raises(StoreError, match="it has no commitlog"):
        archive(tmp_path / "a", tmp_path / "b")
    with ArchiveJob(str(tmp_path / "s"), str(tmp_path / "a"), local_runner(FILES)), pytest.raises(
        StoreLockedError, match="another archive job"):
        archive(tmp_path / "s", tmp_path / "a")
    name = tmp_path / "a" / "_manifests" / f"{0:020d}.json"
    name.write_text(json.dumps({"segment": 0}))
    with pytest.raises(StoreError, match="is not a manifest"):
        archive(tmp_path / "s", tmp_path / "a")


def test_the_share_of_the_bytes_that_are_done_is_reported(tmp_path):
    fill(tmp_path / "s", count=300)
    with ArchiveJob(
        str(tmp_path / "s"), str(tmp_path / "a"), local_runner(FILES), options=ArchiveOptions(at_once=2)) as job:
        shares = []
        count = len(job.step(shares.append))
        assert count > 3
        assert shares == [pytest.approx(n / count) for n in range(1, count + 1)]
        shares.clear()
        job.verify(share=shares.append)
        assert shares == [pytest.approx(n / count) for n in range(1, count + 1)]
        shares.clear()
        assert job.step(shares.append) == []
        assert shares == [], "nothing to do"


class CountedFiles:
    """The files of this machine; ``listed`` counts the listings of each directory."""

    def __init__(self):
        self.listed = {}

    def list(self, path):
        self.listed[path] = self.listed.get(path, 0) + 1
        return FILES.list(path)

    def __getattr__(self, name):
        return getattr(FILES, name)


def test_a_run_lists_manifests_once_whatever_it_publishes(tmp_path):
    fill(tmp_path / "s", count=400)
    files = CountedFiles()
    made = archive(tmp_path / "s", tmp_path / "a", file_system=files)
    assert len(made) > 5
    assert_restored(tmp_path / "s", tmp_path / "a", len(made))
    assert files.listed[f"{tmp_path}/a/_manifests"] == 1
    assert f"{tmp_path}/a/rows" not in files.listed, "only the days of a segment are looked at"
    for at, one in enumerate(manifests(tmp_path / "a")):
        assert (one.before.segment if at else one.before) == (made[at - 1].segment if at else None)


def test_segments_that_are_archived_in_another_order_are_linked(tmp_path):
    fill(tmp_path / "s", count=400)
    first = archive(tmp_path / "s", tmp_path / "a")
    for one in (first[1], first[3]):
        (tmp_path / "a" / one.files[0].path).unlink()
    assert [one.segment for one in archive(tmp_path / "s", tmp_path / "a")] == [first[1].segment, first[3].segment]
    found = assert_restored(tmp_path / "s", tmp_path / "a", len(first))
    assert [one.before.segment for one in found[1:]] == [one.segment for one in found[:-1]]
    assert [one.before.sha256 for one in found[1:]] == [one.sha256 for one in found[:-1]]
