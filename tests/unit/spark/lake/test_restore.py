"""Files of the log again from the table ``raw`` alone: the same bytes, or an error that names what is wrong."""

import hashlib
import json
import pathlib
import random
import shutil

import pytest
from typer.testing import CliRunner

from tailrace.cli.app import app
from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
import pyarrow.parquet as pq
from fake_s3 import FakeS3
from lake_tables import (
    FILES,
    add,
    archive,
    fill,
    lose_the_archive,
    manifests_of,
    paths_of,
    raw_of,
    restored,
)
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan

from tailrace.spark.archive.origin import Origin
from tailrace.spark.lake import places
from tailrace.spark.lake.catalogue import Namespace, catalogue_errors
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.forget import forget
from tailrace.spark.lake.restore import restore_table
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner
from tailrace.spark.lake.upkeep import compact

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]
FIXTURES = pathlib.Path(__file__).parents[3] / "interop" / "fixtures"
LARGE = 256 << 10
"""A segment of four pieces."""
RUN = local_runner(run_task)


def assert_same(path, place, reports):
    there = sorted(one.name for one in (place / "commitlog").iterdir())
    assert there == [one["file"] for one in reports]
    for name in there:
        assert (place / "commitlog" / name).read_bytes() == (path / "commitlog" / name).read_bytes()


class Large:
    """A store with two full segments of four pieces, its archive, and a catalogue of its own for each test."""

    def __init__(self, place):
        self.path, self.archive = place / "s", place / "a"
        with MessageStore.open(str(self.path), config=StoreConfig(mapped_file_size_commit_log=LARGE)) as store:
            for number in range(500):
                body = random.Random(number).randbytes(1_200)
                store.put(Message(topic=f"t{number % 2}", body=body, keys=[f"k{number}"]), queue_id=number % 3)
            store.wait_dispatched(60_000)
        archive(self.path, self.archive)
        add(self.path, self.archive)
        self.records = [one.records for one in manifests_of(self.archive)]
        assert len(self.records) == 2
        lose_the_archive(self.archive)

    def catalogue(self, place):
        """Copy the catalogue, which is all that a change of a table changes."""
        (place / "tables").mkdir(parents=True)
        shutil.copy(self.archive / "tables/catalog.db", place / "tables")
        return place


@pytest.fixture(scope="module")
def with_notes(tmp_path_factory):
    return Large(tmp_path_factory.mktemp("noted"))


@pytest.fixture(scope="module")
def without_notes(tmp_path_factory):
    """Files as an earlier version has written them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Origin, "note", property(lambda _: {}))
        return Large(tmp_path_factory.mktemp("without"))


@pytest.fixture(params=[True, False])
def noted(request):
    return request.param


@pytest.fixture
def large(request, noted):
    return request.getfixturevalue("with_notes" if noted else "without_notes")


@pytest.fixture
def target(large, tmp_path):
    return large.catalogue(tmp_path / "a")


def test_the_table_alone_gives_the_same_files(large, target, tmp_path, noted):
    reports = restored(target, tmp_path / "r")
    assert_same(large.path, tmp_path / "r", reports)
    assert [(int(one["file"]), one["bytes"], one["sha256"]) for one in reports] == [
        (at, LARGE, hashlib.sha256((large.path / f"commitlog/{at:020d}").read_bytes()).hexdigest())
        for at in (0, LARGE)]
    assert [one["records"] for one in reports] == large.records
    # Without notes only the last segment has its SHA-256, in the mark of the table.
    assert [one["compared"] for one in reports] == ["sha256" if noted else "records", "sha256"]
    for first, until, segments in [(LARGE, 1 << 62, [LARGE]), (0, LARGE, [0]), (1, LARGE + 1, [LARGE])]:
        place = tmp_path / f"{first}-{until}"
        assert [int(one["file"]) for one in restored(target, place, first, until)] == segments
    with pytest.raises(StoreError, match=rf"raw_broker_a has no segment between {2 * LARGE} and {3 * LARGE}"):
        restored(target, tmp_path / "none", 2 * LARGE, 3 * LARGE)


def test_one_piece_is_in_memory_at_a_time(target, tmp_path, monkeypatch):
    from tailrace.spark.lake import restore

    rooms, original = [], restore.Scratch.take
    monkeypatch.setattr(restore.Scratch, "take", lambda self, size: rooms.append(size) or original(self, size))
    restored(target, tmp_path / "r")
    assert sum(rooms) == 2 * LARGE
    assert max(rooms) <= 70_000  # a piece has 64 KiB; without its note it is as long as its rows say


def test_damage_and_blanks_come_back_and_so_does_what_other_tables_lose(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    with open(path / f"commitlog/{0:020d}", "r+b") as file:
        file.seek(5_000)
        file.write(b"damage" * 40)
    archive(path, target)
    add(path, target)
    with Namespace(str(target), "tailrace", FILES) as tables:
        messages = next(one for one in tables.tables if one.kind == "messages")
        compact(messages, RUN)
        gone = forget(
            messages, Condition("", "k90"), RUN, clock=SystemClock(), entropy=SeededEntropy(1), file_system=FILES)
        assert gone.rows_removed == 1
    lose_the_archive(target)
    assert_same(path, tmp_path / "r", restored(target, tmp_path / "r"))


def test_a_table_in_a_bucket_outlives_the_directory_of_its_archive(tmp_path, monkeypatch):
    served = FakeS3("lake")
    for name, value in {
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_ENDPOINT_URL": served.endpoint, "PYICEBERG_CATALOG__HERE__URI": f"sqlite:///{tmp_path}/c.db",
            "PYICEBERG_CATALOG__HERE__WAREHOUSE": "s3://lake/tables"}.items():
        monkeypatch.setenv(name, value)
    places._store.cache_clear()
    try:
        fill(tmp_path / "s")
        archive(tmp_path / "s", tmp_path / "a")
        add(tmp_path / "s", tmp_path / "a", catalogue="here")
        shutil.rmtree(tmp_path / "a")
        done = CliRunner().invoke(app, [
            "pipeline", "restore", str(tmp_path / "a"), str(tmp_path / "r"), "--table", "tailrace", "--catalog",
            "here", "--json"])
        assert done.exit_code == 0, done.output
        reports = [json.loads(one) for one in done.stdout.splitlines()]
        assert len(reports) >= 2
        assert {one["compared"] for one in reports} == {"sha256"}, "a copy has the note of its file"
        assert_same(tmp_path / "s", tmp_path / "r", reports)
        assert not (tmp_path / "a").exists()
    finally:
        served.close()


def test_batch_queues_get_their_directories(tmp_path, noted, monkeypatch):
    if not noted:
        monkeypatch.setattr(Origin, "note", property(lambda _: {}))
    path = tmp_path / "s"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=1 << 14)) as store:
        store.create_topic("B", 2, {"queue.type": "BatchCQ"})
        names = encode_properties({"UNIQ_KEY": "u", "INNER_NUM": "2"})
        for number in range(60):
            body = encode_batch([(at, b"%d" % number * 200, b"") for at in range(2)])
            assert store.put_inner(MessageExtBrokerInner("B", number % 2, body, names, 0, 0xC0, 1)).ok
        store.wait_dispatched(60_000)
    archive(path, tmp_path / "a")
    add(path, tmp_path / "a")
    assert_same(path, tmp_path / "r", restored(tmp_path / "a", tmp_path / "r"))
    assert sorted(one.name for one in (tmp_path / "r/batchconsumequeue/B").iterdir()) == ["0", "1"]


# -- what is refused


def change(target, work):
    with raw_of(target) as table, table.table.transaction() as transaction:
        work(transaction, table.table)


def drop(target, segment, number):
    """Take a data file out of the table, as a program may do it."""
    def work(transaction, table):
        files = sorted(
            (one.file for one in table.scan().plan_files() if f"p{segment:020d}" in one.file.file_path),
            key=lambda one: one.file_path)
        with transaction.update_snapshot().overwrite() as change:
            for one in files if number is None else [files[number]]:
                change.delete_data_file(one)
    change(target, work)


def twice(target):
    """Add a copy of a file."""
    def work(transaction, _):
        first = pathlib.Path(min(paths_of(target, "raw")))
        copy = first.with_name(first.name.replace("part-", "part-9"))
        shutil.copy(first, copy)
        transaction.add_files([str(copy)])
    change(target, work)


@pytest.mark.parametrize(("work", "why"), [
    (lambda target: drop(target, 0, 1), r"lacks the rows of \d+ bytes of the log"),
    (lambda target: drop(target, 0, 0), r"lacks the rows of \d+ bytes of the log"),
    (lambda target: drop(target, 0, 3), r"lacks the rows of \d+ bytes of the log"),
    (lambda target: drop(target, LARGE, None), r"lacks the segment at|lacks the rows of \d+ bytes|no segment that"),
    (twice, r"has rows of the same bytes of the log twice"),
    (lambda target: change(target, lambda tx, _: tx.delete(EqualTo("commitLogOffset", 0))),
     r"another program has written the file .*: restore from an earlier snapshot"),
    (lambda target: change(target, lambda tx, _: tx.delete(
        And(GreaterThanOrEqual("commitLogOffset", 0), LessThan("commitLogOffset", LARGE)))), None),
    (lambda target: change(target, lambda tx, _: tx.update_schema().delete_column("magic").commit()),
     r"the table tailrace.raw_broker_a has no column magic"),
    (lambda target: change(target, lambda tx, _: tx.update_schema().rename_column("raw", "r").commit()),
     r"the table tailrace.raw_broker_a has no column raw"),
], ids=range(9))
def test_a_table_that_has_not_every_row_is_one_error(large, target, tmp_path, work, why):
    path = large.path
    work(target)
    if why is None:  # the first segment is gone as a whole, as the oldest may be
        assert [int(one["file"]) for one in restored(target, tmp_path / "r")] == [LARGE]
        return
    with pytest.raises(StoreError, match=why) as caught:
        restored(target, tmp_path / "r")
    assert "\n" not in str(caught.value)
    for one in (tmp_path / "r/commitlog").glob("0*"):  # what was written before the error is right
        assert one.read_bytes() == (path / "commitlog" / one.name).read_bytes()


def test_a_file_that_is_gone_is_named(large, target, tmp_path):
    gone = pathlib.Path(paths_of(target, "raw")[0])
    kept = gone.rename(f"{gone}.kept")
    with pytest.raises(CorruptionError, match=rf"a file of the table cannot be read: .*{gone.name}"):
        restored(target, tmp_path / "r")
    kept.rename(gone)


def test_a_segment_that_is_missing_between_two_others_is_named(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=240)
    archive(path, target)
    add(path, target)
    drop(target, 65536, None)
    with pytest.raises(StoreError, match=r"raw_broker_a lacks the segment at 65536: restore only segments before or"):
        restored(target, tmp_path / "r")
    assert [int(one["file"]) for one in restored(target, tmp_path / "r2", until=65536)] == [0]
    assert next(int(one["file"]) for one in restored(target, tmp_path / "r3", 131072)) == 131072


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_bit_of_a_file_is_an_error_or_changes_nothing(with_notes, tmp_path, seed):
    path, target = with_notes.path, with_notes.catalogue(tmp_path / "a")
    random_ = random.Random(seed)
    names = sorted(paths_of(target, "raw"))
    sound = {name: pathlib.Path(name).read_bytes() for name in names}
    refused = 0
    with raw_of(target) as table:
        for number in range(12):
            name = random_.choice(names)
            data = bytearray(sound[name])
            # Half of the changes are in the footer, which is short.
            data[-random_.randrange(1, 5_000 if number % 2 else len(data))] ^= 1 << random_.randrange(8)
            pathlib.Path(name).write_bytes(data)
            place = tmp_path / f"r{number}"
            try:
                list(restore_table(table, str(place), 0, 1 << 62))
            except CorruptionError as error:
                refused += 1
                assert "\n" not in str(error)
            for one in (place / "commitlog").glob("0*"):
                assert one.read_bytes() == (path / "commitlog" / one.name).read_bytes()
            shutil.rmtree(place, ignore_errors=True)
            pathlib.Path(name).write_bytes(sound[name])
    assert refused > 4


def test_a_length_below_zero_in_metadata_is_an_error():
    with pytest.raises(StoreError, match="the files of a table: SystemError"), catalogue_errors("the files of a table"):
        new_decoder(b"\x03").read_bytes()  # compiled, and its allocation complains


def test_brokers_are_chosen_by_name(tmp_path):
    for broker in ("one", "two"):
        fill(tmp_path / broker, topic=broker)
        archive(tmp_path / broker, tmp_path / f"a-{broker}")
    target = tmp_path / "a-one"
    add(tmp_path / "one", target, broker="one")
    run = CliRunner().invoke

    def restore(*more):
        return run(app, ["pipeline", "restore", str(target), str(tmp_path / "r"), "--table", "tailrace", *more])

    done = restore("--broker", "two")
    assert done.exit_code == 1
    assert "the namespace tailrace has no table with the rows of the broker two; there are those of one" in done.stderr
    with Namespace(str(target), "tailrace", FILES) as tables:
        tables._catalogue.create_table("tailrace.raw_two", tables.tables[1].table.schema(), properties={
            "tailrace.archived-until.two": "[1,0,\"\",0]"})
        tables._catalogue.create_table("tailrace.raw_other", tables.tables[1].table.schema())
    done = restore()
    assert done.exit_code == 1
    assert "there are tables of the brokers one, two: choose one with --broker" in done.stderr
    assert restore("--broker", "one").exit_code == 0
    done = run(app, ["pipeline", "restore", str(target), str(tmp_path / "x"), "--table", "nothing"])
    assert "the catalogue tailrace has no table nothing.raw_BROKER" in done.stderr
    done = run(app, ["pipeline", "restore", str(target), str(tmp_path / "x"), "--broker", "one"])
    assert "--catalog and --broker need --table" in done.stderr


def test_the_note_of_a_file_says_where_its_rows_are_from(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path)
    archive(path, target)
    for one in manifests_of(target):
        for file in one.files:
            note = json.loads(pq.read_metadata(target / file.path).metadata[b"tailrace.log"])
            assert note["sha256"] == (one.sha256 if file.end == one.until else "")
            assert (note["segment"], note["size"], note["start"], note["end"]) == (
                one.segment, one.size, file.start, file.end)


@pytest.mark.parametrize("seed", [1, *(pytest.param(one, marks=pytest.mark.long) for one in range(2, 8))])
def test_a_changed_bit_of_the_metadata_is_an_error_or_changes_nothing(with_notes, tmp_path, seed):
    path, target = with_notes.path, with_notes.catalogue(tmp_path / "a")
    random_, refused, same = random.Random(seed), 0, 0
    with raw_of(target) as table:
        names = [table.table.metadata_location.removeprefix("file://")]
        snapshot = table.table.current_snapshot()
        names += [snapshot.manifest_list.removeprefix("file://")]
        names += [one.manifest_path.removeprefix("file://") for one in snapshot.manifests(table.table.io)]
    for number in range(20):
        name = names[number % len(names)]
        sound = pathlib.Path(name).read_bytes()
        data, place = bytearray(sound), tmp_path / f"r{number}"
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        pathlib.Path(name).write_bytes(data)
        try:
            with raw_of(target) as table:
                reports = list(restore_table(table, str(place), 0, 1 << 62))
            assert len(reports) == 2
            same += 1
        except StoreError as error:
            refused += 1
            assert "\n" not in str(error)
        finally:
            pathlib.Path(name).write_bytes(sound)
        for one in (place / "commitlog").glob("0*"):
            assert one.read_bytes() == (path / "commitlog" / one.name).read_bytes()
        shutil.rmtree(place, ignore_errors=True)
    assert refused > 5
    assert same
