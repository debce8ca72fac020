"""Loops of asyncio that continue after an unexpected error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tailrace.env import supervision
from tailrace.env.supervision import FAILURES, caught, failed, supervised
from tailrace.logs import LogRateLimiter

pytestmark = pytest.mark.caught


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    FAILURES.pop("loop", None)
    monkeypatch.setattr(supervision, "_lines", LogRateLimiter())


@pytest.fixture
def no_pause(monkeypatch):
    """Pauses take one turn of the event loop; the list has their lengths."""
    slept, sleep = [], asyncio.sleep

    async def short(seconds, *more):
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", short)
    return slept


def ran(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


@pytest.mark.parametrize(("period", "pauses"), [(5.0, [5.0] * 4), (0.0, [1.0, 1.0])])
def test_a_loop_continues_after_a_step_that_raises(no_pause, caplog, period, pauses):
    calls = []

    async def step():
        calls.append(1)
        if len(calls) in {1, 3}:
            raise ValueError(f"odd {len(calls)}")

    with caplog.at_level(logging.ERROR):
        ran(supervised("loop", step, period, until=lambda: len(calls) == 4))
    assert (len(calls), FAILURES["loop"], no_pause) == (4, 2, pauses)
    line, = caplog.records  # the second one within a minute is only counted
    assert "name=loop failures=1" in line.getMessage()
    assert "odd 1" in line.exc_text


def test_a_cancelled_loop_ends():
    async def run():
        async def step():
            await asyncio.sleep(3600)

        task = asyncio.create_task(supervised("loop", step))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ran(run())
    assert FAILURES["loop"] == 0


def test_a_block_of_one_item_costs_that_item():
    done = []
    for item in range(3):
        with caught("loop"):
            done.append(1 // (item - 1))
    assert (done, FAILURES["loop"]) == ([-1, 1], 1)
    with pytest.raises(KeyboardInterrupt), caught("loop"):
        raise KeyboardInterrupt


def test_an_error_is_logged_once_a_minute(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(supervision.time, "monotonic", lambda: now[0])
    for at in (0.0, 1.0, 59.0, 60.0):
        now[0] = 100.0 + at
        try:
            raise OSError("x")
        except OSError:
            failed("loop")
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records] == ["1", "4"]


@pytest.mark.parametrize(("number", "line"), [
    (24, "service waits for descriptors or memory"), (28, "service waits for room on the disk"),
    (5, "service step failed")])
def test_a_shortage_is_no_defect(caplog, number, line):
    with caplog.at_level(logging.WARNING), caught("loop"):
        raise OSError(number, "x")
    record, = caplog.records
    assert record.getMessage().startswith(line)
    assert bool(record.exc_text) == (number == 5)
