"""Deletion of expired files, asked for by hand: request 329 (mqadmin deleteExpiredCommitLog)."""

from __future__ import annotations

from typing import final

from tailrace.broker.context import BrokerContext
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.remoting import Channel, RemotingServer

__all__ = ["RetentionProcessor"]


@final
class RetentionProcessor:
    """Tells the store to delete; the answer does not wait for it, as in the original."""

    def __init__(self, broker: BrokerContext) -> None:
        self._store = broker.store

    def register(self, server: RemotingServer) -> None:
        """Take over the code of this processor."""
        server.register(self.delete_expired_commit_log, RequestCode.DELETE_EXPIRED_COMMITLOG)

    def delete_expired_commit_log(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand:
        """Have the next 20 passes delete expired files: request 329."""
        self._store.execute_delete_files_manually()
        return request.answer()
