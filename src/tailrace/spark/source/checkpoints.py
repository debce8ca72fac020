"""Offsets of a stream in a checkpoint, and what tells whether they still mean the same messages.

The text is ``{topic: {queueId: next}}``, below the store's label if there are several stores. The member ``#``, which
no topic can be named, has the version of the form and, for each offset, position and store time of the last message
before it: ``"#": {"version": 2, "last": {topic: {queueId: [position, storeTime]}}}``. A text of version 1 has no such
member. Spark compares offsets as text, so the order is fixed: labels and topics by name, queues by number.

The last message before an offset is the identity of the offset. If the queue has another message there, or ends before
it, the queue is not the one that was read: its topic was deleted and created again by a Java broker, or the directory
was replaced or restored from a copy. A topic that Tailrace has deleted begins again at higher offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tailrace.errors import StoreError
from tailrace.formats.commitlog import STORE_TIME_HEAD, store_timestamp_of
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.spark.archive.directory import ArchivedDirectory
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.directory import StoreDirectory
from tailrace.store.lives import EndedLives

__all__ = ["VERSION", "Checkpoint", "LastMessage", "begin_of_life", "from_json", "last_message", "to_json", "why_other"]

VERSION: Final = 2
_MEMBER: Final = "#"
Queue = tuple[str, str, int]  # label of the store, topic, queueId
Directory = StoreDirectory | ArchivedDirectory


class LastMessage(NamedTuple):
    """The last message before an offset: position in the log, and store time in ms."""

    position: int
    store_time: int


class Checkpoint(NamedTuple):
    """Offsets by queue. ``last`` has no entry for an offset without a known message before it."""

    offsets: dict[Queue, int]
    last: Mapping[Queue, LastMessage]


def to_json(found: Checkpoint, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return a checkpoint in the form of its text, in the fixed order."""
    last = {key: list(found.last[key]) for key in found.offsets if key in found.last}
    return {
        **_nested(found.offsets, labels),
        _MEMBER: {"version": VERSION, "last": _nested(last, labels)}}


def _nested(values: Mapping[Queue, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, dict[str, dict[str, Any]]] = {label: {} for label in sorted(labels)}
    for (label, topic, queue_id), value in sorted(values.items()):
        made.setdefault(label, {}).setdefault(topic, {})[str(queue_id)] = value
    return made if len(labels) > 1 else made[labels[0]]


def from_json(found: Mapping[str, Any], labels: tuple[str, ...]) -> Checkpoint:
    """Parse the text of ``to_json``, of version 1 or 2. Raises StoreError for any other text."""
    try:
        offsets = {key: _number(value) for key, value in _entries(
            {name: value for name, value in found.items() if name != _MEMBER}, labels)}
        more = found.get(_MEMBER, {"version": 1, "last": {}})
        if _number(more["version"]) > VERSION:
            raise StoreError(
                f"the checkpoint has version {more['version']}, and this release reads versions up to {VERSION}")
        last = {
            key: LastMessage(*(_number(one) for one in value)) for key, value in _entries(more["last"], labels)}
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise StoreError(f"the checkpoint has no offsets of this source: {found!r}") from error
    if strange := {label for label, _, _ in offsets} - set(labels):
        raise StoreError(f"the checkpoint names stores that are not read: {', '.join(strange)}")
    return Checkpoint(offsets, last)


def _entries(found: Mapping[str, Any], labels: tuple[str, ...]) -> Iterator[tuple[Queue, Any]]:
    for label, topics in (found if len(labels) > 1 else {labels[0]: found}).items():
        for topic, queues in topics.items():
            for queue_id, value in queues.items():
                yield (label, topic, int(queue_id)), value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(value)
    return value


def _lives(directory: Directory) -> EndedLives:
    return (directory.live if isinstance(directory, ArchivedDirectory) else directory).lives


def begin_of_life(directory: Directory, topic: str, queue_id: int) -> int:
    """Return the offset at which a queue began, 0 unless its topic was deleted before."""
    return _lives(directory).begin(topic, queue_id)


def last_message(directory: Directory, queue: ConsumeQueue, offset: int) -> LastMessage | None:
    """Return the message before an offset of a queue; None if it cannot be read, or was never there."""
    data = queue.units(offset - 1, 1) if queue.min_offset < offset <= queue.max_offset else b""
    if len(data) < CQ_UNIT.size:
        return None
    unit = CQ_UNIT.unpack_from(data)
    found = directory.store_time(unit) if unit.size not in {0, PRE_BLANK_SIZE} else None
    if found is None or found < 0:
        return None
    # The time in the record: the one by the wall clock changes if the clock is corrected later.
    stored = store_timestamp_of(directory.read(unit.phy_offset, STORE_TIME_HEAD))
    return LastMessage(unit.phy_offset, stored) if stored is not None else None


def why_other(directory: Directory, queue: ConsumeQueue, offset: int, known: LastMessage | None) -> str:
    """Return why a queue is not the one whose offset a checkpoint has; empty if nothing shows that.

    ``known`` is the last message before the offset. Without it only the ends of the queue are compared.
    """
    lives = _lives(directory)
    begin = lives.begin(queue.topic, queue.queue_id)
    if begin <= queue.min_offset and (
        offset < begin or (known is not None and known.position < lives.deleted_up_to(queue.topic))
    ):
        return f"begins at {begin}, but the checkpoint has {offset}: the topic was deleted and created again"
    if offset > queue.max_offset:
        return (
            f"ends at {queue.max_offset}, but the checkpoint has {offset}: the topic was deleted and created again, or "
            "the store was replaced")
    found = last_message(directory, queue, offset) if known is not None else None
    if found not in {None, known}:
        return (
            f"has another message before offset {offset} of the checkpoint: the topic was deleted and created again, "
            "or the store was replaced")
    return ""
