"""Deletion on request of an operator.

| request | sent by | effect |
|---|---|---|
| 329 | mqadmin deleteExpiredCommitLog | the next passes delete expired files at any hour |
| 306, 316 | mqadmin cleanExpiredCQ, cleanUnusedTopic | queues of topics that do not exist are deleted |
| Tailrace's own | `tailrace topic purge` | a topic drops its messages |
| Tailrace's own | `tailrace retention --free` | the oldest files are deleted until a number of bytes is freed |
"""

from __future__ import annotations

import asyncio
from typing import Any, final

from tailrace.broker.core.deletion import deleted_answer
from tailrace.errors import RefusalError, StoreError, UnknownTopicError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import FreeBytesRequestHeader, PurgeTopicRequestHeader
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.requests.worker import RequestWorker

__all__ = ["RetentionProcessor"]


@final
class RetentionProcessor(RequestProcessor):
    """Serves requests to delete. Requests that may take long run one at a time in a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, executors: Executors,
    ) -> None:
        self._store = store
        # A separate thread, because a purge waits for the dispatch and for files.
        self.worker = self._worker = RequestWorker(loop, executors.worker("retention"))

    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_commit_log(self) -> None:
        """Have the next 20 passes of retention delete expired files, at any hour: request 329."""
        try:
            self._store.execute_delete_files_manually()
        except StoreError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from error

    @serves(RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, in_thread=True)
    def clean_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Delete the queues of topics that do not exist: requests 316 and 306.

        In RocketMQ request 306 also deletes queues of existing topics if all their messages have expired;
        such a queue starts at offset 0 again. Here the queue and its end offset stay.
        """
        return deleted_answer(request, self._store.deletion.delete_unused())

    @answers(RequestCode.FREE_BYTES, in_thread=True)
    def free_bytes(self, header: FreeBytesRequestHeader) -> dict[str, Any]:
        """Start to free bytes, plan that, or return how far the last request is: a request of Tailrace's own.

        The service deletes the files after the answer, with its usual pauses.
        """
        service = self._store.retention.clean_commit_log
        if header.free_bytes is None:
            found = service.free_request
            if found is None:
                raise RefusalError(ResponseCode.SYSTEM_ERROR, "no bytes were requested since the start")
        elif header.free_bytes <= 0:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"the number of bytes must be above 0: {header.free_bytes}")
        elif header.dry_run:
            found = service.plan_free(header.free_bytes)
        elif self._store.read_only:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"the store takes no changes: {self._store.read_only}")
        else:
            found = service.request_free(header.free_bytes)
        return found.to_json()

    @answers(RequestCode.PURGE_TOPIC, in_thread=True)
    def purge_topic(self, header: PurgeTopicRequestHeader) -> dict[str, Any]:
        """Drop the messages of a topic, of one queue or up to a time if given: a request of Tailrace's own."""
        try:
            done = self._store.purge_topic(header.topic, header.queue_id, header.before_ms)
        except UnknownTopicError:  # its text has names that not every user may know
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"there is no topic {header.topic}") from None
        return {str(queue): {"from": low, "to": high} for queue, (low, high) in done.items()}
