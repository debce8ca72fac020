"""The daemon of Spark's workers prints every error but that of a connection which Spark has closed."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from tailrace.spark.quiet_daemon import QUIET_TRACEBACK


def test_only_a_closed_connection_is_not_printed(capsys):
    for error in (BrokenPipeError(32, "Broken pipe"), ValueError("a defect"), ConnectionResetError("reset")):
        try:
            raise error
        except (OSError, ValueError):
            QUIET_TRACEBACK.print_exc()
    printed = capsys.readouterr().err
    assert "BrokenPipeError" not in printed
    assert "ValueError: a defect" in printed
    assert "ConnectionResetError" in printed


def test_the_daemon_of_pyspark_uses_nothing_else_of_the_module():
    daemon = Path(importlib.util.find_spec("pyspark").origin).with_name("daemon.py").read_text()
    assert set(re.findall(r"\btraceback\.(\w+)", daemon)) - {"dump_traceback"} == set(vars(QUIET_TRACEBACK))
