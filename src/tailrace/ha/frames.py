"""Reports and frames on the HA port: their bytes, and decoders that accept them in pieces.

Both decoders hold at most one incomplete report or frame, so that a peer cannot make this process hold more memory.
The layouts are in `tailrace.formats.ha`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from tailrace.errors import RemotingFrameError
from tailrace.formats.ha import BODY_MAX, FRAME_HEADER, REPORT

__all__ = ["Frame", "FrameDecoder", "ReportDecoder", "encode_frame_header", "encode_report"]


def encode_report(max_offset: int) -> bytes:
    """Return the 8 bytes by which a slave reports that it has everything below ``max_offset``."""
    return REPORT.pack(max_offset)


def encode_frame_header(phy_offset: int, size: int) -> bytes:
    """Return the 12 bytes before a body of ``size`` bytes that begins at ``phy_offset``; size 0 is a heartbeat."""
    assert 0 <= size <= BODY_MAX, size
    return FRAME_HEADER.pack(phy_offset, size)


class Frame(NamedTuple):
    """A frame from a master. A heartbeat has an empty body."""

    phy_offset: int
    """Position of the first byte of the body, or of the next byte that the master will send."""
    body: bytes


@final
class ReportDecoder:
    """Decodes what a slave sends. Only complete groups of 8 bytes are reports."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the reports that ``data`` completes, in their order."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return [value for (value,) in REPORT.struct.iter_unpack(data[:whole])]


@final
class FrameDecoder:
    """Decodes what a master sends."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def header(self) -> tuple[int, int] | None:
        """Position and size of the frame whose body is incomplete, None without its header."""
        if len(self._buffer) < FRAME_HEADER.size:
            return None
        header = FRAME_HEADER.unpack_from(self._buffer)
        return header.phy_offset, header.size

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes, in their order.

        Raises RemotingFrameError for a size below 0 or above `BODY_MAX`, before bytes of that body are kept. The
        frames before it have been yielded.
        """
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= FRAME_HEADER.size:
                phy_offset, size = FRAME_HEADER.unpack_from(self._buffer, at)
                if not 0 <= size <= BODY_MAX:
                    raise RemotingFrameError(f"a frame at {phy_offset} with {size} bytes; 0 to {BODY_MAX} are possible")
                if phy_offset < 0:
                    raise RemotingFrameError(f"a frame at the position {phy_offset}")
                end = at + FRAME_HEADER.size + size
                if len(self._buffer) < end:
                    break
                yield Frame(phy_offset, bytes(memoryview(self._buffer)[at + FRAME_HEADER.size : end]))
                at = end
        finally:
            del self._buffer[:at]
