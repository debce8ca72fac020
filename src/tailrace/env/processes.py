"""Whether this process is a forked child, its memory, and which process listens on a port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["forks", "listener_of", "memory_bytes", "memory_limit", "name_of"]

forks = 0
"""Number of forks between the first process and this one. Reading it costs less than ``os.getpid``, a system call."""

_LISTEN: Final = "0A"
_TABLES: Final = ("tcp", "tcp6")


def _count_fork() -> None:
    global forks  # noqa: PLW0603 - a fact of the process
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


def listener_of(port: int, proc: Path = Path("/proc")) -> tuple[int, str] | None:
    """Return id and name of the process that listens on a TCP port.

    Return None if no process listens, if it belongs to another user, or if there is no ``/proc`` of Linux.
    """
    inodes = {inode for table in _TABLES for inode in _listening(proc / "net" / table, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return None
    for process in proc.glob("[0-9]*"):
        try:
            if any(_target(fd) in wanted for fd in (process / "fd").iterdir()):
                return int(process.name), _name(process)
        except OSError:  # the process has ended, or belongs to another user
            continue
    return None


def name_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Return the name of a process, "" if it cannot be found out."""
    try:
        return _name(proc / str(pid))
    except OSError:
        return ""


def _listening(table: Path, port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port; see proc_pid_net(5)."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
    return [
        row[9] for row in rows
        if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port
    ]


def _name(process: Path) -> str:
    """Return the name of a process: ``tailrace`` for its own command, not the name of the interpreter."""
    words = (process / "cmdline").read_bytes().split(b"\0")
    if any(word == b"tailrace.cli" or word.endswith(b"/tailrace") for word in words[:4]):
        return "tailrace"
    return (process / "comm").read_text().strip()


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def memory_bytes(proc: Path = Path("/proc")) -> int | None:
    """Return the memory that this process takes; None if there is no ``/proc`` of Linux."""
    try:
        return int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory that the control groups (v2) of this process allow it; None without a limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    limits = []
    for place in (cgroups / own, *(cgroups / own).parents):
        if not place.is_relative_to(cgroups):
            break
        try:
            limits.append(int((place / "memory.max").read_text()))
        except (OSError, ValueError):  # the root has no limit; "max" means no limit
            continue
    return min(limits, default=None)
