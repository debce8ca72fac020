"""The parts of Lite topics in a broker: subscriptions, events, pops, deletion, and requests of admin tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from tailrace import events
from tailrace.broker.lite.inspect import LiteManagerProcessor
from tailrace.broker.lite.pop_lite import LiteAcks, LitePopService
from tailrace.broker.lite.registry import end_of, lite_queues
from tailrace.broker.lite.subscriptions import LiteSubscriptionProcessor
from tailrace.broker.pop.requests import PopProgress
from tailrace.broker.pop.service import FreeTimers
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.scheduler import Scheduler
from tailrace.errors import StoreError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.lite import parent_of
from tailrace.logs import get_logger
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import RemotingServer
from tailrace.requests.reply import Reply

__all__ = ["LiteLifecycle", "LiteTopics"]


@final
class LiteTopics:
    """Connects the parts of Lite topics."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, groups: SubscriptionGroupManager, progress: PopProgress,
        free_timers: FreeTimers, service: LitePopService, subscriptions: LiteSubscriptionProcessor,
        inspect: LiteManagerProcessor, acks: LiteAcks, lifecycle: LiteLifecycle,
    ) -> None:
        self._store, self._config, self._groups = store, config, groups
        self._offsets = progress.offsets
        self._free_timers = free_timers
        self.order = progress.order
        self.registry, self.dispatcher = service.registry, service.dispatcher
        self.service = service
        """Hands out messages of Lite topics for every protocol."""
        self.subscriptions, self.inspect, self.acks = subscriptions, inspect, acks
        self.lifecycle = lifecycle
        free_timers.freed.add(self._free)

    def register(self, server: RemotingServer, *, pops: bool) -> None:
        """Register the requests; ``pops`` is False for the VIP port, which serves no pops, as in RocketMQ."""
        for part in (self.subscriptions, self.inspect, *((self.service,) if pops else ())):
            part.register(server)

    def start(self, scheduler: Scheduler, every: Callable[[str, float, Callable[[], None]], None]) -> None:
        """Start what runs periodically: in threads with ``scheduler``, on the event loop with ``every``."""
        config = self._config
        scheduler.every("LiteLifecycle", config.lite_ttl_check_interval, self.lifecycle.step)
        every("lite events", config.lite_event_check_interval / 1000, self.dispatcher.scan)
        every("lite subscriptions", config.lite_subscription_check_interval / 1000, self._clean)

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Note messages that have become readable; called from any thread."""
        self.dispatcher.arriving(topic, queue_id, next_offset, tags_codes, size)

    def release_all(self) -> list[Reply]:
        """Drop the requests that wait and return their replies, for a stop."""
        self._free_timers.stop()
        return self.service.release_all()

    def _free(self, queue: str, group: str, queue_id: int) -> None:
        """Note an event if the messages of a pop are visible again; wait for the last of them."""
        at_ms = self.order.visible_at(queue, group, queue_id)
        if at_ms is not None:
            self._free_timers.set(queue, group, queue_id, at_ms)
        elif end_of(self._store, queue) > self._offsets.query(group, queue, queue_id):
            self.dispatcher.dispatch(queue, group)

    def _clean(self) -> None:
        self.registry.expire()
        self.order.drop_unused(
            lambda topic, group, _: self._store.topics.select(topic) is not None
            and self._groups.select(group) is not None)

    def forget(self, queues: set[str], groups: set[str]) -> None:
        """Forget queues and groups that were deleted."""
        self.registry.forget_queues(queues)
        self.order.forget(queues, groups)


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
