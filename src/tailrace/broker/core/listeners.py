"""The listening ports of a broker and its name server, opened before the store.

    listeners = Listeners("127.0.0.1", progress)
    await listeners.start(("127.0.0.1", 10911), ("127.0.0.1", 9876))
    ...                                        # minutes of recovery
    await controller.serve_on(listeners)       # the same connections are served from now on

So a port that another process uses is reported before a recovery, not after it. Until processors are
registered, every request is answered with SERVICE_NOT_AVAILABLE (14), a code after which RocketMQ's producers
retry, and a remark with the progress of the recovery. Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.config import BrokerConfig
from tailrace.env.descriptors import descriptor_limit
from tailrace.env.processes import listener_of
from tailrace.errors import ConfigError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.kernels import header as header_kernel
from tailrace.logs import get_logger
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.addresses import (
    address_text,
    host_of,
    is_loopback,
    own_address,
    packed_host,
)
from tailrace.remoting.limits import FEW_BYTES, CallLimits, ServerLimits
from tailrace.remoting.server import HIGH_WATER
from tailrace.remoting.shares import Shares
from tailrace.tls_settings import TlsConfig

__all__ = ["Address", "Listeners", "acceptor_of", "is_own_address", "server_limits", "why_not_listening"]

_log = get_logger(__name__)

VIP_DISTANCE: Final = 2
RESERVE: Final = 16
"""One of this many descriptors is for files of the store and for ``/ready``, whatever connections take."""
Address = tuple[str, int]


@final
class Listeners:
    """Opens the ports, with a server for each. ``names`` are the options of both addresses, for error texts."""

    def __init__(
        self, broker_ip: str = "", progress: Callable[[], float | None] = lambda: None,
        names: tuple[str, str] = ("", ""), limits: ServerLimits | None = None,
        high_water: int = HIGH_WATER, acceptor: Acceptor | None = None,
    ) -> None:
        self.acceptor = acceptor or Acceptor(ServerLimits() if limits is None else limits)
        """Decides which connections use TLS."""
        self.limits = self.acceptor.limits
        """Limits of all connections together."""
        self._high_water = high_water
        self.advertised = host_of(broker_ip)
        """Host that the broker advertises to clients."""
        self.host = ""
        """Host that the broker listens on, as an address."""
        self.port = 0
        """Port of the broker."""
        self.took_any_port = False
        """True if the system has chosen `port`, because port 0 was asked for."""
        self.store_host = b""
        """`broker_address` in the form in which messages store it."""
        self.namesrv_address = ""
        """``ip:port`` of the name server that clients can use; empty without one."""
        self.namesrv_listen_address = ""
        """``ip:port`` that the name server listens on; empty without one."""
        self.broker = self._server()
        self.vip: RemotingServer | None = None
        """Server on the broker's port minus 2, to which old clients send; None if it does not listen."""
        self.namesrv: RemotingServer | None = None
        self._progress = progress
        self._names = names

    async def start(self, listen: Address, namesrv_listen: Address | None, *, vip: bool = False) -> None:
        """Listen. Raises OSError that names an address on which that is not possible; then no port is open."""
        try:
            self.host, self.port = await _listening(self.broker, listen, self._names[0])
            self.took_any_port = not listen[1]
            self.advertised = self.advertised or _reachable(self.host)
            self.store_host = packed_host(self.advertised) + self.port.to_bytes(4, "big")
            if namesrv_listen is not None:
                self.namesrv = self._server()
                host, port = await _listening(self.namesrv, namesrv_listen, self._names[1])
                self.namesrv_address = address_text(_reachable(host), port)
                self.namesrv_listen_address = address_text(host, port)
            if not is_loopback(self.host) and is_loopback(self.advertised):
                events.ADVERTISED_ADDRESS_IS_OF_THIS_MACHINE_ONLY.log(
                    _log, advertised=self.broker_address, listens=self.listen_address)
            if vip and listen[1] > VIP_DISTANCE:
                await self._start_vip(listen[0], listen[1] - VIP_DISTANCE)
        except BaseException:
            await self.stop()
            raise
        events.PORTS_TAKEN.log(
            _log, broker=self.listen_address, namesrv=self.namesrv_listen_address, advertised=self.broker_address)

    async def _start_vip(self, host: str, port: int) -> None:
        server = self._server()
        try:
            await server.start(host, port)
        except OSError as error:
            events.VIP_PORT_LEFT_OUT.log(
                _log, address=address_text(host, port), reason=why_not_listening(error, port))
        else:
            self.vip = server

    @property
    def listen_address(self) -> str:
        """``ip:port`` that the broker listens on."""
        return address_text(self.host, self.port)

    @property
    def local_address(self) -> str:
        """``ip:port`` at which processes of this machine reach the broker."""
        address = ipaddress.ip_address(self.host)
        if not address.is_unspecified:
            return self.listen_address
        return address_text("127.0.0.1" if address.version == 4 else "::1", self.port)

    @property
    def broker_address(self) -> str:
        """``ip:port`` that the broker advertises to clients."""
        return address_text(self.advertised, self.port)

    @property
    def servers(self) -> list[RemotingServer]:
        """The servers that listen."""
        return [s for s in (self.broker, self.vip, self.namesrv) if s is not None]

    def serving(self) -> None:
        """End the answers of the recovery: processors are registered, so unknown codes get their own answer."""
        for server in self.servers:
            server.default_processor = None

    async def stop(self) -> None:
        """Close the ports."""
        for server in self.servers:
            await server.stop(0.0)

    def _server(self) -> RemotingServer:
        server = RemotingServer(
            decode_header=header_kernel.decode_header, acceptor=self.acceptor, high_water=self._high_water)
        server.default_processor = self._not_yet
        return server

    def _not_yet(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        done = self._progress()
        how_far = "" if done is None else f", {done * 100:.0f} % done"
        return request.answer(
            ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker is opening its store{how_far}")


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Return the limits of connections, from the settings and the process's limit of file descriptors.

    The segment files of the store may use a quarter of the descriptors and everything else another quarter, so half
    of them is left for connections. If more are open all the same, a new connection with one of the last descriptors
    costs another one. Raises ConfigError if serverSocketMaxConnections is more than three quarters.
    """
    limit, most = descriptor_limit(), config.server_socket_max_connections
    if most > limit * 3 // 4:
        raise ConfigError(
            f"serverSocketMaxConnections={most} is more than three quarters of the process's limit of "
            f"{limit} descriptors; raise `ulimit -n` or lower serverSocketMaxConnections")
    connections_max = most or max(limit // 2, 1)
    return ServerLimits(
        connections_max, config.server_buffer_max_bytes, config.server_channel_stall_timeout_seconds,
        descriptors_max=limit - limit // RESERVE,
        grpc=CallLimits(
            connections_max=config.grpc_connections_max or max(connections_max // 3, 1),
            per_connection=config.grpc_calls_per_connection,
            first_message_s=config.grpc_first_message_timeout_seconds,
            first_call_s=config.grpc_first_call_timeout_seconds,
            calls=Shares(config.grpc_calls_max, config.grpc_calls_per_address, config.grpc_calls_per_user),
            clients=Shares(config.grpc_clients_max, config.grpc_clients_per_address, config.grpc_clients_per_user),
            settings=Shares(config.grpc_settings_max_bytes, few=FEW_BYTES)))


def acceptor_of(config: TlsConfig, limits: ServerLimits) -> Acceptor:
    """Return the acceptor of the process with its settings; its certificate is loaded later."""
    return Acceptor(
        limits, config.mode, handshake_timeout_s=config.handshake_timeout_seconds,
        handshakes_max=config.handshakes_max, handshakes_per_address=config.handshakes_per_address)


def is_own_address(host: str) -> bool:
    """Return whether a host name or address belongs to this machine."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as taken:
            taken.bind(place)
    except (OSError, UnicodeError):
        return False
    return True


def why_not_listening(error: OSError, port: int) -> str:
    """Return the reason of an error, and the process that uses the port; without the address."""
    known = error.errno is not None and error.errno > 0
    reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
    holder = listener_of(port) if error.errno == errno.EADDRINUSE else None
    return f"{reason}, by process {holder[0]} ({holder[1]})" if holder else reason


async def _listening(server: RemotingServer, listen: Address, name: str) -> Address:
    """Start a server. Raises OSError whose text names the address the same way for every event loop."""
    try:
        return await server.start(*listen)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot listen on {name}{' ' if name else ''}{address_text(*listen)}: "
            f"{why_not_listening(error, listen[1])}") from error


def _reachable(host: str) -> str:
    """Return the address to advertise: one of this machine's own if the server listens on all of them."""
    address = ipaddress.ip_address(host)
    return own_address(address.version) if address.is_unspecified else host
