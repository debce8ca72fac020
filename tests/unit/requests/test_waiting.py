"""Bounds of requests that wait."""

from __future__ import annotations

import pytest

from tailrace.errors import RefusalError
from tailrace.requests.reply import FIELD_BYTES, WaitingRequests, memory_of


@pytest.mark.parametrize(("limits", "accepted"), [
    ((3, 9, 900), "aaa"), ((9, 2, 900), "aabb"), ((9, 9, 250), "aa"), ((9, 9, 900, 150), "ab"),
    ((9, 9, 900, 50), "ab")])
def test_each_bound_refuses_one_that_is_too_many(kit, limits, accepted):
    waiting = WaitingRequests("requests", *limits)
    channels = {name: kit.FakeChannel() for name in "ab"}
    taken = ""
    for name in "aaabbb":
        try:
            waiting.add(channels[name], 100)
        except RefusalError as refusal:
            assert refusal.code == 2
            assert refusal.remark.startswith(f"{len(taken)} requests with {100 * len(taken)} bytes wait already")
        else:
            taken += name
    assert taken == accepted
    assert (waiting.count, waiting.size_bytes) == (len(taken), 100 * len(taken))
    for name in taken:
        waiting.remove(channels[name], 100)
    assert (waiting.count, waiting.size_bytes, waiting._of_channel) == (0, 0, {})


def test_body_fields_and_their_places_count(kit):
    request = kit.request(10, {"ab": "c", "d": "ef"}, b"four", remark="12")
    assert memory_of(request) == 4 + 2 + 6 + 2 * FIELD_BYTES
