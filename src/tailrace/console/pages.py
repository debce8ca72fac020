"""The pages of the console: each is a GET without effect, made for every request."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Final, final
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree.ElementTree import Element

from tailrace import __version__
from tailrace.auth.accesses import CLUSTER, Access, group_access, topic_access
from tailrace.broker.context import BrokerContext
from tailrace.broker.http_status import Answer, May
from tailrace.console.elements import Child, address, chart, h, page_text, table
from tailrace.console.reads import (
    Place,
    body_text,
    find_messages,
    group_rows,
    local_time,
    whole_number,
)
from tailrace.doctor.disk_usage import disk_usage
from tailrace.doctor.retention import explain_directory
from tailrace.doctor.retention_report import answer_lines
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.formats.requests.table import Action
from tailrace.kernels import compiled
from tailrace.store.retention.disk_state import PathUsage, size_text
from tailrace.timer.pending_timer import PARKED

__all__ = ["HEADERS", "Console"]

ROWS_MAX: Final = 200
"""Rows of a table; a list that is longer has pages."""
TIMERS_MAX: Final = 10_000
"""Timers that a page looks at; a user that may see few of them would have all read."""
REFRESH_S: Final = 5
HTML: Final = "text/html; charset=utf-8"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
                               "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}
"""No script, nothing from elsewhere, no frame: even if a text were taken for HTML."""
_PAGES: Final = {
    "": "Overview", "topics": "Topics", "groups": "Groups", "messages": "Messages", "timers": "Timers",
    "retention": "Retention", "disk": "Disk",
}


READ: Final = Action.GET | Action.SUB


class _NotThereError(Exception):
    """The topic or group that a page is about does not exist."""


class _ForbiddenError(Exception):
    """The user of the request may not see what the page is about."""


@final
class _Viewer:
    """What the user of a request may see.

    Messages and what is in them need Get or Sub on their topic. Names and numbers of topics and groups need the same,
    or List on the cluster, as requests that list them.
    """

    def __init__(self, may: May, cluster: str) -> None:
        self._may = may
        self.lists = may(Access(CLUSTER, cluster, Action.LIST))
        """Whether the user may see all names."""

    def reads(self, topic: str) -> bool:
        """Return whether the user may see messages of a topic."""
        return self._may(topic_access(topic, READ))

    def topic(self, name: str) -> bool:
        """Return whether the user may see the name and the numbers of a topic."""
        return self.lists or self.reads(name)

    def group(self, name: str) -> bool:
        """Return whether the user may see the name and the numbers of a group."""
        return self.lists or self._may(group_access(name, READ))


def _only_if(allowed: bool, what: str) -> None:
    if not allowed:
        raise _ForbiddenError(f"Your user needs {what}.")


@final
class Console:
    """Answers requests for ``/console/``; called in a thread, because pages read the store."""

    def __call__(self, target: str, broker: BrokerContext | None, state: str, may: May) -> Answer:
        """Return the page for a target such as ``/console/topics?from=200``."""
        parts = urlsplit(target)
        name, _, rest = parts.path.removeprefix("/console/").partition("/")
        asked = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if name == "style.css":
            style = resources.files("tailrace.console").joinpath("style.css").read_bytes()
            return Answer(HTTPStatus.OK, style, "text/css; charset=utf-8", HEADERS)
        if name not in _PAGES or (rest and name not in {"topics", "groups"}):
            return self._page(HTTPStatus.NOT_FOUND, "Not found", "", [h("p", "There is no such page.")])
        title = f"{_PAGES[name][:-1]} {unquote(rest)}" if rest else _PAGES[name]
        if broker is None:
            return self._page(HTTPStatus.SERVICE_UNAVAILABLE, title, name, [
                h("p", f"The broker does not serve clients: {state}.", class_="warn"),
                h("p", h("a", "Look again", href=address(name)))])
        viewer = _Viewer(may, broker.config.broker_cluster_name)
        pages: dict[str, Callable[[], list[Child]]] = {
            "": lambda: _overview(broker, asked), "topics": lambda: _topics(broker, viewer, unquote(rest), asked),
            "groups": lambda: _groups(broker, viewer, unquote(rest), asked),
            "messages": lambda: _messages(broker, viewer, asked), "timers": lambda: _timers(broker, viewer),
            "retention": lambda: _retention(broker, viewer), "disk": lambda: _disk(broker),
        }
        try:
            return self._page(HTTPStatus.OK, title, name, pages[name](), live="live" in asked)
        except _ForbiddenError as error:
            return self._page(HTTPStatus.FORBIDDEN, title, name, [h("p", str(error), class_="warn")])
        except _NotThereError as error:
            return self._page(HTTPStatus.NOT_FOUND, title, name, [h("p", str(error), class_="warn")])
        except (StoreError, ValueError) as error:
            return self._page(HTTPStatus.BAD_REQUEST, title, name, [h("p", str(error), class_="warn")])

    @staticmethod
    def _page(status: HTTPStatus, title: str, name: str, content: list[Child], *, live: bool = False) -> Answer:
        links: list[Child] = [
            h("a", text, href=address(path), **({"aria_current": "page"} if path == name else {}))
            for path, text in _PAGES.items()]
        root = h(
            "html",
            h("head", h("meta", charset="utf-8"), h("title", f"{title} · Tailrace"),
              h("meta", name="viewport", content="width=device-width, initial-scale=1"),
              h("meta", http_equiv="refresh", content=REFRESH_S) if live else None,
              h("link", rel="stylesheet", href=address("style.css"))),
            h("body", h("a", "Skip to the content", href="#content", class_="skip"),
              h("header", h("strong", "Tailrace"), h("nav", *links, aria_label="Pages")),
              h("main", h("h1", title), *content, id="content"),
              h("footer", h("small", f"Tailrace {__version__}. These pages change nothing."))),
            lang="en")
        return Answer(status, page_text(root), HTML, HEADERS)


def _time(ms: int) -> Element:
    return h("time", local_time(ms))


def _facts(facts: Mapping[str, Child]) -> Element:
    pairs: list[Child] = [element for name, value in facts.items() for element in (h("dt", name), h("dd", value))]
    return h("dl", *pairs)


def _overview(broker: BrokerContext, asked: Place) -> list[Child]:
    store = broker.store
    state: Child = "ready"
    failing = f"sends fail: {store.refused_puts.failing}" if store.refused_puts.failing else ""
    if store.read_only or not store.is_writeable or failing:
        reason = failing if store.is_writeable else f"takes no writes: {store.not_writeable_reason}"
        state = h("span", store.read_only or reason, class_="warn")
    history = store.rate_history()
    live = h("a", "Stop reloading", href=address("")) if "live" in asked else h(
        "a", f"Reload every {REFRESH_S} s", href=address("", live=1))
    report = {name: value for name, value in store.recovery_report.items() if value not in (None, "", [], {})}
    return [
        _facts({
            "State": state, "Broker": broker.address, "Name server": broker.namesrv_address,
            "Directory": store.path, "Since": local_time(broker.boot_ms),
            "Kernels": "compiled" if compiled() else h("span", "interpreted, which is slow", class_="warn"),
            "CommitLog": f"{store.min_phy_offset:,} to {store.max_phy_offset:,}",
            "To dispatch": f"{store.dispatch_behind_bytes:,} bytes"}),
        h("h2", "Rates"), h("p", live),
        chart("Messages put", [puts for puts, _ in history], "a second"),
        chart("Messages read", [reads for _, reads in history], "a second"),
        h("h2", "Last recovery"), _facts({name: str(value) for name, value in report.items()}),
    ]


def _listed(path: str, asked: Place, names: list[str]) -> tuple[list[str], list[Child]]:
    """Return the names to show, and a form and links to reach the others."""
    text, start = asked.get("filter", ""), max(whole_number(asked, "from"), 0) if "from" in asked else 0
    names = sorted(name for name in names if text.lower() in name.lower())
    links: list[Child] = []
    if start:
        links.append(h("a", "Previous ", href=address(path, filter=text, **{"from": max(start - ROWS_MAX, 0)})))
    if start + ROWS_MAX < len(names):
        links.append(h("a", "Next", href=address(path, filter=text, **{"from": start + ROWS_MAX})))
    form = h("form", h("label", "Name contains", h("input", name="filter", value=text)), h("button", "Filter"),
             action=address(path), method="get")
    return names[start : start + ROWS_MAX], [form, h("p", f"{len(names):,} found. ", *links)]


def _topics(broker: BrokerContext, viewer: _Viewer, name: str, asked: Place) -> list[Child]:
    if name:
        return _topic(broker, viewer, name)
    shown, around = _listed(
        "topics", asked, [config.topic_name for config in broker.topics.items() if viewer.topic(config.topic_name)])
    counts: Counter[str] = Counter()
    for topic, _, low, high in broker.store.queues():
        counts[topic] += high - low
    rows: list[list[Child]] = []
    for topic in shown:
        config = broker.topics.select(topic)
        if config is not None:
            rows.append([
                h("a", topic, href=f"{address('topics')}/{_quoted(topic)}"), config.write_queue_nums, counts[topic],
                "system" if broker.topics.is_system_topic(topic) else " ".join(
                    f"{key}={value}" for key, value in config.attributes.items())])
    return [*around, table(("Topic", "Queues", "Messages", "Attributes"), rows, "There is no such topic.", "Topics")]


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _topic(broker: BrokerContext, viewer: _Viewer, name: str) -> list[Child]:
    _only_if(viewer.topic(name), f"Get or Sub on Topic:{name}, or List on the cluster")
    config, store = broker.topics.select(name), broker.store
    if config is None:
        raise _NotThereError(f"There is no topic {name}.")
    rows: list[list[Child]] = [
        [queue_id, low, high, high - low,
         _time(store.get_message_store_timestamp(name, queue_id, high - 1) if high > low else 0),
         h("a", "Messages", href=address("messages", topic=name, queue=queue_id))]
        for topic, queue_id, low, high in store.queues() if topic == name]
    seen = filter(viewer.group, broker.offsets.groups_of(name))
    groups = [row for row in group_rows(broker, seen) if row[1] == name]
    return [
        _facts({"Topic": name, "Queues to read": config.read_queue_nums, "Queues to write": config.write_queue_nums,
                "Attributes": " ".join(f"{key}={value}" for key, value in config.attributes.items()) or "-"}),
        table(("Queue", "First", "End", "Messages", "Last message", "Look"), rows, "It has no message.", "Queues"),
        _lag_table(groups),
    ]


def _lag_table(rows: list[tuple[str, str, int, int, int, int]]) -> Element:
    cells: list[list[Child]] = [
        [h("a", group, href=f"{address('groups')}/{_quoted(group)}"),
         h("a", topic, href=f"{address('topics')}/{_quoted(topic)}"), queue, offset, end, lag]
        for group, topic, queue, offset, end, lag in rows[:ROWS_MAX]]
    return table(("Group", "Topic", "Queue", "Consumed", "End", "Lag"), cells, "No group has consumed it.",
                 f"What groups have consumed{'' if len(rows) <= ROWS_MAX else f' (the first {ROWS_MAX} rows)'}")


def _groups(broker: BrokerContext, viewer: _Viewer, name: str, asked: Place) -> list[Child]:
    if name:
        _only_if(viewer.group(name), f"Get or Sub on Group:{name}, or List on the cluster")
    known = {config.group_name for config in broker.groups.items()} | set(broker.offsets.topics_by_group())
    if name:
        if name not in known:
            raise _NotThereError(f"There is no group {name}.")
        rows_of = [row for row in group_rows(broker, [name]) if viewer.topic(row[1])]
        return [_facts({"Group": name, "Members": _members(broker, name)}), _lag_table(rows_of)]
    shown, around = _listed("groups", asked, [*filter(viewer.group, known)])
    lags: Counter[str] = Counter()
    for group, topic, _, _, _, lag in group_rows(broker, shown):
        if viewer.topic(topic):
            lags[group] += lag
    rows: list[list[Child]] = [
        [h("a", group, href=f"{address('groups')}/{_quoted(group)}"), lags[group], _members(broker, group)]
        for group in shown]
    return [*around, table(("Group", "Lag", "Members"), rows, "There is no such group.", "Groups")]


def _members(broker: BrokerContext, group: str) -> int:
    info = broker.consumers.find(group)
    return 0 if info is None else len(info.client_ids())


def _messages(broker: BrokerContext, viewer: _Viewer, asked: Place) -> list[Child]:
    fields: list[Child] = [
        h("label", text, h("input", name=name, value=asked.get(name, ""), **more)) for text, name, more in (
            ("Topic", "topic", {"required": "required"}), ("Key", "key", {}),
            ("Queue", "queue", {"inputmode": "numeric", "pattern": "[0-9]*"}),
            ("From offset", "offset", {"inputmode": "numeric", "pattern": "[0-9]*"}),
            ("From time", "time", {"type": "datetime-local", "step": 1}))]
    form = h("form", *fields, h("button", "Show"), action=address("messages"), method="get")
    topic = asked.get("topic", "")
    if not topic:
        return [form, h("p", "Without key, offset and time the newest messages are shown.")]
    _only_if(viewer.reads(topic), f"Get or Sub on Topic:{topic}")
    if broker.topics.select(topic) is None:
        raise _NotThereError(f"There is no topic {topic}.")
    # A queue of an LMQ holds records of other topics.
    found = [one for one in find_messages(broker, asked) if one.topic == topic or viewer.reads(one.topic)]
    rows: list[list[Child]] = [
        [_time(message.store_timestamp), f"{message.queue_id}:{message.queue_offset}", message.tags or "",
         " ".join(message.keys), h("pre", body_text(message)),
         h("details", h("summary", "Properties"), h("pre", "\n".join(
             f"{key}={value}" for key, value in sorted(message.properties.items()))))]
        for message in found]
    last = found[-1] if found else None
    on = h("p", h("a", "Next messages of the queue", href=address(
        "messages", topic=topic, queue=last.queue_id, offset=last.queue_offset + 1))) if (
        last is not None and asked.get("queue")) else None
    return [form, table(("Stored", "Queue and offset", "Tag", "Keys", "Body", "More"), rows,
                        "No message was found.", f"Messages of {topic}"), on]


def _timers(broker: BrokerContext, viewer: _Viewer) -> list[Child]:
    looked_at = itertools.islice(broker.store.timers(), TIMERS_MAX)
    waiting = (timer for timer in looked_at if timer.state != PARKED and viewer.reads(timer.topic))
    found = list(itertools.islice(waiting, ROWS_MAX))
    rows: list[list[Child]] = [
        [_time(timer.due_ms), timer.topic, timer.queue_id, timer.keys, timer.uniq_key] for timer in found]
    more = (
        f"The first {ROWS_MAX} are shown; tailrace timers STORE lists all." if len(found) == ROWS_MAX
        else "Messages that were parked are listed by tailrace timers STORE.")
    titles = ("Due", "Topic", "Queue", "Keys", "Unique key")
    return [table(titles, rows, "No timer is pending.", "Pending timers"), h("p", more)]


def _retention(broker: BrokerContext, viewer: _Viewer) -> list[Child]:
    _only_if(viewer.lists, "List on the cluster, because this page names topics and groups")
    store = broker.store
    view = explain_directory(store.path, store.config, SystemClock(), OsFileSystem())
    return [h("p", "What goes when, and why files stay, as the files say now:"),
            h("ul", *(h("li", line) for line in answer_lines(view, store.path, store.config)))]


def _room(usage: PathUsage) -> str:
    return f"{size_text(usage.total)}, {usage.percent} % used, {size_text(usage.usable)} free"


def _disk(broker: BrokerContext) -> list[Child]:
    store, file_system = broker.store, OsFileSystem()
    usages = store.retention.disk.measure()
    rows: list[list[Child]] = [
        [entry.kind, entry.files, entry.apparent_bytes, entry.allocated_bytes]
        for entry in disk_usage(file_system, store.path, store.config)]
    return [
        _facts({"Directory": store.path} | {f"Disk of {usage.path}": _room(usage) for usage in usages}),
        table(("Kind", "Files", "Length", "On disk"), rows, "There is no file.", "Bytes by kind of file")]
