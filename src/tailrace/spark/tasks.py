"""Runs functions as tasks of Spark, over a classic session and over Spark Connect alike, without a SparkContext.

A job is ``mapInArrow`` over the numbers of its tasks. ``spark.range(0, n, 1, n)`` has n partitions with one number
each, and no exchange follows, so nothing merges or splits them: a partition is a task.

**There is no barrier.** The driver runs many small jobs at a time, each from a thread of its own. When a job ends,
its results are yielded and the next tasks are taken. So a slow task holds back only the few tasks of its own job, and
the driver has no more tasks and results in memory than run at a time.

**A task that fails** is tried again by Spark (``spark.task.maxFailures``). If it still fails, its job ends, with the
other tasks of this job. All other jobs continue, and the error is raised after the last of them. If as many jobs in a
row fail as run at a time, no further tasks are started: then Spark itself is gone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.env.entropy import SystemEntropy
from tailrace.env.read_ahead import as_finished
from tailrace.errors import TailraceNotInstalledError
from tailrace.spark.workers import task_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["all_of", "parallelism", "results_of", "run_tasks", "task_frame"]

_T = TypeVar("_T")
_R = TypeVar("_R")
_JOBS: Final = 16
"""Number of jobs that fill the cluster together."""
_MOST_PARTITIONS: Final = 1 << 16
_RESULT: Final = "number bigint, result binary, missing string"


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the cluster runs at a time: the number of partitions that a range has by default."""
    places = spark.range(_MOST_PARTITIONS).selectExpr("spark_partition_id() AS place")
    return int(places.selectExpr("max(place) AS last").collect()[0]["last"]) + 1


def task_frame(
    spark: SparkSession, work: Callable[[_T], Iterable[Any]], tasks: Sequence[_T], schema: str
) -> DataFrame:
    """Return the rows of all tasks as a DataFrame. ``work`` yields the Arrow batches of a task."""
    count = len(tasks)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(task_function(work, tasks, rows=True), schema)


def run_tasks(
    spark: SparkSession, work: Callable[[_T], _R], tasks: Iterable[_T], *, width: int = 0
) -> Generator[tuple[int, _R], None, None]:
    """Yield the number of each task and ``work`` of it, in the order in which they end.

    ``tasks`` are taken as there is room for them. ``width`` is how many the cluster runs at a time, by default what
    Spark says. When the generator is closed early, the jobs that run are cancelled. Raises TailraceNotInstalledError if
    an executor lacks this package, and the first error of a task after all other tasks have ended.
    """
    waiting = iter(enumerate(tasks))
    first = list(islice(waiting, 1 if width else 2))
    if not first:
        return
    width = width or (parallelism(spark) if len(first) > 1 else 1)
    size = max(width // _JOBS, 1)
    lanes = -(-width // size) + 1  # one more than fill the cluster, which waits while results are taken
    tag = f"tailrace-{SystemEntropy().u64():016x}"

    def run(job: Sequence[tuple[int, _T]]) -> tuple[list[tuple[int, _R]], Exception | None]:
        spark.addTag(tag)  # of this thread
        try:
            return _run_job(spark, work, job), None
        except (PySparkException, Py4JError) as error:
            return [], error
        finally:
            spark.removeTag(tag)

    numbered = chain(first, waiting)
    jobs = iter(lambda: list(islice(numbered, size)), [])
    failed: Exception | None = None
    in_a_row = 0
    with closing(as_finished(run, jobs, lanes, lambda: spark.interruptTag(tag))) as ended:
        for results, error in ended:
            yield from results
            in_a_row = in_a_row + 1 if error is not None else 0
            failed = failed or error
            if in_a_row > lanes:
                break
    if failed is not None:
        raise failed


def all_of(spark: SparkSession, work: Callable[[_T], _R], tasks: Iterable[_T]) -> list[_R]:
    """Return ``work`` of each task, in the order of the tasks, when all of them have ended. See ``run_tasks``."""
    return [result for _, result in sorted(run_tasks(spark, work, tasks), key=itemgetter(0))]


def results_of(
    spark: SparkSession, work: Callable[[_T], _R], tasks: Iterable[_T], *, width: int = 0
) -> Generator[_R, None, None]:
    """Yield ``work`` of each task, in the order in which they end. See ``run_tasks``."""
    with closing(run_tasks(spark, work, tasks, width=width)) as found:
        for _, result in found:
            yield result


def _run_job(
    spark: SparkSession, work: Callable[[_T], _R], job: Sequence[tuple[int, _T]]
) -> list[tuple[int, _R]]:
    count = len(job)
    rows = spark.range(0, count, 1, count).mapInArrow(
        task_function(work, [task for _, task in job]), _RESULT).collect()
    if missing := next((row["missing"] for row in rows if row["missing"]), ""):
        raise TailraceNotInstalledError(missing)
    return [(job[row["number"]][0], pickle.loads(row["result"])) for row in rows]
