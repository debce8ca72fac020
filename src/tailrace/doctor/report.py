"""What an issue needs to know about a store directory. Nothing is opened, locked or changed.

Bodies, properties and keys of messages are not read, and neither are users and permissions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

from tailrace.config import StoreConfig
from tailrace.doctor.disk_usage import disk_usage
from tailrace.doctor.report_events import LOG_BYTES, last_events
from tailrace.doctor.report_settings import shown_settings
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_hint
from tailrace.errors import ConfigError, RemotingCommandError, StoreError
from tailrace.formats import filenames
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.log_paths import log_paths, segment_files
from tailrace.store.retention.disk_check import measure
from tailrace.store.retention.disk_state import disk_levels
from tailrace.store.store_checkpoint import read_checkpoint

__all__ = ["events_report", "problem_of", "store_report"]

_HINT_MAX: Final = 4096
_TRIES: Final = 3
"""Number of walks over a directory in which a server deletes files."""


def problem_of(error: Exception) -> str:
    """Return what went wrong without a text that may have a value: the class, and a number if there is one."""
    name = type(error).__name__
    if isinstance(error, RemotingCommandError):
        return f"{name}, code {error.code}"
    if isinstance(error, OSError) and error.strerror:
        return f"{name}, errno {error.errno}: {error.strerror}"
    if isinstance(error, StoreError) and not isinstance(error, ConfigError):
        return f"{name}: {error}"
    return name


def store_report(file_system: FileSystem, root: str, settings: StoreConfig) -> dict[str, Any]:
    """Return the state of a directory: lock, abort file, checkpoint, files by kind, and its disks.

    A part that cannot be read is replaced by the reason. Raises OSError if ``root`` cannot be looked at.
    """
    if not file_system.stat(root).is_dir:
        raise NotADirectoryError(20, "Not a directory", root)
    kept = read_format(file_system, root)
    config = remembered(kept, root, settings)
    parts: Mapping[str, Callable[[], Any]] = {
        "state": lambda: _state(file_system, root),
        "checkpoint": lambda: read_checkpoint(file_system, f"{root}/{filenames.CHECKPOINT}")._asdict(),
        "settingsOfDirectory": lambda: shown_settings(kept.settings, changed_only=True),
        "files": lambda: _files(file_system, root, config),
        "log": lambda: _log(file_system, root, config),
        "queues": lambda: _queues(file_system, root),
        "disks": lambda: _disks(file_system, root, config),
    }
    found: dict[str, Any] = {"path": root}
    for name, part in parts.items():
        try:
            found[name] = part()
        except (StoreError, OSError, ValueError) as error:
            found[name] = {"problem": problem_of(error)}
    return found


def _state(file_system: FileSystem, root: str) -> dict[str, Any]:
    holder = file_system.lock_holder(f"{root}/{filenames.LOCK}")
    abort = file_system.exists(f"{root}/{filenames.ABORT}")
    flushed = json.loads(read_hint(file_system, f"{root}/{filenames.FLUSHED}", _HINT_MAX) or b"{}")
    return {
        "is": "not closed cleanly" if abort and holder is None else "closed" if holder is None else "open",
        "abortFile": abort, "lockedByProcess": holder,
        "flushed": flushed.get("flushed") if isinstance(flushed, dict) else None}


def _files(file_system: FileSystem, root: str, config: StoreConfig) -> list[dict[str, Any]]:
    for tries_left in reversed(range(_TRIES)):
        try:
            return [asdict(usage) for usage in disk_usage(file_system, root, config)]
        except FileNotFoundError:
            if not tries_left:
                raise
    raise AssertionError


def _log(file_system: FileSystem, root: str, config: StoreConfig) -> dict[str, Any]:
    paths = log_paths(config, root)
    starts = [start for start, _ in segment_files(file_system, paths.all)]
    return {
        "paths": [*paths.all], "readOnlyPaths": [*paths.read_only], "segments": len(starts),
        "firstSegment": starts[0] if starts else None, "lastSegment": starts[-1] if starts else None}


def _queues(file_system: FileSystem, root: str) -> dict[str, int]:
    """Return the number of topics and queues; their names stay out of a report."""
    topics = queues = 0
    for kind in (filenames.CONSUMEQUEUE, filenames.BATCHCONSUMEQUEUE):
        for topic in file_system.list(f"{root}/{kind}"):
            topics += 1
            queues += len(file_system.list(f"{root}/{kind}/{topic}"))
    return {"topics": topics, "queues": queues}


def _disks(file_system: FileSystem, root: str, config: StoreConfig) -> list[dict[str, Any]]:
    levels = disk_levels(config)
    usages = measure(
        file_system, log_paths(config, root).all, f"{root}/{filenames.CONSUMEQUEUE}", lambda _: 0)
    return [
        {"path": usage.path, "totalBytes": usage.total, "freeBytes": usage.free, "usableBytes": usage.usable,
         "usedPercent": usage.percent, "level": levels.level(usage).name if usage.total else "not measured"}
        for usage in usages]


def events_report(file_system: FileSystem, path: str) -> dict[str, Any]:
    """Return the last events of a log file. Raises OSError, for example if it is not a regular file."""
    with closing(file_system.open(path)) as file:
        size = file.size()
        data = file.pread(min(size, LOG_BYTES), max(size - LOG_BYTES, 0))
    return last_events(data.decode("utf-8", "replace"))
