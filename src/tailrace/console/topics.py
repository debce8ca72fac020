"""The pages of topics: all of them, and one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from xml.etree.ElementTree import Element

from tailrace.console.action_links import topic_actions, topics_actions
from tailrace.console.elements import (
    WARN,
    Child,
    Column,
    Sorting,
    address,
    badge,
    card,
    h,
    link,
    stats,
    table,
)
from tailrace.console.figures import Figures, TopicSize, is_own_topic
from tailrace.console.lists import ROWS_MAX, Listing, Query
from tailrace.console.overview import lag_level
from tailrace.console.viewer import NotThereError, Viewer, only_if
from tailrace.console.words import clock_time, span
from tailrace.env.clock import Clock
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.spellings import size_text

__all__ = ["lag_cell", "owner_of", "topic_link", "topic_page", "topics_page"]

_TYPES: Final = {
    "NORMAL": "", "UNSPECIFIED": "", "FIFO": "in order", "DELAY": "with delay", "TRANSACTION": "transactions",
    "PRIORITY": "priorities", "LITE": "Lite topics", "MIXED": "",
}


def topic_link(topic: str) -> Element:
    """Return a link to the page of a topic."""
    return link(topic, address("topics", topic))


def lag_cell(behind: int, level: str) -> Child:
    """Return a lag, with the colour of its level."""
    return badge(f"{behind:,}", WARN) if level == WARN else behind


def owner_of(topic: str) -> str:
    """Return the group to which a retry or dead-letter topic belongs; "" for another topic."""
    for prefix in (DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""


def _kind(topics: TopicConfigManager, config: TopicConfig) -> str:
    """Return what is special about a topic."""
    name = config.topic_name
    if name.startswith(DLQ_GROUP_TOPIC_PREFIX):
        return "dead letters"
    if name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return "retries"
    if topics.is_system_topic(name):
        return "system"
    special = [_TYPES.get(config.attributes.get("message.type", ""), "")]
    special += ["last message of each key" if config.is_compacted else "", _kept(config)]
    special += ["" if config.writable else "no sends", "" if config.readable else "no reads"]
    return ", ".join(filter(None, special))


def _kept(config: TopicConfig) -> str:
    """Return how long or how much a topic keeps by its own rules; "" without any."""
    found = []
    for name, unit_ms in (("retention.ms", 1), ("reserve.time", 3_600_000)):
        text = config.attributes.get(name, "")
        if text.isdecimal():
            found.append(f"kept for {span(int(text) * unit_ms)}")
    size = config.attributes.get("retention.bytes", "")
    if size.isdecimal():
        found.append(f"at most {size_text(int(size))}")
    return ", ".join(found)


def topics_page(store: MessageStore, clock: Clock, figures: Figures, viewer: Viewer, asked: Query) -> list[Child]:
    """Return the list of topics."""
    sizes, lags, groups = figures.topics(), dict[str, int](), dict[str, int]()
    for (group, topic), lag in figures.pairs().items():
        if viewer.group(group):
            lags[topic] = max(lags.get(topic, 0), lag.behind)
            groups[topic] = groups.get(topic, 0) + 1

    def size_of(topic: str) -> TopicSize:
        return sizes.get(topic) or TopicSize()

    keys: dict[str, Callable[[str], Any]] = {
        "name": str, "messages": lambda topic: size_of(topic).messages, "lag": lambda topic: lags.get(topic, 0),
        "queues": lambda topic: getattr(store.topics.select(topic), "write_queue_nums", 0)}
    listing = Listing(
        "topics", "topic", asked, [name for name in store.topics.table.copy() if viewer.topic(name)],
        lambda topic: is_own_topic(store.topics, topic), Sorting("topics", asked, "name", keys), keys)
    now, rows = clock.now_ms(), list[list[Child]]()
    for topic in listing.shown:
        config = store.topics.select(topic)
        if config is not None:
            rows.append([
                topic_link(topic), size_of(topic).messages, config.write_queue_nums,
                clock_time(_last_ms(store, topic, size_of(topic)), now), groups.get(topic, 0), lags.get(topic, 0),
                _kind(store.topics, config)])
    columns = (
        Column("Topic", "name", "name"), Column("Messages", "number", "messages"),
        Column("Queues", "number wide", "queues"), Column("Last", "number wide"), Column("Groups", "number wide"),
        Column("Greatest lag", "number", "lag"), Column("Kind", "wide"))
    return [topics_actions(viewer), *listing.around(), table(
        columns, rows, listing.none(), "Topics", listing.sorting)]


def _last_ms(store: MessageStore, topic: str, size: TopicSize) -> int:
    """Return when the last message of a topic was stored, by its first few queues; 0 without one."""
    return max((store.queue_of(topic, queue_id).store_timestamp(high - 1)
                for queue_id, low, high in size.queues[:64] if high > low), default=0)


def topic_page(store: MessageStore, clock: Clock, figures: Figures, viewer: Viewer, name: str) -> list[Child]:
    """Return the page of a topic."""
    only_if(viewer.topic(name), f"Get or Sub on Topic:{name}, or List on the cluster")
    config, now = store.topics.select(name), clock.now_ms()
    if config is None:
        raise NotThereError("topic", name)
    size = figures.topics().get(name) or TopicSize()
    owner, looks = owner_of(name), viewer.reads(name)
    rows: list[list[Child]] = [
        [link(queue_id, address("messages", topic=name, queue=queue_id)) if looks else queue_id, high - low, low, high,
         clock_time(store.queue_of(name, queue_id).store_timestamp(high - 1) if high > low else 0, now)]
        for queue_id, low, high in size.queues[:ROWS_MAX]]
    look = link("Newest messages", address("messages", topic=name)) if looks else None
    columns = (Column("Queue", "number"), Column("Messages", "number"), Column("First", "number wide"),
               Column("End", "number wide"), Column("Last message", "number"))
    queues: Child = config.write_queue_nums if config.read_queue_nums == config.write_queue_nums else (
        f"{config.write_queue_nums} to write, {config.read_queue_nums} to read")
    return [
        stats({
            "Messages": h("strong", size.messages, class_="figure"), "Queues": queues,
            "Kind": _kind(store.topics, config) or None,
            "Group": link(owner, address("groups", owner)) if owner and viewer.group(owner) else None,
            "Look": look}),
        topic_actions(viewer, name),
        _groups_of(clock, figures, viewer, name),
        card("Queues", table(columns, rows, "It has no message.", "Queues of the topic"),
             h("p", f"The first {ROWS_MAX} of {len(size.queues):,} queues.") if len(size.queues) > ROWS_MAX else None)]


def _groups_of(clock: Clock, figures: Figures, viewer: Viewer, topic: str) -> Element:
    now, rows = clock.now_ms(), list[list[Child]]()
    found = sorted(
        ((group, lag) for (group, name), lag in figures.pairs().items() if name == topic and viewer.group(group)),
        key=lambda one: (-one[1].behind, one[0]))
    for group, lag in found[:ROWS_MAX]:
        oldest = figures.oldest_ms(lag.lagging)
        level = lag_level(lag.behind, oldest, now)
        rows.append([
            link(group, address("groups", group)), lag_cell(lag.behind, level), clock_time(oldest, now),
            figures.members_of(group)])
    columns = (Column("Group", "name"), Column("Lag", "number"), Column("Oldest waiting", "number"),
               Column("Members", "number wide"))
    return card("Groups", table(columns, rows, "No group has consumed it.", "Groups that consume the topic"),
                h("p", f"The first {ROWS_MAX} of {len(found):,} groups.") if len(found) > ROWS_MAX else None)
