"""Measures the disks and decides whether puts are accepted. It deletes nothing and waits for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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

__all__ = ["DiskCheckService"]

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

    def check(self) -> DiskVerdict:
        """Measure, decide, set or clear the flag, and log what changed."""
        with self._lock:
            logs = [self._measure(path, self._trash.bytes_of(path)) for path in self._log_directories]
            queue = self._measure(self._queue_directory, 0)
            for usage in logs:
                if queue.total and (queue.total, queue.free) == (usage.total, usage.free):
                    queue = queue._replace(trash=usage.trash)  # the same partition
                    break
            self.usages = (*logs, queue)
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

    def _measure(self, path: str, trash: int) -> PathUsage:
        """Return the room of the partition of a path, or of its parent if the path does not exist yet."""
        place = path
        if not self._file_system.exists(place) and path == self._queue_directory:
            place = path.rpartition("/")[0]
        try:
            found = self._file_system.disk_usage(place)
        except OSError as error:
            return PathUsage(path, 0, 0, 0, error=str(error))
        return PathUsage(path, found.total, found.free, found.usable, trash)
