"""A service with a rest after each step: under load one step does the work of many wake-ups."""

from __future__ import annotations

import threading
import time

from tailrace.env.scheduler import ThreadScheduler


def test_a_service_that_is_woken_during_its_rest_runs_once_after_it():
    steps, scheduler, ran = [], ThreadScheduler(), threading.Event()

    def step():
        steps.append(time.monotonic())
        ran.set()

    handle = scheduler.every("S", 60_000, step, rest_ms=50)
    handle.wake()
    assert ran.wait(20)
    ran.clear()
    for _ in range(3):
        handle.wake()
    assert ran.wait(20)
    scheduler.stop_all()
    assert len(steps) == 2
    assert steps[1] - steps[0] >= 0.045


def test_a_service_that_asks_for_another_step_does_not_rest():
    steps, scheduler, done = [], ThreadScheduler(), threading.Event()

    def step():
        steps.append(1)
        if len(steps) == 100:
            done.set()
        return len(steps) < 100

    scheduler.every("S", 60_000, step, rest_ms=60_000).wake()
    assert done.wait(20)
    began = time.monotonic()
    scheduler.stop_all()
    assert time.monotonic() - began < 30, "a stop does not wait for the rest"


def test_a_hurried_service_does_not_rest():
    steps, scheduler, ran = [], ThreadScheduler(), threading.Event()

    def step():
        steps.append(1)
        ran.set()

    handle = scheduler.every("S", 60_000, step, rest_ms=lambda: 60_000)
    handle.wake()
    assert ran.wait(20)
    ran.clear()
    handle.wake()
    assert not ran.wait(0.2)
    handle.hurry()
    assert ran.wait(20)
    scheduler.stop_all()
    assert len(steps) == 2
