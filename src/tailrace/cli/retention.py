"""``tailrace retention``: the verdict for each file, and deletion on request."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from tailrace.cli.connections import tls_of
from tailrace.cli.problems import serve_hint
from tailrace.client.credentials import credentials_of
from tailrace.config import StoreConfig
from tailrace.doctor.retention import RetentionView, explain_directory
from tailrace.env import OsFileSystem, SystemClock
from tailrace.errors import RemotingCommandError, StoreLockedError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting.client import RemotingClient
from tailrace.store.directory import StoreDirectory
from tailrace.store.log_paths import log_paths
from tailrace.store.own_settings import remembered

__all__ = ["delete_now", "explain_retention"]

_WAITS = 100
_WAIT_S = 0.1
_QUIET_WAITS = 10
"""A server pauses between two files; it counts as done if no file was deleted for a second."""


def explain_retention(store: str, config: StoreConfig) -> RetentionView:
    """Return what a pass would decide in a directory now."""
    return explain_directory(store, config, SystemClock(), OsFileSystem())


def delete_now(store: str, config: StoreConfig) -> tuple[list[str], str]:
    """Delete the files that may be deleted; return their names, and the server or pass that deleted them.

    If a server has the directory open, the request goes to the server (request 329), which uses its own settings.
    Otherwise this function makes one pass under the lock. Raises StoreError or OSError.
    """
    before = _log_files(store, config)
    if StoreDirectory(store, config=config).is_live:
        by = _ask_server(store)
        _wait_until_done(store, config, before)
    else:
        by = "one pass under the lock"
        with MessageStore.open(
            store, config=config, services=False, create=False, must_write=True
        ) as opened:
            offsets = ConsumerOffsetManager(
                OsFileSystem(), opened.config_dir, SystemClock(), lmq=config.enable_lmq)
            offsets.load()
            opened.keep_unconsumed(offsets)
            opened.retention.delete_now()
    return sorted(set(before) - set(_log_files(store, config))), by


def _wait_until_done(store: str, config: StoreConfig, before: list[str]) -> None:
    seen, quiet = before, 0
    for _ in range(_WAITS):
        threading.Event().wait(_WAIT_S)
        after = _log_files(store, config)
        quiet = quiet + 1 if after == seen else 0
        seen = after
        # A server may take a while before the first file, and to compare a file with the archive.
        slow = after == before or bool(config.archive_directory)
        if quiet >= _QUIET_WAITS * (5 if slow else 1):
            return


def _ask_server(store: str) -> str:
    try:
        address = str(serve_hint(store)["broker"])
    except KeyError:
        raise StoreLockedError(
            store, "a process that is not a Tailrace server; for a Java broker use mqadmin "
            "deleteExpiredCommitLog") from None

    async def ask() -> None:
        client = RemotingClient(tls=tls_of(), credentials=credentials_of(None))
        try:
            answer = await client.invoke(address, RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", address)
        finally:
            await client.close()

    asyncio.run(ask())
    return f"the server at {address}"


def _log_files(store: str, config: StoreConfig) -> list[str]:
    root = str(Path(store).absolute())
    return sorted(
        found.name for path in log_paths(remembered(OsFileSystem(), root, config), root).all
        for found in Path(path).glob("[0-9]*") if found.stat().st_size)
