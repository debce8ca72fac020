"""Frames that clients have sent are served by the lanes as on the ordinary path, and nearly all of them are plain."""

from __future__ import annotations

import pytest
from lane_world import CAPTURES, captured, differences, filled, member, send

from tailrace import kernels

pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="without compiled kernels there is no lane")


@pytest.mark.parametrize("path", CAPTURES, ids=[path.stem for path in CAPTURES])
def test_frames_of_a_client(tmp_path, path):
    sends, pulls = captured(path)
    if sends:
        outcome, found = differences(tmp_path / "sends", [send({"topic": "PlainLong"}), b"".join(sends)])
        assert not found, "\n".join(found[:5])
        assert outcome.in_lane >= 0.9 * len(sends)
    if pulls:
        outcome, found = differences(
            tmp_path / "pulls", [*filled(30, "PlainLong"), member(version=1 << 42), *pulls])
        assert not found, "\n".join(found[:5])
        assert outcome.in_lane > 29


def test_there_are_captures_of_several_clients():
    assert {path.stem.partition("-")[0] for path in CAPTURES} >= {"java", "node", "python"}
