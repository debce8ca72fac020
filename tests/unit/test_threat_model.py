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


def test_every_kind_of_touch_that_a_row_has_is_explained(tool):
    explained = [line.split(" | ")[0].removeprefix("| ") for line in tool.walk().splitlines() if line.count(" | ") == 1]
    touched = {name for row in tool.rows() for name in row.split(" | ")[5].split(", ")} - {"-"}
    assert touched <= {*explained}
    assert len(explained) == len(Touch) + 1  # the head of the table


def test_a_page_that_is_not_current_is_reported(tool, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(tool.sys, "argv", ["gen_threat_model.py", "--check"])
    assert tool.main() == 0, capsys.readouterr().err
    monkeypatch.setattr(tool, "walk", lambda: "other\n")
    assert tool.main() == 1
    assert "run `make gen`" in capsys.readouterr().err
    monkeypatch.setattr(tool, "PAGE", tmp_path / "missing.md")
    assert tool.main() == 1


def test_the_walk_names_those_that_need_a_super_user(tool):
    text = tool.walk()
    for name in ("AUTH_CREATE_USER", "AUTH_DELETE_USER", "AUTH_CREATE_ACL"):
        [row] = [line for line in text.splitlines() if f"| {name} |" in line]
        assert "a super user" in row


def test_the_walk_names_those_that_need_to_delete(tool):
    found = {line.split(" | ")[1] for line in tool.rows() if "Delete, if" in line}
    assert found == {"UPDATE_AND_CREATE_TOPIC", "UPDATE_AND_CREATE_TOPIC_LIST", "UPDATE_BROKER_CONFIG"}
