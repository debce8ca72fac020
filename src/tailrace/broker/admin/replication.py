"""Requests about replication.

| request | answer |
|---|---|
| 906 EXCHANGE_BROKER_HA_INFO | to a slave: where it copies from, and the end of the log when the store was opened |
| 907 GET_BROKER_HA_STATUS | the slaves of this master |
| 908 RESET_MASTER_FLUSH_OFFSET | success: this setting of a slave has no effect on a master, nor in RocketMQ |
"""

from __future__ import annotations

from typing import final

from tailrace.broker.core.context import BrokerContext
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    ExchangeHAInfoHeader,
    ResetMasterFlushOffsetHeader,
)
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ReplicationProcessor"]


@final
class ReplicationProcessor:
    """Serves requests about the slaves of a master."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        code = RequestCode
        server.register(self.exchange, code.EXCHANGE_BROKER_HA_INFO)
        server.register(self.status, code.GET_BROKER_HA_STATUS)
        server.register(self.reset_master_flush_offset, code.RESET_MASTER_FLUSH_OFFSET)

    def exchange(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return where slaves copy from; a request that names another master is refused: request 906."""
        header, broker = request.read(ExchangeHAInfoHeader), self._broker
        if header.master_ha_address is not None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {broker.config.broker_name} at {broker.address} is a master, it does not copy from "
                f"{header.master_ha_address[:100]}")
        if not broker.ha_address:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, "this broker has no port for slaves; set brokerRole or haListenPort")
        return request.answer(ext=ExchangeHAInfoHeader(
            broker.ha_address, broker.replicas.opened_at, broker.address))

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the state of each slave, as an HARuntimeInfo: request 907."""
        return request.answer(body=fastjson.dumps(self._broker.replicas.to_json()))

    def reset_master_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer success, because this setting of a slave has no effect on a master: request 908."""
        request.read(ResetMasterFlushOffsetHeader)
        return request.answer()
