"""Puts timers back into the log: due timers under their own topic, far timers on the timer topic again (rolled).

A batch of units is sorted by position and its records are read in runs. One kernel call parses the records; the
odd ones are decoded in place. Timers that are not due yet wait as units. Of those that are due, the deleted ones and
the doubles are dropped. Another kernel call writes the records of plain timers into the log, in the order of their due
times. The others are put one by one: far timers, those of deleted topics, and records that the kernel does not know.

A timer leaves its slot only when its record is in the log. A put that may succeed later is retried without
end; a message that can never be put, or whose topic was deleted, is parked in ``%DLQ%TAILRACE_TIMER`` with the reason.
A timer that cannot be read is tried again by the rules of ``unread``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError, MessageIllegalError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.names import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
)
from tailrace.kernels import timer_put_back
from tailrace.kernels import timer_records as kernel
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import MessageExt, PutMessageResult
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.arrays import Ints, Mask, Units, counts, numbered, read_records
from tailrace.timer.due_table import NOBODY, RETRY_MS, Delivered, DueTable, column, identity_hash
from tailrace.timer.parking import ANY_TARGET, NEVER, NOWHERE, Parking, Targets, inner_message
from tailrace.timer.properties import (
    PARKED_TOPIC,
    Identity,
    due_ms,
    identity_of,
    named_by,
    out_ms,
    put_back_properties,
    whole_number,
)
from tailrace.timer.state import TimerState
from tailrace.timer.timer_metrics import Lateness
from tailrace.timer.unread import NO_TRIES, FailedReads, Tries

__all__ = ["PutBack"]

_log = get_logger(__name__)
_MOST_REFUSED: Final = 64
"""Number of refused puts after which a step ends, because the log may refuse all of them."""
_MOST_FAILED: Final = 64
"""Number of failed reads after which a step ends, because descriptors or memory may be short."""
_TODO, _BACK, _GONE, _KEPT = range(4)
"""States of a row: this step has to process it; a later step has to; its timer has left its slot; it waits, or was
put off."""
_SMALL: Final = 4096
_MASTER_MS: Final = 2000
"""Pause before a slave looks again whether its master has delivered a timer."""
_MOST_DECODED: Final = 20_000
_HASH: Final = (1 << 62) - 1
_ADDED: Final = 256
"""Upper bound of the bytes that a delivered record has more than its timer message: two properties, another topic."""
_COUNTERS: Final = (
    "timerPutBack", "timerRolled", "timerRecalled", "timerDouble", "timerParked", "timerPutFailed",
    "timerUnreadable", "timerBrokenList", "timerAppendFailed",
)


@final
class _Batch:
    """Units in the order of their positions, the bytes of their records, and a row of columns for each."""

    def __init__(self, units: Units, tries: Tries, precision_ms: int) -> None:
        self.tries = tries
        self.rows: Ints = np.zeros((len(units), C.T_COLUMNS), np.int64)
        if not kernel.place(units.view(np.uint8).data, precision_ms, self.rows):
            units = units[units["phy_offset"].argsort(kind="stable")]
            kernel.place(units.view(np.uint8).data, precision_ms, self.rows)
        self.units = units
        self.positions: Ints = self.rows[:, C.T_POSITION]
        self.data = b""
        self.odd = len(units)
        """Number of rows that are not plain."""
        self.messages: dict[int, MessageExt] = {}
        """Messages of odd rows."""
        self.state: np.ndarray[Any, np.dtype[np.int8]] = np.zeros(len(units), np.int8)
        """What becomes of each row: _TODO until that is known."""
        self.roll = set[int]()
        """Rows of far timers whose own slots have not come. They are not plain."""

    @property
    def is_done(self) -> bool:
        return int(np.count_nonzero(self.state)) == len(self.state)

    def units_of(self, rows: Ints) -> Units:
        return self.units if len(rows) == len(self.units) else self.units[rows]

    def name(self, row: int) -> Identity | int:
        """Return what two rows of the same timer have in common: the identity, or the position without one."""
        return (None if row in self.roll else self.identity(row)) or int(self.positions[row])

    def other_hash(self, row: int) -> int:
        """Return a hash for a timer whose own hash another timer has. No producer can choose it."""
        return hash(self.name(row)) & _HASH | 1

    def text(self, row: int, pos: int, length: int) -> str:
        start = int(self.rows[row, pos])
        return self.data[start : start + int(self.rows[row, length])].decode("ascii")

    def identity(self, row: int) -> Identity | None:
        message = self.messages.get(row)
        if message is not None:  # a request to delete has the unique key of what it deletes
            return None if TIMER_DEL_UNIQKEY in message.properties else identity_of(
                message.properties, int(message.properties[TIMER_OUT_MS]))
        return Identity(
            self.text(row, C.T_TOPIC_POS, C.T_TOPIC_LEN),
            self.text(row, C.T_KEY_POS, C.T_KEY_LEN), int(self.rows[row, C.T_OUT]))


@final
class PutBack:
    """The steps dequeue_get_message and dequeue_put; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, due: DueTable, state: TimerState,
        ensure_topic: Callable[[str], object], targets: Targets = ANY_TARGET,
    ) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.lateness = Lateness()
        self.parking = Parking(store, ensure_topic, targets)
        self.reads = FailedReads(
            clock, store, TIMER_TOPIC, self.counters, "timerUnreadable",
            lambda place, size, error: events.TIMER_MESSAGE_UNREADABLE.log(
                _log, phy_offset=place, size=size, cause=error))
        self._clock = clock
        self._store = store
        self._due = due
        self._state = state
        self._delivered = Delivered()
        self._decoded: dict[int, MessageExt] = {}
        """Small odd messages that wait until they are due, by position."""
        self._refused = 0
        self._paused_until_ms = 0
        self._stop_at = 0

    # -- the log

    def read_failed(self, error: OSError) -> None:
        """Count a read of many messages that has failed; these are read one by one next."""
        self.reads.failed += 1

    def was_rolled(self, identity: Identity, phy_offset: int) -> bool:
        """Return True if the timer topic has a later copy of a far timer."""
        return any(m.phy_offset > phy_offset for m in self._records(TIMER_TOPIC, identity))

    def was_delivered(self, identity: Identity, *, sure: bool) -> bool:
        """Return True if the log has the delivered record of a timer.

        The log is searched for timers from before the open or before a step of the clock, and for far
        timers (``sure``). Without an index the record is not found, so a timer may be delivered twice.
        """
        if identity.out_ms >= self._state.ask_until_ms and not sure:
            return False
        return bool(self._records(identity.real_topic, identity)) or bool(
            self._records(PARKED_TOPIC, identity))

    def _records(self, topic: str, identity: Identity) -> list[MessageExt]:
        out = str(identity.out_ms)
        return [
            m for m in self._store.reader.copies(topic, identity.unique_key)
            if m.properties.get(TIMER_OUT_MS) == out and TIMER_DEL_UNIQKEY not in m.properties
        ]

    # -- a step

    def may_begin(self) -> bool:
        """Begin a step. Return False while the puts are not tried because the log has refused many of them."""
        if self.reads.now_ms() < self._paused_until_ms:
            return False
        self._refused, self._stop_at = 0, self.reads.failed + _MOST_FAILED
        return True

    @property
    def stopped(self) -> bool:
        """Return True if the step has to end: too many reads have failed, or too many puts were refused."""
        return self.reads.failed >= self._stop_at or self._refused >= _MOST_REFUSED

    def step(self, units: Units, tries: Tries, *, put: bool = True) -> int:
        """Process units that ``DueTable.take`` has returned. Return how many of them were odd.

        Without ``put`` those that are due wait after they were looked at.
        """
        batch = _Batch(units, tries, self._state.precision_ms)
        try:
            self._read(batch)
            if batch.odd:
                self._decode_odd(batch)
            self._wait(batch, (batch.state == _TODO) & (batch.rows[:, C.T_DUE] > self._clock.now_ms()))
            if not batch.is_done:
                self._drop(batch)
                if self._state.follows:
                    self._leave_to_master(batch)
                elif put:
                    self._put_plain(batch)
                else:
                    self._wait(batch, batch.state == _TODO)
            if not batch.is_done:
                self._put_others(batch)
        finally:
            gone = (batch.state == _GONE).nonzero()[0]
            if len(gone):
                self._due.leave(batch.units_of(gone), batch.rows[gone, C.T_SLOT])
                self._store.wake_flush()
            back = (batch.state < _GONE).nonzero()[0]
            if len(back):
                self._due.give_back(batch.units_of(back), tries)
        if self._refused >= _MOST_REFUSED:
            self._paused_until_ms = self.reads.now_ms() + RETRY_MS
        return len(batch.messages)

    def _leave_to_master(self, batch: _Batch) -> None:
        """Put off the due timers of a slave whose delivered records have not come from the master yet."""
        later = NO_TRIES._replace(again_ms=self.reads.now_ms() + _MASTER_MS)
        for row in (batch.state == _TODO).nonzero()[0].tolist():
            self._refused += 1
            self._put_off(batch, row, later)

    def _wait(self, batch: _Batch, chosen: Mask) -> None:
        for row, message in batch.messages.items():
            if chosen[row] and message.store_size <= _SMALL and len(self._decoded) < _MOST_DECODED:
                self._decoded[message.phy_offset] = message
        rows = chosen.nonzero()[0]
        if not len(rows):
            return
        self._due.wait(batch.rows[rows, C.T_DUE], batch.units_of(rows))
        batch.state[rows] = _KEPT

    # -- reading

    def _read(self, batch: _Batch) -> None:
        """Read the records of the units, neighbours in one read, and fill the columns.

        Records of a read that failed are not plain, so that they are read one by one.
        """
        rows, state, config = batch.rows, self._state, self._store.config
        batch.data = read_records(
            self._store.commit_log.read, batch.positions, rows[:, C.T_SIZE], rows[:, C.T_POS],
            on_error=self.read_failed)
        batch.odd = kernel.read(
            batch.data, state.grain_ms, state.frontier_ms, state.ask_until_ms, config.max_message_size,
            config.mapped_file_size_commit_log - _ADDED - 1, rows)

    def _message(self, batch: _Batch, row: int) -> MessageExt | None:
        at, phy_offset, size = int(batch.rows[row, C.T_POS]), int(batch.positions[row]), int(batch.rows[row, C.T_SIZE])
        return batch.messages.get(row) or self._decoded.pop(phy_offset, None) or self.reads.message(
            phy_offset, size, batch.data[at : at + size] if 0 <= at <= len(batch.data) - size else b"")

    def _decode_odd(self, batch: _Batch) -> None:
        """Decode messages that are not plain, and note the timers that requests to delete name."""
        rows, state = batch.rows, self._state
        for row in (rows[:, C.T_PLAIN] == 0).nonzero()[0].tolist():
            message = self._readable(batch, row)
            if message is None:
                continue
            properties = message.properties
            out = int(properties[TIMER_OUT_MS])
            is_early = rows[row, C.T_FAR] and out >= state.frontier_ms
            if TIMER_DEL_UNIQKEY in properties and not is_early:
                for named in named_by(properties, out):
                    self._due.delete(named)
                batch.state[row] = _GONE
                continue
            rows[row, C.T_OUT] = column(out)
            rows[row, C.T_DUE] = column(due_ms(properties, out, message.store_timestamp, state.grain_ms))
            rows[row, C.T_ASK] |= out < state.ask_until_ms or TIMER_ROLL_TIMES in properties
            if is_early:
                batch.roll.add(row)
                rows[row, C.T_DUE] = 0  # it is due now

    def _readable(self, batch: _Batch, row: int) -> MessageExt | None:
        """Decode the message of a row. Return None if that is not possible: then the row leaves, or is tried again."""
        if self.stopped:
            batch.state[row] = _BACK
            return None
        try:
            message = self._message(batch, row)
        except OSError as error:
            self._cannot_read(batch, row, error)
            return None
        if message is None or out_ms(message.properties) is None:
            batch.state[row] = _GONE
            return None
        batch.messages[row] = message
        return message

    def _cannot_read(self, batch: _Batch, row: int, error: OSError) -> None:
        """Put a row off whose message cannot be read, or leave it out if the tries are over."""
        phy_offset, size = int(batch.positions[row]), int(batch.rows[row, C.T_SIZE])
        tries = self.reads.after(batch.tries, error, phy_offset, size)
        if self.reads.are_over(tries) and self.reads.leave_out(phy_offset, size, error):
            batch.state[row] = _GONE
        else:
            self._put_off(batch, row, tries)

    def _put_off(self, batch: _Batch, row: int, tries: Tries) -> None:
        self._due.put_off(batch.units[row : row + 1], tries)
        batch.state[row] = _KEPT

    # -- what is not put

    def _drop(self, batch: _Batch) -> None:
        """Drop timers that are deleted or double."""
        rows, state = batch.rows, batch.state
        hashes = rows[:, C.T_IDENTITY]
        for row in ((state == _TODO) & (rows[:, C.T_PLAIN] == 0)).nonzero()[0].tolist() if batch.odd else ():
            name = batch.name(row)
            hashes[row] = identity_hash(name if isinstance(name, Identity) else Identity("", "", name))
        for row in self._due.may_be_deleted(hashes):
            if state[row] == _TODO and row not in batch.roll and (
                (identity := batch.identity(row)) and self._due.is_deleted(identity)
            ):
                self.counters["timerRecalled"] += 1
                state[row] = _GONE
        self._part(batch)
        found, count = self._delivered.find(hashes)
        if not count and not np.count_nonzero(rows[:, C.T_ASK]):
            return
        for row in ((state == _TODO) & ((found != NOBODY) | (rows[:, C.T_ASK] == 1))).nonzero()[0].tolist():
            self._ask(batch, row, int(found[row]))

    @staticmethod
    def _part(batch: _Batch) -> None:
        """Leave rows that are the same timer as an earlier row for the next step; set others with its hash apart."""
        hashes = batch.rows[:, C.T_IDENTITY]
        while True:
            chosen = (batch.state == _TODO).nonzero()[0]
            first, _, numbers = numbered(hashes[chosen])
            if len(first) == len(chosen):
                return
            firsts = chosen[first[numbers]]
            again = np.flatnonzero(firsts != chosen)
            for row, one in zip(chosen[again].tolist(), firsts[again].tolist(), strict=True):
                if batch.name(row) == batch.name(one) or hashes[row] == batch.other_hash(row):
                    batch.state[row] = _BACK
                else:
                    hashes[row] = batch.other_hash(row)

    def _ask(self, batch: _Batch, row: int, other: int) -> None:
        """Drop a timer if it is double. If that cannot be read, it is put off; if the tries are over, it is delivered.

        The message of the row was read, so it is the index that cannot be. Then it counts as one without an index.
        """
        if self.stopped:
            batch.state[row] = _BACK
            return
        try:
            is_double = self._is_double(batch, row, other)
        except OSError as error:
            tries = self.reads.after(batch.tries, error, int(batch.positions[row]), int(batch.rows[row, C.T_SIZE]))
            if not self.reads.are_over(tries):
                self._put_off(batch, row, tries)
            return
        if is_double:
            self.counters["timerDouble"] += 1
            batch.state[row] = _GONE

    def _is_double(self, batch: _Batch, row: int, other: int) -> bool:
        """Return True if a timer was delivered or rolled: in a slot that was begun, or as the log shows.

        ``other`` is the position of a message with the same hash that has left its slot, or -1.
        """
        while other != NOBODY:
            if other == batch.positions[row] or self._identity_at(other) == batch.name(row):
                return True
            if batch.rows[row, C.T_IDENTITY] == batch.other_hash(row):
                break
            batch.rows[row, C.T_IDENTITY] = batch.other_hash(row)
            other = int(self._delivered.find(batch.rows[row : row + 1, C.T_IDENTITY])[0][0])
        identity = batch.identity(row)
        if identity is None:
            return False
        if batch.rows[row, C.T_FAR] and self.was_rolled(identity, int(batch.positions[row])):
            return True
        return row not in batch.roll and self.was_delivered(identity, sure=batch.rows[row, C.T_ASK] == 1)

    def _identity_at(self, phy_offset: int) -> Identity | None:
        data = self._store.commit_log.record_at(phy_offset)
        try:
            properties = decode_message(data).properties if data is not None else {}
        except CorruptionError:
            return None
        out = out_ms(properties)
        return identity_of(properties, out) if out is not None else None

    # -- plain timers

    def _put_plain(self, batch: _Batch) -> None:
        """Deliver plain timers, by due time and then in log order."""
        config, rows = self._store.config, batch.rows
        if config.enabled_append_prop_crc:  # a checksum over the whole record needs the ordinary put
            return
        order, keys, moved = self._queues(
            batch, self._by_due_time(batch, (batch.state == _TODO) & (rows[:, C.T_PLAIN] == 1)))
        if not len(order):
            return
        host, dequeue_ms = self._store.store_host, self._clock.now_ms()

        def write(
            done: int, buffer: Any, at: int, limit: int, phy_offset: int, offsets: Any, now_ms: int, /
        ) -> tuple[int, int]:
            put, size = timer_put_back.put_back(
                batch.data, rows, order, done, len(order), buffer, at, limit, phy_offset, offsets,
                dequeue_ms, now_ms, host)
            return put, int(size)  # an interpreted kernel counts with NumPy's numbers

        bound = int(rows[order, C.T_SIZE].sum()) + _ADDED * len(order)
        result = self._store.put_records(keys, len(order), bound, write)
        if not result.msg_num:
            return
        put = order[: result.msg_num]
        self.counters["timerPutBack"] += len(put)
        for due, count in counts(rows[put, C.T_DUE]):
            self.lateness.add(result.store_timestamp - due, count)
        self._left(batch, put)
        for value, count in counts(rows[put, C.T_QUEUE_HASH]) if moved else ():
            if value in moved:
                self.parking.step.moved(*moved[value], count)

    @staticmethod
    def _by_due_time(batch: _Batch, chosen: Mask) -> Ints:
        rows = chosen.nonzero()[0]
        order: Ints = rows[batch.rows[rows, C.T_DUE].argsort(kind="stable")]
        return order

    def _left(self, batch: _Batch, rows: Ints) -> None:
        """Let rows leave, and note that their timers must not be delivered a second time."""
        self._delivered.add(batch.rows[rows, : C.T_SLOT + 1], self._due.slots)
        batch.state[rows] = _GONE

    def _queues(
        self, batch: _Batch, order: Ints
    ) -> tuple[Ints, list[tuple[str, int]], dict[int, tuple[str, int, int]]]:
        """Return the rows whose topics were not deleted and are not refused, their queues, and those that have moved.

        T_QUEUE is set to the index among the queues. T_QUEUE_ID is changed if the topic does not have the queue any
        more; such queues are returned by T_QUEUE_HASH, with topic, former and present queue id.
        """
        rows, targets = batch.rows, self.parking.targets
        first, _, numbers = numbered(rows[order, C.T_QUEUE_HASH])
        keys, moved = dict[tuple[str, int], int](), dict[int, tuple[str, int, int]]()
        found = list[tuple[int, int, int]]()
        for row in order[first].tolist():
            topic, queue_id = batch.text(row, C.T_TOPIC_POS, C.T_TOPIC_LEN), int(rows[row, C.T_QUEUE_ID])
            begin, to = targets.first_position(topic), targets.queue_id(topic, queue_id)
            if begin > batch.positions[-1] or not self._is_legal(topic):
                found.append((-1, to, NOWHERE))
                continue
            found.append((keys.setdefault((topic, to), len(keys)), to, begin))
            if to != queue_id:
                moved[int(rows[row, C.T_QUEUE_HASH])] = topic, queue_id, to
        told = np.array(found, np.int64).reshape(-1, 3)[numbers]
        if len(order) and max(found, key=itemgetter(2))[2] > batch.positions[0]:
            here = batch.positions[order] >= told[:, 2]
            order, told = order[here], told[here]
        rows[order, C.T_QUEUE], rows[order, C.T_QUEUE_ID] = told[:, 0], told[:, 1]
        return order, list(keys), moved

    def _is_legal(self, topic: str) -> bool:
        try:
            self._store.rules.topic_bytes(topic)
        except MessageIllegalError:
            return False
        return True

    # -- the others

    def _put_others(self, batch: _Batch) -> None:
        """Deliver or roll the timers that the kernel cannot write, by due time."""
        left = list[int]()
        try:
            for row in self._by_due_time(batch, batch.state == _TODO).tolist():
                if self.stopped:
                    break
                try:
                    if self._put_one(batch, row):
                        left.append(row)
                except OSError as error:
                    self._cannot_read(batch, row, error)
        finally:
            self._left(batch, np.array(left, np.int64))

    def _put_one(self, batch: _Batch, row: int) -> bool:
        """Deliver a due timer, roll it or park it, and return True; or put it off. Raises OSError."""
        phy_offset, roll, message = int(batch.positions[row]), row in batch.roll, self._message(batch, row)
        if message is None:
            return True
        why = self.parking.why_gone(message.properties[REAL_TOPIC], phy_offset)
        identity = batch.identity(row) if why else None
        if identity is not None and self._records(PARKED_TOPIC, identity):
            return True
        status, cause = "", why
        if not why:
            result = self._put_again(message, int(batch.rows[row, C.T_WROTE]), roll=roll)
            if result.status.appended:
                self.counters["timerRolled" if roll else "timerPutBack"] += 1
                if not roll:
                    self.lateness.add(result.store_timestamp - int(batch.rows[row, C.T_DUE]))
                return True
            status, cause = result.status.name, result.remark
            why = f"{status}: {cause}" if result.status in NEVER else ""
        if why and self.park(message, why):
            return True
        self.counters["timerPutFailed"] += 1
        self._refused += 1
        events.TIMER_PUT_BACK_FAILED.log(_log, phy_offset=phy_offset, status=status, cause=cause)
        self._put_off(batch, row, NO_TRIES._replace(again_ms=self.reads.now_ms() + RETRY_MS))
        return False

    def _put_again(self, message: MessageExt, enqueue_ms: int, *, roll: bool) -> PutMessageResult:
        """Put the record that replaces a message (convertMessage). It keeps REAL_TOPIC and TIMER_OUT_MS."""
        properties, roll_due = message.properties, None
        if roll:
            roll_due = due_ms(
                properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, self._state.grain_ms)
        made = put_back_properties(properties, enqueue_ms, self._clock.now_ms(), roll_due)
        if roll:
            return self._store.put(inner_message(message, message.topic, message.queue_id, made))
        return self.parking.deliver(
            message, properties[REAL_TOPIC], whole_number(properties.get(REAL_QID, "0")) or 0, made)

    def park(self, message: MessageExt, reason: str) -> bool:
        """Park a timer that cannot be delivered. Return True if it is stored there.

        A request to delete is dropped.
        """
        if TIMER_DEL_UNIQKEY in message.properties:
            return True
        kept = self.parking.park(message, reason)
        self.counters["timerParked"] += kept
        return kept
