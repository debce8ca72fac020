"""The pages of messages: those of a topic by time, by key or from a place on, and one message with its body."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final, NamedTuple
from xml.etree.ElementTree import Element

from tailrace.console.action_links import message_actions
from tailrace.console.bodies import preview, shown_body
from tailrace.console.elements import (
    WARN,
    Child,
    Titled,
    address,
    badge,
    card,
    facts,
    fold,
    form,
    h,
    link,
    notice,
    picker,
    plural,
)
from tailrace.console.figures import is_own_topic
from tailrace.console.lists import Query, whole_number
from tailrace.console.timeline import QUEUES_MAX, Place, Timeline
from tailrace.console.topics import owner_of, topic_link
from tailrace.console.viewer import NotThereError, Viewer, only_if
from tailrace.console.words import clock_time, local_time, moment
from tailrace.env.clock import Clock
from tailrace.formats import names as N
from tailrace.model import MessageExt
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfigManager
from tailrace.spellings import time_ms

__all__ = ["message_page", "messages_page", "search_form"]

MESSAGES_MAX: Final = 50
KEYED_MAX: Final = 20
"""Messages of one key, each of which is held in memory with its body."""
KEYS_MAX: Final = 20
"""Keys of a message in a list."""
NAME_MAX: Final = 200
ORIGIN_TOPICS: Final = (N.DLQ_ORIGIN_TOPIC, N.RETRY_TOPIC)
UNIQUE_KEYS: Final = (N.UNIQ_KEY, N.DLQ_ORIGIN_MESSAGE_ID, N.ORIGIN_MESSAGE_ID)


class Shown(NamedTuple):
    """What a list shows of a message."""

    topic: str
    stored_ms: int
    queue_id: int
    offset: int
    tag: str
    keys: list[str]
    body: str
    attempts: int
    origin: str
    """Topic from which a retry or a dead letter comes."""


def _shown(store: MessageStore, message: MessageExt, offset: int) -> Shown:
    return Shown(
        message.topic, store.wall_time_of(message), message.queue_id, offset, (message.tags or "")[:NAME_MAX],
        [key[:NAME_MAX] for key in message.keys[:KEYS_MAX]], preview(message), message.reconsume_times,
        next((message.properties[name] for name in ORIGIN_TOPICS if name in message.properties), ""))


def known_topics(topics: TopicConfigManager, viewer: Viewer) -> list[str]:
    """Return topics that a field suggests: own ones that the user may read, then dead letters."""
    names = sorted(topics.table.copy())
    return viewer.suggested(itertools.chain(
        (name for name in names if is_own_topic(topics, name)),
        (name for name in names if name.startswith(N.DLQ_GROUP_TOPIC_PREFIX))))


def search_form(topics: TopicConfigManager, viewer: Viewer, asked: Query) -> Element:
    """Return the form that looks for messages."""
    def field(text: str, name: str, **more: str | int) -> Element:
        return h("label", text, h("input", name=name, value=asked.get(name, ""), **more))

    rare = fold(
        "Queue, offset, time",
        h("div", field("Queue", "queue", inputmode="numeric", pattern="[0-9]*"),
          field("From offset", "offset", inputmode="numeric", pattern="[0-9]*"),
          h("label", "From time", h("input", name="time", type="datetime-local", step=1, value=_time_value(asked))),
          class_="fields"),
        is_open=any(asked.get(name) for name in ("queue", "offset", "time")))
    return form(
        "messages", picker("Topic", "topic", asked.get("topic", ""), known_topics(topics, viewer), required="required"),
        field("Key or message id", "key", autocomplete="off", autocapitalize="none", spellcheck="false"), rare)


def _time_value(asked: Query) -> str:
    """Return the field ``time`` as a browser reads it; "" for another text, which an error names."""
    try:
        return local_time(time_ms(asked["time"])).replace(" ", "T") if asked.get("time") else ""
    except ValueError:
        return ""


def messages_page(store: MessageStore, clock: Clock, viewer: Viewer, asked: Query) -> Titled:
    """Return the messages that a query asks for."""
    looking = search_form(store.topics, viewer, asked)
    topic = asked.get("topic", "")
    if not topic:
        return Titled("Messages", [looking, h("p", "Choose a topic to see its newest messages.")])
    only_if(viewer.reads(topic), f"Get or Sub on Topic:{topic}")
    if store.topics.select(topic) is None:
        raise NotThereError("topic", topic)
    try:
        title, found, around = _found(store, topic, asked)
    except ValueError as error:
        return Titled("Messages", [looking, notice(WARN, f"{error}.")])
    # A queue of an LMQ holds records of other topics.
    rows: list[Child] = [_row(clock, topic, one) for one in found if one.topic == topic or viewer.reads(one.topic)]
    owner = owner_of(topic)
    about: list[Child] = [h("strong", title)]
    if owner and viewer.group(owner):
        about += [" of group ", link(owner, address("groups", owner))]
    elif viewer.topic(topic):
        about += [" of ", topic_link(topic)]
    page = "Dead letters" if topic.startswith(N.DLQ_GROUP_TOPIC_PREFIX) else "Retries" if owner else "Messages"
    return Titled(f"{page} of {owner or topic}", [
        looking, h("p", h("span", *about), *around, class_="links"),
        h("ol", *rows, class_="messages") if rows else h("p", "No message was found.", class_="empty"),
        h("p", *_copied(around), class_="links") if len(rows) > 5 else None])


def _copied(around: list[Child]) -> list[Child]:
    """Return links once more, for the end of a list."""
    return [link(one.text or "", one.get("href", "")) for one in around if isinstance(one, Element)]


def _found(store: MessageStore, topic: str, asked: Query) -> tuple[str, list[Shown], list[Child]]:
    """Return a title, messages with the newest first, and links to others. Raises ValueError for a wrong field."""
    if asked.get("key"):
        keyed = store.query_message(topic, asked["key"], KEYED_MAX)
        more = f", the newest {KEYED_MAX}" if len(keyed) == KEYED_MAX else ""
        return (f"{plural(len(keyed), 'message')} with the key {asked['key'][:NAME_MAX]}{more}",
                [_shown(store, one, one.queue_offset) for one in reversed(keyed)], [])
    queue = whole_number(asked, "queue") if asked.get("queue") else -1
    if asked.get("queue") and queue < 0:
        raise ValueError(f"queue is {queue}, which no queue has")
    timeline = Timeline(
        store, topic, _queues_of(store, topic) if queue < 0 else [queue], partial(_shown, store))
    count, is_newest, goes_on = MESSAGES_MAX + 1, False, False
    if asked.get("before"):
        found = timeline.before(Place.parse(asked["before"], "before"), count)
    elif any(asked.get(name) for name in ("after", "offset", "time")):
        goes_on = True
        if asked.get("after"):
            found = timeline.after(Place.parse(asked["after"], "after"), count)
        elif asked.get("offset"):
            found = timeline.from_offset(whole_number(asked, "offset"), count)
        else:
            found = timeline.from_time(time_ms(asked["time"], "time"), count)
    else:
        found, is_newest = timeline.newest(count), True
    has_more, page = len(found) > MESSAGES_MAX, found[:MESSAGES_MAX]
    page = page[::-1] if goes_on else page
    around: list[Child] = []
    query: dict[str, str | int] = {"topic": topic, "queue": asked.get("queue", "")}
    if page and not is_newest and (has_more or not goes_on):
        around.append(link("Newer", address("messages", **query, after=str(page[0][0]))))
    if page and (has_more or goes_on):
        around.append(link("Older", address("messages", **query, before=str(page[-1][0]))))
    if not is_newest:
        around.append(link("Newest", address("messages", **query)))
    return ("Newest messages" if is_newest else "Messages"), [one for _, one in page], around


def _queues_of(store: MessageStore, topic: str) -> list[int]:
    config = store.topics.select(topic)
    assert config is not None
    if topic.startswith(N.LMQ_PREFIX):
        return [0]
    used = {queue_id for name, queue_id, _, _ in store.queues() if name == topic}
    return sorted(used)[:QUEUES_MAX]


def _key_links(topic: str, keys: list[str]) -> list[Child]:
    return [link(key, address("messages", topic=topic, key=key), class_="key-link") for key in keys]


def _row(clock: Clock, topic: str, one: Shown) -> Element:
    now = clock.now_ms()
    href = address("message", topic=topic, queue=one.queue_id, offset=one.offset)
    if topic.startswith(N.LMQ_PREFIX):
        href = address("message", topic=topic, queue=0, offset=one.offset)
    return h(
        "li",
        h("div", link(moment(one.stored_ms, "milliseconds"), href),
          h("span", clock_time(one.stored_ms, now), class_="soft"),
          h("span", f"{one.queue_id}:{one.offset}", class_="soft", title="Queue and offset"),
          badge(one.tag) if one.tag else None,
          h("span", f"from {one.origin}", class_="soft") if one.origin and one.origin != topic else None,
          h("span", plural(one.attempts, "retry", "retries"), class_="soft") if one.attempts else None,
          *_key_links(one.origin if owner_of(topic) and one.origin else topic, one.keys), class_="line"),
        h("pre", one.body))


# -- one message


def message_page(store: MessageStore, clock: Clock, viewer: Viewer, asked: Query) -> Titled:
    """Return the page of one message. Raises ValueError for a wrong field."""
    topic = asked.get("topic", "")
    only_if(viewer.reads(topic), f"Get or Sub on Topic:{topic}")
    if store.topics.select(topic) is None:
        raise NotThereError("topic", topic)
    queue_id, offset = (whole_number({name: asked.get(name, "")}, name) for name in ("queue", "offset"))
    found = Timeline(store, topic, [queue_id], lambda one, _: one).at(offset)
    if found is None or (found.shown.topic != topic and not viewer.reads(found.shown.topic)):
        return Titled("Message", [
            notice(WARN, f"Queue {queue_id} of {topic} has no message with offset {offset:,}. It may have expired."),
            h("p", link("Messages of the topic", address("messages", topic=topic)))])
    message = found.shown
    noun = "Dead letter" if topic.startswith(N.DLQ_GROUP_TOPIC_PREFIX) else "Message"
    return Titled(f"{noun} {message.queue_id}:{offset} of {owner_of(topic) or topic}", [
        _neighbours(store, viewer, topic, found.place), message_actions(viewer, topic, queue_id, offset),
        card("Body", *shown_body(message)), _about(store, clock, viewer, topic, message, offset), _properties(message)])


def _neighbours(store: MessageStore, viewer: Viewer, topic: str, place: Place) -> Element:
    """Return links to the messages before and after one, by time."""
    timeline = Timeline(store, topic, _queues_of(store, topic), lambda one, at: (one.topic, one.queue_id, at))
    links: list[Child] = []
    for text, found in (("Older", timeline.before(place, 1)), ("Newer", timeline.after(place, 1))):
        for _, (name, queue_id, offset) in found:
            if name == topic or viewer.reads(name):
                links.append(link(text, address("message", topic=topic, queue=queue_id, offset=offset)))
    around = link("Messages around it", address("messages", topic=topic, before=str(
        place._replace(queue_offset=place.queue_offset + 1))))
    return h("p", *links, around, class_="links")


def _about(store: MessageStore, clock: Clock, viewer: Viewer, topic: str, message: MessageExt, offset: int) -> Element:
    properties, owner = message.properties, owner_of(topic)
    origin = next((properties[name] for name in ORIGIN_TOPICS if name in properties), "") if owner else ""
    unique = next((properties[name] for name in UNIQUE_KEYS if name in properties), "")
    keys = message.keys
    host, port = message.born_host
    now, stored_ms = clock.now_ms(), store.wall_time_of(message)
    original = link("Look for the original", address("messages", topic=origin, key=unique)) if (
        origin and unique and viewer.reads(origin)) else None
    return card("About", facts({
        "Topic": topic_link(topic) if viewer.topic(topic) else topic,
        "Group": link(owner, address("groups", owner)) if owner and viewer.group(owner) else owner or None,
        "Comes from": [topic_link(origin), " ", original] if origin else None,
        "Keys": h("span", *_key_links(origin or topic, [key[:NAME_MAX] for key in keys[:KEYS_MAX]]), class_="keys-of")
        if keys else "none",
        "Tag": badge(message.tags) if message.tags else "none",
        "Stored": [moment(stored_ms, "milliseconds"), " ", clock_time(stored_ms, now)],
        "Sent": [moment(message.born_timestamp, "milliseconds"), f" by {host}:{port}"],
        "Queue and offset": f"{message.queue_id}:{offset}",
        "Message id": h("code", unique) if unique else None,
        "Retries": message.reconsume_times or None,
    }))


def _properties(message: MessageExt) -> Element:
    pairs: dict[str, Child] = dict(sorted(message.properties.items()))
    return card("Properties", facts(pairs) if pairs else h("p", "It has none."))
