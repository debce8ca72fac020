"""Calls in another thread: in their order, bounded, and none behind one that failed."""

from __future__ import annotations

import threading

import pytest

from tailrace.env.work_behind import WorkBehind


@pytest.fixture
def behind():
    made = WorkBehind(2)
    yield made
    made.close()


def test_calls_are_made_in_their_order(behind):
    seen = []
    numbers = [behind.ask(lambda n=n: seen.append(n)) for n in range(50)]
    behind.wait()
    assert seen == numbers == list(range(50))
    assert behind.done == 50


def test_who_asks_waits_while_too_many_wait(behind):
    go = threading.Event()
    begun = threading.Event()
    behind.ask(lambda: (begun.set(), go.wait(10)))
    assert begun.wait(10)
    behind.ask(lambda: None)
    behind.ask(lambda: None)
    asked = threading.Event()
    other = threading.Thread(target=lambda: (behind.ask(lambda: None), asked.set()))
    other.start()
    assert not asked.wait(0.1)
    go.set()
    assert asked.wait(10)
    other.join()
    behind.wait()
    assert behind.done == 4


def test_nothing_is_made_behind_a_failure(behind):
    seen = []
    go = threading.Event()

    def fail():
        go.wait(10)
        raise OSError("broken")

    behind.ask(fail)
    behind.ask(lambda: seen.append(1))
    go.set()
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            behind.wait()
    with pytest.raises(OSError, match="broken"):
        behind.ask(lambda: seen.append(2))
    assert not seen
