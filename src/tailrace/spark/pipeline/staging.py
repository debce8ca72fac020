"""Staged rows of a segment: a task writes them to a file, and a walk reads its chunks from the file.

A task writes ``<segment>.arrow``, an Arrow stream with LZ4. It has a batch for each chunk of the log, with only the
values of a record that queues and index need, about a twentieth of the log. The result that is sent to the driver
is small: the pieces, the number of batches of each, and length and checksum of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from tailrace.arrow.columns import gather
from tailrace.env.entropy import SystemEntropy
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.formats.commitlog import SysFlag
from tailrace.formats.filenames import offset_to_file_name
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.walk.scan import LogChunk
from tailrace.store.walk.stitched import Piece, scan_pieces

__all__ = ["StagedSegment", "piece_chunks", "read_staged", "stage_segment"]

_NUMBERS: Final = {
    C.PHY: pa.int64(), C.SIZE: pa.int32(), C.QUEUE_ID: pa.int32(),
    C.QUEUE_OFFSET: pa.int64(), C.SYS_FLAG: pa.int32(),
    C.STORE_TIMESTAMP: pa.int64(), C.TAGS_CODE: pa.int64(),
    C.QUEUE_HASH: pa.int64(), C.DELAY_LEVEL: pa.int64(), C.KIND: pa.int32(),
}
_TEXTS: Final = {
    C.TOPIC_POS: C.TOPIC_LEN, C.UNIQ_POS: C.UNIQ_LEN,
    C.KEYS_POS: C.KEYS_LEN, C.TAGS_POS: C.TAGS_LEN,
    C.LMQ_POS: C.LMQ_LEN, C.LMQ_OFFSETS_POS: C.LMQ_OFFSETS_LEN,
    C.PROPS_POS: C.PROPS_LEN,
}
_SCHEMA: Final = pa.schema([
    *(pa.field(str(column), kind) for column, kind in _NUMBERS.items()),
    *(pa.field(str(column), pa.binary()) for column in _TEXTS),
])


class StagedSegment(NamedTuple):
    """A segment that a task has scanned; ``pieces`` has each piece with the number of its batches."""

    file_from_offset: int
    path: str
    length: int
    crc: int
    pieces: list[tuple[Piece, int]]
    records: int


def stage_segment(
    directory: str, segment: tuple[str, int, int], start: int, until: int, check: int
) -> StagedSegment:
    """Scan a segment (path, position of its first byte, size) from ``start`` onwards, and stage its rows.

    A task that runs twice writes the same bytes again, first under another name.
    Raises OSError.
    """
    file_system, file_from_offset = OsFileSystem(), segment[1]
    log = MappedFile(file_system, *segment, foreign=True)
    sink = pa.BufferOutputStream()
    pieces: list[tuple[Piece, int]] = []
    batches = records = 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
        for item in scan_pieces(log, start, until, check):
            if isinstance(item, Piece):
                pieces.append((item, batches))
                batches = 0
            else:
                writer.write_batch(_packed(item))
                batches += 1
                records += len(item.rows)
    made = sink.getvalue()
    target = f"{directory}/{offset_to_file_name(file_from_offset)}.arrow"
    _write(file_system, target, made)
    return StagedSegment(
        file_from_offset, target, len(made), isal_zlib.crc32(made), pieces, records)


def _write(file_system: FileSystem, target: str, data: pa.Buffer) -> None:
    part = f"{target}.{SystemEntropy().u64():x}"  # another attempt may write at the same time
    with closing(file_system.open(part, writable=True, create=True)) as file:
        file.pwrite(memoryview(data), 0)
    file_system.rename(part, target)


def read_staged(staged: StagedSegment) -> list[pa.RecordBatch] | None:
    """Return the batches of a staged segment; None if the file is not the one that the task wrote."""
    try:
        file = OsFileSystem().open(staged.path)
    except FileNotFoundError:
        return None
    try:
        data = file.pread(staged.length + 1, 0)
    finally:
        file.close()
    if len(data) != staged.length or isal_zlib.crc32(data) != staged.crc:
        return None
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return list(reader)


def piece_chunks(batches: list[pa.RecordBatch], piece: Piece) -> Iterator[LogChunk]:
    """Yield the chunks of a piece; their data has only the staged texts, such as topics, keys and tags."""
    for batch in batches:
        yield _unpacked(batch, piece.start)


def _packed(chunk: LogChunk) -> pa.RecordBatch:
    rows = np.array(chunk.rows, order="C")
    plain = rows[:, C.SYS_FLAG] & SysFlag.INNER_BATCH == 0
    rows[plain, C.PROPS_POS] = -1  # only of inner batches are the properties needed: number of messages
    rows[plain, C.PROPS_LEN] = 0
    return pa.RecordBatch.from_arrays([
        *(pa.array(rows[:, column].astype(kind.to_pandas_dtype()))
          for column, kind in _NUMBERS.items()),
        *(gather(chunk.data, rows[:, at], rows[:, length]) for at, length in _TEXTS.items()),
    ], schema=_SCHEMA)


def _unpacked(batch: pa.RecordBatch, base: int) -> LogChunk:
    rows = np.zeros((batch.num_rows, C.COLUMNS), dtype=np.int64)
    for column, made in zip(_NUMBERS, batch.columns, strict=False):
        rows[:, column] = made.to_numpy()
    parts: list[bytes] = []
    start = 0
    for (at, length), made in zip(
        _TEXTS.items(), batch.columns[len(_NUMBERS) :], strict=True
    ):
        _, offsets, data = made.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[: len(made) + 1].astype(np.int64)
        rows[:, at] = np.where(made.is_valid().to_numpy(zero_copy_only=False), start + places[:-1], -1)
        rows[:, length] = np.diff(places)
        parts.append(data.to_pybytes() if data is not None else b"")
        start += len(parts[-1])
    return LogChunk(b"".join(parts), base, rows)
