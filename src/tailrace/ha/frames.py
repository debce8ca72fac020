"""Reports and frames on the HA port: their bytes, and a decoder that accepts reports in pieces.

The decoder holds at most one incomplete report, so that a peer cannot make this process hold more memory.
`tailrace.ha.receiver.FrameReader` takes frames.
The layouts are in `tailrace.formats.ha`.
"""

from __future__ import annotations

from typing import final

from tailrace.formats.ha import BODY_MAX, FRAME_HEADER, REPORT

__all__ = ["ReportDecoder", "encode_frame_header", "encode_report"]


def encode_report(max_offset: int) -> bytes:
    """Return the 8 bytes by which a slave reports that it has everything below ``max_offset``."""
    return REPORT.pack(max_offset)


def encode_frame_header(phy_offset: int, size: int) -> bytes:
    """Return the 12 bytes before a body of ``size`` bytes that begins at ``phy_offset``; size 0 is a heartbeat."""
    assert 0 <= size <= BODY_MAX, size
    return FRAME_HEADER.pack(phy_offset, size)


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
