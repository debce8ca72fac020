"""Sending many lines, stopping, continuing; looking at the end of a topic; names that the shell completes; contexts."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from page_shell import COMMAND_TIMEOUT_S, Shell, rendered
from served_process import served_process

pytestmark = pytest.mark.integration
END = r"\x1e\d+\x1e\n"
"""What a `Shell` prints after a command."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell with completion of bash beside a served store with one setting of the command line."""
    place = tmp_path_factory.mktemp("lines")
    with served_process(place, {"fileReservedTime": 5}, "--set", "fileReservedTime=7") as served:
        made = Shell(place, {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(place), "TERM": "xterm",
            "LANG": "C.UTF-8", "SERVER": served.namesrv}, terminal=True)
        try:
            assert "saved" in made.run('tailrace context save here --namesrv "$SERVER" --select')
            yield made
        finally:
            made.close()


def test_serve_set_wins_over_the_file(shell):
    assert '"fileReservedTime": "7.0"' in shell.run("tailrace doctor report store | cat")
    assert "settings of the command line settings=fileReservedTime" in shell.run("cat serve.log")
    text = shell.run("tailrace serve other --set fileReservdTime=7; echo rc=$?")
    assert "is fileReservedTime meant?" in text
    assert "rc=78" in text


def test_lines_are_counted_and_a_stopped_run_can_continue(shell):
    shell.run("seq 1 100000 > lines")
    shell.send("sh -c 'echo $$ > pid; exec tailrace send --topic bulk --file lines --lines'")
    shell.screen.until(r"send .*%", COMMAND_TIMEOUT_S)  # the bar, which comes after two seconds
    os.kill(int((shell.folder() / "pid").read_text()), signal.SIGINT)
    text = rendered(shell.screen.until(END, COMMAND_TIMEOUT_S))
    found = re.search(
        r"stored ([\d,]+) of 100,000 lines, stopped(?:; line ([\d,]+) may be stored as well| at line [\d,]+)?"
        r"; --skip (\d+) continues there", text)
    assert found, text
    stored, unsure, again = (int((number or "0").replace(",", "")) for number in found.groups())
    assert 0 < stored == again
    assert unsure in {0, again + 1}
    shell.run(f"head -n {again + 40} lines > few")
    assert "stored 40 lines in bulk" in shell.run(f"tailrace send --topic bulk --file few --lines --skip {again}")
    shown = shell.run("tailrace tail --topic bulk --last 3 --no-follow").splitlines()
    assert [line.split()[-1] for line in shown] == [str(again + number) for number in (38, 39, 40)]
    assert len(shell.run("tailrace tail --topic bulk --since 1h --max 5").splitlines()) == 5


def test_bash_completes_names_as_they_are_typed(shell):
    shell.run('eval "$(tailrace --show-completion bash)"')
    press = 'COMP_WORDS=({}) COMP_CWORD={}; _tailrace_completion tailrace; printf "%s;" "${{COMPREPLY[@]}}"'

    def complete(*words):
        line = " ".join(f"'{word}'" for word in ("tailrace", *words))
        return shell.run(press.format(line, len(words))).strip().rstrip(";").split(";")

    shell.run("tailrace group create stock")
    shell.run("tailrace topic create bulk")
    assert complete("topic", "stats", "b") == ["bulk"]
    assert complete("send", "store", "--topic", "b") == ["bulk"]
    assert complete("group", "show", "st")[:1] == ["stock"]
    assert complete("topic", "list", "--context", "h") == ["here"]
    assert complete("verify", "sto") == ["store"]
    host, port = shell.run('printf %s "$SERVER"').strip().split(":")
    assert complete("topic", "stats", "--namesrv", host, ":", port, "b") == ["bulk"]
    assert complete("topic", "stats", "--namesrv", host, ":", "1", "b") == [""]  # no server listens there


def test_a_context_is_listed_selected_and_removed(shell):
    shell.run("tailrace context save shop --broker 10.0.0.7:10911 --tls")
    text = shell.run("tailrace context list")
    assert re.search(r"here +yes +127\.0\.0\.1:\d+", text)
    assert "10.0.0.7:10911" in text
    assert "is shop meant?" in shell.run("tailrace context select shp")
    shell.run("tailrace context remove shop")
    assert "10.0.0.7:10911" not in shell.run("tailrace context list")
    assert shell.run("stat -c %a .config/tailrace/contexts.toml").strip() == "600"
