"""The request walk of the threat model: every request of the table has a row, and every kind of touch a check."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tailrace.formats.requests.table import REQUESTS, Touch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("gen_threat_model", ROOT / "tools" / "gen_threat_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_touch_says_how_it_is_checked(tool):
    assert tool.CHECKS.keys() == {*Touch}


def test_every_request_has_a_row(tool):
    rows = [row.split(" | ") for row in tool.rows()]
    assert sorted(int(row[0].removeprefix("| ")) for row in rows) == sorted(REQUESTS)
    for row in rows:
        request = REQUESTS[int(row[0].removeprefix("| "))]
        assert (row[5] != "-") == bool(request.touches)
        assert not request.touches or row[6] != "- |"


def test_the_page_is_written_from_the_table(tool, capsys, monkeypatch):
    monkeypatch.setattr(tool.sys, "argv", ["gen_threat_model.py", "--check"])
    assert tool.main() == 0, capsys.readouterr().err
    monkeypatch.setattr(tool, "walk", lambda: f"{tool.START}other\n{tool.END}")
    assert tool.main() == 1
    assert "run `make gen`" in capsys.readouterr().err


def test_a_page_without_a_place_is_refused(tool):
    with pytest.raises(SystemExit, match="no place"):
        tool.written("# Threat model\n")


def test_the_walk_names_those_that_need_a_super_user(tool):
    text = tool.walk()
    for name in ("AUTH_CREATE_USER", "AUTH_DELETE_USER", "AUTH_CREATE_ACL"):
        [row] = [line for line in text.splitlines() if f"| {name} |" in line]
        assert "a super user" in row
