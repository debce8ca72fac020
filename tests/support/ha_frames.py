"""Decodes what a master sends, for slaves of tests. A slave appends bodies as they arrive instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from tailrace.errors import RemotingFrameError
from tailrace.formats.ha import BODY_MAX, FRAME_HEADER


class Frame(NamedTuple):
    """A frame from a master. A heartbeat has an empty body."""

    phy_offset: int
    """Position of the first byte of the body, or of the next byte that the master will send."""
    body: bytes


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
