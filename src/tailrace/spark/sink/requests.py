"""Requests that the sink sends, made of the columns of staged rows: no row becomes a Message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.env.entropy import SystemEntropy
from tailrace.formats.commitlog import BATCH_ITEM
from tailrace.kernels import table_records
from tailrace.kernels.shared import constants as C
from tailrace.node.table_columns import NO_QUEUE, Piece, Texts, pieces_of, stored_properties

__all__ = ["TXN", "Request", "requests_of"]

TXN: Final = "TAILRACE_TXN"
"""Property of every message of a stream: query/batch/number."""
_ROWS: Final = 1024
_BYTES: Final = 1 << 20
"""Messages and bytes of a request at most. A broker refuses a request that is longer than its ``maxMessageSize``."""
_JOINED_ROWS: Final = 8192
_JOINED_BYTES: Final = 4 << 20
"""Rows and bytes of small batches of rows that are joined, so that requests are long."""
_OF_ITEM: Final = BATCH_ITEM.size + 2


@dataclass(frozen=True, slots=True)
class Request:
    """Messages of one topic and queue that are sent together; the first one has the number ``first``.

    ``body`` and ``properties`` are those of one message, or the body of a batch request and None.
    """

    first: int
    count: int
    topic: str
    queue_id: int | None
    body: bytes
    properties: bytes | None
    _bodies: Texts
    _properties: Texts
    _at: int

    def halves(self) -> tuple[Request, Request]:
        """Return two requests for the same messages, of which there are several."""
        few = self.count // 2
        return self._part(0, few), self._part(few, self.count - few)

    def _part(self, skipped: int, count: int) -> Request:
        return _request(
            self.first + skipped, count, self.topic, self.queue_id, self._bodies, self._properties, self._at + skipped)


def requests_of(batches: Iterable[tuple[int, pa.RecordBatch]], txn: str = "") -> Iterator[Request]:
    """Group staged rows into requests, in their order. A message that a batch cannot honour is sent alone.

    Each batch has the number of its first row; the numbers follow each other. If ``txn`` is given, each message has
    it in the property ``TXN``, with its number.
    """
    for first, table in _joined(batches):
        for piece in pieces_of(table):
            number = first + piece.first
            properties, kinds = stored_properties(piece, SystemEntropy(), TXN if txn else "", txn, number)
            yield from _of_piece(number, piece, properties, kinds)


def _joined(batches: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows as tables with the numbers of their first rows. Batches of few rows become one table."""
    held: list[pa.RecordBatch] = []
    first = rows = size = 0
    for number, batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > _JOINED_ROWS or size + batch.nbytes > _JOINED_BYTES):
            yield first, pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
        if not held:
            first = number
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield first, pa.Table.from_batches(held).combine_chunks()


def _of_piece(number: int, piece: Piece, properties: Texts, kinds: NDArray[np.uint8]) -> Iterator[Request]:
    """Yield the requests of the rows of a piece, of which the first one has the number ``number``."""
    assert piece.topic is not None
    assert piece.queue_id is not None
    assert piece.deliver_at is not None
    topics, topic_of = piece.topic
    queue_of = np.where(piece.queue_id == NO_QUEUE, -1, piece.queue_id)
    alone = (piece.deliver_at != table_records.NO_TIME) | (kinds & (C.LITE | C.PRIORITY) != 0)
    begins = np.ones(piece.count, np.bool_)
    begins[1:] = (
        (topic_of[1:] != topic_of[:-1]) | (queue_of[1:] != queue_of[:-1]) | alone[1:] | alone[:-1])
    starts = np.flatnonzero(begins)
    sizes = np.concatenate(([0], np.cumsum(piece.body.lengths + properties.lengths + _OF_ITEM)))
    for at, end in zip(starts.tolist(), [*starts[1:].tolist(), piece.count], strict=True):
        topic, queue_id = topics[topic_of[at]], int(queue_of[at])
        assert topic is not None
        while at < end:
            fitting = int(np.searchsorted(sizes, sizes[at] + _BYTES, "right")) - 1
            until = min(max(fitting, at + 1), at + _ROWS, end)
            yield _request(
                number + at, until - at, topic, queue_id if queue_id >= 0 else None, piece.body, properties, at)
            at = until  # noqa: PLW2901


def _request(
    first: int, count: int, topic: str, queue_id: int | None, bodies: Texts, properties: Texts, at: int
) -> Request:
    """Return the request for ``count`` rows, of which the first one is row ``at``."""
    if count == 1:
        body, own = bodies.text(at), properties.text(at)
    else:
        rows = slice(at, at + count)
        size = count * _OF_ITEM + int(bodies.lengths[rows].sum() + properties.lengths[rows].sum())
        out = np.empty(size, np.uint8)
        table_records.put_items(at, at + count, bodies, properties, out)
        body, own = out.tobytes(), None
    return Request(first, count, topic, queue_id, body, own, bodies, properties, at)
