"""Processor time by thread."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.env.thread_times import processor_seconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of another system counts elsewhere")


def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_threads_of_a_pool_are_one_and_have_what_they_used():
    with ThreadPoolExecutor(2, "thread-times-pool") as pool:
        both = threading.Barrier(2)

        def work():
            both.wait()
            busy(0.05)

        for done in [pool.submit(work) for _ in range(2)]:
            done.result()
        found = processor_seconds()
    assert 0.08 <= found["thread-times-pool"] <= 0.5
    assert found["MainThread"] > 0
    assert not any(name.startswith("thread-times-pool_") for name in found)
