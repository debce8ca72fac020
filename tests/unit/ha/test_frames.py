"""Reports and frames of the HA port: the bytes of RocketMQ, in pieces of every size."""

import pytest
from ha_frames import Frame, FrameDecoder

from tailrace.errors import RemotingFrameError
from tailrace.formats.ha import BODY_MAX, FRAME_HEADER
from tailrace.ha.frames import (
    ReportDecoder,
    encode_frame_header,
    encode_report,
)

BYTES = (
    bytes.fromhex("00000000000029F4 00000116") + bytes(278)
    + bytes.fromhex("0000000000002B0A 00000000")
)
FRAMES = [Frame(10740, bytes(278)), Frame(11018, b"")]


def test_the_bytes_are_those_of_rocketmq():
    assert encode_report(0) == bytes(8)
    assert encode_report(11018) == bytes.fromhex("0000000000002B0A")
    assert encode_frame_header(10740, 278) + bytes(278) + encode_frame_header(11018, 0) == BYTES


@pytest.mark.parametrize("piece", [1, 5, 11, 12, 13, 290, 1000])
def test_frames_are_decoded_from_pieces(piece):
    decoder = FrameDecoder()
    found = [frame for at in range(0, len(BYTES), piece) for frame in decoder.feed(BYTES[at : at + piece])]
    assert found == FRAMES
    assert decoder.header is None


def test_the_header_is_known_before_the_body():
    decoder = FrameDecoder()
    assert list(decoder.feed(BYTES[:100])) == []
    assert decoder.header == (10740, 278)


def test_the_longest_body_is_decoded():
    decoder = FrameDecoder()
    data = encode_frame_header(7, BODY_MAX) + bytes(BODY_MAX)
    assert [len(frame.body) for frame in decoder.feed(data)] == [BODY_MAX]


@pytest.mark.parametrize(("phy_offset", "size"), [(0, -1), (0, BODY_MAX + 1), (0, 2**31 - 1), (-1, 4)])
def test_an_impossible_frame_is_an_error_after_the_frames_before_it(phy_offset, size):
    decoder, found = FrameDecoder(), []
    with pytest.raises(RemotingFrameError, match=str(size if phy_offset >= 0 else phy_offset)):
        found.extend(decoder.feed(BYTES + FRAME_HEADER.pack(phy_offset, size)))
    assert found == FRAMES


@pytest.mark.parametrize("piece", [1, 3, 7, 8, 9, 24])
def test_reports_are_groups_of_eight_bytes(piece):
    data = encode_report(5) + encode_report(-3) + encode_report(2**40)
    decoder = ReportDecoder()
    found = [one for at in range(0, len(data), piece) for one in decoder.feed(data[at : at + piece])]
    assert found == [5, -3, 2**40]


def test_seven_bytes_are_no_report():
    assert ReportDecoder().feed(bytes(7)) == []
