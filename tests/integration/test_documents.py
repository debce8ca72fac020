"""Code in the documents runs as it stands."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_runner import PageRunner, blocks
from patience import PATIENCE_S

from tailrace import AsyncPushConsumer, Message, MessageStore, Producer, PushConsumer

if TYPE_CHECKING:
    from tailrace.pytest_plugin import TailraceBroker

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.integration]


def run(code: str, where: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=where, env=dict(os.environ, PYTHONWARNINGS="error"),
        capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_examples_of_consumers_run(
    tmp_path: Path, tailrace_broker: TailraceBroker, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "how-to" / "programs" / "consume.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with Producer(namesrv=tailrace_broker.namesrv) as producer:
        producer.send(Message(topic="orders", body=b"42 apples"))
    shown = ""

    def wait(consumer: PushConsumer) -> None:
        nonlocal shown
        end = time.monotonic() + PATIENCE_S
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
        "handled orders b'42 apples'", "awaited b'42 apples'", "together b'42 apples'", "retried b'42 apples'", said[4],
        "request b'42 apples'", "broadcast b'42 apples'", "allocated b'42 apples'", "read b'42 apples'", "polled 1"]
    assert re.fullmatch(r"in order [0-3] b'42 apples'", said[4])


def test_the_examples_of_producers_run(
    tmp_path: Path, tailrace_broker: TailraceBroker, capfd: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "how-to" / "programs" / "send.md").read_text()
    said = []
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code.replace("127.0.0.1:9876", tailrace_broker.namesrv), "send.md", "exec"), {})
        said.append(capfd.readouterr().out.strip())
    assert said == [
        "sent SEND_OK", "in order SEND_OK", "stored 1000", "recalled True", "reply b'in stock'", "traced True",
        "observed SEND_OK"]


def test_the_examples_of_tables_run(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
    with MessageStore.open(tmp_path / "store") as store:
        store.put(Message(topic="orders", body=b"42 apples", tags="new"))
    with PageRunner(tmp_path, replace={"/data/store": str(tmp_path / "store")}) as runner:
        assert runner.run((DOCS / "how-to" / "programs" / "arrow.md").read_text()) == 2


def test_the_example_of_lite_topics_runs(tmp_path: Path) -> None:
    pytest.importorskip("rocketmq.grpc_protocol", reason="the extra grpc is not installed")
    from grpc_world import grpc_broker

    page = (DOCS / "how-to" / "programs" / "lite.md").read_text()
    [code] = [found.text for found in blocks(page) if found.language == "python"]
    with grpc_broker(tmp_path, enableLmq=True, enableMultiDispatch=True) as broker:
        broker.create_topic("chats", "LITE")
        broker.create_group("chat-members", attributes={"+lite.bind.topic": "chats"})
        assert run(code.replace("127.0.0.1:8081", broker.grpc_endpoint), tmp_path) == "room-7 hello\n"


def test_the_example_of_the_fixture_is_a_test(tailrace_broker: TailraceBroker) -> None:
    [code] = [found.text for found in blocks((DOCS / "reference/api/pytest.md").read_text())]
    names: dict[str, Any] = {}
    exec(compile(code, "pytest.md", "exec"), names)
    names["test_a_message_survives_a_kill"](tailrace_broker)


def test_the_examples_of_frameworks_run(tailrace_broker: TailraceBroker, tmp_path: Path) -> None:
    shown = [
        sorted(run(found.text.replace("127.0.0.1:9876", tailrace_broker.namesrv), tmp_path).splitlines())
        for found in blocks((DOCS / "how-to" / "programs" / "frameworks.md").read_text()) if found.language == "python"]
    assert shown == [["resized apple.png to 640", "resized pear.png to 320"], ["sent 42 apples"]]
