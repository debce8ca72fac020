"""The master's half of replication: slaves connect to the HA port and get the log as it grows.

A slave reports how far it has the log; from there the master sends frames (DefaultHAConnection). Differences from
RocketMQ, none of which a slave can see:

- a put wakes the sender; RocketMQ looks every 100 ms (H12);
- under SYNC_FLUSH only synced bytes are sent, so that no slave has more than its master after a power loss (H4);
- an empty slave gets the whole log, not the last file (H8); a slave whose next byte was deleted is not sent heartbeats
  for ever, but refused (H6), as is one that reports more than it can have (H2, H3);
- only hosts of the own group may connect (H10), each with one connection a slave (H11);
- the flow limit counts bytes of the log, and no empty frames are sent because of it (H13);
- the copy of a backlog gives way to puts: without a flow limit it rests for `_REST_S` after a part in whose time
  messages came (RP6).

Bytes in the page cache are read and sent on the event loop, because a send that waits for a slave would otherwise wait
for other threads; bytes that are only on the disk are read in a thread. A slave that does not read holds `_UNSENT_MAX`
and one `_PART` of memory at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, cast, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.supervision import failed
from tailrace.errors import RemotingFrameError, StoreError
from tailrace.formats.ha import FRAME_HEADER
from tailrace.ha.comparison import Compared, Verdict
from tailrace.ha.frames import ReportDecoder, encode_frame_header
from tailrace.ha.replicas import NOT_YET, Replica, Replicas
from tailrace.logs import LogRateLimiter, get_logger
from tailrace.remoting.acceptor import Acceptor, IncomingConnection
from tailrace.remoting.addresses import address_text
from tailrace.remoting.server import one_address
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["HaSender", "MayConnect"]

_log = get_logger(__name__)
_PART: Final = 256 << 10
"""Bytes that are read together, at least a frame; between two parts the event loop serves others."""
_REST_S: Final = 0.008
"""Pause between two parts beside puts, which leaves 32 MB/s of the log; the loop, the disk and the processors that the
copy needs are those of the puts."""
_UNSENT_MAX: Final = 512 << 10
"""Unsent bytes of a connection at which it waits until the slave reads."""
_BACKLOG: Final = 64
TICK_S: Final = 0.05
"""Period of looking at late puts, heartbeats and silent connections."""
MayConnect = Callable[[str], Awaitable[int]]
"""Returns how many connections a host may have."""
CompareLogs = Callable[[str, int], Awaitable[Compared]]
"""Compares the log of the slave at a host, which ends at a position, with the log of this store."""

CLOSED_BY_SLAVE: Final = "closed by the slave"
NOT_ALLOWED: Final = "host is not allowed"
REPLACED: Final = "replaced"
SILENT: Final = "silent"
WRONG_LOG: Final = "wrong log"
STOPPED: Final = "stopped"
UNREADABLE: Final = "log cannot be read"


class _Reads(Protocol):
    """Runs a function in a thread."""

    def __call__(self, read: Callable[[], bytes], /) -> Awaitable[bytes]: ...


@final
class _Connection(asyncio.Protocol):
    """A connection at the HA port."""

    def __init__(self, sender: HaSender) -> None:
        self._sender = sender
        self._decoder = ReportDecoder()
        self.transport: asyncio.Transport
        self.replica: Replica
        self.closed: bool = False
        self.paused = self.reading = self.scheduled = self.rests = self.is_allowed = False
        self.held: list[int] | None = None
        """Reports that came while the logs are compared; None at other times."""
        self.early = b""
        """Bytes that came before it was known whether the host may connect."""
        self.reason = CLOSED_BY_SLAVE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]
        self.transport.set_write_buffer_limits(high=_UNSENT_MAX)
        self.replica = Replica(address_text(str(host), port), str(host), self, self._sender.now_ns())
        self._sender.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.replica.read_ns = self._sender.now_ns()
        if not self.is_allowed:  # a slave sends 8 bytes; a peer that sends more now is no slave
            self.early = (self.early + data)[: _PART]
            return
        for position in self._decoder.feed(data):
            if not self.closed:
                self._sender.reported(self, position)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._sender.pump(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._sender.lost(self)

    def close(self) -> None:
        self.end(REPLACED)

    def end(self, reason: str) -> None:
        """Close the connection immediately; unsent bytes are dropped."""
        if not self.closed:
            self.closed, self.reason = True, reason
            self.transport.abort()


@final
class HaSender:
    """Serves slaves of ``store`` at a port between `start` and `stop`. Used on the event loop; `wake` in any thread."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, replicas: Replicas, acceptor: Acceptor,
        may_connect: MayConnect, read: _Reads, compare: CompareLogs | None = None,
    ) -> None:
        """``read`` runs a function in a thread, for bytes that are only on the disk.

        ``compare`` compares the log of a slave that has one before it gets the rest.
        """
        self._compare_logs = compare
        self._clock = clock
        self._store = store
        self._config = store.config
        self.replicas = replicas
        self._acceptor = acceptor
        self._may_connect = may_connect
        self._read = read
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop
        self._incoming: dict[IncomingConnection, None] = {}
        self._open: dict[_Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._thread = 0
        self._lines = LogRateLimiter()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address. Raises OSError if that is not possible."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        found = await self._loop.getaddrinfo(host, port)
        self._server = await self._loop.create_server(
            lambda: self._acceptor.protocol(
                lambda: _Connection(self), self._incoming, self._config.ha_housekeeping_interval / 1000),
            one_address(found), port, backlog=_BACKLOG)
        self._store.add_sender(self)
        taken = self._server.sockets[0].getsockname()
        return str(taken[0]), int(taken[1])

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is None:
            return
        self._store.remove_sender(self)
        self._server.close()
        self._server = None
        for one in list(self._incoming):
            one.abort()
        for connection in list(self._open):
            connection.end(STOPPED)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return self._clock.monotonic_ns()

    # -- what connections call

    def opened(self, connection: _Connection) -> None:
        """Find out whether the host of a new connection may connect; its bytes are kept until then."""
        self._open[connection] = None
        self._start_task(self._admit(connection))

    async def _admit(self, connection: _Connection) -> None:
        replica = connection.replica
        try:
            most = await self._may_connect(replica.host)
        except Exception:  # noqa: BLE001 - a connection of which nothing is known is closed
            failed("HaSender")
            most = 0
        if connection.closed:
            return
        if not most:
            self._refuse(connection)
            return
        for other in self.replicas.add(replica, most):
            events.SLAVE_REPLACED.log(_log, peer=other.peer, by=replica.peer)
            other.connection.close()
        connection.is_allowed = True
        early, connection.early = connection.early, b""
        if early:
            connection.data_received(early)

    def _refuse(self, connection: _Connection) -> None:
        closed = self.replicas.closed
        closed[NOT_ALLOWED] = closed.get(NOT_ALLOWED, 0) + 1
        self.replicas.last_refusal = f"{connection.replica.peer}: {NOT_ALLOWED}"
        if count := self._lines.due(NOT_ALLOWED, self._loop.time()):
            events.SLAVE_REFUSED.log(_log, peer=connection.replica.peer, reason=NOT_ALLOWED, count=count)
        connection.end(NOT_ALLOWED)

    def reported(self, connection: _Connection, position: int) -> None:
        """Take a report. A slave whose log is another one is disconnected."""
        if connection.held is not None:
            connection.held = [*connection.held[:1], position]  # the last one says what the ones before said
            return
        is_first = connection.replica.next == NOT_YET
        try:
            if is_first and position > 0 and self._compare_logs is not None:
                self.replicas.check_first(position)
                connection.held = []
                self._start_task(self._compare(connection, position, self._compare_logs))
                return
            self.replicas.report(connection.replica, position)
        except RemotingFrameError as error:
            self._part_from(connection, position, str(error))
            return
        if is_first:
            self._begin(connection, position)

    def _begin(self, connection: _Connection, position: int) -> None:
        replica = connection.replica
        events.SLAVE_CONNECTED.log(
            _log, peer=replica.peer, offset=position, from_=replica.next, compared=replica.compared.value)
        self.pump(connection)

    def _part_from(self, connection: _Connection, position: int, reason: str) -> None:
        """Disconnect a slave whose log is another one."""
        replica, log = connection.replica, self._store.commit_log
        self.replicas.last_refusal = f"{replica.peer} at {position}: {reason}"
        if self._lines.due(f"{WRONG_LOG} {replica.host}", self._loop.time()):
            events.SLAVE_HAS_ANOTHER_LOG.log(
                _log, peer=replica.peer, offset=position, min_offset=log.min_offset, max_offset=log.max_offset,
                reason=reason)
        connection.end(WRONG_LOG)

    async def _compare(self, connection: _Connection, position: int, compare: CompareLogs) -> None:
        """Compare the log of a new slave, then take its reports."""
        try:
            found = await compare(connection.replica.host, position)
        except Exception:  # noqa: BLE001 - the slave connects again
            failed("HaSender")
            connection.end(UNREADABLE)
            return
        held, connection.held = connection.held or [], None
        if connection.closed:
            return
        if found.verdict is Verdict.DIFFERENT:
            self._part_from(connection, position, found.reason)
            return
        connection.replica.compared = found.verdict
        try:
            for one in (position, *held):
                self.replicas.report(connection.replica, one)
        except RemotingFrameError as error:
            self._part_from(connection, position, str(error))
            return
        self._begin(connection, position)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lost(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        self._open.pop(connection, None)
        replica = connection.replica
        is_known = self.replicas.remove(replica, connection.reason) and replica.acknowledged != NOT_YET
        if is_known and connection.reason != STOPPED:
            events.SLAVE_GONE.log(
                _log, peer=replica.peer, offset=replica.acknowledged,
                behind_bytes=self._store.commit_log.max_offset - replica.acknowledged, reason=connection.reason)

    # -- sending

    def wake(self) -> None:
        """Send what is new; any thread may call this."""
        if self._is_woken or not self._open:
            return
        self._is_woken = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._pump_all)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the connections with it
            self._loop.call_soon_threadsafe(self._pump_all)

    def _pump_all(self) -> None:
        self._is_woken = False  # before the end of the log is read: a later put wakes again
        for connection in list(self._open):
            self.pump(connection)

    def pump(self, connection: _Connection) -> None:
        """Send a part of the log to a slave, and have the next part sent if there is more."""
        try:
            self._pump(connection)
        except (StoreError, OSError):
            failed("HaSender")
            connection.end(UNREADABLE)

    def _pump(self, connection: _Connection) -> None:
        replica = connection.replica
        if connection.closed or connection.paused or connection.reading or connection.rests or replica.next == NOT_YET:
            return
        size = min(self.replicas.max_offset - replica.next, max(_PART, self._config.ha_transfer_batch_size))
        if self._config.ha_flow_control_enable:
            size = min(size, replica.left(self._config.max_ha_transfer_byte_in_second, self.now_ns()))
        if size <= 0:
            return
        file = self._store.commit_log.queue.find(replica.next)
        if file is None:
            if replica.next < self._store.commit_log.min_offset:
                self._behind(connection)
            return
        at = replica.next - file.file_from_offset
        size = min(size, file.size - at)
        data = file.read_cached(at, size)
        if data:
            self._send(connection, data)
        elif data is None:
            connection.reading = True
            self._start_task(self._read_cold(connection, lambda: file.read(at, size, apart=True)))
        elif replica.next < self._store.commit_log.min_offset:
            self._behind(connection)

    async def _read_cold(self, connection: _Connection, read: Callable[[], bytes]) -> None:
        try:
            data = await self._read(read)
        except Exception:  # noqa: BLE001 - the slave connects again
            failed("HaSender")
            connection.end(UNREADABLE)
            return
        connection.reading = False
        if connection.closed:
            return
        if data:
            self._send(connection, data)
        elif connection.replica.next < self._store.commit_log.min_offset:
            self._behind(connection)

    def _behind(self, connection: _Connection) -> None:
        """Close the connection of a slave whose next byte was deleted while it was connected."""
        self._part_from(connection, connection.replica.next, "what it lacks first was deleted here")

    def _send(self, connection: _Connection, data: bytes) -> None:
        """Send bytes of one file from the next position on as frames."""
        replica, most, view = connection.replica, self._config.ha_transfer_batch_size, memoryview(data)
        parts: list[bytes | memoryview] = []
        for start in range(0, len(data), most):
            body = view[start : start + most]
            parts += [encode_frame_header(replica.next + start, len(body)), body]
        connection.transport.writelines(parts)
        replica.next += len(data)
        replica.sent_bytes += len(data)
        self.replicas.sent_bytes += len(data)
        replica.count(len(data) + FRAME_HEADER.size * (len(parts) // 2), self.now_ns())
        if not connection.scheduled and self.replicas.max_offset > replica.next:
            connection.scheduled = True
            connection.rests = not self._config.ha_flow_control_enable and self.replicas.gives_way(replica)
            self._loop.call_later(_REST_S if connection.rests else 0, self._continue, connection)

    def _continue(self, connection: _Connection) -> None:
        connection.scheduled = connection.rests = False
        self.pump(connection)

    # -- time

    def tick(self) -> None:
        """Send heartbeats and bytes that wait, close silent connections, and answer puts that have waited too long."""
        now, config = self.now_ns(), self._config
        for connection in list(self._open):
            replica = connection.replica
            if now - replica.read_ns > config.ha_housekeeping_interval * 1_000_000:
                connection.end(SILENT)
            elif replica.next != NOT_YET and not connection.paused and (
                now - replica.wrote_ns >= config.ha_send_heartbeat_interval * 1_000_000
            ):
                connection.transport.write(encode_frame_header(replica.next, 0))
                replica.count(FRAME_HEADER.size, now)
            self.pump(connection)  # with a limit, and after a put that has ended a file and found no room for the next
        self.replicas.tick()
