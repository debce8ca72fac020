"""Which CommitLog files may be deleted, and why the others stay: facts in, a verdict per file out.

A pass is triggered by the hour (``deleteWhen``), by the disks (``store.retention.disk_state``), by hand or
by a request for a number of bytes. It takes the files in order, oldest first. It deletes expired files, or
any file if deletion is forced (``clean_at_once``), or any file without a pin for a request, and ends at the
first file that stays. The last file always stays. Rules, the first match decides:

    the last file                                    kept: the log is written there
    after a file that stays                          kept: only the oldest file is ever deleted
    not flushed yet                                  kept
    records without units                            kept: no client has seen them, and no pin knows them
    expired or released, not dispatched, not forced  kept: its queues would lack messages
    expired, no pin                                  deletable
    no topic needs a message of it, no pin           deletable: the topics have released all of them
    requested, pinned                                kept: a request never overrides a pin
    requested, not dispatched                        kept: its queues would lack messages
    requested                                        deletable, whatever its age and its topics
    a topic keeps its messages longer                kept, as if it had not expired
    expired, pinned, not forced                      kept: pins win over age
    forced, pinned, policy refuse-writes             kept: puts are refused instead
    forced                                           deletable; counted as forced if the file had
                                                     not expired or is pinned
    otherwise                                        kept: not expired

Nothing here reads a clock or a disk.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.store.retention.pins import Pin, PinKind, PinPolicy, held_by
from tailrace.store.retention.topic_rules import TopicNeeds

__all__ = [
    "MANUAL_DELETE_TIMES", "NO_FILE", "Rule", "SegmentFacts", "SegmentVerdict", "Trigger", "explain",
    "is_time_to_delete", "segment_time", "select_to_free",
]

MANUAL_DELETE_TIMES: Final = 20
"""Number of passes that one request by hand starts."""
NO_FILE: Final = "there is no file"
"""Reason why nothing is deleted in a log without files."""
_HOUR_MS: Final = 3_600_000


class Rule(enum.Enum):
    """Why a file is deletable or stays."""

    LAST_FILE = "it is the last file"
    BEHIND_KEPT = "an older file stays"
    NOT_FLUSHED = "it is not flushed yet"
    NOT_DISPATCHED = "its queues are not written yet"
    EXPIRED = "it expired"
    RELEASED = "no topic keeps a message of it"
    KEPT_BY_TOPIC = "a topic keeps its messages longer"
    PINNED = "it expired and is pinned"
    HELD = "it is pinned"
    REFUSED = "it is pinned by what must not be lost"
    FORCED = "space is short"
    REQUESTED = "its space is requested"
    NOT_EXPIRED = "it has not expired"

    @property
    def deletable(self) -> bool:
        """Return True if a file under this rule may be deleted."""
        return self in {Rule.EXPIRED, Rule.RELEASED, Rule.FORCED, Rule.REQUESTED}


class Trigger(NamedTuple):
    """Why a pass is made."""

    time_up: bool = False
    space: bool = False
    manual: bool = False
    clean_at_once: bool = False
    """Files are deleted before they expire (forced)."""
    requested: bool = False
    """Files without a pin are deleted before they expire, until the requested bytes are freed."""

    @property
    def any(self) -> bool:
        """Return True if there is a reason for a pass."""
        return self.time_up or self.space or self.manual or self.requested


class SegmentFacts(NamedTuple):
    """A CommitLog file as a pass sees it; ``time_ms`` is when its last message was stored."""

    path: str
    file_from_offset: int
    size: int
    time_ms: int
    time_source: str
    flushed: bool = True
    dispatched: bool = True
    """The units of its records are durable."""
    has_units: bool = True
    """Its records have units, in memory at least."""
    allocated: int = 0
    """Bytes that it takes on the disk."""

    @property
    def until(self) -> int:
        """Position after its last byte."""
        return self.file_from_offset + self.size


class SegmentVerdict(NamedTuple):
    """What a pass does with a file."""

    facts: SegmentFacts
    rule: Rule
    expires_ms: int
    pins: tuple[Pin, ...] = ()
    forced: bool = False
    """The file is deleted although it has not expired or is pinned."""

    @property
    def why_kept(self) -> str:
        """Return file, rule and pins in words, for a file that stays."""
        held = f": {held_by(self.pins)}" if self.rule in {Rule.PINNED, Rule.HELD, Rule.REFUSED} else ""
        return f"{self.facts.path} stays, {self.rule.value}{held}"


def is_time_to_delete(delete_when: str, hour: int) -> bool:
    """Return True if ``hour`` of the local day is in ``delete_when``, hours separated by ``;``."""
    return any(int(listed) == hour for listed in delete_when.split(";"))


def segment_time(
    expire_by: str, next_store_timestamp_ms: int, mtime_ms: int, now_ms: int
) -> tuple[int, str]:
    """Return (upper bound of the store time of the last message of a file, source of that time).

    The bound is the store time of the first message after the file: no scan is needed, and a copied file
    does not become younger. The modification time of the file is used instead if ``expire_by`` says so, if
    no message follows the file, or if the store time is in the future because the clock was wrong once.
    """
    if expire_by == "storeTimestamp" and 0 < next_store_timestamp_ms <= now_ms:
        return next_store_timestamp_ms, "storeTimestamp"
    return mtime_ms, "mtime"


def explain(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    reserved_hours: float,
    clean_at_once: bool,
    requested: bool = False,
    pins: Sequence[Pin] = (),
    policies: Mapping[PinKind, PinPolicy],
    topics: TopicNeeds | None = None,
) -> list[SegmentVerdict]:
    """Return the verdict for each file, oldest first, as a pass would find it at ``now_ms``.

    Pass no ``topics`` if no topic has a rule of its own.
    """
    found: list[SegmentVerdict] = []
    kept = False
    for number, facts in enumerate(segments):
        expires_ms = facts.time_ms + round(reserved_hours * _HOUR_MS)
        holding = tuple(pin for pin in pins if pin.phy_offset < facts.until)
        rule = _rule(
            facts, last=number == len(segments) - 1, kept=kept,
            age=_age(facts, expired=now_ms >= expires_ms, topics=topics), pinned=bool(holding),
            clean_at_once=clean_at_once, requested=requested,
            refused=any(policies[pin.kind] is PinPolicy.REFUSE_WRITES for pin in holding))
        kept = kept or not rule.deletable
        found.append(SegmentVerdict(
            facts, rule, expires_ms, holding, rule in {Rule.FORCED, Rule.REQUESTED}))
    return found


def _age(facts: SegmentFacts, *, expired: bool, topics: TopicNeeds | None) -> Rule:
    """Return the rule by age alone: EXPIRED, RELEASED, KEPT_BY_TOPIC or NOT_EXPIRED."""
    if topics is not None and topics.own_from < facts.until:
        return Rule.KEPT_BY_TOPIC if expired else Rule.NOT_EXPIRED
    if expired:
        return Rule.EXPIRED
    released = topics is not None and topics.default_from >= facts.until
    return Rule.RELEASED if released else Rule.NOT_EXPIRED


def _rule(
    facts: SegmentFacts, *, last: bool, kept: bool, age: Rule, pinned: bool,
    clean_at_once: bool, requested: bool, refused: bool,
) -> Rule:
    """Return the rule for a file by the table in the head of this module."""
    if last:
        return Rule.LAST_FILE
    if kept:
        return Rule.BEHIND_KEPT
    if not facts.flushed:
        return Rule.NOT_FLUSHED
    if not facts.has_units:
        return Rule.NOT_DISPATCHED
    if age.deletable and not pinned and (facts.dispatched or not clean_at_once):
        return age if facts.dispatched else Rule.NOT_DISPATCHED
    if requested and not clean_at_once:
        if pinned:
            return Rule.PINNED if age.deletable else Rule.HELD
        return Rule.REQUESTED if facts.dispatched else Rule.NOT_DISPATCHED
    if not clean_at_once:
        return Rule.PINNED if age.deletable else age
    return Rule.REFUSED if refused else Rule.FORCED


def select_to_free(
    verdicts: Sequence[SegmentVerdict], wanted_bytes: int
) -> tuple[list[SegmentVerdict], str]:
    """Return the files that a request for bytes deletes, and the reason why it ends before that many are freed.

    The reason is empty if the files take at least ``wanted_bytes``.
    """
    going: list[SegmentVerdict] = []
    for verdict in verdicts:
        if sum(found.facts.allocated for found in going) >= wanted_bytes:
            return going, ""
        if not verdict.rule.deletable:
            return going, verdict.why_kept
        going.append(verdict)
    return going, NO_FILE
