"""Dispatch by recovery: the units of a stretch of the log at a time, the index in a thread of its own.

A write to a queue file costs more than the few units that a chunk has for it, so units wait until
there are many. Keys are indexed at once, while a processor's cache still has them. Memory that the
process did not have yet costs more than reading into it, so a chunk that was indexed gives its
buffer back to the walk.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

import numpy as np

from tailrace.env.work_behind import WorkBehind
from tailrace.kernels import record
from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher
from tailrace.store.index_service import IndexService
from tailrace.store.log_scan import CHUNK, ROWS, LogChunk, ReadableFile, Rows
from tailrace.store.record_batch import RecordBatch

__all__ = ["BatchedDispatch"]

BATCH: Final = 16 * CHUNK
_BEHIND: Final = 4
_SEVERAL: Final = 1 << 15


@final
class _UsedAgain:
    """Room for chunks that is used again; the walk may ask for it in another thread."""

    def __init__(self) -> None:
        self._buffers: deque[bytearray] = deque()
        self._rows: deque[Rows] = deque()

    def read(self, file: ReadableFile, at: int, n: int) -> bytes | memoryview:
        """Up to ``n`` bytes of a file."""
        if n != CHUNK or not isinstance(file, MappedFile):
            return file.read(at, n)
        buffer = self._buffers.popleft() if self._buffers else bytearray(CHUNK)
        return memoryview(buffer)[: file.read_into(at, buffer)]

    def rows(self) -> Rows:
        """An array that no chunk has."""
        return self._rows.popleft() if self._rows else np.empty((ROWS, record.COLUMNS), dtype=np.int64)

    def give_back(self, chunk: LogChunk) -> None:
        """Have the memory of a chunk be used again."""
        if isinstance(chunk.data, memoryview) and isinstance(chunk.data.obj, bytearray):
            self._buffers.append(chunk.data.obj)
        if isinstance(chunk.rows.base, np.ndarray) and chunk.rows.base.shape == (ROWS, record.COLUMNS):
            self._rows.append(chunk.rows.base)


@final
class BatchedDispatch:
    """Takes chunks in the order of the log, read into ``room``."""

    def __init__(self, dispatcher: Dispatcher, index: IndexService | None) -> None:
        self._dispatcher = dispatcher
        self._index = index
        self._batch = RecordBatch()
        self._bytes = 0
        self.room = _UsedAgain()
        self._behind: WorkBehind | None = None
        self._indexing: deque[tuple[int, LogChunk]] = deque()

    def index_behind(self) -> None:
        """Index in a thread of its own, and in memory as far as that goes, until ``close``."""
        if self._index is not None:
            self._index.build()
            self._behind = WorkBehind(_BEHIND)

    def close(self) -> None:
        """End that thread; what it failed at was raised by ``finish`` or is not wanted any more."""
        if self._index is not None and self._behind is not None:
            self._behind.close()
            self._behind = None
            self._index.end_build()

    def take(self, chunk: LogChunk) -> None:
        """Remember a chunk; a full batch is dispatched. Raises as ``dispatch`` does."""
        data, rows = chunk.data, chunk.rows
        if self._behind is not None:
            number = self._behind.ask(lambda: self._dispatcher.put_keys(data, rows))
            self._indexing.append((number, chunk))
        self._dispatcher.add(self._batch, data, rows)
        self._bytes += len(data)
        if self._behind is None:
            self._dispatcher.put_keys(data, rows)
            self.room.give_back(chunk)
        else:
            while self._indexing and self._indexing[0][0] < self._behind.done:
                self.room.give_back(self._indexing.popleft()[1])
        if self._bytes >= BATCH or len(self._batch) >= _SEVERAL:
            self.dispatch()

    def dispatch(self) -> None:
        """Have the queues hold all that was taken. Raises DiskFullError or OSError."""
        if len(self._batch):
            self._dispatcher.write_units(self._batch)
            self._batch.clear()
            self._bytes = 0

    def finish(self) -> None:
        """Have queues and index hold all that was taken. Raises DiskFullError or OSError."""
        self.dispatch()
        if self._index is not None and self._behind is not None:
            self._behind.wait()
            self._index.write_built()
