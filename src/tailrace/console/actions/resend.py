"""Dead letters of a group, sent to their topics again.

A dead letter is sent as mqadmin ``queryMsgById -s`` sends a message: body, tag, keys, unique key and the properties of
the producer stay, and it counts as not yet redelivered. It goes to its original topic, so every group of the topic gets
it. Properties of its earlier deliveries are left out (`is_of_broker`). The dead letter itself stays where it is.

A dead letter of which the topic has a copy that was stored later was sent before: it is left out, unless the user
chooses otherwise. So a job that was stopped, or that a crash ended, can be repeated. Messages are sent in batches of
`BATCH`, each with a line in the audit log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, final

from tailrace.auth.accesses import GROUP, TOPIC, Access, topic_access
from tailrace.broker.core.audit import Audit
from tailrace.console.actions.calls import Calls
from tailrace.console.actions.forms import Action, FieldError, Given, Plan, entry, hidden
from tailrace.console.actions.jobs import Job
from tailrace.console.actions.send_requests import is_of_broker, send, send_header
from tailrace.console.bodies import preview
from tailrace.console.elements import (
    GOOD,
    WARN,
    Child,
    Column,
    address,
    facts,
    h,
    link,
    notice,
    plural,
    table,
)
from tailrace.console.words import moment
from tailrace.errors import CorruptionError, RefusalError, StoreError
from tailrace.formats.commitlog import SysFlag, decode_message, java_string_hash
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_TOPIC, SHARDING_KEY, UNIQ_KEY
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests import table as requests
from tailrace.formats.requests.message_headers import ViewMessageRequestHeader
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExt
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.topic_config import TopicConfigManager

__all__ = ["BATCH", "ResendDeadLetters"]

BATCH: Final = 50
"""Messages between two lines of the audit log."""
PAGE: Final = 50
"""Dead letters of a page, and the most that a form can choose."""
REASONS_MAX: Final = 20
_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK
_ENDING: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
"""Refusals that the next message would get as well."""
READ: Final = requests.Action.GET | requests.Action.SUB
_COLUMNS: Final = (
    Column("Stored", "wide"), Column("Topic", "name"), Column("Keys", "name"), Column("Body"), Column("Sent again"))


_Range = tuple[int, int, int]
"""Queue, first offset and end of dead letters."""


class _Place(NamedTuple):
    """Where a dead letter is."""

    queue_id: int
    offset: int
    phy_offset: int

    @property
    def text(self) -> str:
        return f"{self.queue_id}:{self.offset}"


class _Letter(NamedTuple):
    """A dead letter that its user may see."""

    place: _Place
    message: MessageExt | None
    topic: str
    problem: str
    """Why it cannot be sent; empty if it can."""
    sent_ms: int
    """Store time of a copy that the topic got later; 0 without one."""
    is_known: bool
    """Whether such a copy would have been found."""


@final
class _Tally:
    """What a job has done."""

    def __init__(self) -> None:
        self.sent: list[_Place] = []
        self.topics: Counter[str] = Counter()
        self.skipped = self.gone = self.total = 0
        self.reasons: dict[str, list[str]] = {}
        self.ended = ""
        """Why the job ended early."""

    def fail(self, place: _Place, why: str) -> None:
        self.reasons.setdefault(why if len(self.reasons) < REASONS_MAX else "other reasons", []).append(place.text)


@final
class ResendDeadLetters(Action):
    """Sends dead letters of a group to their topics: those that were chosen, or all."""

    name = "resend"
    title = "Send dead letters again"
    fields = ("group", "which", "letter", "again", "from", "until")

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._running: set[str] = set()

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the dead letters of the group with a box for each."""
        group = given.text("group")
        if not group:
            return [entry("Group", "group", given, required="required"), h("button", "Show its dead letters")]
        ranges = await _ranges(calls, group)
        total = sum(high - low for _, low, high in ranges)
        chosen = set(given.all("letter"))
        start = min(_start(given, ranges), max(total - 1, 0))
        rows: list[list[Child]] = [
            [_box(letter, chosen), *row] for letter, row in await self._letters(calls, group, ranges, start)]
        around = [link(text, address(f"actions/{self.name}", group=group, from_=max(at, 0))) for text, at in (
            ("Older", start - PAGE), ("Newer", start + PAGE)) if 0 <= at < total or (at < 0 < start)]
        if not rows:
            return [notice(GOOD, f"Group {group} has no dead letter."),
                    entry("Another group", "group", Given({}), required="required"),
                    h("button", "Show its dead letters")]
        return [
            hidden("group", group), hidden("from", str(start)),
            table((Column("Choose"), *_COLUMNS), rows, "",
                  f"Dead letters {start + 1:,} to {start + len(rows):,} of {total:,} of group {group}"),
            h("p", *[part for link in around for part in (link, " ")]) if around else None,
            h("label", h("input", type="checkbox", name="again", value="1",
                         checked="checked" if given.text("again") else None),
              " Also those that were sent again before", class_="check"),
            h("button", "Show what would be sent of the chosen ones", name="which", value="chosen"),
            h("button", f"Show what would be sent of all {total:,}", name="which", value="all")]

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return what would be sent where."""
        group, again = given.text("group"), bool(given.text("again"))
        if not group:
            raise FieldError("Group is empty.")
        everything = given.text("which") == "all"
        if not everything and given.text("which") != "chosen":
            raise FieldError("")  # the list of dead letters
        ranges = await _ranges(calls, group)
        ranges = _until(given.text("until"), ranges) if everything else _chosen(given.all("letter"), ranges)
        total = sum(high - low for _, low, high in ranges)
        if not total:
            raise FieldError("Choose at least one dead letter." if not everything
                             else f"Group {group} has no dead letter.")
        found = await self._letters(calls, group, ranges, 0)
        for topic in dict.fromkeys(letter.topic for letter, _ in found if not letter.problem):
            calls.check(RequestCode.SEND_MESSAGE_V2, send_header(calls, topic, b""))
        says = await calls.in_thread(_said, calls.broker.offsets, group, found, total, again)
        nothing = total == len(found) and not any(_is_sent(letter, again) for letter, _ in found)

        async def run(job: Job, calls: Calls) -> list[Child]:
            if group in self._running:
                raise RefusalError(ResponseCode.SYSTEM_BUSY, f"dead letters of group {group} are being sent already")
            self._running.add(group)
            tally = _Tally()
            tally.total = job.total = total
            try:
                await self._send_all(job, calls, group, _batches(ranges), tally, again=again)
            finally:
                self._running.discard(group)
            if tally.ended:
                job.verdict = "Ended early"
            return _result(tally, group)

        ends = given.text("until") or " ".join(f"{queue_id}:{high}" for queue_id, _, high in ranges)
        button = "" if nothing else "Send all of them" if everything else "Send these"
        return Plan(f"Send dead letters of {group} again", says, button, run,
                    carries={"until": [ends]} if everything else {})

    async def _letters(
        self, calls: Calls, group: str, ranges: list[_Range], skip: int
    ) -> list[tuple[_Letter, list[Child]]]:
        """Return a page of dead letters, without their bodies, and what to show of each."""
        found = []
        for place in await calls.in_thread(_places, calls.broker.store, _dlq(group), ranges, skip, PAGE):
            letter = await self._letter(calls, place)
            found.append((letter._replace(message=None), await calls.in_thread(_row, letter)))
        return found

    async def _send_all(
        self, job: Job, calls: Calls, group: str, batches: Iterable[list[_Range]], tally: _Tally, *, again: bool
    ) -> None:
        """Send the dead letters of all batches, until a step fails that the next one would fail as well."""
        store, dlq = calls.broker.store, _dlq(group)
        for batch in batches:
            if tally.ended:
                break
            part = _Tally()
            try:
                places = await calls.in_thread(_places, store, dlq, batch, 0, BATCH)
                missing = sum(high - low for _, low, high in batch) - len(places)
                job.done += missing
                part.gone = missing
                for place in places:
                    tally.ended = self._why_end(job, calls) or await self._send_one(calls, place, part, again=again)
                    if tally.ended:
                        break
                    job.done += 1
            finally:  # a stop of the broker may cancel the job
                self._record(calls, group, batch, part, tally)

    @staticmethod
    def _why_end(job: Job, calls: Calls) -> str:
        if calls.has_left:
            return "your user was deleted or disabled, or its password changed"
        return "it was stopped" if job.stopping else ""

    async def _send_one(self, calls: Calls, place: _Place, part: _Tally, *, again: bool) -> str:
        """Send a dead letter, and note what has become of it. Return why the job must end; empty if it need not."""
        try:
            letter = await self._letter(calls, place)
            if letter.problem or letter.message is None:
                part.fail(place, letter.problem)
                return ""
            if letter.sent_ms and not again:
                part.skipped += 1
                return ""
            properties = _sent_properties(letter.message)
            header = send_header(
                calls, letter.topic, encode_properties(properties),
                _queue(calls.broker.topics, letter.topic, properties), letter.message.sys_flag & _KEPT_FLAGS,
                letter.message.flag)
            stored = await send(calls, header, letter.message.body)
        except TimeoutError:
            part.fail(place, "not answered in time, so it may be stored")
            return "the broker has not answered in time"
        except (RefusalError, StoreError) as error:
            part.fail(place, str(error))
            return str(error) if isinstance(error, RefusalError) and error.code in _ENDING else ""
        part.sent.append(place)
        part.topics[letter.topic] += 1
        if stored.note:
            part.reasons.setdefault(f"sent: {stored.note}", []).append(place.text)
        return ""

    def _record(
        self, calls: Calls, group: str, batch: list[_Range], part: _Tally, tally: _Tally
    ) -> None:
        """Add a batch to the tally, and record it."""
        failed = sum(map(len, part.reasons.values()))
        self._audit.sent(
            calls.user.name, calls.address, self.name,
            [f"{GROUP}:{group}", *(f"{TOPIC}:{topic}" for topic in sorted(part.topics))],
            {"group": group, "deadLetters": " ".join(
                f"{queue_id}:{low}" + (f"-{high - 1}" if high - 1 > low else "") for queue_id, low, high in batch),
             "sent": len(part.sent),
             "sentOffsets": " ".join(_runs(part.sent)), "sentBefore": part.skipped, "failed": failed},
            "failed" if failed and not part.sent else "ok")
        tally.sent += part.sent
        tally.topics.update(part.topics)
        tally.skipped += part.skipped
        tally.gone += part.gone
        for why, places in part.reasons.items():
            tally.reasons.setdefault(why, []).extend(places)

    async def _letter(self, calls: Calls, place: _Place) -> _Letter:
        """Return a dead letter. Raises RefusalError if the user may not see it."""
        answer = await calls.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(place.phy_offset))
        try:
            message = decode_message(answer.body)
        except CorruptionError as error:
            return _Letter(place, None, "", f"it is damaged: {error}", 0, is_known=False)
        topic, topics = message.properties.get(RETRY_TOPIC, ""), calls.broker.topics
        problem = ""
        if not topic:
            problem = "it does not say from which topic it is"
        elif topic.startswith("%") or topics.is_system_topic(topic):
            problem = f"its topic {topic} is one of the broker"
        elif (config := topics.select(topic)) is None:
            problem = f"there is no topic {topic}"
        elif not config.writable:
            problem = f"topic {topic} takes no messages"
        key = message.properties.get(UNIQ_KEY, "")
        known = bool(key) and calls.broker.store.config.message_index_enable and calls.may(topic_access(topic, READ))
        sent_ms = 0
        if known and not problem:
            sent_ms = await calls.in_thread(_later_copy, calls.broker.store, topic, key, place.phy_offset)
        return _Letter(place, message, topic, problem, sent_ms, is_known=known)


def _dlq(group: str) -> str:
    return f"{DLQ_GROUP_TOPIC_PREFIX}{group}"


async def _ranges(calls: Calls, group: str) -> list[_Range]:
    """Return queue, first offset and end of the dead letters of a group. Raises RefusalError."""
    dlq = _dlq(group)
    accesses = Access(TOPIC, dlq, requests.Action.GET), Access(GROUP, group, requests.Action.GET)
    if not any(calls.may(access) for access in accesses):
        raise RefusalError(ResponseCode.NO_PERMISSION, f"Your user needs Get on Group:{group} or Topic:{dlq}.")
    config = calls.broker.topics.select(dlq)
    return await calls.in_thread(_there, calls.broker.store, dlq, 0 if config is None else config.read_queue_nums)


def _there(store: MessageStore, topic: str, queues: int) -> list[_Range]:
    store.wait_dispatched()
    return [
        (queue_id, low, high) for queue_id in range(queues)
        if (low := max(store.queue_of(topic, queue_id).min, 0)) < (
            high := store.queue_of(topic, queue_id).max)]


def _start(given: Given, ranges: list[_Range]) -> int:
    """Return how many dead letters are on the pages before: those that the address says, or before a chosen one."""
    if given.text("from"):
        return given.number("from", "from")
    queue_id, _, offset = given.text("letter").partition(":")
    before = 0
    for queue, low, high in ranges:
        if str(queue) == queue_id and offset.isascii() and offset.isdecimal() and low <= int(offset[:19]) < high:
            return (before + int(offset) - low) // PAGE * PAGE
        before += high - low
    return 0


def _until(text: str, ranges: list[_Range]) -> list[_Range]:
    """Return the ranges up to the ends that a confirmation carries, so that later dead letters are left out."""
    if not text:
        return ranges
    ends = {queue: int(end) for queue, _, end in (part.partition(":") for part in text.split())
            if end.isascii() and end.isdecimal() and len(end) < 20}
    found = [(queue_id, low, min(high, ends.get(str(queue_id), 0))) for queue_id, low, high in ranges]
    return [(queue_id, low, high) for queue_id, low, high in found if low < high]


def _chosen(letters: list[str], ranges: list[_Range]) -> list[_Range]:
    """Return the ranges of chosen dead letters. Raises FieldError."""
    found = set()
    for text in letters:
        queue, separator, offset = text.partition(":")
        if not (separator and queue.isascii() and queue.isdecimal() and offset.isascii() and offset.isdecimal()
                and len(text) < 40):
            raise FieldError(f"{text[:40]!r} is not a dead letter; choose from the list.")
        found.add((int(queue), int(offset)))
    if len(found) > PAGE:
        raise FieldError(f"{len(found)} dead letters are chosen; choose at most {PAGE}, or all.")
    there = {queue: (low, high) for queue, low, high in ranges}
    for queue_id, at in sorted(found):
        low, high = there.get(queue_id, (0, 0))
        if not low <= at < high:
            raise FieldError(f"There is no dead letter {queue_id}:{at} any more.")
    return [(queue_id, at, at + 1) for queue_id, at in sorted(found)]


def _places(
    store: MessageStore, dlq: str, ranges: Iterable[_Range], skip: int, count: int
) -> list[_Place]:
    """Return at most ``count`` places in ranges, without the first ``skip``."""
    found: list[_Place] = []
    for queue_id, low, high in ranges:
        at, skip = low + skip, max(skip - (high - low), 0)
        if at < high and len(found) < count:
            found += [
                _Place(queue_id, message.queue_offset, message.phy_offset)
                for message in store.read(dlq, queue_id, at, max_count=min(high - at, count - len(found)))
                if low <= message.queue_offset < high]
    return found


def _batches(ranges: Iterable[_Range]) -> Iterator[list[_Range]]:
    """Yield ranges of at most `BATCH` dead letters together."""
    batch, room = list[_Range](), BATCH
    for queue_id, low, high in ranges:
        at = low
        while at < high:
            until = min(at + room, high)
            batch.append((queue_id, at, until))
            room -= until - at
            at = until
            if not room:
                yield batch
                batch, room = [], BATCH
    if batch:
        yield batch


def _later_copy(store: MessageStore, topic: str, key: str, phy_offset: int) -> int:
    """Return the store time of a message of a topic with a unique key that was stored after a position; 0: none."""
    return max((message.store_timestamp for message in store.copies(topic, key)
                if message.phy_offset > phy_offset and message.topic == topic), default=0)


def _sent_properties(message: MessageExt) -> dict[str, str]:
    """Return the properties with which a dead letter is sent."""
    return {name: value for name, value in message.properties.items() if not is_of_broker(name)}


def _queue(topics: TopicConfigManager, topic: str, properties: dict[str, str]) -> int:
    """Return the queue of a message with an ordering key, as SelectMessageQueueByHash; -1 without one."""
    key, config = properties.get(SHARDING_KEY), topics.select(topic)
    return -1 if not key or config is None else abs(java_string_hash(key)) % max(config.write_queue_nums, 1)


def _row(letter: _Letter) -> list[Child]:
    message = letter.message
    if message is None:
        return ["-", "-", "-", letter.problem, "-"]
    text = preview(message)
    sent = moment(letter.sent_ms) if letter.sent_ms else "no" if letter.is_known else "unknown"
    return [
        moment(message.store_timestamp), letter.topic or "-", " ".join(message.keys) or "-",
        h("pre", text), letter.problem or sent]


def _box(letter: _Letter, chosen: set[str]) -> Child:
    if letter.problem:
        return "-"
    text = letter.place.text
    return h("label", h("input", type="checkbox", name="letter", value=text,
                        checked="checked" if text in chosen else None), f" {text}", class_="check")


def _is_sent(letter: _Letter, again: bool) -> bool:
    return not letter.problem and (again or not letter.sent_ms)


def _said(
    offsets: ConsumerOffsetManager, group: str, found: list[tuple[_Letter, list[Child]]], total: int, again: bool
) -> list[Child]:
    """Return what would be sent."""
    letters = [letter for letter, _ in found]
    topics = Counter(letter.topic for letter in letters if _is_sent(letter, again))
    before = sum(bool(letter.sent_ms) for letter in letters)
    looked = f" of the first {len(letters)}" if total > len(letters) else ""
    others = {topic: [name for name in offsets.groups_of(topic) if name != group] for topic in topics}
    says: list[Child] = [
        facts({
            "Dead letters": f"{total:,} of group {group}",
            "To": ", ".join(f"{topic} ({count}{looked})" for topic, count in topics.items()) or "no topic",
            f"Sent again before{looked}": f"{before}, {'sent once more' if again else 'left out'}" if before
            else "none",
            "Cannot be sent": f"{sum(bool(letter.problem) for letter in letters)}{looked}"}),
        table((Column("Dead letter"), *_COLUMNS),
              [[letter.place.text, *row] for letter, row in found], "", "Dead letters"),
        h("p", "Body, tag, keys, unique key and the properties of the producer stay. The number of redeliveries begins "
               "at 0. The dead letters themselves stay.")]
    for topic, names in others.items():
        if names:
            says.append(notice(WARN, f"{plural(len(names), 'other group')} of {topic} "
                                     f"{'get' if len(names) > 1 else 'gets'} the messages as well."))
    if any(not letter.is_known and not letter.problem for letter in letters):
        says.append(notice(WARN, "Whether some were sent before is unknown: that needs Get or Sub on their topic "
                                 "and messageIndexEnable=true. They are sent."))
    return says


def _runs(places: list[_Place]) -> Iterator[str]:
    """Yield offsets that follow each other as one text, such as 0:3-9."""
    at = 0
    while at < len(places):
        until = at + 1
        while until < len(places) and places[until][:2] == (places[at].queue_id, places[at].offset + until - at):
            until += 1
        yield places[at].text if until == at + 1 else f"{places[at].text}-{places[until - 1].offset}"
        at = until


def _result(tally: _Tally, group: str) -> list[Child]:
    failed = {why: places for why, places in tally.reasons.items() if not why.startswith("sent: ")}
    count = sum(map(len, failed.values()))
    left = tally.total - len(tally.sent) - tally.skipped - tally.gone - count
    return [
        notice(WARN, f"It ended early: {tally.ended}. Start it again for the rest: what was sent is left out.")
        if tally.ended else None,
        facts({
            "Sent": ", ".join(f"{n:,} to {topic}" for topic, n in tally.topics.items()) or "none",
            "Left out, sent before": f"{tally.skipped:,}", "Not sent": f"{count:,}",
            "Deleted in the meantime": f"{tally.gone:,}" if tally.gone else None, "Not tried": f"{max(left, 0):,}"}),
        table((Column("Reason", "name"), Column("Dead letters", "name")), [
            [why, ", ".join(places[:PAGE]) + ("…" if len(places) > PAGE else "")]
            for why, places in tally.reasons.items()], "", "What to look at") if tally.reasons else None,
        h("p", link("Dead letters of the group", address("actions/resend", group=group)))]
