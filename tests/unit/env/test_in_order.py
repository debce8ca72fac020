"""Work shared among threads: results in the order of the tasks, errors in their place, no thread left."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tailrace.env.in_order import in_order


def left():
    return [thread for thread in threading.enumerate() if thread.name == "in-order"]


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
    if not helpers:
        assert threads == {threading.current_thread().name}


def test_the_consumer_computes_a_result_itself_when_the_next_one_is_not_ready():
    """The first task, run by the helper, ends after the second one, which the consuming thread runs."""
    second = threading.Event()
    mine = threading.current_thread()

    def work(task):
        if threading.current_thread() is mine:
            second.set()
        else:
            assert second.wait(30)
        return task

    assert list(in_order(work, iter(range(2)), 1, 2)) == [0, 1]


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
    """Finding a task may read megabytes, so no thread that has other work waits for it."""
    mine, tried = threading.current_thread(), 0
    while tried < 200:
        tried += 1
        waits, got, by = threading.Event(), threading.Event(), {}

        def tasks(waits=waits, got=got, by=by):
            yield 0
            yield 1
            if threading.current_thread() is not mine:
                waits.set()
                by["waited"] = got.wait(30)
            waits.set()
            yield 2

        def work(task, waits=waits):
            if task == 0:
                assert waits.wait(30)
            return task

        for result in in_order(work, tasks(), 2, 3):
            got.set()
            by["last"] = result
        assert by["last"] == 2
        if "waited" in by:
            assert by["waited"]
            break
    assert tried < 200, "a helper never waited for a task"
    assert not left()
