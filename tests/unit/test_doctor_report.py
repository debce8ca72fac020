"""What `tailrace doctor report` shows of settings and log lines: decided by declarations, never a secret."""

import json
import logging

import pytest

from tailrace import events
from tailrace.cli.log_output import JsonFormatter
from tailrace.config import SECRET
from tailrace.doctor.report import problem_of
from tailrace.doctor.report_events import HIDDEN, HIDDEN_OF, SHOWN, last_events
from tailrace.doctor.report_settings import SETTINGS, shown_settings
from tailrace.errors import ConfigError, RemotingCommandError
from tailrace.events import EVENTS
from tailrace.logs import get_logger
from tailrace.tls_settings import TLS_ALIASES

HIDDEN_SETTINGS = sorted(
    name for name, f in SETTINGS.items() if f.metadata["secret"] or f.metadata["secret_file"])


def test_the_settings_that_hold_or_name_a_secret_are_declared():
    assert HIDDEN_SETTINGS == [
        "initAuthenticationUser", "innerClientAuthenticationCredentials", "metricsTokenFile",
        "tls.client.keyPassword", "tls.client.keyPath", "tls.server.keyPassword", "tls.server.keyPath"]
    like_a_secret = [name for name in SETTINGS if any(word in name.lower() for word in (
        "password", "secret", "keypath", "token", "credential")) and name not in HIDDEN_SETTINGS]
    assert like_a_secret == ["passwordLengthMin"]


@pytest.mark.parametrize("name", [*HIDDEN_SETTINGS, *(
    alias for alias, name in TLS_ALIASES.items() if name in HIDDEN_SETTINGS)])
def test_the_value_of_such_a_setting_is_hidden_under_each_name(name):
    assert shown_settings({name: "pearl-7"}) == {name: SECRET}
    assert shown_settings({name: ""}) == {name: ""}


def test_a_value_that_no_declaration_allows_is_hidden():
    shown = shown_settings({
        "listenPort": "pearl-7", "tls.server.mode": "pearl-7", "flushDiskType": "pearl-7", "myPassword": "pearl-7"})
    assert "pearl-7" not in str(shown)
    assert [*shown] == ["flushDiskType", "listenPort", "myPassword", "tls.server.mode"]
    assert shown_settings({"listenPort": "10911", "flushDiskType": " SYNC_FLUSH ", "namesrvAddr": "a:1"}) == {
        "listenPort": "10911", "flushDiskType": "SYNC_FLUSH", "namesrvAddr": "a:1"}


def test_settings_with_their_default_are_left_out_of_a_server_s_settings():
    assert shown_settings(
        {"listenPort": "10911", "messageIndexEnable": "true", "flushDiskType": "SYNC_FLUSH"}, changed_only=True
    ) == {"flushDiskType": "SYNC_FLUSH"}


def test_every_key_of_an_event_is_shown_or_hidden():
    keys = {key for event in EVENTS for key in event.keys}
    assert not SHOWN & HIDDEN
    assert keys == SHOWN | HIDDEN


def lines_of(event, values, form, **more):
    """The line of an event as `tailrace serve` prints it."""
    got = []
    handler = logging.Handler()
    handler.emit = got.append
    logger = get_logger("tailrace.broker.test_of_reports")
    logger.setLevel(1)
    logger.addHandler(handler)
    event.log(logger, **{f"{key}_" if key == "from" else key: value for key, value in values.items()}, **more)
    logger.removeHandler(handler)
    formatter = JsonFormatter() if form == "json" else logging.Formatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s")
    return formatter.format(got[0])


@pytest.mark.parametrize("form", ["json", "text"])
def test_every_event_is_reported_without_hidden_values(form):
    hidden = {event: HIDDEN | HIDDEN_OF.get(event, frozenset()) for event in EVENTS}
    lines = [lines_of(event, {key: f"{'pearl' if key in hidden[event] else 'plain'}-{key}" for key in event.keys}, form)
             for event in EVENTS]
    seen = {}
    for event, line in zip(EVENTS, lines, strict=True):
        found = last_events(line)
        assert found["otherLines"] == 0, line
        [shown] = found["events"]
        assert shown["event"] == event.phrase
        assert "pearl" not in json.dumps(shown)
        assert all(shown[key] == f"plain-{key}" for key in event.keys if key not in hidden[event]), (shown, line)
        seen[event] = shown
    assert len(seen) == len(EVENTS)


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_hidden_value_cannot_pass_for_a_shown_one(form):
    event = next(event for event in EVENTS if event.keys[0] in HIDDEN and event.keys[-1] in SHOWN)
    value = f"x {event.keys[-1]}=pearl-7"
    text = lines_of(event, {**dict.fromkeys(event.keys, "1"), event.keys[0]: value}, form)
    assert "pearl" in text
    assert "pearl" not in json.dumps(last_events(text))


@pytest.mark.parametrize("form", ["json", "text"])
def test_of_an_error_the_class_and_the_places_are_shown(form):
    event = next(event for event in EVENTS if event.keys == ("cause",) and event.level in {"warning", "error"})
    try:
        json.loads("pearl-7")
    except ValueError as error:
        line = lines_of(event, {"cause": OSError(28, "pearl-7")}, form, exc_info=error)
    found = last_events(line)["events"][0]
    assert "pearl" not in json.dumps(found)
    assert found["cause"] == "(hidden: errno 28, No space left on device)"
    assert found["traceback"][-1] == "json.decoder.JSONDecodeError"
    assert any("raw_decode" in place for place in found["traceback"])


def test_lines_of_others_are_only_counted():
    own = lines_of(events.BROKER_STOPPED, {"broker": "a:1"}, "text")
    text = f"pearl-1\n{own}\n{{\"event\": \"pearl-2\"}}\n{{pearl-3\nNov 26 host tailrace[7]: {own}\n pearl-4\n"
    found = last_events(text)
    assert [(one["event"], one["broker"]) for one in found["events"]] == [("broker stopped", "a:1")] * 2
    assert found["otherLines"] == 3
    assert "pearl" not in json.dumps(found)


def test_only_the_last_events_are_kept():
    lines = [lines_of(events.BROKER_STOPPED, {"broker": f"a:{n}"}, "text") for n in range(300)]
    found = last_events("\n".join(lines))["events"]
    assert [one["broker"] for one in found] == [f"a:{n}" for n in range(100, 300)]


def test_a_problem_is_named_without_a_text_that_has_a_value():
    assert problem_of(ConfigError("listenPort=pearl-7")) == "ConfigError"
    assert problem_of(RemotingCommandError(16, "pearl-7")) == "RemotingCommandError, code 16"
    assert problem_of(PermissionError(13, "Permission denied", "x")) == (
        "PermissionError, errno 13: Permission denied")
    assert problem_of(ValueError("pearl-7")) == "ValueError"
