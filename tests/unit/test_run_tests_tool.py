"""``make test`` and ``make long``: both parts run, some tests have a second try, and the end names what failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_tests.py"
BYTES = ("unit/formats", "unit/kernels")
MORE_BYTES = ("unit/spark", "unit/store", "unit/timer")
PASSES = """
import pytest

@pytest.mark.long
def test_it(): pass
"""
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
    """Return a function that runs the tool over tests; it returns the exit code and the lines of the summary."""

    def over(tests, *options):
        for room in (*BYTES, *MORE_BYTES):
            folder = tmp_path / "tests" / room
            folder.mkdir(parents=True)
            (folder / "test_bytes.py").write_text(PASSES)
        for name, text in tests.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\nmarkers = long\n")
        done = subprocess.run(
            [sys.executable, TOOL, *options], cwd=tmp_path, env={**os.environ, "WORKERS": "0"},
            capture_output=True, text=True, check=False, timeout=300)
        start = "\nlong tests:" if "--long" in options else "\nall tests:"
        return done.returncode, done.stdout[done.stdout.rindex(start):].strip().splitlines()

    return over


@pytest.mark.slow
@pytest.mark.parametrize(("options", "room"), [((), "formats"), (("--long",), "store")])
def test_both_parts_run_and_the_end_names_the_failed_tests(run, options, room):
    fails = f"import pytest\npytestmark = pytest.mark.long\n{FAILS}"
    code, lines = run({"tests/unit/node/test_a.py": fails, f"tests/unit/{room}/test_b.py": FAILS_INTERPRETED}, *options)
    assert code == 1
    assert lines == [
        f"{'long' if options else 'all'} tests: failed", "  tests/unit/node/test_a.py::test_it",
        "tests that ran twice: 0",
        "tests of bytes with interpreted kernels: failed", f"  tests/unit/{room}/test_b.py::test_it"]


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "options", "code", "twice"), [
    ("interop", (), 0, 1), ("interop", ("--no-reruns",), 1, 0), ("unit/broker", (), 1, 0)])
def test_a_test_that_uses_other_programs_is_tried_again_and_no_other(run, folder, options, code, twice):
    ended, lines = run({f"tests/{folder}/test_a.py": PASSES_THE_SECOND_TIME}, *options)
    assert (ended, lines[0]) == (code, f"all tests: {'failed' if code else 'passed'}")
    assert f"tests that ran twice: {twice}" in lines
