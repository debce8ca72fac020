"""Spark's two writing interfaces: batches are sent by tasks, streams by the driver from staged rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.spark.sink_commit import StagedFile, commit_batch, discard, stage
from tailrace.spark.sink_options import WriteOptions
from tailrace.spark.sink_publish import Numbered, Publisher, requests_of
from tailrace.spark.sink_rows import messages_of, staged

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TailraceBatchWriter", "TailraceStreamWriter"]


def _wait(seconds: float, /) -> None:
    threading.Event().wait(seconds)


class _Staged(WriterCommitMessage):
    """What a task wrote."""

    def __init__(self, file: StagedFile | None) -> None:
        self.file = file


class TailraceBatchWriter(DataSourceArrowWriter):
    """Each task sends its rows: at least once, since a task that fails is run again from its start."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task; raises when one is no message or the broker refuses it."""
        def numbered() -> Iterator[Numbered]:
            for batch in iterator:
                for message, queue_id in messages_of(staged(batch, self._options.topic)):
                    yield 0, message, queue_id

        with Publisher(self._options, _wait) as publisher:
            for request in requests_of(numbered()):
                publisher.send(request)
        return _Staged(None)


class TailraceStreamWriter(DataSourceStreamArrowWriter):
    """Tasks stage rows below the checkpoint; ``commit`` sends them once. See ``sink_commit``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task, in a file of its own: a new driver counts attempts anew."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None, "Spark says which batch a task of a stream is for"
        return _Staged(stage(
            OsFileSystem(), self._options, int(batch), context.partitionId(),
            f"{SystemEntropy().u64():016x}", iterator))

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803 - Spark's name
    ) -> None:
        """Make the batch's manifest durable, send what the log lacks of it, mark it as sent."""
        commit_batch(OsFileSystem(), self._options, batchId, _files(messages), _wait)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Remove what was staged, unless the batch's manifest names it: then a run that follows sends it."""
        discard(OsFileSystem(), self._options, _files(messages), batchId)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [
        one.file for one in messages if isinstance(one, _Staged) and one.file is not None]
