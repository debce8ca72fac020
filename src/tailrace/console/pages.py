"""The pages of the console: each is a GET without effect, made for every request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import Final, NamedTuple, final
from urllib.parse import parse_qs, unquote, urlsplit

from tailrace import __version__
from tailrace.console.elements import WARN, Child, Titled, address, h, link, notice, page_text
from tailrace.console.figures import Figures
from tailrace.console.groups import dead_letters_page, group_page, groups_page
from tailrace.console.lists import Query
from tailrace.console.messages import message_page, messages_page, search_form
from tailrace.console.overview import REFRESH_S, overview
from tailrace.console.shown import ShownBroker
from tailrace.console.storage import disk_page, retention_page
from tailrace.console.timers import timers_page
from tailrace.console.topics import topic_page, topics_page
from tailrace.console.viewer import ForbiddenError, NotThereError, Viewer, similar_name
from tailrace.console.words import zone
from tailrace.errors import StoreError
from tailrace.observe.http_status import HttpAnswer, May

__all__ = ["HEADERS", "Console", "action_page"]

HTML: Final = "text/html; charset=utf-8"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
                               "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}
"""No script, nothing from elsewhere, no frame: even if a text were taken for HTML."""
_PAGES: Final = {
    "": "Overview", "topics": "Topics", "groups": "Groups", "dead-letters": "Dead letters", "messages": "Messages",
    "timers": "Timers", "retention": "Retention", "disk": "Disk",
}
_PROMISES: Final = ("These pages change nothing.", "Only actions that you confirm change something.")
_DETAILS: Final = {"topics": "Topic", "groups": "Group"}
"""Pages that have pages of their own for a name, with the noun of these."""
_HIDDEN: Final = {"message": "messages"}
"""Pages that the navigation does not name, with the page to which they belong."""


class _Asked(NamedTuple):
    """What a page is made of."""

    broker: ShownBroker
    figures: Figures
    viewer: Viewer
    name: str
    """Name of a topic or a group; "" for the page of all."""
    query: Query


_CONTENTS: Final[dict[str, Callable[[_Asked], list[Child] | Titled]]] = {
    "": lambda one: overview(one.broker, one.figures, one.viewer, one.query),
    "topics": lambda one: topic_page(
        one.broker.store, one.broker.clock, one.figures, one.viewer, one.name) if one.name else topics_page(
        one.broker.store, one.broker.clock, one.figures, one.viewer, one.query),
    "groups": lambda one: group_page(
        one.broker.clock, one.broker.groups, one.broker.topics, one.broker.clients.consumers, one.figures, one.viewer,
        one.name) if one.name else groups_page(one.broker.clock, one.figures, one.viewer, one.query),
    "dead-letters": lambda one: dead_letters_page(one.broker.clock, one.figures, one.viewer),
    "messages": lambda one: messages_page(one.broker.store, one.broker.clock, one.viewer, one.query),
    "message": lambda one: message_page(one.broker.store, one.broker.clock, one.viewer, one.query),
    "timers": lambda one: timers_page(one.broker.store, one.broker.clock, one.viewer, one.query),
    "retention": lambda one: retention_page(one.broker.store, one.broker.clock, one.viewer),
    "disk": lambda one: disk_page(one.broker.store),
}


@final
class Console:
    """Answers requests for ``/console/``; called in a thread, because pages read the store."""

    def __init__(self, broker: ShownBroker | None = None, *, actions: bool = False) -> None:
        """Show a broker; None: it does not serve clients.

        ``actions``: whether pages lead to actions, see `tailrace.console.actions`.
        """
        self._shown = None if broker is None else (broker, Figures(
            broker.store, broker.clock, broker.offsets, broker.clients.consumers, broker.lags, broker.state))
        self._actions = actions

    def __call__(self, target: str, state: str, may: May) -> HttpAnswer:
        """Return the page for a target such as ``/console/topics?from=200``."""
        parts = urlsplit(target)
        page, _, rest = parts.path.removeprefix("/console/").partition("/")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if page == "style.css":
            style = resources.files("tailrace.console").joinpath("style.css").read_bytes()
            return HttpAnswer(HTTPStatus.OK, style, "text/css; charset=utf-8", HEADERS)
        made = partial(_page, actions=self._actions)
        if page not in _CONTENTS or (rest and page not in _DETAILS):
            return made(*self._no_page(page, state))
        name = unquote(rest)
        title = f"{_DETAILS[page]} {name}" if name else "Message" if page in _HIDDEN else _PAGES[page]
        at = _HIDDEN.get(page, page)
        if self._shown is None:
            return made(HTTPStatus.SERVICE_UNAVAILABLE, title, at, [
                notice(WARN, f"The broker does not serve clients: {state}.", more=[link("Look again", address(page))])])
        broker, figures = self._shown
        viewer = Viewer(may, broker.config.broker_cluster_name, acts=self._actions)
        asked = _Asked(broker, figures, viewer, name, query)
        now = broker.clock.now_ms()
        try:
            found = _CONTENTS[page](asked)
            title, content = found if isinstance(found, Titled) else (title, found)
            return made(HTTPStatus.OK, title, at, content, reload_s=REFRESH_S if "live" in query else 0, now_ms=now)
        except ForbiddenError as error:
            return made(HTTPStatus.FORBIDDEN, title, at, [notice(WARN, str(error))])
        except NotThereError as error:
            return made(HTTPStatus.NOT_FOUND, title, at, _not_there(asked, at, error))
        except (StoreError, ValueError) as error:
            return made(HTTPStatus.BAD_REQUEST, title, at, [notice(WARN, f"{error}.")])

    def _no_page(self, page: str, state: str) -> tuple[HTTPStatus, str, str, list[Child]]:
        """Return the answer for a page that is not there; those of actions are made elsewhere."""
        if page != "actions":
            return HTTPStatus.NOT_FOUND, "Not found", "", [h("p", "There is no such page.")]
        if not self._actions:
            return HTTPStatus.NOT_FOUND, "Actions", "", [
                h("p", "Actions are off: this console changes nothing. Start the server with --console-actions.")]
        return HTTPStatus.SERVICE_UNAVAILABLE, "Actions", page, [
            notice(WARN, f"The broker does not serve clients: {state}.")]


def _not_there(asked: _Asked, page: str, error: NotThereError) -> list[Child]:
    """Return what was wrong, the most similar name, and the form that the wrong name was typed into."""
    broker, viewer, query = asked.broker, asked.viewer, dict(asked.query)
    is_search = page == "messages"
    if error.kind == "group":
        similar = similar_name(error.name, filter(viewer.group, sorted(asked.figures.group_names())))
        href = address("groups", similar)
    else:
        sees = viewer.reads if is_search else viewer.topic
        similar = similar_name(error.name, filter(sees, sorted(broker.topics.table.copy())))
        href = address("messages", **{**query, "topic": similar}) if is_search else address("topics", similar)
    text: list[Child] = [f"There is no {error.kind} {error.name}."]
    if similar:
        text += [" Is ", link(similar, href), " meant?"]
    return [
        search_form(broker.topics, viewer, query) if is_search else None, notice(WARN, *text),
        None if is_search else h("p", link(f"All {error.kind}s", address(page)))]


def action_page(status: HTTPStatus, title: str, content: list[Child], reload_s: int = 0) -> HttpAnswer:
    """Return a page of an action; it reloads itself after ``reload_s``, if that is not 0."""
    return _page(status, title, "actions", content, reload_s=reload_s, actions=True)


def _page(
    status: HTTPStatus, title: str, name: str, content: list[Child], *, reload_s: int = 0, now_ms: int = 0,
    actions: bool = False,
) -> HttpAnswer:
    links: list[Child] = [
        h("a", text, href=address(path), aria_current="page" if path.strip("/") == name else None)
        for path, text in (_PAGES | ({"actions/": "Actions"} if actions else {})).items()]
    about = f"Times are in {zone(now_ms)}. " if now_ms else ""
    root = h(
        "html",
        h("head", h("meta", charset="utf-8"), h("title", f"{title} · Tailrace"),
          h("meta", name="viewport", content="width=device-width, initial-scale=1"),
          h("meta", http_equiv="refresh", content=reload_s) if reload_s else None,
          h("link", rel="stylesheet", href=address("style.css"))),
        h("body", h("a", "Skip to the content", href="#content", class_="skip"),
          h("header", h("div", h("strong", "Tailrace"), h("nav", *links, aria_label="Pages"), class_="bar")),
          h("main", h("h1", title), *content, id="content"),
          h("footer", h("small", f"{about}Tailrace {__version__}. {_PROMISES[actions]}"))),
        lang="en")
    return HttpAnswer(status, page_text(root), HTML, HEADERS)
