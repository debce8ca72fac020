"""Which process holds a port, and what memory this one takes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tailrace.env.processes import listener_of, memory_bytes, memory_limit

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


@pytest.mark.parametrize(("cgroup", "limits", "found"), [
    ("0::/slice/tailrace\n", {"slice/tailrace": "1000\n", "slice": "5000\n"}, 1000),
    ("0::/slice/tailrace\n", {"slice/tailrace": "max\n", "slice": "700\n"}, 700),
    ("0::/\n", {"": "900\n"}, 900), ("0::/\n", {}, None), ("0::/a\n", {"a": "max\n"}, None),
    ("4:memory:/old\n", {"old": "5\n"}, None), (None, {}, None)])
def test_the_least_limit_of_the_control_groups_counts(
    tmp_path: Path, cgroup: str | None, limits: dict[str, str], found: int | None,
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    if cgroup is not None:
        (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in limits.items():
        place = tmp_path / "cgroup" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(text)
    assert memory_limit(tmp_path / "proc", tmp_path / "cgroup") == found


def test_the_memory_of_a_process_is_its_resident_pages(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("900 12 3 1 0 4 0\n")
    assert memory_bytes(tmp_path) == 12 * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(tmp_path / "nothing") is None
