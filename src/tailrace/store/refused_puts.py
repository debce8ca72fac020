"""Puts that were refused: their number by reason, rare log lines, and whether a put can succeed now.

A put that finds no room for the next bytes of the log is refused although no running flag is set, because room may be
there again a moment later. `RefusedPuts.failing` has the cause from the first such put until a put succeeds, or until
`RefusedPuts.probe`, which a service calls each second, finds room.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import DiskFullError, FatalStorageError
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.store.append import PutCounts
from tailrace.store.running_flags import DISK_FULL, RunningFlags

__all__ = ["FEW_REPLICAS", "FLOW_CONTROL", "NO_TOPIC", "REASONS", "RefusedPuts"]

_log = get_logger(__name__)
FLOW_CONTROL: Final = "flow_control"
NO_TOPIC: Final = "no_topic"
"""The topic of a send does not exist, and its configuration cannot be written."""
FEW_REPLICAS: Final = "few_replicas"
"""Fewer brokers are in sync than minInSyncReplicas."""
_ILLEGAL: Final = "illegal"
_DISK_FULL: Final = "disk_full"
_NOT_WRITEABLE: Final = "not_writeable"
_REASON_OF: Final = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: _NOT_WRITEABLE,
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: "no_room",
    PutMessageStatus.MESSAGE_ILLEGAL: _ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: _ILLEGAL,
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: _ILLEGAL,
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: _ILLEGAL,
    PutMessageStatus.OS_PAGE_CACHE_BUSY: FLOW_CONTROL,
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: "timer_flow_control",
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: "lmq_quota",
}
_UNKNOWN: Final = "unknown"
REASONS: Final = tuple(sorted({*_REASON_OF.values(), _DISK_FULL, FEW_REPLICAS, NO_TOPIC, _UNKNOWN}))


@final
class RefusedPuts:
    """Counts refused puts. Any thread may call its methods; a put that succeeds calls none of them."""

    def __init__(self, clock: Clock, puts: PutCounts, flags: RunningFlags) -> None:
        self.counts = Counter(dict.fromkeys(REASONS, 0))
        """Number of refused puts by reason."""
        self._clock = clock
        self._puts = puts
        self._flags = flags
        self._lines = LogRateLimiter()
        self._lock = threading.Lock()
        self._failing = ""
        self._puts_before = 0

    @property
    def failing(self) -> str:
        """Why the last put found no room; empty if a put has succeeded since."""
        return self._failing if self._puts.times == self._puts_before else ""

    def note(self, result: PutMessageResult) -> None:
        """Count a result that is a refusal."""
        reason = _REASON_OF.get(result.status, _UNKNOWN)
        if reason == _NOT_WRITEABLE and self._flags.bits == DISK_FULL:
            reason = _DISK_FULL
        if result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED:
            self._failing, self._puts_before = result.remark or result.status.name, self._puts.times
        self.count(reason, result.remark or result.status.name)

    def count(self, reason: str, cause: str) -> None:
        """Count a refusal, and log at most one line a minute for each reason that is not the sender's own mistake."""
        with self._lock:
            self.counts[reason] += 1
            due = 0 if reason == _ILLEGAL else self._lines.due(reason, self._clock.monotonic_ns() / 1e9)
        if due:
            events.SENDS_ARE_REFUSED.log(_log, reason=reason, count=due, cause=cause)

    def probe(self, make_room: Callable[[], None]) -> None:
        """Find out whether a put that found no room would find it now.

        ``make_room`` reserves what the next put needs, and raises DiskFullError, FatalStorageError or OSError.
        """
        if not self._failing or not self._flags.is_writeable():
            return
        if self.failing:
            try:
                make_room()
            except (DiskFullError, FatalStorageError, OSError) as error:
                self._failing = str(error)
                return
        self._failing = ""
        events.SENDS_FIND_ROOM_AGAIN.log(_log, refused=self.counts.total())
