"""Work shared among threads: results in the order of the tasks, errors in their place, no thread left."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tailrace.env.read_ahead import as_finished, in_background, in_order, read_ahead

EARLIER = []
"""Threads of other tests of this process, where a store that is still open may have a pool of the same name."""


@pytest.fixture(autouse=True)
def threads_of_other_tests():
    EARLIER[:] = threading.enumerate()


def left():
    return [thread for thread in threading.enumerate() if thread not in EARLIER
            and thread.name.startswith(("as-finished", "in-order", "read-ahead", "background"))]


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_results_come_in_order_and_no_more_is_begun_than_asked(helpers, ahead):
    rnd = random.Random(helpers * 10 + ahead)
    waits = [rnd.choice([0, 0, 0.001, 0.003]) for _ in range(60)]
    lock, begun, taken, threads = threading.Lock(), 0, 0, set()

    def work(task):
        nonlocal begun
        with lock:
            begun += 1
            assert begun - taken <= ahead
        threads.add(threading.current_thread().name)
        time.sleep(waits[task])
        return task * task

    found = []
    for result in in_order(work, iter(range(60)), helpers, ahead):
        with lock:
            taken += 1
        found.append(result)
    assert found == [n * n for n in range(60)]
    assert not left()
    assert threads <= {f"in-order_{number}" for number in range(helpers + 1)}


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_an_error_is_raised_in_its_place(helpers):
    def work(task):
        if task == 5:
            raise OSError("the sixth")
        return task

    found = []
    with pytest.raises(OSError, match="the sixth"):
        found.extend(in_order(work, iter(range(9)), helpers, 3))
    assert found == [0, 1, 2, 3, 4]
    assert not left()


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_an_error_of_the_tasks_is_raised_after_the_earlier_results(helpers):
    def tasks():
        yield from range(4)
        raise ValueError("no more")

    found = []
    with pytest.raises(ValueError, match="no more"):
        found.extend(in_order(str, tasks(), helpers, 3))
    assert found == ["0", "1", "2", "3"]
    assert not left()


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_it_may_be_left_before_the_end(helpers):
    begun = []
    results = in_order(lambda task: begun.append(task) or task, iter(range(1000)), helpers, 4)
    assert [next(results), next(results)] == [0, 1]
    results.close()
    assert not left()
    assert len(begun) <= 6
    assert list(in_order(str, iter([]), helpers, 4)) == []


def test_results_are_consumed_while_another_thread_waits_for_a_task():
    """Finding a task may read megabytes, so a thread with other work does not wait for it."""
    got = threading.Event()

    def tasks():
        yield 0
        yield 1
        assert got.wait(30)
        yield 2

    found = []
    for result in in_order(str, tasks(), 2, 3):
        got.set()
        found.append(result)
    assert found == ["0", "1", "2"]
    assert not left()


def test_items_are_made_before_they_are_consumed_but_no_more_than_asked():
    made, next_is_made = [], threading.Event()

    def items():
        for number in range(5):
            made.append(number)
            if number == 1:
                next_is_made.set()
            yield number

    found = []
    for item in read_ahead(items()):
        assert next_is_made.wait(30)
        assert len(made) <= len(found) + 2
        found.append(item)
    assert found == [0, 1, 2, 3, 4]
    assert not left()


def test_an_error_of_the_items_and_of_work_in_the_background_is_raised_by_the_one_who_waits():
    def items():
        yield 1
        raise OSError("the second")

    found = []
    with pytest.raises(OSError, match="the second"):
        found.extend(read_ahead(items()))
    assert found == [1]
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)()
    assert not left()


def test_results_come_as_they_are_ready_and_few_tasks_are_taken_before():
    gates = [threading.Event() for _ in range(6)]
    taken = []

    def work(number):
        assert gates[number].wait(10)
        return number

    def tasks():
        for number in range(6):
            taken.append(number)
            yield number

    found = as_finished(work, tasks(), 3)
    gates[1].set()
    assert next(found) == 1
    assert taken == [0, 1, 2]
    for number in (3, 4, 5, 2, 0):
        gates[number].set()
        assert next(found) == number
    assert list(found) == []
    assert left() == []


def test_an_error_of_a_task_cancels_the_others():
    free, begun, seen = threading.Event(), threading.Event(), []

    def work(number):
        if number == 1:
            assert begun.wait(10)
            raise ValueError(number)
        begun.set()
        assert free.wait(10)
        return number

    def cancel():
        seen.append("cancelled")
        free.set()

    with pytest.raises(ValueError, match="1"):
        list(as_finished(work, iter(range(100)), 2, cancel))
    assert seen == ["cancelled"]
    assert left() == []
