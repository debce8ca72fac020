"""Storage of a consumer's offsets: on the brokers, or for broadcasting in a local file of the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, final

import orjson

from tailrace.client.broker_calls import BrokerCalls
from tailrace.client.routes import MessageQueue
from tailrace.env.filesystem import FileSystem, LockHandle, OsFileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.errors import ConfigError, RemotingError, StoreLockedError

__all__ = ["BrokerOffsets", "FileOffsets", "OffsetStore"]


class OffsetStore:
    """Reads and writes offsets of queues."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue; None if it has no offset. Raises RemotingError."""
        raise NotImplementedError

    async def write(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Write offsets; return the queues for which that failed, with the reason."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files and locks, if there are any."""


@final
class BrokerOffsets(OffsetStore):
    """Offsets of a group on the brokers of the queues."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the committed offset."""
        return await self._calls.committed(queue)

    async def write(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Commit the offsets on the brokers."""
        failed: dict[MessageQueue, Exception] = {}

        async def commit(queue: MessageQueue, offset: int) -> None:
            try:
                await self._calls.commit(queue, offset)
            except RemotingError as error:
                failed[queue] = error

        await asyncio.gather(*(commit(queue, offset) for queue, offset in offsets.items()))
        return failed


@final
class FileOffsets(OffsetStore):
    """Offsets in a file, which is replaced as a whole and durable after each write.

    Only one consumer at a time can use the file; for another one StoreLockedError is raised.
    """

    def __init__(self, path: str, file_system: FileSystem | None = None) -> None:
        self._path = path
        self._files = file_system or OsFileSystem()
        self._offsets: dict[MessageQueue, int] = {}
        directory = path.rpartition("/")[0]
        if directory:
            self._files.makedirs(directory)
        self._lock: LockHandle | None = self._files.lock(f"{path}.lock")
        if self._lock is None:
            raise StoreLockedError(path, "another broadcasting consumer; give each its own offset_file")
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        data = read_if_there(self._files, self._path)
        if data is None:
            return
        try:
            for one in orjson.loads(data)["offsets"]:
                self._offsets[MessageQueue.from_json(one)] = int(one["offset"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"offset_file {self._path} has no valid offsets ({error}); restore it, or delete it to begin "
                "at `start`") from None

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset in the file."""
        return self._offsets.get(queue)

    async def write(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Replace the file."""
        self._offsets.update(offsets)
        entries: list[dict[str, Any]] = [
            {**queue.to_json(), "offset": offset} for queue, offset in sorted(self._offsets.items())]
        data = orjson.dumps({"offsets": entries}, option=orjson.OPT_INDENT_2)
        try:
            await asyncio.to_thread(replace_file, self._files, self._path, data)
        except OSError as error:
            return dict.fromkeys(offsets, error)
        return {}

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
