"""The pages of groups and of their dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from xml.etree.ElementTree import Element

from tailrace.broker.clients.client_manager import ClientInfo, ConsumerGroupInfo, ConsumerManager
from tailrace.console.action_links import group_actions, resend_link
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
    plural,
    stats,
    table,
)
from tailrace.console.figures import Figures, GroupLag, is_own_topic
from tailrace.console.lists import ROWS_MAX, Listing, Query
from tailrace.console.overview import lag_level
from tailrace.console.topics import lag_cell, topic_link
from tailrace.console.viewer import NotThereError, Viewer, only_if
from tailrace.console.words import client_version, clock_time
from tailrace.env.clock import Clock
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import LANGUAGES
from tailrace.node.subscription_group import SubscriptionGroupManager, is_system_group
from tailrace.node.topic_config import TopicConfigManager

__all__ = ["dead_letters_page", "group_page", "groups_page"]

_LANGUAGES: Final = {
    "JAVA": "Java", "CPP": "C++", "DOTNET": ".NET", "PYTHON": "Python", "GO": "Go", "RUST": "Rust", "PHP": "PHP",
    "NODE_JS": "Node.js", "HTTP": "HTTP", "RUBY": "Ruby", "ERLANG": "Erlang", "DELPHI": "Delphi"}


def groups_page(clock: Clock, figures: Figures, viewer: Viewer, asked: Query) -> list[Child]:
    """Return the list of groups, those with the greatest lag first."""
    lags = figures.groups(viewer)
    dead = {one.group: one.messages for one in figures.dead_letters(viewer)}

    def behind(group: str) -> int:
        return lags[group].behind if group in lags else 0

    keys: dict[str, Callable[[str], Any]] = {
        "name": str, "lag": behind, "members": figures.members_of,
        "dead": lambda group: dead.get(group, 0)}
    listing = Listing(
        "groups", "group", asked, filter(viewer.group, figures.group_names()), lambda group: not is_system_group(group),
        Sorting("groups", asked, "-lag", keys), keys)
    now, rows = clock.now_ms(), list[list[Child]]()
    for group in listing.shown:
        oldest = figures.oldest_ms(lags[group].lagging) if group in lags else 0
        count = dead.get(group, 0)
        rows.append([
            link(group, address("groups", group)), lag_cell(behind(group), lag_level(behind(group), oldest, now)),
            clock_time(oldest, now), figures.members_of(group),
            link(f"{count:,}", address("messages", topic=f"{DLQ_GROUP_TOPIC_PREFIX}{group}")) if count else 0])
    columns = (
        Column("Group", "name", "name"), Column("Lag", "number", "lag"), Column("Oldest waiting", "number"),
        Column("Members", "number wide", "members"), Column("Dead letters", "number wide", "dead"))
    return [*listing.around(), table(columns, rows, listing.none(), "Groups", listing.sorting)]


def group_page(
    clock: Clock, groups: SubscriptionGroupManager, topics: TopicConfigManager, consumers: ConsumerManager,
    figures: Figures, viewer: Viewer, name: str,
) -> list[Child]:
    """Return the page of a group."""
    only_if(viewer.group(name), f"Get or Sub on Group:{name}, or List on the cluster")
    if name not in figures.group_names():
        raise NotThereError("group", name)
    lag, now = figures.groups(viewer).get(name) or GroupLag(), clock.now_ms()
    oldest = figures.oldest_ms(lag.lagging)
    dlq = f"{DLQ_GROUP_TOPIC_PREFIX}{name}"
    size = figures.topics().get(dlq)
    dead = size.messages if size is not None and viewer.topic(dlq) else 0
    info, config = consumers.find(name), groups.select(name)
    members = [] if info is None else list(info.members.values())
    return [
        stats({
            "Lag": [h("strong", lag.behind, class_="figure"), _waits(lag.behind, oldest, now)],
            "Members": len(members) if members else badge("not connected", WARN if lag.behind else "note"),
            "Dead letters": link(plural(dead, "message"), address("messages", topic=dlq)) if dead else "none",
            "Attempts": f"at most {config.retry_max_times + 1} for each message" if config is not None else None,
            "Delivery": _delivery(info)}),
        group_actions(viewer, name, has_dead_letters=dead > 0),
        _topics(clock, figures, viewer, name), _members(members, now), _queues(topics, figures, viewer, name)]


def _waits(behind: int, oldest: int, now: int) -> Child:
    if not behind:
        return " nothing waits"
    return [" waiting, the oldest from ", clock_time(oldest, now)] if oldest else " waiting"


def _delivery(info: ConsumerGroupInfo | None) -> str | None:
    if info is None:
        return None
    return "every member gets every message" if info.broadcasting else "each message goes to one member"


def _topics(clock: Clock, figures: Figures, viewer: Viewer, group: str) -> Element:
    now, rows = clock.now_ms(), list[list[Child]]()
    found = sorted(((topic, lag) for (name, topic), lag in figures.pairs().items()
                    if name == group and viewer.topic(topic)), key=lambda one: (-one[1].behind, one[0]))
    for topic, lag in found[:ROWS_MAX]:
        oldest = figures.oldest_ms(lag.lagging)
        shown = link("its retries", address("topics", topic)) if topic.startswith(
            RETRY_GROUP_TOPIC_PREFIX) else topic_link(topic)
        rows.append([shown, lag_cell(lag.behind, lag_level(lag.behind, oldest, now)), clock_time(oldest, now),
                     lag.queues])
    columns = (Column("Topic", "name"), Column("Lag", "number"), Column("Oldest waiting", "number"),
               Column("Queues", "number wide"))
    return card("Topics", table(columns, rows, "It has consumed nothing yet.", "Topics of the group"))


def _members(members: list[ClientInfo], now: int) -> Element:
    rows: list[list[Child]] = [
        [member.client_id, member.channel.peer, _client(member), clock_time(member.last_update_ms, now)]
        for member in sorted(members, key=lambda one: one.client_id)[:ROWS_MAX]]
    columns = (Column("Member", "name"), Column("Address", "name"), Column("Client", "wide"),
               Column("Last contact", "number"))
    return card("Members", table(columns, rows, "No member is connected.", "Members of the group"),
                h("p", f"The first {ROWS_MAX} of {len(members):,}.") if len(members) > ROWS_MAX else None)


def _client(member: ClientInfo) -> str:
    name = LANGUAGES[member.language] if 0 <= member.language < len(LANGUAGES) else ""
    return f"{_LANGUAGES.get(name, 'other')}, {client_version(member.version)}"


def _queues(topics: TopicConfigManager, figures: Figures, viewer: Viewer, group: str) -> Element:
    """Return the queues of a group, those with the greatest lag first."""
    found = sorted(
        figures.queues_of(group, viewer),
        key=lambda queue: (-queue.behind, not is_own_topic(topics, queue.topic), queue.topic, queue.queue_id))
    rows: list[list[Child]] = [
        [topic_link(queue.topic), queue.queue_id, queue.committed, queue.until, queue.behind]
        for queue in found[:ROWS_MAX]]
    columns = (Column("Topic", "name"), Column("Queue", "number"), Column("Consumed up to", "number wide"),
               Column("End", "number wide"), Column("Lag", "number"))
    return card("Queues", table(columns, rows, "It has consumed nothing yet.", "Queues of the group"),
                h("p", f"The {ROWS_MAX} with the greatest lag of {len(found):,}.") if len(found) > ROWS_MAX else None)


def dead_letters_page(clock: Clock, figures: Figures, viewer: Viewer) -> list[Child]:
    """Return the dead letters of all groups."""
    now, found = clock.now_ms(), figures.dead_letters(viewer)
    rows: list[list[Child]] = [
        [link(one.group, address("groups", one.group)) if viewer.group(one.group) else one.group, one.messages,
         clock_time(one.last_ms, now),
         [link("Messages", address("messages", topic=one.topic)) if viewer.reads(one.topic) else None, " ",
          resend_link(viewer, one.group)]]
        for one in found[:ROWS_MAX]]
    columns = (Column("Group", "name"), Column("Dead letters", "number"), Column("Last", "number"), Column("Look"))
    return [
        h("p", "Messages that a group could not consume, even after all attempts. They stay until they expire."),
        table(columns, rows, "There is no dead letter.", "Dead letters by group"),
        h("p", f"The first {ROWS_MAX} of {len(found):,} groups.") if len(found) > ROWS_MAX else None]
