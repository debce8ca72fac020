"""Pytest fixtures with a broker in its own process, for each test or for all tests of a session.

`tailrace_broker` is started for each test, `tailrace_session_broker` once. To change RocketMQ settings, define a
fixture `tailrace_settings` of session scope. The report of a failed test has the log of the broker during the test.
"""

from __future__ import annotations

import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

import pytest

if TYPE_CHECKING:  # imported on demand, so that test runs without these fixtures start faster
    from tailrace.client import SendResult
    from tailrace.model import MessageExt
    from tailrace.spellings import Duration

__all__ = [
    "BrokerClient", "TailraceBroker", "tailrace_broker", "tailrace_options", "tailrace_session_broker",
    "tailrace_settings",
]

START_TIMEOUT_S: Final = 60.0
LOG_SHOWN: Final = 20_000
"""Greatest number of characters of a broker's log in the report of a failed test."""
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": 8 << 20, "mappedFileSizeConsumeQueue": 120_000, "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 10_000, "maxIndexNum": 40_000,
}
"""Default settings of the fixtures, with small files: a broker takes some MB of disk, not 160."""


@final
class BrokerClient:
    """A client for tests: sends messages and reads what is stored."""

    def __init__(self, namesrv: str) -> None:
        from tailrace.client import Producer  # noqa: PLC0415

        self._namesrv = namesrv
        self.producer = Producer(namesrv=namesrv, group="tailrace_pytest", timeout_ms=10_000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.producer.close()

    def create_topic(self, topic: str, queues: int = 4, attributes: Mapping[str, str] | None = None) -> None:
        """Create a topic. A send to a missing topic creates it with 4 queues."""
        self.producer.create_topic(topic, queues, attributes)

    def send(
        self, topic: str, body: bytes, *, tags: str | None = None, keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None, delay: Duration | None = None, queue_id: int | None = None,
    ) -> SendResult:
        """Send a message and wait until it is stored."""
        from tailrace.model import Message  # noqa: PLC0415

        return self.producer.send(
            Message(topic=topic, body=body, tags=tags, keys=keys, properties=properties or {}, delay=delay),
            queue_id=queue_id)

    def messages(self, topic: str) -> list[MessageExt]:
        """Return all messages of a topic, queue by queue; [] if the topic does not exist."""
        from tailrace.client import PullConsumer  # noqa: PLC0415
        from tailrace.errors import RemotingCommandError  # noqa: PLC0415
        from tailrace.formats.remoting import ResponseCode  # noqa: PLC0415

        with PullConsumer(namesrv=self._namesrv, group="tailrace_pytest", timeout_ms=10_000) as reader:
            try:
                return list(reader.messages(topic, start="first", follow=False))
            except RemotingCommandError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                return []

    def wait_for(self, topic: str, count: int, timeout_s: Duration = 10.0) -> list[MessageExt]:
        """Return the messages of a topic once there are ``count`` of them. Raises TimeoutError."""
        from tailrace.env.clock import SystemClock  # noqa: PLC0415
        from tailrace.spellings import duration_ms  # noqa: PLC0415

        clock = SystemClock()
        end_ns = clock.monotonic_ns() + duration_ms(timeout_s, "timeout_s") * 1_000_000
        while len(found := self.messages(topic)) < count:
            if clock.monotonic_ns() > end_ns:
                raise TimeoutError(f"{topic} has {len(found)} messages after timeout_s={timeout_s}, not {count}")
            threading.Event().wait(0.02)
        return found


@final
class TailraceBroker:
    """A running ``tailrace serve`` on ``store_path``; addresses change with every start.

    ``settings`` go into a properties file beside it, ``options`` to the command line.
    """

    def __init__(self, store_path: Path, *options: str, settings: Mapping[str, object] | None = None) -> None:
        self.store_path = store_path
        self._clients: list[BrokerClient] = []
        self._shown_from = 0
        if settings:
            config = store_path.with_name(f"{store_path.name}.properties")
            config.write_text("".join(f"{name}={_text(value)}\n" for name, value in settings.items()))
            options = ("--config", str(config), *options)
        self.broker: str = ""
        """Address of the broker, HOST:PORT."""
        self.namesrv: str = ""
        """Address of the name server, HOST:PORT."""
        self.grpc_endpoint: str = ""
        """Address of the gRPC endpoint for clients of RocketMQ 5, HOST:PORT; empty without the option ``--grpc``."""
        self.recovered_ms = 0
        self.log_path = store_path.with_name(store_path.name + ".log")
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the server and wait until it serves clients."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tailrace.cli", "serve", str(self.store_path), "--listen",
                 "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *self._options],
                stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        # A server that never becomes ready must not hang a test run.
        told, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline() if told else ""
        if not line.startswith("ready "):
            self._end(signal.SIGKILL if told else signal.SIGABRT)  # one that waits logs where its threads are
            raise RuntimeError(f"tailrace serve did not get ready: {self.log[-LOG_SHOWN:]}")
        fields: dict[str, str] = dict(part.split("=", 1) for part in line.split()[1:])
        self.broker, self.namesrv = fields["broker"], fields["namesrv"]
        self.recovered_ms = int(fields["recovered_ms"])
        self.grpc_endpoint = fields.get("grpc", "")

    def client(self) -> BrokerClient:
        """Return a client of the running broker; it is closed when the broker stops."""
        self._clients.append(BrokerClient(self.namesrv))
        return self._clients[-1]

    @property
    def log(self) -> str:
        """Return everything that the broker has logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_of_test(self) -> str:
        """Return the end of what the broker has logged since the test began."""
        return self.log[self._shown_from :][-LOG_SHOWN:]

    def test_begins(self) -> None:
        """Note the present end of the log as the start of the test."""
        self._shown_from = len(self.log)

    def stop(self) -> int:
        """Stop the server with SIGTERM. Return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the server with SIGKILL. Return its exit code."""
        return self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server if it runs, and start it again on the same directory."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> int:
        while self._clients:
            self._clients.pop().close()
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


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture(scope="session")
def tailrace_settings() -> Mapping[str, object]:
    """Settings of the brokers, by RocketMQ's names, over small files; define a fixture of this name to change them."""
    return {}


@pytest.fixture(scope="session")
def tailrace_options() -> Sequence[str]:
    """Options of `tailrace serve` for the brokers, such as ("--grpc", "127.0.0.1:0"); define a fixture of this name."""
    return ()


@pytest.fixture
def tailrace_broker(
    tmp_path: Path, tailrace_settings: Mapping[str, object], tailrace_options: Sequence[str]
) -> Iterator[TailraceBroker]:
    """A broker and name server on an empty directory, stopped after the test."""
    yield from _served(tmp_path / "store", tailrace_settings, tailrace_options)


@pytest.fixture(scope="session")
def tailrace_session_broker(
    tmp_path_factory: pytest.TempPathFactory, tailrace_settings: Mapping[str, object],
    tailrace_options: Sequence[str],
) -> Iterator[TailraceBroker]:
    """One broker for all tests; give each test topics and groups of its own."""
    yield from _served(tmp_path_factory.mktemp("tailrace") / "store", tailrace_settings, tailrace_options)


def _served(path: Path, settings: Mapping[str, object], options: Sequence[str]) -> Iterator[TailraceBroker]:
    broker = TailraceBroker(path, *options, settings={**SMALL_FILES, **settings})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(path, ignore_errors=True)  # pytest keeps the directories of some sessions; the log stays


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what brokers logged during a failed test."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    for name, broker in arguments.items():
        if not isinstance(broker, TailraceBroker):
            continue
        if report.when == "setup":
            broker.test_begins()
        elif report.when == "call" and report.failed:
            report.sections.append((f"log of {name}", broker.log_of_test()))
    return report
