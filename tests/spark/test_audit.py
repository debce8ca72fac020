"""The audit on Spark finds what `tailrace verify` finds, in the same order."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli.app import app
from tailrace.doctor.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]
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


def test_the_command_prints_what_verify_prints(spark, made, tmp_path):
    _ = spark  # the command runs in its session
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    poke_log(path, made[1][40] + 100, b"\xff")
    done = CliRunner().invoke(app, ["pipeline", "audit", str(path)])
    assert done.exit_code == 1, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(verify(str(path)))
    assert "tailrace pipeline audit: 4 segments" in done.stderr
