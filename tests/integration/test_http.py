"""`tailrace serve --http`: /ready from the first moment of the process, /metrics of real traffic."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from tailrace.client import Producer, PullConsumer
from tailrace.errors import RemotingCommandError
from tailrace.model import Message

pytestmark = pytest.mark.integration

SERVE = (sys.executable, "-m", "tailrace.cli", "serve")
PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")

# Serves with an open that waits for a line on stdin, and tells how far it is.
SLOW = """
import dataclasses
import sys
from tailrace.cli import main
from tailrace.node.message_store import MessageStore
real = MessageStore.open
def slow(*args, **options):
    options["parts"].on_recovery(0.25)
    for line in iter(sys.stdin.readline, "go\\n"):
        options["parts"].on_recovery(float(line))
        print("at", float(line), flush=True)
    return real(*args, **options)
MessageStore.open = slow
main()
"""


def get(address, path):
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def http_address(process):
    for line in process.stderr:
        if line.startswith("http="):
            address = line.strip().removeprefix("http=")
            # What else is logged must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return address
    raise AssertionError("serve never said where it answers http")


def lines_until_http(process):
    """What it logs after it has said where it answers."""
    next(line for line in process.stderr if line.startswith("http="))
    return process.stderr


@pytest.fixture
def started():
    running = []

    def start(*command):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_ready_answers_before_and_while_the_store_is_opened(tmp_path, started):
    process = started(sys.executable, "-c", SLOW, "serve", str(tmp_path / "store"), *PORTS)
    address = http_address(process)
    assert get(address, "/ready") == (503, "recovering 25 %\n")
    process.stdin.write("0.9\n")
    process.stdin.flush()
    assert process.stdout.readline() == "at 0.9\n"
    assert get(address, "/ready") == (503, "recovering 90 %\n")
    assert "tailrace_ready{" in get(address, "/metrics")[1]
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("ready broker=")
    assert get(address, "/ready") == (200, "ready\n")
    process.terminate()
    assert process.wait(20) == 0


def test_requests_while_the_store_is_opened_are_told_so(tmp_path, started):
    slow = SLOW.replace("0.25)\n", """0.25)
    parts = options["parts"]
    parts.on_lock()
    options["parts"] = dataclasses.replace(parts, on_lock=None)
    print("locked", flush=True)
""")
    process = started(sys.executable, "-c", slow, "serve", str(tmp_path / "store"), *PORTS[:4])
    assert process.stdout.readline() == "locked\n"
    told = next(line for line in process.stderr if "ports taken" in line)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    broker = told.split("broker=")[1].split()[0]
    with Producer(broker=broker, retries=0) as producer:
        with pytest.raises(RemotingCommandError, match="opening its store, 25 % done") as caught:
            producer.send(Message(topic="orders", body=b"early"))
        assert caught.value.code == 14
        process.stdin.write("go\n")
        process.stdin.flush()
        assert f"broker={broker} " in process.stdout.readline()
        assert producer.send(Message(topic="orders", body=b"now")).status == "SEND_OK"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_the_store_is_opened_ends_the_open_at_its_next_report(tmp_path, started, number):
    process = started(sys.executable, "-c", SLOW, "serve", str(tmp_path / "store"), *PORTS)
    http_address(process)
    process.send_signal(number)
    while process.poll() is None:  # the report that comes next after the signal was handled ends it
        try:
            process.stdin.write("0.9\n")
            process.stdin.flush()
        except BrokenPipeError:
            break
    assert process.wait(20) == 0
    assert not (tmp_path / "store" / "abort").exists()


def test_a_second_signal_while_the_store_is_opened_ends_the_process_at_once(tmp_path, started):
    process = started(sys.executable, "-c", SLOW, "serve", str(tmp_path / "store"), *PORTS)
    lines = lines_until_http(process)
    process.terminate()
    assert any("stop signal=SIGTERM" in line for line in lines)
    process.terminate()
    assert process.wait(20) == -15


def test_metrics_count_what_clients_do(tmp_path, started):
    process = started(*SERVE, str(tmp_path / "store"), *PORTS)
    address = http_address(process)
    ready = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
    with Producer(broker=ready["broker"], group="g") as producer:
        for n in range(7):
            producer.send(Message(topic="orders", body=b"%d" % n))
    with PullConsumer(broker=ready["broker"], group="c") as consumer:
        came = consumer.messages("orders", start="first")
        assert {next(came).body for _ in range(7)} == {b"%d" % n for n in range(7)}
        queue = consumer.queues("orders")[0]
        consumer.commit(queue, 1)
    text = get(address, "/metrics")[1]
    taken = {line.rpartition(" ")[0].partition("{")[0]: float(line.rpartition(" ")[2])
             for line in text.splitlines() if 'topic="orders"' in line}
    assert taken["rocketmq_messages_in_total"] == 7
    assert taken["rocketmq_messages_out_total"] == 7
    assert taken["rocketmq_throughput_in_total"] == taken["rocketmq_throughput_out_total"] > 7 * 91
    assert taken["rocketmq_consumer_lag_messages"] >= 0
    assert 'rocketmq_consumer_lag_latency_milliseconds{' in text
    process.terminate()
    assert process.wait(20) == 0


def test_a_taken_http_port_is_one_line_and_exit_1(tmp_path, started):
    process = started(*SERVE, str(tmp_path / "store"), *PORTS)
    address = http_address(process)
    second = subprocess.run(
        [*SERVE, str(tmp_path / "other"), "--listen", "127.0.0.1:0", "--namesrv-listen",
         "127.0.0.1:0", "--http", address], capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(
        f"tailrace: cannot listen on --http {address}: Address already in use, by process {process.pid} (")
    assert not (tmp_path / "other").exists()
