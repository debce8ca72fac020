"""Code in the documents runs as it stands."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace import AsyncPushConsumer, Message, Producer, PushConsumer

if TYPE_CHECKING:
    from tailrace.pytest_plugin import TailraceBroker

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
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


def test_the_examples_of_consumers_run(
    tmp_path: Path, tailrace_broker: TailraceBroker, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "how-to" / "consume.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with Producer(namesrv=tailrace_broker.namesrv) as producer:
        producer.send(Message(topic="orders", body=b"42 apples"))
    shown = ""

    def wait(consumer: PushConsumer) -> None:
        nonlocal shown
        end = time.monotonic() + 20
        while "42 apples" not in shown and time.monotonic() < end:
            time.sleep(0.02)
            shown += capfd.readouterr().out

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PushConsumer, "wait", wait)
    monkeypatch.setattr(AsyncPushConsumer, "wait", lambda consumer: asyncio.to_thread(wait, consumer))
    said = []
    for code in codes:
        shown = ""
        exec(compile(code.replace("127.0.0.1:9876", tailrace_broker.namesrv), "consume.md", "exec"), {})
        said.append((shown + capfd.readouterr().out).strip())
    assert said == [
        "handled orders b'42 apples'", "awaited b'42 apples'", "retried b'42 apples'", said[3],
        "broadcast b'42 apples'", "read b'42 apples'", "polled 1"]
    assert re.fullmatch(r"in order [0-3] b'42 apples'", said[3])
