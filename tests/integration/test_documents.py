"""Code in the documents runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailrace.pytest_plugin import TailraceBroker

README = Path(__file__).resolve().parents[2] / "README.md"
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def block(containing: str) -> str:
    [found] = [
        code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if containing in code
    ]
    return found


def run(code: str, where: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=where, env=dict(os.environ, PYTHONWARNINGS="error"),
        capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_embedded_example_runs(tmp_path: Path) -> None:
    shown = run(block("MessageStore.open"), tmp_path)
    assert shown.startswith("0 b'42 apples'")


def test_the_client_example_runs(tmp_path: Path, tailrace_broker: TailraceBroker) -> None:
    code = block("PullConsumer(").replace("127.0.0.1:9876", tailrace_broker.namesrv)
    # An acknowledged message is in its queue a moment later; an example need not say so.
    code = code.replace("with PullConsumer", "import time; time.sleep(0.5)\nwith PullConsumer", 1)
    assert "42 apples" in run(code, tmp_path)
