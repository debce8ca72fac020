"""Addresses that may open no connection to the gRPC port for a while.

gRPC's library takes calls from all connections in the order of their arrival, also those that were cancelled since
then, and shows each of them to this program. Thousands of calls in a second, of which none may begin, would be in the
way of all others. Whoever makes them loses the connections without a served call, and the kernel opens no new ones.
"""

from __future__ import annotations

from typing import Final, final

from tailrace import events
from tailrace.auth.addresses import network_of
from tailrace.env.descriptors import OpenSocket, listeners_of_port
from tailrace.env.packets import NETWORKS_MAX, drop_from, drop_nothing
from tailrace.logs import LogRateLimiter, get_logger

__all__ = ["HOLD_S", "Held"]

_log = get_logger(__name__)

HOLD_S: Final = 10.0
_LINE: Final = "held"


@final
class Held:
    """Networks of clients from which the kernel opens no connection to a port, with the end of that time."""

    def __init__(self) -> None:
        self._port = 0
        self._listeners: list[OpenSocket] = []
        self._networks: dict[str, float] = {}
        self._lines = LogRateLimiter()

    def start(self, port: int) -> None:
        """Note the listening sockets of a port."""
        self._port = port
        self._listeners = listeners_of_port(port)

    def add(self, address: str, now: float) -> bool:
        """Open no connections from the network of an address; return whether it could open them until now."""
        network = network_of(address)
        if network in self._networks:
            return False
        if len(self._networks) >= NETWORKS_MAX:
            del self._networks[next(iter(self._networks))]
        self._networks[network] = now + HOLD_S
        self._filter()
        if count := self._lines.due(_LINE, now):
            events.GRPC_ADDRESS_HELD.log(_log, address=address, seconds=HOLD_S, count=count)
        return True

    def release(self, now: float) -> None:
        """Open connections again where the time is over."""
        over = [network for network, until in self._networks.items() if until <= now]
        for network in over:
            del self._networks[network]
        if over:
            self._filter()

    def _filter(self) -> None:
        for listener in self._listeners:
            if self._networks:
                drop_from(listener, self._port, self._networks)
            else:
                drop_nothing(listener, self._port)
