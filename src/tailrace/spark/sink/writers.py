"""Spark's two writing interfaces: batches are sent by tasks, streams by the driver from staged rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, StoreError
from tailrace.spark.plain_errors import plain_errors
from tailrace.spark.sink.commit import StagedFile, checkpoint_of, commit_batch, discard, stage
from tailrace.spark.sink.options import WriteOptions, local_checkpoint
from tailrace.spark.sink.publish import Publisher
from tailrace.spark.sink.requests import requests_of
from tailrace.spark.sink.rows import staged
from tailrace.spark.workers import Portable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TailraceBatchWriter", "TailraceStreamWriter"]
CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
"""Setting of Spark: the directory for checkpoints of queries without the option checkpointLocation."""


def _wait(seconds: float, /) -> None:
    threading.Event().wait(seconds)


class _Staged(WriterCommitMessage):
    """The result of a task: the file that it wrote."""

    def __init__(self, file: StagedFile | None, checkpoint: str = "") -> None:
        self.file, self.checkpoint = file, checkpoint


class TailraceBatchWriter(Portable, DataSourceArrowWriter):
    """Each task sends its rows at least once: a task that fails is run again from its start."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task. Raises if a row is not a valid message or the broker refuses it."""
        rows = ((0, staged(batch, self._options.topic)) for batch in iterator)
        with Publisher(self._options, _wait) as publisher:
            for request in requests_of(rows):
                publisher.send(request)
        return _Staged(None)


class TailraceStreamWriter(Portable, DataSourceStreamArrowWriter):
    """Tasks stage rows below the checkpoint; ``commit`` sends them once. See ``spark.sink.commit``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task in a file of its own, because a new driver numbers attempts from 0 again."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None, "Spark says which batch a task of a stream is for"
        options = self._located(context)
        return _Staged(
            stage(OsFileSystem(), options, int(batch), context.partitionId(),
                  f"{SystemEntropy().u64():016x}", iterator), options.checkpoint)

    def _located(self, context: TaskContext) -> WriteOptions:
        """Return the options with the checkpoint, from the option or from the setting of Spark.

        Only a task can read the settings and the query's id, so ``commit`` takes the path from the tasks.
        """
        if self._options.checkpoint:
            return self._options
        root = context.getLocalProperty(CHECKPOINTS)
        query = context.getLocalProperty("sql.streaming.queryId")
        problems: list[str] = []
        place = local_checkpoint(root or "", problems)
        if not place or not query:
            problems.append(
                "a stream needs the option checkpointLocation: rows are staged there, and Spark does not pass the "
                f"setting {CHECKPOINTS} to tasks")
        if problems:
            raise ConfigError(*problems)
        return replace(self._options, checkpoint=checkpoint_of(OsFileSystem(), place, query or ""))

    @plain_errors
    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803 - Spark's name
    ) -> None:
        """Make the manifest of the batch durable, send the messages that the log does not have, mark it as sent."""
        options = self._committed(messages)
        if not options.checkpoint:
            raise StoreError(f"no task has staged rows for batch {batchId}")
        commit_batch(OsFileSystem(), options, batchId, _files(messages), _wait)

    @plain_errors
    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Remove staged files, except those in the manifest of the batch: a later run sends them."""
        options = self._committed(messages)
        if options.checkpoint:  # otherwise no task has staged anything
            discard(OsFileSystem(), options, _files(messages), batchId)

    def _committed(self, messages: Sequence[WriterCommitMessage | None]) -> WriteOptions:
        place = next(
            (one.checkpoint for one in messages if isinstance(one, _Staged)), self._options.checkpoint)
        return replace(self._options, checkpoint=place)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [
        one.file for one in messages if isinstance(one, _Staged) and one.file is not None]
