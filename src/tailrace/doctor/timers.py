"""Pending and parked timers of a directory, found in its CommitLog without the lock.

The timer queue holds every timer that was ever put; this module finds those that are still pending. All copies
of a far timer count once. A timer that a request to delete names is not pending. A timer is delivered if its
delivered record is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from tailrace.env.filesystem import File
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.filenames import CONFIG, TIMERCHECK, TIMERLOG, is_number
from tailrace.formats.names import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, TIMER_TOPIC
from tailrace.formats.timerlog import MAGIC_MASK, TIMER_UNIT
from tailrace.model import MessageExt
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.directory_format import read_format
from tailrace.timer.pending import PendingTimer, parked_timer, pending_timer, unreadable_timer
from tailrace.timer.properties import (
    PARKED_TOPIC,
    Identity,
    due_ms,
    identity_of,
    named_by,
    out_ms,
)
from tailrace.timer.timer_checkpoint import read_timer_checkpoint

__all__ = ["parked_timers", "pending_timers"]

_READ = TIMER_UNIT.size * 20_000
_MARK = TIMER_OUT_MS.encode() + b"\x01"


def pending_timers(directory: StoreDirectory) -> list[PendingTimer]:
    """Return every pending timer, by due time, and messages of timers that cannot be read."""
    found: dict[Identity | int, MessageExt] = {}
    deleted: set[Identity] = set()
    unread: dict[int, OSError] = {}
    for message in _messages(directory, _queues(directory, {TIMER_TOPIC}), unread=unread):
        out = out_ms(message.properties)
        if out is None or REAL_TOPIC not in message.properties:
            continue
        if TIMER_DEL_UNIQKEY in message.properties:
            deleted.update(named_by(message.properties, out))
        else:
            found[identity_of(message.properties, out) or message.phy_offset] = message
    topics = {message.properties[REAL_TOPIC] for message in found.values()}
    delivered = _delivered(directory, topics | {PARKED_TOPIC})
    grain = _grain_ms(directory)
    units = _log_units(directory, [*unread, *(message.phy_offset for message in found.values())])
    pending = [
        pending_timer(
            message,
            due_ms(message.properties, int(message.properties[TIMER_OUT_MS]), message.store_timestamp, grain),
            timer_log_pos=units[message.phy_offset].pos if message.phy_offset in units else -1)
        for identity, message in found.items()
        if isinstance(identity, int)  # without a unique key the log cannot show that it was delivered
        or not (identity in delivered or identity in deleted)
    ]
    pending += _unreadable(directory, unread, units, grain)
    return sorted(pending, key=lambda timer: (timer.due_ms, timer.phy_offset))


class _Listed(NamedTuple):
    """The last unit of a message in the timer log: its position and the time of its slot."""

    pos: int
    slot_ms: int


def _unreadable(
    directory: StoreDirectory, unread: dict[int, OSError], units: dict[int, _Listed], grain: int
) -> Iterator[PendingTimer]:
    """Yield the messages that cannot be read, without those whose slot the checkpoint counts as delivered."""
    fields = read_timer_checkpoint(directory.file_system, f"{directory.path}/{CONFIG}/{TIMERCHECK}")
    read_ms = fields.last_read_time_ms if fields is not None else 0
    for place, error in unread.items():
        listed = units.get(place, _Listed(-1, read_ms))
        if listed.slot_ms >= read_ms // grain * grain:
            yield unreadable_timer(place, listed.slot_ms + grain, error)._replace(timer_log_pos=listed.pos)


def _grain_ms(directory: StoreDirectory) -> int:
    return read_format(directory.file_system, directory.path).timer.coarsest(directory.config.timer_precision_ms)


def parked_timers(directory: StoreDirectory) -> list[PendingTimer]:
    """Return the messages in the topic of parked messages, by due time."""
    grain = _grain_ms(directory)
    return sorted(
        parked_timer(message, grain)
        for message in _messages(directory, _queues(directory, {PARKED_TOPIC}), b"", unread={}))


def _log_units(directory: StoreDirectory, phy_offsets: list[int]) -> dict[int, _Listed]:
    """Return the last unit of some messages, by their position in the CommitLog."""
    found: dict[int, _Listed] = {}
    wanted = np.array(phy_offsets, dtype=np.int64)
    root, files = f"{directory.path}/{TIMERLOG}", directory.file_system
    names = [name for name in files.list(root) if is_number(name)] if files.exists(root) else []
    for name in sorted(names):
        with closing(files.open(f"{root}/{name}")) as file:
            for at in _reads(file):
                data = file.pread(_READ, at)
                units = TIMER_UNIT.view(data[: len(data) - len(data) % TIMER_UNIT.size])
                good = (units["size"] == TIMER_UNIT.size) & (units["magic"] & ~MAGIC_MASK == 0)
                good &= np.isin(units["phy_offset"], wanted)
                for number in np.flatnonzero(good).tolist():
                    unit = units[number]
                    found[int(unit["phy_offset"])] = _Listed(
                        int(name) + at + number * TIMER_UNIT.size, int(unit["write_time_ms"]) + int(unit["delay_ms"]))
    return found


def _reads(file: File) -> Iterator[int]:
    """Yield the positions at which `_READ` bytes of a timer log file are read. Holes are skipped."""
    for low, high in file.data_ranges(0, file.size()):
        yield from range(low // TIMER_UNIT.size * TIMER_UNIT.size, high, _READ)


def _queues(directory: StoreDirectory, topics: set[str]) -> list[ConsumeQueue]:
    return [queue for queue in directory.queues() if queue.topic in topics]


def _messages(
    directory: StoreDirectory, queues: list[ConsumeQueue], mark: bytes = _MARK, *, unread: dict[int, OSError]
) -> Iterator[MessageExt]:
    """Yield the messages of queues whose records have some bytes. For ``unread`` see ``StoreDirectory.records``."""
    for queue in queues:
        for _, _, data in directory.records(queue, unread):
            if data is None or mark not in data:
                continue
            try:
                yield decode_message(data)
            except CorruptionError:
                continue


def _delivered(directory: StoreDirectory, topics: set[str]) -> set[Identity]:
    """Return the identities of delivered timers of some topics."""
    return {
        identity for message in _messages(directory, _queues(directory, topics), unread={})
        if (out := out_ms(message.properties)) is not None
        and (identity := identity_of(message.properties, out)) is not None
    }
