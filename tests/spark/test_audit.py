"""The audit on Spark finds what `tailrace verify` finds, in the same order."""

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
from typer.testing import CliRunner

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli.app import app
from tailrace.doctor.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]
INTEROP = pathlib.Path(__file__).parents[1] / "interop"
SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)


def both(spark, path):
    """Kinds of what is found, after a comparison of the two ways."""
    from tailrace.spark.pipeline.audit import audit

    *wanted, summary = verify(str(path))
    done = audit(spark, str(path))
    assert [{"finding": row.asDict()} for row in done.findings.collect()] == wanted
    assert done.summary == summary["summary"]
    return set(done.summary["kinds"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "store"
    with MessageStore.open(path, config=CONFIG, services=False) as store:
        put = [
            store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, keys=[f"k{n}"]), queue_id=n % 3)
            for n in range(150)
        ]
    return path, [result.phy_offset for result in put]


def poke(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def poke_log(path, phy_offset, data):
    poke(path / "commitlog" / f"{phy_offset // SEGMENT * SEGMENT:020d}", phy_offset % SEGMENT, data)


def test_every_kind_of_damage_is_found(spark, made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    assert both(spark, path) == set()
    queue = path / "consumequeue" / "T0" / "0"
    index = sorted((path / "index").iterdir())
    poke_log(path, made[1][40] + 100, b"\xff")
    poke_log(path, made[1][-1] + 30, bytes(900))
    poke(queue / "0".zfill(20), 20 * 3 + 19, b"\x7f")
    poke(queue / "0".zfill(20), 20 * 4, bytes(16 * 20))
    poke(index[0], 40 + 200 + 20 * 9 + 4, b"\x01")
    poke(path / "checkpoint", 40, b"\x7f")
    (path / "config" / "topics.json").write_text("{")
    index[-1].write_bytes(b"short")
    shutil.copy(path / "consumequeue" / "T1" / "0" / "0".zfill(20), queue / "800".zfill(20))
    assert both(spark, path) == {
        "damaged-record", "torn-end", "wrong-unit", "missing-unit", "foreign-unit", "missing-key",
        "foreign-key", "index-chain", "index-file-length", "checkpoint-ahead", "config-unreadable"}


def test_where_the_scan_of_a_segment_guessed_wrong_it_is_verified_again(spark, made, tmp_path):
    """A segment is gone; behind a gap the next record is older than what was before it."""
    from tailrace.spark.pipeline.audit import audit

    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    (path / "commitlog" / f"{SEGMENT:020d}").unlink()
    places = [place for place in made[1] if place // SEGMENT == 2]
    for place in places[:3]:
        poke_log(path, place, bytes(40))
    poke_log(path, places[3] + 56, bytes(8))  # its store time
    assert {"segment-missing", "damaged-record", "foreign-unit"} <= both(spark, path)
    told = []
    audit(spark, str(path), tell=told.append)
    assert told == ["3 segments, 2 index files", "1 segments are cut by damage and are verified again"]


def test_a_store_without_a_log(spark, made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    for file in (path / "commitlog").iterdir():
        file.unlink()
    assert both(spark, path) == {"checkpoint-ahead", "foreign-key", "foreign-unit"}


def test_the_reference_s_directory_damaged(spark, tmp_path):
    with tarfile.open(INTEROP / "fixtures" / "crashed-5.5.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    subprocess.run(
        [sys.executable, INTEROP / "reference" / "damage.py", tmp_path / "crashed-5.5.0",
         tmp_path / "damaged", "1"], check=True)
    assert both(spark, tmp_path / "crashed-5.5.0") == set()
    log = tmp_path / "damaged" / "torn-tail" / "timerlog" / "0".zfill(20)
    poke(log, 52 * 11 + 31, b"\x01")  # in the position of its record
    found = {
        name: both(spark, tmp_path / "damaged" / name)
        for name in ("cq-short", "flip-mid-last-file", "torn-tail", "no-derived")
    }
    assert found == {
        "cq-short": {"missing-unit", "timercheck-ahead"},
        "flip-mid-last-file": {"damaged-record", "foreign-key"},
        "torn-tail": {
            "torn-end", "foreign-key", "foreign-unit", "foreign-timer", "missing-timer"},
        "no-derived": {"missing-key", "missing-unit"},
    }


def test_the_command_prints_what_verify_prints(spark, made, tmp_path):
    _ = spark  # the command runs in its session
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    poke_log(path, made[1][40] + 100, b"\xff")
    done = CliRunner().invoke(app, ["pipeline", "audit", str(path)])
    assert done.exit_code == 1, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(verify(str(path)))
    assert "tailrace pipeline audit: 4 segments" in done.stderr
