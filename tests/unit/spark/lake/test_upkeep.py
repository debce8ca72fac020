"""Compaction, expiry and forgetting: the rows of the tables stay those that they should be, whatever happens."""

import contextlib
import json
import pathlib
import random
import shutil

import pytest

from tailrace.config import StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
import pyarrow as pa
import pyarrow.parquet as pq
from lake_tables import (
    FILES,
    SEGMENT,
    add,
    archive,
    assert_fresh,
    assert_whole,
    business,
    data_files,
    fill,
    key_of,
    lake,
    manifests_of,
    paths_of,
    rows_of,
    same_rows,
    source_rows,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from tailrace.spark.archive import task as task_of_archive
from tailrace.spark.archive.restore import restore_segments
from tailrace.spark.lake import rewrite as rewrite_module
from tailrace.spark.lake import swap as swap_module
from tailrace.spark.lake.catalogue import Namespace
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.forget import Proof, finish_forgetting, forget, rows_left, write_proof
from tailrace.spark.lake.orphans import expire_older_snapshots, remove_orphans
from tailrace.spark.lake.rewrite import adapted, depth, rewrite_files, run_task
from tailrace.spark.lake.swap import local_runner
from tailrace.spark.lake.upkeep import compact, remove_old_rows
from tailrace.store.archive_store import archive_at

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]
RUN = local_runner(run_task)
NEVER = 1 << 62


@contextlib.contextmanager
def table_of(target, kind="messages"):
    with Namespace(str(target), "tailrace", FILES) as tables:
        yield next(one for one in tables.tables if one.kind == kind)


def made(tmp_path, until=160):
    path, target = tmp_path / "s", tmp_path / "a"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number in range(until):
            topic = "clicks" if number // 40 % 2 else "orders"
            store.put(Message(topic=topic, body=b"%d " % number * 500, keys=[f"k{number}", "x"]), queue_id=number % 3)
        store.wait_dispatched(60_000)
    archive(path, target, lag_ms=1)
    add(path, target)
    return path, target


def forgets(target, topic="", key="", run=RUN):
    with table_of(target) as table:
        return forget(
            table, Condition(topic, key), run, clock=SystemClock(), entropy=SeededEntropy(1), file_system=FILES)


@pytest.fixture(autouse=True)
def _planner(monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own


def ids(target):
    return sorted(int(row["body"].split()[0]) for row in rows_of(target).to_pylist())


def test_files_of_a_day_become_one_and_all_readers_see_the_same_rows(tmp_path, caplog):
    caplog.set_level("INFO")
    path, target = made(tmp_path)
    before = {key_of(row): row for row in rows_of(target).to_pylist()}
    assert len(paths_of(target)) > 2
    with table_of(target) as table:
        done = compact(table, RUN)
        assert (done.files_before > 2, done.files_after) == (True, 1)
        again = compact(table, RUN)
        assert (again.files_before, again.files_after) == (0, 0)
    assert "rewrote files of a table table=tailrace.messages job=compaction before=" in caplog.text
    found = {key_of(row): row for row in rows_of(target).to_pylist()}
    assert found == before
    [new] = [one for one in paths_of(target) if "/rewritten/" in one]
    keys = [key_of(row) for row in pq.read_table(new, columns=["topic", "queue_id", "queue_offset"]).to_pylist()]
    assert keys == sorted(keys)
    bodies = same_rows(target)
    assert bodies == {key: row["body"] for key, row in business(source_rows(path, target), NEVER).items()}
    (path / f"commitlog/{0:020d}").unlink()  # as retention does; the source then reads the archive
    assert bodies == {key: row["body"] for key, row in business(source_rows(path, target), NEVER).items()}


def test_the_archive_job_goes_on_after_a_compaction_and_restore_gives_the_same_bytes(tmp_path):
    path, target = made(tmp_path)
    with table_of(target) as table:
        compact(table, RUN)
    fill(path, 160, 260)
    archive(path, target, lag_ms=1)
    add(path, target)
    assert_fresh(path, target, 260)
    with table_of(target) as table:
        compact(table, RUN)
        expire_older_snapshots(table, NEVER)
        remove_orphans(table, FILES, NEVER)
    with table_of(target, "raw") as table:
        remove_orphans(table, FILES, NEVER)
    fill(path, 260, 320)
    archive(path, target)
    add(path, target)
    assert_whole(path, target)
    restored = tmp_path / "restored"
    [*restore_segments(archive_at(str(target)), str(restored), 0, 1 << 63)]
    for one in manifests_of(target):
        name = f"commitlog/{one.segment:020d}"
        assert (restored / name).read_bytes() == (path / name).read_bytes()


def test_a_target_size_is_kept_and_large_files_stay(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=320)
    archive(path, target, lag_ms=1)
    add(path, target)
    sizes = [pathlib.Path(one).stat().st_size for one in paths_of(target)]
    with table_of(target) as table:
        assert compact(table, RUN, target_bytes=min(sizes)).files_before == 0
        done = compact(table, RUN, target_bytes=2 * max(sizes))
        assert 1 < done.files_after < done.files_before
    assert ids(target) == [*range(320)]


def test_a_day_above_the_target_size_is_split_by_topic(tmp_path, monkeypatch):
    monkeypatch.setattr(rewrite_module, "_GROUP_BYTES", 1 << 14)
    monkeypatch.setattr(rewrite_module, "_MEMORY", 1 << 16)
    monkeypatch.setattr(task_of_archive, "_WRITE", 1 << 12)
    path, target = tmp_path / "s", tmp_path / "a"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number in range(600):
            body = random.Random(number).randbytes(700)
            store.put(Message(topic=f"t{number % 12:02d}", body=b"%d " % number + body), queue_id=number % 2)
        store.wait_dispatched(60_000)
    archive(path, target)
    add(path, target)
    size = sum(pathlib.Path(one).stat().st_size for one in paths_of(target))
    before = rows_of(target).sort_by([("commit_log_offset", "ascending")])

    def most_files_of_a_topic():
        found = {}
        for one in paths_of(target):
            for topic in set(pq.read_table(one, columns=["topic"])["topic"].to_pylist()):
                found[topic] = found.get(topic, 0) + 1
        return max(found.values())

    with table_of(target) as table:
        first = compact(table, RUN, target_bytes=size // 4)
        assert first.files_before > 4
        assert compact(table, RUN, target_bytes=size // 4).files_before <= 2, "what is split stays"
    assert len(paths_of(target)) >= 3
    assert most_files_of_a_topic() <= 2
    assert rows_of(target).sort_by([("commit_log_offset", "ascending")]) == before
    assert same_rows(target)


def test_the_number_of_spans_over_one_value():
    assert depth([]) == 0
    assert depth([(1, 2), (2, 3), (5, 9)]) == 2
    assert depth([(1, 2), (2, 3), (5, 9)], inside=True) == 1
    assert depth([("a", "c"), ("b", "b"), ("b", "d"), ("a", "z")]) == 4
    assert depth([("a", "c"), ("b", "b"), ("b", "d"), ("a", "z")], inside=True) == 3


def test_rows_that_are_added_during_a_compaction_survive(tmp_path):
    path, target = made(tmp_path)

    def slow(tasks):
        fill(path, 160, 240)
        archive(path, target, lag_ms=1)
        add(path, target)
        return RUN(tasks)

    with table_of(target) as table:
        assert compact(table, slow).files_after == 1
    assert_fresh(path, target, 240)


def test_a_second_compaction_of_the_same_files_is_refused(tmp_path):
    _, target = made(tmp_path)

    def slow(tasks):
        with table_of(target) as other:
            compact(other, RUN)
        return RUN(tasks)

    with table_of(target) as table, pytest.raises(StoreError, match=(
            r"another job has removed the file .* from the table tailrace\.messages since this one looked: nothing")):
        compact(table, slow)
    assert ids(target) == [*range(160)]


def test_a_commit_that_comes_between_is_kept(tmp_path, monkeypatch):
    path, target = made(tmp_path)
    fill(path, 160, 240)
    archive(path, target, lag_ms=1)
    original, seen = SqlCatalog.commit_table, []

    def late(self, *arguments):
        if not seen:
            seen.append(1)
            add(path, target)
        return original(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    with table_of(target) as table:
        compact(table, RUN)
    assert seen
    assert_fresh(path, target, 240)


def test_a_commit_whose_answer_is_lost_is_found(tmp_path, monkeypatch):
    from pyiceberg.exceptions import CommitFailedException

    _, target = made(tmp_path)
    original = SqlCatalog.commit_table

    def lost(self, *arguments):
        original(self, *arguments)
        raise CommitFailedException("the answer was lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with table_of(target) as table:
        assert compact(table, RUN).files_after == 1
    monkeypatch.undo()
    assert ids(target) == [*range(160)]


@pytest.mark.parametrize("job", ["compact", "forget"])
@pytest.mark.parametrize("every", [83, pytest.param(2, marks=pytest.mark.long)])
def test_a_kill_at_any_step_leaves_the_table_as_it_was_or_as_it_shall_be(tmp_path, killed, monkeypatch, every, job):
    from tailrace.spark.lake.table_io import TableIO

    path, target = made(tmp_path)
    begun, wanted = tmp_path / "begun", [n for n in range(160) if job == "compact" or n // 40 % 2 == 0]
    shutil.copytree(target, begun)
    whole, changed = 0, 0
    for at in range(0, 400, every):
        shutil.rmtree(target)
        shutil.copytree(begun, target)
        files = killed.KilledFileSystem(at)
        monkeypatch.setattr(TableIO, "file_system", files)

        def work(files=files):
            run = local_runner(lambda task: rewrite_files(task, files, "one"))
            with table_of(target) as table:
                if job == "compact":
                    compact(table, run)
                else:
                    forget(table, Condition("clicks"), run, clock=SystemClock(), entropy=SeededEntropy(1),
                           file_system=files)

        with contextlib.suppress(killed.Killed):
            work()
        monkeypatch.undo()
        there = ids(target)
        assert there in ([*range(160)], wanted)
        whole += there == [*range(160)]
        changed += there == wanted
        assert set(paths_of(target)) <= data_files(target)[0]
        add(path, target)
        assert ids(target) == there
        if job == "forget":
            forgets(target, "clicks")
        else:
            with table_of(target) as table:
                compact(table, RUN)
        assert ids(target) == wanted
        if files.left >= 0:
            break
    assert files.left >= 0, "a run was not killed at last"
    assert whole
    assert changed


def test_old_rows_of_a_topic_leave_the_table(tmp_path):
    path, target = made(tmp_path)
    times = sorted(row["store_timestamp"] for row in rows_of(target).to_pylist() if row["topic"] == "clicks")
    bound = int(times[-1].timestamp() * 1_000_000)
    with table_of(target) as table:
        marks = table.marks()
        done = remove_old_rows(table, RUN, {"clicks": bound, "no-such": bound})
        assert done.rows_removed > 0
        assert table.marks() == marks
        assert remove_old_rows(table, RUN, {"clicks": bound}).rows_removed == 0
    left = rows_of(target).to_pylist()
    sealed = manifests_of(target)[-1].until
    assert not [row for row in left if row["topic"] == "clicks" and row["commit_log_offset"] < sealed
                and row["store_timestamp"].timestamp() * 1_000_000 < bound]
    assert len([row for row in left if row["topic"] == "orders"]) == 80
    add(path, target)
    assert len(same_rows(target)) == len(left)


def test_snapshots_expire_and_files_that_nothing_names_are_removed(tmp_path, caplog):
    caplog.set_level("INFO")
    path, target = made(tmp_path)
    with table_of(target) as table:
        old = paths_of(target)
        compact(table, RUN)
        assert remove_orphans(table, FILES, NEVER) == (0, 0), "older snapshots name all files"
        assert expire_older_snapshots(table, 0) == 0
        assert expire_older_snapshots(table, NEVER) > 0
        assert expire_older_snapshots(table, NEVER) == 0
        assert remove_orphans(table, FILES, 0) == (0, 0), "no file is that old"
        count, size = remove_orphans(table, FILES, NEVER)
        assert count > len(old) - 2
        assert size > 0
    assert "removed files of a table table=tailrace.messages files=" in caplog.text
    there, named = data_files(target)
    assert there == named
    assert ids(target) == [*range(160)]
    fill(path, 160, 240)
    archive(path, target, lag_ms=1)
    add(path, target)
    assert_fresh(path, target, 240)


def test_a_topic_is_forgotten_in_every_file_and_is_not_added_again(tmp_path):
    path, target = made(tmp_path)
    before = set(paths_of(target))
    proof = forgets(target, "clicks")
    assert (proof.rows_removed, proof.rows_left) == (80, 0)
    gone = {one.path for one in proof.files_removed}
    assert gone
    assert gone <= before
    assert not [one for one in gone if pathlib.Path(one).exists()]
    assert all(len(one.sha256) == 64 for one in proof.files_removed)
    for name in data_files(target)[0]:
        assert "clicks" not in pq.read_table(name)["topic"].to_pylist()
    with lake(target) as tables:
        assert len(tables.messages.table.snapshots()) == 1
    assert ids(target) == [n for n in range(160) if n // 40 % 2 == 0]
    fill(path, 160, 240)  # the last segment, which had rows of the topic, is sealed and replaces its ranges
    archive(path, target, lag_ms=1)
    add(path, target)
    assert ids(target) == [n for n in range(240) if n >= 160 or n // 40 % 2 == 0]
    assert {key[0] for key in same_rows(target)} == {"orders"}
    with table_of(target, "raw") as table:
        left = rows_left(table, Condition("clicks"), RUN)
    assert 0 < left <= 80
    write_proof(str(tmp_path / "proof.json"), Proof("clicks", "", [proof], {"tailrace.raw_broker_a": left}), FILES)
    written = json.loads((tmp_path / "proof.json").read_text())
    assert written["tables"][0]["rowsRemoved"] == 80
    assert written["rowsInRaw"] == {"tailrace.raw_broker_a": left}


def test_a_key_is_forgotten_alone(tmp_path):
    path, target = made(tmp_path)
    assert forgets(target, key="k7").rows_removed == 1
    assert forgets(target, topic="orders", key="k50").rows_removed == 0, "it is a key of another topic"
    row = rows_of(target).to_pylist()[0]
    assert forgets(target, key=row["uniq_key"]).rows_removed == 1
    assert ids(target) == sorted({*range(160)} - {7, int(row["body"].split()[0])})
    add(path, target)
    assert len(rows_of(target)) == 158


def test_a_tag_that_keeps_an_old_snapshot_is_named(tmp_path):
    _, target = made(tmp_path)
    with table_of(target) as table:
        snapshot = table.table.current_snapshot().snapshot_id
        table.table.manage_snapshots().create_tag(snapshot, "audit").commit()
    with pytest.raises(StoreError, match=rf"the tag audit of the table tailrace\.messages keeps the .* {snapshot}"):
        forgets(target, "clicks")
    assert ids(target) == [*range(160)]


def test_rows_that_are_forgotten_while_a_segment_is_added_are_not_added(tmp_path, monkeypatch):
    from tailrace.spark.lake import job as job_module

    path, target = made(tmp_path, 80)
    fill(path, 80, 200)
    archive(path, target, lag_ms=1)
    original = job_module.run_task

    def late(task, files):
        if not any(one.forgotten for one in [task.messages] if one):
            forgets(target, "clicks")
        return original(task, files)

    monkeypatch.setattr(job_module, "run_task", late)
    with pytest.raises(StoreError, match=r"rows of the table tailrace\.messages were forgotten since this job looked"):
        add(path, target)
    monkeypatch.undo()
    add(path, target)
    assert "clicks" not in rows_of(target)["topic"].to_pylist()
    assert [n for n in ids(target) if n >= 80] == [*range(80, 200)]


def test_what_maintenance_cannot_keep_is_refused(tmp_path):
    path, target = made(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="has no tables: run tailrace pipeline archive with --table first"):
        Namespace(str(tmp_path / "empty"), "tailrace", FILES)
    with pytest.raises(StoreError, match=r"the catalogue tailrace has no table other\.messages"):
        Namespace(str(target), "other", FILES)
    with lake(target) as tables:
        for name in ("raw_mine", "other"):
            tables._catalogue.create_table(f"tailrace.{name}", pa.schema([("a", pa.int64())]))
    with Namespace(str(target), "tailrace", FILES) as tables:
        names = [one.name for one in tables.tables]
        assert names == ["tailrace.messages", "tailrace.raw_broker_a"], "tables of others are left alone"
    bad = min(paths_of(target))
    whole = pathlib.Path(bad).read_bytes()
    pathlib.Path(bad).write_bytes(whole[: len(whole) // 2])
    with table_of(target) as table, pytest.raises(StoreError, match=(
            r"the table tailrace\.messages is not changed: Arrow")):
        compact(table, RUN)
    pathlib.Path(bad).write_bytes(whole)
    with table_of(target) as table, pytest.raises(StoreError, match=r"is not changed: a task of .* has no result"):
        compact(table, lambda tasks: [])
    with lake(target) as tables, tables.messages.table.update_schema() as change:
        change.add_column("mine", StringType())
    with table_of(target) as table, pytest.raises(StoreError, match="has a column mine of another program"):
        compact(table, RUN)
    assert ids(target) == [*range(160)]


def test_values_get_the_later_type_of_their_field():
    def field(name, kind, number):
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})

    old = pa.struct([field("a", pa.int32(), 1), field("gone", pa.string(), 2)])
    new = pa.struct([field("b", pa.string(), 3), field("renamed", pa.int64(), 1), field("gone", pa.string(), 2)])
    values = pa.array([{"a": 1, "gone": "x"}, None], old)
    assert adapted(values, new).to_pylist() == [{"b": None, "renamed": 1, "gone": "x"}, None]
    lists = pa.array([[{"a": 1}], None, [], [{"a": 2}, None]], pa.list_(field("element", old, 9)))
    assert adapted(lists, pa.list_(field("element", new, 9))).to_pylist() == [
        [{"b": None, "renamed": 1, "gone": None}], None, [], [{"b": None, "renamed": 2, "gone": None}, None]]
    maps = pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32()))
    assert adapted(maps, pa.map_(pa.string(), pa.int64())).to_pylist() == [[("k", 1)], None, []]


def test_an_earlier_run_is_finished_first(tmp_path, monkeypatch):
    _, target = made(tmp_path)
    from tailrace.spark.lake import forget as forget_module

    monkeypatch.setattr(forget_module, "finish_forgetting", lambda *_: None)
    with pytest.raises(AssertionError):
        forgets(target, "clicks")
    monkeypatch.undo()
    with table_of(target) as table:
        remove_orphans(table, FILES, NEVER)
        done = finish_forgetting(table, RUN, FILES)
        assert (done.topic, done.rows_removed, done.rows_left) == ("clicks", 80, 0)
        assert finish_forgetting(table, RUN, FILES) is None
        assert not [one for one in done.files_removed if pathlib.Path(one.path).exists()]
    assert swap_module.data_files
