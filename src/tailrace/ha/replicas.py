"""The slaves that are connected: what each of them has, and what that means for puts.

Rules:
  RP3  A report counts only if the master has sent that much, or the slave had it when it connected (H2).
  RP4  A host has as many connections as slaves; a newer connection replaces the oldest one (H11).
  RP5  A slave copies a timer checkpoint only if it is connected and has the log of the checkpoint (SM4). Of a host with
       several slaves, all must be connected, because a request does not say which of them sent it.
  RP6  A slave gives way to messages that came since its last part, unless they wait for it, or the log grows so fast
       that it would not catch up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import RemotingFrameError
from tailrace.formats.timercheckpoint import TimerCheckpointFields
from tailrace.ha.comparison import Verdict
from tailrace.ha.faults import Fault, Faults
from tailrace.ha.log_gaps import SEAL
from tailrace.ha.timer_positions import TimerPositions
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["NOT_YET", "Replica", "Replicas"]

_log = get_logger(__name__)
NOT_YET: Final = -1
"""Position of a slave that has reported nothing; nothing of it counts."""
_SECOND_NS: Final = 1_000_000_000
_BURST_NS: Final = 150_000_000
_LEAST_NS: Final = 50_000_000
_GROWS_FAST: Final = 128 << 10
"""Bytes that came since the last part from which a slave does not give way: half of what it gets then."""
_PLACES_MAX: Final = 100
"""Places of former damage at which a slave is compared: one request each when it connects."""


class WrongLogError(RemotingFrameError):
    """A slave reports a position that does not fit this log."""


class _Closes(Protocol):
    def close(self) -> None: ...


@final
class Replica:
    """A connected slave."""

    def __init__(self, peer: str, host: str, connection: _Closes, now_ns: int) -> None:
        self.peer, self.host = peer, host
        self.connection = connection
        self.acknowledged = NOT_YET
        """Position up to which it has the log."""
        self.next = NOT_YET
        """Position of the next byte to send."""
        self.seen_end = 0
        """End of the log when the last part was sent."""
        self.was_in_sync: bool | None = None
        """Whether it was in sync when that was looked at last; None before it was for the first time."""
        self.compared = Verdict.NOT_COMPARED
        """Whether its log was compared with this one when it connected."""
        self.read_ns = self.wrote_ns = now_ns
        """Monotonic times of the last byte read and of the last byte written."""
        self.sent_bytes = 0
        """Bytes of the log that were sent on this connection."""
        self.bytes_per_s = 0
        self._second_ns, self._second_bytes = now_ns, 0
        self._paid_ns, self._unpaid_bytes = 0, 0
        """Time up to which the flow limit was used, without the bytes that were sent since."""

    def count(self, size: int, now_ns: int) -> None:
        """Count bytes that are sent, headers included."""
        if now_ns - self._second_ns >= _SECOND_NS:
            self.bytes_per_s = self._second_bytes if now_ns - self._second_ns < 2 * _SECOND_NS else 0
            self._second_ns, self._second_bytes = now_ns, 0
        self._second_bytes += size
        self._unpaid_bytes += size
        self.wrote_ns = now_ns

    def left(self, limit: int, now_ns: int) -> int:
        """Return how many bytes may be sent now with ``limit`` bytes a second, at most those of `_BURST_NS`.

        RocketMQ sends those of a second together, and the clients of the master wait in the meantime. Fewer bytes than
        those of `_LEAST_NS` count as 0, because each send costs the same.
        """
        byte_ns = _SECOND_NS / limit
        used_ns = self._paid_ns + round(self._unpaid_bytes * byte_ns)
        self._paid_ns = max(used_ns, now_ns - max(_BURST_NS, round(byte_ns)))
        self._unpaid_bytes = 0
        left = max(0, (now_ns - self._paid_ns) * limit // _SECOND_NS)
        return left if left * byte_ns >= _LEAST_NS else 0


@final
class Replicas:
    """The connected slaves of a store. Used in the thread of the event loop."""

    def __init__(self, clock: Clock, store: DefaultMessageStore) -> None:
        self._clock = clock
        self._store = store
        self._config = store.config
        self._all: dict[Replica, None] = {}
        self._slaves_of: dict[str, int] = {}
        """Number of slaves by host, as it was when one of them connected last."""
        self.opened_at: Final = store.commit_log.max_offset
        """End of the log when the store was opened (brokerInitMaxOffset)."""
        self.closed: dict[str, int] = {}
        """Number of connections that were closed, by reason."""
        self.last_refusal = ""
        """The last slave that was refused or disconnected because of its log, with the reason."""
        self.sent_bytes = 0
        """Bytes of the log that were sent to all slaves since the start."""
        self.faults = Faults()
        """What is wrong besides the connections of slaves."""
        self._gaps: list[int] = []
        self._stepped_over: list[int] = []
        self._lines = LogRateLimiter()
        self._said_unreplicated = 0
        self._timers: TimerPositions | None = None

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._all))

    def __len__(self) -> int:
        return len(self._all)

    @property
    def max_offset(self) -> int:
        """Position after the last byte that a slave can have."""
        queue = self._store.commit_log.queue
        return queue.flushed_where if self._store.replication.sends_synced_only else queue.max_offset

    @property
    def gaps(self) -> list[int]:
        """Positions of gaps at which slaves stop, of segments that were not deleted."""
        return [at for at in self._gaps if at >= self._store.commit_log.min_offset]

    @gaps.setter
    def gaps(self, found: list[int]) -> None:
        self._gaps = found
        self._name_gaps()

    @property
    def stepped_over(self) -> list[int]:
        """Positions of damage that recovery has stepped over, the last 100, also where a placeholder is now.

        A slave may have the bytes of before.
        """
        return [at for at in self._stepped_over if at >= self._store.commit_log.min_offset]

    @stepped_over.setter
    def stepped_over(self, found: list[int]) -> None:
        self._stepped_over = found[-_PLACES_MAX:]

    def _name_gaps(self) -> None:
        if left := self.gaps:
            self.faults.begin(Fault.GAP, f"slaves stop at {', '.join(map(str, left))}: {SEAL}")
        else:
            self.faults.end(Fault.GAP)

    def add(self, replica: Replica, most: int) -> list[Replica]:
        """Add a connection of a host that may have ``most``. Return those that it replaces; the caller closes them."""
        same = [one for one in self._all if one.host == replica.host]
        self._all[replica] = None
        self._slaves_of[replica.host] = most
        return same[: max(len(same) + 1 - most, 0)]

    def remove(self, replica: Replica, reason: str) -> bool:
        """Remove a connection that has ended. Return False if it was not there."""
        if replica not in self._all:
            return False
        del self._all[replica]
        self.closed[reason] = self.closed.get(reason, 0) + 1
        self.update()
        return True

    def report(self, replica: Replica, position: int) -> None:
        """Take a report of a slave. Raises WrongLogError for one that cannot be true; it counts for nothing.

        The first report decides where the slave begins: at its end, or if it is empty at the first file (H8), with
        ``sync_from_last_file`` at the last one.
        """
        if replica.next == NOT_YET:
            self.check_first(position)
            replica.next = position or self._start()
            replica.acknowledged = position
        elif position < 0:
            raise WrongLogError("it reports a position below 0")
        elif position > replica.next:
            raise WrongLogError("it reports more than it was sent")
        else:
            replica.acknowledged = max(replica.acknowledged, position)
        self.update()

    def check_first(self, position: int) -> None:
        """Raise WrongLogError unless a slave that ends at ``position`` can be sent what follows."""
        log = self._store.commit_log
        if position < 0:
            raise WrongLogError("it reports a position below 0")
        if position > log.max_offset:
            raise WrongLogError("it has more than this broker")
        if 0 < position < log.min_offset:
            raise WrongLogError("what it lacks first was deleted here")

    def gives_way(self, replica: Replica) -> bool:
        """Return whether the next part must wait for puts (RP6). Call it once for each part."""
        end = self.max_offset
        grown, replica.seen_end = end - replica.seen_end, end
        return 0 < grown < _GROWS_FAST and replica.next < self._store.replication.replicated_where

    def _start(self) -> int:
        files = self._store.commit_log.queue.files
        if not files:
            return 0
        return files[-1 if self._config.sync_from_last_file else 0].file_from_offset

    def is_in_sync(self, replica: Replica) -> bool:
        """Return True if a slave has reported and lacks less than ``ha_max_gap_not_in_sync``."""
        if replica.acknowledged == NOT_YET:
            return False
        return self._store.commit_log.max_offset - replica.acknowledged < self._config.ha_max_gap_not_in_sync

    @property
    def in_sync(self) -> int:
        """Number of slaves that are in sync."""
        return sum(map(self.is_in_sync, self._all))

    @property
    def acknowledged_by_all(self) -> int | None:
        """Position up to which every slave that has reported has the log; None without one."""
        return min((one.acknowledged for one in self._all if one.acknowledged != NOT_YET), default=None)

    def had_slaves(self, host: str) -> bool:
        """Return whether a slave at a host has been connected since the start. Any thread may call this."""
        return host in self._slaves_of

    def acknowledged_by(self, host: str) -> int | None:
        """Return the position up to which every slave at a host has the log; None if one of them is not connected.

        Any thread may call this.
        """
        found = [one.acknowledged for one in self if one.host == host and one.acknowledged != NOT_YET]
        return min(found) if found and len(found) >= self._slaves_of.get(host, 1) else None

    def follow_timers(self, written: Callable[[], TimerCheckpointFields | None]) -> None:
        """Keep the timer checkpoints that ``written`` returns until slaves have their log."""
        self._timers = TimerPositions(written, lambda: self._store.commit_log.max_offset)

    def timer_checkpoint(self, host: str | None) -> TimerCheckpointFields | None:
        """Return the newest timer checkpoint whose log the slave at a host has, None without one.

        Without ``host`` it is one whose log all connected slaves have.
        """
        if self._timers is None:
            return None
        by_all = self.acknowledged_by_all
        return self._timers.shown(by_all if host is None else self.acknowledged_by(host), by_all)

    def tick(self) -> None:
        """Note a new timer checkpoint, and who is in sync; called several times a second."""
        if self._timers is not None:
            self._timers.note()
        if self._gaps:
            self._name_gaps()
        self._name_lags()
        if self._store.replication.is_sync:
            self.update()

    def _name_lags(self) -> None:
        """Log the slaves that have fallen out of sync or are in sync again, and sends that lacked copies."""
        end = self._store.commit_log.max_offset
        for one in self._all:
            lacks = end - one.acknowledged
            if one.acknowledged == NOT_YET:
                continue
            if one.was_in_sync and not self.is_in_sync(one):
                one.was_in_sync = False
                events.SLAVE_IS_BEHIND.log(_log, peer=one.peer, behind_bytes=lacks)
            elif not one.was_in_sync and lacks <= self._config.ha_max_gap_not_in_sync // 2:
                if one.was_in_sync is not None:
                    events.SLAVE_HAS_CAUGHT_UP.log(_log, peer=one.peer)
                one.was_in_sync = True
        unreplicated = self._store.replication.unreplicated
        if (total := sum(unreplicated.values())) > self._said_unreplicated and (
            self._lines.due("unreplicated", self._clock.monotonic_ns() / _SECOND_NS)
        ):
            self._said_unreplicated = total
            late, unavailable = unreplicated.values()
            events.SENDS_ARE_NOT_REPLICATED.log(_log, late=late, unavailable=unavailable)

    def update(self) -> None:
        """Pass the positions to the store, which answers the puts that waited for them."""
        self._store.replication.update(
            self.in_sync, [one.acknowledged for one in self._all if one.acknowledged != NOT_YET])
        self._store.replicated()

    def behind_bytes(self) -> dict[str, int]:
        """Return how much the slaves of each host lack at most."""
        end, found = self._store.commit_log.max_offset, dict[str, int]()
        for one in list(self._all):
            found[one.host] = max(end - max(one.acknowledged, 0), found.get(one.host, 0))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the HARuntimeInfo of a master (request 907).

        ``compared``, ``connectionsClosed`` (their number by reason), ``lastRefusal``, ``gapOffsets`` (where slaves
        stop), ``steppedOver`` (where they may have other bytes), ``unreplicated`` (puts that slaves did not have in
        time, by status) and ``faults`` are Tailrace's.
        """
        end = self._store.commit_log.max_offset
        return {
            "haClientRuntimeInfo": {
                "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0, "maxOffset": 0,
                "transferredByteInSecond": 0},
            "haConnectionInfo": [{
                "addr": one.peer, "diff": end - one.acknowledged, "inSync": self.is_in_sync(one),
                "slaveAckOffset": one.acknowledged, "transferFromWhere": one.next,
                "transferredByteInSecond": one.bytes_per_s, "compared": one.compared.value} for one in self._all],
            "inSyncSlaveNums": self.in_sync, "master": True, "masterCommitLogMaxOffset": end,
            "connectionsClosed": dict(self.closed), "lastRefusal": self.last_refusal,
            "gapOffsets": self.gaps, "steppedOver": self.stepped_over,
            "unreplicated": dict(self._store.replication.unreplicated),
            "faults": self.faults.to_json()}
