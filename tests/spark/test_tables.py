"""Tables of a store: traffic, timers, lag, and what retention will take."""

import collections
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
from releases import CRASHED
from typer.testing import CliRunner

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli.app import app
from tailrace.doctor.timers import pending_timers as told_timers
from tailrace.errors import ConfigError
from tailrace.node.store_opening import StoreParts
from tailrace.store.archive_manifest import Manifest, write_manifest
from tailrace.store.archive_store import PosixArchive
from tailrace.store.directory import StoreDirectory

pytestmark = [pytest.mark.spark, pytest.mark.slow]
FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"
SEGMENT = 1 << 16
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=4000, max_hash_slot_num=50,
    max_index_num=2000, commit_log_allocate_step=4096)


@pytest.fixture(scope="module")
def fixture(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    with tarfile.open(FIXTURES / f"{CRASHED}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / CRASHED


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Four segments, two groups that have come to different places, timers in the first segment."""
    path = tmp_path_factory.mktemp("tables") / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for n in range(10):
            store.put(Message(topic="late", body=b"x", delay=3600 + n, keys=[f"t{n}"]))
        for n in range(240):
            store.put(Message(topic=f"T{n % 2}", body=bytes(900)), queue_id=n // 2 % 2)
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {
        "T0@slow": {"0": 5, "1": 0}, "T0@quick": {"0": 60, "1": 60}, "T1@slow": {"0": 50}}}))
    return path


def command(*arguments):
    done = CliRunner().invoke(app, ["pipeline", *map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_traffic_counts_every_message_and_byte(spark, fixture, tmp_path):
    _ = spark
    rows = command("traffic", fixture, "--by", "minute")
    directory = StoreDirectory(str(fixture))
    wanted = {
        queue.topic: [] for queue in directory.queues() if queue.max_offset > queue.min_offset}
    for queue in directory.queues():
        for _, unit, _ in directory.records(queue):
            wanted[queue.topic].append(unit.size)
    for topic, sizes in wanted.items():
        of = [row for row in rows if row["topic"] == topic]
        assert sum(row["messages"] for row in of) == len(sizes)
        assert sum(row["bytes"] for row in of) == sum(sizes)
    assert {row["topic"] for row in rows} == set(wanted)
    (line,) = command("traffic", fixture, "--out", tmp_path / "traffic")
    assert spark.read.parquet(line["written"]).count() == len(
        {(row["topic"], row["start"][:13]) for row in rows})


def test_traffic_also_counts_what_only_an_archive_has(spark, made, tmp_path):
    path, archive = tmp_path / "store", tmp_path / "archive"
    shutil.copytree(made, path)
    before = command("traffic", path)
    command("archive", path, archive)
    for segment in sorted((path / "commitlog").iterdir())[:2]:
        segment.unlink()  # as retention does
    assert sum(row["messages"] for row in command("traffic", path)) < sum(row["messages"] for row in before)
    assert command("traffic", path, "--archive", archive) == before


def test_timers_are_those_that_the_log_tells(spark, fixture, made):
    from tailrace.spark.pipeline.tables import pending_timers, timer_metrics, timers_by_time

    told = [t.phy_offset for t in told_timers(StoreDirectory(str(fixture)))]
    rows = pending_timers(spark, str(fixture)).collect()
    assert len(told) > 100
    assert sorted(row["commitLogOffset"] for row in rows) == sorted(told)
    with pytest.raises(ConfigError, match="week is not one of"):
        timers_by_time(spark, str(made), bucket="week")
    counts = collections.Counter(row["topic"] for row in rows)
    metrics = fixture / "config" / "timermetrics"
    metrics.write_text(metrics.read_text().replace('"count":28', '"count":29'))
    assert timer_metrics(str(fixture), counts) == [
        {"topic": "fx_t0", "pending": 28, "timermetrics": 29}]
    lines = command("timers", fixture, "--revise")
    assert sum(line["pending"] for line in lines) == len(told)
    assert timer_metrics(str(fixture), counts) == [], "and so the command has said nothing of it"


def test_lag_of_each_queue(spark, made):
    _ = spark
    rows = {(row["group"], row["topic"], row["queueId"]): row for row in command("lag", made)}
    assert {key: row["lag"] for key, row in rows.items()} == {
        ("slow", "T0", 0): 55, ("slow", "T0", 1): 60, ("quick", "T0", 0): 0, ("quick", "T0", 1): 0,
        ("slow", "T1", 0): 10}
    assert rows["quick", "T0", 0]["waitingSince"] is None
    assert rows["slow", "T0", 0]["waitingSince"].startswith("20")
    assert {row["lost"] for row in rows.values()} == {0}


def test_what_retention_will_take(spark, made, tmp_path):
    _ = spark
    (tmp_path / "archive" / "_manifests").mkdir(parents=True)
    for segment, verified in ((0, True), (SEGMENT, False)):
        write_manifest(PosixArchive(str(tmp_path / "archive")), Manifest(
            segment=segment, size=SEGMENT, crc32=0, sha256="", head_crc32=0, records=0, messages=0,
            raw_rows=0, min_store_timestamp=0, max_store_timestamp=0, queues=(), files=(),
            verified=verified))
    assert command("retention", made) == [], "nothing has expired"
    rows = command("retention", made, "--all", "--archive", tmp_path / "archive")
    by = {(row["segment"], row["topic"]): row for row in rows}
    assert {row["segment"]: row["archived"] for row in rows} == {
        0: True, SEGMENT: False, 2 * SEGMENT: False}
    assert by[0, "rmq_sys_wheel_timer"]["timers"] == 10
    assert {row["timers"] for key, row in by.items() if key != (0, "rmq_sys_wheel_timer")} == {0}
    directory = StoreDirectory(str(made))
    for (segment, topic), row in by.items():
        places = {
            queue.queue_id: [
                (offset, unit) for offset, unit, _ in directory.records(queue)
                if segment <= unit.phy_offset < segment + SEGMENT]
            for queue in directory.queues() if queue.topic == topic
        }
        assert row["messages"] == sum(map(len, places.values()))
        assert row["bytes"] == sum(unit.size for units in places.values() for _, unit in units)
        if topic == "T0":
            waits = sum(offset >= 5 for offset, _ in places[0]) + len(places[1])
            assert row["unconsumed"] == ({"slow": waits} if waits else None)


def test_the_example_that_draws_has_its_lines(spark, made):
    path = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "plot_store.py"
    spec = importlib.util.spec_from_file_location("plot_store", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.tables(spark, str(made), "day")
    assert sum(found["messages"]["T0"][1]) == 120
    assert sum(found["bytes"]["T0"][1]) > 120 * 900
    assert sum(found["timers"]["late"][1]) == 10
    assert all(len(times) == len(values) for lines in found.values() for times, values in lines.values())
    if importlib.util.find_spec("matplotlib") is None:
        done = subprocess.run(
            [sys.executable, str(path), str(made), "out"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            3, "plot_store: matplotlib is not installed: pip install '.[plot]' in the checkout\n")
