"""Pending timers handed to the reference and back, clean and killed, with both releases."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from java_peer import free_port
from releases import REFERENCE

PROGRAM = pathlib.Path(__file__).with_name("timer_handover.py")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize(("stop", "release"), [
    ("kill", REFERENCE), ("clean", "5.3.3"), ("clean", REFERENCE), ("kill", "5.3.3")])
def test_every_timer_arrives(tmp_path, release, stop):
    for program in ("mvn", "javac"):
        if shutil.which(program) is None:
            pytest.skip(f"the reference needs {program}")
    done = subprocess.run(
        [sys.executable, PROGRAM, release, stop, str(free_port()), tmp_path], capture_output=True,
        text=True, timeout=240, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["early"], found["levelsLost"]) == (0, 0, 0)
    assert found["levelsByJava"] > 10
    assert (found["rescuedByJava"], found["rescuedEarly"]) == (10, 0)
    if stop == "clean":
        assert found["twice"] == found["levelsTwice"] == 0  # a killed Java broker may repeat its last second
