"""Requests about replicas, with the answers of a master that has no slaves and no controller."""

from __future__ import annotations

from typing import final

from tailrace.broker.context import BrokerContext
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import ResetMasterFlushOffsetHeader
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ReplicasProcessor"]


@final
class ReplicasProcessor:
    """Serves requests 907, 908 and 1007; nothing is replicated."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self.ha_status, RequestCode.GET_BROKER_HA_STATUS)
        server.register(self.reset_master_flush_offset, RequestCode.RESET_MASTER_FLUSH_OFFSET)
        server.register(self.epochs, RequestCode.GET_BROKER_EPOCH_CACHE)

    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the replication state, which has no slaves: request 907."""
        return request.answer(body=fastjson.dumps({
            "master": True, "masterCommitLogMaxOffset": self._broker.store.max_phy_offset,
            "inSyncSlaveNums": 0, "haConnectionInfo": [], "haClientRuntimeInfo": {
                "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0, "maxOffset": 0,
                "transferredByteInSecond": 0}}))

    def reset_master_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer success, because this setting of a slave has no effect on a master: request 908."""
        request.read(ResetMasterFlushOffsetHeader)
        return request.answer()

    def epochs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a request for the epochs of masters, because there is no controller: request 1007."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
