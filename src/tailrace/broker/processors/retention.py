"""Deletion asked for by hand: request 329 (mqadmin deleteExpiredCommitLog) and `topic purge`."""

from __future__ import annotations

from typing import final

from tailrace.broker.answers_later import RequestWorker
from tailrace.broker.context import BrokerContext
from tailrace.errors import RefusalError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import PurgeTopicRequestHeader
from tailrace.remoting import Channel, RemotingServer

__all__ = ["RetentionProcessor"]


@final
class RetentionProcessor:
    """Tells the store to delete; of what may take long one request is worked on at a time."""

    def __init__(self, broker: BrokerContext) -> None:
        self._store = broker.store
        # A thread of its own: a purge waits for the dispatch and for files.
        self.worker = RequestWorker(broker.loop)
        self.clean_queues = self.worker.in_thread(self._clean_queues)
        self.purge_topic = self.worker.in_thread(self._purge_topic)

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
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return request.answer()

    def _clean_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remove queues of topics that are gone: requests 316 and 306.

        The original's 306 also removes the queues of topics that exist when all their messages
        expired, and begins them again at offset 0; here a queue keeps its end.
        """
        self._store.delete_unused_topics()
        return request.answer()

    def _purge_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Let go of the messages of a topic: a request of Tailrace's own."""
        header = request.read(PurgeTopicRequestHeader)
        done = self._store.purge_topic(header.topic, header.queue_id, header.before_ms)
        return request.answer(body=fastjson.dumps({
            str(queue): {"from": low, "to": high} for queue, (low, high) in done.items()}))
