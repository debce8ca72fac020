"""Everything with sockets runs on both loops: asyncio's own, and uvloop, which `serve` uses."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def loop_kind(request, monkeypatch):
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
        monkeypatch.setattr(asyncio, "run", uvloop.run)
    return request.param
