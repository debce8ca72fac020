"""Every changed bit and missing file or manifest of an archive is reported, and repaired from the log."""

import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import CorruptionError, DataLossError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow.parquet as pq

from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.parquet_file import parts_of
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.data_source import TailraceDataSource
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

FILES = OsFileSystem()
SEGMENT = 64 << 10
FLIPS = 60
VERSION_1 = Path(__file__).with_name("archive-version-1.tar.xz")
"""A store and its archive, written before manifests had checksums and links."""
pytestmark = pytest.mark.slow  # each opens and closes stores


def opened(path, **settings):
    return MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, file_reserved_time=0,
        commit_log_roll_time=0,  # the messages of the packed store are old: a service would end its last file
        **settings))


def fill(path, *, count=280, body=200):
    with opened(path) as store:
        for number in range(count):
            store.put(
                Message(topic="ab"[number % 2], body=b"%d " % number * body, tags="T",
                        keys=[f"k{number}"]), queue_id=number % 3)
        store.wait_dispatched(60_000)


def job(path, target, **options):
    return ArchiveJob(
        str(path), str(target), local_runner(FILES),
        options=ArchiveOptions(piece_bytes=1 << 16, **options))


def archive(path, target, **options):
    with job(path, target, **options) as one:
        return one.step()


def verify(path, target, **options):
    with job(path, target) as one:
        made = one.verify(**options)
        return made, one.checked


def manifests(target):
    return [read_manifest(PosixArchive(str(target)), n) for n in list_manifests(PosixArchive(str(target)))]


def delete(path):
    with opened(path) as store:
        return store.retention.delete_now()


def read(path, target, **options):
    reader = TailraceDataSource({
        "path": str(path), "fallback": "archive", "archive": str(target), **options}).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task)
         for row in batch.to_pylist()), key=lambda row: row["commitLogOffset"])


def manifest_file(target, number):
    return target / "_manifests" / f"{number * SEGMENT:020d}.json"


def change(target, number, edit):
    """Change members of a manifest as a person with an editor would."""
    path = manifest_file(target, number)
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found, indent=2))


@pytest.fixture
def both(tmp_path):
    fill(tmp_path / "s")
    archive(tmp_path / "s", tmp_path / "a")
    return tmp_path / "s", tmp_path / "a"


@pytest.fixture
def version_1(tmp_path):
    with tarfile.open(VERSION_1) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "store", tmp_path / "archive"


# -- one bit


def places(data, chance):
    """Seeded bits of a file: of its footer, of page headers, of everything."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    headers = []
    with pq.ParquetFile(pq_buffer(data)) as found:
        for number in range(found.num_row_groups):
            group = found.metadata.row_group(number)
            for column in range(group.num_columns):
                one = group.column(column)
                headers += [at for at in (one.dictionary_page_offset, one.data_page_offset) if at]
    for number in range(FLIPS):
        match number % 3:
            case 0:
                at = chance.randrange(footer, len(data))
            case 1:
                at = chance.choice(headers) + chance.randrange(30)
            case _:
                at = chance.randrange(len(data))
        yield at, 1 << chance.randrange(8)


def pq_buffer(data):
    import pyarrow as pa

    return pa.BufferReader(data)


@pytest.mark.parametrize("fixture", ["both", "version_1"])
def test_a_flipped_bit_of_a_file_is_an_error_that_names_the_file(request, fixture):
    path, target = request.getfixturevalue(fixture)
    sound = read(path, target)
    assert delete(path)
    assert read(path, target) == sound
    part = min(target.rglob("*.parquet"))
    data, chance = part.read_bytes(), random.Random(14)
    named = set()
    for at, bit in places(data, chance):
        changed = bytearray(data)
        changed[at] ^= bit
        part.write_bytes(changed)
        with pytest.raises(CorruptionError) as caught:
            read(path, target)
        assert str(part) in str(caught.value), (at, bit)
        named.add(str(caught.value).split(" of an archived file")[0])
    assert named == (
        {"row group 0", "row group 1", "the footer"} if fixture == "both" else {"the whole"})
    part.write_bytes(data)
    assert read(path, target) == sound


def test_a_flipped_bit_of_a_manifest_is_an_error_or_changes_nothing(both):
    path, target = both
    sound = read(path, target)
    delete(path)
    chance = random.Random(15)
    for number in range(FLIPS):
        name = manifest_file(target, number % 2)
        data = name.read_bytes()
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        name.write_bytes(changed)
        try:
            assert read(path, target) == sound
        except CorruptionError as error:
            assert str(name) in str(error)
        name.write_bytes(data)


@pytest.mark.parametrize("damage", [
    lambda data: data[:-1], lambda data: data + b"\0", lambda data: b"", lambda data: None])
def test_a_cut_longer_or_missing_file_is_one_located_error(both, damage):
    path, target = both
    delete(path)
    part = min(target.rglob("*.parquet"))
    data = damage(part.read_bytes())
    part.unlink()
    if data is not None:
        part.write_bytes(data)
    with pytest.raises(CorruptionError, match=str(part)):
        read(path, target)


def test_a_file_that_is_no_parquet_is_one_located_error(version_1):
    """Whatever Arrow raises for bytes that were wrong before their checksum was taken."""
    import hashlib

    path, target = version_1
    delete(path)
    part = min(target.rglob("*.parquet"))
    data, chance = part.read_bytes(), random.Random(3)
    for _ in range(FLIPS):
        changed = bytearray(data)
        for _ in range(3):
            changed[chance.randrange(len(data) - 3000, len(data) - 8)] ^= 1 << chance.randrange(8)
        part.write_bytes(changed)

        def take(found, changed=bytes(changed)):
            found["files"][0]["sha256"] = hashlib.sha256(changed).hexdigest()

        change(target, 0, take)
        try:
            read(path, target)
        except CorruptionError as error:
            assert str(part) in str(error)


def test_parts_are_the_row_groups_and_what_is_after_them(both):
    _, target = both
    for manifest in manifests(target):
        for file in manifest.files:
            data = (target / file.path).read_bytes()
            assert file.parts == parts_of(data, file.path)
            assert file.parts[-1].end == len(data)


# -- manifests


def test_a_removed_manifest_is_named(both):
    path, target = both
    sound = read(path, target)
    assert delete(path) == 3
    first = manifest_file(target, 0)
    first.rename(target / "kept.json")
    with pytest.raises(CorruptionError, match=r"of segment 0 is missing, which the manifest"):
        read(path, target)
    later = read(path, target, startingCommitLogOffset=str(2 * SEGMENT))
    assert later == [row for row in sound if row["commitLogOffset"] >= 2 * SEGMENT]
    left = read(path, target, failOnDataLoss="false")
    assert left == [row for row in sound if row["commitLogOffset"] >= SEGMENT]
    with pytest.raises(StoreError, match=r"segment 0 is missing.*--from"):
        list(restore_segments(PosixArchive(str(target)), str(path / "restored"), 0, 1 << 62))
    with pytest.raises(StoreError, match=r"segment 0 is missing.*--accept-missing"):
        verify(path, target)
    (target / "kept.json").rename(first)
    assert read(path, target) == sound
    first.unlink()
    verify(path, target, accept_missing=True)
    assert read(path, target) == left


def test_a_manifest_that_is_written_again_still_names_the_missing_one(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target, verify=False)
    manifest_file(target, 0).unlink()
    with pytest.raises(StoreError, match="segment 0 is missing"):
        verify(path, target)
    found = manifests(target)
    assert [one.verified for one in found] == [True, True]
    (target / found[0].files[0].path).unlink()
    manifest_file(target, 0).write_text("{")  # not archived again: it cannot be read
    with pytest.raises(StoreError, match="is not a manifest"):
        archive(path, target)
    manifest_file(target, 0).unlink()
    with pytest.raises(StoreError, match="segment 0 is missing"):
        verify(path, target)
    assert manifests(target)[0].before.segment == 0, "also after its files were written again"


def test_a_changed_manifest_is_named(both):
    path, target = both
    delete(path)

    def lower(found):
        found["queues"][0]["end"] -= 1

    change(target, 1, lower)
    with pytest.raises(CorruptionError, match=f"was changed after it was written.*{SEGMENT:020d}.json"):
        read(path, target)


@pytest.mark.parametrize("edit", [
    lambda found: found.update(version=1), lambda found: found.update(version=3),
    lambda found: found.update(version=1) or (found.pop("checksum") and None),
    lambda found: found.pop("checksum")])
def test_a_manifest_cannot_be_made_one_without_a_checksum_by_its_version(both, edit):
    path, target = both
    delete(path)
    change(target, 0, edit)
    if json.loads(manifest_file(target, 0).read_text()).get("version") == 1 and (
        "checksum" not in json.loads(manifest_file(target, 0).read_text())
    ):
        # Two changes that fit each other make a manifest of version 1; its link is then still there.
        assert manifests(target)[0].protected is False
        return
    with pytest.raises(CorruptionError, match=f"{0:020d}.json"):
        read(path, target)


def test_links_are_right_whatever_the_order_of_publishing(both):
    path, target = both
    found = manifests(target)
    assert [one.before and one.before.segment for one in found] == [None, 0, SEGMENT]
    for number in range(3):
        manifest_file(target, number).unlink()
        assert len(archive(path, target)) == 1
        again = manifests(target)
        assert [one.before for one in again] == [one.before for one in found]


# -- mended from the log


def test_a_deleted_file_is_archived_again_while_the_log_has_it(both, caplog):
    path, target = both
    sound = read(path, target)
    part = target / manifests(target)[0].files[0].path
    part.unlink()
    made = archive(path, target)
    assert [one.segment for one in made] == [0]
    assert "is archived again" in caplog.text
    assert (target / manifests(target)[0].files[0].path).exists()
    delete(path)
    assert read(path, target) == sound
    (target / manifests(target)[0].files[0].path).unlink()
    with pytest.raises(StoreError, match=r"segment 0: .*the log no longer has the segment"):
        verify(path, target)


def test_a_resting_archive_is_read_again(both):
    path, target = both
    sound = read(path, target)
    assert verify(path, target) == ([], 3)
    part = target / manifests(target)[1].files[0].path
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    manifest_file(target, 2).write_text("{}")
    made, checked = verify(path, target)
    assert ([one.segment for one in made], checked) == ([SEGMENT, 2 * SEGMENT], 1)
    assert verify(path, target) == ([], 3)
    delete(path)
    assert read(path, target) == sound
    assert verify(path, target) == ([], 3)
    part = target / manifests(target)[1].files[0].path
    part.write_bytes(data)
    with pytest.raises(StoreError, match=f"segment {SEGMENT}: .*{part.name}"):
        verify(path, target)


def test_a_file_of_any_size_is_read_again(both, monkeypatch):
    path, target = both
    delete(path)
    largest = max(one.size for manifest in manifests(target) for one in manifest.files)
    monkeypatch.setattr("tailrace.env.whole_files.WHOLE_FILE_MAX", largest - 1)
    assert verify(path, target) == ([], 3)


def test_a_kill_while_a_segment_is_archived_again_loses_nothing(both, killed):
    path, target = both
    found = manifests(target)
    (target / found[1].files[0].path).unlink()
    broken = target.with_name("broken")
    target.rename(broken)
    at = 0
    while True:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(broken, target)
        files = killed.KilledFileSystem(at)
        try:
            with ArchiveJob(
                str(path), str(target), local_runner(files), file_system=files,
                options=ArchiveOptions(piece_bytes=1 << 16)) as one:
                one.step()
        except killed.Killed:
            archive(path, target)
            assert verify(path, target) == ([], 3)
            assert [(one.segment, one.before) for one in manifests(target)] == [
                (one.segment, one.before) for one in found]
            at += 1
            continue
        break
    assert at > 10


# -- archives of before


def test_an_archive_of_version_1_is_read_and_protected_when_it_is_verified(version_1, caplog):
    path, target = version_1
    sound = read(path, target)
    delete(path)
    caplog.clear()
    assert read(path, target) == sound
    assert "manifests without a checksum" in caplog.text
    assert not any(one.protected for one in manifests(target))
    made, checked = verify(path, target)
    assert (made, checked) == ([], len(manifests(target)))
    found = manifests(target)
    assert all(one.protected and one.verified and one.files[0].parts for one in found)
    assert [one.before and one.before.segment for one in found] == [
        None, *(one.segment for one in found[:-1])]
    caplog.clear()
    assert read(path, target) == sound
    assert "without a checksum" not in caplog.text


def test_an_archive_of_version_1_goes_on(version_1, tmp_path):
    path, target = version_1
    old = manifests(target)
    with opened(path) as store:
        for number in range(200):
            store.put(Message(topic="a", body=b"%d" % number * 300), queue_id=0)
        store.wait_dispatched(60_000)
    sound = read(path, target)
    made = archive(path, target)
    assert made
    found = manifests(target)
    assert [one.protected for one in found] == [False] * len(old) + [True] * len(made)
    assert found[len(old)].before.sha256 == old[-1].sha256
    delete(path)
    assert read(path, target) == sound
    manifest_file(target, len(old) - 1).unlink()
    with pytest.raises(DataLossError):
        read(path, target)
    restored = list(restore_segments(PosixArchive(str(target)), str(tmp_path / "r"), 0, SEGMENT))
    assert [one["bytes"] for one in restored] == [SEGMENT]
