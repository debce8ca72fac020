"""``tailrace serve``: a store, a broker and a name server until a signal comes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import StoreError
from tailrace.formats.filenames import SERVE
from tailrace.node.message_store import MessageStore

__all__ = ["parse_address", "serve_store"]

Address = tuple[str, int]


def parse_address(text: str, option: str) -> Address:
    """Host and port of ``HOST:PORT``; raises ValueError that names the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{option} {text} is not HOST:PORT")
    return host.strip("[]"), int(port)


def serve_store(
    path: str, listen: Address, namesrv_listen: Address, store_config: StoreConfig,
    broker_config: BrokerConfig,
) -> None:
    """Serve until SIGTERM or SIGINT; raises StoreError or OSError."""
    with MessageStore.open(path, config=store_config, broker_config=broker_config) as store:
        recovered_ms = round(store.recovery_report["ms"])
        try:
            import uvloop  # noqa: PLC0415 - not everywhere
        except ImportError:
            asyncio.run(_serve(store, listen, namesrv_listen, broker_config, recovered_ms))
        else:
            uvloop.run(_serve(store, listen, namesrv_listen, broker_config, recovered_ms))


async def _serve(
    store: MessageStore, listen: Address, namesrv_listen: Address, broker_config: BrokerConfig,
    recovered_ms: int,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = BrokerController(store, broker_config)
    try:
        await controller.start(listen, namesrv_listen, vip=listen[1] > 2)
    except OSError as error:
        raise StoreError(f"cannot listen on {listen[0]}:{listen[1]} and "
                         f"{namesrv_listen[0]}:{namesrv_listen[1]}: {error}") from error
    hint = Path(store.path) / SERVE
    hint.parent.mkdir(exist_ok=True)
    hint.write_text(json.dumps({
        "pid": os.getpid(), "broker": controller.broker_address,
        "namesrv": controller.namesrv_address,
    }))
    print(f"ready broker={controller.broker_address} namesrv={controller.namesrv_address} "
          f"recovered_ms={recovered_ms}", flush=True)
    await stop.wait()
    print("stopping", file=sys.stderr)
    await controller.stop()
    hint.unlink(missing_ok=True)
