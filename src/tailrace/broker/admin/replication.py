"""Requests about replication.

| request | answer |
|---|---|
| 60 GET_TIMER_CHECK_POINT | the progress of the timers that the slave has, see `tailrace.ha.timer_positions` |
| 61 GET_TIMER_METRICS | the number of pending timers of each topic |
| 906 EXCHANGE_BROKER_HA_INFO | where slaves copy from, and the end of the log at the open; nothing from a slave |
| 907 GET_BROKER_HA_STATUS | the slaves of this master, or the connection of this slave |
| 329004 GET_SLAVE_STATE | topics that were deleted, and pops in order, as in their files; only Tailrace has it |
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
from tailrace.formats.timercheckpoint import TIMER_CHECKPOINT
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.addresses import host_of
from tailrace.store.retention.min_offsets import encode_ended

__all__ = ["ReplicationProcessor"]


@final
class ReplicationProcessor:
    """Serves requests about the slaves of a master."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._timers = broker.store.timer_services.messages
        broker.replicas.follow_timers(lambda: None if self._timers is None else self._timers.checkpoint.fields)

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        code = RequestCode
        server.register(self.timer_checkpoint, code.GET_TIMER_CHECK_POINT)
        server.register(self.timer_metrics, code.GET_TIMER_METRICS)
        server.register(self.exchange, code.EXCHANGE_BROKER_HA_INFO)
        server.register(self.status, code.GET_BROKER_HA_STATUS)
        server.register(self.reset_master_flush_offset, code.RESET_MASTER_FLUSH_OFFSET)
        server.register(self.slave_state, code.GET_SLAVE_STATE)

    def timer_checkpoint(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return a timer checkpoint, in its form on the disk: request 60."""
        if self._timers is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The timer message store is not enabled")
        broker = self._broker
        # With brokerIP2 in another network a slave has another address at each of the two ports.
        is_same = _host(broker.ha_address) == _host(broker.address)
        found = broker.replicas.timer_checkpoint(channel.peer_ip if is_same else None)
        if found is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"no slave at {channel.peer_ip} is connected to the HA port and has the log "
                "up to a timer checkpoint of this broker yet")
        return request.answer(body=TIMER_CHECKPOINT.pack(*found))

    def timer_metrics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the pending timers of each topic, as in ``timermetrics``: request 61."""
        if self._timers is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The timer message store is not enabled")
        return request.answer(body=self._timers.metrics.encode())

    def exchange(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return where slaves copy from; a request that names another master is refused: request 906.

        Any client may send it, so it never decides from where a slave copies.
        """
        header, broker = request.read(ExchangeHAInfoHeader), self._broker
        if broker.slave is not None:
            if header.master_ha_address is None:
                return request.answer()
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {broker.config.broker_name} at {broker.address} is a slave that finds its master by "
                f"namesrvAddr or haMasterAddress, it does not take {header.master_ha_address[:100]} from a request")
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
        """Return the state of each slave, or on a slave that of its connection, as an HARuntimeInfo: request 907."""
        if self._broker.slave is not None:
            return request.answer(body=fastjson.dumps(self._broker.slave.runtime_info()))
        return request.answer(body=fastjson.dumps(self._broker.replicas.to_json()))

    def slave_state(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return what a slave copies besides the requests of RocketMQ: request 329004."""
        orders = self._broker.pop_orders
        return request.answer(body=fastjson.dumps({
            **encode_ended(dict(self._broker.store.inner.lives.table)),
            "consumerOrderInfo": {} if orders is None else orders.to_json()}))

    def reset_master_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer success, because this setting of a slave has no effect on a master: request 908."""
        request.read(ResetMasterFlushOffsetHeader)
        return request.answer()


def _host(address: str) -> str:
    return host_of(address.rpartition(":")[0])
