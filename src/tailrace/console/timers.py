"""The page of timers: messages that are delivered later."""

from __future__ import annotations

import itertools
from typing import Final

from tailrace.console.elements import (
    BAD,
    WARN,
    Child,
    Column,
    address,
    badge,
    form,
    h,
    link,
    picker,
    stats,
    table,
)
from tailrace.console.figures import is_own_topic
from tailrace.console.health import LATE_MS
from tailrace.console.lists import ROWS_MAX, Query
from tailrace.console.topics import owner_of, topic_link
from tailrace.console.viewer import Viewer, similar_name
from tailrace.console.words import ago, moment
from tailrace.env.clock import Clock
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfigManager
from tailrace.timer.pending import PARKED, UNREADABLE, PendingTimer

__all__ = ["timers_page"]

TIMERS_MAX: Final = 10_000
"""Timers that a page looks at; a user that may see few of them would have all read."""


def timers_page(store: MessageStore, clock: Clock, viewer: Viewer, asked: Query) -> list[Child]:
    """Return the pending timers, the first due ones first."""
    topic, with_retries = asked.get("topic", ""), "all" in asked
    now, looked = clock.now_ms(), 0
    shown: list[PendingTimer] = []
    pending = overdue = parked = retries = 0
    for timer in itertools.islice(store.timers(), TIMERS_MAX):
        looked += 1
        if not viewer.reads(timer.topic) and not (timer.state == UNREADABLE and viewer.lists):
            continue
        if timer.state == PARKED:
            parked += 1
            continue
        is_retry = bool(owner_of(timer.topic))
        retries += is_retry
        if (topic and timer.topic != topic) or (is_retry and not topic and not with_retries):
            continue
        pending += 1
        overdue += timer.due_ms < now - LATE_MS
        if len(shown) < ROWS_MAX:
            shown.append(timer)
    at_least = " or more" if looked == TIMERS_MAX else ""
    rows: list[list[Child]] = [
        [moment(timer.due_ms), _left(timer, now), _topic(timer, viewer), timer.keys or timer.uniq_key]
        for timer in shown]
    columns = (Column("Due", "wide"), Column("In", "number"), Column("Topic", "name"), Column("Keys", "name"))
    names = viewer.suggested(name for name in sorted(store.topics.table.copy()) if is_own_topic(store.topics, name))
    links: list[Child] = []
    if with_retries:
        links.append(link("Hide retries", address("timers", topic=topic)))
    elif retries and not topic:
        links.append(link(f"Show {retries:,} retries of groups", address("timers", all=1)))
    return [
        stats({
            "Pending": h("strong", f"{pending:,}{at_least}", class_="figure"),
            "Overdue": badge(f"{overdue:,}", WARN) if overdue else "none",
            "Could not be delivered": badge(f"{parked:,}", BAD) if parked else None}),
        form("timers", picker("Topic", "topic", topic, names), button="Filter",
             hidden={"all": "1" if with_retries else ""}),
        h("p", *links, class_="links") if links else None,
        table(columns, rows, _none(store.topics, topic, names), "Pending timers"),
        h("p", f"The first {ROWS_MAX} are shown.") if pending > ROWS_MAX else None]


def _none(topics: TopicConfigManager, topic: str, names: list[str]) -> list[Child]:
    """Return what the page says without a timer; for a topic that does not exist with the most similar name."""
    if not topic:
        return ["No timer is pending."]
    similar = "" if topics.select(topic) is not None and topic in names else similar_name(topic, names)
    said: list[Child] = [f"No timer of {topic} is pending."]
    return [*said, " Is ", link(similar, address("timers", topic=similar)), " meant?"] if similar else said


def _left(timer: PendingTimer, now: int) -> Child:
    text = ago(timer.due_ms, now)
    if timer.state == UNREADABLE:
        return badge("cannot be read", BAD)
    return badge(f"overdue, {text}", WARN) if timer.due_ms < now - LATE_MS else text.removeprefix("in ")


def _topic(timer: PendingTimer, viewer: Viewer) -> Child:
    return topic_link(timer.topic) if timer.topic and viewer.topic(timer.topic) else timer.topic
