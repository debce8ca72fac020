"""Creation and change of a topic: request 17, as ``tailrace topic create`` and mqadmin updateTopic send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tailrace.broker.admin.topics import TopicsProcessor
from tailrace.console.actions.calls import Calls
from tailrace.console.actions.forms import Action, FieldError, Given, Plan, area, choice, entry
from tailrace.console.actions.jobs import Job
from tailrace.console.elements import WARN, Child, Column, address, h, link, notice, table
from tailrace.formats import fastjson
from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    CreateTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.left_over_queues import left_over_note, not_consumed
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfig

__all__ = ["PutTopic"]

QUEUES_MAX: Final = 1_024
_PERMS: Final = (("6", "read and write"), ("4", "read only: sends are refused"), ("2", "write only: pulls are refused"))


@final
class PutTopic(Action):
    """Creates a topic, or changes its queues, its permission and its attributes."""

    name = "put-topic"
    title = "Create or change a topic"
    fields = ("topic", "read", "write", "perm", "attributes")

    def __init__(self, topics: TopicsProcessor) -> None:
        self._topics = topics

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the fields, filled with the topic as it is if the address names one."""
        name = given.text("topic")
        present = await _present(calls, name) if name and "read" not in given.values else None
        read, write, perm, attributes = "4", "4", "6", ""
        if present is not None:
            read, write, perm = str(present.read_queue_nums), str(present.write_queue_nums), str(present.perm & 6)
            attributes = "\n".join(f"{key}={value}" for key, value in sorted(present.attributes.items()))
        numbers = {"inputmode": "numeric", "pattern": "[0-9]+", "required": "required"}
        return [
            entry("Topic", "topic", given, required="required"),
            entry("Queues to read", "read", given, read, **numbers),
            entry("Queues to write", "write", given, write, **numbers),
            choice("Permission", "perm", given, _PERMS, perm),
            area("Attributes, one NAME=VALUE a line", "attributes", given, attributes, rows=4,
                 placeholder="message.type=FIFO"),
            h("button", "Show what would change")]

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return the topic before and after."""
        name = given.text("topic")
        if not name:
            raise FieldError("Topic is empty.")
        read, write = (given.number(field, f"Queues to {field}", 0, QUEUES_MAX) for field in ("read", "write"))
        perm, wanted = given.text("perm"), _attributes(given)
        if perm not in dict(_PERMS):
            raise FieldError("Permission is neither 6 nor 4 nor 2.")
        present = calls.broker.topics.select(name)
        header = _header(name, read, write, int(perm), wanted, present)
        request = calls.check(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        after, _ = self._topics.planned_topic(calls.channel, request)
        before = {} if present is None else _members(present)
        rows: list[list[Child]] = [
            [member, before.get(member, "-"), value] for member, value in _members(after).items()]
        rows += [[member, value, "removed"] for member, value in before.items() if member not in _members(after)]
        changed = sum(row[1] != row[2] for row in rows)
        columns = Column("What", "name"), Column("Now", "name"), Column("After", "name")
        says: list[Child] = [table(columns, rows, "", f"Topic {name}")]
        if present is not None and not changed:
            says.insert(0, h("p", "Nothing would change."))
        if present is not None and read < present.read_queue_nums and (
            note := await calls.in_thread(_left_over, calls.broker.store, calls.broker.offsets, name, read)
        ):
            says.append(notice(WARN, f"{note}."))

        async def run(_: Job, calls: Calls) -> list[Child]:
            answer = await calls.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            return [h("p", f"Topic {name} is {'created' if present is None else 'changed'}. ",
                      link("Look at it", address("topics", name))),
                    notice(WARN, answer.remark) if answer.remark else None]

        doing = "Create" if present is None else "Change"
        button = f"{doing} the topic" if present is None or changed else ""
        return Plan(f"{doing} topic {name}", says, button, run, seen=str(rows))


def _left_over(store: MessageStore, offsets: ConsumerOffsetManager, name: str, read: int) -> str:
    """Return which messages would not be read any more if a topic had fewer queues to read; empty for none."""
    store.wait_dispatched()
    found = store.left_over_queues({name: read}).get(name, [])
    return left_over_note(name, found, not_consumed(offsets, {name: found})[name])


async def _present(calls: Calls, name: str) -> TopicConfig | None:
    """Return a topic that the user may Get. Raises RefusalError if it may not."""
    answer = await calls.ask(
        RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(name),
        ok=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
    return TopicConfig.from_json(fastjson.loads(answer.body)) if answer.code == ResponseCode.SUCCESS else None


def _header(
    name: str, read: int, write: int, perm: int, wanted: Mapping[str, str], present: TopicConfig | None
) -> CreateTopicRequestHeader:
    """Return the request that makes the topic so. Members that the form does not have stay as they are."""
    before = {} if present is None else present.attributes
    changes = [f"+{key}={value}" for key, value in wanted.items() if before.get(key) != value]
    changes += [f"-{key}" for key in before if key not in wanted]
    made = TopicConfig(topic_name=name) if present is None else present
    return CreateTopicRequestHeader(
        name, AUTO_CREATE_TOPIC_KEY_TOPIC, read, write, perm | made.perm & ~6, made.topic_filter_type,
        made.topic_sys_flag, made.order, ",".join(changes))


def _members(config: TopicConfig) -> dict[str, str]:
    return {
        "Queues to read": str(config.read_queue_nums), "Queues to write": str(config.write_queue_nums),
        "Permission": dict(_PERMS).get(str(config.perm & 6), str(config.perm)),
        **{f"Attribute {key}": value for key, value in sorted(config.attributes.items())}}


def _attributes(given: Given) -> dict[str, str]:
    """Return the attributes. Raises FieldError."""
    attributes = given.pairs("attributes", "Attribute")
    for name, value in attributes.items():
        if "," in name + value:
            raise FieldError(f"Attribute {f'{name}={value}'[:60]!r}: write NAME=VALUE, without a comma.")
    return attributes
