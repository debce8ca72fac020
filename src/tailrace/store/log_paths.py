"""Directories of the CommitLog: one or several, some of them read-only.

``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` are lists with the separator of RocketMQ
(``-Drocketmq.broker.multiPathSplitter``, by default a comma). Files are read from all directories. New files go in
turn to the directories that are neither read-only nor too full. ``commitlog`` below ``storePathRootDir`` means
``commitlog`` below the opened directory, so the settings of a broker also fit a copy of its store.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.errors import ConfigError
from tailrace.formats import filenames

__all__ = ["LogPaths", "check_log_paths", "log_paths", "segment_files"]


class LogPaths(NamedTuple):
    """Directories of CommitLog files, at least one of them writable."""

    writable: tuple[str, ...]
    read_only: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All directories, those for new files first."""
        return self.writable + self.read_only


def log_paths(config: StoreConfig, root: str) -> LogPaths:
    """Return the directories that the settings name for the store at ``root``. Raises ConfigError."""
    own = f"{root}/{filenames.COMMITLOG}"
    said = _split(config.store_path_commit_log, config, own) or [own]
    read_only = _split(config.read_only_commit_log_store_paths, config, own)
    writable = [path for path in said if path not in read_only]
    if not writable:
        raise ConfigError("readOnlyCommitLogStorePaths leaves no path of storePathCommitLog to write to")
    if wrong := [path for path in writable + read_only if path != own and not path.startswith("/")]:
        raise ConfigError(f"storePathCommitLog names {', '.join(wrong)}, which is not an absolute path")
    return LogPaths(tuple(writable), tuple(read_only))


def _split(text: str, config: StoreConfig, own: str) -> list[str]:
    theirs = f"{config.store_path_root_dir.rstrip('/')}/{filenames.COMMITLOG}"
    found = []
    for part in text.strip().split(config.multi_path_splitter):
        path = part.strip().rstrip("/")
        path = own if path == theirs else path
        if path and path not in found:
            found.append(path)
    return found


def segment_files(file_system: FileSystem, directories: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return (position, path) of the CommitLog files of some directories, in the order of the log."""
    return sorted(
        (offset, f"{directory}/{name}")
        for directory in directories for name in file_system.list(directory)
        if (offset := filenames.file_name_to_offset(name)) is not None)


def check_log_paths(file_system: FileSystem, root: str, paths: LogPaths, last: list[str]) -> None:
    """Raise ConfigError if a part of the log would be left out, because such a log would look damaged.

    ``last`` are the directories of the last open.
    """
    for path in (f"{root}/{filenames.COMMITLOG}", *last):
        if path not in paths.all and segment_files(file_system, (path,)):
            raise ConfigError(
                f"the CommitLog is also in {path}: name it in storePathCommitLog, separated by "
                "commas, or move its files")
