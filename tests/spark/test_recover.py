"""Recovery whose log is read by tasks: the report, the queues and the index of the local way."""

import json
import shutil

import pytest
from segmented_store import killed_store, same_recovery
from typer.testing import CliRunner

from tailrace.cli.app import app
from tailrace.store.directory import StoreDirectory

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return killed_store(tmp_path_factory.mktemp("recover") / "store")


def test_a_killed_store_without_derived_state(spark, killed, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(killed[0], path)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    report = same_recovery(spark, path, tmp_path)
    assert (report["from"], report["scanned"]) == (0, 152)


def test_the_commands(spark, killed, tmp_path):
    _ = spark  # the commands run in its session
    path = tmp_path / "store"
    shutil.copytree(killed[0], path)
    done = CliRunner().invoke(app, ["recover", str(path), "--spark"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "abnormal"
    done = CliRunner().invoke(
        app, ["pipeline", "rebuild", str(path), "--staging", str(tmp_path / "staging")])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "rebuild"
    assert "segments from 0 on are scanned" in done.stderr
    assert not (tmp_path / "staging").exists()
    assert [q.max_offset for q in StoreDirectory(str(path)).queues() if q.topic == "T1"] == [25] * 3
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "mine").touch()
    done = CliRunner().invoke(
        app, ["pipeline", "rebuild", str(path), "--staging", str(tmp_path / "staging")])
    assert (done.exit_code, "is not empty" in done.stderr) == (1, True)
