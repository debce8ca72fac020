"""The table of log lines and the calls in the package say the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tailrace.events import EVENTS, split_line

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch):
    """tools/gen_reference.py, which reads the calls."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("gen_reference", ROOT / "tools" / "gen_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_line_is_declared_and_every_declaration_is_logged(tool):
    calls, problems = tool.event_calls()
    assert not problems
    assert len(calls) == len(EVENTS) > 100


@pytest.mark.parametrize(("call", "complaint"), [
    ('_log.info("broker stopped broker=%s", x)', None),
    ('_log.warning("broker stopped broker=%s", x)', "warning 'broker stopped broker=%s' is not declared"),
    ('_log.info("broker stopped name=%s", x)', "info 'broker stopped name=%s' is not declared"),
    ('_log.info("broker gone broker=%s", x)', "is not declared"),
    ('_log.info(text)', "info '' is not declared"),
    ('_log.log(30, "broker stopped broker=%s", x)', "log '' is not declared"),
    ('logging.info("broker stopped broker=%s", x)', None),
])
def test_a_line_that_is_not_declared_is_found(tool, monkeypatch, tmp_path, call, complaint):
    (tmp_path / "module.py").write_text(f"def f():\n    {call}\n")
    monkeypatch.setattr(tool, "SOURCES", tmp_path)
    _, problems = tool.event_calls()
    undeclared = [p for p in problems if "module.py" in p]
    if complaint is None:
        assert not undeclared
    else:
        assert len(undeclared) == 1
        assert complaint in undeclared[0]
        assert "module.py:2: " in undeclared[0]
    assert "events.py: nobody logs info 'broker started'" in problems


def test_a_format_is_a_phrase_and_keys():
    assert split_line("a, b c=%s d_e=%d") == ("a, b", ("c", "d_e"))
    assert split_line("only words") == ("only words", ())
    assert split_line("aborted peer=%s reason=answers are not read") == ("aborted", ("peer", "reason"))


def test_meanings_are_sentences_for_people():
    for event in EVENTS:
        assert event.meaning[0].isupper() or event.meaning.startswith(("config/", "mode=")), event
        assert event.meaning.endswith("."), event
        assert "|" not in event.meaning + event.phrase, event
