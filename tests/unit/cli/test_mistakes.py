"""Mistakes on the command line: one line that says what to do, and the exit code of its kind.

0 fine, 1 refused, 2 usage, 3 something is not installed.
"""

from __future__ import annotations

import builtins
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from tailrace.cli import main
from tailrace.cli.problems import explained
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RemotingCommandError, StoreLockedError
from tailrace.java_settings import unused_settings
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.serve_hint import locked_error


@pytest.fixture
def tailrace(monkeypatch, capsys, tmp_path):
    """Run the command here; its exit code, what it printed, and its complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tailrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return ended.value.code or 0, printed.out, printed.err

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def store(tmp_path):
    with MessageStore.open(tmp_path / "store") as opened:
        opened.put(Message(topic="orders", body=b"x", keys=["k"]))
    return tmp_path / "store"


@pytest.mark.parametrize("arguments", [
    ("--help",), ("-h",), ("--version",), ("serve", "--help"), ("dump", "--help"),
    ("query", "-h"), ("recover", "-h"), ("disk-usage", "-h"), ("send", "-h"), ("tail", "-h"),
    ("topic", "-h"), ("topic", "list", "-h"), ("topic", "create", "-h"),
])
def test_help_is_fine_and_names_the_command(tailrace, arguments):
    code, out, err = tailrace(*arguments)
    assert (code, err) == (0, "")
    assert "tailrace" in out
    assert "python -m" not in out


@pytest.mark.parametrize("group", [(), ("topic",), ("pipeline",)])
def test_a_list_of_commands_says_of_each_what_it_does_in_a_whole_sentence(tailrace, group):
    _, out, _ = tailrace(*group, "--help")
    lines = out.partition("Commands:\n")[2].splitlines()
    assert len(lines) > 2
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize(("arguments", "complaint"), [
    ((), "Commands:"),
    (("nonsense",), "No such command 'nonsense'"),
    (("serve",), "Missing argument 'STORE'"),
    (("serve", "s", "--listen", "10911"), "--listen 10911 is not HOST:PORT"),
    (("serve", "s", "--listen", "127.0.0.1:65536"), "is not HOST:PORT"),
    (("serve", "s", "--http", ":80"), "--http :80 is not HOST:PORT"),
    (("serve", "s", "--http", "0.0.0.0:80"), "--allow-remote"),
    (("serve", "s", "--listen", "0.0.0.0:0"), "--allow-remote"),
    (("serve", "s", "--log-level", "loud"), "--log-level loud is not"),
    (("dump", "s", "--only", "all"), "--only all: known are"),
    (("query", "s", "--topic", "t"), "Missing option '--key'"),
    (("send", "--topic", "t"), "BODY is missing: add a text, - for stdin, or --file FILE"),
    (("send", "./", "--topic", "t"), "BODY is missing after ./: "),
    (("send", "s", "x", "--file", "f", "--topic", "t"), "BODY and --file are both given"),
    (("send", "s", "x", "--lines", "--topic", "t"), "--lines needs --file FILE, or - as BODY"),
    (("tail", "s", "--broker", "h:1", "--topic", "t"), "STORE and --broker name different targets: use one of STORE"),
    (("tail", "--broker", "h:1", "--namesrv", "h:2", "--topic", "t"), "--broker and --namesrv name different"),
    (("tail", "s", "--topic", "t", "--tags", "||"), "--tags '||' names no tag"),
    (("broker", "status", "--context", "c", "--broker", "h:1"), "--broker and --context name different"),
    (("recover", "s", "--staging", "d", "--master", "local"), "--master and --staging without --spark: add --spark"),
    (("group", "reset", "g", "--topic", "t"), "Missing option '--to'"),
    (("group", "reset", "g", "--topic", "t", "--to", "7"), "--to 7 is an offset and needs --queue"),
    (("group", "reset", "g", "--topic", "t", "--to", "noon"), "--to 'noon' is not first, last, an offset (with"),
    (("group", "reset", "g", "--topic", "t", "--to", "time:noon"), "write a time as 2026-01-31T12:00 or time:"),
    (("topic", "delete", "s", "t"), "delete topic t and its messages: there is no terminal to ask for confirmation;"),
    (("topic", "purge", "s", "t", "--queue", "2", "--before", "2026-01-31"),
     "remove the messages of topic t, queue 2, before 2026-01-31: there is no terminal to ask for confirmation;"),
    (("topic", "stats", "s", "t", "u"), "one STORE is expected, not s t"),
    (("serve", "s", "--log-format", "xml"), "--log-format xml is not text or json"),
    (("send", "s", "--topic", "t", "--property", "a", "x"), "--property 'a' is not NAME=VALUE"),
    (("send", "s", "--topic", "t", "--queue", "x", "b"), "--queue"),
    (("send", "s", "--topic", "t", "--queue", "-2", "b"), "--queue"),
    (("send", "s", "--topic", "t", "--delay", "5000", "b"), "--delay '5000' has no unit; write 5000s or 5000ms"),
    (("send", "s", "--topic", "t", "--delay", "soon", "b"), "--delay 'soon' is not a duration; write 500ms, 5s, 10m"),
    (("send", "s", "--topic", "t", "--deliver-at", "noon", "b"), "--deliver-at 'noon' is not a time; write 2026"),
    (("send", "s", "--topic", "t", "--delay", "5s", "--delay-level", "3", "b"), "use one of --delay, --deliver-at and"),
    (("tail", "s", "--topic", "t", "--tags", "new or paid"), "--tags: 'new or paid' looks like SQL; write \"new"),
    (("acl", "user", "update", "s", "u", "--keep-old", "7"), "--keep-old '7' has no unit; write 7s or 7ms"),
    (("acl", "user", "update", "s", "u", "--keep-old", "31d"), "--keep-old '31d' is longer than 30d"),
    (("pipeline", "archive", "s", "a", "--follow", "--every", "1ms"), "--every '1ms' is shorter than 100ms"),
    (("pipeline", "archive", "s", "a", "--lag", "500ms"), "--lag '500ms' is shorter than 1s"),
    (("pipeline", "archive", "s", "a", "--lag", "60"), "--lag '60' has no unit; write 60s or 60ms"),
    (("pipeline", "archive", "s", "a", "--follow", "--every", "10"), "--every '10' has no unit; write 10s or 10ms"),
    (("pipeline", "archive", "s"), "Missing argument 'STORE...'. Needed are STORE... and ARCHIVE."),
    (("pipeline", "restore", "a"), "Missing argument 'STORE'. Needed are ARCHIVE and STORE."),
    (("pipeline", "traffic", "s", "--by", "week"), "week is not one of minute, hour, day"),
    (("send", "s", "--topic", "t", "two", "words"), "BODY is one argument, quote it: s two words"),
    (("send", "--broker", "h:1", "--topic", "t", "two", "words"), "quote it: two words"),
    (("send", ".", "--broker", "h:1", "--topic", "t", "x"), "STORE and --broker name different targets: use one of"),
    (("serve", "s", "--listen", "127.0.0.1:9", "--namesrv-listen", "127.0.0.1:9"),
     "--listen and --namesrv-listen are both 127.0.0.1:9"),
    (("tail", "s", "--topic", "t", "--from", "yesterday"), "--from yesterday is not"),
    (("tail", "s", "--topic", "t", "--max", "-1"), "--max"),
    (("topic", "create", "s", "t", "--queues", "0"), "--queues"),
])
def test_wrong_use_is_2(tailrace, arguments, complaint, tmp_path):
    code, out, err = tailrace(*arguments)
    assert code == 2
    assert complaint in out + err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("arguments", "complaint"), [
    (("dump", "gone"), "is not a store directory: it does not exist"),
    (("recover", "gone"), "is not a store directory: it does not exist"),
    (("tail", "gone", "--topic", "t"), "is not a store directory: it does not exist"),
    (("topic", "list", "gone"), "is not a store directory: it does not exist"),
    (("disk-usage", "gone"), "is not a store directory"),
    (("send", "gone", "--topic", "t", "x"), "it does not exist; add --create to make it a store"),
    (("send", "empty", "--topic", "t", "x"), "it is empty; add --create to make it a store"),
    (("send", "locked", "--topic", "t", "x"), "it is empty; add --create to make it a store"),
    (("send", "other", "--topic", "t", "x"), "no commitlog, here or where storePathCommitLog says\n"),
    (("send", "file", "--topic", "t", "x", "--create"), "it is a file\n"),
    (("topic", "create", "gone", "t"), "it does not exist; add --create to make it a store"),
    (("topic", "purge", "gone", "t", "--yes"), "it does not exist\n"),
    (("serve", "file"), "is not a store directory: it is a file"),
    (("recover", "other"), "it is not empty and has no commitlog"),
    (("dump", "store", "--config", "gone.properties"), "gone.properties: No such file or directory"),
    (("dump", "store", "--config", "other"), "other is a directory; expected a settings file with lines"),
    (("dump", "store", "--config", "binary"), "is not UTF-8 text; expected lines of name=value\n"),
    *(((command, "store" if command == "dump" else "new", "--config", "lines"),
       "lines line 2: 'this line is wrong' is not a setting; expected lines of name=value") for command in (
        "dump", "serve")),
    (("serve", "new", "--config", "wrong"),
     "mappedFileSizeCommitLog=abc is not a whole number; flushDiskType=NOPE is not one of SYNC_FLUSH"),
    (("tail", "store", "--topic", "nobody", "--no-follow"), "has no topic nobody"),
    *(((*command, "--topic", "order"), "has no topic order; is orders meant?\n") for command in (
        ("tail", "store"), ("dump", "store"), ("query", "store", "--key", "k"))),
    (("topic", "stats", "store", "ordrs"), "has no topic ordrs; is orders meant?\n"),
    (("topic", "delete", "store", "ordrs", "--yes"), "has no topic ordrs; is orders meant?\n"),
    (("group", "show", "store", "g"), "store has no group g\n"),
    (("backup", "store", "store/b"), "store, and would be lost with it: name a directory elsewhere"),
    (("topic", "list"), "cannot connect to 127.0.0.1:1: Connection refused (chosen by: NAMESRV_ADDR"),
    (("broker", "status", "--context", "shop"), "contexts.toml does not exist\n"),
    (("tail", "store", "--topic", "orders"), "no server has this directory open"),
    (("send", "store", "--topic", "a b", "x"), "topic: 'a b' must be"),
    (("send", "store", "--topic", "orders", "--queue", "9", "x"), "orders has queues 0 to 3"),
    (("topic", "create", "store", "a b"), "illegal characters"),
    (("send", "--broker", "127.0.0.1:1", "--topic", "t", "x"),
     "cannot connect to 127.0.0.1:1: Connection refused"),
    (("tail", "--namesrv", "127.0.0.1:1", "--topic", "t"),
     "cannot connect to 127.0.0.1:1: Connection refused"),
    (("send", "--broker", "nonsense", "--topic", "t", "x"), "has no port; write nonsense:10911"),
    (("send", "--namesrv", "127.0.0.1:65536", "--topic", "t", "x"), "not a port; write 127.0.0.1:9876"),
    (("topic", "create", "store", "t", "--attribute", "a=b"), "unsupported key: a; known are"),
    (("topic", "create", "store", "t", "--attribute", "retention.ms=x"), "retention.ms=x is not a whole"),
    *(((command, "file"), "is not a store directory: it is a file") for command in (
        "dump", "verify", "repair", "recover", "retention", "timers")),
])
def test_what_is_refused_is_1_with_one_line(tailrace, store, tmp_path, arguments, complaint):
    (tmp_path / "file").write_text("x")
    for name, inside in (("other", "x"), ("locked", "lock"), ("empty", "")):
        (tmp_path / name).mkdir()
        if inside:
            (tmp_path / name / inside).write_text("x")
    (tmp_path / "binary").write_bytes(b"\xff\xff=1\n")
    (tmp_path / "lines").write_text("maxMessageSize=100\nthis line is wrong\n")
    (tmp_path / "wrong").write_text("flushDiskType=NOPE\nmappedFileSizeCommitLog=abc\n")
    code, out, err = tailrace(*arguments)
    refused_setting = arguments[0] == "serve" and "--config" in arguments
    assert (code, out) == (78 if refused_setting else 1, "")
    assert complaint in err
    assert [line for line in err.splitlines() if line.startswith("tailrace: ")] == [
        err.splitlines()[-1]]
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("arguments", [
    ("send", "fresh", "--topic", "t", "x"), ("topic", "create", "fresh", "t")])
def test_create_makes_a_store_for_the_first_message_or_topic(tailrace, tmp_path, arguments):
    assert tailrace(*arguments, "--create")[0] == 0
    assert (tmp_path / "fresh" / "commitlog").is_dir()
    assert tailrace(*arguments)[0] == 0  # now it is one


@pytest.mark.parametrize("command", [
    ("dump",), ("recover",), ("verify",), ("repair",), ("repair", "--plan"), ("retention",),
    ("disk-usage",), ("timers",), ("query", "--topic", "orders", "--key", "k"),
])
def test_a_setting_that_nothing_knows_is_said_by_every_command(tailrace, store, tmp_path, command):
    (tmp_path / "conf").write_text("flushDiskTyp=SYNC_FLUSH\nmaxMessageSize=4096\n")
    code, _, err = tailrace(command[0], store, *command[1:], "--config", "conf")
    assert code == 0
    assert err.count("settings of conf not used here: flushDiskTyp (is flushDiskType meant?)\n") == 1


def test_a_full_disk_behind_stdout_is_named(store):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", "dump", store], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "tailrace: stdout: No space left on device\n")


def test_an_interrupt_while_modules_are_loaded_prints_nothing():
    done = subprocess.run([sys.executable, "-c", (
        "import os, signal, sys\n"
        "from tailrace.cli import main\n"
        "class Finder:\n"
        "    def find_spec(name, *rest):\n"
        "        if name == 'tailrace.cli.app':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "main()")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_signal_before_a_request_has_begun_prints_nothing():
    done = subprocess.run([sys.executable, "-c", (
        "import os, signal\n"
        "from tailrace.cli.signals import stop_at_signals\n"
        "async def request(): pass\n"
        "def run(coroutine):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return coroutine\n"
        "stop_at_signals()\n"
        "run(request())")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_groups_of_the_system_are_not_offered_for_a_name_that_is_wrong(tailrace, store):
    assert tailrace("group", "create", store, "stock")[0] == 0
    assert tailrace("group", "show", store, "zzz")[2].endswith("has no group zzz; it has stock\n")


def test_a_file_is_not_called_a_store_that_others_can_read(tailrace, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o666)
    err = tailrace("serve", "file", "--listen", "127.0.0.1:0", "--namesrv-listen", "none")[2]
    assert "it is a file" in err
    assert "can be read" not in err


def test_a_port_in_use_is_named(tailrace, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option, other in (("--listen", "--namesrv-listen"), ("--namesrv-listen", "--listen")):
            code, out, err = tailrace("serve", "new", option, address, other, "127.0.0.1:0")
            assert (code, out) == (1, "")
            assert err.splitlines()[-1].startswith(
                f"tailrace: cannot listen on {option} {address}: Address already in use, by process ")
    with MessageStore.open(tmp_path / "new"):  # it was closed again, cleanly
        assert not list((tmp_path / "new").glob("abort.*"))


def test_a_host_that_is_no_host_is_named(tailrace):
    code, _, err = tailrace(
        "serve", "new", "--listen", "no-such-host.invalid:0", "--allow-remote")
    assert code == 1
    assert err.splitlines()[-1].startswith(
        "tailrace: cannot listen on --listen no-such-host.invalid:0: ")
    assert "Errno" not in err


def test_what_is_not_installed_is_3(tailrace, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("tailrace.observe.http_status"):
            raise ModuleNotFoundError("No module named 'prometheus_client'", name="prometheus_client")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    code, _, err = tailrace("serve", "new", "--http", "127.0.0.1:0")
    assert code == 3
    assert err.splitlines()[-1] == "tailrace: prometheus_client is not installed"


def test_settings_without_a_meaning_are_named_and_misspelt_ones_guessed():
    values = {
        "flushDiskTyp": "x", "enableControllerMode": "true", "storeType": "default", "maxMessageSize": "1"}
    assert unused_settings(values) == ["enableControllerMode", "flushDiskTyp (is flushDiskType meant?)"]


def test_a_lock_says_who_serves_where_that_is_known(tmp_path):
    (tmp_path / "tailrace").mkdir()
    hint = tmp_path / "tailrace" / "serve.json"

    def error():
        return explained(locked_error(OsFileSystem(), str(tmp_path)))

    assert error() == f"{tmp_path} is locked by another process"
    hint.write_text('{"pid": 7, "broker": "127.0.0.1:5", "namesrv": ""}')
    assert error() == f"{tmp_path} is locked by another process; tailrace serve, process 7, serves it at 127.0.0.1:5"
    for odd in ("[", '{"pid": "x", "broker": "127.0.0.1:5"}', "7"):
        hint.write_text(odd)
        assert error() == f"{tmp_path} is locked by another process"


def test_a_lock_names_its_process_without_a_server(tmp_path):
    with MessageStore.open(tmp_path / "s"):
        with pytest.raises(StoreLockedError, match=r"is locked by another store object of this process$") as error:
            MessageStore.open(tmp_path / "s")
        assert (error.value.pid, error.value.address) == (os.getpid(), "")
    with subprocess.Popen(
        [sys.executable, "-c", (
            "import sys; from tailrace import MessageStore\n"
            "with MessageStore.open(sys.argv[1]): print('open', flush=True); sys.stdin.read()"), str(tmp_path / "s")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(StoreLockedError, match=rf"is locked by process {other.pid} \(python3?[.\d]*\)$"):
            MessageStore.open(tmp_path / "s")
        other.stdin.close()


def test_the_answer_of_a_peer_is_one_line():
    error = RemotingCommandError(17, "no route\nSee the manual.", "h:1")
    assert explained(error) == (
        "the server does not have the topic; correct its name, or create it with tailrace topic create "
        "(code 17 from h:1: no route)")
