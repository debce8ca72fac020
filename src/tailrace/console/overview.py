"""The first page: is anything wrong?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from tailrace import __version__
from tailrace.console.charts import bar, chart
from tailrace.console.disk import disk_meter, disk_of
from tailrace.console.elements import (
    BAD,
    GOOD,
    NOTE,
    WARN,
    Child,
    Column,
    Titled,
    Trouble,
    address,
    badge,
    card,
    h,
    link,
    notice,
    plural,
    stats,
    table,
)
from tailrace.console.figures import DeadLetters, Figures, is_own_topic
from tailrace.console.health import (
    LAG_MS,
    LATE_MS,
    WaitingGroup,
    memory_of,
    troubles,
    waiting_groups,
)
from tailrace.console.recovery import recovery_card
from tailrace.console.shown import ShownBroker
from tailrace.console.viewer import Viewer
from tailrace.console.words import clock_time, moment, span
from tailrace.kernels import compiled
from tailrace.spellings import size_text

__all__ = ["REFRESH_S", "overview"]

REFRESH_S: Final = 5
ROWS: Final = 8
"""Groups that the first page shows."""


def overview(broker: ShownBroker, figures: Figures, viewer: Viewer, asked: Mapping[str, str]) -> Titled:
    """Return the page, whose title says whether anything is wrong."""
    lags = figures.own_lags(viewer)
    waiting = waiting_groups(figures, lags)
    dead, disk = figures.dead_letters(viewer), disk_of(broker.store)
    live = link("Stop reloading", address("")) if "live" in asked else link(
        f"Reload every {REFRESH_S} s", address("", live=1))
    found = troubles(broker, waiting, dead, disk)
    wrong = sum(trouble.level in {WARN, BAD} for trouble in found)
    title = f"{plural(wrong, 'thing')} {'needs' if wrong == 1 else 'need'} attention" if wrong else "Nothing is wrong"
    return Titled(title, [
        _state(broker, found, live),
        h("div", h("div", _lag(broker, waiting, lags), card(
            "Disk", *disk_meter(disk), more=link("By kind of file", address("disk"))), class_="column"),
          h("div", _dead(broker, dead), _timers(broker, viewer), recovery_card(broker.store.recovery_report),
            class_="column"), class_="cards"),
        _rates(broker), _broker(broker, figures, viewer)])


def _state(broker: ShownBroker, found: list[Trouble], live: Element) -> Element:
    """Return what is wrong, or that the broker serves clients."""
    running = f"{broker.addresses.broker} has served clients for {span(broker.clock.now_ms() - broker.boot_ms)}."
    lines: list[Child] = [
        notice(trouble.level, trouble.text, more=[link(trouble.more, trouble.page)] if trouble.page else [])
        for trouble in found]
    if all(trouble.level == NOTE for trouble in found):
        lines.insert(0, notice(GOOD, "Sends and reads work, and nothing waits for long."))
    return h("section", *lines, h("p", h("span", running), live, class_="links soft"),
             class_="health", aria_label="State")


def lag_level(behind: int, oldest: int, now_ms: int) -> str:
    """Return the level of a lag."""
    return (WARN if oldest and now_ms - oldest > LAG_MS else NOTE) if behind else GOOD


def _lag(broker: ShownBroker, waiting: list[WaitingGroup], lags: Mapping[str, object]) -> Element:
    now = broker.clock.now_ms()
    most = max((group.lag.behind for group in waiting), default=1)
    rows: list[list[Child]] = [
        [link(group.name, address("groups", group.name)),
         bar(group.lag.behind / most, lag_level(group.lag.behind, group.oldest_ms, now)), group.lag.behind,
         clock_time(group.oldest_ms, now),
         group.members or badge("none", WARN)]
        for group in waiting[:ROWS]]
    more, idle = len(waiting) - len(rows), len(lags) - len(waiting)
    rest = " ".join(filter(None, (
        f"{plural(more, 'more group')} {'has' if more == 1 else 'have'} a lag." if more else "",
        f"{plural(idle, 'other group')} {'has' if idle == 1 else 'have'} no lag." if idle else "")))
    columns = (Column("Group", "name"), Column("Share", "wide bars"), Column("Messages", "number"),
               Column("Oldest", "number"), Column("Members", "number wide"))
    empty = "No message waits." if lags else "No group has consumed anything yet."
    return card(
        "Lag", table(columns, rows, empty, "Groups with waiting messages"),
        h("p", rest, class_="soft") if rows and rest else None,
        more=link("All groups", address("groups")))


def _dead(broker: ShownBroker, dead: list[DeadLetters]) -> Element:
    now = broker.clock.now_ms()
    rows: list[list[Child]] = [
        [link(one.group, address("messages", topic=one.topic)), one.messages, clock_time(one.last_ms, now)]
        for one in dead[:ROWS]]
    columns = (Column("Group", "name"), Column("Messages", "number"), Column("Last", "number"))
    return card("Dead letters", table(columns, rows, "There are no dead letters.", "Dead letters by group"),
                more=link("All dead letters", address("dead-letters")) if dead else None)


def _timers(broker: ShownBroker, viewer: Viewer) -> Element:
    figures = broker.store.stats()
    by_topic = {topic: count for topic, count in figures.get("timerPendingByTopic", {}).items()
                if count > 0 and viewer.topic(topic)}
    late = figures.get("timerReadBehindMs", 0)
    overdue = figures.get("timerWaiting", 0) if late > LATE_MS else 0
    levels = figures.get("schedulePending", 0) if viewer.lists else None
    own = sum(count for topic, count in by_topic.items() if is_own_topic(broker.topics, topic))
    return card("Timers", stats({
        "Pending": h("strong", own, class_="figure"),
        "Retries": sum(by_topic.values()) - own or None,
        "Of delay levels": levels or None,
        "Overdue": badge(f"{overdue:,}, for up to {span(late)}", WARN) if overdue else "none",
    }), more=link("All timers", address("timers")))


def _rates(broker: ShownBroker) -> Element:
    history = broker.store.inner.stats.history()
    return card(
        "Rates", h("div", chart("Stored", [puts for puts, _ in history], "a second"),
                   chart("Read", [reads for _, reads in history], "a second"), class_="charts"))


def _broker(broker: ShownBroker, figures: Figures, viewer: Viewer) -> Element:
    store, memory = broker.store, memory_of(broker)
    messages = sum(size.messages for topic, size in figures.topics().items()
                   if is_own_topic(broker.topics, topic) and viewer.topic(topic))
    limit = f" of {size_text(memory.limit)}" if memory.limit else ""
    earliest = store.earliest_message_time()
    return card("This broker", stats({
        "Address": broker.addresses.broker, "Name server": broker.name_servers.addresses or "none",
        "Started": moment(broker.boot_ms), "Version": f"Tailrace {__version__}",
        "Directory": store.path,
        "Messages": f"{messages:,}", "Log": size_text(max(store.max_phy_offset - max(store.min_phy_offset, 0), 0)),
        "Oldest message": moment(earliest) if earliest > 0 else "-",
        "Not on the disk yet": size_text(store.stats()["flushBehindBytes"]),
        "Not in queues yet": size_text(store.dispatch_behind_bytes),
        "Memory": f"{size_text(memory.used)}{limit}" if memory.used else None,
        "Held for clients": f"{size_text(memory.clients)} of {size_text(memory.clients_max)}"
        if memory.clients_max else None,
        "Kernels": None if compiled() else badge("interpreted, which is slow", WARN),
    }))
