"""`tailrace pipeline`: a mistake is reported in one line, before Spark is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def tailrace(*arguments, program="from tailrace.cli import main; main()"):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
        timeout=60, check=False)


def test_mistakes_are_told_before_spark_starts(tmp_path):
    (tmp_path / "commitlog").mkdir()
    cases = {
        (tmp_path / "nowhere",): (1, "is not a store directory"),
        (tmp_path, "--master", "mesos"): (2, "--master mesos is not local[N]"),
        (tmp_path, "--conf", "executor=3"): (2, "is not spark.NAME=VALUE"),
        (tmp_path, "--wrong"): (2, "No such option: --wrong"),
    }
    for arguments, (code, text) in cases.items():
        done = tailrace("pipeline", "traffic", *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert text in done.stderr
        assert "WARN" not in done.stderr, "Spark has started"


def test_without_spark_the_command_says_what_to_install(tmp_path):
    (tmp_path / "commitlog").mkdir()
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from tailrace.cli import main; main()")
    done = tailrace("pipeline", "traffic", tmp_path, program=program)
    assert done.returncode == 3
    assert done.stderr == (
        "tailrace: jobs on Spark need the package pyspark: pip install '.[spark]' in the checkout\n")


def test_other_commands_load_nothing_of_spark():
    program = (
        "import sys\n"
        "from tailrace.cli.app import app\n"
        "loaded = {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "sys.exit(', '.join(loaded) or 0)")
    done = tailrace(program=program)
    assert done.returncode == 0, done.stderr


def test_a_served_directory_is_not_rebuilt(tailrace_broker):
    for arguments in (["pipeline", "rebuild"], ["recover", "--spark"]):
        done = tailrace(*arguments, tailrace_broker.store_path)
        assert done.returncode == 1
        assert f"serves it at {tailrace_broker.broker}" in done.stderr
        assert "WARN" not in done.stderr, "Spark has started"
