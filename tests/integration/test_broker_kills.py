"""A broker with transactions and POP consumers that is killed twice; `make crash` has the long run."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location(
    "broker_kills", pathlib.Path(__file__).parents[2] / "tools" / "broker_kills.py")
broker_kills = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(broker_kills)

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_kill_loses_and_doubles_nothing(tmp_path):
    loop = broker_kills.Loop(tmp_path / "store", 1)
    try:
        for _ in range(2):
            loop.round()
        loop.finish()
    finally:
        loop.broker.kill()
    print(dict(loop.clients.counts))
    assert loop.clients.counts["acknowledged"]
    assert loop.clients.counts["came back"]
