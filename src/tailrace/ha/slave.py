"""A slave: it finds its master, compares the logs, and receives what its master appends (DefaultHAClient).

    no address ──▶ comparing ──▶ transfer
        ▲             │ ▲           │
        └── stopped ◀─┘ └── 5 s ◀───┘

Nothing of the log is ever truncated here. If the brokers do not fit or the logs differ, the slave stops until an
operator has decided; it compares again each minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter
from functools import partial
from typing import Any, Final, final

from tailrace import events
from tailrace.config import BrokerRole
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.env.supervision import supervised
from tailrace.errors import DiskFullError, RemotingError, ReplicationError, StoreError
from tailrace.ha.comparison import last_record_before
from tailrace.ha.faults import Fault, Faults
from tailrace.ha.known_master import KnownMaster, read_known_master, write_known_master
from tailrace.ha.log_gaps import SEAL
from tailrace.ha.receiver import HaReceiver
from tailrace.ha.slave_comparison import MasterLog, Run, SlaveComparison
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.remoting.client import RemotingClient, split_address
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.running_flags import NOT_WRITEABLE
from tailrace.store.walk.scan import is_record

__all__ = ["STOPS", "Slave", "SlaveState"]

_log = get_logger(__name__)
AGAIN_S: Final = 5.0
"""Pause before the next connect, as in RocketMQ."""
STOPPED_S: Final = 60.0
"""Pause before logs are compared again that were different."""
STOPS: Final = ("file_size", "other_cluster", "other_name", "longer", "different", "too_old", "damage", "gap", "disk")
"""Why a slave stops: another mappedFileSizeCommitLog, cluster or broker name; its log is longer than its master's,
different, or ends before its master's begins; its own log is damaged, has the same gap as its master's, or takes no
bytes."""
_OWN_FAULTS: Final = frozenset({"damage", "disk", "gap"})
_STUCK_BYTES: Final = 64 << 20
_KEEP_S: Final = 10.0
"""Least time between two writes of what is known of the master."""


class SlaveState(enum.Enum):
    """What a slave does."""

    NO_MASTER = "no master is known"
    COMPARING = "comparing"
    TRANSFER = "transfer"
    WAITING = "waiting for the master"
    STOPPED = "stopped"


@final
class Slave:
    """Keeps a store the copy of its master's, between ``start`` and ``stop``. Everything runs in the event loop."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, client: RemotingClient, run: Run, *,
        cluster: str, broker_name: str, ha_address: str = "", namesrv: str = "",
    ) -> None:
        """``run`` runs a function that reads files in a thread. ``ha_address`` overrides the one of name servers."""
        self._clock, self._store, self._client, self._run = clock, store, client, run
        self._cluster, self._broker_name, self._namesrv = cluster, broker_name, namesrv
        self._fixed_ha = ha_address
        config = store.config
        self._heartbeat_s = config.ha_send_heartbeat_interval / 1000
        self._housekeeping_s = config.ha_housekeeping_interval / 1000
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._receiver: HaReceiver | None = None
        self._said = ""
        self._has_waited = False
        self._incomplete = (-1, 0.0)
        self._gap_at = -1
        self.state = SlaveState.NO_MASTER
        self.why = ""
        """Why the slave has stopped or waits, else ""."""
        self.master_address = ""
        """Address of the master's broker, "" if no name server knows it."""
        self.ha_address = ha_address
        """Address of its HA port."""
        self.known = read_known_master(store.file_system, store.root) or KnownMaster()
        """The last answer of the master, also one from before the start."""
        self._kept = self.known
        self._kept_s = 0.0
        self.stops = Counter(dict.fromkeys(STOPS, 0))
        """Number of times the slave has stopped, by reason."""
        self.faults = Faults()
        """What else is wrong, also while the master sends."""
        self.metadata_failures = 0
        """Number of parts of the metadata that could not be copied."""
        self.pulls_ahead = 0
        """Number of pulls from an offset that the queue of this slave does not have yet."""
        self.connects = 0
        """Number of transfers that have begun."""
        self.received_bytes = 0
        """Bytes received by connections that have ended."""
        self.users = ""
        """Whether users and permissions are copied from the master, or why not; "" before the first copy, and if
        clients need no user."""
        self.fits = False
        """True if the last comparison with this master has succeeded: settings fit, and this log is a part of its log.
        A slave whose disk or dispatch has a fault later still fits."""
        self.lost = Callbacks[[]]()
        """Called when a connection to the master has ended. If the name server of the master ended with it, the next
        connection is refused until this broker has registered again."""
        self.found_master = Callbacks[[]]()
        """Called when the master's address has changed, and when a comparison with it has succeeded."""

    # -- life

    def start(self) -> None:
        """Start to follow the master as soon as its address is known."""
        self._task = asyncio.get_running_loop().create_task(supervised("HaClient", self._step))

    async def stop(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.keep_master()
        await self._client.close()

    def set_master(self, master_address: str, ha_address: str) -> None:
        """Take the addresses that a name server gave. An open connection stays; without a master nothing changes."""
        if not master_address:
            return
        changed = master_address != self.master_address
        self.master_address = master_address
        self.ha_address = self._fixed_ha or ha_address
        if changed:
            self.fits = False
            self._woken.set()
            self.found_master()

    def note_master(self, end: int, role: str = "") -> None:
        """Note the end of the master's log, and its role if it was asked."""
        self.known = KnownMaster(
            address=self.master_address, role=role or self.known.role, end=end, time_ms=self._clock.now_ms())

    async def keep_master(self, *, later: bool = False) -> None:
        """Write the last answer of the master, for a promotion; with ``later`` only if the last write is 10 s old."""
        now, known = asyncio.get_running_loop().time(), self.known
        if known is self._kept or (later and now - self._kept_s < _KEEP_S):
            return
        self._kept_s = now
        try:
            await self._run(partial(write_known_master, self._store.file_system, self._store.root, known))
        except (OSError, StoreError) as error:
            self.faults.begin(Fault.KNOWN_MASTER, error)
            events.ANSWER_OF_THE_MASTER_CANNOT_BE_KEPT.log(_log, address=known.address, end=known.end, cause=error)
        else:
            self.faults.end(Fault.KNOWN_MASTER)
            self._kept = known

    # -- figures

    @property
    def master_end(self) -> int:
        """End of the master's log when it was last asked, 0 if it never was."""
        return self.known.end

    @property
    def is_connected(self) -> bool:
        """True while the master sends."""
        return self.state is SlaveState.TRANSFER

    @property
    def lacking_bytes(self) -> int:
        """Number of bytes that the master had when it was last asked and that this log does not have."""
        return max(0, self.master_end - self._store.commit_log.max_offset)

    @property
    def received(self) -> int:
        """Number of bytes that were received since the start."""
        return self.received_bytes + (self._receiver.received_bytes if self._receiver is not None else 0)

    def runtime_info(self) -> dict[str, Any]:
        """Return the HARuntimeInfo of a slave, as ``haStatus`` shows it.

        Tailrace's own are ``state``, ``reason`` (why it has stopped or waits), ``masterMaxOffset``, the end of the
        master's log when it was last asked, ``faults``, and ``users``, whether they are copied.
        """
        now_s, now_ms, one = asyncio.get_running_loop().time(), self._clock.now_ms(), self._receiver
        return {
            "master": False, "masterCommitLogMaxOffset": 0, "inSyncSlaveNums": 0, "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "lastReadTimestamp": now_ms - round((now_s - one.last_read_s) * 1000) if one is not None else 0,
                "lastWriteTimestamp": now_ms - round((now_s - one.last_write_s) * 1000) if one is not None else 0,
                "masterAddr": self.ha_address, "masterFlushOffset": 0,
                "maxOffset": self._store.commit_log.max_offset, "transferredByteInSecond": 0,
                "state": self.state.value, "reason": self.why, "masterMaxOffset": self.master_end,
                "faults": self.faults.to_json(),
                **({"users": self.users} if self.users else {})}}

    # -- a step

    async def _step(self) -> None:
        """Make one attempt, then wait."""
        pause = AGAIN_S
        try:
            pause = await self._attempt()
        except ReplicationError as error:
            self._stopped(error)
            pause = STOPPED_S
        except DiskFullError as error:
            self._waits(error)
            events.SLAVE_HAS_NO_ROOM.log(_log, phy_offset=self._store.commit_log.max_offset, cause=error)
            self.stops["disk"] += 1
        except (RemotingError, OSError, TimeoutError, StoreError) as error:
            self._waits(error)
        if self._woken.is_set():
            self._woken.clear()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._woken.wait()
        self._woken.clear()

    def _stopped(self, error: ReplicationError) -> None:
        self.state, self.why = SlaveState.STOPPED, str(error)
        if error.kind not in _OWN_FAULTS:
            self.fits = False
        if self._said != self.why:
            self._said = self.why
            self.stops[error.kind] += 1
            events.SLAVE_HAS_STOPPED.log(
                _log, kind=error.kind, address=self.master_address, phy_offset=error.phy_offset, cause=error)

    def _waits(self, error: Exception) -> None:
        was_connected, self.state = self.is_connected, SlaveState.WAITING
        self.why = str(error) or type(error).__name__
        if was_connected:
            events.CONNECTION_TO_THE_MASTER_ENDED.log(_log, address=self.ha_address, cause=self.why)
            self.lost()
        elif self._said != self.why:
            events.MASTER_IS_NOT_REACHED.log(_log, address=self.ha_address or self.master_address, cause=self.why)
        self._said = self.why

    async def _attempt(self) -> float:
        """Compare, connect and receive. Return the pause before the next attempt."""
        place = split_address(self.ha_address)
        if not self.master_address or place is None:
            self.state = SlaveState.NO_MASTER
            is_late, self._has_waited = self._has_waited, True  # at a start the answer of name servers is on its way
            if is_late and self._said != self.state.value:
                self._said = self.state.value
                events.MASTER_IS_NOT_KNOWN.log(_log, namesrv=self._namesrv, broker=self._broker_name)
            return AGAIN_S
        self.state = SlaveState.COMPARING
        await self._check_log()
        if self._store.sync_flush:  # the first report acknowledges the whole log
            await self._run(self._store.sync_log)
        comparison = SlaveComparison(
            self._store, MasterLog(self._client, self.master_address), self._run, self._cluster, self._broker_name)
        try:
            begin = await comparison.begin()
            if not self.fits:
                self.fits = True
                self.found_master()
        finally:
            if comparison.master_role == BrokerRole.SLAVE.value:
                self.fits = False
            if comparison.master_end:
                self.note_master(comparison.master_end, comparison.master_role)
                await self.keep_master(later=True)
        receiver = self._receiver = HaReceiver(
            self._store, begin, self._store.config.mapped_file_size_commit_log, heartbeat_s=self._heartbeat_s,
            housekeeping_s=self._housekeeping_s, check=self._check_dispatch)
        receiver.on_connect = partial(self._connected, begin)
        try:
            await receiver.run(*place)
        finally:
            self._receiver = None
            self.received_bytes += receiver.received_bytes
        return AGAIN_S

    def _connected(self, begin: int) -> None:
        self.state, self.why, self._said = SlaveState.TRANSFER, "", ""
        self.connects += 1
        events.SLAVE_FOLLOWS_ITS_MASTER.log(_log, address=self.ha_address, from_=begin)

    async def _check_log(self) -> None:
        """Raise ReplicationError if the store takes no bytes at all."""
        flags, at = self._store.flags, self._store.reput.bad_record_at
        if flags.is_sound():
            return
        if flags.bits & NOT_WRITEABLE:
            raise ReplicationError("disk", flags.reason)
        if at >= 0 and await self._is_gap_of_master(at):
            raise ReplicationError(
                "gap", f"dispatch stopped at {at}, and the log of the master has a gap there as well: it has lost its "
                f"power or is damaged; {SEAL}", at)
        raise ReplicationError("damage", flags.reason, at)

    async def _is_gap_of_master(self, at: int) -> bool:
        """Return whether the master has the record before a position, and no record at the position."""
        if at == self._gap_at:
            return True
        log, queue = MasterLog(self._client, self.master_address), self._store.commit_log.queue
        try:
            before = await self._run(lambda: last_record_before(queue, at))
            if before is None or before[0] + len(before[1]) != at or await log.record(before[0]) != before[1]:
                return False
            low, high = await log.bounds()
            if not low <= at < high or is_record(await log.record(at), at, C.CHECK_PHY_OFFSET):
                return False
        except (RemotingError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            return False
        self._gap_at = at
        return True

    def _check_dispatch(self) -> str:
        """Return why the connection must end: a record that stays incomplete although bytes arrive, or ""."""
        flags, reput = self._store.flags, self._store.reput
        if not flags.is_sound():
            return flags.reason
        now, at = asyncio.get_running_loop().time(), reput.incomplete
        if at != self._incomplete[0]:
            self._incomplete = at, now
            self.faults.end(Fault.INCOMPLETE)
        if at < 0 or now - self._incomplete[1] < self._housekeeping_s:
            return ""
        receiver, after = self._receiver, self._store.commit_log.max_offset - at
        idle = receiver is not None and now - receiver.last_body_s > self._housekeeping_s / 2
        if not idle and after < _STUCK_BYTES:
            return ""
        self._incomplete = at, now
        self.faults.begin(Fault.INCOMPLETE, f"the record at {at}, with {after} bytes after it")
        events.A_RECORD_OF_THE_SLAVE_STAYS_INCOMPLETE.log(_log, phy_offset=at, bytes=after)
        self.stops["damage"] += 1
        return ""
