"""Which CommitLog files may go, and why the others stay: facts in, a verdict per file out.

A pass is triggered by the hour (``deleteWhen``), by the disks (store.disk_state) or by hand. It
looks at the files from the oldest on, deletes those that expired, or with ``cleanAtOnce`` any, and
stops at the first that stays; the last file always stays. Rules, first match wins:

    the last file                                  kept: the log goes on in it
    behind a file that stays                       kept: only head files go
    not flushed yet                                kept
    expired or let go, not dispatched, not forced  kept: its queues would lack messages
    expired, no pin                                deletable
    no topic needs a message of it, no pin         deletable: all were let go by their topics
    a topic keeps its messages longer              kept, as if it had not expired
    expired, pinned, nothing forced                kept: pins win over age
    forced, pinned by what must not be lost        kept: puts are refused instead
    forced                                         deletable, and counted as forced when it was
                                                   not expired or is pinned
    otherwise                                      kept: not expired

Nothing here reads a clock or a disk.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tailrace.config import StoreConfig
from tailrace.store.topic_retention import TopicNeeds

__all__ = [
    "MANUAL_DELETE_TIMES", "Pin", "PinKind", "PinPolicy", "PinSource", "Rule", "SegmentFacts",
    "SegmentVerdict", "Trigger", "explain", "is_time_to_delete", "pin_policies", "segment_time",
    "select_deletable",
]

MANUAL_DELETE_TIMES: Final = 20
"""Passes that one request by hand asks for."""
_HOUR_MS: Final = 3_600_000


class PinKind(enum.Enum):
    """What needs a message that is old enough to go."""

    TIMER = "timer"
    ARCHIVE = "archive"
    GROUP = "group"


class PinPolicy(enum.Enum):
    """What happens to a pinned file when space is short."""

    DELETE_OLDEST = "delete-oldest"
    REFUSE_WRITES = "refuse-writes"


class Pin(NamedTuple):
    """A need of everything from a position of the log on."""

    kind: PinKind
    phy_offset: int
    holder: str


class PinSource(Protocol):
    """Who knows of pins: the timer store, the archive, the consumer offsets."""

    def __call__(self) -> Iterable[Pin]:
        """The pins of now, the least position of each holder."""
        ...


class Rule(enum.Enum):
    """Why a file may go or stays."""

    LAST_FILE = "it is the last file"
    BEHIND_KEPT = "an older file stays"
    NOT_FLUSHED = "it is not flushed yet"
    NOT_DISPATCHED = "its queues are not written yet"
    EXPIRED = "it expired"
    RELEASED = "no topic keeps a message of it"
    KEPT_BY_TOPIC = "a topic keeps its messages longer"
    PINNED = "it expired and is pinned"
    REFUSED = "it is pinned by what must not be lost"
    FORCED = "space is short"
    NOT_EXPIRED = "it has not expired"

    @property
    def deletable(self) -> bool:
        """Whether a file under this rule may go."""
        return self in {Rule.EXPIRED, Rule.RELEASED, Rule.FORCED}


class Trigger(NamedTuple):
    """Why a pass is made."""

    time_up: bool = False
    space: bool = False
    manual: bool = False
    clean_at_once: bool = False
    """Files go before their time."""

    @property
    def any(self) -> bool:
        """Whether a pass is to be made at all."""
        return self.time_up or self.space or self.manual


class SegmentFacts(NamedTuple):
    """A CommitLog file as a pass sees it; ``time_ms`` is when its last message was stored."""

    path: str
    file_from_offset: int
    size: int
    time_ms: int
    time_source: str
    flushed: bool = True
    dispatched: bool = True

    @property
    def until(self) -> int:
        """Position of the first byte behind it."""
        return self.file_from_offset + self.size


class SegmentVerdict(NamedTuple):
    """What a pass does with a file."""

    facts: SegmentFacts
    rule: Rule
    expires_ms: int
    pins: tuple[Pin, ...] = ()
    forced: bool = False
    """It goes although it has not expired or is pinned."""


def is_time_to_delete(delete_when: str, hour: int) -> bool:
    """Whether ``hour`` of the local day is one of the hours, which are separated by ``;``."""
    return any(int(listed) == hour for listed in delete_when.split(";"))


def segment_time(
    expire_by: str, next_store_timestamp_ms: int, mtime_ms: int, now_ms: int
) -> tuple[int, str]:
    """When the last message of a file was stored at the latest, and what says so.

    That is the store time of the first message behind it: no scan is needed and a copied file does
    not get younger. The file's own time is taken when settings ask for it, when there is no message
    behind it, and when that time lies in the future, which a clock that was wrong once leaves behind.
    """
    if expire_by == "storeTimestamp" and 0 < next_store_timestamp_ms <= now_ms:
        return next_store_timestamp_ms, "storeTimestamp"
    return mtime_ms, "mtime"


def pin_policies(config: StoreConfig) -> dict[PinKind, PinPolicy]:
    """What settings say about each kind of pin."""
    return {
        PinKind.TIMER: PinPolicy(config.pin_policy_timers),
        PinKind.ARCHIVE: PinPolicy(config.pin_policy_archive),
        PinKind.GROUP: PinPolicy(config.pin_policy_groups),
    }


def explain(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    reserved_hours: float,
    clean_at_once: bool,
    pins: Sequence[Pin] = (),
    policies: Mapping[PinKind, PinPolicy],
    topics: TopicNeeds | None = None,
) -> list[SegmentVerdict]:
    """The verdict for each file, oldest first, as a pass would find it now.

    ``topics`` is None when no topic lets go of its messages by a rule of its own.
    """
    found: list[SegmentVerdict] = []
    kept = False
    for number, facts in enumerate(segments):
        expires_ms = facts.time_ms + round(reserved_hours * _HOUR_MS)
        held_by = tuple(pin for pin in pins if pin.phy_offset < facts.until)
        rule = _rule(
            facts, last=number == len(segments) - 1, kept=kept,
            age=_age(facts, expired=now_ms >= expires_ms, topics=topics), pinned=bool(held_by),
            clean_at_once=clean_at_once,
            refused=any(policies[pin.kind] is PinPolicy.REFUSE_WRITES for pin in held_by))
        kept = kept or not rule.deletable
        found.append(SegmentVerdict(facts, rule, expires_ms, held_by, rule is Rule.FORCED))
    return found


def _age(facts: SegmentFacts, *, expired: bool, topics: TopicNeeds | None) -> Rule:
    """What age alone says: EXPIRED, RELEASED, KEPT_BY_TOPIC or NOT_EXPIRED."""
    if topics is not None and topics.own_from < facts.until:
        return Rule.KEPT_BY_TOPIC if expired else Rule.NOT_EXPIRED
    if expired:
        return Rule.EXPIRED
    released = topics is not None and topics.default_from >= facts.until
    return Rule.RELEASED if released else Rule.NOT_EXPIRED


def _rule(
    facts: SegmentFacts, *, last: bool, kept: bool, age: Rule, pinned: bool,
    clean_at_once: bool, refused: bool,
) -> Rule:
    """The table of the module's head."""
    if last:
        return Rule.LAST_FILE
    if kept:
        return Rule.BEHIND_KEPT
    if not facts.flushed:
        return Rule.NOT_FLUSHED
    if age.deletable and not pinned and (facts.dispatched or not clean_at_once):
        return age if facts.dispatched else Rule.NOT_DISPATCHED
    if not clean_at_once:
        return Rule.PINNED if age.deletable else age
    return Rule.REFUSED if refused else Rule.FORCED


def select_deletable(
    verdicts: Sequence[SegmentVerdict], batch_max: int
) -> tuple[list[SegmentVerdict], SegmentVerdict | None]:
    """The files that one pass deletes, and the first that stays (None when the batch ends it)."""
    going: list[SegmentVerdict] = []
    for verdict in verdicts:
        if not verdict.rule.deletable:
            return going, verdict
        if len(going) == batch_max:
            return going, None
        going.append(verdict)
    return going, None
