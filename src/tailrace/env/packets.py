"""Connections that the kernel does not open, because it drops their packets before a listening socket receives them.

A program of classic BPF at the socket decides. This costs the process nothing, and needs no privilege. A client sends
the packet that opens a connection again after 1 s, and later. Only Linux has this; elsewhere nothing is dropped.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.env.descriptors import OpenSocket, borrowed

__all__ = ["NETWORKS_MAX", "drop_from", "drop_nothing"]

NETWORKS_MAX: Final = 256
"""Networks that `drop_from` takes; the kernel allows 4,096 instructions."""
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_NETWORK_HEADER: Final = 0xFFF00000
"""Offset from which loads read the header of IP."""
_SOURCE_4, _SOURCE_6 = _NETWORK_HEADER + 12, _NETWORK_HEADER + 8
_VERSION_4: Final = 4 << 4
_ALL_BYTES: Final = 0xFFFFFFFF


class _Step(NamedTuple):
    """An instruction of classic BPF; a jump skips ``jt`` or ``jf`` instructions."""

    code: int
    k: int = 0
    jt: int = 0
    jf: int = 0


_DROP: Final = _Step(_RETURN)
_PASS: Final = _Step(_RETURN, _ALL_BYTES)


def drop_from(listener: OpenSocket, port: int, networks: Iterable[str]) -> None:
    """Open no connections from IPv4 addresses, and from IPv6 networks of 64 bits, named by their first address.

    Connections that are open stay. ``port`` is that of the listener. Earlier networks are forgotten.
    """
    addresses = [ipaddress.ip_address(text) for text in networks]
    steps = list(_program(
        [int(one) for one in addresses if one.version == 4],
        [int(one) >> 64 for one in addresses if one.version == 6]))
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", step.code, step.jt, step.jf, step.k) for step in steps))
    _set(listener, port, _ATTACH_FILTER, struct.pack("@HP", len(steps), ctypes.addressof(program)))


def drop_nothing(listener: OpenSocket, port: int) -> None:
    """Open all connections again."""
    _set(listener, port, _DETACH_FILTER, struct.pack("@i", 0))


def _set(listener: OpenSocket, port: int, option: int, value: bytes) -> None:
    if sys.platform == "linux":
        with borrowed(listener, port) as taken:
            if taken is not None:
                taken.setsockopt(socket.SOL_SOCKET, option, value)


def _program(of_4: list[int], of_6: list[int]) -> Iterator[_Step]:
    yield _Step(_LOAD_BYTE, _NETWORK_HEADER)
    yield _Step(_AND, 0xF0)
    yield _Step(_JUMP_IF_EQUAL, _VERSION_4, jt=1)
    yield _Step(_JUMP, 2 + 2 * len(of_4))
    yield _Step(_LOAD_WORD, _SOURCE_4)
    for number in of_4:
        yield _Step(_JUMP_IF_EQUAL, number, jf=1)
        yield _DROP
    yield _PASS
    for number in of_6:
        yield _Step(_LOAD_WORD, _SOURCE_6)
        yield _Step(_JUMP_IF_EQUAL, number >> 32, jf=3)
        yield _Step(_LOAD_WORD, _SOURCE_6 + 4)
        yield _Step(_JUMP_IF_EQUAL, number & 0xFFFFFFFF, jf=1)
        yield _DROP
    yield _PASS
