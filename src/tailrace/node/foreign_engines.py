"""What a Java broker kept in RocksDB instead of files: it is named, left alone, and not read.

Messages are in the log whatever the engine is, and queues and index are built from it. Not so

  config/topics, config/subscriptionGroups, config/consumerOffsets
      with ``storeType=defaultRocksDB``, instead of the JSON files of (nearly) these names
  rocksdbstore
      timers, transactions and index of 5.5.0, off by default. It is made by every start; only
      tables (``.sst``) or a write-ahead log (``.log``) that is not empty say that it is used.
      Its timers may be missing from wheel and timer log, so they are built from the CommitLog, once:
      ``tailrace/rocksdbstore.json`` remembers for which tables that was done.
"""

from __future__ import annotations

from typing import Final, final

import orjson

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.events import get_logger
from tailrace.formats.filenames import CONFIG, OWN

__all__ = ["RocksDBStore", "name_rocksdb_configs"]

_log = get_logger(__name__)
_STORE: Final = "rocksdbstore"
_MOST: Final = 1 << 20
_CONFIGS: Final = {
    "topics": "topics.json", "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json"}
"""Directory of a configuration in RocksDB, which is its type for mqadmin, and its JSON file."""


def _tables(file_system: FileSystem, directory: str) -> dict[str, int]:
    """Names and lengths of the files that hold something; empty where there is no RocksDB."""
    if not file_system.exists(directory) or not file_system.stat(directory).is_dir:
        return {}
    sizes = {
        name: file_system.stat(f"{directory}/{name}").size for name in file_system.list(directory)
        if name.endswith((".sst", ".log"))}
    return {name: size for name, size in sizes.items() if size}


def name_rocksdb_configs(file_system: FileSystem, root: str) -> None:
    """Warn of configurations that a Java broker has in RocksDB and that no newer JSON file has."""
    directory = f"{root}/{CONFIG}"
    for kind, name in _CONFIGS.items():
        tables = _tables(file_system, f"{directory}/{kind}")
        json = f"{directory}/{name}"
        if not tables or (file_system.exists(json) and file_system.stat(json).mtime_ms >= max(
            file_system.stat(f"{directory}/{kind}/{table}").mtime_ms for table in tables
        )):
            continue
        _log.warning(
            "configuration of a Java broker is in RocksDB and is not read kind=%s path=%s export=%s", kind,
            f"{directory}/{kind}", f"mqadmin rocksDBConfigToJson -p {directory} -t {kind} -e {json}")


@final
class RocksDBStore:
    """``rocksdbstore`` of a store directory."""

    def __init__(self, file_system: FileSystem, root: str) -> None:
        self._file_system = file_system
        self._path = f"{root}/{OWN}/{_STORE}.json"
        self._tables = _tables(file_system, f"{root}/{_STORE}")

    def why_timers_are_rebuilt(self) -> str:
        """Why wheel and timer log may lack timers; empty when they do not."""
        if not self._tables or self._known() == self._tables:
            return ""
        return f"a Java broker kept timers, transactions or an index in {_STORE}"

    def remember(self) -> None:
        """Note that the timers were rebuilt beside these tables. Raises OSError."""
        if self._tables and self._known() != self._tables:
            self._file_system.makedirs(self._path.rpartition("/")[0])
            replace_file(self._file_system, self._path, orjson.dumps(self._tables))

    def _known(self) -> object:
        try:
            return orjson.loads(read_if_there(self._file_system, self._path, _MOST) or b"{}")
        except ValueError:
            return None
