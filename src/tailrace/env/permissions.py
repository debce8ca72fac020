"""Permissions of files on disk."""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["copy_permissions", "make_private", "others_may_read"]


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
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)


def others_may_read(path: str) -> bool:
    """Return whether a file on disk can be read by its group or by everybody. Raises OSError."""
    return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
