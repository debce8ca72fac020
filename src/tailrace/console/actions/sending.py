"""A test message: one message of a form, sent with request 310 as a producer sends it."""

from __future__ import annotations

from typing import Final, final

from tailrace.auth.accesses import topic_access
from tailrace.broker.core.audit import Audit
from tailrace.console.actions.calls import Calls
from tailrace.console.actions.forms import Action, FieldError, Given, Plan, area, entry
from tailrace.console.actions.jobs import Job
from tailrace.console.actions.send_requests import GROUP, is_of_broker, send, send_header
from tailrace.console.elements import Child, address, facts, h, link
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.formats.names import KEYS, TAGS, UNIQ_KEY
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests import table as requests
from tailrace.kernels.properties import message_properties
from tailrace.model import Message
from tailrace.spellings import meant

__all__ = ["BODY_MAX", "SendTestMessage"]

BODY_MAX: Final = 64 << 10
"""Bytes of the body of a test message."""
SHOWN_MAX: Final = 2_000
_OF_FIELDS: Final = frozenset({KEYS, TAGS, UNIQ_KEY})


@final
class SendTestMessage(Action):
    """Sends a message to a topic that exists."""

    name = "send-message"
    title = "Send a test message"
    fields = ("topic", "tags", "keys", "properties", "body")

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the fields."""
        return [
            entry("Topic", "topic", given, required="required"), entry("Tag", "tags", given),
            entry("Keys, with blanks between them", "keys", given),
            area("Properties, one NAME=VALUE a line", "properties", given, rows=2),
            area(f"Body, at most {BODY_MAX // 1024} KiB", "body", given, rows=6, required="required"),
            h("button", "Show what would be sent")]

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return the message as consumers will see it."""
        topic, body = given.text("topic"), given.raw("body").encode()
        if not topic or not body:
            raise FieldError(f"{'Body' if topic else 'Topic'} is empty.")
        if len(body) > BODY_MAX:
            raise FieldError(f"Body has {len(body):,} bytes, over the limit of {BODY_MAX:,}; send larger messages with "
                             "tailrace send.")
        try:
            message = Message(topic=topic, body=body, tags=given.text("tags") or None, keys=given.text("keys").split(),
                              properties=_properties(given))
            properties = message_properties(message, calls.broker.entropy.bytes(16).hex().upper())
        except MessageIllegalError as error:
            raise FieldError(f"{error}.") from None
        header = send_header(calls, topic, properties)
        calls.check(RequestCode.SEND_MESSAGE_V2, header)
        config = calls.broker.topics.select(topic)
        if config is None:
            hint = await calls.in_thread(_meant, calls, topic)
            raise FieldError(f"There is no topic {topic}{hint or '.'}")
        if calls.broker.topics.is_system_topic(topic) or not config.writable:
            raise FieldError(f"Topic {topic} takes no messages of users.")
        groups = await calls.in_thread(calls.broker.offsets.groups_of, topic)
        text = given.raw("body")
        says: list[Child] = [
            facts({"Topic": topic, "Tag": message.tags or "none", "Keys": " ".join(message.keys) or "none",
                   "Properties": " ".join(f"{key}={value}" for key, value in message.properties.items()) or "none",
                   "Size": f"{len(body):,} bytes",
                   "Groups that get it": f"{len(groups)}: real consumers handle it as any message" if groups
                   else "none has consumed this topic yet"}),
            h("pre", text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text):,} characters)",
              tabindex=0, role="region", aria_label="Body")]

        async def run(_: Job, calls: Calls) -> list[Child]:
            result, place = "failed", None
            try:
                place = await send(calls, header, body)
                result = "ok"
            except RefusalError as error:
                result = f"failed: {error.remark}"
                raise
            except TimeoutError:
                result = "not answered in time"
                raise
            finally:
                self._audit.sent(
                    calls.user.name, calls.address, self.name, [topic_access(topic, requests.Action.PUB).key],
                    {"group": GROUP, "bytes": len(body), "keys": " ".join(message.keys)[:200],
                     **({} if place is None else {"queueId": place.queue_id, "queueOffset": place.queue_offset})},
                    result)
            return [facts({"Topic": topic, "Queue and offset": f"{place.queue_id}:{place.queue_offset}",
                           "Message id": place.unique_key, "Offset message id": place.msg_id,
                           "Durable": place.note or "as the broker promises it to every producer"}),
                    h("p", link("Look at it", address(
                        "message", topic=topic, queue=place.queue_id, offset=place.queue_offset)))]

        return Plan(f"Send a message to {topic}", says, "Send this message", run)


def _meant(calls: Calls, topic: str) -> str:
    """Return a hint to the most similar topic to which the user may send."""
    return meant(topic, [
        name for name in list(calls.broker.topics.table) if calls.may(topic_access(name, requests.Action.PUB))])


def _properties(given: Given) -> dict[str, str]:
    """Return the properties. Raises FieldError."""
    properties = given.pairs("properties", "Property")
    for name in properties:
        if is_of_broker(name) or name in _OF_FIELDS:
            raise FieldError(f"Property {name} is one of the broker; choose another name.")
    return properties
