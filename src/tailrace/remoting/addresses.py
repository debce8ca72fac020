"""Addresses as text, and the address of this machine that others reach."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tailrace.auth.addresses import parsed_address
from tailrace.env.interfaces import interface_addresses

__all__ = [
    "address_text", "host_of", "is_loopback", "own_address", "packed_host", "socket_address"]

_ELSEWHERE: Final = {4: (socket.AF_INET, "192.0.2.1"), 6: (socket.AF_INET6, "2001:db8::1")}
"""An address of each version that no machine has (RFC 5737, RFC 3849). No packet is sent to it."""
_LOOPBACK: Final = {4: "127.0.0.1", 6: "::1"}


def address_text(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address, so that the port is not read as a part of it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_address(found: Sequence[Any] | None) -> str:
    """Return the address of one end of a connection, as ``ip:port``; empty if it has none."""
    if not found or len(found) < 2:
        return ""
    return address_text(str(parsed_address(str(found[0]).partition("%")[0])), found[1])


def host_of(text: str) -> str:
    """Return a host as it is used in calls: an address without brackets and in its short form, or a name."""
    host = text.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or a host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        with contextlib.suppress(OSError, UnicodeError):
            return ipaddress.ip_address(_looked_up(host)).is_loopback
        return False


def packed_host(host: str) -> bytes:
    """Return the bytes of an address, or of the address of a host name. Raises OSError that names brokerIP1."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        try:
            return ipaddress.ip_address(_looked_up(host)).packed
        except (OSError, UnicodeError) as error:
            raise OSError(
                errno.EADDRNOTAVAIL, f"brokerIP1={host} cannot be looked up: {error}; set it to an "
                "address of this machine that clients reach") from error


def own_address(version: int) -> str:
    """Return an address of this machine of IP version 4 or 6, one that other machines reach if it has one.

    The address of the host's name comes first, then that of the interface of the default route, then any other.
    """
    for found in _own_addresses(version):
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(found)
            if address.version == version and not (
                address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast
            ):
                return str(address)
    return _LOOPBACK[version]


def _own_addresses(version: int) -> Iterator[str]:
    sources: tuple[Callable[[], list[str]], ...] = (
        lambda: [_address_of_name(version)], lambda: [_address_of_default_route(version)],
        lambda: interface_addresses(version))
    for source in sources:
        with contextlib.suppress(OSError, UnicodeError):
            yield from source()


def _address_of_name(version: int) -> str:
    if version == 4:
        return socket.gethostbyname(socket.gethostname())
    return str(socket.getaddrinfo(socket.gethostname(), 0, socket.AF_INET6, socket.SOCK_DGRAM)[0][4][0])


def _address_of_default_route(version: int) -> str:
    family, elsewhere = _ELSEWHERE[version]
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect((elsewhere, 9))
        return str(asked.getsockname()[0])


def _looked_up(name: str) -> str:
    """Return an address of a host name, one of IPv4 if there is one. Raises OSError or UnicodeError."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name)
    return str(socket.getaddrinfo(name, 0, socket.AF_INET6, socket.SOCK_STREAM)[0][4][0])
