"""A broker as a pytest fixture: its own process, directory and ports for each test."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import pytest

__all__ = ["TailraceBroker", "tailrace_broker"]

START_TIMEOUT_S: Final = 60.0


@final
class TailraceBroker:
    """A running ``tailrace serve`` on ``store_path``; addresses change with every start."""

    def __init__(self, store_path: Path, *options: str) -> None:
        self.store_path = store_path
        self.broker = ""
        """Address of the broker, HOST:PORT."""
        self.namesrv = ""
        """Address of the name server, HOST:PORT."""
        self.recovered_ms = 0
        self.log_path = store_path.with_name(store_path.name + ".log")
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until clients can be served."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.cli", "serve", str(self.store_path), "--listen",
                 "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *self._options],
                stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        # The line comes in one piece; a server that never gets ready must not hang a test run.
        told, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline() if told else ""
        if not line.startswith("ready "):
            self.kill()
            raise RuntimeError(
                f"tailrace serve did not get ready: {self.log_path.read_text()[-2000:]}")
        fields = dict(part.split("=", 1) for part in line.split()[1:])
        self.broker, self.namesrv = fields["broker"], fields["namesrv"]
        self.recovered_ms = int(fields["recovered_ms"])

    def stop(self) -> int:
        """End it as an operator would; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it as a crash would."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, when it runs, and start again on the same directory."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def tailrace_broker(tmp_path: Path) -> Iterator[TailraceBroker]:
    """A broker and name server on an empty directory, stopped after the test."""
    broker = TailraceBroker(tmp_path / "store")
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
