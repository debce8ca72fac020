"""A broker or a name server of the reference as a process, for tests that hand a directory over or register."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from tailrace.errors import RemotingError
from tailrace.formats.commitlog import BLANK_MAGIC
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

START_S = 90
"""A busy machine has taken half a minute to start a Java broker."""
COUNT = 40
"""Messages that a program of the reference sends."""
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "mappedFileSizeTimerLog": 65536,
}
"""Small files, the same for either broker."""
SHORT_LIFE = {"transactionMetricFlushInterval": 100, "reviveInterval": 100}
"""For a Java broker that lives for seconds, in ms.

It keeps one processor busy until the first interval of its transaction metrics is over, by default 10 s. When it stops,
it waits for each of its eight POP revive services, which sleep for their interval, by default 1 s.
"""


def free_port():
    """A port P that is free together with P - 2 and P + 1, where a Java broker listens as well.

    It is below the range that the system gives to outgoing connections: a port from that range can be
    taken again before the process that gets it here listens.
    """
    while True:
        port = random.SystemRandom().randrange(10_002, 32_000)
        with contextlib.ExitStack() as held:
            try:
                for one in (port - 2, port, port + 1):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", one))
            except OSError:
                continue
        return port


def properties(path, values):
    """The file of settings ``path``, written."""
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return path


class JavaPeer:
    """``reference broker CONF`` or ``reference namesrv PORT``, from its first connection to its end."""

    def __init__(self, command, log, port, *, env=None):
        self.log, self.port, self.address = Path(log), port, f"127.0.0.1:{port}"
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=out, stderr=out, env={**os.environ, **(env or {})})
        try:
            self._wait_for_port()
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def _wait_for_port(self):
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            assert self.process.poll() is None, f"it has stopped: {self.said()}"
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.1)
        raise AssertionError(f"no connection after {START_S} s: {self.said()}")

    def said(self):
        return self.log.read_text()[-2000:]

    def end(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        self.process.wait(60)


def start_java_broker(reference, root, settings=None, *, env=None):
    """A Java broker named broker-a on the directory ``root``; its files are beside it."""
    for attempt in range(3):
        port = free_port()
        conf = properties(root.with_name("broker.conf"), {
            **SIZES, **SHORT_LIFE, "namesrvAddr": "127.0.0.1:9", "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a", "brokerId": 0, "brokerIP1": "127.0.0.1", "listenPort": port,
            "storePathRootDir": root, "storePathCommitLog": f"{root}/commitlog", **(settings or {})})
        try:
            return JavaPeer([reference, "broker", conf], root.with_name("broker.log"), port, env=env)
        except AssertionError as error:
            if attempt == 2 or "already in use" not in str(error):
                raise
    raise AssertionError


@contextlib.contextmanager
def java_broker(reference, root, settings=None, *, kill=False, env=None):
    """The same until the block ends; stopped cleanly or with kill -9."""
    peer = start_java_broker(reference, root, settings, env=env)
    try:
        yield peer.address
    finally:
        peer.end(signal.SIGKILL if kill else signal.SIGTERM)


@contextlib.contextmanager
def java_name_server(reference, where):
    """A Java name server until the block ends; its address."""
    port = free_port()
    peer = JavaPeer([reference, "namesrv", port], where / "namesrv.log", port)
    try:
        yield peer.address
    finally:
        peer.end()


def wait_for_route(namesrv, topic, *, wanted=True):
    """The route of ``topic`` at a name server as soon as it has one; None, without ``wanted``, when it has none.

    A Java broker whose first registration failed tries again after 10 s and then each 30 s.
    """
    return asyncio.run(_route(namesrv, topic, wanted))


async def _route(namesrv, topic, wanted):
    client = RemotingClient()
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    answer = await client.invoke(namesrv, 105, {"topic": topic})
                except RemotingError:
                    pass  # it is not up yet
                else:
                    if (answer.code == 0) == wanted:
                        return json.loads(answer.body) if wanted else None
                await asyncio.sleep(0.1)
    finally:
        await client.close()


def said_by(reference, program, broker, topic):
    """What a program of the reference printed: values by name."""
    done = subprocess.run(
        [reference, program, broker.namesrv, topic, str(COUNT)],
        capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    print(done.stderr)  # what happened when, which pytest shows when an assertion fails
    said = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    return said


@contextlib.contextmanager
def tailrace(root, *, kill):
    """Tailrace with the small files on the directory until the block ends; its address."""
    broker = TailraceBroker(root, "--config", str(properties(root.with_name("tailrace.conf"), SIZES)))
    broker.start()
    try:
        yield broker.broker
    finally:
        (broker.kill if kill else broker.stop)()


def patiently(step, seconds=90):
    """Return what ``step()`` returns, once it no longer fails because the broker is not ready."""
    until = time.monotonic() + seconds
    while True:
        try:
            return step()
        except (RemotingError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


@contextlib.contextmanager
def java_member(reference, *arguments):
    """A Java push consumer: the lines that it prints for messages, as (queue, number)."""
    process = subprocess.Popen(
        [reference, "member", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True)
    lines, ready = [], threading.Event()

    def read():
        for line in process.stdout:
            words = line.split()
            if words == ["ready"]:
                ready.set()
            elif len(words) == 2 and words[0].isdigit():
                lines.append((int(words[0]), int(words[1])))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert ready.wait(START_S), "the Java consumer did not start"
        yield lines
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            thread.join(10)
            process.stdout.close()


def ask(address, code, ext=None, body=b""):
    """The answer of a broker or name server to a request."""
    async def asked():
        client = RemotingClient()
        try:
            return await client.invoke(address, code, ext or {}, body, timeout_ms=10_000)
        finally:
            await client.close()

    return asyncio.run(asked())


def log_of(root):
    """The bytes of a log up to its last record, those after a blank record left out."""
    found = b""
    for file in sorted((root / "commitlog").iterdir()):
        data, at = file.read_bytes(), 0
        while at + 8 <= len(data) and (size := int.from_bytes(data[at : at + 4], "big")):
            blank = int.from_bytes(data[at + 4 : at + 8], "big") == BLANK_MAGIC
            found += data[at : at + 8] if blank else data[at : at + size]
            at += size
            if blank:
                break
    return found
