"""The audit on Spark finds what `tailrace verify` finds, in the same order."""

import json
import shutil

import pytest
from segmented_store import poke, poke_log, sound_store
from typer.testing import CliRunner

from tailrace.cli.app import app
from tailrace.doctor.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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
    return sound_store(tmp_path_factory.mktemp("audit") / "store")


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
