"""The commands and programs of README.md on a terminal, and those of the page about installation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from page_runner import Block, PageRunner, agrees, blocks, commands
from patience import PATIENCE_S

from tailrace.kernels import compiled
from tailrace.pytest_plugin import TailraceBroker

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 120
READ_S = 10.0
"""A message is in its queue a moment after its send."""
pytestmark = [pytest.mark.slow, pytest.mark.integration]


class Terminal:
    """A command on a pseudo-terminal of 120 columns."""

    def __init__(self, command: str, where: Path, **environment: str) -> None:
        self._mine, others = pty.openpty()
        fcntl.ioctl(others, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=where,
            env=dict(os.environ, PATH=programs, TERM="xterm", **environment), stdin=others, stdout=others,
            stderr=others, start_new_session=True)
        os.close(others)
        self.shown = ""

    def read(self, until: str | None = None) -> str:
        """Return what was shown, without colours, when it has a text or the command has ended."""
        while until is None or until not in self.shown:
            with contextlib.suppress(OSError):  # the end of a pseudo-terminal
                if part := os.read(self._mine, 65_536):
                    self.shown += re.sub(r"\x1b\[[0-9;]*m|\r", "", part.decode())
                    continue
            break
        return self.shown

    def close(self, number: int = signal.SIGTERM) -> int:
        """End the command and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.read()
        os.close(self._mine)
        return self.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def shown() -> list[Block]:
    """The blocks of README.md that run."""
    return [found for found in blocks((ROOT / "README.md").read_text()) if found.language]


def test_every_block_of_the_readme_runs_here(shown: list[Block]) -> None:
    assert [found.language for found in shown] == ["console", "python", "python"]


def test_the_first_message_on_a_terminal(tmp_path: Path, shown: list[Block]) -> None:
    serve, send, tail = commands(shown[0].text)
    server = Terminal(f"{serve.text} --listen 127.0.0.1:0 --namesrv-listen 127.0.0.1:0", tmp_path)
    try:
        ready = server.read("recovered_ms=")
        namesrv = re.search(r"^ready .*namesrv=(\S+)", ready, re.MULTILINE)
        assert namesrv is not None, ready
        assert agrees(serve.printed, server.read("\n" if ready.endswith("\n") else "ms=0\n").strip())
        for command in (send, tail):
            until = time.monotonic() + READ_S
            while True:
                terminal = Terminal(command.text, tmp_path, NAMESRV_ADDR=namesrv[1])
                got = terminal.read()
                assert terminal.close() == 0, got
                # The broker chooses the queue of the message; the table is as wide as the number.
                wanted, got = (
                    re.sub(r"\b[0-3]:0\b|(?<=orders {9})[0-3]", "Q", text) for text in (command.printed, got))
                if agrees(wanted, got) or time.monotonic() > until:
                    break
            assert agrees(wanted, got), got
    finally:
        assert server.close() == 0, server.shown


def test_a_producer_and_a_consumer(tmp_path: Path, shown: list[Block], tailrace_broker: TailraceBroker) -> None:
    program = shown[1].text.replace("127.0.0.1:9876", tailrace_broker.namesrv)
    terminal = Terminal(f"{sys.executable} -c '{program}'", tmp_path)
    assert terminal.read("b'7 pears'").endswith("handled b'7 pears'\n")
    terminal.close(signal.SIGINT)


def test_an_embedded_store(tmp_path: Path, shown: list[Block]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", shown[2].text], cwd=tmp_path, env=dict(os.environ, PYTHONWARNINGS="error"),
        capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[b'42 apples']\n"


def test_the_check_of_an_installation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    if not compiled():
        page = page.replace("kernels compiled", "kernels interpreted")
    with PageRunner(tmp_path) as runner:
        assert runner.run(page) == 3
