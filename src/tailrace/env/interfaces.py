"""Addresses of the network interfaces of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

__all__ = ["interface_addresses"]

_SIOCGIFADDR: Final = 0x8915
_REQUEST: Final = struct.Struct("256s")
"""A request with the name of an interface (struct ifreq); the answer has the address at byte 20."""
_ADDRESS: Final = slice(20, 24)
_IPV6: Final = "/proc/net/if_inet6"


def interface_addresses(version: int) -> list[str]:
    """Return the addresses of IP version 4 or 6, one of version 4 for each interface. Raises OSError."""
    if version == 6:
        lines = Path(_IPV6).read_text(encoding="ascii").split("\n")
        return [str(ipaddress.IPv6Address(bytes.fromhex(line[:32]))) for line in lines if line]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, _REQUEST.pack(name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[_ADDRESS]))
    return found
