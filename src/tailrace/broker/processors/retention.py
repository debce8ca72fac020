"""Deletion asked for by hand: request 329 (mqadmin deleteExpiredCommitLog) and `topic purge`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

from tailrace.broker.context import BrokerContext
from tailrace.errors import StoreError
from tailrace.events import get_logger
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.remoting import Channel, RemotingServer

__all__ = ["RetentionProcessor"]

_log = get_logger(__name__)


@final
class RetentionProcessor:
    """Tells the store to delete; of what may take long one request is worked on at a time."""

    def __init__(self, broker: BrokerContext) -> None:
        self._store = broker.store
        self._loop = broker.loop
        self._waiting: deque[tuple[Channel, RemotingCommand, Callable[[], RemotingCommand]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.delete_expired_commit_log, RequestCode.DELETE_EXPIRED_COMMITLOG)
        server.register(
            self.clean_queues, RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        server.register(self.purge_topic, RequestCode.PURGE_TOPIC)

    def delete_expired_commit_log(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand:
        """Have the next 20 passes delete expired files: request 329."""
        try:
            self._store.execute_delete_files_manually()
        except StoreError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        return request.answer()

    def clean_queues(self, channel: Channel, request: RemotingCommand) -> None:
        """Remove queues of topics that are gone: requests 316 and 306.

        The original's 306 also removes the queues of topics that exist when all their messages
        expired, and begins them again at offset 0; here a queue keeps its end.
        """

        def clean() -> RemotingCommand:
            self._store.delete_unused_topics()
            return request.answer()

        self._in_thread(channel, request, clean)

    def purge_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Let go of the messages of a topic: a request of Tailrace's own."""
        ext = request.ext
        try:
            topic = ext["topic"]
            queue_id, before_ms = (
                int(ext[name]) if name in ext else None for name in ("queueId", "beforeMs"))
        except (KeyError, ValueError) as error:
            return request.answer(ResponseCode.INVALID_PARAMETER, f"bad or missing: {error}")

        def purge() -> RemotingCommand:
            done = self._store.purge_topic(topic, queue_id, before_ms)
            return request.answer(body=fastjson.dumps({
                str(queue): {"from": low, "to": high} for queue, (low, high) in done.items()}))

        self._in_thread(channel, request, purge)
        return None

    def _in_thread(
        self, channel: Channel, request: RemotingCommand, work: Callable[[], RemotingCommand]
    ) -> None:
        """Answer later: the work waits for the dispatch or for files, and others are to be served."""
        self._waiting.append((channel, request, work))
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            channel, request, work = self._waiting.popleft()
            try:
                answer = await self._loop.run_in_executor(None, work)
            except (StoreError, OSError) as error:
                answer = request.answer(ResponseCode.SYSTEM_ERROR, str(error))
            except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
                _log.warning("admin request failed code=%d peer=%s reason=%r", request.code,
                             channel.peer, error)
                answer = request.answer(
                    ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            channel.answer(request, answer)
        self._task = None
