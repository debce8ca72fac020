"""A broker and its name server in one process, on an open store.

    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 10911), ("127.0.0.1", 9876))
    print(controller.broker_address, controller.namesrv_address)     # "127.0.0.1:10911" ...
    ...
    await controller.stop()          # answers what is pending, writes offsets; the store stays open

``start`` returns once clients can be served and routed. Port 0 picks a free port. With ``vip=True``
the broker also listens on its port minus 2, where old clients send to; it is left out, with a line
in the log, when that port is taken, and never tried for port 0. ``namesrv_listen=None`` starts no
name server. The store is not closed by the controller: who opened it closes it, after ``stop``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, final

from tailrace.broker.broker_stats import SAMPLE_MS
from tailrace.broker.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.context import BrokerContext
from tailrace.broker.durable_answers import DurableAnswers
from tailrace.broker.listeners import Address, Listeners, server_limits
from tailrace.broker.long_polling import PullRequestHoldService
from tailrace.broker.name_server import KVConfigManager, NameServer
from tailrace.broker.processors.admin import AdminProcessor, settings_of
from tailrace.broker.processors.admin_topics import AdminTopicsProcessor
from tailrace.broker.processors.client_manage import ClientManageProcessor
from tailrace.broker.processors.pull import PullMessageProcessor
from tailrace.broker.processors.query import QueryProcessor
from tailrace.broker.processors.query_assignment import QueryAssignmentProcessor
from tailrace.broker.processors.recall import RecallMessageProcessor
from tailrace.broker.processors.reply import ReplyMessageProcessor
from tailrace.broker.processors.reset_offset import ResetOffsetProcessor
from tailrace.broker.processors.retention import RetentionProcessor
from tailrace.broker.processors.send import SendMessageProcessor
from tailrace.broker.processors.send_back import SendBackProcessor
from tailrace.broker.processors.stats import StatsProcessor
from tailrace.broker.rebalance_lock import RebalanceLockManager
from tailrace.broker.registration import Registration, registered_elsewhere
from tailrace.broker.runtime_info import RuntimeInfo
from tailrace.broker.traffic import CountedArrivals
from tailrace.config import BrokerConfig, FlushDiskType
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.env.filesystem import FileSystem
from tailrace.env.scheduler import Scheduler, ThreadScheduler
from tailrace.errors import StoreError
from tailrace.formats.remoting import VERSION_V5_3_1, ResponseCode
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.server import HIGH_WATER

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["BrokerController"]

_log = get_logger(__name__)

SCAN_S: Final = 10.0
PATIENCE_S: Final = 3.0
"""How long a stop waits for answers to requests that have come."""


@final
class BrokerController:
    """Starts and stops the sockets and services of a broker on ``store``."""

    def __init__(
        self,
        store: MessageStore,
        broker_config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        file_system: FileSystem | None = None,
        scheduler: Scheduler | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.broker_address = ""
        """``ip:port`` that clients are told."""
        self.namesrv_address = ""
        """``ip:port`` of the name server, or of those of other processes, separated by ``;``."""
        self._store = store
        self._config = broker_config or BrokerConfig()
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._file_system = file_system or store.file_system
        self._scheduler = scheduler or ThreadScheduler()
        self._servers: list[RemotingServer] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._registration: Registration | None = None
        self._started = False

    async def start(
        self,
        listen: Address = ("127.0.0.1", 10911),
        namesrv_listen: Address | None = ("127.0.0.1", 9876),
        *,
        vip: bool = False,
    ) -> None:
        """Listen and serve. Raises OSError when an address cannot be taken; then nothing runs."""
        listeners = Listeners(
            self._config.broker_ip1, limits=server_limits(self._config),
            high_water=self._config.write_buffer_high_water_mark or HIGH_WATER)
        await listeners.start(listen, namesrv_listen, vip=vip)
        await self.serve_on(listeners)

    async def serve_on(self, listeners: Listeners) -> None:
        """Serve on ports that were taken before; they are given back when this raises."""
        try:
            await self._serve_on(listeners)
        except BaseException:
            await listeners.stop()
            raise
        self._started = True
        _log.info(
            "broker started broker=%s namesrv=%s advertised=%s", listeners.listen_address,
            listeners.namesrv_listen_address, self.broker_address
        )

    async def _serve_on(self, listeners: Listeners) -> None:
        self._broker = self._context()
        # Recovery may have left less than was consumed; queues must be there to compare.
        if await self._broker.loop.run_in_executor(None, self._store.wait_dispatched):
            self._correct_offsets()
        send = self._build(self._broker)
        self.broker_address = self._broker.address = listeners.broker_address
        store_host = listeners.store_host
        self._store.store_host = store_host
        send.set_store_host(store_host)
        self._settings.update(listenPort=str(listeners.port), brokerIP1=listeners.advertised)
        self._register(listeners)
        listeners.serving()
        self._servers = listeners.servers
        self._store.set_message_arriving_listener(
            CountedArrivals(self._broker.traffic, self._hold))
        self._scheduler.every(
            "ConsumerOffsetPersist", self._config.flush_consumer_offset_interval,
            self._persist_offsets,
        )
        self._scheduler.every("BrokerStats", SAMPLE_MS, self._broker.stats.step)
        self._every("scan", SCAN_S, self._scan)
        self._broker.loop_lag.start()
        await self._register_elsewhere(listeners.namesrv_address)

    def _context(self) -> BrokerContext:
        config_dir, clock, config = self._store.config_dir, self._clock, self._config
        self._store.topics.ensure_system_topics()
        groups = SubscriptionGroupManager(self._file_system, config_dir, config, clock)
        groups.enable_lmq = self._store.config.enable_lmq
        groups.load()
        groups.ensure_system_groups()
        offsets = ConsumerOffsetManager(
            self._file_system, config_dir, clock, config.max_consumer_offsets,
            lmq=self._store.config.enable_lmq)
        offsets.load()
        self._store.keep_unconsumed(offsets)

        def notify_enabled(group: str) -> bool:
            found = groups.select(group)
            return found is not None and found.notify_consumer_ids_changed_enable

        return BrokerContext(
            loop=asyncio.get_running_loop(), clock=clock, entropy=self._entropy,
            store=self._store, config=config, topics=self._store.topics, groups=groups,
            offsets=offsets, locks=RebalanceLockManager(clock),
            consumers=ConsumerManager(clock, config.channel_expired_ms, notify_enabled),
            producers=ProducerManager(clock, config.channel_expired_ms), boot_ms=clock.now_ms(),
        )

    def _correct_offsets(self) -> None:
        """Take back offsets behind the end of their queue.

        They were written before the messages were durable, and a power loss took those. Kept, they
        would skip the messages that get these offsets next.
        """
        offsets = self._broker.offsets
        for topic, group, queue_id, offset in offsets.entries():
            until = self._store.max_offset_in_queue(topic, queue_id)
            if self._broker.topics.select(topic) is not None and offset > until:
                _log.warning(
                    "consumer offset corrected group=%s topic=%s queue=%d offset=%d to=%d", group,
                    topic, queue_id, offset, until)
                offsets.commit(group, topic, queue_id, until)

    def _build(self, broker: BrokerContext) -> SendMessageProcessor:
        """Make the processors and what they need."""
        store_config = self._store.config
        self._settings = settings_of(
            self._config, store_config, brokerRole="ASYNC_MASTER",
            storePathRootDir=str(self._store.path),
        )
        self._durable = DurableAnswers(broker.loop, self._store)
        self._pull = PullMessageProcessor(broker)
        self._hold = PullRequestHoldService(
            broker.loop, self._store.max_offset_in_queue, self._pull.run_again
        )
        self._pull.hold = self._hold
        broker.waiting_sends = lambda: self._durable.pending
        broker.waiting_pulls = self._hold.__len__
        sync = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        durable = self._durable if sync else None
        send = SendMessageProcessor(
            broker, self._durable, wait_durable=sync,
            max_message_size=store_config.max_message_size,
        )
        modes = MessageRequestModeManager(self._file_system, self._store.config_dir)
        modes.load()
        retention = RetentionProcessor(broker)
        reply = ReplyMessageProcessor(broker, send, durable)
        self._later: list[_AnswersLater] = [
            broker.changes, broker.worker, retention.worker, broker.cold_reads, reply]
        self._processors: list[_Registers] = [
            send, reply, SendBackProcessor(broker, durable), RecallMessageProcessor(broker, durable),
            QueryProcessor(broker), ClientManageProcessor(broker), AdminTopicsProcessor(broker),
            retention, ResetOffsetProcessor(broker), StatsProcessor(broker),
            QueryAssignmentProcessor(broker, modes),
            AdminProcessor(broker, RuntimeInfo(broker, self._file_system), self._settings),
        ]
        return send

    def _register(self, listeners: Listeners) -> None:
        """Have the servers answer requests; the one on the VIP port serves no pulls."""
        for server in (listeners.broker, listeners.vip):
            if server is not None:
                server.on_close = self._client_gone
                for processor in self._processors:
                    processor.register(server)
        self._pull.register(listeners.broker)
        if listeners.namesrv is not None:
            self._register_name_server(listeners.namesrv, listeners.namesrv_address)

    def _register_name_server(self, server: RemotingServer, address: str) -> None:
        kv = KVConfigManager(self._file_system, self._store.config_dir)
        kv.load()
        name_server = self._name_server = NameServer(
            self._clock, kv, {"listenPort": address.rpartition(":")[2]}, self._broker.loop)
        self._later += name_server.later
        name_server.register_local(
            self._config.broker_cluster_name, self._config.broker_name, self.broker_address,
            self._broker.topics.table,
        )
        self._broker.route = name_server.route
        server.on_close = name_server.closed
        name_server.register(server)
        self.namesrv_address = self._broker.namesrv_address = address
        self._settings["namesrvAddr"] = address
        self._every("expire", SCAN_S, name_server.expire)

    async def _register_elsewhere(self, own: str) -> None:
        """Register at the name servers of ``namesrvAddr`` that are not the one of this process."""
        others = await self._broker.loop.run_in_executor(  # it may look up names
            None, registered_elsewhere, self._config.namesrv_addr, own)
        if not others:
            return
        self._registration = Registration(self._broker, others)
        self._broker.registrations = self._registration.states
        self._registration.start()
        addresses = ";".join([own, *others] if own else others)
        self._settings["namesrvAddr"] = addresses
        if not own:
            self.namesrv_address = self._broker.namesrv_address = addresses

    @property
    def broker(self) -> BrokerContext:
        """The running broker; there after ``start``."""
        return self._broker

    async def stop(self) -> None:
        """Stop serving: what is pending is answered, newer clients are told to go away."""
        if not self._started:
            return
        self._started = False
        for timer in self._timers.values():
            timer.cancel()
        self._broker.loop_lag.stop()
        self._store.set_message_arriving_listener(None)
        if self._registration is not None:
            await self._registration.stop()
        for server in self._servers:
            server.draining = True
        waiting = [(pull.channel, pull.request) for pull in self._hold.release_all()]
        waiting += [(pull.channel, pull.request) for pull in self._broker.cold_reads.release_all()]
        for channel, request in waiting:
            if request.version > VERSION_V5_3_1:
                channel.answer(request, request.answer(ResponseCode.GO_AWAY, "please go away"))
        await self._wait_durable()
        await self._close_servers()
        await self._end_writing()
        self._scheduler.stop_all()
        self._persist_offsets()
        _log.info("broker stopped broker=%s", self.broker_address)

    def _persist_offsets(self) -> None:
        if self._store.lost_lock:
            return  # the file is another process's
        try:
            self._broker.offsets.persist_if_changed()
        except (StoreError, OSError) as error:  # at a stop the store is closed all the same
            _log.error("consumer offsets could not be written cause=%s", error)

    async def _wait_durable(self) -> None:
        """Let requests that wait for the disk be answered, for as long as their clients wait."""
        for _ in range(int(PATIENCE_S * 100)):
            if not (self._durable.pending or any(later.pending for later in self._later)):
                return
            await asyncio.sleep(0.01)

    async def _end_writing(self) -> None:
        """Wait for files that are being written: once the store is closed they may be another's."""
        for later in self._later:
            await later.stop()

    async def _close_servers(self) -> None:
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop() for server in servers))

    def _client_gone(self, channel: Channel) -> None:
        self._broker.consumers.closed(channel)
        self._broker.producers.closed(channel)
        self._broker.cold_reads.closed(channel)

    def _scan(self) -> None:
        self._broker.consumers.expire()
        self._broker.producers.expire()
        self._broker.locks.expire()

    def _every(self, name: str, seconds: float, step: Callable[[], None]) -> None:
        loop = self._broker.loop

        def run() -> None:
            self._timers[name] = loop.call_later(seconds, run)
            step()

        self._timers[name] = loop.call_later(seconds, run)


class _AnswersLater(Protocol):
    @property
    def pending(self) -> int: ...
    async def stop(self) -> None: ...


class _Registers(Protocol):
    def register(self, server: RemotingServer) -> None: ...
