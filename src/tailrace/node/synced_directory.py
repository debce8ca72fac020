"""Open a directory for reading, beside the server that may have it open.

A server syncs its log up to ten seconds after it has acknowledged a message, and readers leave out what is not
synced. So the server is asked to sync first, if the directory has such messages. If it does not sync, the reader
gets the reason with the time that it may be behind.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats import filenames
from tailrace.node.serve_hint import serve_hint
from tailrace.remoting.tls import TlsOptions
from tailrace.store.directory import StoreDirectory

__all__ = ["Synced", "open_synced"]


class Synced(NamedTuple):
    """A directory that was opened for reading."""

    directory: StoreDirectory
    behind: str
    """Why messages may be missing that were acknowledged before the open, and for how long; empty if none are."""


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
    since_ms = directory.hidden_since_ms()
    if since_ms is None:
        return Synced(directory, "")
    hint = serve_hint(directory.path, file_system)
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


def _sync(address: str, tls: TlsOptions | None) -> None:
    """Ask a server to sync. Raises StoreError or OSError."""
    from tailrace.client.admin import AdminClient  # noqa: PLC0415 - asyncio and sockets
    from tailrace.env.loop_thread import EventLoopThread  # noqa: PLC0415

    async def ask() -> None:
        async with AdminClient(broker=address, tls=tls or False) as admin:
            await admin.sync_store()

    loop = EventLoopThread()  # a notebook has a loop of its own in this thread
    try:
        loop.run(ask())
    finally:
        loop.close()
