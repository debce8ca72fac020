"""State files below ``config/``: JSON that survives a crash at any moment.

A new text is written to ``<file>.tmp`` and synced, the present file becomes ``<file>.bak``, the new
one takes its name, and the directory is synced. Whatever a crash leaves, ``<file>`` or
``<file>.bak`` is whole, and loading takes the first of them that can be read. Members that Tailrace
does not know are kept: the file may belong to a newer Java broker.
"""

from __future__ import annotations

import abc
import threading
from typing import Any

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, write_file
from tailrace.events import get_logger
from tailrace.formats import fastjson

__all__ = ["ConfigManager", "DataVersion", "read_config", "write_config"]

_log = get_logger(__name__)


class DataVersion:
    """How often a table has changed; equality tells others whether to fetch it again."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, timestamp: int = 0) -> None:
        self.counter = 0
        self.state_version = 0
        self.timestamp = timestamp

    def next(self, now_ms: int) -> None:
        """Count a change."""
        self.counter += 1
        self.timestamp = now_ms

    def to_json(self) -> dict[str, int]:
        """The members of RocketMQ's DataVersion."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    def take(self, value: Any) -> None:
        """Take over the members of a stored version; anything else changes nothing."""
        if isinstance(value, dict):
            self.counter = _number(value.get("counter"), self.counter)
            self.state_version = _number(value.get("stateVersion"), self.state_version)
            self.timestamp = _number(value.get("timestamp"), self.timestamp)


def _number(value: Any, default: int) -> int:
    """A whole number as Java may have written it."""
    if isinstance(value, int):
        return int(value)
    try:
        return int(str(value))
    except ValueError:
        return default


class ConfigManager(abc.ABC):
    """A table that lives in a state file. Its methods may be called from any thread."""

    def __init__(self, file_system: FileSystem, config_dir: str, name: str) -> None:
        self._file_system = file_system
        self._config_dir = config_dir
        self._name = name
        self._lock = threading.RLock()
        self.data_version = DataVersion()
        self._unknown: dict[str, Any] = {}

    @property
    def path(self) -> str:
        """Where the table is kept."""
        return f"{self._config_dir}/{self._name}"

    def load(self) -> bool:
        """Read the file or its backup; False when there was neither."""
        found = read_config(self._file_system, self.path)
        if found is None:
            return False
        with self._lock:
            self._unknown = dict(found)
            self.data_version.take(self._unknown.pop("dataVersion", None))
            self._decode(self._unknown)
        return True

    def persist(self) -> None:
        """Write the table; durable on return."""
        with self._lock:
            write_config(
                self._file_system, self._config_dir, self._name, fastjson.dumps_pretty(self.to_json())
            )

    def to_json(self) -> dict[str, Any]:
        """The whole table as the file shows it."""
        with self._lock:
            return {
                **self._unknown,
                "dataVersion": self.data_version.to_json(),
                **self._encode(),
            }

    @abc.abstractmethod
    def _decode(self, value: dict[str, Any]) -> None:
        """Take over the members of a file, removing from ``value`` what was understood."""

    @abc.abstractmethod
    def _encode(self) -> dict[str, Any]:
        """The members that `_decode` understands."""


def read_config(file_system: FileSystem, path: str) -> dict[str, Any] | None:
    """The object in a state file, or in its backup when the file is missing, empty or unreadable."""
    found = _object_in(file_system, path)
    return _object_in(file_system, f"{path}.bak") if found is None else found


def _object_in(file_system: FileSystem, path: str) -> dict[str, Any] | None:
    text = read_if_there(file_system, path) or b""
    if not text.strip():
        return None
    try:
        value = fastjson.loads(text)
    except ValueError as error:
        _log.error("config file unreadable file=%s reason=%s", path, error)
        return None
    if not isinstance(value, dict):
        _log.error("config file unreadable file=%s reason=no object", path)
        return None
    return value


def write_config(file_system: FileSystem, config_dir: str, name: str, text: bytes) -> None:
    """Replace a state file, keeping the present one as its backup; durable on return."""
    path = f"{config_dir}/{name}"
    temporary = f"{path}.tmp"
    if not file_system.exists(config_dir):
        file_system.makedirs(config_dir)
    write_file(file_system, temporary, text)
    if _object_in(file_system, path) is not None:  # a damaged file must not replace its backup
        file_system.rename(path, f"{path}.bak")
    file_system.rename(temporary, path)
    file_system.sync_dir(config_dir)
