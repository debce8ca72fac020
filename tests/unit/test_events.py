"""The calls that log an event agree with its declaration, and every line is an event."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest

from tailrace import events
from tailrace.events import EVENTS, split_line
from tailrace.logs import get_logger

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
    ("events.BROKER_STOPPED.log(_log, broker=x)", None),
    ("events.REQUEST_FAILED.log(_log, code=1, peer=x, reason=y, exc_info=True)", None),
    ("events.BROKER_STOPPED.log(_log, name=x)", "the keys of BROKER_STOPPED are broker, not name"),
    ("events.BROKER_STOPPED.log(_log)", "the keys of BROKER_STOPPED are broker, not "),
    ("events.BROKER_STOPPED.log(_log, **values)", "the keys of BROKER_STOPPED are broker, not **"),
    ("events.BROKER_GONE.log(_log, broker=x)", "BROKER_GONE is not declared"),
    ('_log.info("broker stopped broker=%s", x)', "a line is not declared"),
    ('_log.log(30, "broker stopped broker=%s", x)', "a line is not declared"),
    ('logging.info("broker stopped broker=%s", x)', "a line is not declared"),
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
    assert "tailrace.events: no module logs BROKER_STARTED" in problems


def test_a_line_has_its_level_its_values_and_the_place_of_the_call(caplog):
    log = get_logger("tailrace.broker.somewhere")
    with caplog.at_level(logging.DEBUG, "tailrace"):
        try:
            raise ValueError("wrong")
        except ValueError as error:
            events.REQUEST_FAILED.log(log, code=11, peer="a:1", reason=repr(error), exc_info=True)
        events.DATA_LOST.log(log, store="s", topic="t", queue_id=1, from_=2, until=5, skipped=3)
    failed, lost = caplog.records
    assert (failed.levelname, failed.getMessage()) == (
        "WARNING", "request failed code=11 peer=a:1 reason=ValueError('wrong')")
    assert "Traceback" in failed.exc_text
    assert failed.funcName == "test_a_line_has_its_level_its_values_and_the_place_of_the_call"
    assert lost.getMessage() == "data lost store=s topic=t queue_id=1 from=2 until=5 skipped=3"


def test_a_line_is_a_phrase_and_keys():
    assert split_line("a, b c=%s d_e=%d") == ("a, b", ("c", "d_e"))
    assert split_line("only words") == ("only words", ())
    assert split_line("aborted peer=%s reason=answers are not read") == ("aborted", ("peer", "reason"))


def test_meanings_are_sentences_for_people():
    for event in EVENTS:
        assert event.meaning[0] in "[`" or event.meaning[0].isupper(), event
        assert event.meaning.endswith("."), event
        assert "|" not in event.meaning + event.phrase + event.do, event


def test_every_line_of_level_warning_and_above_says_what_to_do():
    for event in EVENTS:
        if event.level not in {"info", "debug"}:
            assert event.do, event
        assert not event.do or (event.do[0] in "[`" or event.do[0].isupper()), event
        assert not event.do or event.do.endswith("."), event
