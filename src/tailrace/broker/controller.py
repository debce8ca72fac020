"""A broker and its name server in one process, on an open store.

    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 10911), ("127.0.0.1", 9876))
    print(controller.broker_address, controller.namesrv_address)     # "127.0.0.1:10911" ...
    ...
    await controller.stop()          # answers what is pending, writes offsets; the store stays open

``start`` returns when clients can be served and can find the broker. Port 0 picks a free port. With
``vip=True`` the broker also listens on its port minus 2 (the VIP port), to which old clients send. If that
port is taken, a log line reports it and the broker runs without it; for port 0 there is no VIP port.
``namesrv_listen=None`` starts no name server. The controller does not close the store: the code that opened
it closes it after ``stop``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from tailrace import events
from tailrace.auth.check import AccessControl
from tailrace.auth_settings import AuthConfig
from tailrace.broker import wiring
from tailrace.broker.admin.access import AccessProcessor
from tailrace.broker.admin.retention import RetentionProcessor
from tailrace.broker.clients.leaving import Departures
from tailrace.broker.core.access import Access
from tailrace.broker.core.audit import Audit, AuditLog
from tailrace.broker.core.listeners import Address, Listeners, server_limits
from tailrace.broker.core.registration import (
    BrokerGroup,
    Registration,
    registered_elsewhere,
)
from tailrace.broker.core.settings import (
    RunningSettings,
    SettingsFile,
    SettingsProcessor,
    settings_of,
)
from tailrace.broker.core.slaves import (
    SlavePort,
    SlaveRefusals,
    has_slave_port,
    take_offsets_of_slaves,
)
from tailrace.broker.lite.pop_lite import LitePopService
from tailrace.broker.messages.end_transaction import TransactionEnds
from tailrace.broker.messages.lanes import PullLane, SendLane
from tailrace.broker.messages.long_polling import LongPolling
from tailrace.broker.messages.proven import ProvenSubscriptions, ProvenTopics
from tailrace.broker.messages.reply import ReplyMessageProcessor
from tailrace.broker.messages.service import MessageService
from tailrace.broker.messages.transaction_checks import TransactionChecks
from tailrace.broker.pop.ack import AckService
from tailrace.broker.pop.pop_message import PopService
from tailrace.broker.static_topics.cleaning import PERIOD_S, MappingCleaner
from tailrace.broker.statistics.broker_stats import SAMPLE_MS
from tailrace.broker.statistics.traffic import CountedArrivals
from tailrace.broker.wiring import BrokerParts
from tailrace.config import BrokerConfig, FlushDiskType, NameServerConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.env.scheduler import Scheduler, ThreadScheduler
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import VERSION_V5_3_1, ResponseCode
from tailrace.ha.sender import TICK_S
from tailrace.logs import get_logger
from tailrace.namesrv.name_server import KVConfigManager, NameServer
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.server import HIGH_WATER
from tailrace.remoting.tls import TlsOptions
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.processor import RequestProcessor

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["BrokerController"]

_log = get_logger(__name__)

SCAN_S: Final = 10.0
AUDIT_S: Final = 1.0
"""Period of trying again to write lines of the audit log."""
FILTERS_MS: Final = 10_000
"""Period of writing the expressions of consumer groups."""
PATIENCE_S: Final = 3.0
"""Longest time that a stop waits until requests that have arrived are answered."""


@final
class BrokerController:
    """Starts and stops the sockets and services of a broker on ``store``, once.

    Construct it in the event loop in which it serves. Raises StoreError or OSError if the files of topics,
    groups or offsets cannot be read.
    """

    def __init__(
        self,
        store: MessageStore,
        broker_config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        scheduler: Scheduler | None = None,
        entropy: Entropy | None = None,
        name_server_config: NameServerConfig | None = None,
        auth_config: AuthConfig | None = None,
        settings_file: str = "",
        tls: TlsOptions | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Prepare to serve ``store``, and to write changes of live settings to ``settings_file`` if there is one.

        ``tls`` is for connections to name servers of other processes. ``limits`` are those of ports that are already
        listened on, see `serve_on`.
        """
        self.broker_address = ""
        """``ip:port`` that the broker advertises to clients."""
        self.namesrv_address = ""
        """``ip:port`` of the name server, or if it runs in other processes their addresses, separated by ``;``."""
        self._store = store
        self._config = broker_config or BrokerConfig()
        self.limits = server_limits(self._config) if limits is None else limits
        """Limits of the connections and calls of all ports."""
        self._clock = clock or SystemClock()
        self._name_server_config = name_server_config or NameServerConfig()
        self._settings_file = SettingsFile(store.file_system, settings_file) if settings_file else None
        self._scheduler = scheduler or ThreadScheduler()
        self.servers: list[RemotingServer] = []
        """The open ports, while the broker is started."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._registration: Registration | None = None
        self._slaves: SlavePort | None = None
        self._name_server: NameServer | None = None
        self._tls = tls
        self._started = False
        auth = auth_config or AuthConfig()
        self.audit = Audit(
            self._clock, self._config.broker_cluster_name, AuditLog(auth.audit_log) if auth.audit_log else None)
        self.access = Access(
            self._clock, store.file_system, store.config_dir, auth, self._config.broker_cluster_name,
            read_only=bool(store.read_only), recorder=self.audit)
        self._settings = settings_of(self._config, store.config, auth, storePathRootDir=str(store.path))
        proven = ProvenTopics(store.topics)
        self._broker = broker = BrokerParts(
            asyncio.get_running_loop(), self._clock, entropy or SystemEntropy(), store, self._config,
            self.limits, control=self.access.enforced, outgoing=self._new_client,
            audit_log=self.audit.file, denied=lambda: dict(self.access.control.denied))
        subscriptions = ProvenSubscriptions(broker.topics, broker.groups, broker.consumers)
        running = self._running_settings(auth, proven, subscriptions)
        self._durable, self._synced = broker.durable, broker.synced
        durable, synced = self._waits()
        self._pull = wiring.pulls(broker, subscriptions)
        self._pull_lane = broker.make(PullLane, proven=subscriptions)
        self._send = wiring.sends(broker, broker.durable, wait_durable=durable is not None, proven=proven)
        self._lite = wiring.lite_topics(broker)
        self._pop = wiring.pop_consumption(broker, synced, self._lite)
        self._slave = wiring.slave_services(broker, self.access)
        self._transactions = wiring.ends_of_transactions(broker, durable)
        self._checks = broker.make(TransactionChecks)
        self._cleaner = MappingCleaner(
            store, broker.forwarder, self._config.broker_name, self._clock, broker.executors.files)
        self._processors = self._made_processors(running, proven, durable, synced)

    def _made_processors(
        self, running: RunningSettings, proven: ProvenTopics, durable: DurableAnswers | None,
        synced: DurableAnswers | None,
    ) -> list[RequestProcessor | SendLane | SettingsProcessor | AccessProcessor]:
        broker = self._broker
        reply = broker.make(ReplyMessageProcessor, messages=self._send.messages, durable=durable)
        retention = RetentionProcessor(broker.loop, broker.store, broker.executors)
        admin = wiring.admin(broker)
        self._workers = [broker.worker, broker.cold_reads, retention.worker, admin.syncs]
        self._later: list[_DefersReplies] = [broker.changes, *self._workers, broker.forwarder, reply, self.ends]
        if broker.control is not None:
            self._watch_users(broker.control)
        return [
            self._send, wiring.send_lane(broker, self._send, proven, wait_durable=durable is not None), reply,
            self._transactions, retention, admin, *wiring.processors(broker, durable, synced),
            SettingsProcessor(running, broker.worker, broker.control, self._config.broker_cluster_name),
            AccessProcessor(self.access, broker.changes, self._store.read_only, self._clock.now_ms),
        ]

    def _new_client(self) -> RemotingClient:
        return RemotingClient(tls=self._tls, credentials=self.access.inner_client)

    def _waits(self) -> tuple[DurableAnswers | None, DurableAnswers | None]:
        """Return the answers that wait for disk and slaves, and for the disk alone; None if nothing is to wait for."""
        is_synced = self._store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        waits = is_synced or self._store.inner.replication.waits
        return self._durable if waits else None, self._synced if is_synced else None

    def _running_settings(
        self, auth: AuthConfig, topics: ProvenTopics, subscriptions: ProvenSubscriptions
    ) -> RunningSettings:
        def forget() -> None:
            topics.forget()
            subscriptions.forget()

        configs = self._config, self._store.config, auth
        return RunningSettings(self._clock, configs, self._settings, self._settings_file, forget)

    @property
    def _polls(self) -> tuple[LongPolling[Any], ...]:
        pops, lite = self._pop, self._lite.service
        return self._pull.service.hold, pops.polling, pops.inspect.polling, lite.polling, lite.notifications

    def _watch_users(self, control: AccessControl) -> None:
        broker, access = self._broker, self.access
        departures = access.departures = Departures(
            broker.loop, control, access.users, access.acls, broker.consumers, broker.locks)
        departures.holds += [*self._polls, broker.cold_reads]
        departures.forget.append(self._lite.registry.forget_clients)

    async def start(
        self,
        listen: Address = ("127.0.0.1", 10911),
        namesrv_listen: Address | None = ("127.0.0.1", 9876),
        *,
        vip: bool = False,
    ) -> None:
        """Listen and serve. Raises OSError if the process cannot listen on an address; then nothing runs."""
        listeners = Listeners(
            self._config.broker_ip1, limits=self.limits,
            high_water=self._config.write_buffer_high_water_mark or HIGH_WATER)
        await listeners.start(listen, namesrv_listen, vip=vip)
        await self.serve_on(listeners)

    async def serve_on(self, listeners: Listeners) -> None:
        """Serve on ports that are already listened on; if this raises, they are closed.

        Raises ValueError if the limits of their connections are not those of this broker.
        """
        try:
            if listeners.limits is not self.limits:
                raise ValueError("the connections of the ports have other limits than the broker")
            await self._serve_on(listeners)
        except BaseException:
            if self._slaves is not None:
                await self._slaves.stop()
            await listeners.stop()
            raise
        self._started = True
        events.BROKER_STARTED.log(
            _log, broker=listeners.listen_address, namesrv=listeners.namesrv_listen_address,
            advertised=self.broker_address)

    async def _serve_on(self, listeners: Listeners) -> None:
        # Recovery may have cut messages off that were consumed. The comparison needs dispatched queues.
        if await self._broker.executors.background.run(self._store.wait_dispatched):
            self._correct_offsets()
            self._persist_offsets()  # after a kill the old ones would count again, and their queues may be longer then
        await self._broker.executors.background.run(self._broker.transactions.load)
        self.broker_address = self._broker.addresses.broker = listeners.broker_address
        store_host = listeners.store_host
        self._store.inner.store_host = store_host
        others = await self._broker.executors.background.run(  # in a thread, because it may look up host names
            registered_elsewhere, self._config.namesrv_addr, listeners.namesrv_address)
        broker = self._broker
        brokers = BrokerGroup(self._config, broker.addresses, broker.outgoing)
        await brokers.refuse_second(others)
        if self._slave is None:
            await take_offsets_of_slaves(
                self._store, broker.groups, broker.offsets, brokers, broker.outgoing, others, broker.replicas.faults)
        self._send.set_store_host(store_host)
        self._settings.update(listenPort=str(listeners.port), brokerIP1=listeners.advertised)
        await self._serve_slaves(listeners)
        self._register(listeners)
        self.access.advertise(self.broker_address)
        for server in listeners.servers:
            self.access.guard(server)
            self.audit.watch(server)
        listeners.serving()
        self.servers = listeners.servers
        self._store.set_message_arriving_listener(
            CountedArrivals(self._broker.traffic, self._pull.service.hold, self._pop, self._lite),
            lambda: any(map(len, self._polls)))
        self._scheduler.every(
            "ConsumerOffsetPersist", lambda: self._config.flush_consumer_offset_interval,
            self._persist_offsets_later,
        )
        self._scheduler.every("ConsumerFilterPersist", FILTERS_MS, self._persist_filters_later)
        if self._slave is None:  # on a slave only the replication appends
            self._pop.start(self._scheduler)
            self._lite.start(self._scheduler, self._every)
            self._start_transactions()
        self._scheduler.every("BrokerStats", SAMPLE_MS, self._broker.stats.step)
        self._every("scan", SCAN_S, self._scan)
        if self.audit.file is not None:
            self._every("audit log", AUDIT_S, self.audit.file.flush)
        self._every("mappings", PERIOD_S, self._cleaner.start_pass)
        self._broker.loop_lag.start()
        self._register_elsewhere(listeners.namesrv_address, others)
        if self._slave is not None:
            self._slave.start()

    async def _serve_slaves(self, listeners: Listeners) -> None:
        """Open the port for slaves before its address goes to name servers."""
        if not has_slave_port(self._store.config):
            return
        broker = self._broker
        slaves = broker.make(SlavePort, listeners=listeners)
        await slaves.start()
        self._slaves, (host, _, port) = slaves, broker.addresses.ha.rpartition(":")
        self._settings.update(haListenPort=port, brokerIP2=host)
        self._every("slaves", TICK_S, slaves.tick)

    def _start_transactions(self) -> None:
        config, service = self._config, self._broker.transactions
        self._scheduler.every(
            "TransactionMetricsFlush", config.transaction_metric_flush_interval, self._persist_metrics)
        self._every(
            "operations", max(config.transaction_op_batch_interval, 100) / 10_000,
            service.write_operations_if_due)
        self._every("checks", config.transaction_check_interval / 1000, self._checks.start_pass)

    def _correct_offsets(self) -> None:
        """Lower offsets that are past the end of their queue to that end.

        Such an offset was written before its messages were durable, and a power loss removed the messages.
        If it stayed, the group would skip the next messages, which get the same offsets.
        """
        offsets = self._broker.offsets
        for topic, group, queue_id, offset in offsets.entries():
            until = self._store.queue_of(topic, queue_id).max
            if self._broker.topics.select(topic) is not None and offset > until:
                events.CONSUMER_OFFSET_CORRECTED.log(
                    _log, group=group, topic=topic, queue=queue_id, offset=offset, to=until)
                offsets.commit(group, topic, queue_id, until)

    def _register(self, listeners: Listeners) -> None:
        """Register the processors at the servers."""
        self._register_on(listeners.broker)
        if listeners.vip is not None:
            self._register_on(listeners.vip, pulls=False)
        if listeners.namesrv is not None:
            self._register_name_server(listeners.namesrv, listeners.namesrv_address)

    def _register_on(self, server: RemotingServer, *, pulls: bool = True) -> None:
        """Register the processors at a server; ``pulls`` is False for the VIP port: it serves no pulls and pops."""
        server.on_close = self._client_gone
        server.on_activity = partial(self._broker.traffic.counters.add, "CHANNEL_ACTIVITY", value=1)
        for processor in (*self._processors, *((self._pull, self._pull_lane) if pulls else ())):
            processor.register(server)
        self._pop.register(server, pops=pulls)
        self._lite.register(server, pops=pulls)
        if self._slave is not None:
            SlaveRefusals(reads=self._config.slave_read_enable).register(server)

    def _register_name_server(self, server: RemotingServer, address: str) -> None:
        kv = KVConfigManager(self._store.file_system, self._store.config_dir)
        kv.load()
        name_server = NameServer(
            self._clock, kv, self._name_server_config, self._broker.loop, self._broker.executors,
            control=self.access.enforced, registration_needs_topics=self.access.config.registration_needs_topics)
        self._later += name_server.later
        name_server.register_local(
            self._config.broker_cluster_name, self._config.broker_name, self.broker_address,
            self._broker.topics.table, self._broker.topics.mappings.table, self._broker.addresses.ha,
        )
        self._name_server = name_server
        self._broker.name_servers.ask_own(name_server, address)
        server.on_close = name_server.closed
        name_server.register(server)
        running = RunningSettings(
            self._clock, (self._name_server_config,),
            settings_of(self._name_server_config, listenPort=address.rpartition(":")[2]), self._settings_file)
        SettingsProcessor(running, name_server.worker).register_name_server(server)
        self.namesrv_address = address
        self._settings["namesrvAddr"] = address
        self._every("expire", SCAN_S, name_server.expire)

    def _register_elsewhere(self, own: str, others: list[str]) -> None:
        """Register at ``others``, the name servers of ``namesrvAddr`` except ``own``, the one of this process."""
        if not others:
            return
        broker = self._broker
        self._registration = Registration(
            broker.loop, self._config, broker.topics, broker.addresses, broker.outgoing, broker.executors.background,
            others, self._slave.log.set_master if self._slave else None)
        if self._slave is not None:
            self._slave.log.lost.add(self._registration.again)
        self._registration.start()
        addresses = ";".join([own, *others] if own else others)
        self._settings["namesrvAddr"] = addresses
        self.namesrv_address = own or addresses
        broker.name_servers.registered_at(self._registration, self.namesrv_address)

    @property
    def broker(self) -> BrokerParts:
        """The parts of the broker."""
        return self._broker

    @property
    def messages(self) -> MessageService:
        """Stores messages for every protocol."""
        return self._send.messages

    @property
    def acks(self) -> AckService:
        """Settles popped messages for every protocol."""
        return self._pop.acks

    @property
    def ends(self) -> TransactionEnds:
        """Commits and rolls back half messages for every protocol."""
        return self._transactions.service

    @property
    def pops(self) -> tuple[PopService, LitePopService]:
        """Hand out messages of topics, and of Lite topics, for every protocol."""
        return self._pop.service, self._lite.service

    def in_process(self) -> RemotingServer:
        """Return a server without a port, for `InProcessConnection`. It serves what the broker's port serves."""
        server = RemotingServer(limits=ServerLimits(bytes_max=self._config.server_buffer_max_bytes))
        server.loop = self._broker.loop
        if self.access.departures is not None:
            self.access.departures.servers.append(server)
        self._register_on(server)
        return server

    def for_users(self, via: str) -> RemotingServer:
        """Return a server without a port for users whom another protocol has proven.

        It checks and records their requests as the broker's port does; ``via`` is in the audit log.
        """
        server = self.in_process()
        server.check = self.access.check_proven
        self.audit.watch(server, via)
        return server

    async def stop(self) -> None:
        """Stop serving. Sends that wait for the disk are answered, held pulls of clients after 5.3.1 with GO_AWAY."""
        if not self._started:
            return
        self._started = False
        self._pop.stop_reviving()
        for timer in self._timers.values():
            timer.cancel()
        self._broker.loop_lag.stop()
        self._store.set_message_arriving_listener(None)
        for part in (self._slave, self._registration):
            if part is not None:
                await part.stop()
        for server in self.servers:
            server.draining = True
        for reply in (
            *self._pull.service.hold.release_all(), *self._pop.release_all(), *self._lite.release_all(),
            *self._broker.cold_reads.release_all(),
        ):
            if reply.request.version > VERSION_V5_3_1:
                reply.fail(RefusalError(ResponseCode.GO_AWAY, "please go away"))
        await self._wait_durable()
        if self._slaves is not None:
            await self._slaves.stop()
        await self._close_servers()
        await self._end_writing()
        self._scheduler.stop_all()
        self._pop.prepare()
        self._broker.consumer_filters.prepare()
        self._persist_offsets()
        self._persist_metrics()
        self._persist_filters()
        if self.audit.file is not None:
            self.audit.file.close()
        self._broker.executors.stop()
        events.BROKER_STOPPED.log(_log, broker=self.broker_address)

    def _prepare(self, step: Callable[[], None]) -> None:
        """Have the event loop encode a table that belongs to it; what it encodes later is written the next time."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._broker.loop.call_soon_threadsafe(step)

    def _persist_offsets_later(self) -> None:
        self._prepare(self._pop.prepare)
        self._persist_offsets()

    def _persist_filters_later(self) -> None:
        self._prepare(self._broker.consumer_filters.prepare)
        self._persist_filters()

    def _persist_offsets(self) -> None:
        self._write(
            lambda error: events.CONSUMER_OFFSETS_COULD_NOT_BE_WRITTEN.log(_log, cause=error),
            self._broker.offsets.persist_if_changed, self._pop.write_prepared)

    def _persist_metrics(self) -> None:
        self._write(
            lambda error: events.NUMBERS_OF_HALF_MESSAGES_COULD_NOT_BE_WRITTEN.log(_log, cause=error),
            self._broker.transactions.metrics.persist_if_changed)

    def _persist_filters(self) -> None:
        self._write(
            lambda error: events.CONSUMER_FILTERS_COULD_NOT_BE_WRITTEN.log(_log, cause=error),
            self._broker.consumer_filters.write_prepared)

    def _write(self, say: Callable[[Exception], None], *steps: Callable[[], object]) -> None:
        """Write state files, unless they belong to another process by now. After a failure a stop continues."""
        try:
            for step in () if self._store.lost_lock else steps:
                step()
        except (StoreError, OSError) as error:
            say(error)

    async def _wait_durable(self) -> None:
        """Wait up to `PATIENCE_S` until requests that wait for the disk are answered."""
        for _ in range(int(PATIENCE_S * 100)):
            if not (self._durable.pending or self._synced.pending or any(later.pending for later in self._later)):
                return
            await asyncio.sleep(0.01)

    async def _end_writing(self) -> None:
        """Wait for files that are being written; after the store is closed another process may own them."""
        for later in self._later:
            await later.stop()
        await self._checks.stop()
        await self._cleaner.stop()
        await self._lite.dispatcher.stop()
        if self._broker.store.is_writeable and not self._store.lost_lock:
            self._broker.transactions.write_operations()

    async def _close_servers(self) -> None:
        servers, self.servers = self.servers, []
        await asyncio.gather(*(server.stop() for server in servers))

    def _client_gone(self, channel: Channel) -> None:
        self._broker.clients.closed(channel)
        for place in (*self._polls, *self._workers):
            place.closed(channel)

    def _end_old_passwords(self) -> None:
        if self.access.departures is not None:
            self.access.departures.end_old_passwords(self._clock.now_ms())

    def _scan(self) -> None:
        broker = self._broker
        for step in (
            broker.clients.consumers.expire, broker.clients.producers.expire, broker.clients.locks.expire,
            broker.consumer_filters.expire, broker.asked.expire, self._end_old_passwords,
        ):
            with caught("scan"):
                step()

    def _every(self, name: str, seconds: float, step: Callable[[], None]) -> None:
        loop = self._broker.loop

        def run() -> None:
            self._timers[name] = loop.call_later(seconds, run)
            with caught(name):
                step()

        self._timers[name] = loop.call_later(seconds, run)


class _DefersReplies(Protocol):
    @property
    def pending(self) -> int: ...
    async def stop(self) -> None: ...
