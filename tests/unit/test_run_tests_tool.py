"""``make test``: both parts run, what needs other programs is tried again, and the end names what failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_tests.py"
BYTES = ("formats", "kernels", "spark", "store", "timer")
PASSES = "def test_it(): pass\n"
FAILS = "def test_it(): raise ValueError('wrong')\n"
PASSES_THE_SECOND_TIME = """
from pathlib import Path

def test_it():
    tried = Path("tried")
    if not tried.exists():
        tried.touch()
        raise ValueError("too late")
"""
FAILS_INTERPRETED = """
import os

def test_it():
    assert "TAILRACE_INTERPRETED" not in os.environ
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the tool over the given tests: its exit code and its lines from the summary on."""

    def over(tests):
        for room in BYTES:
            folder = tmp_path / "tests" / "unit" / room
            folder.mkdir(parents=True)
            (folder / "test_bytes.py").write_text(PASSES)
        for name, text in tests.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
        done = subprocess.run(
            [sys.executable, TOOL], cwd=tmp_path, env={**os.environ, "PYTEST_XDIST_AUTO_NUM_WORKERS": "0"},
            capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout[done.stdout.rindex("\nall tests:"):].strip().splitlines()

    return over


@pytest.mark.slow
def test_both_parts_run_and_the_end_names_the_failed_tests(run):
    code, lines = run({"tests/unit/node/test_a.py": FAILS, "tests/unit/store/test_b.py": FAILS_INTERPRETED})
    assert code == 1
    assert lines == [
        "all tests: failed", "  tests/unit/node/test_a.py::test_it",
        "tests of bytes with interpreted kernels: failed", "  tests/unit/store/test_b.py::test_it"]


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "ending"), [
    ("interop", (0, "all tests: passed")), ("unit/node", (1, "all tests: failed"))])
def test_a_test_that_uses_other_programs_is_tried_again_and_no_other(run, folder, ending):
    code, lines = run({f"tests/{folder}/test_a.py": PASSES_THE_SECOND_TIME})
    assert (code, lines[0]) == ending
