"""Commands on the directory of a running server know every acknowledged message, or say that they do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import commands
import pytest
from served_process import served_process

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.store.directory import StoreDirectory

pytestmark = pytest.mark.integration
LATE = {"flushCommitLogThoroughInterval": 3_600_000, "flushCommitLogLeastPages": 100_000}
"""The log is synced only on request."""


def run(*words, env=None):
    done = commands.run(*words, env=env)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"], done.stderr


def query(store, key, **options):
    return run("query", store, "--topic", "orders", "--key", key, **options)


def test_a_message_is_found_as_soon_as_it_is_acknowledged(tmp_path):
    store = tmp_path / "store"
    with served_process(tmp_path, LATE) as server, Producer(broker=server.broker, group="p") as producer:
        for number in range(3):
            producer.send(Message(topic="orders", body=b"x", keys=[f"k{number}"]))
            code, lines, error = query(store, f"k{number}")
            assert (code, len(lines), error) == (0, 1, "")
        producer.send(Message(topic="orders", body=b"x", delay=3600))
        code, lines, error = run("timers", store)
        assert (code, [line["timer"]["topic"] for line in lines], error) == (0, ["orders"], "")
        producer.send(Message(topic="orders", body=b"x", keys=["dumped"]))
        code, lines, error = run("dump", store, "--only", "messages", "--topic", "orders")
        assert (code, len(lines), error) == (0, 4, "")
        producer.send(Message(topic="orders", body=b"x", keys=["verified"]))
        code, lines, error = run("verify", store)
        assert (code, lines[-1]["summary"]["records"], error) == (0, 6, "")
        assert run("sql", store, "SELECT count(*) AS n FROM messages WHERE topic = 'orders'") == (0, [{"n": 5}], "")
        producer.send(Message(topic="orders", body=b"x", keys=["copied"]))
        code, [report], error = run("backup", store, tmp_path / "copy")
        assert (code, error) == (0, "")
        assert query(tmp_path / "store", "missing")[:2] == (0, [])
        end = StoreDirectory(str(store)).max_phy_offset
        assert report["logEnd"] == end
        assert "request code=" not in server.log()
    assert query(store, "copied")[0] == 0


def test_a_program_that_opens_the_store_to_read_it_sees_every_acknowledged_message(tmp_path, caplog):
    path = tmp_path / "store"
    with served_process(tmp_path, LATE) as server, Producer(broker=server.broker, group="p") as producer:
        for number in range(3):
            producer.send(Message(topic="orders", body=b"%d" % number))
            with MessageStore.open(path, read_only=True) as store:
                assert sorted(m.body for m in store.read("orders")) == [b"%d" % n for n in range(number + 1)]
    assert "messages of the last seconds may be missing" not in caplog.text


def test_a_program_that_the_server_refuses_is_told_that_messages_may_be_missing(tmp_path, caplog):
    path, secret = tmp_path / "store", tmp_path / "password"
    secret.write_text("correct horse battery\n")
    secret.chmod(0o600)
    known = {"TAILRACE_ACCESS_KEY": "root", "TAILRACE_SECRET_KEY": "correct horse battery"}
    with served_process(tmp_path, LATE, "--user", "root", "--password-file", secret) as server:
        assert run("send", "x", "--broker", server.broker, "--topic", "orders", env=known)[0] == 0
        MessageStore.open(path, read_only=True).close()
        assert "messages of the last seconds may be missing" in caplog.text
        assert f" s behind the server at {server.broker}, which did not sync: " in caplog.text


def test_a_command_without_permission_says_how_far_behind_it_may_be(tmp_path):
    store, secret = tmp_path / "store", tmp_path / "password"
    secret.write_text("correct horse battery\n")
    secret.chmod(0o600)
    known = {"TAILRACE_ACCESS_KEY": "root", "TAILRACE_SECRET_KEY": "correct horse battery"}
    with served_process(tmp_path, LATE, "--user", "root", "--password-file", secret) as server:
        send = ("send", "x", "--broker", server.broker, "--topic", "orders", "--key")
        assert run(*send, "k0", env=known)[0] == 0
        assert query(store, "k0", env=known)[0] == 0
        assert run(*send, "k1", env=known)[0] == 0
        code, lines, error = query(store, "k1")
        assert (code, lines) == (1, [])
        assert f" s behind the server at {server.broker}" in error
        assert "no message of orders has the key k1 up to there" in error
        code, lines, error = query(store, "k0")
        assert (code, len(lines)) == (0, 1)
        assert " s behind the server at " in error
        code, lines, error = run("timers", store)
        assert (code, lines) == (1, [])
        assert " s behind the server at " in error
        code, lines, _ = query(store, "k1", env=known)
        assert (code, len(lines)) == (0, 1)
        assert query(store, "k1")[0] == 0, "synced by the call before"
        assert query(store, "missing") == (0, [], ""), "nothing is hidden, so this no is true"


def test_a_directory_that_a_program_has_open_is_shown_with_its_lag(tmp_path):
    config = StoreConfig(flush_commit_log_thorough_interval=3_600_000, flush_commit_log_least_pages=100_000)
    with MessageStore.open(tmp_path / "store", config=config) as store:
        store.put(Message(topic="orders", body=b"x", keys=["k0"]))
        store.flush()
        store.put(Message(topic="orders", body=b"x", keys=["k1"]))
        store.wait_dispatched()
        code, lines, error = query(tmp_path / "store", "k1")
        assert (code, lines) == (1, [])
        assert f" s behind process {os.getpid()}, which has the directory open and is not a server" in error


HOLDER = """
import sys
from tailrace.env.filesystem import OsFileSystem
lock = OsFileSystem().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_directory_that_a_java_broker_has_open_is_shown_with_its_lag(tmp_path):
    store = tmp_path / "store"
    with MessageStore.open(store) as opened:
        opened.put(Message(topic="orders", body=b"x", keys=["k0"]))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, store / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as java:
        assert java.stdout.readline() == "locked\n"
        found, (code, lines, error) = query(store, "k0"), query(store, "k1")
        java.stdin.close()
    assert (found[0], len(found[1])) == (0, 1)
    assert " s behind process " in found[2]
    assert (code, lines) == (1, [])
    assert f" s behind process {java.pid}, which has the directory open and is not a server" in error
