"""Permissions of files on disk.

Only the owner may read and write what this package makes, whatever the umask is: files have the mode 0600, directories
0700. A directory that is shared with its group (`share_with_group`, mode 2750) is the exception: the group may read all
that is made in it and below. The mode of the directory decides, so every program that works on the directory makes the
same modes. The mode of a directory or file that exists is never changed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from shlex import quote
from typing import Final

__all__ = [
    "DIRECTORY", "FILE", "SHARED_DIRECTORY", "SHARED_FILE", "copy_permissions", "is_shared", "make_file",
    "make_private", "others_may_read", "readers_of", "share_command", "share_with_group",
]

FILE: Final = stat.S_IRUSR | stat.S_IWUSR
DIRECTORY: Final = stat.S_IRWXU
SHARED_FILE: Final = FILE | stat.S_IRGRP
SHARED_DIRECTORY: Final = DIRECTORY | stat.S_IRGRP | stat.S_IXGRP | stat.S_ISGID


def make_file(path: str, flags: int) -> int:
    """Open a file, and make it if it is missing, with the mode that its directory asks for. Raises OSError.

    ``flags`` are those of ``os.open``, with ``O_CREAT``. Return the descriptor.
    """
    if not is_shared(os.path.dirname(path) or "."):
        return os.open(path, flags, FILE)
    while True:
        try:
            fd = os.open(path, flags | os.O_EXCL, SHARED_FILE)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            with contextlib.suppress(FileNotFoundError):  # it was removed in between
                return os.open(path, flags & ~os.O_CREAT)
        else:
            os.fchmod(fd, SHARED_FILE)  # the umask may have taken the bit of the group
            return fd


def copy_permissions(source: str, target: str) -> None:
    """Give a file the permissions of another one, and its owner if the process may do that. Raises OSError."""
    wanted, found = os.stat(source), os.stat(target)
    mode = stat.S_IMODE(wanted.st_mode)
    os.chmod(target, mode)
    if (wanted.st_uid, wanted.st_gid) != (found.st_uid, found.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(target, wanted.st_uid, wanted.st_gid)
            os.chmod(target, mode)  # a change of the owner clears some bits


def make_private(path: str) -> None:
    """Let only the owner read and write a file. Raises OSError; a file that is not on disk stays as it is."""
    with contextlib.suppress(FileNotFoundError):  # of a file system in memory
        os.chmod(path, FILE)


def share_with_group(directory: str, *, shared: bool = True) -> None:
    """Let the group of a directory read what is made in it from now on, or let only the owner read it.

    Raises OSError, including when a rule of the system forbids the bit setgid. A directory that is not on disk
    stays as it is.
    """
    wanted = SHARED_DIRECTORY if shared else DIRECTORY
    with contextlib.suppress(FileNotFoundError):  # of a file system in memory
        if stat.S_IMODE(os.stat(directory).st_mode) != wanted:
            os.chmod(directory, wanted)


def share_command(directory: str) -> str:
    """Return the command of a shell that shares a directory and all that is in it with its group."""
    return f"chmod -R g+rX,o-rwx {quote(directory)}; find {quote(directory)} -type d -exec chmod g+s {{}} +"


def is_shared(directory: str) -> bool:
    """Return whether a directory is shared with its group. Raises OSError.

    A directory that its group may list, and whose group new files get (the bit setgid), is shared.
    """
    wanted = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
    return os.stat(directory).st_mode & wanted == wanted


def readers_of(path: str) -> str:
    """Return who else may read a file or list a directory: "every user", "its group", or "". Raises OSError."""
    mode = os.stat(path).st_mode
    return "every user" if mode & stat.S_IROTH else "its group" if mode & stat.S_IRGRP else ""


def others_may_read(path: str) -> bool:
    """Return whether users may read a secret file for which it is not meant. Raises OSError.

    A file of root that its group may read is how a service is given a secret, so it is meant for that group.
    """
    who = readers_of(path)
    return who == "every user" or (bool(who) and (os.geteuid() == 0 or os.stat(path).st_uid != 0))
