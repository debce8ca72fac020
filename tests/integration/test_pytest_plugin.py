"""The fixtures of the pytest plugin in a project: the example, and the report of a failed test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def run(path, *options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(path), *options, str(path)],
        cwd=path, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_example_passes_and_leaves_no_data(tmp_path):
    done = run(ROOT / "examples" / "shop", "--basetemp", str(tmp_path / "base"))
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


def test_a_failed_test_shows_what_the_broker_logged(tmp_path):
    page = (ROOT / "docs" / "how-to" / "programs" / "test.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "test_it.py").write_text(code + """

def test_wrong(tailrace_session_broker, tailrace_broker):
    tailrace_session_broker.client().send("t", b"x")
    tailrace_broker.restart()
    du = sum(path.stat().st_blocks * 512 for path in tailrace_broker.store_path.rglob("*"))
    assert du < 40 << 20
    assert False


def test_right(tailrace_session_broker):
    assert tailrace_session_broker.client().messages("unknown") == []
""")
    done = run(tmp_path)
    assert "1 failed, 2 passed" in done.stdout
    shown = done.stdout.partition(" log of tailrace_broker ")[2]
    assert shown, done.stdout
    assert "broker stopped" in shown
    assert "broker started" in shown
