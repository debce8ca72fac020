"""How full the disks of a store are, and what follows: measurements in, a verdict out.

The three levels of RocketMQ's CleanCommitLogService, compared with the used share of a partition
in whole percent, rounded up:

    used above              writes     deletion
    --------------------    -------    ------------------------------------------
    nothing                 go on      at ``deleteWhen`` or by hand, expired files
    diskMaxUsedSpaceRatio   go on      now, expired files
    ...CleanForciblyRatio   go on      now, oldest files, expired or not
    ...WarningLevelRatio    refused    the same

Of several CommitLog paths the one with most room decides. The partition of the queues is looked at
as well, and the worse of the two is the verdict. A level that is given in free bytes takes the
place of its percentage. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.config import StoreConfig

__all__ = [
    "DiskLevel", "DiskLevels", "DiskVerdict", "PathUsage", "decide", "disk_levels", "logical_ratio_of",
]

_MOST_PERCENT: Final = 99
_RESUME_SHARE: Final = 10
"""Writes return when a tenth more is free than the level in bytes asks for."""


class DiskLevel(enum.IntEnum):
    """How full a partition is; a higher one asks for more."""

    OK = 0
    CLEAN = 1
    FORCIBLE = 2
    WARNING = 3


class PathUsage(NamedTuple):
    """Room of the partition of one path in bytes; ``total`` 0 when it could not be measured.

    ``trash`` are the bytes of files that are on their way out: they count as free.
    """

    path: str
    total: int
    free: int
    usable: int
    trash: int = 0
    error: str = ""

    @property
    def available(self) -> int:
        """Bytes that may be written, once the trash is empty."""
        return self.usable + self.trash

    @property
    def percent(self) -> int:
        """Used share in whole percent, rounded up; -1 when it could not be measured."""
        used = max(self.total - self.free - self.trash, 0)
        entire = used + self.available
        return -(-used * 100 // entire) if self.total > 0 and entire > 0 else -1


class DiskLevels(NamedTuple):
    """Where the levels are: used percent, and free bytes that replace them when above 0."""

    warning: float
    forcible: float
    clean: float
    warning_bytes: int = 0
    forcible_bytes: int = 0
    clean_bytes: int = 0
    resume_at_forcible: bool = False
    """The original's way: writes return at the forcible level."""

    def level(self, usage: PathUsage) -> DiskLevel:
        """The level of a partition that was measured."""
        for level, percent, free_bytes in (
            (DiskLevel.WARNING, self.warning, self.warning_bytes),
            (DiskLevel.FORCIBLE, self.forcible, self.forcible_bytes),
            (DiskLevel.CLEAN, self.clean, self.clean_bytes),
        ):
            if usage.available < free_bytes if free_bytes else usage.percent > percent:
                return level
        return DiskLevel.OK

    def stays_full(self, usage: PathUsage) -> bool:
        """Whether a store that takes no writes because of this partition keeps taking none."""
        level = self.level(usage)
        if level is DiskLevel.WARNING:
            return True
        if self.resume_at_forcible:
            return level is DiskLevel.FORCIBLE
        if self.warning_bytes:
            return usage.available < self.warning_bytes + self.warning_bytes // _RESUME_SHARE
        return usage.percent > self.warning - 1

    def describe(self, usage: PathUsage) -> str:
        """Path, use, level, option and the use at which writes return, for an error."""
        if self.warning_bytes:
            back = self.warning_bytes + self.warning_bytes // _RESUME_SHARE
            return (
                f"disk full: {usage.path} has {usage.available} bytes free, "
                f"diskFreeBytesWarningLevel asks for {self.warning_bytes}; "
                f"writes return at {self.forcible_resume() if self.resume_at_forcible else f'{back} bytes free'}"
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
            return f"{self.forcible_bytes} bytes free"
        return f"{self.forcible:g} % used"


class DiskVerdict(NamedTuple):
    """What the disks ask for."""

    full: bool
    """Puts are refused."""
    clean: bool
    """Expired files go now."""
    clean_immediately: bool
    """The oldest files go now, expired or not, when ``cleanFileForciblyEnable`` allows it."""
    reason: str
    """Why, with path, use, level and option; empty when nothing is asked for."""
    full_paths: tuple[str, ...]
    """CommitLog paths above the forcible level, where no new file should be made."""
    errors: tuple[str, ...] = ()
    """Paths that could not be measured."""


def disk_levels(config: StoreConfig) -> DiskLevels:
    """The levels that settings ask for, within the bounds of the original but up to 99 %."""

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
    """The store's size over its part of the largest partition; None when the store has it alone."""
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
    """The verdict over all partitions.

    ``logical_ratio`` is the store's size over its part of a partition that several brokers share;
    it then takes the place of the lowest level. ``blocked`` says what kept the last forced pass
    from deleting: with it, a store above ``max_store_bytes`` takes no writes.
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
    # Of a partition that cannot be measured nothing is known: the flag stays as it was.
    full = level is DiskLevel.WARNING or (
        was_full and (bool(errors) or any(levels.stays_full(usage) for usage in judged)))
    reason = ""
    if worst is not None and (full or level is not DiskLevel.OK):
        reason = levels.describe(worst) if full else (
            f"{worst.path} is {worst.percent} % used, {worst.available} bytes are free: "
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
        over = f"the store has {store_bytes} bytes, maxStoreBytes allows {max_store_bytes}"
        if blocked:
            full = True
            over = f"store full: {over}, and no file may be deleted: {blocked}"
        reason = "; ".join(part for part in (reason, over) if part)
    if errors and not reason:
        reason = "; ".join(errors)
    return DiskVerdict(full, clean, immediately, reason, full_paths, errors)
