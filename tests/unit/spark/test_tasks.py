"""Tasks without a barrier: what runs at a time, what a failure does to the others, an executor without the package."""

import itertools
import threading

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError
from pyspark import cloudpickle

from tailrace.errors import TailraceNotInstalledError
from tailrace.spark import workers
from tailrace.spark.source.batch_reader import TailraceBatchReader
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.spark.tasks import all_of, parallelism, results_of, run_tasks, task_frame


def test_results_come_in_order_for_those_that_want_it(one_process):
    assert all_of(one_process, lambda number: number * 2, range(40)) == [number * 2 for number in range(40)]
    assert all_of(one_process, lambda number: number, []) == []
    assert parallelism(one_process) == 4


def test_a_slow_task_does_not_hold_back_the_others_and_few_wait_at_a_time(one_process):
    """With a barrier, the results of other tasks would come after that of task 0."""
    taken = []

    class Patient(type(one_process)):
        release = threading.Event()

        def range(self, start, end=None, step=1, partitions=None):
            if end is not None and taken == [0]:
                first.set()
                assert self.release.wait(10)
            return super().range(start, end, step, partitions)

    first = threading.Event()

    def tasks():
        for number in range(20):
            taken.append(number)
            yield number
            assert number or first.wait(10)

    session, done = Patient(), []
    for number, result in run_tasks(session, lambda number: -number, tasks(), width=2):
        assert result == -number
        assert len(taken) - len(done) <= 3, "as many as run at a time, and one more"
        done.append(number)
        if len(done) == 19:
            assert 0 not in done
            session.release.set()
    assert sorted(done) == list(range(20))
    assert done[-1] == 0


def test_large_clusters_get_several_tasks_in_a_job(one_process):
    jobs = []

    class Counting(type(one_process)):
        def range(self, start, end=None, step=1, partitions=None):
            jobs.append(end)
            return super().range(start, end, step, partitions)

    assert sorted(results_of(Counting(), lambda number: number, range(100), width=640)) == list(range(100))
    assert sorted(jobs) == [20, 40, 40]


def breaking(one_process, numbers):
    """A session in which the jobs with these numbers fail in Spark."""
    class Breaking(type(one_process)):
        jobs, cancelled = itertools.count(1), 0

        def range(self, start, end=None, step=1, partitions=None):
            if (job := next(self.jobs)) in numbers:
                raise Py4JError(f"job {job} failed")
            return super().range(start, end, step, partitions)

        def interruptTag(self, tag):
            self.cancelled += 1

    return Breaking()


def test_after_a_failure_the_others_go_on_and_then_it_is_raised(one_process):
    done = []
    found = run_tasks(breaking(one_process, {2}), lambda number: number, range(12), width=1)
    with pytest.raises(Py4JError, match="failed"):
        done.extend(number for number, _ in found)
    assert len(done) == 11


def test_when_every_job_fails_no_more_are_started(one_process):
    taken = []

    def tasks():
        for number in range(1000):
            taken.append(number)
            yield number

    with pytest.raises(Py4JError, match="failed"):
        list(run_tasks(breaking(one_process, set(range(10_000))), lambda number: number, tasks(), width=1))
    assert len(taken) < 10


def test_who_stops_early_ends_the_jobs_that_run(one_process):
    session = breaking(one_process, set())
    found = run_tasks(session, lambda number: number, range(100), width=4)
    next(found)
    found.close()
    assert session.cancelled == 1


def test_rows_of_tasks_are_a_table(one_process):
    import pyarrow as pa

    def rows(number):
        yield pa.RecordBatch.from_pydict({"square": [number * number]})

    assert task_frame(one_process, rows, range(3), "square bigint").collect() == [
        {"square": 0}, {"square": 1}, {"square": 4}]


def test_another_release_is_refused_in_one_sentence(one_process, monkeypatch):
    loader = workers._loader
    monkeypatch.setattr(workers, "_loader", lambda: loader("0.0.9"))
    with pytest.raises(TailraceNotInstalledError) as refused:
        all_of(one_process, lambda number: number, range(3))
    assert "has tailrace 0.1.0, and the driver has 0.0.9: install" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_reader_is_pickled_with_what_it_needs_to_say_that_the_package_is_missing(tmp_path, monkeypatch):
    (tmp_path / "commitlog").mkdir()
    reader = TailraceBatchReader(parse_options({"path": str(tmp_path)}, column_names))
    pickled = cloudpickle.dumps(reader)
    assert b"tailrace.spark.source" in pickled  # inside the bytes that are unpickled where the package is
    again = cloudpickle.loads(pickled)
    assert type(again) is TailraceBatchReader
    assert again._options == reader._options
    loader = workers._loader
    monkeypatch.setattr(workers, "_loader", lambda: loader("0.0.9"))
    with pytest.raises(ImportError, match=r"^the Python \S+ of the executor on \S+ has tailrace 0.1.0, and"):
        cloudpickle.loads(cloudpickle.dumps(reader))
