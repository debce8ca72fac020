"""Put the rows of a table: check all rows, then append the records that a kernel makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tailrace.env.entropy import Entropy
from tailrace.errors import MessageIllegalError, StoreError
from tailrace.kernels import table_records
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageResult
from tailrace.node.put_forms import raise_partial, raise_refused
from tailrace.node.table_columns import (
    NO_QUEUE,
    Numbers,
    Piece,
    Texts,
    illegal_row,
    joined,
    pieces_of,
    stored_properties,
)
from tailrace.node.timers import Timers
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.put_hook import ScheduledMessage

__all__ = ["PutTableResult", "TablePut"]

_RUN_BYTES: Final = 4 << 20
"""Size of bodies and properties in one append; other puts wait until it ends."""
_LAST_QUEUE_ID: Final = 0x7FFFFFFF
_FLAG_LIMIT: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class PutTableResult:
    """Places of the rows of a table in the CommitLog and in their queues: int64, one element per row.

    A row with a delivery time has the places of its timer message. ``until`` is the position after the
    last record, -1 for a table without rows. ``recall_handles`` has the handle of each timer by row.
    """

    phy_offsets: Numbers
    queue_offsets: Numbers
    until: int
    recall_handles: dict[int, str]

    def __len__(self) -> int:
        return len(self.phy_offsets)


@dataclass(slots=True)
class _Rows:
    """A checked piece with the stored properties of its rows."""

    piece: Piece
    properties: Texts
    kinds: Any
    flags: Numbers
    queues: Numbers
    """Index of each row's queue among the queues of the table."""


class TablePut:
    """One put of a table: call ``check``, then ``append``."""

    def __init__(
        self, store: DefaultMessageStore, timers: Timers, entropy: Entropy,
        is_new: Callable[[str], bool], make_topic: Callable[[str, int], object], now_ms: int,
    ) -> None:
        self._store = store
        self._timers = timers
        self._entropy = entropy
        self._is_new = is_new
        self._make_topic = make_topic
        self._now_ms = now_ms
        self._rows: list[_Rows] = []
        self._queues: dict[tuple[str, int], int] = {}
        self._first_rows: dict[tuple[str, int], int] = {}
        self._waiting: list[tuple[int, MessageExtBrokerInner, ScheduledMessage | None]] = []
        self._count = 0

    def check(self, table: Any, topic: str | None, queue_id: int) -> None:
        """Check all rows, then create missing topics. Raises MessageIllegalError."""
        for piece in pieces_of(table):
            self._rows.append(self._checked(piece, topic, queue_id))
            self._count += piece.count
        most: dict[str, int] = {}
        for name, number in self._queues:
            with _at_row(self._first_rows[name, number]):
                self._store.rules.topic_bytes(name)
            most[name] = max(number, most.get(name, 0))
        for rows in self._rows:
            self._check_sizes(rows)
            self._prepare_waiting(rows)
        for name in sorted(most, key=self._is_new):  # if one is refused, no new topic was created
            with _at_row(self._first_rows[name, most[name]]):
                self._make_topic(name, most[name])

    def _checked(self, piece: Piece, topic: str | None, queue_id: int) -> _Rows:
        flags = piece.flag if piece.flag is not None else np.zeros(piece.count, np.int64)
        if (bad := np.flatnonzero((flags < -_FLAG_LIMIT) | (flags >= _FLAG_LIMIT))).size:
            raise illegal_row("flag", piece.first + bad[0], f"{flags[bad[0]]} has more than 32 bits")
        return _Rows(piece, *self._properties(piece), flags, self._queues_of(piece, topic, queue_id))

    def _queues_of(self, piece: Piece, topic: str | None, queue_id: int) -> Numbers:
        """Return the index of each row's queue; add the queues that are new."""
        names, of_rows = piece.topic or ([None], np.zeros(piece.count, np.int64))
        ids = piece.queue_id if piece.queue_id is not None else np.full(piece.count, NO_QUEUE)
        missing = ids == NO_QUEUE
        if (bad := np.flatnonzero(~missing & ((ids < 0) | (ids > _LAST_QUEUE_ID)))).size:
            raise illegal_row(
                "queue_id", piece.first + bad[0], f"{ids[bad[0]]} is outside 0 to {_LAST_QUEUE_ID}")
        both, first, inverse = np.unique(
            of_rows << 32 | np.where(missing, 0, ids + 1), return_index=True, return_inverse=True)
        numbers = []
        for key, row in zip(both.tolist(), first.tolist(), strict=True):
            name_number, wanted = key >> 32, (key & 0xFFFFFFFF) - 1
            name = names[name_number] if names[name_number] is not None else topic
            if not name:
                raise illegal_row(
                    "topic", piece.first + row, "is empty" if name == "" else
                    "is null or missing, and put_table was called without a topic")
            queue = name, wanted if wanted >= 0 else queue_id
            self._first_rows.setdefault(queue, piece.first + row)
            numbers.append(self._queues.setdefault(queue, len(self._queues)))
        return np.array(numbers, np.int64)[inverse.reshape(-1)]

    def _properties(self, piece: Piece) -> tuple[Texts, Any]:
        """Return the stored properties of the rows, and the kind of each row (see the kernel)."""
        properties, kinds = stored_properties(piece, self._entropy)
        if (bad := np.flatnonzero(kinds & C.LMQ)).size:
            raise illegal_row(
                "properties", piece.first + bad[0], "names LMQ queues; put such a message by itself")
        return properties, kinds & C.WAITS

    def _check_sizes(self, rows: _Rows) -> None:
        rules = self._store.rules
        bodies, properties = rows.piece.body.lengths, rows.properties.lengths
        topics = np.array([len(topic) for topic, _ in self._queues], np.int64)[rows.queues]
        hosts = 2 * len(self._store.store_host)
        if not len(topics) or rules.are_short(
            int(topics.max()), hosts, int(bodies.max()), int(properties.max())
        ):
            return
        for row, lengths in enumerate(zip(
            bodies.tolist(), properties.tolist(), topics.tolist(), strict=True)):
            with _at_row(rows.piece.first + row):
                rules.check_lengths(*lengths, hosts)

    def _prepare_waiting(self, rows: _Rows) -> None:
        """Pass the rows that name a delivery time to the put hook."""
        keys = list(self._queues)
        for row in np.flatnonzero(rows.kinds & C.WAITS).tolist():
            topic, queue_id = keys[rows.queues[row]]
            message = MessageExtBrokerInner(
                topic, queue_id, rows.piece.body.text(row), rows.properties.text(row),
                int(rows.flags[row]), 0, self._now_ms, self._store.store_host, kind=int(rows.kinds[row]))
            waiting = self._timers.waiting(message)
            if isinstance(waiting, PutMessageResult):
                with _at_row(rows.piece.first + row):
                    raise_refused(waiting)
            else:
                self._waiting.append((rows.piece.first + row, message, waiting))

    def append(self) -> PutTableResult:
        """Append the checked rows in order, rows with a delivery time last.

        Raises StoreNotWritableError with the number of rows that are in the log.
        """
        result = PutTableResult(
            np.full(self._count, -1, np.int64), np.full(self._count, -1, np.int64), -1, {})
        done, until = 0, -1
        keys = list(self._queues)
        topics = joined([topic.encode() for topic, _ in keys])
        try:
            for rows in self._rows:
                for run in _runs(rows):
                    put = self._append_run(rows, run, keys, topics, result)
                    done += put.msg_num
                    until = max(until, put.until)
                    if put.msg_num < len(run) or not put.status.appended:
                        raise_refused(put)
            for row, message, waiting in self._waiting:
                put = self._timers.put_prepared(message, waiting)
                if not put.status.appended:
                    raise_refused(put)
                done, until = done + 1, max(until, put.until)
                result.phy_offsets[row], result.queue_offsets[row] = put.phy_offset, put.queue_offset
                if put.recall_handle:
                    result.recall_handles[row] = put.recall_handle
        except StoreError as error:
            raise_partial(error, done, f"of {self._count} rows")
        return PutTableResult(result.phy_offsets, result.queue_offsets, until, result.recall_handles)

    def _append_run(
        self, rows: _Rows, run: Numbers, queues: list[tuple[str, int]], topics: Texts,
        result: PutTableResult,
    ) -> PutMessageResult:
        """Append the rows of a piece with the indexes in ``run``; ``queues`` are all of the table."""
        rules = self._store.rules
        numbers = rows.queues[run]
        used = np.flatnonzero(np.bincount(numbers))
        place = np.empty(len(queues), np.int64)
        place[used] = np.arange(len(used))
        keys = [queues[number] for number in used.tolist()]
        bodies, properties = rows.piece.body.some(run), rows.properties.some(run)
        phy_offsets, queue_offsets = np.empty(len(run), np.int64), np.empty(len(run), np.int64)
        host = self._store.store_host
        flags, of_rows, names = rows.flags[run], place[numbers], topics.some(used)
        queue_ids = np.array([queue_id for _, queue_id in keys], np.int64)

        def make(
            first: int, out: Any, at: int, limit: int, phy_offset: int, offsets: Any, now_ms: int
        ) -> tuple[int, int]:
            made: tuple[int, int] = table_records.put_rows(
                first, len(run), bodies, properties, flags, of_rows, queue_ids, names, self._now_ms, host,
                now_ms, host, rules.appends_crc, out, at, limit, phy_offset, offsets, phy_offsets,
                queue_offsets)
            return made

        bound = rules.bound(
            max(len(topic) for topic, _ in keys), 2 * len(host), len(run), bodies.size + properties.size)
        put = self._store.put_records(keys, len(run), bound, make)
        there = run[: put.msg_num] + rows.piece.first
        result.phy_offsets[there] = phy_offsets[: put.msg_num]
        result.queue_offsets[there] = queue_offsets[: put.msg_num]
        return put


@contextmanager
def _at_row(row: int) -> Iterator[None]:
    """Add the row to a MessageIllegalError that is raised in this context."""
    try:
        yield
    except MessageIllegalError as error:
        raise illegal_row(error.field, row, error.reason) from None


def _runs(rows: _Rows) -> list[Numbers]:
    """Return the indexes of the rows without a delivery time, in runs of about _RUN_BYTES."""
    plain = np.flatnonzero((rows.kinds & C.WAITS) == 0)
    if not plain.size:
        return []
    sizes = rows.piece.body.lengths[plain] + rows.properties.lengths[plain]
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _RUN_BYTES)) + 1
    return np.split(plain, cuts)
