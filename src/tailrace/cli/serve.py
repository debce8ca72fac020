"""``tailrace serve``: a store, a broker and a name server until a signal comes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import StoreError
from tailrace.formats.filenames import SERVE
from tailrace.node.message_store import MessageStore

if TYPE_CHECKING:
    from tailrace.broker.http_status import HttpStatusServer

__all__ = ["parse_address", "serve_store"]

Address = tuple[str, int]


def parse_address(text: str, option: str) -> Address:
    """Host and port of ``HOST:PORT``; raises ValueError that names the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{option} {text} is not HOST:PORT")
    return host.strip("[]"), int(port)


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
    opening = partial(
        MessageStore.open, path, config=store_config, broker_config=broker_config,
        on_recovery=progress.say)
    serving = _serve(opening, progress, listen, namesrv_listen, broker_config, http_listen)
    try:
        import uvloop  # noqa: PLC0415 - not everywhere
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


async def _serve(
    opening: partial[MessageStore], progress: _Progress, listen: Address, namesrv_listen: Address,
    broker_config: BrokerConfig, http_listen: Address | None,
) -> None:
    http = None if http_listen is None else await _start_http(
        http_listen, broker_config, progress)
    try:
        store = await asyncio.get_running_loop().run_in_executor(None, opening)
        try:
            await _serve_open_store(store, listen, namesrv_listen, broker_config, http)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, store.close)
    finally:
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
        raise StoreError(f"cannot listen on --http {listen[0]}:{listen[1]}: {_why(error)}") from error
    print(f"http={host}:{port}", file=sys.stderr, flush=True)
    return http


async def _serve_open_store(
    store: MessageStore, listen: Address, namesrv_listen: Address, broker_config: BrokerConfig,
    http: HttpStatusServer | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = BrokerController(store, broker_config)
    try:
        await controller.start(listen, namesrv_listen, vip=listen[1] > 2)
    except OSError as error:
        raise StoreError(error.strerror or str(error)) from error
    hint = Path(store.path) / SERVE
    if store.read_only:
        print(f"the store is {store.read_only}", file=sys.stderr)
    else:
        hint.parent.mkdir(exist_ok=True)
        hint.write_text(json.dumps({
            "pid": os.getpid(), "broker": controller.broker_address,
            "namesrv": controller.namesrv_address,
        }))
    if http is not None:
        http.serving(controller.broker)
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


def _why(error: OSError) -> str:
    """The reason without the address, which asyncio repeats in its own way."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
