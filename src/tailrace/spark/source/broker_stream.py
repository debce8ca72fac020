"""Offsets of a stream over the network: the end of each batch, and whether queues are still those that were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.errors import RemotingError, StoreError
from tailrace.logs import get_logger
from tailrace.spark.source.brokers import (
    BrokerQueues,
    Brokers,
    Ends,
    Queue,
    Seen,
    broker_starts,
    from_text,
    lost,
    shown,
    to_text,
)
from tailrace.spark.source.checkpoints import Checkpoint, LastMessage
from tailrace.spark.source.offsets import share
from tailrace.spark.source.options import BrokerOptions, ReadOptions

__all__ = ["BrokerStream"]

_log = get_logger(__name__)
_SIZE: Final = 1024
"""Bytes of a message if no message of a queue could be read."""


@final
class BrokerStream:
    """What a streaming reader computes on the driver. Each method raises RemotingError or another StoreError."""

    def __init__(self, options: ReadOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._target: dict[Queue, int] | None = None
        self._last_batch_ns: int | None = None
        self._gone: set[Queue] = set()
        """Queues of the checkpoint that no broker serves, for which this was logged."""
        self._reported: dict[Queue, int] = {}

    @property
    def _own(self) -> BrokerOptions:
        assert self._options.brokers is not None
        return self._options.brokers

    def _queues(self, brokers: Brokers) -> BrokerQueues:
        return brokers.queues(self._options, strict=self._options.fail_on_data_loss)

    def first(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts."""
        with Brokers(self._own) as brokers:
            found = broker_starts(brokers, brokers.queues(self._options), self._options, "latest")
            return to_text(Checkpoint(found, _known(brokers.before(found))))

    def ends(self, *, acknowledged: bool = False) -> dict[str, Any]:
        """Return the end of every queue; with ``acknowledged`` every message counts that was acknowledged."""
        with Brokers(self._own) as brokers:
            queues = brokers.queues(
                self._options, strict=self._options.fail_on_data_loss, acknowledged=acknowledged)
            return to_text(Checkpoint({key: one.end for key, one in queues.items()}, {}))

    def fix_end(self) -> None:
        """Have the query end at the messages that are acknowledged now."""
        self._target = from_text(self.ends(acknowledged=True)).offsets

    def next_end(self, start: dict[str, Any], max_rows: int | None, max_bytes: int | None) -> dict[str, Any]:
        """Return the end of the next batch, which has at most ``max_rows`` messages or about ``max_bytes``.

        Returns ``start`` if the batch is to wait for more messages.
        """
        known = from_text(start)
        with Brokers(self._own) as brokers:
            queues = self._queues(brokers)
            seen = brokers.before({key: known.offsets.get(key, one.first) for key, one in queues.items()})
            at = self._resumed(known, queues, seen, known.offsets.keys() | queues.keys(), log=False)
            tip = {key: one.end for key, one in queues.items()}
            if self._target is not None:
                tip = {key: min(end, self._target.get(key, end)) for key, end in tip.items()}
            waiting = {key: max(tip[key] - at[key], 0) for key in tip}
            total = sum(waiting.values())
            if max_bytes is not None and total:
                size = sum(count * (seen[key].size or _SIZE) for key, count in waiting.items())
                max_rows = max(total * max_bytes // max(size, 1), 1)
            parts = share({}, at, tip, max_rows, self._options)
            count = sum(parts.values())
            if self._is_too_early(count) or not count:
                return start
            moved = {key: at[key] + more for key, more in parts.items() if more}
            last = {key: one for key, one in known.last.items() if key not in moved} | _known(brokers.before(moved))
            kept = {key: offset for key, offset in at.items() if key not in known.offsets}
            return to_text(Checkpoint({**kept, **known.offsets, **moved}, last))

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[Queue, tuple[int, int]]:
        """Return the offsets [start, end) that a batch reads of each queue."""
        first, last = from_text(start), from_text(end)
        moved = {key for key, stop in last.offsets.items() if stop != first.offsets.get(key)}
        if not moved:
            return {}
        found: dict[Queue, tuple[int, int]] = {}
        with Brokers(self._own) as brokers:
            queues = self._queues(brokers)
            seen = brokers.before({
                key: first.offsets[key] for key in moved & queues.keys() if key in first.offsets})
            at = self._resumed(first, queues, seen, moved, log=True)
        for key in moved:
            stop = last.offsets[key]
            if key not in queues:
                lost(key, first.offsets.get(key, 0), stop, self._options)
                continue
            begin = at[key]
            if stop > queues[key].end:
                self._is_other(key, stop, queues[key], f"ends at {queues[key].end}, but the batch reads up to {stop}")
                stop = max(queues[key].end, begin)
            if begin < stop:
                found[key] = begin, stop
        return found

    def report(self, end: Mapping[str, Any]) -> None:
        """Set the offsets of the group of ``consumerGroup``. A failure is logged and does not end the query."""
        group = self._own.consumer_group
        offsets = {
            key: at for key, at in from_text(end).offsets.items() if self._reported.get(key) != at}
        if not group or not offsets:
            return
        try:
            with Brokers(self._own) as brokers:
                brokers.commit(group, offsets)
        except RemotingError as error:
            first = min(offsets)
            events.OFFSETS_NOT_COMMITTED.log(
                _log, group=group, queues=len(offsets), topic=first[1], queue=f"{first[0]}/{first[2]}", reason=error)
        else:
            self._reported |= offsets

    def _resumed(
        self, known: Checkpoint, queues: BrokerQueues, seen: Mapping[Queue, Seen], wanted: Iterable[Queue], *, log: bool
    ) -> dict[Queue, int]:
        """Return the offset at which each queue is read on. Raises StoreError if ``failOnDataLoss`` is true."""
        self._gone.difference_update(queues)
        found: dict[Queue, int] = {}
        for key in sorted(wanted):
            if key not in queues:
                if known.offsets.get(key, 0):
                    self._is_gone(key, known.offsets[key])
                continue
            ends, at = queues[key], known.offsets.get(key)
            if at is None:
                found[key] = ends.first  # a new queue
                continue
            before, last = seen[key].last, known.last.get(key)
            reason = ""
            if at > ends.end:
                reason = f"ends at {ends.end}, but the checkpoint has {at}"
            elif last is not None and before is not None and before != last:
                reason = f"has another message before offset {at} of the checkpoint"
            if reason and (log or self._options.fail_on_data_loss):
                self._is_other(key, at, ends, reason)
            elif at < ends.first and not reason and (log or self._options.fail_on_data_loss):
                lost(key, at, ends.first, self._options)
            found[key] = ends.first if reason or at < ends.first else at
        return found

    def _is_other(self, key: Queue, known: int, ends: Ends, reason: str) -> None:
        text = f"{reason}: the topic was deleted and created again, or the store was replaced"
        if self._options.fail_on_data_loss:
            raise StoreError(
                f"{shown(key)} {text}; failOnDataLoss=false reads the queue from its first message")
        events.QUEUE_IS_ANOTHER_ONE.log(
            _log, store=key[0], topic=key[1], queue_id=key[2], known=known, first=ends.first, reason=text)

    def _is_gone(self, key: Queue, known: int) -> None:
        if self._options.fail_on_data_loss:
            raise StoreError(
                f"{shown(key)} of the checkpoint is served by no broker now: the broker is down, or the topic was "
                "deleted; failOnDataLoss=false waits for it")
        if key not in self._gone:
            self._gone.add(key)
            events.QUEUE_WENT_BACK.log(_log, store=key[0], topic=key[1], queue_id=key[2], known=known, end=0)

    def _is_too_early(self, waiting: int) -> bool:
        """Whether fewer messages wait than a batch should have, and the delay is not over; see the reader of stores."""
        now, least, last = self._clock.monotonic_ns(), self._options.min_offsets_per_trigger, self._last_batch_ns
        if self._target is None and waiting < least and last is not None and (
            now - last < self._options.max_trigger_delay_ms * 1_000_000
        ):
            return True
        if waiting:
            self._last_batch_ns = now
        return False


def _known(seen: Mapping[Queue, Seen]) -> dict[Queue, LastMessage]:
    return {key: one.last for key, one in seen.items() if one.last is not None}
