"""Long polling of pops and notifications: those that found nothing wait for a message (PopLongPollingService).

Requests wait by topic, group and queue; queue -1 means all queues. A message that arrives in the topic, or in a
POP retry topic of the group, wakes one request of each group. A woken request runs again, and waits again if
it finds nothing. When its time is over, it is answered.

The dispatch thread reports arrivals; everything else runs on the event loop. After a request is held, the counts
of arrived messages are compared once more, so that an arrival in between is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar, final

from tailrace.broker.messages.long_polling import LongPolling, Waiter
from tailrace.config import BrokerConfig
from tailrace.env.supervision import caught
from tailrace.filters.message_filters import MessageFilter
from tailrace.formats.pop import pop_retry_topics
from tailrace.model import GetMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.requests.executors import LoopMailbox

__all__ = ["ALL_QUEUES", "Arrival", "PopLongPollingService"]

_Waiter = TypeVar("_Waiter", bound=Waiter)
_NAME: Final = "PopLongPollingService"
ALL_QUEUES: Final = -1
EVALUATED_MAX: Final = 8
"""Number of expressions that are evaluated for one arrival and the requests of one group and queue."""


class Arrival(NamedTuple):
    """Messages that became readable in a queue: the offset after the last one, and their tags codes."""

    topic: str
    queue_id: int
    next_offset: int
    codes: Sequence[int]


@final
class PopLongPollingService(LongPolling[_Waiter]):
    """Holds requests. Their key is topic, group and queue."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: BrokerConfig, store: MessageStore,
        run_again: Callable[[_Waiter], object], *, notify_last: bool = False,
    ) -> None:
        """``run_again`` returns the result of a woken request, or holds it again."""
        super().__init__(
            loop, run_again, config.pop_polling_size, config.max_pop_polling_size, on_wait=store.inner.hurry_reput,
            last_first=notify_last,
            is_gone=lambda topic, *_: store.topics.select(topic) is None)
        self._store = store
        self._readers: dict[str, dict[tuple[str, str], dict[int, None]]] = {}
        """For each topic that held requests read, also as a retry topic: their topics and groups, and their queues."""
        self._arrived: LoopMailbox[Arrival] = LoopMailbox(loop, self._arrivals)
        store.topics.on_change(self.topics_changed)

    def _add(self, entry: _Waiter) -> None:
        super()._add(entry)
        topic, group, queue_id = entry.key
        queues = self._readers.get(topic, {}).get((topic, group))
        if queues is None:
            queues = {}
            for name in (topic, *pop_retry_topics(topic, group)):
                self._readers.setdefault(name, {})[topic, group] = queues
        queues[queue_id] = None

    def _leave(self, waiter: _Waiter) -> None:
        super()._leave(waiter)
        if waiter.key in self._of_key:
            return
        topic, group, queue_id = waiter.key
        queues = self._readers[topic][topic, group]
        del queues[queue_id]
        if not queues:
            for name in (topic, *pop_retry_topics(topic, group)):
                del self._readers[name][topic, group]
                if not self._readers[name]:
                    del self._readers[name]

    def notify_free(self, topic: str, group: str, queue_id: int) -> None:
        """Wake one request that waits for all queues; if no request does, one that waits for this queue."""
        if not self.notify((topic, group, ALL_QUEUES)):
            self.notify((topic, group, queue_id))

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Note messages that have become readable; called from any thread."""
        if topic in self._readers:
            self._arrived.put(Arrival(topic, queue_id, next_offset, tags_codes))

    def _arrivals(self, arrived: list[Arrival]) -> None:
        for arrival in arrived:
            with caught(_NAME):  # the other arrivals wake their requests
                self._notify_all(arrival)

    def _notify_all(self, arrival: Arrival) -> None:
        """Wake one request of each group that waits for the messages of an arrival."""
        for pair, queues in tuple(self._readers.get(arrival.topic, {}).items()):
            if pair[0] == arrival.topic:
                for queue_id in (ALL_QUEUES, arrival.queue_id):
                    self.notify((*pair, queue_id), self._matching(arrival))
            else:  # a retry topic, whose name may be that of several pairs
                any(self.notify((*pair, queue_id)) for queue_id in (ALL_QUEUES, *queues))

    def _matching(self, arrival: Arrival) -> Callable[[_Waiter], bool]:
        """Return the function that returns whether a request may match one of the messages.

        After `EVALUATED_MAX` expressions it returns True without an evaluation: a request filters itself when it runs.
        """
        evaluated = 0

        def is_wanted(waiter: _Waiter) -> bool:
            nonlocal evaluated
            wanted = waiter.wanted
            if not wanted.matches_codes(arrival.codes):
                return False
            if wanted.properties is None or evaluated >= EVALUATED_MAX:
                return True
            evaluated += 1
            return self._may_match(partial(self._has_match, wanted, arrival))

        return is_wanted

    def _has_match(self, wanted: MessageFilter, arrival: Arrival) -> bool:
        """Return whether a message matches the property filter, or may match because it is not cached."""
        result = self._store.get_message(
            arrival.topic, arrival.queue_id, arrival.next_offset - len(arrival.codes), 1, max_bytes=1,
            property_filter=wanted.properties, only_cached=True)
        return result.is_cold or result.status is not GetMessageStatus.NO_MATCHED_MESSAGE or (
            result.next_begin_offset < arrival.next_offset)
