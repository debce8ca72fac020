"""How full the disks of a store are, and what follows: measurements in, a verdict out.

RocketMQ's CleanCommitLogService has three levels. They are compared with the used share of a partition in
whole percent, rounded up:

    used above              writes     deletion
    --------------------    -------    ------------------------------------------
    nothing                 accepted   at ``deleteWhen`` or by hand, expired files
    diskMaxUsedSpaceRatio   accepted   now, expired files
    ...CleanForciblyRatio   accepted   now, oldest files, expired or not
    ...WarningLevelRatio    refused    the same

If there are several CommitLog paths, the one with most room decides. The partition of the queues is
also judged, and the worse of the two is the verdict. A level in free bytes replaces its percentage.
Nothing here reads a clock or a disk.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.config import StoreConfig
from tailrace.spellings import size_text

__all__ = [
    "DiskLevel", "DiskLevels", "DiskVerdict", "PathUsage", "decide", "disk_levels", "logical_ratio_of",
]

_MOST_PERCENT: Final = 99
_RESUME_SHARE: Final = 10
"""With a level in bytes, puts are accepted again when a tenth more than the level is free."""


class DiskLevel(enum.IntEnum):
    """How full a partition is."""

    OK = 0
    CLEAN = 1
    FORCIBLE = 2
    WARNING = 3


class PathUsage(NamedTuple):
    """Room of the partition of one path in bytes, as `df` shows it; ``total`` is 0 if it could not be measured.

    ``free`` are all bytes that no file has, ``usable`` those that a process without privileges may take, which is less
    if the file system reserves some for root. Every figure of free space for people and programs is ``usable``.
    ``trash`` is the size of the files in the trash: they are about to be deleted, so the levels count them as free.
    """

    path: str
    total: int
    free: int
    usable: int
    trash: int = 0
    error: str = ""

    @property
    def used(self) -> int:
        """Bytes that files have."""
        return self.total - self.free

    @property
    def available(self) -> int:
        """Bytes that can be written when the trash is empty."""
        return self.usable + self.trash

    @property
    def percent(self) -> int:
        """Used share in whole percent, rounded up; -1 when it could not be measured."""
        used = max(self.used - self.trash, 0)
        entire = used + self.available
        return -(-used * 100 // entire) if self.total > 0 and entire > 0 else -1


class DiskLevels(NamedTuple):
    """The levels: used percent, and free bytes that replace a percentage if above 0."""

    warning: float
    forcible: float
    clean: float
    warning_bytes: int = 0
    forcible_bytes: int = 0
    clean_bytes: int = 0
    resume_at_forcible: bool = False
    """As RocketMQ does: puts are accepted again at the forcible level."""

    def level(self, usage: PathUsage) -> DiskLevel:
        """Return the level of a partition that was measured."""
        for level, percent, free_bytes in (
            (DiskLevel.WARNING, self.warning, self.warning_bytes),
            (DiskLevel.FORCIBLE, self.forcible, self.forcible_bytes),
            (DiskLevel.CLEAN, self.clean, self.clean_bytes),
        ):
            if usage.available < free_bytes if free_bytes else usage.percent > percent:
                return level
        return DiskLevel.OK

    def limits_percent(self, usage: PathUsage) -> dict[str, float]:
        """Return the used percent above which each level begins on a partition, by what then happens.

        A level in free bytes is computed for the partition; it has no percentage if that could not be measured.
        """
        entire = usage.used - usage.trash + usage.available if usage.total > 0 else 0
        found = {}
        for name, percent, free_bytes in (
            ("delete", self.clean, self.clean_bytes), ("delete_unexpired", self.forcible, self.forcible_bytes),
            ("refuse_puts", self.warning, self.warning_bytes),
        ):
            if not free_bytes:
                found[name] = percent
            elif entire > 0:
                found[name] = max(100 - free_bytes * 100 / entire, 0.0)
        return found

    def stays_full(self, usage: PathUsage) -> bool:
        """Return True if a store that refuses puts because of this partition continues to refuse them."""
        level = self.level(usage)
        if level is DiskLevel.WARNING:
            return True
        if self.resume_at_forcible:
            return level is DiskLevel.FORCIBLE
        if self.warning_bytes:
            return usage.available < self.warning_bytes + self.warning_bytes // _RESUME_SHARE
        return usage.percent > self.warning - 1

    def describe(self, usage: PathUsage) -> str:
        """Return path, use, level, option and the use at which puts are accepted again, for an error."""
        if self.warning_bytes:
            back = self.warning_bytes + self.warning_bytes // _RESUME_SHARE
            return (
                f"disk full: {usage.path} has {size_text(usage.available)} free, "
                f"diskFreeBytesWarningLevel asks for {size_text(self.warning_bytes)}; "
                f"writes return at {self.forcible_resume() if self.resume_at_forcible else f'{size_text(back)} free'}"
            )
        back_percent = self.forcible if self.resume_at_forcible else self.warning - 1
        return (
            f"disk full: {usage.path} is {usage.percent} % used, "
            f"diskSpaceWarningLevelRatio allows {self.warning:g} %; "
            f"writes return at {back_percent:g} % used"
        )

    def forcible_resume(self) -> str:
        """The forcible level in words."""
        if self.forcible_bytes:
            return f"{size_text(self.forcible_bytes)} free"
        return f"{self.forcible:g} % used"


class DiskVerdict(NamedTuple):
    """What must be done because of the disks."""

    full: bool
    """Puts are refused."""
    clean: bool
    """Expired files are deleted now."""
    clean_immediately: bool
    """The oldest files are deleted now, expired or not, if ``cleanFileForciblyEnable`` allows it."""
    reason: str
    """The reason, with path, use, level and option; empty if nothing must be done."""
    full_paths: tuple[str, ...]
    """CommitLog paths above the forcible level, where no new file should be made."""
    errors: tuple[str, ...] = ()
    """Paths that could not be measured."""


def disk_levels(config: StoreConfig) -> DiskLevels:
    """Return the levels from the settings, with RocketMQ's lower bounds and 99 % as the upper bound."""

    def percent(option: int, system_property: float, least: float) -> float:
        value = system_property * 100 if system_property else option
        return min(max(round(value, 6), least), _MOST_PERCENT)

    return DiskLevels(
        percent(config.disk_space_warning_level_ratio,
                config.broker_disk_space_warning_level_ratio, 35),
        percent(config.disk_space_clean_forcibly_ratio,
                config.broker_disk_space_clean_forcibly_ratio, 30),
        percent(config.disk_max_used_space_ratio, 0, 10),
        config.disk_free_bytes_warning_level, config.disk_free_bytes_clean_forcibly,
        config.disk_free_bytes_delete, config.disk_full_hysteresis == "reference")


def logical_ratio_of(config: StoreConfig, log_paths: Sequence[PathUsage], store_bytes: int) -> float | None:
    """Return the store's size over its part of the largest partition; None if no other store shares it."""
    total = max((usage.total for usage in log_paths), default=0)
    if config.replicas_per_disk_partition <= 1 or total < config.replicas_per_disk_partition:
        return None
    return store_bytes / (total // config.replicas_per_disk_partition)


def decide(
    levels: DiskLevels,
    log_paths: Sequence[PathUsage],
    queue_path: PathUsage,
    *,
    was_full: bool,
    logical_ratio: float | None = None,
    logical_forcible_ratio: float = 0.8,
    store_bytes: int = 0,
    max_store_bytes: int = 0,
    blocked: str = "",
) -> DiskVerdict:
    """Return the verdict over all partitions.

    ``logical_ratio`` is the store's size over its part of a partition that several brokers share; it
    replaces the lowest level. ``blocked`` is the reason why the last forced pass deleted nothing: if it is
    set, a store above ``max_store_bytes`` refuses puts.
    """
    errors = tuple(
        f"cannot measure {usage.path}: {usage.error or 'it has no size'}"
        for usage in (*log_paths, queue_path) if usage.percent < 0)
    measured = [usage for usage in log_paths if usage.percent >= 0]
    judged = [min(measured, key=lambda usage: (levels.level(usage), usage.percent))] if measured else []
    if queue_path.percent >= 0:
        judged.append(queue_path)
    worst = max(judged, key=lambda usage: (levels.level(usage), usage.percent), default=None)
    level = levels.level(worst) if worst is not None else DiskLevel.OK
    full_paths = tuple(u.path for u in measured if levels.level(u) >= DiskLevel.FORCIBLE)
    # The use of a partition that cannot be measured is unknown: the flag stays as it was.
    full = level is DiskLevel.WARNING or (
        was_full and (bool(errors) or any(levels.stays_full(usage) for usage in judged)))
    reason = ""
    if worst is not None and (full or level is not DiskLevel.OK):
        reason = levels.describe(worst) if full else (
            f"{worst.path} is {worst.percent} % used, {size_text(worst.available)} free: "
            f"level {level.name}")
    clean = level >= DiskLevel.FORCIBLE or bool(errors)
    immediately = level >= DiskLevel.FORCIBLE
    if logical_ratio is None:
        clean = clean or level is DiskLevel.CLEAN
    elif level < DiskLevel.FORCIBLE:
        immediately = logical_ratio > logical_forcible_ratio
        clean = clean or immediately or logical_ratio * 100 > levels.clean
        if clean:
            reason = reason or f"the store takes {logical_ratio:.0%} of its part of the partition"
    if 0 < max_store_bytes < store_bytes:
        clean = immediately = True
        over = f"the store has {size_text(store_bytes)}, maxStoreBytes allows {size_text(max_store_bytes)}"
        if blocked:
            full = True
            over = f"store full: {over}, and no file may be deleted: {blocked}"
        reason = "; ".join(part for part in (reason, over) if part)
    if errors and not reason:
        reason = "; ".join(errors)
    return DiskVerdict(full, clean, immediately, reason, full_paths, errors)
