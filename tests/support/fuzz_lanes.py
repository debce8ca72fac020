"""A fuzz target: what a client sends has the same results with the lanes and without them."""

from __future__ import annotations

import atexit
import functools
import pathlib
import shutil
import tempfile
from contextlib import ExitStack

from lane_world import borders, counts_of, filled, opened, pull_borders

from tailrace.errors import RemotingFrameError
from tailrace.formats.remoting import decode_json_header

__all__ = ["Pair", "frame_of", "lane_seeds", "lanes", "pair"]

CODES = (10, 310, 11, 361, 320)
LATER = b"TIMER_DEL", b"DELAY"
"""In properties of messages that wait, which have numbers of their own."""
HEADER_MAX = 1 << 16


class Pair:
    """Two brokers, one without lanes; they are made again after some inputs, so that they stay small."""

    LIFE = 1_000

    def __init__(self):
        self._left, self._open, self.worlds = 0, ExitStack(), []

    def exchange(self, data):
        """Return the answers of both brokers to the same bytes."""
        if not self._left:
            self.end()
            place = pathlib.Path(tempfile.mkdtemp(prefix="fuzz-lanes-"))
            self._open.callback(shutil.rmtree, place)
            self.worlds = [self._open.enter_context(opened(place / str(lane), lane=lane)) for lane in (False, True)]
            for world in self.worlds:
                for chunk in filled():
                    chunk(world) if callable(chunk) else world.exchange(chunk)
            self._left = self.LIFE
        self._left -= 1
        return [world.exchange(data) for world in self.worlds]

    def counts(self):
        """Return what both brokers have counted and committed."""
        return [counts_of(world.store, world.traffic, world.controller.broker.offsets) for world in self.worlds]

    def end(self):
        """Stop the brokers."""
        self._open.close()
        self._left, self.worlds = 0, []


@functools.cache
def pair():
    """Return the brokers of this process."""
    made = Pair()
    atexit.register(made.end)
    return made


def frame_of(data):
    """Return the frame of an input: a byte that says code and encoding, the size of the header in two bytes, the rest.

    Bits 0 and 1 of the byte are the code, unless bit 3 says that it is the last one; bit 2 is the encoding.

    None if that may be another request, whose answer may come later.
    """
    if len(data) < 3:
        return None
    code, binary = CODES[4 if data[0] & 8 else data[0] % 4], data[0] >> 2 & 1
    size = int.from_bytes(data[1:3], "big")
    header, body = data[3 : 3 + size], data[3 + size :]
    if binary:
        header = code.to_bytes(2, "big") + header
    else:
        header = b'{"code":%d,%b' % (code, header)
        try:
            if decode_json_header(header)[0] not in CODES:
                return None
        except RemotingFrameError:
            pass
    if any(mark in data for mark in LATER):
        return None
    return (4 + len(header) + len(body)).to_bytes(4, "big") + (len(header) | binary << 24).to_bytes(
        4, "big") + header + body


def lanes(data):
    """A send or a pull, alone and twice in a row: the same answers, counts and offsets with and without the lanes."""
    frame = frame_of(data)
    if frame is None:
        return
    for chunk in (frame, frame + frame):
        without, with_lanes = pair().exchange(chunk)
        assert without == with_lanes, (chunk, without, with_lanes)
    without, with_lanes = pair().counts()
    assert without == with_lanes, (frame, without, with_lanes)


def lane_seeds():
    """Return inputs to begin with."""
    made = []
    for frame in [*borders()[::9], *pull_borders()[::9]]:
        size, binary = int.from_bytes(frame[5:8], "big"), frame[4]
        header, body = frame[8 : 8 + size], frame[8 + size :]
        code = int.from_bytes(header[:2], "big") if binary else int(header[8:].partition(b",")[0])
        header = header[2:] if binary else header.partition(b",")[2]
        if code in CODES and len(frame) < 2_000:
            kind = bytes([(8 if code == 320 else CODES.index(code)) | binary << 2])
            made.append(kind + len(header).to_bytes(2, "big") + header + body)
    return made
