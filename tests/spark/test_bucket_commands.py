"""Tables in a bucket are made, kept and restored by the commands, with Spark and with each of two servers of S3."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
pytest.importorskip("obstore")
from lake_tables import fill
from seaweedfs import seaweedfs
from typer.testing import CliRunner
from versitygw import versitygw

from tailrace.cli.app import app
from tailrace.env.filesystem import OsFileSystem
from tailrace.spark.lake.catalogue import Namespace

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark]
ARCHIVE = "s3://lake/commands/archive"
TABLES = ("--table", "lake", "--catalog", "here")


def run(*arguments, code=0):
    print("run", *arguments, file=sys.stderr, flush=True)
    done = CliRunner().invoke(app, ["pipeline", *map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return [json.loads(one) for one in done.stdout.splitlines()] if code == 0 else done.stderr


def bodies():
    with Namespace(ARCHIVE, "lake", OsFileSystem(), catalogue="here") as tables:
        found = next(one for one in tables.tables if one.kind == "messages").table.scan().to_arrow()
    numbers = sorted(int(one.split()[0]) for one in found["body"].to_pylist())
    assert len(numbers) == len(set(numbers))
    return numbers


def commands(place):
    """Run the commands in the process of the test below."""
    path = place / "s"
    for until in (160, 320):
        fill(path, until - 160, until)
        [report] = run("archive", path, ARCHIVE, *TABLES)
        assert report["error"] == ""
        assert report["tableMessages"] > 100
    there = bodies()
    assert there == list(range(len(there)))

    [kept] = run("compact", ARCHIVE, *TABLES)
    assert (kept["filesBefore"] > 1, kept["filesAfter"]) == (True, 1)
    assert bodies() == there
    [gone] = run("forget", ARCHIVE, *TABLES, "--topic", "orders", "--key", "k7", "--proof", place / "proof.json")
    assert (gone["rowsRemoved"], gone["rowsInArchive"]) == (1, 1)
    there.remove(7)
    assert bodies() == there
    messages, raw = run("expire", ARCHIVE, *TABLES, "--snapshots", "0", "--rows", "orders=0")
    assert (messages["rowsRemoved"], raw["rowsRemoved"], raw["snapshotsExpired"]) == (len(there), 0, 1)
    assert bodies() == []
    assert "name a catalogue of PyIceberg's configuration" in run("compact", ARCHIVE, "--table", "lake", code=1)

    plain = run("restore", ARCHIVE, place / "plain")
    assert run("restore", ARCHIVE, place / "table", *TABLES) == plain
    assert len(plain) == len(list((path / "commitlog").iterdir())) - 1
    for one in plain:
        for name in ("plain", "table"):
            assert (place / name / "commitlog" / one["file"]).read_bytes() == (
                path / "commitlog" / one["file"]).read_bytes()


@pytest.mark.parametrize("server", [seaweedfs, versitygw])
def test_tables_in_a_bucket_are_kept_and_restored_by_commands(tmp_path, server):
    """A process of its own: a JVM that runs already does not give its workers new credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYICEBERG_"))}
    with server() as endpoint:
        done = subprocess.run(
            [sys.executable, __file__, tmp_path], capture_output=True, text=True, check=False, timeout=600, env={
                **kept, "PYTHONPATH": str(pathlib.Path(__file__).parents[1] / "support"),
                "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
                "AWS_ENDPOINT_URL": endpoint, "PYICEBERG_CATALOG__HERE__URI": f"sqlite:///{tmp_path}/c.db",
                "PYICEBERG_CATALOG__HERE__WAREHOUSE": "s3://lake/commands/tables"})
        assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    commands(pathlib.Path(sys.argv[1]))
