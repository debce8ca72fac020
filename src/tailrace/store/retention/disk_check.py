"""Measures the disks and decides whether puts are accepted. It deletes nothing and waits for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import final

from tailrace import events
from tailrace.config import StoreConfig
from tailrace.env.filesystem import FileSystem
from tailrace.logs import get_logger
from tailrace.store.retention.disk_state import (
    DiskVerdict,
    PathUsage,
    decide,
    disk_levels,
    logical_ratio_of,
)
from tailrace.store.retention.trash import Trash
from tailrace.store.running_flags import DISK_FULL, RunningFlags

__all__ = ["DiskCheckService", "measure"]

_log = get_logger(__name__)
_SMALL_FILE = 1 << 20


@final
class DiskCheckService:
    """Holds the verdict of the last check and the DISK_FULL flag.

    Any thread may call ``check``. ``store_bytes`` is called only if the settings need the size.
    """

    def __init__(
        self, file_system: FileSystem, config: StoreConfig, flags: RunningFlags, trash: Trash,
        log_directories: Sequence[str], queue_directory: str, store_bytes: Callable[[], int],
    ) -> None:
        self._file_system = file_system
        self._config = config
        self._flags = flags
        self._trash = trash
        self._log_directories = tuple(log_directories)
        self._queue_directory = queue_directory
        self._store_bytes = store_bytes
        self._levels = disk_levels(config)
        self._lock = threading.Lock()
        self.blocked = ""
        """Reason why the last forced pass deleted nothing; empty if it deleted a file."""
        self.usages: tuple[PathUsage, ...] = ()
        """The last measurements: the CommitLog paths, then the path of the queues."""
        self.verdict = DiskVerdict(False, False, False, "", ())

    def step(self) -> None:
        """Make one check."""
        self.check()

    def measure(self) -> tuple[PathUsage, ...]:
        """Return the present room: for the CommitLog paths, then for the path of the queues. Nothing is decided."""
        return measure(self._file_system, self._log_directories, self._queue_directory, self._trash.bytes_of)

    def limits_percent(self) -> dict[str, dict[str, float]]:
        """Return the limits of each path that the last check measured, see `DiskLevels.limits_percent`."""
        return {usage.path: self._levels.limits_percent(usage) for usage in self.usages}

    def check(self) -> DiskVerdict:
        """Measure, decide, set or clear the flag, and log what changed."""
        with self._lock:
            self.usages = self.measure()
            *logs, queue = self.usages
            config = self._config
            self._levels = disk_levels(config)
            needs_size = config.replicas_per_disk_partition > 1 or config.max_store_bytes
            size = self._store_bytes() if needs_size else 0
            was = self.verdict
            self.verdict = verdict = decide(
                self._levels, logs, queue, was_full=was.full,
                logical_ratio=logical_ratio_of(config, logs, size),
                logical_forcible_ratio=config.logical_disk_space_clean_forcibly_threshold,
                store_bytes=size, max_store_bytes=config.max_store_bytes, blocked=self.blocked)
            self._flags.full_directories = verdict.full_paths
            if verdict.full and not was.full:
                self._flags.set(DISK_FULL, verdict.reason)
                events.PUTS_ARE_REFUSED.log(_log, reason=verdict.reason)
            elif was.full and not verdict.full:
                self._flags.clear(DISK_FULL)
                events.PUTS_ARE_TAKEN_AGAIN.log(_log, usage=[usage.percent for usage in self.usages])
            if verdict.errors and verdict.errors != was.errors:
                events.DISK_CANNOT_BE_MEASURED.log(_log, cause="; ".join(verdict.errors))
            return verdict

    def name_small_file_systems(self) -> None:
        """Log the file systems that the last check measured and that are too small for the files of the log."""
        config = self._config
        size, step = config.mapped_file_size_commit_log, config.commit_log_allocate_step
        for usage in self.usages[:-1]:
            needed = 2 * size + min(step, size)
            if 0 < usage.total < needed:
                fitting = max(1 << max(usage.total // 16, 1).bit_length() - 1, _SMALL_FILE)
                events.A_FILE_SYSTEM_IS_TOO_SMALL_FOR_THE_LOG.log(
                    _log, path=usage.path, bytes=usage.total, needed=needed,
                    settings=f"mappedFileSizeCommitLog={fitting},commitLogAllocateStep={min(step, fitting // 4)}")


def measure(
    file_system: FileSystem, log_directories: Iterable[str], queue_directory: str, trash_of: Callable[[str], int]
) -> tuple[PathUsage, ...]:
    """Return the room of the partitions of CommitLog paths, then of the path of the queues.

    Every figure about disks comes from here. ``trash_of`` returns the bytes in the trash of a CommitLog path. If the
    path of the queues does not exist yet, its parent is measured.
    """
    logs = [_usage(file_system, path, path, trash_of(path)) for path in log_directories]
    place = queue_directory if file_system.exists(queue_directory) else queue_directory.rpartition("/")[0]
    queue = _usage(file_system, queue_directory, place, 0)
    for usage in logs:
        if queue.total and (queue.total, queue.free) == (usage.total, usage.free):
            queue = queue._replace(trash=usage.trash)  # the same partition
            break
    return *logs, queue


def _usage(file_system: FileSystem, path: str, place: str, trash: int) -> PathUsage:
    try:
        found = file_system.disk_usage(place)
    except OSError as error:
        return PathUsage(path, 0, 0, 0, error=str(error))
    return PathUsage(path, found.total, found.free, found.usable, trash)
