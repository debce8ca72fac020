"""``tailrace serve``: a store, a broker and a name server until a signal comes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.broker.controller import BrokerController
from tailrace.broker.listeners import Address, Listeners, why_not_listening
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import StoreError
from tailrace.formats.filenames import SERVE
from tailrace.node.message_store import MessageStore
from tailrace.remoting.client import split_address

if TYPE_CHECKING:
    from tailrace.broker.http_status import HttpStatusServer

__all__ = ["parse_address", "serve_store"]


def parse_address(text: str, option: str) -> Address:
    """Host and port of ``HOST:PORT``; raises ValueError that names the option."""
    place = split_address(text)
    if place is None or text.startswith(":"):
        raise ValueError(f"{option} {text} is not HOST:PORT")
    return place


class _Progress:
    """How far the opening of the store has come; the store says it, ``/ready`` asks."""

    def __init__(self) -> None:
        self.done: float | None = None

    def say(self, done: float) -> None:
        self.done = done

    def ask(self) -> float | None:
        return self.done


def serve_store(
    path: str, listen: Address, namesrv_listen: Address, store_config: StoreConfig,
    broker_config: BrokerConfig, http_listen: Address | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; raises StoreError or OSError.

    Until the store is open such a signal ends the process at once, as a crash would: there is
    nothing to close yet, and the next start recovers as this one did.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    progress = _Progress()
    listeners = Listeners(
        broker_config.broker_ip1, progress.ask, names=("--listen", "--namesrv-listen"))
    opening = partial(
        MessageStore.open, path, config=store_config, broker_config=broker_config,
        on_recovery=progress.say)
    take_ports = partial(listeners.start, listen, namesrv_listen, vip=listen[1] > 2)
    serving = _serve(opening, progress, listeners, take_ports, broker_config, http_listen)
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


async def _serve(
    opening: partial[MessageStore], progress: _Progress, listeners: Listeners,
    take_ports: Callable[[], Coroutine[Any, Any, None]], broker_config: BrokerConfig,
    http_listen: Address | None,
) -> None:
    loop = asyncio.get_running_loop()

    def locked() -> None:  # in the thread of the open: first the lock, then the ports, then recovery
        try:
            asyncio.run_coroutine_threadsafe(take_ports(), loop).result()
        except OSError as error:
            raise StoreError(error.strerror or str(error)) from error

    http = None if http_listen is None else await _start_http(
        http_listen, broker_config, progress)
    try:
        store = await loop.run_in_executor(None, partial(opening, on_lock=locked))
        try:
            await _serve_open_store(store, listeners, broker_config, http)
        finally:
            await loop.run_in_executor(None, store.close)
    finally:
        await listeners.stop()
        if http is not None:
            await http.stop()


async def _start_http(
    listen: Address, broker_config: BrokerConfig, progress: _Progress
) -> HttpStatusServer:
    from tailrace.broker.http_status import HttpStatusServer  # noqa: PLC0415 - only with --http

    http = HttpStatusServer(broker_config, progress.ask)
    try:
        host, port = await http.start(*listen)
    except OSError as error:
        raise StoreError(
            f"cannot listen on --http {listen[0]}:{listen[1]}: {why_not_listening(error, listen[1])}"
        ) from error
    print(f"http={host}:{port}", file=sys.stderr, flush=True)
    return http


async def _serve_open_store(
    store: MessageStore, listeners: Listeners, broker_config: BrokerConfig,
    http: HttpStatusServer | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = BrokerController(store, broker_config)
    await controller.serve_on(listeners)
    hint = Path(store.path) / SERVE
    if store.read_only:
        print(f"the store is {store.read_only}", file=sys.stderr)
    else:
        _leave_hint(hint, controller)
    if http is not None:
        http.serving(controller.broker)
    gc.freeze()  # a full collection holds every thread; it need not look at what was loaded
    print(f"ready broker={controller.broker_address} namesrv={controller.namesrv_address} "
          f"recovered_ms={round(store.recovery_report['ms'])}"
          + (" read-only" if store.read_only else ""), flush=True)
    await stop.wait()
    print("stopping", file=sys.stderr)
    if http is not None:
        http.stopping()
    await controller.stop()
    if not store.read_only:
        hint.unlink(missing_ok=True)


def _leave_hint(hint: Path, controller: BrokerController) -> None:
    """Note who serves the directory, for commands that find it locked; a full disk is no reason."""
    try:
        hint.parent.mkdir(exist_ok=True)
        hint.write_text(json.dumps({
            "pid": os.getpid(), "broker": controller.broker_address,
            "namesrv": controller.namesrv_address,
        }))
    except OSError as error:
        print(f"tailrace: {hint}: {error.strerror}; commands on the directory will not find this server",
              file=sys.stderr, flush=True)
