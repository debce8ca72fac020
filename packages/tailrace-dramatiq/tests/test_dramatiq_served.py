"""The Dramatiq broker, against `tailrace serve`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout
from patience import PATIENCE_S, until

from tailrace import PullConsumer
from tailrace_dramatiq import DramatiqBroker, delays

pytestmark = [pytest.mark.slow, pytest.mark.integration]
JOIN_MS = PATIENCE_S * 1000


@pytest.fixture
def broker(tailrace_session_broker):
    """A Dramatiq broker whose topics no other test has."""
    made = DramatiqBroker(
        namesrv=tailrace_session_broker.namesrv, topic_prefix=f"d{uuid.uuid4().hex[:8]}_", invisible_s=5,
        timeout_ms=10_000)
    yield made
    made.close()


@pytest.fixture
def work(broker):
    """Start a worker of the broker."""
    workers = []

    def start(**options):
        worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=4, **options)
        workers.append(worker)
        broker.emit_after("process_boot")  # as the command dramatiq does; starts the clock of time limits
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.stop(timeout=10_000)


def bodies(broker, topic):
    with PullConsumer(namesrv=broker._connection._target.namesrv) as reader:
        return [message.body for message in reader.messages(topic, start="first", follow=False)]


def test_tasks_run_at_once_delayed_retried_limited_and_end_as_dead_letters(broker, work, monkeypatch):
    ran, times, ended = [], {}, []
    monkeypatch.setattr(delays, "STEP_MS", 700)  # a longer delay goes through several timers

    @dramatiq.actor(broker=broker)
    def add(number):
        ran.append(number)
        times[number] = time.time()

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=100, max_backoff=200)
    def flaky(key, failures):
        ran.append(key)
        if ran.count(key) <= failures:
            raise ValueError(key)

    @dramatiq.actor(broker=broker, time_limit=300, max_retries=0)
    def endless():
        try:
            for _ in range(10_000):
                time.sleep(0.01)
        except dramatiq.middleware.TimeLimitExceeded:
            ended.append(True)
            raise

    work()
    endless.send()
    for number in range(50):
        add.send(number)
    began = time.time()
    add.send_with_options(args=(50,), delay=2000)
    flaky.send("passes", 2)
    flaky.send("fails", 99)
    broker.join("default", timeout=JOIN_MS)
    assert sorted(one for one in ran if isinstance(one, int)) == list(range(51))
    assert times[50] - began >= 1.9
    assert ran.count("passes") == ran.count("fails") == 3
    assert ended == [True]
    until(lambda: len(bodies(broker, f"%DLQ%{broker.topic_of('default')}")) == 2)
    dead = [dramatiq.Message.decode(body) for body in bodies(broker, f"%DLQ%{broker.topic_of('default')}")]
    assert sorted(one.args for one in dead) == [(), ("fails", 99)]


WORKER = """
import os, sys, time
import dramatiq
from tailrace_dramatiq import DramatiqBroker
broker = DramatiqBroker(namesrv=sys.argv[1], topic_prefix=sys.argv[2], invisible_s=5)
@dramatiq.actor(broker=broker)
def slow(number):
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    time.sleep(1000)
dramatiq.Worker(broker, worker_threads=2).start()
time.sleep(1000)
"""


def test_what_a_killed_worker_and_a_stopped_one_had_runs_in_another_one(broker, work):
    began, go = [], threading.Event()

    @dramatiq.actor(broker=broker)
    def slow(number):
        began.append(number)
        go.wait(PATIENCE_S)

    for number in range(12):
        slow.send(number)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, broker._connection._target.namesrv, broker._prefix],
        stdout=subprocess.PIPE, text=True) as other:
        try:
            lines = [other.stdout.readline() for _ in range(2)]
        finally:
            other.send_signal(signal.SIGKILL)
    killed = {int(line) for line in lines}
    first = work()
    until(lambda: len(began) == 4)  # one a thread; others may wait in this process
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    until(lambda: not any(one.running for one in first.workers))
    go.set()
    stopping.join()
    assert len(began) == 4
    ended = list(began)
    work()
    until(lambda: set(began) == set(range(12)))
    assert killed <= set(began)
    assert [began.count(number) for number in ended] == [1] * 4  # they were acknowledged


def test_a_retry_that_cannot_be_stored_does_not_lose_its_task(broker, work, monkeypatch):
    ran, failures = [], []

    @dramatiq.actor(broker=broker, min_backoff=100, max_backoff=200)
    def flaky():
        ran.append(True)
        if len(ran) == 1:
            monkeypatch.setattr(broker._connection.clients.producer, "send", refuse)
            raise ValueError

    async def refuse(message, **_):
        failures.append(message)
        monkeypatch.undo()
        raise ConnectionClosed("no broker")

    work()
    flaky.send()
    until(lambda: len(ran) == 2)
    assert len(failures) == 1


def test_flush_drops_what_waits_and_join_says_what_does_not_end(broker, work):
    ran = []

    @dramatiq.actor(broker=broker)
    def dropped(number):
        ran.append(number)

    for number in range(5):
        dropped.send(number)
    dropped.send_with_options(args=(5,), delay=3_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=100)
    broker.flush_all()
    broker.join("default", timeout=JOIN_MS)
    work()
    dropped.send(6)
    broker.join("default", timeout=JOIN_MS)
    assert ran == [6]


def test_what_is_no_task_becomes_a_dead_letter(broker, work, tailrace_session_broker):
    ran = []

    @dramatiq.actor(broker=broker)
    def fine():
        ran.append(True)

    work()
    topic = broker.topic_of("default")
    client = tailrace_session_broker.client()
    client.send(topic, b"no task")
    fine.send()
    until(lambda: client.messages(f"%DLQ%{topic}"))
    assert [one.body for one in client.messages(f"%DLQ%{topic}")] == [b"no task"]
    until(lambda: ran)
    client.close()


def test_the_example_runs_with_the_command_of_dramatiq(tailrace_session_broker):
    folder = Path(__file__).parents[3] / "examples" / "dramatiq_tasks"
    environment = dict(os.environ, NAMESRV_ADDR=tailrace_session_broker.namesrv, PYTHONUNBUFFERED="1")
    command = [sys.executable, "-m", "dramatiq", "--path", str(folder), "--processes", "1", "--threads", "2", "tasks"]
    # The command writes what its workers print to stderr.
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as worker:
        try:
            sent = subprocess.run([sys.executable, folder / "tasks.py"], env=environment, capture_output=True,
                                  text=True, check=True, timeout=PATIENCE_S)
            assert sent.stdout == "sent\n"
            wanted = {"resized apple.png to 640\n", "reminded Ann\n"}
            while wanted and (line := worker.stderr.readline()):
                wanted.discard(line)
            assert not wanted
        finally:
            worker.terminate()
            worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
