"""What is kept of clients and half messages."""

from __future__ import annotations

from types import SimpleNamespace

from tailrace.proxy.caller import caller_of
from tailrace.proxy.transactions import HalfPlaces


def test_a_long_id_of_a_half_message_is_not_kept():
    places = HalfPlaces(SimpleNamespace(), SimpleNamespace())
    places.put("t", "x" * 256, 1, 2)
    places.put("t", "x" * 30_000, 1, 2)
    assert [len(name) for _, name in places._places] == [256]


def test_a_long_version_of_a_client_is_cut():
    made = caller_of({"x-mq-client-id": "c", "x-mq-client-version": "5" * 30_000}, ("10.0.0.1", 1))
    assert made.version == "5" * 64
