"""Archive, deletion, and one table over both, through Spark; the standing job by its command."""

import contextlib
import hashlib
import json
import lzma
import os
import pathlib
import signal
import tarfile
import threading
import time

import pytest
from releases import CLEAN, CRASHED
from served_process import served_process
from typer.testing import CliRunner

from tailrace.cli.app import app
from tailrace.client import Producer
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.store.archive_manifest import list_manifests
from tailrace.store.archive_store import PosixArchive

pytestmark = pytest.mark.spark
FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"
VERSION_1 = pathlib.Path(__file__).parents[1] / "unit" / "spark" / "archive" / "archive-version-1.tar.xz"
SEGMENT = 64 << 10


@contextlib.contextmanager
def opened(path):
    with MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, file_reserved_time=0,
        delete_when=str((time.localtime().tm_hour + 12) % 24))) as store:  # not by itself, at its start
        yield store
        store.wait_dispatched(60_000)


def fill(path, first, until):
    with opened(path) as store:
        for number in range(first, until):
            store.put(Message(topic="a", body=b"%d" % number + b" " * 900), queue_id=number % 3)


@pytest.mark.parametrize("name", [pytest.param(CLEAN, marks=pytest.mark.long), CRASHED])
def test_a_fixture_is_one_table_over_archive_and_log(spark, tmp_path, name):
    from tailrace.spark.archive.job import ArchiveOptions, archive_store
    from tailrace.spark.archive.verification import restored
    from tailrace.store.archive_manifest import read_manifest

    with tarfile.open(FIXTURES / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    with lzma.open(FIXTURES / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        messages = [r["message"] for r in map(json.loads, lines) if "message" in r]
    path, archive = tmp_path / name, tmp_path / "archive"
    made = archive_store(
        spark, str(path), str(archive), options=ArchiveOptions(piece_bytes=300_000))
    assert len(made) == 4
    for one in made:
        manifest = read_manifest(PosixArchive(str(archive)), one.segment)
        segment = path / "commitlog" / f"{one.segment:020d}"
        assert b"".join(restored(PosixArchive(str(archive)), manifest)) == segment.read_bytes()
    assert archive_store(spark, str(path), str(archive)) == []
    for one in made[:3]:
        (path / "commitlog" / f"{one.segment:020d}").unlink()
    rows = (
        spark.read.format("tailrace").option("fallback", "archive").option("archive", str(archive))
        .load(str(path)).collect())
    found = {(r["topic"], r["queueId"], r["queueOffset"]): r for r in rows}
    assert len(rows) == len(found) == len(messages)
    for m in messages:
        r = found[m["topic"], m["queueId"], m["queueOffset"]]
        assert hashlib.sha256(bytes(r["body"])).hexdigest() == m["bodySha256"]
        assert r["properties"] == m["properties"]
        assert (r["commitLogOffset"], r["storeSize"], r["msgId"]) == (
            m["physicalOffset"], m["size"], m["msgId"])
    days = spark.read.parquet(str(archive))  # what other readers of Parquet see
    assert days.where("kind = 'message'").count() == sum(one.messages for one in made)
    assert {"dt", "segment"} <= set(days.columns)
    assert dict(days.dtypes)["segment"] == "string", "digits would be an int up to 2 GiB, then a long"


def test_a_stream_begins_in_the_archive(spark, tmp_path):
    from tailrace.spark.archive.job import archive_store

    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 300)
    archive_store(spark, str(path), str(archive))
    with opened(path) as store:
        assert store.retention.delete_now() == 4

    def run():
        query = (
            spark.readStream.format("tailrace").option("startingOffsets", "earliest")
            .option("fallback", "archive").option("archive", str(archive))
            .option("maxOffsetsPerTrigger", 200).option("columns", "body").load(str(path))
            .writeStream.format("parquet").option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start())
        assert query.awaitTermination(120)
        assert query.exception() is None
        return sorted(
            int(bytes(row["body"])) for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    assert run() == list(range(300))
    fill(path, 300, 450)
    archive_store(spark, str(path), str(archive))
    with opened(path) as store:
        assert store.retention.delete_now()  # the checkpoint is now before the start of the log
    assert run() == list(range(450))


def test_the_standing_job_takes_what_is_sealed(spark, tmp_path):
    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 100)
    seen = []

    def wait_for(count):
        until = time.monotonic() + 60
        while len(list((archive / "_manifests").glob("*.json"))) < count and time.monotonic() < until:
            time.sleep(0.05)
        seen.append(len(list((archive / "_manifests").glob("*.json"))))

    def live_on():
        wait_for(1)
        fill(path, 100, 250)
        wait_for(3)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    other = threading.Thread(target=live_on)
    other.start()
    done = CliRunner().invoke(
        app, ["pipeline", "archive", str(path), str(archive), "--follow", "--every", "200ms"])
    other.join()
    assert done.exit_code == 0, done.output
    assert signal.getsignal(signal.SIGTERM) is before
    assert seen == [1, 3]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["segments"], report["verified"], report["gone"]) == (3, True, [])
    assert "segment 0: " in done.stderr


def test_segments_of_an_older_archive_and_newer_ones_are_one_partition_column(spark, tmp_path):
    with tarfile.open(VERSION_1) as packed:
        packed.extractall(tmp_path, filter="data")
    path, archive = tmp_path / "store", tmp_path / "archive"
    fill(path, 0, 200)
    done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(archive)])
    assert done.exit_code == 0, done.output
    days = spark.read.parquet(str(archive))
    assert dict(days.dtypes)["segment"] == "string"
    names = {row.segment for row in days.select("segment").distinct().collect()}
    assert {name[0] for name in names} == {"0", "p"}


def test_a_resting_archive_is_verified_by_its_command(spark, tmp_path):
    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 200)

    def run(*more):
        done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(archive), *more])
        return done.exit_code, json.loads(done.stdout.splitlines()[-1]), done.stderr

    code, report, _ = run()
    assert (code, report["segments"], report["readAgain"]) == (0, 3, 0)
    code, report, _ = run("--verify")
    assert (code, report["segments"], report["readAgain"]) == (0, 0, 3)
    part = min(archive.rglob("*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    code, report, told = run("--verify")
    assert (code, report["segments"], report["readAgain"]) == (0, 1, 2)
    assert "segment 0: " in told
    part = min(archive.rglob("*.parquet"))
    part.write_bytes(data)
    (path / "commitlog" / f"{0:020d}").unlink()
    code, report, told = run("--verify")
    assert code == 1
    assert f"file={part}" in report["error"]
    assert "the log no longer has the segment" in told


def test_of_several_stores_one_that_fails_does_not_stop_the_others(spark, tmp_path):
    for name in "ab":
        fill(tmp_path / name, 0, 200)
    stores = [str(tmp_path / name) for name in ("a", "none", "b")]

    def run(*more):
        done = CliRunner().invoke(app, ["pipeline", "archive", *stores, str(tmp_path / "archive"), *more])
        return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    code, reports, told = run()
    assert code == 1
    assert [(one["store"], one.get("segments")) for one in reports] == [("a", 3), ("b", 3), ("none", None)]
    assert [one["error"] for one in reports[:2]] == ["", ""]
    assert "is not a store directory" in reports[2]["error"]
    assert f"tailrace pipeline archive: none: {reports[2]['error']}" in told
    assert "tailrace pipeline archive: a: segment 0: " in told
    fill(tmp_path / "none", 0, 200)
    code, reports, _ = run()
    assert code == 0
    assert [(one["store"], one["segments"]) for one in reports] == [("a", 0), ("b", 0), ("none", 3)]
    code, reports, _ = run("--names", "x,y,z", "--verify")
    assert (code, [one["segments"] for one in reports]) == (0, [3, 3, 3])
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == ["a", "b", "none", "x", "y", "z"]


def test_a_segment_whose_task_fails_in_spark_does_not_hold_back_the_others(spark, tmp_path, monkeypatch):
    """The task that reads the second segment ends its worker, as one that needs too much memory."""
    from tailrace.spark.archive import job as jobs
    from tailrace.spark.archive.task import run_task

    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 300)

    def dies(task):
        if task.segment == SEGMENT:
            os._exit(1)
        return run_task(task)

    monkeypatch.setattr(jobs, "run_task", dies)
    done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(archive)])
    assert done.exit_code == 1
    assert "tailrace: pipeline archive: " in done.stderr
    made = list_manifests(PosixArchive(str(archive)))
    assert SEGMENT not in made
    assert len(made) == len(list((path / "commitlog").iterdir())) - 2
    monkeypatch.undo()
    done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(archive)])
    assert done.exit_code == 0
    assert json.loads(done.stdout.splitlines()[-1])["segments"] == 1


@pytest.mark.parametrize(("stores", "options", "told"), [
    (["s"], ["--names", "x"], "--names needs several stores"),
    (["s", "t"], ["--names", "x"], "--names x has 1 names for 2 stores"),
    (["s", "x/s"], [], "the name 's' is not the name of one store: give each one another name with --names"),
    (["s", "t"], ["--names", "x,../y"], "the name '../y' is not the name of one store"),
    (["s", "t"], ["--table", "lake"], "--table needs a single STORE"),
])
def test_names_of_stores_are_refused_before_spark_starts(tmp_path, stores, options, told):
    done = CliRunner().invoke(
        app, ["pipeline", "archive", *(str(tmp_path / one) for one in stores), str(tmp_path / "a"), *options])
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_topic_is_a_table_after_the_command_also_while_it_follows(spark, tmp_path):
    pytest.importorskip("pyiceberg")
    from tailrace.spark.lake.catalogue import Lake

    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 200)

    def run(*more):
        done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(archive), "--table", "lake", *more])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    def bodies():
        with Lake(str(archive), "lake", "broker-a", OsFileSystem()) as tables:
            assert tables.raw.table.name() == ("lake", "raw_broker_a")
            return sorted(int(one) for one in tables.messages.table.scan().to_arrow()["body"].to_pylist())

    report = run()
    assert (report["segments"], report["tableSegments"], report["tableCommits"]) == (3, 3, 2)
    assert bodies() == list(range(report["tableMessages"]))
    fill(path, 200, 400)
    count = report["tableMessages"]

    def end():
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.2)
            with contextlib.suppress(Exception):
                if len(bodies()) > count:
                    break
        os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=end)
    other.start()
    report = run("--follow", "--every", "200ms")
    other.join()
    assert report["tableSegments"] == report["segments"] > 1
    assert bodies() == list(range(count + report["tableMessages"]))


def test_tables_are_kept_by_jobs(spark, tmp_path):
    pytest.importorskip("pyiceberg")
    from tailrace.spark.lake.catalogue import Namespace

    path, archive = tmp_path / "s", tmp_path / "a"
    fill(path, 0, 300)
    (tmp_path / "t.json").write_text('{"properties": {"id": {"type": "integer"}}}')
    (tmp_path / "types.toml").write_text("[a]\nformat = 'json'\nschema = 't.json'")

    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["pipeline", *map(str, arguments)])
        assert done.exit_code == code, done.output
        return [json.loads(one) for one in done.stdout.splitlines()] or done.stderr

    [report] = run("archive", path, archive, "--table", "lake", "--types", tmp_path / "types.toml")
    assert report["typedMessages"] == report["badBodies"] == report["tableMessages"] > 200
    done = run("compact", archive, "--table", "lake")
    assert [(one["table"], one["filesAfter"]) for one in done] == [("lake.messages", 1), ("lake.topic_a", 1)]
    done = run("expire", archive, "--table", "lake", "--snapshots", "0", "--rows", "a=365d")
    assert [one["snapshotsExpired"] > 0 for one in done] == [True, False, True]
    assert [one["rowsRemoved"] for one in done] == [0, 0, 0]
    with Namespace(str(archive), "lake", OsFileSystem()) as tables:
        key = tables.tables[0].table.scan().to_arrow()["uniq_key"][0].as_py()
    [report] = run("forget", archive, "--table", "lake", "--key", key, "--proof", tmp_path / "proof.json")
    assert (report["rowsRemoved"], report["filesRemoved"], report["rowsInArchive"]) == (2, 2, 1)
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert [(one["table"], one["rowsLeft"]) for one in proof["tables"]] == [
        ("lake.messages", 0), ("lake.topic_a", 0)]
    assert "proof.json exists already" in run(
        "forget", archive, "--table", "lake", "--key", key, "--proof", tmp_path / "proof.json", code=2)
    assert "--topic or --key is needed" in run("forget", archive, "--table", "lake", "--proof", "x", code=2)
    assert "is shorter than 1h" in run("expire", archive, "--table", "lake", "--orphans", "1m", code=2)
    assert f"{path} has no tables" in run("compact", path, "--table", "lake", code=1)


@pytest.mark.parametrize(("options", "told"), [
    (["--table", "x", "--no-verify"], "--table needs verified segments"),
    (["--catalog", "x"], "--catalog, --system-topics and --types need --table"),
    (["--table", "x", "--types", "no-such.toml"], "no-such.toml: No such file or directory"),
    (["--table", "x", "--catalog", "none"], "PyIceberg's configuration has no catalogue none"),
])
def test_options_of_tables_are_refused_before_spark_starts(tmp_path, options, told):
    path = tmp_path / "s"
    fill(path, 0, 1)
    done = CliRunner().invoke(app, ["pipeline", "archive", str(path), str(tmp_path / "a"), *options])
    assert done.exit_code != 0
    assert told in done.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.long
def test_several_live_brokers_are_followed_while_one_stops_and_the_disk_of_another_archive_fails(spark, tmp_path):
    archive = tmp_path / "archive"
    settings = {"mappedFileSizeCommitLog": SEGMENT, "autoCreateTopicEnable": True, "flushDiskType": "SYNC_FLUSH"}

    def manifests(name):
        return len(list((archive / name / "_manifests").glob("*.json")))

    def wait_for(what):
        until = time.monotonic() + 120
        while not what() and time.monotonic() < until:
            time.sleep(0.05)
        assert what()

    def send(served, count):
        with Producer(served.namesrv) as producer:
            for number in range(count):
                producer.send(Message(topic="a", body=b"%d " % number * 300))

    def live_on():
        try:
            with contextlib.ExitStack() as all_brokers:
                for name in "ab":
                    (tmp_path / name).mkdir()
                a, b = (all_brokers.enter_context(served_process(tmp_path / name, settings)) for name in "ab")
                started.set()
                send(a, 150)
                send(b, 150)
                wait_for(lambda: manifests("a") and manifests("b"))
                (archive / "b/_staging").rename(archive / "b/kept")
                (archive / "b/_staging").write_bytes(b"")  # the disk takes no file of a segment
                send(b, 150)
                before = manifests("a")
                send(a, 150)
                wait_for(lambda: manifests("a") > before + 1)
                b.process.terminate()
                b.process.wait(60)
                (archive / "b/_staging").unlink()
                before = manifests("b")
                wait_for(lambda: manifests("b") > before)
                before = manifests("a")
                send(a, 150)
                wait_for(lambda: manifests("a") > before)
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()
            os.kill(os.getpid(), signal.SIGTERM)

    started, failed = threading.Event(), []
    other = threading.Thread(target=live_on)
    other.start()
    assert started.wait(120)
    done = CliRunner().invoke(app, [
        "pipeline", "archive", *(str(tmp_path / name / "store") for name in "ab"), str(archive), "--names", "a,b",
        "--follow", "--every", "200ms"])
    other.join()
    assert failed == [], done.output
    assert done.exit_code == 0, done.output
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["store"], one["segments"], one["error"]) for one in reports] == [
        (name, manifests(name), "") for name in "ab"]
    told = [line for line in done.stderr.splitlines() if "the next period tries again" in line]
    assert told
    assert all(" b: " in line and "_staging" in line for line in told)
