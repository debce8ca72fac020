"""The answer to "is anything wrong?": the troubles of a broker, each with its reason and the page that shows more.

The limits are those of the alerts in ``deploy/prometheus``, so that a page and an alert agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tailrace.console.disk import Disk, disk_troubles
from tailrace.console.elements import BAD, NOTE, WARN, Trouble, address, plural
from tailrace.console.figures import DeadLetters, Figures, GroupLag
from tailrace.console.recovery import recovery_troubles
from tailrace.console.shown import ShownBroker
from tailrace.console.words import span
from tailrace.env import supervision
from tailrace.env.processes import memory_bytes, memory_limit
from tailrace.kernels import compiled
from tailrace.spellings import size_text

__all__ = ["LAG_MS", "LATE_MS", "Memory", "WaitingGroup", "memory_of", "troubles", "waiting_groups"]

LAG_MS: Final = 600_000
"""A group whose oldest message waits longer is in trouble."""
LATE_MS: Final = 10_000
"""Timers that are delivered later than this are in trouble."""
TO_QUEUES: Final = 256 << 20
"""Bytes of the log without a place in their queues."""
LAGS_MAX: Final = 200
"""Groups with a lag whose oldest message is looked at, those with the greatest lag."""
MEMORY_PERCENT: Final = 90


class WaitingGroup(NamedTuple):
    """A group with messages that wait."""

    name: str
    lag: GroupLag
    oldest_ms: int
    members: int


class Memory(NamedTuple):
    """Memory of the process in bytes."""

    used: int | None
    limit: int | None
    clients: int
    """Bytes of requests and answers of all clients."""
    clients_max: int
    waits: bool
    """True while requests wait for memory."""


def memory_of(broker: ShownBroker) -> Memory:
    """Return the memory of the broker."""
    limits = broker.limits
    return Memory(memory_bytes(), memory_limit(), limits.held_bytes, limits.bytes_max, limits.tight)


def waiting_groups(figures: Figures, found: Mapping[str, GroupLag]) -> list[WaitingGroup]:
    """Return those of the groups with messages that wait, the greatest lag first, at most `LAGS_MAX`."""
    lags = sorted(
        ((name, lag) for name, lag in found.items() if lag.behind), key=lambda one: (-one[1].behind, one[0]))
    return [WaitingGroup(name, lag, figures.oldest_ms(lag.lagging), figures.members_of(name))
            for name, lag in lags[:LAGS_MAX]]


def troubles(
    broker: ShownBroker, waiting: list[WaitingGroup], dead: list[DeadLetters], disk: Disk,
) -> list[Trouble]:
    """Return what is wrong, the worst first."""
    stats = broker.store.stats()
    found = [
        *_sends(broker, disk), *disk_troubles(disk), *recovery_troubles(broker.store.recovery_report), *_loss(stats),
        *_groups(broker, waiting), *_dead(dead), *_timers(stats), *_storage(broker, stats), *_process(broker)]
    order = (BAD, WARN, NOTE)
    return sorted(found, key=lambda trouble: order.index(trouble.level))


def _sends(broker: ShownBroker, disk: Disk) -> Iterator[Trouble]:
    store = broker.store
    if store.read_only:
        yield Trouble(BAD, f"Sends are refused: the store is {store.read_only}. Everything can be read.")
    elif not store.is_writeable and not disk.verdict.full:  # disk_troubles has the reason
        yield Trouble(BAD, f"Sends are refused: {store.not_writeable_reason}.")
    elif store.refused_puts.failing:
        yield Trouble(BAD, f"Sends fail: {store.refused_puts.failing}.", address("disk"), "Disk")
    if waiting := broker.waiting_sends():
        yield Trouble(NOTE, f"{plural(waiting, 'send')} wait for the disk.")


def _loss(stats: dict[str, Any]) -> Iterator[Trouble]:
    page = address("retention"), "Retention"
    if lost := stats.get("forcedDeletedMessages", 0):
        yield Trouble(WARN, f"{plural(lost, 'message')} {'was' if lost == 1 else 'were'} deleted before "
                            f"{'its' if lost == 1 else 'their'} time since the start, for lack of room.", *page)
    if lost := stats.get("forcedDeletedTimers", 0):
        yield Trouble(BAD, f"{plural(lost, 'timer')} {'was' if lost == 1 else 'were'} deleted before "
                           f"delivery, for lack of room.", *page)


def _groups(broker: ShownBroker, waiting: list[WaitingGroup]) -> Iterator[Trouble]:
    now = broker.clock.now_ms()
    late = [group for group in waiting if group.oldest_ms and now - group.oldest_ms > LAG_MS]
    for group in late[:3]:
        who = "" if group.members else ", and no member is connected"
        yield Trouble(
            WARN, f"Group {group.name} has a lag of {plural(group.lag.behind, 'message')}, the oldest waits for "
                  f"{span(now - group.oldest_ms)}{who}.", address("groups", group.name), "Group")
    if late[3:]:
        yield Trouble(WARN, f"{plural(len(late) - 3, 'other group')} {'has' if len(late) == 4 else 'have'} messages "
                            f"that wait for more than {span(LAG_MS)}.", address("groups"), "Groups")


def _dead(dead: list[DeadLetters]) -> Iterator[Trouble]:
    count = sum(one.messages for one in dead)
    if count:
        of = f"of group {dead[0].group}" if len(dead) == 1 else f"of {len(dead):,} groups"
        yield Trouble(
            WARN, f"{plural(count, 'dead letter')} {of}: {'a message' if count == 1 else 'messages'} that no attempt "
                  "could deliver.", address("dead-letters"), "Dead letters")


def _timers(stats: dict[str, Any]) -> Iterator[Trouble]:
    page = address("timers"), "Timers"
    if (late := stats.get("timerReadBehindMs", 0)) > LATE_MS:
        yield Trouble(WARN, f"Timers are delivered {span(late)} late.", *page)
    if unread := stats.get("timerUnread", 0) + stats.get("scheduleUnread", 0):
        yield Trouble(WARN, f"{plural(unread, 'timer')} cannot be read from the disk.", *page)


def _storage(broker: ShownBroker, stats: dict[str, Any]) -> Iterator[Trouble]:
    if failed := stats.get("hintSyncFailures", 0):
        yield Trouble(WARN, f"The disk has failed to keep {plural(failed, 'small file')} since the start. "
                            "Messages are safe, but the next start may take longer.")
    if unread := stats.get("unreadableRecords", 0):
        yield Trouble(BAD, f"{plural(unread, 'message')} cannot be read from the disk.")
    behind = broker.store.dispatch_behind_bytes
    if behind > TO_QUEUES:
        yield Trouble(WARN, f"{size_text(behind)} of stored messages cannot be consumed yet, because they are not in "
                            "their queues.")
    if damaged := stats.get("compactionDamaged", 0):
        yield Trouble(WARN, f"{plural(damaged, 'damaged message')} in compacted topics.")


def _process(broker: ShownBroker) -> Iterator[Trouble]:
    memory = memory_of(broker)
    if memory.waits:
        yield Trouble(WARN, f"Requests wait for memory: clients hold {size_text(memory.clients)} of "
                            f"{size_text(memory.clients_max)}.")
    if memory.used and memory.limit and memory.used * 100 > memory.limit * MEMORY_PERCENT:
        yield Trouble(WARN, f"The process takes {size_text(memory.used)} of memory; its limit is "
                            f"{size_text(memory.limit)}.")
    if failures := sum(list(supervision.FAILURES.values())):
        yield Trouble(WARN, f"{plural(failures, 'background task')} failed since the start; the log says why.")
    missing = [address for address, known in broker.name_servers.states().items() if not known]
    if missing:
        yield Trouble(WARN, f"Clients may not find this broker: {', '.join(missing)} did not accept its last "
                            "registration.")
    if not compiled():
        yield Trouble(WARN, "This installation was made without a compiler, so it is slow.")
