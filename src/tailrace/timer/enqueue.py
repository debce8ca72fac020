"""Moves messages into the wheel: each message of the timer queue gets a unit in the timer log and in its slot's list.

A batch of messages is read in runs and parsed by one kernel call; messages that are not plain are decoded one by
one. The rest is arithmetic on columns: slots and lists of the units, then one write to the timer log and one
change of the wheel. The order is: timer log, wheel, queue offset. If a step fails before the timer log has the
units, nothing has changed, and the same messages are enqueued again.

A message that cannot be read is skipped and read again by the rules of ``unread``. The offset on disk stays below it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import DiskFullError
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.formats.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_TOPIC
from tailrace.formats.timerlog import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TIMER_UNIT,
)
from tailrace.kernels import timer_records as kernel
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.arrays import (
    Ints,
    Units,
    counts,
    grouped,
    joined,
    numbered,
    read_records,
    whole,
)
from tailrace.timer.dequeue import Dequeue
from tailrace.timer.due_table import DueTable, column
from tailrace.timer.properties import out_ms
from tailrace.timer.put_back import PutBack
from tailrace.timer.state import Skipped, TimerState
from tailrace.timer.timer_log import TimerLog, pending_of, signs_of
from tailrace.timer.timer_metrics import TimerMetrics
from tailrace.timer.timer_wheel import NO_SLOT, TimerWheel
from tailrace.timer.unread import NO_TRIES

__all__ = ["Enqueue", "append_to_slot"]

_log = get_logger(__name__)
_BATCH: Final = 4096
"""Number of messages of a step, which holds the lock of the timers."""
_MOST_SKIPPED: Final = 4096
"""Number of messages that could not be read from which no further message is enqueued."""
_INT_MAX: Final = 0x7FFFFFFF


@dataclass(slots=True)
class _Batch:
    """Messages of the timer queue in its order: one row (E_*) for each."""

    rows: Ints
    offsets: Ints
    """Queue offsets of all messages that were wanted; ``rows`` has those of them that can be enqueued."""
    until: int
    """Queue offset after the last message of the batch and after those that were left out."""
    again: bool
    """True for messages that were skipped before."""
    topics: dict[int, str] = field(default_factory=dict)
    """Real topics by their hash."""
    stray: MessageExt | None = None
    """The message at ``until`` if it has no slot time or no topic."""
    unread: dict[int, tuple[int, int, OSError]] = field(default_factory=dict)
    """Position, size and error of messages that could not be read, by queue offset."""


def _batch_of(offsets: Ints, positions: Ints, sizes: Ints, until: int, *, again: bool) -> _Batch:
    rows = np.zeros((len(offsets), C.E_COLUMNS), np.int64)
    rows[:, C.E_OFFSET], rows[:, C.E_POSITION], rows[:, C.E_SIZE] = offsets, positions, sizes
    return _Batch(rows, offsets, until, again)


@final
class Enqueue:
    """The steps enqueue_get and enqueue_put; the caller holds the lock of the timers."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, wheel: TimerWheel, timer_log: TimerLog,
        due: DueTable, dequeue: Dequeue, put_back: PutBack, metrics: TimerMetrics, state: TimerState,
        roll_window_ms: int,
    ) -> None:
        self._clock = clock
        self._store = store
        self._wheel = wheel
        self._timer_log = timer_log
        self._due = due
        self._dequeue = dequeue
        self._put_back = put_back
        self._metrics = metrics
        self._state = state
        self._roll_window_ms = roll_window_ms
        self._reads = put_back.reads
        self._precision = state.precision_ms

    def behind(self) -> int:
        """Return the number of messages of the timer queue that are not in the wheel yet."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        end = queue.max_offset if queue is not None else 0
        return max(end - self._state.queue_offset, 0) + len(self._state.skipped)

    def has_all(self, until: int) -> bool:
        """Return True if the messages below a queue offset are in the wheel, or cannot be read for long."""
        return self._state.queue_offset >= until and not any(
            offset < until and self._reads.are_recent(message.tries)
            for offset, message in self._state.skipped.items())

    def step(self) -> bool:
        """Move the next messages into the wheel. Return True if there are more.

        After a failed append the queue offset is unchanged, so the same messages are enqueued again.
        """
        for batch in (self._skipped(), self._next()):
            if batch is not None and not self._move(batch):
                self._state.hold_until = 0  # the timers that occupy the slot must be delivered first
                return False
        return self._has_next()

    def _has_next(self) -> bool:
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        return queue is not None and queue.max_offset > self._state.queue_offset and (
            len(self._state.skipped) < _MOST_SKIPPED)

    def _skipped(self) -> _Batch | None:
        """Return the skipped messages whose time to be read again has come."""
        found = sorted(
            (offset, message.phy_offset, message.size) for offset, message in self._state.skipped.items()
            if self._reads.may_try(message.tries))
        if not found:
            return None
        offsets, positions, sizes = np.array(found, np.int64).T
        return _batch_of(offsets, positions, sizes, found[-1][0] + 1, again=True)

    def _units(self) -> Units:
        """Return the next units of the timer queue."""
        queue = self._store.queues.get(TIMER_TOPIC, 0)
        if queue is None or not self._has_next():
            return CQ_UNIT.view(b"")
        if self._state.queue_offset < queue.min_offset:
            events.TIMER_QUEUE_OFFSET_IS_BELOW_THE_LEAST_ONE.log(
                _log, offset=self._state.queue_offset, min_offset=queue.min_offset)
            self._state.queue_offset = queue.min_offset
        data = queue.units(self._state.queue_offset, _BATCH)
        return CQ_UNIT.view(data[: len(data) - len(data) % CQ_UNIT.size])

    def _next(self) -> _Batch | None:
        """Return the next messages of the timer queue, without those that the timer log has already."""
        units = self._units()
        if not len(units):
            return None
        wanted = units["size"] != PRE_BLANK_SIZE
        if len(self._state.known):
            near = np.searchsorted(self._state.known, units["phy_offset"])
            wanted &= self._state.known[np.minimum(near, len(self._state.known) - 1)] != units["phy_offset"]
        numbers = np.flatnonzero(wanted)
        return _batch_of(
            self._state.queue_offset + numbers, units["phy_offset"][numbers], units["size"][numbers],
            self._state.queue_offset + len(units), again=False)

    def _move(self, batch: _Batch) -> bool:
        try:
            room = self._timer_log.room()
        except (DiskFullError, OSError) as error:
            self._alarm(error)
            return False
        self._read(batch, room)
        if len(batch.rows):
            return self._put(batch)
        if batch.stray is not None:
            if not self._put_back.park(batch.stray, "no TIMER_OUT_MS or REAL_TOPIC"):
                return False
            batch.until += 1
        self._passed(batch, batch.until)
        return True

    def _passed(self, batch: _Batch, until: int) -> None:
        """Continue at ``until``: what is before it is in the wheel, or was parked, or is skipped."""
        state = self._state
        if batch.again:
            for offset in batch.offsets[batch.offsets < until].tolist():
                if offset not in batch.unread:
                    del state.skipped[offset]
        else:
            state.queue_offset = until
        for offset, (phy_offset, size, error) in batch.unread.items():
            if offset >= until:
                break
            before = state.skipped.get(offset)
            tries = self._reads.after(before.tries if before is not None else NO_TRIES, error, phy_offset, size)
            if self._reads.are_over(tries) and self._reads.leave_out(phy_offset, size, error):
                state.skipped.pop(offset, None)
            else:
                state.skipped[offset] = Skipped(phy_offset, size, tries)

    # -- enqueue_get

    def _read(self, batch: _Batch, room: int) -> None:
        """Read the first of the messages: as many as ``room`` allows, up to a stray one."""
        rows = batch.rows
        behind = np.flatnonzero(np.diff(rows[:, C.E_POSITION]) <= 0)
        count = min(room, whole(rows[:, C.E_SIZE]), int(behind[0]) + 1 if len(behind) else room)
        if count < len(rows):
            batch.until, rows = int(rows[count, C.E_OFFSET]), rows[:count]
        data = read_records(
            self._store.commit_log.read, rows[:, C.E_POSITION], rows[:, C.E_SIZE], rows[:, C.E_POS],
            on_error=self._put_back.read_failed)
        kernel.read_enqueued(data, rows)
        batch.rows, batch.topics = rows, _topics(data, rows)
        self._decode_odd(batch)

    def _decode_odd(self, batch: _Batch) -> None:
        """Decode messages that are not plain. Damaged records are left out; a stray message ends the batch.

        Messages of a read that failed count as not plain, so they are read one by one here.
        """
        rows = batch.rows
        readable = np.ones(len(rows), bool)
        for row in np.flatnonzero(rows[:, C.E_KIND] == C.E_ODD).tolist():
            phy_offset, size = int(rows[row, C.E_POSITION]), int(rows[row, C.E_SIZE])
            try:
                message = self._reads.message(phy_offset, size)
            except OSError as error:
                batch.unread[int(rows[row, C.E_OFFSET])] = phy_offset, size, error
                message = None
            if message is None:
                readable[row] = False
                continue
            out, topic = out_ms(message.properties), message.properties.get(REAL_TOPIC)
            if out is None or topic is None:
                batch.stray, batch.until = message, int(rows[row, C.E_OFFSET])
                readable[row:] = False
                break
            name = kernel.topic_hash(topic.encode())
            batch.topics[name] = topic
            rows[row, C.E_KIND] = (
                C.E_DELETE if TIMER_DEL_UNIQKEY in message.properties else C.E_TIMER)
            rows[row, C.E_OUT] = column(out)
            rows[row, C.E_TOPIC_HASH] = java_string_hash(topic)
            rows[row, C.E_TOPIC] = name
            rows[row, C.E_POSITION], rows[row, C.E_SIZE] = message.phy_offset, message.store_size
        if not readable.all():
            batch.rows = rows[readable]

    # -- enqueue_put

    def _put(self, batch: _Batch) -> bool:
        """Give each message a unit. Return True if all of them have one."""
        rows, until = batch.rows, batch.until
        now = self._clock.now_ms()
        write_time = self._state.floor(now)
        times, magics = self._slots_of(rows, write_time)
        count, blocked = self._free(times)
        if count < len(rows):
            until = int(rows[count, C.E_OFFSET])
            rows, times, magics = rows[:count], times[:count], magics[:count]
        units = _units_of(rows, times, magics, write_time)
        if count:
            try:
                self._list(times, units)
            except (DiskFullError, OSError) as error:
                self._alarm(error)
                return False
            self._count(rows, batch.topics)
        self._passed(batch, until)
        self._due.add(units[times < self._state.frontier_ms])
        return blocked is None or self._make_way(blocked, write_time)

    def _slots_of(self, rows: Ints, write_time: int) -> tuple[Ints, Ints]:
        """Return slot time and magic of each message (doEnqueue). A far timer gets an earlier slot to be rolled in."""
        window = self._roll_window_ms
        out = rows[:, C.E_OUT]
        times = out - out % self._precision
        magics = MAGIC_DEFAULT | np.where(
            rows[:, C.E_KIND] == C.E_DELETE, MAGIC_DELETE, 0)
        beyond = times - write_time - window
        far = beyond >= 0
        half = window // self._precision // 2 * self._precision
        times[far] = write_time + np.where(beyond[far] < window // 3, half, window)
        magics[far] |= MAGIC_ROLL
        first = self._dequeue.commit_read_time_ms
        if (late := times < first).any():
            self._state.late = {slot: due for slot, due in self._state.late.items() if slot >= first}
            self._state.late[first] = min(self._state.late.get(first, int(out[late].min())), int(out[late].min()))
        return np.maximum(times, first), magics

    def _free(self, times: Ints) -> tuple[int, int | None]:
        """Return how many of the first slot times may be filled now, and the slot time that must wait.

        The place of a slot in the ring may hold timers of another time that are not delivered (T5).
        """
        first, _, _ = numbered(times)
        slots = times[first]
        again = np.delete(first, numbered(self._wheel.places(slots))[0])  # a ring apart, within one batch
        count = int(again.min(initial=len(times)))
        held = self._wheel.slots_at(slots)
        held_ms = held["time"] * self._precision
        occupied = (held_ms != slots) & (held_ms > 0) & (held["last_pos"] >= 0)
        occupied &= held_ms >= self._dequeue.commit_read_time_ms
        if not occupied.any() or int(first[occupied].min()) >= count:
            return count, None
        count = int(first[occupied].min())
        return count, int(times[count])

    def _list(self, times: Ints, units: Units) -> None:
        """Append units, each linked to the newest one of its slot. Raises DiskFullError or OSError."""
        order, heads = grouped(times)
        tails = np.append(heads[1:], len(times)) - 1
        slots = times[order[heads]]
        first, last, num = self._wheel.lists_of(slots)
        for place in np.flatnonzero(slots < self._state.frontier_ms).tolist():
            if int(slots[place]) not in self._due.slots:
                # All timers of the list have left, so a new list starts.
                first[place], last[place], num[place] = -1, -1, 0
        begin = self._timer_log.max_offset
        positions = begin + TIMER_UNIT.size * order
        previous = np.append(-1, positions[:-1])
        previous[heads] = last
        units["prev_pos"][order] = previous
        self._timer_log.append(units.tobytes())
        signs = signs_of(units)
        self._wheel.put_slots(
            slots, np.where(first < 0, positions[heads], first), positions[tails],
            num + np.add.reduceat(signs[order], heads))

    def _count(self, rows: Ints, topics: dict[int, str]) -> None:
        """Update the metrics, in the order in which the topics come first."""
        is_delete = rows[:, C.E_KIND] == C.E_DELETE
        values = rows[:, C.E_TOPIC] - is_delete  # a hash is odd
        for value, count in counts(values):
            self._metrics.add(topics[value | 1], count if value & 1 else -count, count)

    def _make_way(self, slot_time: int, now: int) -> bool:
        """Move timers that became too early because the clock was set back. Return True if the slot is free now."""
        try:
            return self.make_way(slot_time, now)
        except (DiskFullError, OSError) as error:
            self._alarm(error)
            return False

    def make_way(self, slot_time_ms: int, now_ms: int) -> bool:
        """Move timers that are due after the roll window out of the place of a slot. Return True if it is free now.

        When a slot is filled it is never further ahead than the roll window. If the clock is set back by about the
        length of the ring, places that new slots need hold timers that are now far ahead, and timers that are due
        earlier would have to wait for them. So the units of these timers are written again into the slot at the end of
        the window, from which they are rolled. The old units stay in the timer log: a rebuilt wheel may list a timer
        twice, and the double is recognised when its slot is read. ``now_ms`` is a multiple of the precision. Raises
        DiskFullError or OSError; every timer is then still in a slot.
        """
        wheel, target = self._wheel, now_ms + self._roll_window_ms
        held = wheel.held_time(target)
        far = sorted({wheel.held_time(slot_time_ms), held})
        far = [time for time in far if time > target and wheel.get_slot(time).last_pos >= 0]
        if wheel.held_time(slot_time_ms) not in far or (
            held not in {0, target, *far} and wheel.get_slot(held).last_pos >= 0
        ):
            return False
        units = joined([self._dequeue.walk(time, wheel.get_slot(time).last_pos) for time in far])
        units = units[np.argsort(units["phy_offset"], kind="stable")]
        units["magic"] |= MAGIC_ROLL
        units["write_time_ms"] = now_ms
        units["delay_ms"] = self._roll_window_ms
        append_to_slot(wheel, self._timer_log, target, units, replace=held != target)
        for time in far:
            if wheel.get_slot(time) is not NO_SLOT:  # else the target has its place
                wheel.put_slot(time, -1, -1, 0)
        return True

    def _alarm(self, error: Exception) -> None:
        self._put_back.counters["timerAppendFailed"] += 1
        events.TIMER_LOG_APPEND_FAILED.log(_log, queue_offset=self._state.queue_offset, cause=error)


def _units_of(rows: Ints, times: Ints, magics: Ints, write_time: int) -> Units:
    """Return units for the timer log that are not linked yet."""
    units = np.zeros(len(rows), TIMER_UNIT.dtype)
    wrote = np.where(times - write_time >= -_INT_MAX, write_time, times)
    units["size"], units["magic"] = TIMER_UNIT.size, magics
    units["write_time_ms"], units["delay_ms"] = wrote, times - wrote
    units["phy_offset"], units["msg_size"] = rows[:, C.E_POSITION], rows[:, C.E_SIZE]
    units["topic_hash"] = rows[:, C.E_TOPIC_HASH]
    return units


def _topics(data: bytes, rows: Ints) -> dict[int, str]:
    """Return the real topics of plain messages by their hash."""
    plain = np.flatnonzero(rows[:, C.E_KIND] != C.E_ODD)
    found = {}
    for row in plain[numbered(rows[plain, C.E_TOPIC])[0]].tolist():
        at, length = int(rows[row, C.E_TOPIC_POS]), int(rows[row, C.E_TOPIC_LEN])
        found[int(rows[row, C.E_TOPIC])] = data[at : at + length].decode("ascii")
    return found


def append_to_slot(wheel: TimerWheel, log: TimerLog, time_ms: int, units: Units, *, replace: bool = False) -> None:
    """Append units to the list of a slot, or with ``replace`` as a list that replaces it.

    Raises DiskFullError or OSError; the list of the slot is then unchanged.
    """
    slot = NO_SLOT if replace else wheel.get_slot(time_ms)
    first, last, at = slot.first_pos, slot.last_pos, 0
    while at < len(units):
        part = units[at : at + log.room()].copy()
        begin = log.max_offset
        part["prev_pos"] = begin + TIMER_UNIT.size * np.arange(-1, len(part) - 1)
        part["prev_pos"][0] = last
        log.append(part.tobytes())
        first, last, at = begin if first < 0 else first, begin + TIMER_UNIT.size * (len(part) - 1), at + len(part)
    wheel.put_slot(time_ms, first, last, slot.num + pending_of(units))
