"""Dispatch by recovery: the units of several chunks at a time, from buffers that are used again.

A write to a queue file costs more than the few units that a chunk has for it. Keys are indexed at
once, while a processor's cache still has them. Memory that the process did not have yet costs more
than reading into it, so what was dispatched gives its buffer back to the walk.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tailrace.segments import MappedFile
from tailrace.store.dispatch import Dispatcher, Records
from tailrace.store.log_scan import CHUNK, LogChunk, ReadableFile

__all__ = ["BatchedDispatch"]

BATCH: Final = 4 * CHUNK


@final
class BatchedDispatch:
    """Takes chunks in the order of the log; ``read`` makes them for the walk, in its own thread."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._pending: list[Records] = []
        self._bytes = 0
        self._free: deque[bytearray] = deque()

    def read(self, file: ReadableFile, at: int, n: int) -> bytes | memoryview:
        """Up to ``n`` bytes of a file, valid until the chunk that is made of them is dispatched."""
        if n != CHUNK or not isinstance(file, MappedFile):
            return file.read(at, n)
        try:
            buffer = self._free.popleft()
        except IndexError:
            buffer = bytearray(CHUNK)
        return memoryview(buffer)[: file.read_into(at, buffer)]

    def take(self, chunk: LogChunk) -> None:
        """Remember a chunk; a full batch is dispatched. Raises as ``dispatch`` does."""
        records = chunk.data, chunk.rows
        self._dispatcher.put_keys([records])
        self._pending.append(records)
        self._bytes += len(chunk.data)
        if self._bytes >= BATCH:
            self.dispatch()

    def dispatch(self) -> None:
        """Have the queues, too, hold all that was taken. Raises DiskFullError or OSError."""
        if self._pending:
            self._dispatcher.write_units(self._pending)
            for data, _ in self._pending:
                if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
                    self._free.append(data.obj)
            self._pending, self._bytes = [], 0
