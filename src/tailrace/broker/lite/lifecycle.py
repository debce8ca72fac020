"""Deletion of Lite topics that had no message for ``lite.topic.expiration`` (LiteLifecycleManager).

A pass runs in a thread of its own. A queue is deleted only if it got no message since the pass looked at it, which
the store checks while nothing can be put. The messages stay in the log until retention deletes its files.
"""

from __future__ import annotations

from typing import Final, final

from tailrace import events
from tailrace.broker.lite.queues import lite_queues
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import StoreError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import parent_of
from tailrace.logs import get_logger
from tailrace.node.message_store import MessageStore

__all__ = ["LiteLifecycle"]

_log = get_logger(__name__)
MINUTE_MS: Final = 60_000


@final
class LiteLifecycle:
    """Deletes Lite topics after their time."""

    def __init__(self, clock: Clock, store: MessageStore, config: BrokerConfig, boot_ms: int) -> None:
        self._clock, self._store, self._config = clock, store, config
        self._topics = store.topics
        self._boot_ms = boot_ms

    def step(self) -> None:
        """Delete the Lite topics that have expired."""
        if self._clock.now_ms() - self._boot_ms < self._config.min_lite_ttl or self._store.read_only:
            return
        expired = self._expired()
        if not expired:
            return
        try:
            deleted = self._store.deletion.delete_idle(expired)
        except (StoreError, OSError) as error:
            events.LITE_TOPICS_COULD_NOT_BE_DELETED.log(_log, count=len(expired), cause=error)
            return
        events.LITE_TOPICS_DELETED_AFTER_THEIR_EXPIRATION.log(_log, count=len(deleted), first=min(deleted, default=""))

    def _expired(self) -> dict[str, int]:
        """Return the queues that had no message for too long, with the offsets after their last message."""
        minutes = {topic.topic_name: topic.lite_expiration_min for topic in self._topics.items() if topic.is_lite}
        now, found = self._clock.now_ms(), dict[str, int]()
        for queue in lite_queues(self._store) if any(ttl > 0 for ttl in minutes.values()) else ():
            ttl_ms = minutes.get(parent_of(queue.name), 0) * MINUTE_MS
            if ttl_ms <= 0 or queue.end <= 0:
                continue
            idle = now - self._store.queue_of(queue.name, LMQ_QUEUE_ID).store_timestamp(queue.end - 1)
            if idle >= self._config.min_lite_ttl and idle > ttl_ms:
                found[queue.name] = queue.end
        return found
