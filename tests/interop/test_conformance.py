"""The conformance checks of this directory as tests; where the reference cannot run, they say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "conformance"


def holds(check: str, tmp_path: Path) -> None:
    environment = dict(
        os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(CHECKS), TMPDIR=str(tmp_path),
        TAILRACE=str(Path(sys.executable).parent / "tailrace"), TAILRACE_PYTHON=sys.executable)
    done = subprocess.run(
        [sys.executable, CHECKS / check], env=environment, capture_output=True, text=True,
        timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_stores_of_the_reference_look_as_it_sees_them(tmp_path: Path) -> None:
    holds("dump-equals-reference", tmp_path)


@pytest.mark.long  # each kind of client, and a store that a Java broker opens, have tests of their own beside it
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.usefixtures("reference")
def test_java_clients_work_and_the_reference_opens_what_they_wrote(tmp_path: Path) -> None:
    holds("java-client", tmp_path)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
def test_spark_reads_a_store_of_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    holds("spark", tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.usefixtures("reference")
def test_timers_of_the_java_client_survive_a_kill(tmp_path: Path) -> None:
    holds("timers", tmp_path)
