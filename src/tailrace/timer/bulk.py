"""Delivers many timers of a slot by kernels, without a Python object for each.

Only plain timers are delivered in bulk: no far timer, no request to delete, no timer that may have been delivered
before or has a double, and none whose topic was deleted. ``Dequeue`` handles all others one by one.

A batch of units is sorted by position and its records are read in runs. One kernel call parses the records.
Another call writes the delivered records of the due timers into the log, in the order of their due times.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, final

import numpy as np

from tailrace.env.clock import Clock
from tailrace.errors import MessageIllegalError
from tailrace.formats.names import INNER_MULTI_DISPATCH
from tailrace.formats.timerlog import MAGIC_DEFAULT
from tailrace.kernels import timer_put_back
from tailrace.kernels import timer_records as kernel
from tailrace.kernels.shared import constants as C
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.arrays import Ints, Mask, Units
from tailrace.timer.properties import Identity
from tailrace.timer.put_back import PutBack
from tailrace.timer.records import read_records, whole
from tailrace.timer.slots import DueQueue, SlotState
from tailrace.timer.state import TimerState

__all__ = ["BulkPutBack"]

MANY: Final = 32
"""Number of units of a slot from which bulk delivery is faster."""
_CHUNK: Final = 4096
_DISPATCH: Final = f"{INNER_MULTI_DISPATCH}\x01".encode()
_ADDED: Final = 256
"""Upper bound of the bytes that a delivered record has more than its timer message: two properties, another topic."""


@final
class _Batch:
    """Units in the order of their positions, the bytes of their records, and the parsed columns of these."""

    def __init__(self, units: Units, data: bytes, rows: Ints) -> None:
        self.units, self.data, self.rows = units, data, rows
        self.positions: Ints = units["phy_offset"].astype(np.int64)

    def text(self, row: int, pos: int, length: int) -> str:
        start = int(self.rows[row, pos])
        return self.data[start : start + int(self.rows[row, length])].decode("ascii")

    def identity(self, row: int) -> Identity:
        return Identity(
            self.text(row, C.T_TOPIC_POS, C.T_TOPIC_LEN),
            self.text(row, C.T_KEY_POS, C.T_KEY_LEN), int(self.rows[row, C.T_OUT]))


@final
class BulkPutBack:
    """Delivers plain timers of a slot in bulk; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, due: DueQueue, put_back: PutBack,
        state: TimerState,
    ) -> None:
        self._clock = clock
        self._store = store
        self._due = due
        self._put_back = put_back
        self._timers = state

    @property
    def possible(self) -> bool:
        """Return True if records may be made in bulk. A checksum over the whole record needs the ordinary put."""
        return not self._store.config.enabled_append_prop_crc

    def look(self, state: SlotState) -> tuple[int, int]:
        """Process the next units of a slot. Return how many were taken, and how many are not plain.

        Plain timers that are due are delivered, other plain timers wait in ``state.later``. Units that are not
        plain stay at the head of ``state.units``.
        """
        units = state.units.head(_CHUNK)
        units = units[: whole(units["msg_size"])]
        batch = self._read(units[np.argsort(units["phy_offset"], kind="stable")])
        plain = self._plain(state, batch)
        state.before.waits(
            *self._unknown(state, batch.rows[plain, C.T_IDENTITY], batch.positions[plain]))
        is_due = plain & (batch.rows[:, C.T_DUE] <= self._clock.now_ms())
        gone = np.zeros(len(units), bool)
        try:
            self._put(state, batch, np.flatnonzero(is_due), gone)
        finally:
            later = plain & ~is_due
            state.later.add(batch.rows[later, C.T_DUE], batch.units[later])
            odd = batch.units[~gone & ~later]
            state.units.drop(len(units))
            state.units.put_first(odd)
        return len(units) - len(odd), len(odd)

    def put_later(self, state: SlotState) -> int:
        """Deliver the timers of ``state.later`` that are due. Return how many units were processed.

        A timer that is not plain any more, for example a deleted one, is put back into ``state.units``.
        """
        units = state.later.head(self._clock.now_ms(), _CHUNK)
        if not len(units):
            return 0
        units = units[np.argsort(units["phy_offset"], kind="stable")]
        gone = np.zeros(len(units), bool)
        state.later.drop(len(units))
        try:
            batch = self._read(units)
            plain = self._plain(state, batch)
            is_due = plain & (batch.rows[:, C.T_DUE] <= self._clock.now_ms())
            self._put(state, batch, np.flatnonzero(is_due), gone)
        finally:
            if not gone.all():
                state.units.put_first(units[~gone])
        return len(units)

    # -- reading

    def _read(self, units: Units) -> _Batch:
        """Read the records of units that are sorted by position, neighbours in one read.

        Records of a read that failed are not plain, so that they are read one by one.
        """
        positions = units["phy_offset"].astype(np.int64)
        sizes = units["msg_size"].astype(np.int64)
        data, at = read_records(self._store.read, positions, sizes, on_error=self._put_back.read_failed)
        rows = np.zeros((len(units), C.T_COLUMNS), np.int64)
        kernel.read(data, at, positions, sizes, self._timers.grain_ms, rows)
        rows[:, C.T_WROTE] = units["write_time_ms"]
        if _DISPATCH in data:  # rare: their LMQ units need the ordinary put
            for row, start in enumerate(at.tolist()):
                if data.find(_DISPATCH, start, start + int(sizes[row])) >= 0:
                    rows[row, C.T_PLAIN] = 0
        return _Batch(units, data, rows)

    # -- what is plain

    def _plain(self, state: SlotState, batch: _Batch) -> Mask:
        """Return True for each row of a plain timer."""
        rows, units = batch.rows, batch.units
        config = self._store.config
        plain = (rows[:, C.T_PLAIN] == 1) & (units["magic"] == MAGIC_DEFAULT)
        plain &= rows[:, C.T_OUT] >= self._timers.suspicious_until_ms
        plain &= (rows[:, C.T_WROTE] >= 0) & (
            rows[:, C.T_BODY_LEN] <= config.max_message_size)
        plain &= units["msg_size"] + _ADDED < config.mapped_file_size_commit_log
        hashes, positions = rows[:, C.T_IDENTITY], batch.positions
        plain &= state.before.are_free(np.ascontiguousarray(hashes), positions)
        for other in self._due.slots.values():
            if other is not state and len(other.before):
                plain &= ~other.before.are_known(np.ascontiguousarray(hashes))
        plain[np.flatnonzero(plain)[~_first(hashes[plain])]] = False
        if state.waiting:
            plain &= ~np.isin(positions, list(state.waiting))
        if self._due.unread_requests:
            plain &= ~np.isin(units["topic_hash"], list(self._due.unread_requests))
        if state.identities or self._due.has_named(set(np.unique(rows[plain, C.T_OUT]).tolist())):
            for row in np.flatnonzero(plain).tolist():
                identity = batch.identity(row)
                plain[row] = not (
                    identity in state.identities or self._due.is_deleted(identity)
                    or self._due.has(identity))
        return plain

    @staticmethod
    def _unknown(state: SlotState, hashes: Ints, positions: Ints) -> tuple[Ints, Ints]:
        new = ~state.before.are_known(np.ascontiguousarray(hashes))
        return np.ascontiguousarray(hashes[new]), positions[new]

    # -- putting

    def _put(self, state: SlotState, batch: _Batch, chosen: Ints, gone: Mask) -> None:
        """Deliver the rows ``chosen``, by due time and then in log order; set ``gone`` for each delivered row."""
        rows = batch.rows
        order = chosen[np.argsort(rows[chosen, C.T_DUE], kind="stable")]
        said = rows[order, C.T_QUEUE_ID]
        keys = self._queues(batch, order)
        here = rows[order, C.T_QUEUE] >= 0
        order, said = order[here], said[here]
        if not len(order):
            return
        host, dequeue_ms = self._store.store_host, self._clock.now_ms()

        def write(
            done: int, buffer: Any, at: int, limit: int, phy_offset: int, offsets: Any, now_ms: int, /
        ) -> tuple[int, int]:
            made: tuple[int, int] = timer_put_back.put_back(
                batch.data, rows, order, done, len(order), buffer, at, limit, phy_offset, offsets,
                dequeue_ms, now_ms, host)
            return made

        bound = int(batch.units["msg_size"][order].sum(dtype=np.int64)) + _ADDED * len(order)
        result = self._store.put_records(keys, len(order), bound, write)
        if not result.msg_num:
            return
        put = order[: result.msg_num]
        gone[put] = True
        state.before.went(
            np.ascontiguousarray(rows[put, C.T_IDENTITY]), batch.positions[put])
        self._put_back.counters["timerPutBack"] += len(put)
        self._put_back.lateness.add_many(result.store_timestamp - rows[put, C.T_DUE])
        counts = np.bincount(rows[put, C.T_QUEUE], minlength=len(keys)).tolist()
        for (topic, _), count in zip(keys, counts, strict=True):
            self._due.left_many(topic, count)
        moved = np.flatnonzero(rows[put, C.T_QUEUE_ID] != said[: len(put)])
        for (number, queue_id), count in Counter(zip(
            rows[put[moved], C.T_QUEUE].tolist(), said[moved].tolist(), strict=True
        )).items():
            topic, to = keys[number]
            self._put_back.parking.step.moved(topic, queue_id, to, count)
        self._store.wake_flush()

    def _queues(self, batch: _Batch, order: Ints) -> list[tuple[str, int]]:
        """Return the target queues of rows, and set T_QUEUE of each row to its index there.

        T_QUEUE is -1 for a topic that is refused or was deleted. T_QUEUE_ID is changed if the topic does not have the
        queue any more.
        """
        rows, targets = batch.rows, self._put_back.targets
        _, first, inverse = np.unique(
            rows[order, C.T_QUEUE_HASH], return_index=True, return_inverse=True)
        keys = dict[tuple[str, int], int]()
        numbers, ids, begins = list[int](), list[int](), list[int]()
        for row in order[first].tolist():
            topic = batch.text(row, C.T_TOPIC_POS, C.T_TOPIC_LEN)
            queue_id = targets.queue_id(topic, int(rows[row, C.T_QUEUE_ID]))
            ids.append(queue_id)
            begins.append(targets.first_position(topic))
            if begins[-1] > batch.positions[-1] or not self._is_legal(topic):
                numbers.append(-1)
            else:
                numbers.append(keys.setdefault((topic, queue_id), len(keys)))
        gone = batch.positions[order] < np.array(begins, np.int64)[inverse]
        rows[order, C.T_QUEUE] = np.where(gone, -1, np.array(numbers, np.int64)[inverse])
        rows[order, C.T_QUEUE_ID] = np.array(ids, np.int64)[inverse]
        return list(keys)

    def _is_legal(self, topic: str) -> bool:
        try:
            self._store.rules.topic_bytes(topic)
        except MessageIllegalError:
            return False
        return True


def _first(values: Ints) -> Mask:
    """Return True for each value that has no equal one before it."""
    found = np.zeros(len(values), bool)
    found[np.unique(values, return_index=True)[1]] = True
    return found
