"""Dispatch by recovery: keys at once, the units of a stretch of the log together.

A write to a queue file costs more than the few units that a chunk has for it, so units wait until
there are many. Keys are indexed at once, while a processor's cache still has them. Memory that the
process did not have yet costs more than reading into it, so a chunk gives its buffer back to the walk.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

import numpy as np

from tailrace.kernels import record
from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher
from tailrace.store.log_scan import CHUNK, ROWS, LogChunk, ReadableFile, Rows
from tailrace.store.record_batch import RecordBatch

__all__ = ["BatchedDispatch"]

BATCH: Final = 16 * CHUNK
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

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._batch = RecordBatch()
        self._bytes = 0
        self.room = _UsedAgain()

    def take(self, chunk: LogChunk) -> None:
        """Index a chunk and remember its units; a full batch is dispatched. Raises as ``dispatch`` does."""
        self._dispatcher.put_keys(chunk.data, chunk.rows)
        self._dispatcher.add(self._batch, chunk.data, chunk.rows)
        self._bytes += len(chunk.data)
        self.room.give_back(chunk)
        if self._bytes >= BATCH or len(self._batch) >= _SEVERAL:
            self.dispatch()

    def dispatch(self) -> None:
        """Have the queues hold all that was taken. Raises DiskFullError or OSError."""
        if len(self._batch):
            self._dispatcher.write_units(self._batch)
            self._batch.clear()
            self._bytes = 0
