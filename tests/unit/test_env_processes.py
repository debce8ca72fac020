"""Which process holds a port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tailrace.env.processes import listener_of

HEAD = "  sl  local_address rem_address   st tx rx tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 0 0 0 {inode} 1\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(
        HEAD + ROW.format(port=10911, state="01", inode=7) + ROW.format(port=9876, state="0A", inode=8)
        + ROW.format(port=9877, state="0A", inode=9))
    for number, name, words, inode in (
        (41, "client", b"client", 7), (42, "java", b"java\0-jar\0x", 8),
        (43, "python", b"python3\0-m\0tailrace.cli\0serve\0s", 9),
    ):
        fds = tmp_path / str(number) / "fd"
        fds.mkdir(parents=True)
        (fds / "3").symlink_to(f"socket:[{inode}]")
        (fds.parent / "comm").write_text(f"{name}\n")
        (fds.parent / "cmdline").write_bytes(words)
    return tmp_path


def test_the_listener_is_named_and_a_mere_connection_is_not(proc: Path) -> None:
    assert listener_of(9876, proc) == (42, "java")
    assert listener_of(9877, proc) == (43, "tailrace")
    assert listener_of(10911, proc) is None
    assert listener_of(1, proc) is None


def test_without_proc_nobody_is_named(tmp_path: Path) -> None:
    assert listener_of(9876, tmp_path / "none") is None


def test_a_real_listener_is_this_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        found = listener_of(holder.getsockname()[1])
    assert found is not None
    assert found[0] == os.getpid()
