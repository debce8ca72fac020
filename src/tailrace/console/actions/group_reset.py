"""Reset of the offsets of a group: request 222, as ``tailrace group reset`` sends it."""

from __future__ import annotations

from typing import Final, final

from tailrace.auth.accesses import group_access, topic_access
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.console.actions.calls import Calls
from tailrace.console.actions.forms import Action, FieldError, Given, Plan, choice, entry
from tailrace.console.actions.jobs import Job
from tailrace.console.elements import Child, Column, facts, h, picker, table
from tailrace.console.words import local_time
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests import table as requests
from tailrace.formats.requests.consumer_headers import ResetOffsetRequestHeader
from tailrace.spellings import time_ms

__all__ = ["ResetGroup"]

ROWS_MAX: Final = 200
SUGGESTED_MAX: Final = 100
READ: Final = requests.Action.GET | requests.Action.SUB
_PLACES: Final = (
    ("first", "the first message"), ("last", "the end, so that waiting messages are skipped"),
    ("time", "the first message stored at a time"))


@final
class ResetGroup(Action):
    """Sets the offsets of a group in a topic to the first message, the end, or a time."""

    name = "reset-group"
    title = "Reset a group"
    fields = ("group", "topic", "to", "time", "queue")

    def __init__(self, offsets: GroupOffsetsProcessor) -> None:
        self._offsets = offsets

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the fields; topics that the group has consumed are suggested."""
        group, topics = given.text("group"), list[str]()
        if group and calls.may(group_access(group, READ)):
            topics = [name for name in (await calls.in_thread(calls.broker.offsets.topics_of, group))[:SUGGESTED_MAX]
                      if name[0] != "%" and calls.may(topic_access(name, READ))]
        topic = given.text("topic") or (topics[0] if len(topics) == 1 else "")
        return [
            entry("Group", "group", given, required="required"),
            picker("Topic", "topic", topic, topics, required="required"),
            choice("To", "to", given, _PLACES),
            entry("Time, if you chose one", "time", given, placeholder="2026-01-31T12:00"),
            entry("Only this queue", "queue", given, inputmode="numeric", pattern="[0-9]*"),
            h("button", "Show what would change")]

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return the offsets before and after."""
        header = _header(given)
        broker, group, topic = calls.broker, header.group, header.topic
        calls.check(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        after = await calls.in_thread(self._offsets.planned, header)
        rows: list[list[Child]] = []
        skipped = again = 0
        for queue_id, offset in sorted(after.items()):
            before = broker.offsets.query(group, topic, queue_id)
            change = offset - before if before >= 0 else 0
            skipped, again = skipped + max(change, 0), again + max(-change, 0)
            rows.append([queue_id, before if before >= 0 else "none", offset, _words(change)])
        members = broker.clients.consumers.find(group)
        online = 0 if members is None else len(members.client_ids())
        says: list[Child] = [
            facts({"Group": group, "Topic": topic, "To": _place(header), "Skipped": f"{skipped:,} messages",
                   "Delivered again": f"{again:,} messages",
                   "Members": f"{online} connected; they continue at the new offsets" if online else "none connected"}),
            table((Column("Queue", "number"), Column("Offset now", "number"), Column("Offset after", "number"),
                   Column("Change", "number")), rows[:ROWS_MAX], "There is no queue.",
                  f"Queues of {topic}{'' if len(rows) <= ROWS_MAX else f' (the first {ROWS_MAX})'}"),
            h("p", "The offsets are those of this moment: messages that arrive before you confirm move the end.")]

        async def run(_: Job, calls: Calls) -> list[Child]:
            answer = await calls.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            done = [(fastjson.loads(queue)["queueId"], offset)
                    for queue, offset in fastjson.loads(answer.body)["offsetTable"].items()]
            return [h("p", f"Group {group} continues in {topic} at:"), table(
                (Column("Queue", "number"), Column("Offset", "number")), map(list, sorted(done)[:ROWS_MAX]),
                "There is no queue.", "New offsets")]

        return Plan(f"Reset group {group}", says, "Set these offsets", run)


def _words(change: int) -> str:
    if not change:
        return "none"
    return f"skips {change:,}" if change > 0 else f"delivers {-change:,} again"


def _place(header: ResetOffsetRequestHeader) -> str:
    if header.timestamp <= 0:
        return "the end" if header.timestamp else "the first message"
    return f"the first message stored at {local_time(header.timestamp)} or later"


def _header(given: Given) -> ResetOffsetRequestHeader:
    """Return the request. Raises FieldError."""
    group, topic, to = given.text("group"), given.text("topic"), given.text("to")
    if not group or not topic:
        raise FieldError(f"{'Topic' if group else 'Group'} is empty.")
    if to not in dict(_PLACES):
        raise FieldError("To is neither first nor last nor time.")
    timestamp = 0 if to == "first" else -1
    if to == "time":
        try:
            timestamp = time_ms(given.text("time"), "Time")
        except ValueError as error:
            raise FieldError(f"{error}.") from None
    queue_id = given.number("queue", "Queue", most=(1 << 31) - 1) if given.text("queue") else -1
    return ResetOffsetRequestHeader(group, topic, timestamp, is_force=True, queue_id=queue_id)
