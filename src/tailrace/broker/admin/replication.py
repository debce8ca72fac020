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

from typing import Any, final

from tailrace.broker.core.addresses import Addresses
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import (
    ExchangeHAInfoHeader,
    ResetMasterFlushOffsetHeader,
)
from tailrace.formats.timercheckpoint import TIMER_CHECKPOINT
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.remoting.addresses import host_of
from tailrace.requests.processor import RequestProcessor, answers, serves
from tailrace.store.retention.min_offsets import encode_ended

__all__ = ["ReplicationProcessor"]


@final
class ReplicationProcessor(RequestProcessor):
    """Serves requests about the slaves of a master."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, addresses: Addresses, slave: Slave | None, replicas: Replicas,
        order: ConsumerOrderInfoManager,
    ) -> None:
        self._store, self._config, self._addresses, self._slave = store, config, addresses, slave
        self._replicas, self._order = replicas, order
        self._timers = store.timer_services.messages
        replicas.follow_timers(lambda: None if self._timers is None else self._timers.checkpoint_for_slaves())

    @serves(RequestCode.GET_TIMER_CHECK_POINT)
    def timer_checkpoint(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return a timer checkpoint, in its form on the disk: request 60."""
        if self._timers is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The timer message store is not enabled")
        # With brokerIP2 in another network a slave has another address at each of the two ports.
        is_same = _host(self._addresses.ha) == _host(self._addresses.broker)
        found = self._replicas.timer_checkpoint(channel.peer_ip if is_same else None)
        if found is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"no slave at {channel.peer_ip} is connected to the HA port and has the log "
                "up to a timer checkpoint of this broker yet")
        return request.answer(body=TIMER_CHECKPOINT.pack(*found))

    @answers(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self) -> bytes:
        """Return the pending timers of each topic, as in ``timermetrics``: request 61."""
        if self._timers is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The timer message store is not enabled")
        return self._timers.metrics.encode()

    @answers(RequestCode.EXCHANGE_BROKER_HA_INFO)
    def exchange(self, header: ExchangeHAInfoHeader) -> ExchangeHAInfoHeader | None:
        """Return where slaves copy from; a request that names another master is refused: request 906.

        Any client may send it, so it never decides from where a slave copies.
        """
        if self._slave is not None:
            if header.master_ha_address is None:
                return None
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {self._config.broker_name} at {self._addresses.broker} is a slave that finds its master by "
                f"namesrvAddr or haMasterAddress, it does not take {header.master_ha_address[:100]} from a request")
        if header.master_ha_address is not None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {self._config.broker_name} at {self._addresses.broker} is a master, it does not copy from "
                f"{header.master_ha_address[:100]}")
        if not self._addresses.ha:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, "this broker has no port for slaves; set brokerRole or haListenPort")
        return ExchangeHAInfoHeader(self._addresses.ha, self._replicas.opened_at, self._addresses.broker)

    @answers(RequestCode.GET_BROKER_HA_STATUS)
    def status(self) -> dict[str, Any]:
        """Return the state of each slave, or on a slave that of its connection, as an HARuntimeInfo: request 907."""
        if self._slave is not None:
            return self._slave.runtime_info()
        return self._replicas.to_json()

    @answers(RequestCode.GET_SLAVE_STATE)
    def slave_state(self) -> dict[str, Any]:
        """Return what a slave copies besides the requests of RocketMQ: request 329004."""
        return {**encode_ended(dict(self._store.inner.lives.table)), "consumerOrderInfo": self._order.to_json()}

    @answers(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, header: ResetMasterFlushOffsetHeader) -> None:
        """Answer success, because this setting of a slave has no effect on a master: request 908."""


def _host(address: str) -> str:
    return host_of(address.rpartition(":")[0])
