"""Shares of something that all clients of a process take from, such as calls under way.

A share without a limit of its own is dynamic: an address that has more than ``few`` gets one more only while it has
fewer than are free, without an eighth that is kept for those that have few. So one address has less than half of all,
two have less than a third each, and there is always room for another one. A user has such a share of all, and, as each
connection does, such a share of the rest for its address. Everything runs in the thread of the event loop.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, final

from tailrace.auth.addresses import network_of

__all__ = ["ADDRESS", "ALL", "CONNECTION", "USER", "Holder", "Shares"]

ALL: Final = "all clients"
ADDRESS: Final = "one address"
USER: Final = "one user"
CONNECTION: Final = "one connection"
FEW: Final = 16
HOLDERS_MAX: Final = 1_024
"""Holders whose shares are remembered by name."""


class Holder(NamedTuple):
    """Who takes something. An empty ``user`` or ``connection`` has no share of its own."""

    address: str
    user: str = ""
    connection: str = ""


@final
class Shares:
    """Counts what is taken of ``most``. ``per_address`` and ``per_user`` 0: a dynamic share."""

    def __init__(self, most: int, per_address: int = 0, per_user: int = 0, few: int = FEW) -> None:
        self.most = most
        self.per_address = per_address
        self.per_user = per_user
        self.total = 0
        """What all holders have together."""
        self._few = few
        self._taken: dict[tuple[str, ...], int] = {}

    def refusal(self, holder: Holder, n: int = 1) -> str:
        """Return whose share does not allow ``n`` more, such as `USER`; empty if they are allowed."""
        free = self.most - self.total
        if n > free:
            return ALL
        network, user, connection = network_of(holder.address), holder.user, holder.connection
        if user and n > self._room((USER, user), self.per_user, self.total, free):
            return USER
        address = ADDRESS, network
        room, taken = self._room(address, self.per_address, self.total, free), self._taken.get(address, 0)
        if n > room:
            return ADDRESS
        if user:
            pair = ADDRESS, network, user
            room, taken = self._room(pair, self.per_user, taken, room), self._taken.get(pair, 0)
            if n > room:
                return USER
        if connection and n > self._room((CONNECTION, connection), 0, taken, room):
            return CONNECTION
        return ""

    def _room(self, key: tuple[str, ...], limit: int, taken_of_all: int, room: int) -> int:
        """Return how many more one of those may take that have ``taken_of_all`` and share ``room``."""
        taken = self._taken.get(key, 0)
        if limit:
            return min(limit - taken, room)
        if taken < self._few:
            return room
        return (room - (taken_of_all + room) // 8 - taken + 1) // 2

    def add(self, holder: Holder, n: int = 1) -> None:
        """Count ``n`` more; negative numbers give some back."""
        self.total += n
        for key in _keys(holder):
            if taken := self._taken.get(key, 0) + n:
                self._taken[key] = taken
            else:
                self._taken.pop(key, None)


@lru_cache(HOLDERS_MAX)
def _keys(holder: Holder) -> list[tuple[str, ...]]:
    """Return what counts what a holder takes: its address, its user, its user at this address, and its connection."""
    network = network_of(holder.address)
    keys: list[tuple[str, ...]] = [(ADDRESS, network)]
    if holder.user:
        keys += [(USER, holder.user), (ADDRESS, network, holder.user)]
    if holder.connection:
        keys.append((CONNECTION, holder.connection))
    return keys
