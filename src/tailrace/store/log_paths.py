"""Where the CommitLog of a store lies: one directory or several, some of them read-only.

``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` are lists, separated as the reference does it
(``-Drocketmq.broker.multiPathSplitter``, a comma). Files are read from all of them; a new file goes in
turn into those that are neither read-only nor too full. A broker's own settings fit a copy of its store:
the path that is ``commitlog`` below ``storePathRootDir`` means the one below the opened directory.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.errors import ConfigError
from tailrace.formats import filenames

__all__ = ["OWN_PLACE", "LogPaths", "check_log_paths", "log_paths", "segment_files"]

OWN_PLACE: Final = "."
"""How the hint names ``commitlog`` below the store itself."""


class LogPaths(NamedTuple):
    """Directories of CommitLog files; never empty."""

    writable: tuple[str, ...]
    read_only: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Those for new files first."""
        return self.writable + self.read_only


def log_paths(config: StoreConfig, root: str) -> LogPaths:
    """The directories that settings name for the store at ``root``. Raises ConfigError."""
    own = f"{root}/{filenames.COMMITLOG}"
    said = _split(config.store_path_commit_log, config, own) or [own]
    read_only = _split(config.read_only_commit_log_store_paths, config, own)
    writable = [path for path in said if path not in read_only]
    if not writable:
        raise ConfigError("readOnlyCommitLogStorePaths leaves no path of storePathCommitLog to write to")
    if wrong := [path for path in writable + read_only if path != own and not path.startswith("/")]:
        raise ConfigError(f"storePathCommitLog names {', '.join(wrong)}, which is no absolute path")
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
    """(position, path) of the CommitLog files of some directories, by position."""
    return sorted(
        (offset, f"{directory}/{name}")
        for directory in directories for name in file_system.list(directory)
        if (offset := filenames.file_name_to_offset(name)) is not None)


def check_log_paths(
    file_system: FileSystem, root: str, paths: LogPaths, hinted: tuple[str, ...]
) -> None:
    """Raises ConfigError when a part of the log would be left out.

    ``hinted`` are the paths of the last open: a log that is opened by half looks damaged.
    """
    own = f"{root}/{filenames.COMMITLOG}"
    places = [own if place == OWN_PLACE else place for place in hinted]
    for path in (own, *places):
        if path not in paths.all and segment_files(file_system, (path,)):
            raise ConfigError(
                f"the CommitLog is also in {path}: name it in storePathCommitLog, separated by "
                "commas, or move its files")
