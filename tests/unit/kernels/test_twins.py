"""A compiled kernel is the twin of its source, and of what it shares with others, or is not used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace import kernels

PACKAGE = Path(tailrace.__file__).parent
LOAD = """
import logging
logging.basicConfig(format="%(message)s")
from tailrace import kernels
print(sorted(kernels._interpreted), kernels.record.crc32(b"123456789", 0, 9) == 0xCBF43926)
"""


def load(path):
    done = subprocess.run(
        [sys.executable, "-c", LOAD], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(path)})
    return done.stdout.strip(), done.stderr


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tailrace")
    return tmp_path


@pytest.mark.skipif(not kernels.compiled(), reason="no compiled kernels")
@pytest.mark.parametrize(("changed", "refused"), [
    (None, []), ("hashes.py", ["hashes"]), ("shared/big_endian.py", sorted(
        name for name in kernels.__all__ if name not in ("compiled", "load")))])
def test_a_twin_of_another_source_is_refused(copy, changed, refused):
    if changed is not None:
        with (copy / "tailrace" / "kernels" / changed).open("a") as file:
            file.write("\n# changed\n")
    printed, logged = load(copy)
    assert printed == f"{refused} True"
    assert logged.count("compiled kernel refused") == len(refused)
