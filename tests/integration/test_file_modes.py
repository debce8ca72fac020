"""Modes of what the commands make under usual and strict umasks; what `serve` says about files that others read."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from certificates import Ca
from patience import until

from tailrace.client import Producer
from tailrace.model import Message

pytestmark = pytest.mark.integration

PORTS = ("--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
SERVE = (sys.executable, "-m", "tailrace.cli", "serve")


def modes(*places):
    """The modes of all directories and of all files below, without repetition."""
    directories, files = set(), set()
    for place in places:
        for path, _, names in os.walk(place):
            directories.add(stat.S_IMODE(os.stat(path).st_mode))
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # a server renames files while it runs
                    files.add(stat.S_IMODE(os.stat(f"{path}/{name}").st_mode))
    return directories, files


def run(umask, *command, **options):
    done = commands.run(*command, umask=umask, **options)
    assert done.returncode == 0, done.stderr
    return done


def served(umask, store, *options, wanted=None):
    """Serve a store, send to it, wait until its files have the wanted modes, and stop; return what was logged.

    A file has the mode that the umask leaves until it is shared with the group.
    """
    process = subprocess.Popen([*SERVE, str(store), *PORTS, *options], umask=umask, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        ready = dict(word.split("=", 1) for word in line.split()[1:])
        with Producer(namesrv=ready["namesrv"]) as producer:
            producer.create_topic("orders", 2)
            producer.send(Message(topic="orders", body=b"CONFIDENTIAL", keys=["key"]))
        until(lambda: wanted is None or modes(store) == wanted)
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    return log


@pytest.mark.parametrize("umask", [0o022, pytest.param(0o077, marks=pytest.mark.long)], ids="umask {:03o}".format)
def test_commands_make_what_only_the_owner_reads(tmp_path, umask):
    store, copy, again = tmp_path / "store", tmp_path / "copy", tmp_path / "again"
    log = served(umask, store, wanted=({0o700}, {0o600}))
    assert "can be read" not in log
    run(umask, "backup", store, copy)
    run(umask, "restore", copy, again)
    run(umask, "topic", "create", again, "more")
    (again / "abort").touch(0o600)
    run(umask, "recover", again)
    run(umask, "repair", again)
    assert modes(store, copy, again) == ({0o700}, {0o600})


def test_the_group_reads_a_store_that_is_made_so(tmp_path):
    settings, store = tmp_path / "broker.conf", tmp_path / "store"
    settings.write_text("storeGroupReadable=true\n")
    log = served(0o077, store, "--config", str(settings), wanted=({0o2750}, {0o640}))
    assert "cannot read new files" not in log
    run(0o077, "topic", "create", store, "more")
    assert modes(store) == ({0o2750}, {0o640})


def test_a_store_that_was_open_to_others_is_reported_and_stays_as_it_is(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o755)
    log = served(0o022, store)
    assert log.count("the store can be read by other users of this machine") == 1
    assert f"chmod -R go-rwx {store}" in log
    assert stat.S_IMODE(store.stat().st_mode) == 0o755
    settings = tmp_path / "broker.conf"
    settings.write_text("storeGroupReadable=true\n")
    log = served(0o022, store, "--config", str(settings))
    assert "the group cannot read new files" in log
    subprocess.run(next(
        line.partition("command=")[2].strip('"') for line in log.splitlines() if "cannot read new files" in line),
        shell=True, check=True)
    log = served(0o077, store, "--config", str(settings))
    assert "can be read" not in log
    assert "cannot read" not in log
    assert modes(store) == ({0o2750}, {0o640})


def test_secret_files_that_others_may_read_are_named_once(tmp_path):
    certificate, key = (Path(path) for path in Ca(tmp_path).make("broker"))
    password, settings, store = tmp_path / "password", tmp_path / "broker.conf", tmp_path / "store"
    password.write_text("root-secret-0815\n")
    settings.write_text(
        f"tls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret-4711"}\n')
    options = ("--config", settings, "--user", "root", "--password-file", password)

    def warned(*secrets):
        for path in (password, settings, key, store / "config" / "tailrace-users.json"):
            if path.exists():
                path.chmod(0o644 if path in secrets else 0o600)
        process = subprocess.Popen([*SERVE, store, *PORTS, *options], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("ready")
        process.terminate()
        log = process.communicate(timeout=60)[1]
        return sorted(line.partition("file=")[2].strip('"') for line in log.splitlines()
                      if "credentials can be read by other users of this machine" in line)

    assert warned(password, settings, key) == sorted(map(str, (password, settings, key)))
    users = store / "config" / "tailrace-users.json"
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert warned(users) == [str(users)]
    assert warned() == []
