"""Limits of open descriptors: of the process, and of the segment files of a store."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.errors import ConfigError

__all__ = [
    "OpenSocket", "borrowed", "descriptor_limit", "listeners_of_port", "open_descriptors", "raise_descriptor_limit",
    "segment_file_limit", "shut_down", "sockets_of_port"]

_UNLIMITED: Final = 1 << 20
_OWN: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_LEAST_FILES: Final = 16
_MOST_FILES: Final = 16_384
"""Each file may be a mapping too, and Linux gives a process 65,530 of them (vm.max_map_count)."""


def descriptor_limit() -> int:
    """Return the soft limit of this process (``ulimit -n``); 2^20 without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one if that is allowed; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # the lower limit is not a reason not to serve
    return descriptor_limit()


def segment_file_limit(max_open_files: int) -> int:
    """Return the number of descriptors that the segment files of a store may take.

    Without a setting (0) that is a quarter of the soft limit. Three quarters are for connections (most
    descriptors of a broker), for config files, and for the rest of the process, about which an embedded store
    has no information. Raises ConfigError if ``max_open_files`` is more than three quarters of the limit.
    """
    limit = descriptor_limit()
    if max_open_files > limit * 3 // 4:
        raise ConfigError(
            f"maxOpenFiles={max_open_files} is more than three quarters of the process's limit of {limit} "
            "descriptors; raise `ulimit -n` or lower maxOpenFiles")
    return max_open_files or min(max(limit // 4, _LEAST_FILES), _MOST_FILES)


class OpenSocket(NamedTuple):
    """A connected socket of this process. The number of a descriptor may be reused, the inode tells them apart."""

    descriptor: int
    inode: int
    peer: tuple[str, int]
    """Address and port of the other end."""


def open_descriptors() -> int:
    """Return the number of open descriptors of this process; 0 if the kernel does not say it (Linux before 6.2)."""
    try:
        return os.stat(_OWN).st_size
    except OSError:
        return 0


def sockets_of_port(
    port: int, known: dict[tuple[int, int], OpenSocket | None], seen: set[tuple[int, int]]
) -> Iterator[OpenSocket | None]:
    """Yield the connected sockets of this process whose own port is ``port``; None for each other descriptor.

    ``known`` is what earlier calls have found, by descriptor and inode; a descriptor that it has is not asked again.
    New sockets are added to it, and the keys of all open sockets to ``seen``.
    """
    for name in os.listdir(_OWN):
        descriptor = int(name)
        try:
            found = os.fstat(descriptor)
        except OSError:
            continue  # it was closed
        if not stat.S_ISSOCK(found.st_mode):
            yield None
            continue
        key = descriptor, found.st_ino
        seen.add(key)
        if key not in known:
            known[key] = _socket_of_port(descriptor, found.st_ino, port)
        yield known[key]


def shut_down(found: OpenSocket, port: int) -> None:
    """End the connection of a socket that a library owns; the library then closes its descriptor."""
    with borrowed(found, port) as taken:
        if taken is not None:
            taken.shutdown(socket.SHUT_RDWR)


def listeners_of_port(port: int) -> list[OpenSocket]:
    """Return the listening sockets of this process on a port."""
    found = []
    for name in os.listdir(_OWN):
        taken = _copy(int(name))
        if taken is None:
            continue
        with taken, contextlib.suppress(OSError):
            if (taken.family in {socket.AF_INET, socket.AF_INET6} and taken.getsockname()[1] == port
                    and taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
                found.append(OpenSocket(int(name), os.fstat(taken.fileno()).st_ino, ("", 0)))
    return found


@contextlib.contextmanager
def borrowed(found: OpenSocket, port: int) -> Iterator[socket.socket | None]:
    """Yield a socket that a library owns, for a moment; None if the descriptor is a different socket by now.

    ``port`` is the socket's own port. An OSError of the block is suppressed: the socket may close at any time.
    """
    taken = _copy(found.descriptor)
    if taken is None:
        yield None
        return
    with taken, contextlib.suppress(OSError):
        is_same = False
        with contextlib.suppress(OSError, IndexError):  # it was closed, or is not a socket of TCP
            is_same = os.fstat(taken.fileno()).st_ino == found.inode and taken.getsockname()[1] == port
        yield taken if is_same else None


def _socket_of_port(descriptor: int, inode: int, port: int) -> OpenSocket | None:
    taken = _copy(descriptor)
    if taken is None:
        return None
    with taken:
        try:
            if taken.family not in {socket.AF_INET, socket.AF_INET6} or taken.getsockname()[1] != port:
                return None
            host, other = taken.getpeername()[:2]
        except OSError:
            return None  # it listens, or was closed
        return OpenSocket(descriptor, inode, (str(host), int(other)))


def _copy(descriptor: int) -> socket.socket | None:
    """Return a copy of a socket's descriptor, which stays this socket if another thread closes the original.

    Never copy the descriptor of a file: the end of the copy ends the locks that this process has on the file.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        copy = os.dup(descriptor)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
