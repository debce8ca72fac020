"""The probe of `make soak`, quickly: every code has a worst request, and a small store serves them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def probe(monkeypatch):
    spec = importlib.util.spec_from_file_location("worst_requests", ROOT / "tools" / "worst_requests.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "worst_requests", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.slow
def test_no_code_holds_a_small_server_for_seconds(probe, tmp_path, capsys):
    """The bound is generous: a busy machine delays everything. Without a bound some took minutes."""
    assert probe.run(str(tmp_path), 50, 1, 0, 5_000) == 0
    shown = capsys.readouterr().out
    assert "no answer in 20 s" not in shown
    assert "none held the loop longer than 5000 ms" in shown


def test_a_code_without_a_worst_request_fails_the_probe(probe, tmp_path, capsys, monkeypatch):
    codes = probe.registered_codes(str(tmp_path / "store"))
    assert not (codes[0] | codes[1]) - set(probe.worst_requests(50, 0))
    monkeypatch.setattr(probe, "registered_codes", lambda directory: (codes[0] | {9999}, codes[1]))
    assert probe.run(str(tmp_path), 50, 1, 0, 50) == 1
    assert "no worst request is known for the codes [9999]" in capsys.readouterr().out
