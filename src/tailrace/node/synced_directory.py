"""Open a directory for reading, beside the server that may have it open.

A server syncs its log up to ten seconds after it has acknowledged a message, and readers leave out what is not
synced. So the server is asked to sync first, if the directory has such messages. If the server does not sync, the
reader gets the reason, and the time for which messages may be missing.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats import filenames
from tailrace.formats.commitlog import (
    BLANK,
    BLANK_MAGIC,
    STORE_TIME_HEAD,
    plausible_size,
    store_timestamp_of,
)
from tailrace.node.serve_hint import serve_hint
from tailrace.remoting.tls import TlsOptions
from tailrace.store.directory import DirectoryState, StoreDirectory

__all__ = ["Synced", "open_synced"]


class Synced(NamedTuple):
    """A directory that was opened for reading."""

    directory: StoreDirectory
    behind: str
    """Why messages may be missing that were acknowledged before the open, and for how long; empty if all are there."""


def open_synced(
    path: str, *, config: StoreConfig | None = None, file_system: FileSystem | None = None, raw: bool = False,
    index: bool = False, tls: TlsOptions | None = None, clock: Clock | None = None,
) -> Synced:
    """Open a directory, with every message that was acknowledged before the call if the server syncs.

    ``tls`` is for the connection to the server. The other parameters and errors are those of ``StoreDirectory``.
    """
    def opened() -> StoreDirectory:
        return StoreDirectory(path, config=config, file_system=file_system, raw=raw, index=index)

    directory = opened()
    since_ms = hidden_since_ms(directory)
    if since_ms is None:
        return Synced(directory, "")
    hint = serve_hint(directory.path, directory.file_system)
    holder = directory.file_system.lock_holder(f"{directory.path}/{filenames.LOCK}")
    if holder is None:  # closed since
        return Synced(opened(), "")
    address = str(hint.get("broker", "")) if hint.get("pid") == holder else ""
    try:
        if address:
            _sync(address, tls)
            return Synced(opened(), "")
    except (StoreError, OSError) as error:
        whose = f"the server at {address}, which did not sync: {str(error).splitlines()[0]}"
    else:
        whose = f"process {holder}, which has the directory open and is not a server of Tailrace"
    seconds = max(-(-((clock or SystemClock()).now_ms() - since_ms) // 1000), 1)
    return Synced(directory, f"up to {seconds:,} s behind {whose}")


def hidden_since_ms(directory: StoreDirectory) -> int | None:
    """Return the time of the first message that another process has stored and that is left out; None without one.

    The time is in ms, by the wall clock. Of a directory that a Java broker has open, it is not known whether there are
    such messages: the result is the time up to which messages are shown.
    """
    if directory.state is DirectoryState.LIVE_JAVA:
        return directory.time_bound
    if directory.state is not DirectoryState.LIVE:
        return None
    at = min(directory.bound, directory.dispatched)
    head = directory.read(at, STORE_TIME_HEAD)
    if len(head) >= BLANK.size and BLANK.unpack_from(head).magic == BLANK_MAGIC:
        at = min((file.file_from_offset for file in directory.log_files if file.file_from_offset > at), default=at)
        head = directory.read(at, STORE_TIME_HEAD)
    if not plausible_size(head, at):
        return None
    return directory.wall_times.of(at, store_timestamp_of(head) or 0)


def _sync(address: str, tls: TlsOptions | None) -> None:
    """Ask a server to sync. Raises StoreError or OSError."""
    from tailrace.client.admin import AdminClient  # noqa: PLC0415 - asyncio and sockets
    from tailrace.env.loop_thread import EventLoopThread  # noqa: PLC0415

    async def ask() -> None:
        async with AdminClient(broker=address, tls=tls or False) as admin:
            await admin.sync_store()

    with closing(EventLoopThread()) as loop:  # a notebook has a loop of its own in this thread
        loop.run(ask())
