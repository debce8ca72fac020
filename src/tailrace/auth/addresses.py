"""Addresses of clients, and ranges of them as permissions name them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, final

__all__ = ["Addresses", "addresses_problem", "network_of", "parsed_address"]

_BITS: Final = {4: 32, 6: 128}
NETWORK_BITS: Final = 64
"""Bits of an IPv6 network that one customer of a provider has at least; a client may take any address in it."""
NETWORKS_MAX: Final = 4_096
"""Addresses that are remembered after they were read, and those whose network is."""


@lru_cache(NETWORKS_MAX)
def parsed_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; an IPv4 address in the form of IPv6 (``::ffff:10.0.0.1``) as IPv4. Raises ValueError."""
    address = ipaddress.ip_address(text)
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


def _number(text: str) -> tuple[int, int]:
    """Return an address as a number, and its bits. Raises ValueError."""
    address = parsed_address(text)
    return int(address), _BITS[address.version]


def _range(text: str) -> tuple[int, int]:
    """Return the first and the last number of ``ADDRESS/BITS``. Raises ValueError."""
    address, _, length = text.partition("/")
    number, bits = _number(address)
    if not length.isascii() or not length.isdigit() or int(length) > bits:
        raise ValueError(text)
    host = (1 << (bits - int(length))) - 1
    return number & ~host, number | host


@lru_cache(NETWORKS_MAX)
def network_of(host: str) -> str:
    """Return what counts as one place of clients: an IPv4 address, or the first 64 bits of an IPv6 address.

    One IPv6 host usually has all addresses with the same first 64 bits.
    """
    if ":" not in host:
        return host
    try:
        address = parsed_address(host.partition("%")[0])
    except ValueError:
        return host
    rest = _BITS[6] - NETWORK_BITS
    return str(address if address.version == 4 else ipaddress.IPv6Address(int(address) >> rest << rest))


def addresses_problem(source_ips: Iterable[str]) -> str:
    """Return what is wrong with addresses and ranges; an empty text if nothing is."""
    for text in source_ips:
        if not text.strip():
            return "The source ip is empty."
        try:
            _range(text) if "/" in text else _number(text)
        except ValueError:
            return f"The source ip is invalid. {text[:60]!r} is not an address such as 10.0.0.7 or 10.0.0.0/8"
    return ""


@final
class Addresses:
    """A set of addresses and ranges; an empty one has every address.

    A single address is compared as an address. A range is compared by number, as in RocketMQ: the numbers of
    IPv4 addresses are those of the first 2^32 addresses of IPv6.
    """

    __slots__ = ("_ranges", "_single")

    def __init__(self, source_ips: tuple[str, ...]) -> None:
        self._single = frozenset(_number(text) for text in source_ips if "/" not in text)
        self._ranges = tuple(_range(text) for text in source_ips if "/" in text)

    def has(self, address: str) -> bool:
        """Return whether an address belongs to the set; any text that is not one belongs only to the empty set."""
        if not self._single and not self._ranges:
            return True
        try:
            number = _number(address)
        except ValueError:
            return False
        return number in self._single or any(first <= number[0] <= last for first, last in self._ranges)
