"""How full the disk of a store is, and where its lines are: deletion at any hour, forced deletion, no sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tailrace.console.charts import meter
from tailrace.console.elements import BAD, GOOD, WARN, Child, Trouble, address, h
from tailrace.node.message_store import MessageStore
from tailrace.spellings import size_text
from tailrace.store.retention.disk_state import (
    DiskLevel,
    DiskLevels,
    DiskVerdict,
    PathUsage,
    disk_levels,
)

__all__ = ["Disk", "DiskLine", "disk_meter", "disk_of", "disk_troubles"]

_COLOURS = {DiskLevel.OK: GOOD, DiskLevel.CLEAN: WARN, DiskLevel.FORCIBLE: BAD, DiskLevel.WARNING: BAD}


class DiskLine(NamedTuple):
    """A line on the disk: above this used share something begins."""

    percent: float
    where: str
    what: str


class Disk(NamedTuple):
    """The partition that decides, and what follows."""

    usage: PathUsage
    level: DiskLevel
    verdict: DiskVerdict
    lines: Sequence[DiskLine]
    left: int
    """Bytes that can be written until sends stop."""

    @property
    def colour(self) -> str:
        """The level of a notice about it."""
        return _COLOURS[self.level]


def disk_of(store: MessageStore) -> Disk:
    """Return the state of the disk of the log: of the roomiest one, if the log has several."""
    levels = disk_levels(store.config)
    *logs, _ = store.retention.disk.measure()
    measured = [usage for usage in logs if usage.percent >= 0] or logs
    usage = min(measured, key=lambda one: (levels.level(one) if one.percent >= 0 else 0, one.percent))
    level = levels.level(usage) if usage.percent >= 0 else DiskLevel.OK
    return Disk(usage, level, store.retention.disk.verdict, _lines(levels, usage), _left(levels, usage))


def _entire(usage: PathUsage) -> int:
    return max(usage.used - usage.trash, 0) + usage.available


def _left(levels: DiskLevels, usage: PathUsage) -> int:
    if levels.warning_bytes:
        return usage.available - levels.warning_bytes
    return int(usage.available - _entire(usage) * (100 - levels.warning) / 100)


def _lines(levels: DiskLevels, usage: PathUsage) -> list[DiskLine]:
    entire = max(_entire(usage), 1)
    found = []
    for percent, free, what in (
        (levels.clean, levels.clean_bytes, "expired messages are deleted at any hour"),
        (levels.forcible, levels.forcible_bytes, "the oldest messages are deleted before their time"),
        (levels.warning, levels.warning_bytes, "sends stop"),
    ):
        at = max(0.0, 100 - free * 100 / entire) if free else percent
        found.append(DiskLine(at, f"below {size_text(free)} free" if free else f"above {percent:g} %", what))
    return found


def disk_meter(disk: Disk) -> list[Child]:
    """Return a bar of the disk with its lines, and what they mean."""
    usage = disk.usage
    if usage.percent < 0:
        return [h("p", f"The disk of {usage.path} cannot be measured: {usage.error or 'it has no size'}.")]
    stops = disk.lines[-1]
    entire = size_text(_entire(usage))
    text = f"{usage.percent} % of {entire} used, {size_text(usage.usable)} free"
    left = (
        f"Sends stop {stops.where}, after {size_text(disk.left)} more." if disk.left > 0
        else f"Sends stop {stops.where}.")
    rows: list[Child] = [h("li", f"{line.where}: {line.what}") for line in disk.lines]
    return [
        h("p", h("strong", f"{usage.percent} %", class_="figure"), f" of {entire} used, {size_text(usage.usable)} "
          f"free. {left}"),
        meter(f"{text}. {left}", usage.percent, disk.colour, [line.percent for line in disk.lines]),
        h("ul", *rows, class_="keys")]


def disk_troubles(disk: Disk) -> Iterator[Trouble]:
    """Yield what is wrong with the disk, and what follows."""
    page = address("disk"), "Disk"
    for error in disk.verdict.errors:
        yield Trouble(WARN, f"The disk cannot be measured: {error}.", *page)
    if disk.usage.percent < 0:
        return
    full = f"The disk is {disk.usage.percent} % full"
    if disk.verdict.full and disk.level >= DiskLevel.FORCIBLE:
        yield Trouble(BAD, f"{full}, so sends are refused until there is room. Consumers can still read.", *page)
    elif disk.verdict.full:
        yield Trouble(BAD, "The store has reached the size that its settings allow, and nothing may be deleted, so "
                           "sends are refused.", *page)
    elif disk.level is DiskLevel.WARNING:
        yield Trouble(BAD, f"{full}, so sends stop now.", *page)
    elif disk.level is not DiskLevel.OK:
        left = f"Sends stop after {size_text(disk.left)} more."
        if disk.level is DiskLevel.FORCIBLE:
            yield Trouble(BAD, f"{full}, so the oldest messages are deleted before their time. {left}", *page)
        else:
            yield Trouble(WARN, f"{full}, so expired messages are deleted at any hour. {left}", *page)
