"""Information of a consumer for administrators: the body of the answer to request 307."""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from tailrace.client.pop_queues import PopQueue
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.subscription import Subscription
from tailrace.env.clock import Clock
from tailrace.formats import fastjson

__all__ = ["ConsumeRates", "running_info"]

WINDOW_MS: Final = 60_000
KEPT_MAX: Final = 10_000
"""Calls of a topic in the window that are counted one by one; a faster topic has a shorter window."""


@final
class ConsumeRates:
    """Calls of the listener in the last minute, and failures of all time, by topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: dict[str, deque[tuple[int, int, bool]]] = {}
        self._failed: dict[str, int] = {}

    def add(self, topic: str, took_ms: int, *, ok: bool) -> None:
        """Count a call."""
        self._calls.setdefault(topic, deque(maxlen=KEPT_MAX)).append((self._clock.now_ms(), took_ms, ok))
        self._failed[topic] = self._failed.get(topic, 0) + (not ok)

    def to_json(self, topic: str) -> dict[str, Any]:
        """Return RocketMQ's ConsumeStatus; rates are per second, times in ms."""
        now = self._clock.now_ms()
        calls = [one for one in self._calls.get(topic, ()) if now - one[0] <= WINDOW_MS]
        seconds = max(1.0, (now - calls[0][0]) / 1000) if len(calls) == KEPT_MAX else WINDOW_MS / 1000
        good = sum(ok for _, _, ok in calls)
        return {
            "consumeFailedMsgs": self._failed.get(topic, 0), "consumeFailedTPS": (len(calls) - good) / seconds,
            "consumeOKTPS": good / seconds,
            "consumeRT": sum(took for _, took, _ in calls) / len(calls) if calls else 0.0,
            "pullRT": 0.0, "pullTPS": len(calls) / seconds}


def running_info(
    properties: Mapping[str, str], wanted: Iterable[Subscription], queues: Iterable[ProcessQueue],
    rates: ConsumeRates, *, in_order: bool, stacks: bool,
) -> bytes:
    """Return RocketMQ's ConsumerRunningInfo."""
    wanted, queues = list(wanted), list(queues)
    info = {
        "properties": dict(properties),
        "statusTable": {one.topic: rates.to_json(one.topic) for one in wanted},
        "subscriptionSet": [one.to_json() for one in wanted], "userConsumerInfo": {}}
    if stacks:
        info["jstack"] = _stacks()
    pulled = fastjson.object_keyed(
        (one.queue.to_json(), _queue(one, in_order=in_order)) for one in queues if not isinstance(one, PopQueue))
    popped = fastjson.object_keyed((one.queue.to_json(), {
        "droped": one.dropped, "lastPopTimestamp": one.last_pull_ms, "waitAckCount": one.count,
    }) for one in queues if isinstance(one, PopQueue))
    return fastjson.dumps(info)[:-1] + b',"mqPopTable":%b,"mqTable":%b}' % (popped, pulled)


def _queue(one: ProcessQueue, *, in_order: bool) -> dict[str, Any]:
    return {
        "cachedMsgCount": one.count, "cachedMsgMaxOffset": one.first + one.span, "cachedMsgMinOffset": one.first,
        "cachedMsgSizeInMiB": one.bytes >> 20, "commitOffset": one.commit_offset, "droped": one.dropped,
        "lastConsumeTimestamp": one.last_consume_ms, "lastLockTimestamp": 0,
        "lastPullTimestamp": one.last_pull_ms, "locked": in_order and one.locked_until > 0,
        "transactionMsgCount": one.running if in_order else 0, "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0, "tryUnlockTimes": 0}


def _stacks() -> str:
    """Return the stacks of all threads, as an administrator asks for with jstackEnable."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items())
