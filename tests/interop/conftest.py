"""The reference implementation, for tests that need it; they are skipped where it cannot run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parent / "reference" / "rocketmq"


@pytest.fixture(scope="session")
def reference() -> Path:
    """The command that runs the reference; skips unless it is here or can be fetched."""
    for program, of in (("mvn", "Maven"), ("javac", "a Java 17 JDK")):
        if shutil.which(program) is None:
            pytest.skip(f"the reference needs {of}, and {program} is not on the PATH")
    done = subprocess.run(
        [REFERENCE, "setup"], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"the reference cannot be set up: {done.stderr[-500:]}")
        pytest.skip(f"the reference cannot be set up: {done.stderr.strip()[-200:]}")
    return REFERENCE
