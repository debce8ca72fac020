"""Tables in a bucket: the same rows as in a directory, whatever is killed, refused or away.

The bucket is of the server of this process, and of SeaweedFS and versitygw with ``make object-store``.
"""

import os

import pytest
from fake_s3 import FakeS3
from fault_proxy import FAULTS, FaultProxy
from seaweedfs import seaweedfs
from versitygw import versitygw

from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import ConfigError, StoreError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")
import duckdb
from lake_tables import FILES, SEGMENT, archive, fill, key_of, source_rows
from pyiceberg.catalog.sql import SqlCatalog

from tailrace.env.object_store import ObjectStore
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.lake import places
from tailrace.spark.lake.catalogue import Lake, Namespace
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.forget import forget
from tailrace.spark.lake.job import LakeJob, local_runner
from tailrace.spark.lake.orphans import expire_older_snapshots, remove_orphans
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner as rewriter
from tailrace.spark.lake.upkeep import compact
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import archive_at
from tailrace.store.archive_tables import attached

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]
RUN = rewriter(run_task)


class Killed(BaseException):
    """Thrown where a process would have died."""


@pytest.fixture(scope="module")
def weed():
    with seaweedfs() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def versity():
    with versitygw() as endpoint:
        yield endpoint


class World:
    """A store with three full files, an archive, and a catalogue whose tables are in a bucket."""

    def __init__(self, tmp_path, archived, warehouse):
        self.store, self.archive, self.tables = tmp_path / "s", archived, warehouse
        fill(self.store)

    def archived(self):
        archive(self.store, self.archive)
        return self

    def lake(self, broker="broker-a"):
        return Lake(self.archive, "tailrace", broker, FILES, catalogue="bucket")

    def add(self, runner=None):
        with self.lake() as tables:
            return LakeJob(
                str(self.store), self.archive, tables, runner or local_runner(FILES), broker=BrokerConfig()).step()

    def rows(self, name="messages"):
        with self.lake() as tables:
            return getattr(tables, name).table.scan().to_arrow()

    def files(self, name="messages"):
        with self.lake() as tables:
            return sorted(one.file.file_path for one in getattr(tables, name).table.scan().plan_files())

    def manifests(self):
        there = archive_at(self.archive)
        return [read_manifest(there, one) for one in list_manifests(there)]

    def assert_whole(self):
        """Both tables have every row of the archive once."""
        found = self.rows()
        until = self.manifests()[-1].until
        assert {key_of(row): row["body"] for row in found.to_pylist()} == {
            key: row["body"] for key, row in source_rows(self.store, self.archive).items()
            if row["commit_log_offset"] < until and key[0] == "orders"}
        raw = self.rows("raw")["commitLogOffset"].to_pylist()
        assert len(raw) == len(set(raw)) == sum(one.records + one.raw_rows for one in self.manifests())


def set_up(monkeypatch, tmp_path, endpoint, warehouse):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__URI", f"sqlite:///{tmp_path}/catalogue.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__WAREHOUSE", warehouse)
    places._store.cache_clear()


@pytest.fixture
def s3(monkeypatch, tmp_path):
    made = FakeS3("lake")
    set_up(monkeypatch, tmp_path, made.endpoint, "s3://lake/tables")
    yield made
    made.close()


@pytest.fixture(params=["fake", *(pytest.param(one, marks=pytest.mark.long) for one in ("weed", "versity"))])
def world(request, monkeypatch, tmp_path):
    if request.param == "fake":
        request.getfixturevalue("s3")
        return World(tmp_path, "s3://lake/a/archive", "s3://lake/tables")
    place = f"s3://lake/{tmp_path.name}"
    set_up(monkeypatch, tmp_path, request.getfixturevalue(request.param), f"{place}/tables")
    return World(tmp_path, f"{place}/archive", f"{place}/tables")


def maintained(world, kind="messages"):
    with Namespace(world.archive, "tailrace", FILES, catalogue="bucket") as tables:
        return next(one for one in tables.tables if one.kind == kind)


def test_archive_compaction_forgetting_expiry_and_restore_in_a_bucket(world, tmp_path):
    done = world.archived().add()
    assert (done.segments, done.commits) == (len(world.manifests()), 2)
    world.assert_whole()
    assert all(one.startswith(f"{world.archive}/rows/") for one in world.files("raw")), "the archive's files, no copies"
    assert all(one.startswith(f"{world.tables}/") for one in world.files())
    assert world.add().commits == 0
    fill(world.store, 160, 320)
    world.archived().add()
    world.assert_whole()
    assert len(world.files()) > 2

    merged = compact(maintained(world), RUN)
    assert (merged.files_before > 2, merged.files_after) == (True, 1)
    world.assert_whole()
    table = maintained(world)
    proof = forget(table, Condition("", "k7"), RUN, clock=SystemClock(), entropy=SeededEntropy(1), file_system=FILES)
    assert (proof.rows_removed, proof.rows_left) == (1, 0)
    assert b"7 " * 300 not in world.rows()["body"].to_pylist()
    table = maintained(world)
    expire_older_snapshots(table, 1 << 62)
    count, size = remove_orphans(table, FILES, 1 << 62)
    assert count > 2
    assert size > 0
    there = {path for path, _, _ in table.files(FILES).walk(f"{table.place}/data")}
    assert there == set(world.files()), "what no snapshot names is gone, and what one names is there"
    restored = list(restore_segments(archive_at(world.archive), str(tmp_path / "again"), 0, 1 << 62))
    assert len(restored) == len(world.manifests())
    for one in restored:
        assert (tmp_path / "again/commitlog" / one["file"]).read_bytes() == (
            world.store / "commitlog" / one["file"]).read_bytes()
    assert {one["bytes"] for one in restored} == {SEGMENT}


def test_an_archive_in_a_directory_has_tables_in_a_bucket_and_the_other_way_round(s3, monkeypatch, tmp_path):
    world = World(tmp_path, str(tmp_path / "a"), "s3://lake/tables").archived()
    world.add()
    world.assert_whole()
    assert all("s3://lake/tables/" in one for one in world.files("raw")), "copies, because a reader has only the bucket"
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__WAREHOUSE", f"file://{tmp_path}/w")
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__URI", f"sqlite:///{tmp_path}/second.db")
    (tmp_path / "w").mkdir()
    world.archive = "s3://lake/archive"
    world.archived().add()
    world.assert_whole()
    files = [one.removeprefix("file://") for one in world.files("raw")]
    assert all(one.startswith(f"{tmp_path}/w/") for one in files)
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall()[0][0] == len(world.rows("raw"))


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_any_write_leaves_whole_segments_and_the_next_run_adds_the_rest_once(
        s3, monkeypatch, tmp_path, every):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    put, archived, kills = ObjectStore.put, dict(s3.buckets["lake"]), 0
    for at in range(1, 100, every):
        s3.buckets["lake"] = dict(archived)
        (tmp_path / "catalogue.db").unlink(missing_ok=True)
        left = [at]

        def killed(self, key, data, version="", left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return put(self, key, data, version)

        monkeypatch.setattr(ObjectStore, "put", killed)
        try:
            world.add()
        except Killed:
            kills += 1
        monkeypatch.setattr(ObjectStore, "put", put)
        world.add()
        world.assert_whole()
        if left[0] >= 0:
            break
    assert left[0] >= 0, "a run was not killed at last"
    assert kills > 1


def test_files_of_a_job_that_runs_are_not_removed_by_another_one(s3, tmp_path):
    """Nothing locks an archive in a bucket: the second job must not take files of the first one for left over."""
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    run, seen = local_runner(FILES), []

    def beside(tasks):
        found = list(run(tasks))
        if not seen:
            seen.append(1)
            with world.lake() as other:
                LakeJob(str(world.store), world.archive, other, run, broker=BrokerConfig())
        return found

    world.add(beside)
    world.assert_whole()


def test_of_two_jobs_at_the_same_segments_each_row_is_there_once(s3, monkeypatch, tmp_path):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    with world.lake():  # the tables are created
        pass
    original, seen = SqlCatalog.commit_table, []

    def late(self, *arguments):
        if not seen:
            seen.append(1)
            world.add()
        return original(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    world.add()  # finds that the other job has made the same commit
    world.assert_whole()
    (counted,) = attached(archive_at(world.archive))
    assert counted.counts.retries == 1


@pytest.mark.parametrize(("fault", "why"), [
    ("away", r"the catalogue bucket: ObjectStoreError: cannot write s3://lake/tables/.* at http://127.0.0.1"),
    ("reader", r"cannot write s3://lake/tables/.*the credentials do not allow it"),
    ("full", r"cannot write s3://lake/tables/.*the store is full"),
    ("gone", r"cannot write s3://lake/tables/.*there is no such bucket")])
def test_a_bucket_that_cannot_be_written_is_one_error_and_nothing_is_half_there(s3, monkeypatch, tmp_path, fault, why):
    world = World(tmp_path, str(tmp_path / "a"), "s3://lake/tables").archived()
    monkeypatch.setattr(places, "_store", lambda place, _: ObjectStore(place, patience_ms=10))
    with monkeypatch.context() as broken:
        match fault:
            case "away":
                broken.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
            case "reader":
                broken.setenv("AWS_ACCESS_KEY_ID", "reader")
            case "full":
                s3.full = True
            case _:
                kept = s3.buckets.pop("lake")
        with pytest.raises(StoreError, match=why) as caught:
            world.add()
    assert "\n" not in str(caught.value)
    s3.full = False
    if fault == "gone":
        s3.buckets["lake"] = kept
    assert s3.buckets["lake"] == {}
    world.add()
    world.assert_whole()


def test_a_bucket_that_fills_while_segments_are_added_keeps_what_was_committed(s3, monkeypatch, tmp_path):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    monkeypatch.setattr(places, "_store", lambda place, _: ObjectStore(place, patience_ms=10))
    with world.lake():
        pass
    run = local_runner(FILES)

    def full(tasks):
        for task in tasks:
            s3.full = task.manifest.segment > 0
            yield from run([task])

    with pytest.raises(StoreError, match=r"the store is full"):
        world.add(full)
    s3.full = False
    assert len(world.rows()) == 0, "the group was not committed, because the metadata did not fit, either"
    world.add()
    world.assert_whole()


@pytest.mark.parametrize("seed", [1, *(pytest.param(one, marks=pytest.mark.long) for one in range(2, 8))])
def test_requests_that_fail_by_chance_are_sent_again(s3, monkeypatch, tmp_path, seed):
    proxy = FaultProxy(("127.0.0.1", s3.port), rate=0.2, kinds=[one for one in FAULTS if one != "hang"], seed=seed)
    monkeypatch.setattr(
        places, "_store", lambda place, _: ObjectStore(place, entropy=SeededEntropy(seed), sleep=lambda _: None))
    world = World(tmp_path, str(tmp_path / "a"), "s3://lake/tables").archived()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        world.add()
        world.assert_whole()
        assert proxy.hits
    finally:
        proxy.close()


def test_what_cannot_be_in_a_bucket_is_refused_by_name(s3, monkeypatch, tmp_path):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    with pytest.raises(ConfigError, match=r"s3://lake/archive is in a bucket, where the default catalogue cannot be"):
        Lake(world.archive, "tailrace", "broker-a", FILES)
    with pytest.raises(ConfigError, match=r"is in a bucket, where the default catalogue cannot be"):
        Namespace(world.archive, "tailrace", FILES)
    world.add()
    with pytest.raises(ConfigError, match=r"a file of 2048 MiB is too large for the table tailrace.messages"):
        compact(maintained(world), RUN, target_bytes=2 << 30)


@pytest.mark.parametrize(("name", "value"), [
    ("S3__ACCESS_KEY_ID", "mine"), ("S3__SESSION_TOKEN", "mine"), ("S3__PROXY_URI", "http://p"),
    ("CLIENT__PROFILE_NAME", "x"), ("S3__FORCE_VIRTUAL_ADDRESSING", "true"), ("S3__CONNECT_TIMEOUT", "9")])
def test_options_for_a_bucket_that_would_have_no_effect_are_refused_by_name(s3, monkeypatch, tmp_path, name, value):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__BUCKET__{name}", value)
    option = name.replace("__", ".").replace("_", "-").lower()
    with pytest.raises(ConfigError, match=rf"has the option {option}, which is not supported"):
        world.add()


def test_the_server_is_of_the_catalogue_of_the_archive_or_of_the_variables(s3, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    world = World(tmp_path, f"s3://lake/archive?endpoint={s3.endpoint}", "s3://lake/tables").archived()
    world.add()
    world.assert_whole()
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__S3__ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(places, "_store", lambda place, _: ObjectStore(place, patience_ms=10))
    with pytest.raises(StoreError, match=r"at http://127.0.0.1:1"):
        world.rows()


def test_a_catalogue_that_brings_other_files_is_refused(s3, monkeypatch, tmp_path):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables")
    monkeypatch.setenv("PYICEBERG_CATALOG__BUCKET__PY_IO_IMPL", "pyiceberg.io.pyarrow.PyArrowFileIO")
    with pytest.raises(ConfigError, match=r"the catalogue bucket sets py-io-impl, which is not supported"):
        world.lake()


def test_a_table_whose_files_are_elsewhere_is_refused(s3, tmp_path):
    world = World(tmp_path, "s3://lake/archive", "s3://lake/tables").archived()
    with world.lake() as tables:
        tables.messages.table.transaction().set_properties({"write.data.path": "s3://other/data"}).commit_transaction()
    with pytest.raises(StoreError, match=r"tailrace.messages has the property write.data.path, which is not supported"):
        world.add()


def test_urls_and_paths_are_the_same_files():
    assert places.path_of("file:///a/b%20c") == "/a/b c"
    assert places.path_of("s3a://b/k") == places.path_of("s3://b/k") == "s3://b/k"
    assert places.path_of("hdfs://host/a") is None
    assert places.url_of("/a/b") == "file:///a/b"
    assert places.url_of("s3://b/k") == "s3://b/k"
