"""The parts of POP consumption in a broker: processors, requests that wait, and the revive service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tailrace.broker.core.context import BrokerContext
from tailrace.broker.pop.ack import AckMessageProcessor, AckService
from tailrace.broker.pop.free_timers import FreeTimers
from tailrace.broker.pop.inspect import PopInspectProcessor
from tailrace.broker.pop.pop_message import PopMessageProcessor, PopService
from tailrace.broker.pop.revive import PopReviveService
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.remoting import RemotingServer
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.reply import Reply

__all__ = ["PopConsumption"]


@final
class PopConsumption:
    """Creates the parts of POP consumption and connects them."""

    def __init__(
        self, broker: BrokerContext, file_system: FileSystem, durable: DurableAnswers | None = None
    ) -> None:
        self._broker = broker
        config, store = broker.config, broker.store
        self._free_timers = FreeTimers(broker.loop, broker.clock, self._free)
        self.order = ConsumerOrderInfoManager(
            file_system, store.config_dir, broker.clock, self._free_timers.set)
        self.order.load()
        broker.pop_orders = self.order
        for topic, group, queue_id, info in self.order.entries():  # a crash may have left what was deleted
            if info.offsets[0] < store.queue_of(topic, queue_id).begin_of_life:
                self.order.clear(topic, group, queue_id)
        broker.state.on_loop.append(self.order.forget)
        revive_log = broker.revive_log
        self.service = PopService(broker, revive_log, self.order, durable)
        """Hands out messages for every protocol."""
        self.pops = PopMessageProcessor(self.service, config.broker_name)
        self.polling = self.service.polling
        self.acks = AckMessageProcessor(AckService(broker, revive_log, self.order, self.polling, durable))
        self.inspect = PopInspectProcessor(broker, self.order, self.polling)
        self._notifications = self.inspect.polling
        self.revive = PopReviveService(
            store, config, broker.clock, broker.offsets, broker.groups, revive_log,
            broker.pop_metrics)
        broker.pop_metrics.revive_progress = self.revive.progress
        broker.pop_metrics.checkpoints = lambda: self.revive.pending
        for topic, group, queue_id, info in self.order.entries():
            if (free_at := info.visible_at(broker.clock.now_ms())) is not None:
                self._free_timers.set(topic, group, queue_id, free_at)

    def register(self, broker: RemotingServer, vip: RemotingServer | None) -> None:
        """Register the requests. The server on the VIP port serves only acknowledgements, as in RocketMQ."""
        self.pops.register(broker)
        self.inspect.register(broker)
        for server in (broker, vip):
            if server is not None:
                self.acks.register(server)

    def start(self, scheduler: Scheduler) -> None:
        """Start the revive service."""
        scheduler.every("PopReviveService", self._broker.config.revive_interval, self.revive.step)

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
        config = self._broker.topics.select(topic)
        return config is not None and queue_id < config.read_queue_nums and (
            self._broker.groups.select(group) is not None)

    def _free(self, topic: str, group: str, queue_id: int) -> None:
        """Wake the pops that wait, because the messages of an orderly pop are visible again."""
        offset = self._broker.offsets.query(group, topic, queue_id)
        if self._broker.store.queue_of(topic, queue_id).max > offset:
            for polling in (self.polling, self._notifications):
                polling.notify_free(topic, group, queue_id)
