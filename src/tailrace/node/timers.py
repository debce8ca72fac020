"""Timers of an open store: the put hook, the services, their start and stop."""

from __future__ import annotations

import logging
from typing import Any, Final, final

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.errors import StoreError
from tailrace.model import MessageExtBrokerInner, PutMessageResult
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.timer.put_hook import TimerPutHook
from tailrace.timer.timer_message_store import TimerMessageStore

__all__ = ["Timers"]

_log = logging.getLogger(__name__)
_ENQUEUE_MS: Final = 20
_DEQUEUE_MS: Final = 5
"""How late a timer may be noticed; a step that finds nothing takes some microseconds."""


@final
class Timers:
    """What a store needs to take, keep and deliver timer messages."""

    def __init__(
        self, clock: Clock, file_system: FileSystem, entropy: Entropy, config: StoreConfig,
        store: DefaultMessageStore, topics: TopicConfigManager,
    ) -> None:
        self._config = config
        self._store = store
        self.messages: TimerMessageStore | None = None
        if config.timer_wheel_enable:
            self.messages = TimerMessageStore(clock, file_system, config, store)
            self.messages.set_ensure_topic(lambda topic: topics.create_if_missing(topic, 1))
        self._hook = TimerPutHook(clock, entropy, config, self._slot_num)

    def _slot_num(self, time_ms: int) -> int:
        return self.messages.slot_num(time_ms) if self.messages is not None else 0

    def load(self) -> None:
        """Recover. Raises OSError or FatalStorageError."""
        if self.messages is not None:
            self.messages.load()

    def start(self, scheduler: Scheduler) -> None:
        """Start the services."""
        timers = self.messages
        if timers is None:
            return
        scheduler.every("TimerEnqueueService", _ENQUEUE_MS, timers.enqueue_step)
        scheduler.every("TimerDequeueService", _DEQUEUE_MS, timers.dequeue_step)
        scheduler.every(
            "TimerFlushService", self._config.timer_flush_interval_ms, timers.flush_step)

    def close(self) -> bool:
        """Flush and close; whether everything is durable."""
        try:
            if self.messages is not None:
                self.messages.close()
        except (StoreError, OSError) as error:
            _log.error("the timers could not be closed cleanly cause=%s", error)
            return False
        return True

    def release(self) -> None:
        """Close the files, whatever state they are in."""
        if self.messages is not None:
            self.messages.release()

    def put(self, message: MessageExtBrokerInner) -> PutMessageResult:
        """Put a message, which waits on the timer topic when it has a delivery time."""
        queue_id = message.queue_id
        refused = self._hook.handle(message)
        if refused is not None:
            return refused
        result = self._store.put(message)
        if result.queue_id != queue_id and result.status.appended:
            result.queue_id = queue_id  # producers are told the queue they asked for
        return result

    def stats(self) -> dict[str, Any]:
        """Positions and counters of the timers."""
        return self.messages.stats() if self.messages is not None else {}
