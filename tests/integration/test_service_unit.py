"""The systemd unit: systemd reads it without a complaint, and its filter allows every system call of a server."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "tailrace.service"
TAILRACE = [sys.executable, "-m", "tailrace.cli"]
pytestmark = [
    pytest.mark.integration, pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")]


def service():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    return unit["Service"]


def test_systemd_understands_every_line(tmp_path):
    program = tmp_path / "tailrace"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "tailrace.service"
    copy.write_text(UNIT.read_text().replace(service()["ExecStart"].split()[0], str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "tailrace.service" in line]
    assert said == []


def calls_of(group):
    """Return the system calls of a group of systemd, groups within it included."""
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", group], capture_output=True, text=True, timeout=60,
        check=True).stdout
    lines = map(str.strip, shown.splitlines()[1:])
    names = {line for line in lines if line and not line.startswith("#")}
    found = {name for name in names if not name.startswith("@")}
    return found.union(*(calls_of(name) for name in names if name.startswith("@")))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_the_filter_allows_every_system_call_of_a_server(tmp_path):
    listed = service()["SystemCallFilter"].split()
    allowed = set().union(*(calls_of(name) if name.startswith("@") else {name} for name in listed))
    trace = tmp_path / "trace"
    server = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", trace, *TAILRACE, "serve", tmp_path / "store", "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning"],
        stdout=subprocess.PIPE, text=True)
    try:
        fields = dict(part.split("=", 1) for part in server.stdout.readline().split()[1:])
        where = ("--namesrv", fields["namesrv"], "--topic", "orders")
        subprocess.run([*TAILRACE, "send", *where, "42 apples"], check=True, stdout=subprocess.DEVNULL, timeout=60)
        read = subprocess.run(
            [*TAILRACE, "tail", *where, "--from", "first", "--max", "1"], check=True, capture_output=True, text=True,
            timeout=60)
        assert "42 apples" in read.stdout
    finally:
        for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        server.wait(30)
        server.stdout.close()
    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.MULTILINE))
    assert {"mincore", "fdatasync"} <= made
    assert made - allowed == set()
