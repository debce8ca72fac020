"""The parts of POP consumption in a broker: processors, requests that wait, and the revive service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import final

from tailrace.broker.pop.ack import AckService
from tailrace.broker.pop.inspect import PopInspectProcessor
from tailrace.broker.pop.pop_message import PopService
from tailrace.broker.pop.requests import PopProgress
from tailrace.broker.pop.revive import PopReviveService
from tailrace.config import BrokerConfig
from tailrace.env.callbacks import Callbacks
from tailrace.env.clock import Clock
from tailrace.env.scheduler import Scheduler
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import RemotingServer
from tailrace.requests.reply import Reply

__all__ = ["FreeTimers", "PopConsumption"]


@final
class FreeTimers:
    """Calls ``freed`` at the time that was set last. Runs on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self.freed = Callbacks[[str, str, int]]()
        """Gets topic, group and queue id."""
        self._timers: dict[tuple[str, str, int], asyncio.TimerHandle] = {}
        self._stopped = False

    def set(self, topic: str, group: str, queue_id: int, at_ms: int) -> None:
        """Set the time, in ms, of a queue and a group."""
        key = topic, group, queue_id
        if (before := self._timers.pop(key, None)) is not None:
            before.cancel()
        if not self._stopped:
            self._timers[key] = self._loop.call_later(max(0, at_ms - self._clock.now_ms()) / 1000, self._end, key)

    def _end(self, key: tuple[str, str, int]) -> None:
        self._timers.pop(key, None)
        self.freed(*key)

    def stop(self) -> None:
        """Call nothing any more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()


@final
class PopConsumption:
    """Connects the parts of POP consumption."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, groups: SubscriptionGroupManager,
        progress: PopProgress, free_timers: FreeTimers, service: PopService, acks: AckService,
        inspect: PopInspectProcessor, revive: PopReviveService,
    ) -> None:
        self._store, self._config, self._groups, self._progress = store, config, groups, progress
        self._free_timers = free_timers
        self.order = progress.order
        for topic, group, queue_id, info in self.order.entries():  # a crash may have left what was deleted
            if info.offsets[0] < store.queue_of(topic, queue_id).begin_of_life:
                self.order.clear(topic, group, queue_id)
        self.service = service
        """Hands out messages for every protocol."""
        self.polling = service.polling
        self.acks = acks
        self.inspect = inspect
        self._notifications = inspect.polling
        self.revive = revive
        free_timers.freed.add(self._free)
        for topic, group, queue_id, info in self.order.entries():
            if (free_at := info.visible_at(clock.now_ms())) is not None:
                free_timers.set(topic, group, queue_id, free_at)

    def register(self, server: RemotingServer, *, pops: bool) -> None:
        """Register the requests; ``pops`` is False for the VIP port: only acknowledgements, as in RocketMQ."""
        for part in (self.acks, *((self.service, self.inspect) if pops else ())):
            part.register(server)

    def start(self, scheduler: Scheduler) -> None:
        """Start the revive service."""
        scheduler.every("PopReviveService", self._config.revive_interval, self.revive.step)

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Note messages that have become readable; called from any thread."""
        self.polling.arriving(topic, queue_id, next_offset, tags_codes, size)
        self._notifications.arriving(topic, queue_id, next_offset, tags_codes, size)

    def stop_reviving(self) -> None:
        """End the running pass of the revive service."""
        self.revive.stop()

    def prepare(self) -> None:
        """Have the unacknowledged messages of groups that pop in order written if they have changed.

        Runs on the event loop, to which their table belongs; `write_prepared` writes what it has encoded.
        """
        self.order.drop_unused(self._is_used)
        self.order.prepare()

    def write_prepared(self) -> None:
        """Write what was prepared; any thread may call. Raises OSError or FatalStorageError."""
        self.order.write_prepared()

    def release_all(self) -> list[Reply]:
        """Drop the requests that wait and return their replies, for a stop."""
        self._free_timers.stop()
        return [*self.polling.release_all(), *self._notifications.release_all()]

    def _is_used(self, topic: str, group: str, queue_id: int) -> bool:
        config = self._store.topics.select(topic)
        return config is not None and queue_id < config.read_queue_nums and (
            self._groups.select(group) is not None)

    def _free(self, topic: str, group: str, queue_id: int) -> None:
        """Wake the pops that wait, because the messages of an orderly pop are visible again."""
        offset = self._progress.offsets.query(group, topic, queue_id)
        if self._store.queue_of(topic, queue_id).max > offset:
            for polling in (self.polling, self._notifications):
                polling.notify_free(topic, group, queue_id)
