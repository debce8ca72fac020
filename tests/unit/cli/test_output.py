"""What commands print: on a terminal of any width, in a pipe, in an odd locale."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import commands
import pytest

from tailrace.cli.log_output import JsonFormatter
from tailrace.cli.output import (
    About,
    Progress,
    _cell,
    _styled,
    _title,
    local_time,
    print_kinds,
)
from tailrace.cli.pipeline import Job
from tailrace.cli.pipeline_archive import _Archived, _once
from tailrace.logs import get_logger
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.spellings import camel
from tailrace.testing import SimClock

RUN = [sys.executable, "-c", "from tailrace.cli import main; main()"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "store"
    with MessageStore.open(path) as opened:
        opened.put(Message(topic="orders", body="42 äpfel\x1b[31m".encode(), tags="new", keys=["k"]))
        opened.put(Message(topic="orders", body=b"\xff\xfe", tags="paid", keys=["k"]))
    return path


def on_terminal(*arguments, columns=80, environment=()):
    """Run a command with a pseudo-terminal as stdout and stderr; return its exit code and text."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = commands.Running(
        arguments, [follower] * 3, env={**dict.fromkeys(("COLUMNS", "LINES", "NO_COLOR")), "TERM": "xterm"} | dict(
            environment))
    os.close(follower)
    text = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # EIO: the last writer has closed it
            break
        if not part:
            break
        text += part
    os.close(leader)
    return process.wait(30), text.decode().replace("\r\n", "\n")


def piped(*arguments, **environment):
    """Run a command whose standard streams are not a terminal."""
    if not environment:  # others may be read when Python or a module starts
        done = commands.run(*arguments)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.encode(), done.stderr.encode())
    return subprocess.run(
        [*RUN, *map(str, arguments)], capture_output=True, timeout=60, check=False,
        env=os.environ | environment)


@pytest.mark.parametrize("columns", [200, 80, 20])
def test_a_terminal_gets_tables_and_no_escape_of_a_message(store, columns):
    code, text = on_terminal("query", store, "--topic", "orders", "--key", "k", "--body", columns=columns)
    assert code == 0
    assert not text.startswith("{")
    assert "42 äpfel\x1b[31m" not in text
    first, *_ = text.splitlines()
    assert ("offset" in first) == (columns == 200)  # a table, or the fields of each message below each other


@pytest.mark.parametrize("words", [(), ("--wide",)])
@pytest.mark.parametrize("columns", [80, 20])
def test_an_id_is_never_cut(store, columns, words):
    [line] = map(json.loads, piped("query", store, "--topic", "orders", "--key", "k").stdout.splitlines()[:1])
    unique = line["message"]["properties"]["UNIQ_KEY"]
    assert len(unique) == 32
    text = on_terminal("query", store, "--topic", "orders", "--key", "k", *words, columns=columns)[1]
    assert unique in text
    assert (len(text.splitlines()) == 3) == bool(words)  # one line for each message


def test_a_table_that_is_too_wide_leaves_out_what_may_be_hidden_and_wide_shows_it(store):
    assert "last update" not in on_terminal("topic", "list", store, columns=45)[1]
    assert "last update" in on_terminal("topic", "list", store, "--wide", columns=45)[1]
    assert "last update" in on_terminal("topic", "list", store, columns=80)[1]


def test_values_have_units_and_those_that_need_attention_a_colour(monkeypatch):
    row = {"sizeBytes": 3 << 30, "usedPercent": 24, "bodySize": About(1536), "lag": 1200, "dueMs": 0, "checkCRC": True}
    assert {_title(name): _cell(name, value) for name, value in row.items()} == {
        "size": "3.0 GiB", "used": "24 %", "body size": "~1.5 KiB", "lag": "1,200", "due": "-", "check crc": "yes"}
    assert [str(_styled("lag", lag, str(lag)).style) for lag in (0, 7)] == ["", "yellow"]


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_lag_is_coloured_on_a_terminal_unless_colours_are_off(tmp_path, variables, coloured):
    with MessageStore.open(tmp_path / "s") as opened:
        opened.put(Message(topic="orders", body=b"x"))
    (tmp_path / "s/config/consumerOffset.json").write_text('{"offsetTable":{"orders@stock":{0:0}}}')
    text = on_terminal("group", "list", tmp_path / "s", environment=variables)[1]
    assert ("\x1b[33m" in text) == coloured
    assert "\x1b" not in piped("group", "list", tmp_path / "s").stdout.decode()


def test_a_dump_on_a_terminal_is_tables_that_are_printed_as_they_are_read(store, capsys):
    text = on_terminal("dump", store, "--topic", "orders", "--body")[1]
    assert text.startswith("store:\n")
    assert "position" in text
    assert "42 äpfel" in text
    read = []

    def lines():
        for number in range(250):
            read.append(number)
            yield {"queue": {"topic": "t", "queueId": number}}
            if number == 220:
                assert capsys.readouterr().out.count("queue:\n") == 2

    print_kinds(lines())
    assert capsys.readouterr().out.count("queue:\n") == 1


def test_a_tail_on_a_terminal_is_a_line_a_message_cut_to_the_width(store):
    code, text = on_terminal("tail", store, "--topic", "orders", "--from", "first", "--max", "2", columns=60)
    first, second = text.splitlines()
    assert code == 0
    assert first[24:].startswith(" 0:0  tags=new  keys=k  42 äpfel\\x1b")
    assert len(first) <= 60
    assert second.endswith("tags=paid  keys=k  //4=")


@pytest.mark.parametrize("command", [
    ("topic", "list"), ("dump",), ("disk-usage",), ("timers",), ("verify",), ("group", "list"),
    ("query", "--topic", "orders", "--key", "k")])
def test_json_is_the_same_on_a_terminal_with_json_and_in_a_pipe(store, command):
    words = (*command[:2], store) if command[0] in {"topic", "group"} else (command[0], store, *command[1:])
    code, text = on_terminal(*words, "--json")
    done = piped(*words)
    assert (code, done.returncode, done.stderr) == (0, 0, b"")
    assert text == done.stdout.decode()
    for line in text.splitlines():
        assert all("_" not in name for name in json.loads(line))


def test_tags_choose_and_bodies_are_text_or_base64(store):
    done = piped("tail", store, "--topic", "orders", "--from", "first", "--tags", "paid", "--max", "1")
    line = json.loads(done.stdout)
    assert (line["bodyBase64"], line["properties"]["TAGS"]) == ("//4=", "paid")
    assert line["storeTime"] == local_time(line["storeTimestamp"])
    lines = map(json.loads, piped("dump", store, "--body").stdout.splitlines())
    found = [line["message"] for line in lines if "message" in line]
    assert [message.get("body") for message in found] == ["42 äpfel\x1b[31m", None]


def test_a_locale_without_a_character_prints_its_code(store):
    code, text = on_terminal("topic", "stats", store, "orders")
    assert code == 0
    done = piped("tail", store, "--topic", "ördrs", "--no-follow", PYTHONIOENCODING="ascii")
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert b"has no topic \\xf6rdrs; is orders meant?" in done.stderr


def test_a_reader_that_has_gone_is_no_error(store):
    reader, writer = os.pipe()
    process = subprocess.Popen([*RUN, "dump", store], stdout=writer, stderr=subprocess.PIPE)
    os.close(reader)
    os.close(writer)
    assert process.communicate(timeout=30)[1] == b""
    assert process.returncode in {0, 1}


def test_work_of_two_seconds_shows_a_bar_on_a_terminal_only(monkeypatch):
    clock, bars = SimClock(), []
    monkeypatch.setattr("tailrace.cli.output._new_bar", lambda: bars.append(Bar()) or bars[-1])
    for on in (False, True):
        monkeypatch.setattr("sys.stderr", Terminal(on))
        with Progress("verify", clock) as progress:
            progress(0.1)
            assert not bars
            clock.advance(2_001)
            progress(0.5)
            progress(1.5)
    assert [bar.done for bar in bars] == [[0.5, 1.0, "stopped"]]


def test_both_parts_of_an_archive_job_have_a_bar(monkeypatch):
    class Archiving:
        def verify(self, *, accept_missing, share):
            assert accept_missing
            share(0.5)

        ranges, lag_ms = (), 0

        def step(self, share):
            share(1.0)

    bars = []
    monkeypatch.setattr("tailrace.cli.output._new_bar", lambda: bars.append(Bar()) or bars[-1])
    monkeypatch.setattr("tailrace.cli.output.QUIET_MS", 0)
    monkeypatch.setattr("sys.stderr", Terminal(True))
    done = _Archived(Job("archive", None, as_json=True))
    assert not _once(Archiving(), None, done, verify=True, accept_missing=True, bar=True)
    assert [(bar.task_ids, bar.done) for bar in bars] == [
        (["verify the archive"], [0.5, "stopped"]), (["archive"], [1.0, "stopped"])]


class Terminal:
    def __init__(self, is_terminal):
        self.isatty = lambda: is_terminal


class Bar:
    def __init__(self):
        self.done, self.task_ids = [], []

    def add_task(self, what, total):
        self.task_ids.append(what)

    def start(self):
        pass

    def update(self, task, completed):
        self.done.append(completed)

    def stop(self):
        self.done.append("stopped")


def test_names_and_times_have_one_spelling():
    assert camel("allocated_bytes") == "allocatedBytes"
    assert local_time(0)[:4] in {"1969", "1970"}
    assert local_time(1 << 62) == ""


def test_a_log_line_as_json_has_the_values_by_their_keys():
    logger, lines = get_logger("tailrace.test_output"), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    try:
        logger.warning("broker stopped broker=%s lag=%d", 'a"\n', 7)
        logger.warning("100 % done")
        try:
            raise OSError("gone")
        except OSError:
            logger.exception("it failed cause=%r", OSError(5, "x"))
    finally:
        logger.removeHandler(handler)
    first, second, third = map(json.loads, lines)
    assert (first["event"], first["broker"], first["lag"], first["level"]) == ("broker stopped", 'a"\\n', 7, "warning")
    assert second["event"] == "100 % done"
    assert "OSError: gone" in third["traceback"]


def test_a_log_line_of_another_package_has_its_traceback_as_json():
    try:
        raise OSError("gone")
    except OSError:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 1, "Task exception", None, sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["event"] == "Task exception"
    assert "OSError: gone" in line["traceback"]


def test_a_later_call_replaces_the_lines_of_an_earlier_one():
    program = (
        "from tailrace.cli.log_output import log_to_stderr\n"
        "from tailrace.logs import get_logger\n"
        "log_to_stderr('warning')\n"
        "get_logger('tailrace.x').warning('one')\n"
        "log_to_stderr('info', 'json')\n"
        "get_logger('tailrace.x').info('two')\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    first, second = done.stderr.decode().splitlines()
    assert first == "WARNING one"
    assert json.loads(second)["event"] == "two"


def test_interpreted_kernels_are_said_and_the_version_says_which(store):
    assert b"(kernels " in piped("--version").stdout
    done = piped("--version", TAILRACE_INTERPRETED="1")
    assert b"(kernels interpreted, CPython 3." in done.stdout
    code = ("import tailrace.kernels as k; k.compiled = lambda: False\n"
            "from tailrace.cli import main; main()")
    said = subprocess.run(
        [sys.executable, "-c", code, "verify", store], capture_output=True, timeout=60, check=True,
        env={k: v for k, v in os.environ.items() if k != "TAILRACE_INTERPRETED"})
    assert said.stderr.startswith(b"tailrace: the kernels run interpreted: ")


def test_a_start_without_compiled_kernels_says_one_line(tmp_path):
    code = ("import sys\n"
            "class Hide:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.startswith('tailrace.kernels._compiled.'): raise ModuleNotFoundError(name=name)\n"
            "sys.meta_path.insert(0, Hide())\n"
            "from tailrace.cli import main; main()")
    environment = {k: v for k, v in os.environ.items() if k != "TAILRACE_INTERPRETED"}
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", tmp_path / "s", "--listen", "127.0.0.1:0", "--namesrv-listen", "none"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:
        assert process.stdout.readline().startswith("ready ")
        process.terminate()
        said = [line for line in process.stderr if "kernel" in line]
    assert len(said) == 1
    assert said[0].startswith("tailrace: the kernels run interpreted: ")


def test_the_shell_completes_commands():
    done = piped(_TAILRACE_COMPLETE="complete_bash", COMP_WORDS="tailrace topic st", COMP_CWORD="2")
    assert done.stdout.split() == [b"stats"]


def test_a_job_prints_tables_on_a_terminal_and_lines_in_a_pipe(monkeypatch, capfd):
    rows = [{"topic": "orders", "messages": 7, "bytes": 2048}, {"topic": "paid", "messages": 1, "bytes": 10}]
    for as_json in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        job = Job("traffic", None, as_json=as_json)
        job.report(*rows)
        job.report({"gbPerSecond": 0.007, "archiveBytes": 9 << 20})
        job.report_kinds([{"finding": {"kind": "foreign-unit"}}, {"summary": {"findings": 1}}])
        printed = capfd.readouterr().out
        if as_json:
            assert [*map(json.loads, printed.splitlines())][:2] == rows
        else:
            assert re.search(r"orders +7 +2\.0 KiB\n", printed)
            assert re.search(r"archive +9\.0 MiB\n", printed)
            assert "finding:\nkind  foreign-unit\n" in printed
