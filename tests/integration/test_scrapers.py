"""Many scrapers of ``/metrics`` at a broker with many topics do not delay other clients."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message

pytestmark = pytest.mark.integration

SERVE = (sys.executable, "-m", "tailrace.cli", "serve")
PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def http_address(process):
    """Return the address of the HTTP port; what else is logged must not fill the pipe."""
    line = next(line for line in process.stderr if line.startswith("http="))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return line.strip().removeprefix("http=")


def ask(address, path, timeout=30):
    """Return the status and the seconds of a request; 599 if there is no answer."""
    started = time.monotonic()
    try:
        connection = http.client.HTTPConnection(address, timeout=timeout)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - started
    except (OSError, http.client.HTTPException):
        return 599, time.monotonic() - started
    finally:
        connection.close()


def scrape(address, until):
    while time.monotonic() < until:
        ask(address, "/metrics")


def scrapers_of(address, until, number):
    """Run scrapers in this process, each in a thread."""
    threads = [threading.Thread(target=scrape, args=(address, until)) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Seen(NamedTuple):
    """Milliseconds."""

    ready_p50: float
    ready_max: float
    creation_p50: float
    creation_max: float
    send_p50: float
    send_max: float
    ready_failed: int


def look(producer, address, name, seconds):
    ready, made, sends, failed = [], [], [], 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        status, took = ask(address, "/ready")
        failed += status != 200
        ready.append(took)
        started = time.monotonic()
        producer.create_topic(f"{name}{len(made)}", 1)
        made.append(time.monotonic() - started)
        for _ in range(50):
            started = time.monotonic()
            producer.send(Message(topic="topic0", body=b"x" * 100))
            sends.append(time.monotonic() - started)
            time.sleep(0.002)
    return Seen(*(round(1000 * found(times), 2) for times in (ready, made, sends)
                  for found in (statistics.median, max)), failed)


def fill(namesrv, topics, groups):
    with Producer(namesrv=namesrv) as producer:
        for n in range(topics):
            producer.create_topic(f"topic{n}", 4)
            producer.send(Message(topic=f"topic{n}", body=b"x"))
    for n in range(groups):
        with PullConsumer(group=f"group{n}", namesrv=namesrv) as consumer:
            for queue in consumer.queues(f"topic{n % topics}"):
                consumer.commit(queue, 0)


def measure(path, topics, groups, scrapers, seconds):
    """Return what a client sees before and while scrapers read."""
    process = subprocess.Popen([*SERVE, str(path), *PORTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with contextlib.ExitStack() as stack:
        stack.callback(process.communicate)
        stack.callback(process.terminate)
        address = http_address(process)
        ready = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
        fill(ready["namesrv"], topics, groups)
        producer = stack.enter_context(Producer(namesrv=ready["namesrv"]))
        before = look(producer, address, "before", seconds / 3)
        until = time.monotonic() + seconds
        others = [multiprocessing.get_context("spawn").Process(target=scrapers_of, args=(address, until, n))
                  for n in (scrapers // 2, scrapers - scrapers // 2)]
        for other in others:
            other.start()
        time.sleep(1.5)
        seen = look(producer, address, "during", seconds - 2)
        for other in others:
            other.join()
        status, took = ask(address, "/metrics")
        assert status == 200
    return before, seen, took


def test_scrapers_delay_neither_probes_nor_new_topics_nor_sends(tmp_path):
    before, seen, _ = measure(tmp_path / "store", 200, 40, 40, 6)
    assert not seen.ready_failed
    assert seen.ready_p50 < 100, (before, seen)
    assert seen.creation_p50 < 500, (before, seen)
    assert seen.send_p50 < 20, (before, seen)


@pytest.mark.long
def test_forty_scrapers_of_1500_topics(tmp_path):
    before, seen, took = measure(tmp_path / "store", 1500, 240, 40, 25)
    print(before, seen, took)
    assert not seen.ready_failed
    assert seen.ready_p50 < 100, (before, seen)
    assert seen.creation_max < 1000, (before, seen)
    assert seen.send_p50 < 5 + 2 * before.send_p50, (before, seen)


if __name__ == "__main__":
    from pathlib import Path

    for line in measure(Path(sys.argv[1]), *map(int, sys.argv[2:6])):
        print(line)
