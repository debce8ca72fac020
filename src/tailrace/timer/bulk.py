"""Many timers of a slot that are due already, put back without waiting in memory one by one.

Only what is plain goes this way: no far timer, no request to delete, nothing that may have been
delivered before. All else is left to the dequeue.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from tailrace.env.clock import Clock
from tailrace.formats.commitlog import StoredMessage, SysFlag, decode_properties, unpack_stored
from tailrace.formats.timerlog import MAGIC_DEFAULT, TimerUnit
from tailrace.model import MessageExtBrokerInner
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.properties import (
    REAL_QID,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    Identity,
    due_ms,
    identity_of,
    out_ms,
)
from tailrace.timer.put_back import PutBack
from tailrace.timer.slots import DueQueue, SlotState

__all__ = ["BulkPutBack"]

MANY: Final = 32
"""From so many units of a slot on it is worth it."""
_CHUNK: Final = 500
_WINDOW: Final = 4 << 20
_HOSTS: Final = SysFlag.BORNHOST_V6 | SysFlag.STOREHOST_V6
_TOPIC: Final = TIMER_TOPIC.encode()
_OWN: Final = frozenset({
    TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_DEL_UNIQKEY})


class _Due(NamedTuple):
    due_ms: int
    phy_offset: int
    unit: TimerUnit
    stored: StoredMessage
    identity: Identity
    queue_id: int


@final
class BulkPutBack:
    """The caller holds the timers' lock."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, due: DueQueue, put_back: PutBack,
        precision_ms: int,
    ) -> None:
        self._clock = clock
        self._store = store
        self._due = due
        self._put_back = put_back
        self._precision = precision_ms

    def step(self, state: SlotState) -> tuple[int, int]:
        """Put back the plain ones of the next units of a slot; how many, and how many are left of those.

        What is left stays at the head of ``state.units``. A unit goes from there when its record is in
        the log, also when a later put raises.
        """
        now = self._clock.now_ms()
        units = list(itertools.islice(state.units, _CHUNK))
        found, seen = list[_Due](), set[Identity]()
        for unit, data in zip(units, self._records(units), strict=True):
            due = self._plain(state, unit, data, now)
            if due is not None and due.identity not in seen:
                seen.add(due.identity)
                found.append(due)
        found.sort()  # by due time, then in the order of the log
        gone = set[int]()
        try:
            for item in found:
                if not self._put(item):
                    break
                gone.add(item.phy_offset)
                state.identities.add(item.identity)
        finally:
            self._put_back.counters["timerPutBack"] += len(gone)
            topics = Counter(item.identity.real_topic for item in found[: len(gone)])
            for topic, count in topics.items():
                self._due.left_many(topic, count)
            for _ in units:
                state.units.popleft()
            left = [unit for unit in units if unit.phy_offset not in gone]
            state.units.extendleft(reversed(left))
        flush = self._store.flush_commit_log
        if gone and flush.sync and flush.handle is not None:
            flush.handle.wake()  # under SYNC_FLUSH consumers see a record when it is durable
        return len(gone), len(left)

    def _records(self, units: Sequence[TimerUnit]) -> list[bytes]:
        """The stored bytes of each unit's message, neighbours in one read."""
        log, found = self._store.commit_log, dict[int, bytes]()
        ordered = sorted(units, key=lambda unit: unit.phy_offset)
        at = 0
        while at < len(ordered):
            first, until, used = ordered[at].phy_offset, at, 0
            end = first
            while until < len(ordered) and ordered[until].phy_offset - end <= used + 4096 and (
                ordered[until].phy_offset + ordered[until].msg_size - first <= _WINDOW
            ):
                used += ordered[until].msg_size
                end = ordered[until].phy_offset + ordered[until].msg_size
                until += 1
            until = max(until, at + 1)
            run = ordered[at:until]
            end = run[-1].phy_offset + run[-1].msg_size
            data = log.read(first, end - first)
            for unit in run:
                start = unit.phy_offset - first
                found[unit.phy_offset] = data[start : start + unit.msg_size]
            at = until
        return [found[unit.phy_offset] for unit in units]

    def _plain(self, state: SlotState, unit: TimerUnit, data: bytes, now: int) -> _Due | None:
        """The timer of a unit when it is due and there is nothing to ask about it."""
        stored = unpack_stored(data) if unit.magic == MAGIC_DEFAULT else None
        if stored is None or stored.phy_offset != unit.phy_offset or stored.topic != _TOPIC:
            return None
        properties = decode_properties(stored.properties)
        out = out_ms(properties)
        if out is None or out >= now or out < self._put_back.suspicious_until_ms or (
            unit.phy_offset in state.waiting or not _OWN.isdisjoint(properties)
        ):
            return None
        identity = identity_of(properties, out)
        due = due_ms(properties, out, stored.store_timestamp, self._precision)
        if due > now or identity is None or not self._is_new(state, identity):
            return None
        try:
            queue_id = int(properties.get(REAL_QID, ""))
        except ValueError:
            return None
        return _Due(due, unit.phy_offset, unit, stored, identity, queue_id)

    def _is_new(self, state: SlotState, identity: Identity) -> bool:
        return bool(identity.real_topic) and not (
            identity in state.identities or self._due.is_deleted(identity) or self._due.has(identity))

    def _put(self, item: _Due) -> bool:
        stored = item.stored
        text = stored.properties
        end = b"" if text.endswith(b"\x02") else b"\x02"
        result = self._store.put(MessageExtBrokerInner(
            item.identity.real_topic, item.queue_id, stored.body,
            b"%b%bTIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (
                text, end, item.unit.write_time_ms, self._clock.now_ms()),
            stored.flag, stored.sys_flag & ~_HOSTS, stored.born_timestamp, stored.born_host,
            stored.reconsume_times, 0, wait_store_msg_ok=False))
        if not result.status.appended:
            return False
        self._put_back.lateness.add(result.store_timestamp - item.due_ms)
        return True
