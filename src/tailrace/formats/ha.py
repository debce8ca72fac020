"""Frames of RocketMQ's classic replication (DefaultHAConnection and DefaultHAClient), on the HA port.

A slave sends reports, and nothing else. A master sends frames: a header, then as many bytes of the CommitLog as the
header says. A frame of size 0 is a heartbeat.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from tailrace.formats._layout import Layout

__all__ = ["BODY_MAX", "FRAME_BUFFER", "FRAME_HEADER", "REPORT", "FrameHeader", "Report"]


class Report(NamedTuple):
    """What a slave sends. The first report says where the master begins; each report is an acknowledgement."""

    max_offset: Annotated[int, "q", "i8", "position after the last byte that the slave has; 0: it has none"]


class FrameHeader(NamedTuple):
    """What a master sends before bytes of its log."""

    phy_offset: Annotated[int, "q", "i8", "position of the first byte of the body; of the next byte if size is 0"]
    size: Annotated[int, "i", "i4", "bytes of the body, which are of one file; 0: heartbeat"]


REPORT: Final = Layout(Report, size=8)
FRAME_HEADER: Final = Layout(FrameHeader, size=12)
FRAME_BUFFER: Final = 4 << 20
"""Bytes of the buffer of a slave (DefaultHAClient.READ_MAX_BUFFER_SIZE), which must hold a header and its body."""
BODY_MAX: Final = FRAME_BUFFER - FRAME_HEADER.size
"""Greatest size of a body. A Java slave never handles a longer one: it closes after 20 s and repeats for ever."""
