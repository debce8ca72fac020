"""Pending timers of a directory, told from its CommitLog without its lock.

The timer queue holds every timer that was ever put; what counts is which of them are still to come.
Copies of a far timer are one, a request to delete takes what it names away, and a timer whose slot
time has passed is delivered when its put-back record is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailrace.env.filesystem import File
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.filenames import TIMERLOG, is_number
from tailrace.formats.timerlog import MAGIC_MASK, TIMER_UNIT
from tailrace.model import MessageExt
from tailrace.store.directory import QueueView, StoreDirectory
from tailrace.timer.properties import (
    PARKED_TOPIC,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    UNIQ_KEY,
    Identity,
    due_ms,
    identity_of,
    named_by,
    out_ms,
)
from tailrace.timer.timer_hint import grain_ms

__all__ = ["PendingTimer", "pending_timers"]

_READ = TIMER_UNIT.size * 20_000
_MARK = TIMER_OUT_MS.encode() + b"\x01"


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """A timer that is to come. ``roll`` counts its rounds so far."""

    due_ms: int
    topic: str
    queue_id: int
    uniq_key: str
    keys: str
    physical_offset: int
    roll: int
    timer_log_pos: int
    """Where the timer log has it, -1 when it has not."""

    def line(self) -> dict[str, Any]:
        """The line of ``tailrace timers --json``."""
        return {"timer": {
            "dueMs": self.due_ms, "topic": self.topic, "queueId": self.queue_id,
            "uniqKey": self.uniq_key, "keys": self.keys, "physicalOffset": self.physical_offset,
            "timerLogPos": self.timer_log_pos, "roll": self.roll, "state": "pending",
        }}


def pending_timers(directory: StoreDirectory) -> list[PendingTimer]:
    """Every pending timer, by due time."""
    found: dict[Identity | int, MessageExt] = {}
    deleted: set[Identity] = set()
    for message in _messages(directory, _queues(directory, {TIMER_TOPIC})):
        out = out_ms(message.properties)
        if out is None or REAL_TOPIC not in message.properties:
            continue
        if TIMER_DEL_UNIQKEY in message.properties:
            deleted.update(named_by(message.properties, out))
        else:
            found[identity_of(message.properties, out) or message.phy_offset] = message
    topics = {message.properties[REAL_TOPIC] for message in found.values()}
    delivered = _delivered(directory, topics | {PARKED_TOPIC})
    grain = grain_ms(
        directory.file_system, directory.path, directory.config.timer_precision_ms)
    positions = _log_positions(directory, [message.phy_offset for message in found.values()])
    pending = [
        _pending(message, grain, positions.get(message.phy_offset, -1)) for identity, message in found.items()
        if isinstance(identity, int)  # without a unique key nobody can tell more
        or not (identity in delivered or identity in deleted)
    ]
    return sorted(pending, key=lambda timer: (timer.due_ms, timer.physical_offset))


def _log_positions(directory: StoreDirectory, phy_offsets: list[int]) -> dict[int, int]:
    """Position of the last unit of some messages, by their place in the CommitLog."""
    found: dict[int, int] = {}
    wanted = np.array(phy_offsets, dtype=np.int64)
    root, files = f"{directory.path}/{TIMERLOG}", directory.file_system
    names = [name for name in files.list(root) if is_number(name)] if files.exists(root) else []
    for name in sorted(names):
        file = files.open(f"{root}/{name}")
        try:
            for at in _reads(file):
                data = file.pread(_READ, at)
                units = TIMER_UNIT.view(data[: len(data) - len(data) % TIMER_UNIT.size])
                good = (units["size"] == TIMER_UNIT.size) & (units["magic"] & ~MAGIC_MASK == 0)
                good &= np.isin(units["phy_offset"], wanted)
                for number in np.flatnonzero(good).tolist():
                    found[int(units["phy_offset"][number])] = (
                        int(name) + at + number * TIMER_UNIT.size)
        finally:
            file.close()
    return found


def _reads(file: File) -> Iterator[int]:
    """Positions from which `_READ` bytes of a timer log file are read: holes are left out."""
    for low, high in file.data_ranges(0, file.size()):
        yield from range(low // TIMER_UNIT.size * TIMER_UNIT.size, high, _READ)


def _queues(directory: StoreDirectory, topics: set[str]) -> list[QueueView]:
    return [queue for queue in directory.queues() if queue.topic in topics]


def _messages(directory: StoreDirectory, queues: list[QueueView]) -> Iterator[MessageExt]:
    for queue in queues:
        for _, _, data in directory.records(queue):
            if data is None or _MARK not in data:
                continue
            try:
                yield decode_message(data)
            except CorruptionError:
                continue


def _delivered(directory: StoreDirectory, topics: set[str]) -> set[Identity]:
    """Identities of the put-back records of some topics."""
    return {
        identity for message in _messages(directory, _queues(directory, topics))
        if (out := out_ms(message.properties)) is not None
        and (identity := identity_of(message.properties, out)) is not None
    }


def _pending(message: MessageExt, grain: int, timer_log_pos: int) -> PendingTimer:
    properties = message.properties
    return PendingTimer(
        due_ms(properties, int(properties[TIMER_OUT_MS]), message.store_timestamp, grain),
        properties[REAL_TOPIC], _number(properties.get(REAL_QID)), properties.get(UNIQ_KEY, ""),
        properties.get("KEYS", ""), message.phy_offset, _number(properties.get(TIMER_ROLL_TIMES)),
        timer_log_pos)


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
