"""``tailrace serve``: runs a store, a broker and a name server until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from tailrace import events
from tailrace.auth_settings import AuthConfig
from tailrace.broker.controller import BrokerController
from tailrace.broker.core.audit import AuditLog
from tailrace.broker.core.listeners import (
    Address,
    Listeners,
    acceptor_of,
    server_limits,
)
from tailrace.cli.serve_http import HttpPlace, check_console_actions, start_http
from tailrace.cli.signals import ending_signals
from tailrace.env.clock import SystemClock
from tailrace.env.descriptors import raise_descriptor_limit
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.linux_calls import few_heaps
from tailrace.env.shortage import is_shortage
from tailrace.env.supervisor import notify_supervisor
from tailrace.errors import StoreError
from tailrace.formats.filenames import SERVE
from tailrace.logs import get_logger
from tailrace.node.lock import LOCK_CHECK_MS
from tailrace.node.message_store import MessageStore
from tailrace.node.serve_hint import serve_file
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.addresses import address_text
from tailrace.remoting.client import split_address
from tailrace.remoting.server import HIGH_WATER
from tailrace.remoting.tls import outgoing_tls
from tailrace.remoting.tls_reload import TlsReload, acceptor_certificate

if TYPE_CHECKING:
    from tailrace.cli.serve_grpc import GrpcPlace
    from tailrace.cli.serve_settings import Places, Settings
    from tailrace.proxy.server import GrpcListener, GrpcServer

__all__ = ["LOOPBACK", "NAMESRV_ADDR", "is_of_this_machine", "parse_address", "say", "serve_store"]

_log = get_logger(__name__)
LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
"""Hosts that only this machine can reach, as they are mostly written."""
ERROR_PERIOD_S: Final = 60.0
NAMESRV_ADDR: Final = "namesrvAddr"
"""Setting that may contain the address of the name server of this process; errors name it."""
SWITCH_S: Final = 0.001
"""Seconds for which a thread that computes keeps the interpreter's lock while the event loop waits for it.

The loop needs the lock after each call of the system, several times for a request. With the 5 ms of Python, a thread
that encodes the tables of many topics and groups delayed every request by tens of milliseconds.
"""


def is_of_this_machine(host: str) -> bool:
    """Return whether only this machine reaches a host; names other than localhost are not looked up."""
    try:
        return host in LOOPBACK or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str, option: str) -> Address:
    """Return host and port of ``HOST:PORT``. Raises ValueError that names the option."""
    place = split_address(text)
    if place is None or text.startswith(":"):
        raise ValueError(f"{option} {text} is not HOST:PORT")
    return place


class _OpeningStoppedError(StoreError):
    """A signal arrived while the store was being opened."""

    def __init__(self) -> None:
        super().__init__("stopped by a signal while the store was being opened; the next start continues")


class _Progress:
    """Progress of the opening of the store, and whether it should stop."""

    def __init__(self) -> None:
        self.done: float | None = None
        self.stopping = False

    def say(self, done: float) -> None:
        """Note the progress; called by the thread that opens the store, about once a second."""
        self.done = done
        notify_supervisor("EXTEND", f"recovering {done * 100:.0f} %")
        self.check()

    def check(self) -> None:
        """Raise _OpeningStoppedError after a signal; the open then closes what it has opened."""
        if self.stopping:
            raise _OpeningStoppedError

    def ask(self) -> float | None:
        return self.done


class _Stop:
    """Handler of the signals that end the server.

    The first signal sets ``asked``. A later one has no effect while the store is being closed. While the store is
    still being opened, a later one ends the process immediately, as a crash would.
    """

    def __init__(self, progress: _Progress) -> None:
        self.asked = asyncio.Event()
        self.opening = True
        self._progress = progress
        for number in ending_signals(always=(signal.SIGINT, signal.SIGTERM)):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            events.STOP.log(_log, signal=number.name)
            self._progress.stopping = True
            self.asked.set()
        elif self.opening:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def say(text: str, stream: TextIO | None) -> None:
    """Print a line. If the stream is closed, log that and continue, because the store must be closed."""
    if stream is None:
        return
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError) as error:
        events.CANNOT_PRINT.log(_log, stream=stream.name, cause=error)
        with contextlib.suppress(OSError, ValueError):  # or the interpreter fails on it when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def serve_store(
    path: str, settings: Settings, places: Places, grpc: GrpcPlace | None, *, settings_file: str, console_actions: bool,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Raises StoreError or OSError.

    Requests that change settings also change ``settings_file``, an absolute path, unless it is empty. ``grpc`` is the
    place of the gRPC endpoint. With ``console_actions`` users of the console may act, which needs HTTP and users: else
    ConfigError is raised.

    A signal while the store is being opened ends a long recovery at its next report of progress, within about a
    second. The abort file then stays, and the next start recovers again.
    """
    broker, auth, tls = settings.broker, settings.auth, settings.tls
    if console_actions:
        check_console_actions(places.http, auth)
    if auth.audit_log:
        AuditLog.check(auth.audit_log)
    raise_descriptor_limit()
    if grpc is not None:
        few_heaps()  # before threads start: those of gRPC's library take memory for each call, see `GrpcConnections`
    progress = _Progress()
    acceptor = acceptor_of(tls, server_limits(broker))
    reload = TlsReload(OsFileSystem(), SystemClock())
    if (certificate := acceptor_certificate(tls, acceptor)) is not None:
        reload.add(certificate)
    acceptor.expires_s = reload.expires_s
    credentials = None if grpc is None else grpc.credentials(reload)
    listeners = Listeners(
        broker.broker_ip1, progress.ask, names=places.names, acceptor=acceptor,
        high_water=broker.write_buffer_high_water_mark or HIGH_WATER)
    opening = partial(MessageStore.open, path, config=settings.store, broker_config=broker)
    endpoint: list[GrpcListener] = []

    async def take_ports() -> None:
        try:
            await listeners.start(places.broker, places.namesrv, vip=places.broker[1] > 2)
            if grpc is not None:
                endpoint.append(grpc.listener(credentials, acceptor.limits.grpc))
        except OSError as error:
            text = error.strerror or str(error)
            if f" {NAMESRV_ADDR} " in text:
                text += "; if that is a name server, --namesrv-listen none registers the broker there"
            raise StoreError(text) from error

    _warn_about_remote(
        auth, places.broker, places.namesrv, places.grpc, places.http,
        guarded=broker.metrics_needs_user or bool(broker.metrics_token_file))
    serving = _serve(
        opening, progress, listeners, reload, endpoint, take_ports,
        partial(start_http, places.http, broker, progress.ask, acceptor, actions=console_actions),
        partial(BrokerController, broker_config=broker, name_server_config=settings.name_server,
                auth_config=auth, settings_file=settings_file, tls=outgoing_tls(tls), limits=acceptor.limits))
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _warn_about_remote(config: AuthConfig, *addresses: Address | None, guarded: bool = False) -> None:
    """Log at each start what other machines can do. The last address is that of HTTP, ``guarded`` its metrics."""
    *remoting, http = addresses
    for address in remoting:
        if address is None or is_of_this_machine(address[0]):
            continue
        if not config.authentication_enabled:
            events.ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ.log(_log, address=address_text(*address))
        elif not config.authorization_enabled:
            events.EVERY_USER_MAY_READ.log(_log, address=address_text(*address))
    if http is None or is_of_this_machine(http[0]):
        return
    if config.authentication_enabled:
        if not guarded:
            events.ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS.log(_log, address=address_text(*http))
    else:
        events.ANYBODY_WHO_REACHES_THIS_ADDRESS_MAY_READ_METRICS_AND_MESSAGES.log(_log, address=address_text(*http))


def _on_loop_error() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler for errors of the event loop itself, such as a failed accept; it logs one line a minute."""
    last = {"s": -ERROR_PERIOD_S, "count": 0.0}

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not is_shortage(error):
            loop.default_exception_handler(context)
            return
        last["count"] += 1
        if loop.time() - last["s"] >= ERROR_PERIOD_S:
            events.CONNECTIONS_CANNOT_BE_ACCEPTED.log(_log, cause=error, count=last["count"])
            last["s"], last["count"] = loop.time(), 0

    return handle


async def _serve(
    opening: partial[MessageStore], progress: _Progress, listeners: Listeners, reload: TlsReload,
    endpoint: list[GrpcListener],
    take_ports: Callable[[], Coroutine[Any, Any, None]],
    make_http: Callable[[], Coroutine[Any, Any, HttpPlace | None]], make: Callable[[MessageStore], BrokerController],
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error())
    stop = _Stop(progress)

    def locked() -> None:  # called in the thread of the open, after it has the lock and before recovery
        progress.check()
        asyncio.run_coroutine_threadsafe(take_ports(), loop).result()

    http = await make_http()
    reload.start()
    try:
        store = await loop.run_in_executor(None, partial(
            opening, parts=StoreParts(on_lock=locked, on_recovery=progress.say)))
        stop.opening = False
        try:
            if not stop.asked.is_set():
                await _serve_open_store(store, listeners, endpoint, make(store), http, stop.asked)
        finally:
            clean = await loop.run_in_executor(None, store.close)
        if not clean:
            raise StoreError(f"{store.path} could not be closed cleanly, the log says why; the next start recovers it")
    except _OpeningStoppedError as error:
        say(f"tailrace: {error}", sys.stderr)
    finally:
        await reload.stop()
        await listeners.stop()
        for listener in endpoint:
            await listener.close()
        if http is not None:
            await http.stop()


async def _serve_open_store(
    store: MessageStore, listeners: Listeners, endpoint: list[GrpcListener], controller: BrokerController,
    http: HttpPlace | None, stop: asyncio.Event,
) -> None:
    await controller.serve_on(listeners)
    grpc = await _serve_grpc(endpoint[0], controller) if endpoint else None
    hint = Path(store.path) / SERVE
    if store.read_only:
        say(f"the store is {store.read_only}", sys.stderr)
    else:
        _leave_hint(hint, listeners)
    if http is not None:
        http.serving(controller)
    prefer_event_loop()
    advertised = listeners.broker_address
    namesrv = listeners.namesrv_listen_address or controller.namesrv_address  # of this or another process
    say(f"ready broker={listeners.listen_address} namesrv={namesrv} "
         f"recovered_ms={round(store.recovery_report['ms'])}"
         + (f" advertised={advertised}" if advertised != listeners.listen_address else "")
         + (f" grpc={endpoint[0].address}" if endpoint else "")
         + (" read-only" if store.read_only else ""), sys.stdout)
    notify_supervisor("READY=1", f"serving {store.path} at {listeners.listen_address}")
    while not (stop.is_set() or store.lost_lock):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOCK_CHECK_MS / 1000)
    say("stopping", sys.stderr)
    notify_supervisor("STOPPING=1", "closing the store")
    if http is not None:
        await http.stopping()
    if grpc is not None:
        await grpc.stop()
    await controller.stop()
    if store.lost_lock:
        raise StoreError(store.lost_lock)
    if not store.read_only:
        with contextlib.suppress(OSError):  # it is only a hint, and the store has to be closed
            hint.unlink(missing_ok=True)


def prefer_event_loop() -> None:
    """Have the collector and the other threads of this process hold up the event loop for a short time only."""
    gc.freeze()  # a full collection stops all threads; without the loaded objects it is shorter
    sys.setswitchinterval(SWITCH_S)


async def _serve_grpc(listener: GrpcListener, controller: BrokerController) -> GrpcServer:
    from tailrace.proxy.server import GrpcServer  # noqa: PLC0415 - only with --grpc

    server = GrpcServer(controller)
    await server.serve_on(listener)
    return server


def _leave_hint(hint: Path, listeners: Listeners) -> None:
    """Write the hint for commands that find the directory locked. A failure, such as a full disk, is printed."""
    try:
        serve_file(str(hint.parent.parent), OsFileSystem()).write({
            "pid": os.getpid(), "broker": listeners.local_address, "namesrv": listeners.namesrv_address})
    except OSError as error:
        say(f"tailrace: {hint}: {error.strerror}; commands on the directory will not find this server",
             sys.stderr)
