"""``tailrace retention``: the verdict for each file, deletion by hand, and a number of bytes freed on request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cli.admin import ask, server_of
from tailrace.cli.contexts import Target, tls_of
from tailrace.client.admin import AdminClient
from tailrace.config import StoreConfig
from tailrace.doctor.retention import RetentionView, explain_directory, plan_free
from tailrace.env import OsFileSystem, SystemClock
from tailrace.errors import StoreLockedError
from tailrace.formats.requests.broker_headers import FreeBytesRequestHeader
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.log_paths import log_paths
from tailrace.store.retention.free_request import FreeRequest

__all__ = ["delete_now", "explain_retention", "free"]

_UNDER_THE_LOCK = "one pass under the lock"
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
        address = _server_of(store)
        ask(Target(broker=address, tls=tls_of()), lambda admin: admin.delete_expired_files())
        by = f"the server at {address}"
        _wait_until_done(store, config, before)
    else:
        by = _UNDER_THE_LOCK
        with _opened(store, config) as opened:
            opened.retention.delete_now()
    return sorted(set(before) - set(_log_files(store, config))), by


def free(store: str, config: StoreConfig, wanted_bytes: int, *, dry_run: bool) -> tuple[FreeRequest, str]:
    """Delete the oldest files without a pin until this many bytes are freed.

    Returns how the request ended, and the server or pass that served it. ``dry_run`` deletes nothing. If a server
    has the directory open, it serves the request (329002) with its own settings. Raises StoreError or OSError.
    """
    if StoreDirectory(store, config=config).is_live:
        address = _server_of(store)
        header = FreeBytesRequestHeader(wanted_bytes, dry_run)
        return ask(Target(broker=address, tls=tls_of()), lambda admin: _free_by_server(admin, header)), (
            f"the server at {address}")
    if dry_run:
        return plan_free(store, config, SystemClock(), OsFileSystem(), wanted_bytes), _UNDER_THE_LOCK
    with _opened(store, config) as opened:
        return opened.retention.free_now(wanted_bytes), _UNDER_THE_LOCK


@contextmanager
def _opened(store: str, config: StoreConfig) -> Iterator[MessageStore]:
    """Yield a store whose pins are those of the offsets on disk."""
    with MessageStore.open(
        store, config=config, create=False, parts=StoreParts(services=False, must_write=True)
    ) as opened:
        offsets = ConsumerOffsetManager.of_stopped(OsFileSystem(), opened.config_dir, SystemClock())
        offsets.load()
        opened.retention.follow_groups(offsets)
        yield opened


async def _free_by_server(admin: AdminClient, header: FreeBytesRequestHeader) -> FreeRequest:
    """Send the request, then ask for its state until it has ended."""
    while True:
        request = FreeRequest.from_json(await admin.free_bytes(header))
        if request.ended:
            return request
        header = FreeBytesRequestHeader()
        await asyncio.sleep(_WAIT_S)


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


def _server_of(store: str) -> str:
    return server_of(store, StoreLockedError(
        store, "a process that is not a Tailrace server; for a Java broker use mqadmin deleteExpiredCommitLog"))


def _log_files(store: str, config: StoreConfig) -> list[str]:
    root = str(Path(store).absolute())
    return sorted(
        found.name for path in log_paths(remembered(read_format(OsFileSystem(), root), root, config), root).all
        for found in Path(path).glob("[0-9]*") if found.stat().st_size)
