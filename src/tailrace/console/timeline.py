"""The messages of a topic in the order of their time, across its queues, from any place on and back.

The order is that of the positions in the log. A place is written ``TIME.POSITION.OFFSET``: the store time of a message
in ms, its position in the log and its queue offset. Each step reads one message of one queue, so that a page costs as
many reads as it has messages, and a few for each queue, however large queues and bodies are.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, final

from tailrace.formats.names import LMQ_PREFIX
from tailrace.model import MessageExt
from tailrace.node.message_store import MessageStore

__all__ = ["QUEUES_MAX", "Place", "Timeline"]

_Shown = TypeVar("_Shown")
QUEUES_MAX: Final = 256
"""Queues whose messages are put in order."""
_NUMBER_MAX: Final = 1 << 63


class Place(NamedTuple):
    """The place of a message; messages of an inner batch have the same position."""

    time_ms: int
    phy_offset: int
    queue_offset: int

    @classmethod
    def of(cls, message: MessageExt) -> Place:
        """Return the place of a message."""
        return cls(message.store_timestamp, message.phy_offset, message.queue_offset)

    @classmethod
    def parse(cls, text: str, name: str) -> Place:
        """Return the place that a query names. Raises ValueError that begins with ``name``."""
        parts = text.split(".")
        if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            numbers = [int(part) for part in parts]
            if max(numbers) < _NUMBER_MAX:
                return cls(*numbers)
        raise ValueError(f"{name} is {text!r}, not the place of a message")

    def __str__(self) -> str:
        return f"{self.time_ms}.{self.phy_offset}.{self.queue_offset}"

    @property
    def key(self) -> tuple[int, int]:
        """What messages are ordered by."""
        return self.phy_offset, self.queue_offset


class _Queue(NamedTuple):
    queue_id: int
    low: int
    high: int


class _Found(NamedTuple, Generic[_Shown]):
    offset: int
    place: Place
    shown: _Shown


@final
class Timeline(Generic[_Shown]):
    """Messages of some queues of a topic. ``show`` makes what is kept of a message, without its body."""

    def __init__(
        self, store: MessageStore, topic: str, queues: Sequence[int], show: Callable[[MessageExt, int], _Shown],
    ) -> None:
        """``show`` gets a message and its offset in the queue."""
        self._store, self._topic, self._show = store, topic, show
        self._is_lmq = topic.startswith(LMQ_PREFIX)
        self._queues = [
            _Queue(queue_id, low, high) for queue_id in queues[:QUEUES_MAX]
            if (high := store.queue_of(topic, queue_id).max) > (
                low := max(store.queue_of(topic, queue_id).min, 0))]

    def newest(self, count: int) -> list[tuple[Place, _Shown]]:
        """Return the last messages, the newest first."""
        return self._back(lambda queue: queue.high, count)

    def before(self, place: Place, count: int) -> list[tuple[Place, _Shown]]:
        """Return the messages before a place, the newest first."""
        return self._back(lambda queue: self._first(queue, place, after=False), count)

    def after(self, place: Place, count: int) -> list[tuple[Place, _Shown]]:
        """Return the messages after a place, the oldest first."""
        return self._on(lambda queue: self._first(queue, place, after=True), count)

    def from_time(self, time_ms: int, count: int) -> list[tuple[Place, _Shown]]:
        """Return the messages that were stored at a time (ms) or later, the oldest first."""
        return self._on(lambda queue: self._store.queue_of(self._topic, queue.queue_id).by_time(time_ms), count)

    def from_offset(self, offset: int, count: int) -> list[tuple[Place, _Shown]]:
        """Return the messages from an offset of each queue on, the oldest first."""
        return self._on(lambda queue: offset, count)

    def at(self, offset: int) -> _Found[_Shown] | None:
        """Return the message at an offset of the only queue, or None."""
        found = next((self._read(queue, offset) for queue in self._queues if queue.low <= offset < queue.high), None)
        return found if found is not None and found.offset == offset else None

    # -- steps

    def _read(self, queue: _Queue, offset: int) -> _Found[_Shown] | None:
        """Return the first message at an offset or after it."""
        for message in self._store.read(self._topic, queue.queue_id, offset, max_count=1):
            # The record of an LMQ queue has the offset of another queue; such queues have no gaps.
            at = offset if self._is_lmq else message.queue_offset
            return _Found(at, Place.of(message), self._show(message, at))
        return None

    def _last(self, queue: _Queue, end: int) -> _Found[_Shown] | None:
        """Return the last message before an offset. Compaction and damage leave gaps, which are skipped in steps."""
        step, above = 1, end
        while above > queue.low:
            at = max(queue.low, end - step)
            found = self._read(queue, at)
            if found is not None and found.offset < end:
                return self._nearest(queue, found, above, end)
            above, step = at, step * 2
        return None

    def _nearest(self, queue: _Queue, found: _Found[_Shown], above: int, end: int) -> _Found[_Shown]:
        """Return the last message before ``end``; no message is in [``above``, ``end``)."""
        low = found.offset + 1
        while low < above:
            middle = (low + above) // 2
            other = self._read(queue, middle)
            if other is not None and other.offset < end:
                found, low = other, other.offset + 1
            else:
                above = middle
        return found

    def _first(self, queue: _Queue, place: Place, *, after: bool) -> int:
        """Return the offset of the first message after a place, or at it unless ``after``; the end without one."""
        def is_after(offset: int) -> bool:
            found = self._read(queue, offset) if offset < queue.high else None
            return found is None or (found.place.key > place.key if after else found.place.key >= place.key)

        guess = self._store.queue_of(self._topic, queue.queue_id).by_time(place.time_ms)
        at, step = min(max(guess, queue.low), queue.high), 1
        if is_after(at):
            low, high = queue.low - 1, at
            while high > queue.low and low < queue.low:
                at = max(queue.low, high - step)
                low, high, step = (low, at, step * 2) if is_after(at) else (at, high, step)
        else:
            low, high = at, queue.high
            while high == queue.high and low + step < high:
                low, high, step = (low, low + step, step) if is_after(low + step) else (low + step, high, step * 2)
        return low + 1 + bisect_left(range(low + 1, high), True, key=is_after)

    def _back(self, end: Callable[[_Queue], int], count: int) -> list[tuple[Place, _Shown]]:
        def step(queue: _Queue, found: _Found[_Shown] | None) -> _Found[_Shown] | None:
            return self._last(queue, end(queue) if found is None else found.offset)

        return list(itertools.islice(self._walk(step, -1), count))

    def _on(self, begin: Callable[[_Queue], int], count: int) -> list[tuple[Place, _Shown]]:
        def step(queue: _Queue, found: _Found[_Shown] | None) -> _Found[_Shown] | None:
            at = max(begin(queue), queue.low) if found is None else found.offset + 1
            return self._read(queue, at) if at < queue.high else None

        return list(itertools.islice(self._walk(step, 1), count))

    def _walk(
        self, step: Callable[[_Queue, _Found[_Shown] | None], _Found[_Shown] | None], sign: int,
    ) -> Iterator[tuple[Place, _Shown]]:
        """Yield messages of all queues in order; ``step`` returns the next one of a queue, and its first for None."""
        heads = []
        for number, queue in enumerate(self._queues):
            if (found := step(queue, None)) is not None:
                heads.append((sign * found.place.phy_offset, sign * found.place.queue_offset, number, found))
        heapq.heapify(heads)
        while heads:
            *_, number, found = heads[0]
            yield found.place, found.shown
            following = step(self._queues[number], found)
            if following is None:
                heapq.heappop(heads)
            else:
                place = following.place
                heapq.heapreplace(heads, (sign * place.phy_offset, sign * place.queue_offset, number, following))
