"""What a shell gets for the key TAB, through the protocols of bash, zsh and fish."""

from __future__ import annotations

import json
import os
import re
import socket
import sys

import pytest

from tailrace.cli import completion, main
from tailrace.env.clock import SystemClock
from tailrace.model import Message
from tailrace.node.message_store import MessageStore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell") / "store"
    with MessageStore.open(path) as opened:
        for topic in ("orders", "ordres", "payments"):
            opened.put(Message(topic=topic, body=b"x"))
        opened.create_topic("%RETRY%stock")
    (path / "config/consumerOffset.json").write_text('{"offsetTable":{"orders@stock":{0:1}}}')
    return path


@pytest.fixture
def complete(monkeypatch, capfd, tmp_path, store):
    """Press TAB after words, in bash; return what the shell gets."""
    monkeypatch.chdir(store.parent)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    monkeypatch.setenv("TAILRACE_CONTEXTS", str(tmp_path / "contexts.toml"))
    monkeypatch.setattr("tailrace.cli.stop_at_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["tailrace"])

    def complete(*words, shell="bash"):
        monkeypatch.setenv("_TAILRACE_COMPLETE", f"complete_{shell}")
        if shell == "bash":
            monkeypatch.setenv("COMP_WORDS", "\n".join(("tailrace", *words)))
            monkeypatch.setenv("COMP_CWORD", str(len(words)))
        else:
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(("tailrace", *words)))
            monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        with pytest.raises(SystemExit):
            main()
        printed = capfd.readouterr()
        assert printed.err == ""
        return printed.out.split("\n")[:-1] if shell == "bash" else printed.out

    return complete


@pytest.mark.parametrize(("words", "found"), [
    (("topic", "stats", "store", "or"), ["orders", "ordres"]),
    (("topic", "delete", "store", ""), ["orders", "ordres", "payments"]),
    (("topic", "purge", "store", "%"), ["%RETRY%stock"]),  # asked for by its first letter
    (("query", "store", "--topic", "p"), ["payments"]),
    (("dump", "store", "--topic", "p"), ["payments"]),
    (("tail", "store", "--topic", "p"), ["payments"]),
    (("send", "store", "--topic", "p"), ["payments"]),
    (("pipeline", "replay", "store", "--topic", "p"), ["payments"]),
    (("group", "reset", "store", "stock", "--topic", "p"), ["payments"]),
    (("group", "show", "store", ""), ["stock"]),
    (("group", "delete", "store", "x"), []),
    (("topic", "stats", "s"), ["store"]),
    *(((*command, "s"), ["store"]) for command in (
        ("verify",), ("retention",), ("serve",), ("send", "--topic", "t"), ("topic", "list"), ("acl", "list"),
        ("pipeline", "audit"), ("doctor", "report"))),
    (("serve", "store", "--set", "fileRes"), ["fileReservedTime="]),
    (("tail", "store", "--from", ""), ["first", "last"]),
    (("pipeline", "traffic", "store", "--by", "m"), ["minute"]),
])
def test_names_come_from_the_store_of_the_line(complete, words, found):
    assert complete(*words) == (found or [""])


def test_contexts_and_their_addresses_are_completed(complete, tmp_path):
    (tmp_path / "contexts.toml").write_text('[shop]\nbroker = "10.0.0.7:10911"\n[test]\nnamesrv = "10.0.0.8:9876"\n')
    assert complete("topic", "list", "--context", "") == ["shop", "test"]
    assert complete("context", "select", "s") == ["shop"]
    assert complete("topic", "list", "--broker", "10") == ["10.0.0.7:10911"]
    assert complete("topic", "list", "--namesrv", "10") == ["10.0.0.8:9876"]
    # bash takes the colon for a word, and replaces only what follows it
    assert complete("topic", "list", "--broker", "10.0.0.7", ":", "10") == ["10911"]
    assert complete("topic", "list", "--broker", "10.0.0.7", ":") == ["10911"]
    assert complete("topic", "list", "--context", "=", "s") == ["shop"]


@pytest.mark.parametrize("words", [
    ("topic", "stats", "x"), ("topic", "stats", "--namesrv", "127.0.0.1:1", "o"),
    ("topic", "stats", "--context", "no", "o"),
    ("topic", "stats", "--broker", "nonsense", "o"), ("group", "show", "--broker", "h:1", "--namesrv", "h:2", "g"),
    ("topic", "stats", "gone/", "o"), ("verify", "/nowhere/x"), ("query", "store", "--topic", "zz"),
])
def test_what_goes_wrong_is_no_name_and_no_text(complete, words, tmp_path):
    (tmp_path / "contexts.toml").write_text("this is not TOML")
    assert complete(*words) == [""]


def test_a_server_that_is_silent_costs_no_more_than_a_moment(complete, monkeypatch):
    monkeypatch.setattr(completion, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = SystemClock().monotonic_ns()
        assert complete("group", "show", "--broker", f"127.0.0.1:{silent.getsockname()[1]}", "g") == [""]
        assert SystemClock().monotonic_ns() - at < 10_000_000_000


@pytest.mark.parametrize(("shell", "answer"), [
    ("zsh", "_arguments '*: :((\"orders\"\n\"ordres\"))'\n"), ("fish", "orders\nordres\n")])
def test_other_shells_get_the_same_names(complete, shell, answer):
    assert complete("topic", "stats", "store", "or", shell=shell) == answer


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_name_that_a_shell_would_run_or_split_is_not_offered(complete, tmp_path, shell):
    """Zsh evaluates its answer, and a store or a server may be hostile."""
    (tmp_path / "odd/config").mkdir(parents=True)
    names = ["good", "x$(touch run)", "x\\$(touch run)", "x`touch run`", "x;touch run",
             "x'y", 'x"y', "x y", "x\ny", "x\x1b[31m"]
    (tmp_path / "odd/config/topics.json").write_text(json.dumps({
        "topicConfigTable": {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names}}))
    text = " ".join(complete("topic", "stats", str(tmp_path / "odd"), "", shell=shell).split()
                    if shell != "bash" else complete("topic", "stats", str(tmp_path / "odd"), ""))
    assert "good" in text
    assert not {"touch", "x"} & {*re.findall(r"\w+", text.replace("_arguments", ""))}


def test_a_home_directory_is_written_as_a_tilde(complete, monkeypatch, store):
    monkeypatch.setenv("HOME", str(store.parent))
    assert complete("verify", "~/s") == ["~/store"]
    assert os.path.expanduser("~") == str(store.parent)
