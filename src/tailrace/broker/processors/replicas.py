"""Requests about replicas, answered as a master without slaves and without a controller answers them."""

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
    """Answers 907, 908 and 1007; nothing is replicated."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.ha_status, RequestCode.GET_BROKER_HA_STATUS)
        server.register(self.reset_master_flush_offset, RequestCode.RESET_MASTER_FLUSH_OFFSET)
        server.register(self.epochs, RequestCode.GET_BROKER_EPOCH_CACHE)

    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return how far the slaves are, of which there are none: request 907."""
        return request.answer(body=fastjson.dumps({
            "master": True, "masterCommitLogMaxOffset": self._broker.store.max_phy_offset,
            "inSyncSlaveNums": 0, "haConnectionInfo": [], "haClientRuntimeInfo": {
                "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0, "maxOffset": 0,
                "transferredByteInSecond": 0}}))

    def reset_master_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Set what a slave knows of its master: request 908, which changes nothing on a master."""
        request.read(ResetMasterFlushOffsetHeader)
        return request.answer()

    def epochs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the epochs of masters that a controller chose: request 1007, which is refused."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
