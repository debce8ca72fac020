"""The console acts for users, and only for them: what an operator types, and what each page says."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path

import pytest
from console_world import ACTIONS, ActingConsole
from page_shell import Shell
from patience import until

pytestmark = pytest.mark.integration


def test_the_start_says_what_actions_need(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with contextlib.closing(Shell(tmp_path, environment, terminal=True)) as shell:
        text = " ".join(shell.run("tailrace serve ./store --console-actions; echo rc=$?").split())
        assert "--console-actions needs --http HOST:PORT" in text
        assert "--console-actions needs users" in text
        assert "--user NAME --password-file FILE" in text
        assert "rc=78" in text
        text = " ".join(shell.run(
            "echo authenticationEnabled=true > c; tailrace serve ./store --config c --http 127.0.0.1:0 "
            "--console-actions; echo rc=$?").split())
        assert "--console-actions needs authorizationEnabled=true" in text
        assert "rc=78" in text
        assert not (tmp_path / "store").exists()


def test_a_bad_night_is_mended_from_the_console(tmp_path):
    """Dead letters are sent again, a group is reset, and the audit log has who did it."""
    with ActingConsole(tmp_path) as console:
        created = console.do("put-topic", {"topic": "orders", "read": "2", "write": "2", "perm": "6"})
        assert "Topic orders is created." in created.text
        console.dead_letters("shipping", "orders", 3)
        link = re.compile(rf'href="({ACTIONS}resend[^"]*)"')
        until(lambda: link.search(console.ask("/console/groups/shipping").html))
        href = link.search(console.ask("/console/groups/shipping").html)[1]
        assert "Dead letters 1 to 3 of 3 of group shipping" in console.ask(href).text
        preview = console.preview("resend", {"group": "shipping", "which": "all"})
        assert "3 of group shipping To orders (3)" in preview.text
        assert "Sent 3 to orders" in console.confirm("resend", preview).text
        assert "Sent again before 3, left out" in console.preview("resend", {"group": "shipping", "which": "all"}).text
        assert "Message id" in console.do("send-message", {"topic": "orders", "body": "a test"}).text
        assert "Set these offsets" in console.preview(
            "reset-group", {"group": "shipping", "topic": "orders", "to": "last"}).text
        assert "Nothing is deleted" in console.preview("delete-expired", {}).text
    assert console.stopped == 0
    assert [(line["user"], line["name"]) for line in console.audit() if line["event"] != "log-in"] == [
        ("root", "UPDATE_AND_CREATE_TOPIC"), ("root", "resend"), ("root", "send-message")]
