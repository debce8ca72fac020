"""One connection of a slave to the HA port of its master (DefaultHAClient in the state TRANSFER).

The slave sends a report immediately after the connect: the end of its log, where the master begins to send. A frame
must continue the log. Its bytes are appended as they arrive, so a connection holds no more than its buffer. Each later
report is an acknowledgement: the synced position under SYNC_FLUSH, else the end of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol, cast, final

from tailrace.errors import RemotingFrameError, ReplicationError, StoreError
from tailrace.formats.ha import BODY_MAX, FRAME_HEADER
from tailrace.ha.frames import encode_report
from tailrace.store.group_commit import DurableCallback

__all__ = ["CONNECT_S", "FrameReader", "HaReceiver", "RawLog"]

CONNECT_S: Final = 5.0
"""Longest time that a connect takes."""
_BUFFER: Final = 1 << 20
_FAR_BEHIND: Final = 64 << 20
"""Bytes of the log without queue units above which no more bytes are read from the master for a moment."""
_UNSENT_MAX: Final = 64 << 10
"""Bytes of reports that a master may leave unread besides those in the buffers of the system."""
_PAUSE_S: Final = 0.02


class RawLog(Protocol):
    """The store of a slave."""

    def append_raw(self, phy_offset: int, data: memoryview) -> int:
        """Append bytes of the master's log; return the new end."""
        ...

    def acknowledged_until(self) -> int:
        """Return the position up to which the slave acknowledges."""
        ...

    def when_durable(self, until: int, callback: DurableCallback) -> None:
        """Call ``callback`` when everything below ``until`` is durable."""
        ...

    def behind_bytes(self) -> int:
        """Return the number of bytes without queue units."""
        ...


@final
class FrameReader:
    """Takes the bytes of a connection in pieces of any size, and appends the bodies of frames.

    ``begin`` is the position that was reported, where the first frame must start. ``file_size`` is the length of a
    file, whose end no frame crosses.
    """

    def __init__(self, append: Callable[[int, memoryview], int], begin: int, file_size: int) -> None:
        self._append = append
        self._file_size = file_size
        self._header = bytearray()
        self._body = 0
        self.next_offset = begin
        """Position of the next byte of the log."""
        self.frames = 0
        """Number of frames that have begun, heartbeats included."""

    def feed(self, data: memoryview) -> None:
        """Append the bytes of bodies in ``data``, which is writable.

        Raises RemotingFrameError for a frame that no master sends or that does not continue the log, and what an
        append raises. The connection must then be closed.
        """
        while len(data):
            if self._body:
                part = data[: self._body]
                self.next_offset = self._append(self.next_offset, part)
                self._body -= len(part)
            else:
                part = data[: FRAME_HEADER.size - len(self._header)]
                self._header += part
                if len(self._header) == FRAME_HEADER.size:
                    self._begin_frame()
            data = data[len(part) :]

    def _begin_frame(self) -> None:
        phy_offset, size = FRAME_HEADER.unpack_from(self._header)
        self._header.clear()
        if not 0 <= size <= BODY_MAX:
            raise RemotingFrameError(f"the master sent a frame of {size} bytes, 0 to {BODY_MAX} are possible")
        if phy_offset != self.next_offset:
            raise RemotingFrameError(
                f"the master sent a frame of position {phy_offset}, the log of this slave ends at {self.next_offset}")
        if phy_offset % self._file_size + size > self._file_size:
            raise RemotingFrameError(
                f"the master sent {size} bytes of position {phy_offset}, more than its file of {self._file_size} has")
        self._body = size
        self.frames += 1


@final
class HaReceiver(asyncio.BufferedProtocol):
    """One connection, from ``run`` to its end. Everything runs in the thread of the event loop."""

    def __init__(
        self, log: RawLog, begin: int, file_size: int, *, heartbeat_s: float, housekeeping_s: float,
        check: Callable[[], str] = str,
    ) -> None:
        """``begin`` is reported first: the end of the log, or where an empty log will start.

        ``check`` is called about once a second. It returns why the connection must end, or "".
        """
        self._log, self._begin, self._check = log, begin, check
        self._heartbeat_s, self._housekeeping_s = heartbeat_s, housekeeping_s
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._reader = FrameReader(log.append_raw, begin, file_size)
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[Exception | None] = self._loop.create_future()
        self._waits = self._paused = False
        self.reported = begin
        """The last position that was reported."""
        self.last_read_s = self.last_write_s = self._loop.time()
        self.last_body_s = self.last_read_s
        """When bytes of the log arrived last."""
        self.received_bytes = 0
        self.on_connect: Callable[[], None] = lambda: None

    async def run(self, host: str, port: int) -> None:
        """Connect, and receive until the connection ends.

        Raises RemotingFrameError or StoreError if this slave ends the connection (ReplicationError if its disk cannot
        be written), OSError without a connection, and ConnectionError if the master does or says nothing for too long.
        """
        async with asyncio.timeout(CONNECT_S):
            await self._loop.create_connection(lambda: self, host, port)
        try:
            while not self._ended.done():
                await asyncio.wait([self._ended], timeout=self._wait_s())
                self._on_time()
            if (error := self._ended.result()) is not None:
                raise error
            raise ConnectionResetError("the master has closed the connection")
        finally:
            if self._transport is not None:
                self._transport.abort()

    def _wait_s(self) -> float:
        now = self._loop.time()
        return min(1.0, max(0.0, self._heartbeat_s - (now - self.last_write_s)))

    def _on_time(self) -> None:
        now = self._loop.time()
        if self._ended.done():
            return
        if now - self.last_read_s > self._housekeeping_s and not self._paused:
            self._end(ConnectionAbortedError(f"the master has sent nothing for {self._housekeeping_s:g} s"))
        elif reason := self._check():
            self._end(StoreError(reason))
        elif now - self.last_write_s >= self._heartbeat_s:
            self._report(max(self.reported, self._log.acknowledged_until()))

    def _end(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(error)

    # -- reports

    def _report(self, position: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size() > _UNSENT_MAX:
                self._end(ConnectionAbortedError("the master does not read the reports of this slave"))
                return
            self.reported, self.last_write_s = position, self._loop.time()
            self._transport.write(encode_report(position))

    def _acknowledge(self) -> None:
        """Report what the slave has, and once more when what is not synced yet is durable."""
        until = self._log.acknowledged_until()
        if until > self.reported:
            self._report(until)
        if until < self._reader.next_offset and not self._waits:
            self._waits = True
            self._log.when_durable(self._reader.next_offset, self._when_durable)

    def _when_durable(self, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._synced)

    def _synced(self) -> None:
        self._waits = False
        if not self._ended.done():
            self._acknowledge()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first report."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._report(self._begin)
        self.on_connect()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Append what has arrived."""
        if self._ended.done():
            return
        self.last_read_s = self._loop.time()
        self.received_bytes += nbytes
        before = self._reader.next_offset
        try:
            self._reader.feed(self._buffer[:nbytes])
        except (StoreError, OSError) as error:
            self._end(error if isinstance(error, StoreError) else ReplicationError(
                "disk", f"the log of this slave cannot be written: {error}"))
            return
        if self._reader.next_offset > before:
            self.last_body_s = self.last_read_s
        self._acknowledge()
        if self._log.behind_bytes() > _FAR_BEHIND:
            self._pause()

    def _pause(self) -> None:
        """Read nothing until dispatch has followed: it shares the interpreter with this loop."""
        assert self._transport is not None
        if self._ended.done() or self._log.behind_bytes() <= _FAR_BEHIND // 2:
            if self._paused and not self._ended.done():
                self._paused, self.last_read_s = False, self._loop.time()
                self._transport.resume_reading()
            return
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._loop.call_later(_PAUSE_S, self._pause)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the run."""
        self._end(exc)
