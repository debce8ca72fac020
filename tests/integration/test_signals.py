"""SIGTERM, SIGINT and SIGHUP stop cleanly, whatever happens to the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tailrace.client import AsyncPullConsumer, Producer
from tailrace.formats.filenames import SERVE
from tailrace.model import Message

pytestmark = pytest.mark.integration

TAILRACE = (sys.executable, "-m", "tailrace.cli")
PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


class Server:
    """A server that is started; ``lines`` is what it logs, all of it once ``end`` has returned."""

    def __init__(self, store, *options, **popen):
        self.process = subprocess.Popen(
            [*TAILRACE, "serve", str(store), *PORTS, *options], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **popen)
        self.lines = []
        self.started = threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        assert self.started.wait(60)
        line = next((line for line in self.lines if "broker started" in line), None)
        assert line is not None, self.lines
        self.broker = line.split("broker=")[1].split()[0]

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "broker started" in line:
                self.started.set()
        self.started.set()

    def end(self):
        """Its exit code, after it was asked to end."""
        return self.process.wait(30)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def serving():
    servers = []

    def start(store, *options, **popen):
        servers.append(Server(store, *options, **popen))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def put_one(broker):
    with Producer(broker=broker) as producer:
        assert producer.send(Message(topic="t", body=b"1")).status == "SEND_OK"


def recovered(store):
    done = subprocess.run(
        [*TAILRACE, "recover", str(store)], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])["mode"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_server_stops_cleanly(tmp_path, serving, number):
    server = serving(tmp_path / "s")
    process, broker = server.process, server.broker
    assert process.stdout.readline().startswith(f"ready broker={broker} ")
    put_one(broker)
    process.send_signal(number)
    assert process.wait(30) == 0
    assert not (tmp_path / "s" / "abort").exists()
    assert recovered(tmp_path / "s") == "normal"


def test_a_server_that_cannot_close_its_store_cleanly_says_so_and_fails(tmp_path):
    """A disk that fails at the stop."""
    code = (
        "from tailrace.store import default_message_store as m\n"
        "flush = m.DefaultMessageStore.flush\n"
        "def fails(self, *, clean=False):\n"
        "    if clean: raise OSError(5, 'Input/output error')\n"
        "    flush(self)\n"
        "m.DefaultMessageStore.flush = fails\n"
        "from tailrace.cli import main; main()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(tmp_path / "s"), "--listen", "127.0.0.1:0", "--namesrv-listen",
         "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("ready ")
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "could not be closed cleanly, the log says why; the next start recovers it" in err
    assert (tmp_path / "s" / "abort").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_more_signals_while_a_server_closes_change_nothing(tmp_path, serving, number):
    server = serving(tmp_path / "s")
    process, broker = server.process, server.broker
    put_one(broker)
    for _ in range(200):
        try:
            process.send_signal(number)
        except ProcessLookupError:
            break
        if process.poll() is not None:
            break
    assert server.end() == 0
    server.reader.join()
    assert not (tmp_path / "s" / "abort").exists()
    assert sum("stop signal=" in line for line in server.lines) == 1


def test_a_server_whose_streams_are_closed_pipes_serves_and_stops_cleanly(tmp_path):
    """As `tailrace serve ... | head -0`, and as a terminal that is closed."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    os.close(out_read)
    process = subprocess.Popen(
        [*TAILRACE, "serve", str(tmp_path / "s"), *PORTS], stdout=out_write, stderr=err_write, text=True)
    os.close(out_write)
    os.close(err_write)
    with os.fdopen(err_read) as lines:
        started = next(line for line in lines if "broker started" in line)
        broker = started.split("broker=")[1].split()[0]
        assert any("cannot print stream=<stdout> cause=[Errno 32]" in line for line in lines)
    put_one(broker)  # now stderr is also a closed pipe
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0
    assert not (tmp_path / "s" / "abort").exists()
    assert recovered(tmp_path / "s") == "normal"


def test_a_server_that_ignores_sighup_from_its_start_goes_on(tmp_path, serving):
    """As under nohup."""
    server = serving(
        tmp_path / "s", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    server.process.send_signal(signal.SIGHUP)
    put_one(server.broker)
    server.process.terminate()
    assert server.end() == 0


def test_closed_standard_streams_are_not_given_to_files_of_the_store(tmp_path):
    """Otherwise a log line would be written into a file of the store."""
    store = tmp_path / "s"

    def close():
        for number in (0, 1, 2):
            os.close(number)

    process = subprocess.Popen(
        [*TAILRACE, "serve", str(store), *PORTS], preexec_fn=close, close_fds=False)
    try:
        hint = store / SERVE
        done = threading.Event()
        for _ in range(600):
            if hint.exists() or process.poll() is not None:
                break
            done.wait(0.05)
        assert hint.exists()
        targets = [os.readlink(f"/proc/{process.pid}/fd/{n}") for n in range(3)]
        assert targets == ["/dev/null"] * 3
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_tail_ends_when_it_is_asked_to(tailrace_session_broker, number):
    put_one(tailrace_session_broker.broker)
    process = subprocess.Popen(
        [*TAILRACE, "tail", "--broker", tailrace_session_broker.broker, "--topic", "t", "--from", "first"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["body"] == "1"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err == ""


@pytest.mark.parametrize("follow", [True, False])
def test_an_event_loop_that_ends_closes_messages_once(tailrace_session_broker, follow):
    put_one(tailrace_session_broker.broker)
    errors = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with AsyncPullConsumer(broker=tailrace_session_broker.broker) as consumer:
            messages = consumer.messages("t", start="first", follow=follow)
            assert (await anext(messages)).body == b"1"
            await asyncio.get_running_loop().shutdown_asyncgens()
        return messages

    asyncio.run(main())
    assert errors == []


# Opens a store as `recover` does, and waits in the middle of it for a signal.
HELD = """
import sys, time
from tailrace.cli import main
from tailrace.node.message_store import MessageStore
real = MessageStore.recovery_report.fget
def slow(self):
    print("open", flush=True)
    while True:
        time.sleep(0.01)
MessageStore.recovery_report = property(slow)
main()
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_has_a_store_open_closes_it_cleanly(tmp_path, number):
    subprocess.run([*TAILRACE, "send", str(tmp_path / "s"), "--create", "--topic", "t", "x"], check=True,
                   capture_output=True, timeout=60)
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, "recover", str(tmp_path / "s")], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    assert (tmp_path / "s" / "abort").exists()
    process.send_signal(number)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert not (tmp_path / "s" / "abort").exists()


def test_the_ready_line_gives_the_listening_address_and_says_the_advertised_one(tmp_path, serving):
    config = tmp_path / "broker.conf"
    config.write_text("brokerIP1=192.0.2.7\n")
    server = serving(tmp_path / "s", "--config", str(config))
    process, broker = server.process, server.broker
    ready = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
    port = ready["broker"].rpartition(":")[2]
    assert ready["broker"] == broker == f"127.0.0.1:{port}"
    assert ready["advertised"] == f"192.0.2.7:{port}"
    put_one(ready["broker"])
    # Commands on the directory also find the server, which they did not at the advertised address.
    done = subprocess.run([*TAILRACE, "send", str(tmp_path / "s"), "--topic", "t", "x"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize(("options", "warned"), [
    (("--allow-remote", "--http", "0.0.0.0:0"), ["0.0.0.0:0"]), (("--allow-remote",), []), ((), [])])
def test_each_start_warns_about_addresses_that_others_reach(tmp_path, serving, options, warned):
    server = serving(tmp_path / "s", *options)
    server.process.terminate()
    assert server.end() == 0
    server.reader.join()
    told = [line for line in server.lines if "anybody who reaches this address" in line]
    assert [line.strip().partition("address=")[2] for line in told] == warned
    assert all(" WARNING " in line for line in told)
