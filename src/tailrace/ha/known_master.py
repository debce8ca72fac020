"""What a slave keeps of its master: ``tailrace/master.json``.

A promotion needs it when the master is away: how far the master's log was when it was asked last. The file is only
replaced by a newer answer, so it also says what the slave lacks after a restart without its master.
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.state_file import Number, StateFile
from tailrace.errors import CorruptionError, OddFileError
from tailrace.formats import filenames
from tailrace.logs import get_logger

__all__ = ["KnownMaster", "read_known_master", "write_known_master"]

_log = get_logger(__name__)
_FILE_MAX: Final = 8192


@final
class KnownMaster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last answer of a master."""

    address: str = ""
    """``HOST:PORT`` of its broker."""
    role: str = ""
    """Its brokerRole; empty if it was not asked."""
    end: Number = 0
    """The end of its log."""
    time_ms: Number = 0
    """When it said so, by the clock of the slave."""


def read_known_master(file_system: FileSystem, root: str) -> KnownMaster | None:
    """Return what the slave at ``root`` keeps of its master; None without a valid file. Raises OSError."""
    try:
        return _file(file_system, root).read()
    except (CorruptionError, OddFileError, PermissionError) as error:
        events.HINT_CANNOT_BE_READ.log(_log, file=f"{root}/{filenames.MASTER}", cause=error)
        return None


def write_known_master(file_system: FileSystem, root: str, known: KnownMaster) -> None:
    """Replace the file; durable on return. Raises OSError or FatalStorageError."""
    _file(file_system, root).write(known)


def _file(file_system: FileSystem, root: str) -> StateFile[KnownMaster]:
    return StateFile(file_system, f"{root}/{filenames.MASTER}", KnownMaster, _FILE_MAX)
