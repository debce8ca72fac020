"""Allocation of queues to the members of a group: the strategies of RocketMQ, with its results.

All members have to use the same strategy. Each sees the same sorted queues and client ids, so each computes
the same distribution by itself.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from tailrace.client.routes import MessageQueue
from tailrace.errors import ConfigError

__all__ = [
    "STRATEGIES", "Strategy", "averagely", "by_configuration", "by_machine_room", "in_turn", "near_machine_room",
    "strategy_of",
]

T = TypeVar("T")
Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Returns the queues of a client id, of all queues and all client ids, both sorted."""
VIRTUAL_NODES: Final = 10


def averagely(queues: Sequence[T], place: int, members: int) -> Sequence[T]:
    """Return consecutive queues for the member at ``place``; the first members get the remainder, one each."""
    size, more = divmod(len(queues), members)
    start = place * size + min(place, more)
    return queues[start : start + size + (place < more)]


def in_turn(queues: Sequence[T], place: int, members: int) -> Sequence[T]:
    """Return every ``members``-th queue, starting at ``place``."""
    return queues[place::members]


def _by_place(share: Callable[[Sequence[MessageQueue], int, int], Sequence[MessageQueue]]) -> Strategy:
    return lambda client_id, queues, members: list(share(queues, members.index(client_id), len(members)))


def consistent_hash(
    client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Give a queue to the next member on a ring of hashes, so that few queues move when a member leaves."""
    ring = {_hash(f"{member}-{n}"): member for member in members for n in range(VIRTUAL_NODES)}
    places = sorted(ring)

    def owner(queue: MessageQueue) -> str:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[places[bisect.bisect_left(places, _hash(text)) % len(places)]]

    return [queue for queue in queues if owner(queue) == client_id]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def by_configuration(queues: Iterable[MessageQueue]) -> Strategy:
    """Return the strategy that gives this member exactly ``queues``, independent of the other members."""
    mine = set(queues)
    return lambda client_id, queues, members: [queue for queue in queues if queue in mine]


def by_machine_room(rooms: Collection[str]) -> Strategy:
    """Return the strategy that shares only the queues of these rooms; brokers are named ``room@name``."""
    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        names = ((queue, queue.broker_name.split("@")) for queue in queues)
        shared = [queue for queue, parts in names if len(parts) == 2 and parts[0] in rooms]
        index = members.index(client_id)
        size, more = divmod(len(shared), len(members))
        found = shared[index * size : (index + 1) * size]
        return [*found, shared[index + size * len(members)]] if index < more else found

    return allocate


def near_machine_room(
    inner: Strategy | str, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Return the strategy that shares the queues of a room among the members of that room.

    Queues of a room without a member are shared among all. ``inner`` says how queues are shared.
    """
    share = strategy_of(inner)

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            rooms.setdefault(_room(room_of_queue(queue), queue), []).append(queue)
        inhabitants: dict[str, list[str]] = {}
        for member in members:
            inhabitants.setdefault(_room(room_of_client(member), member), []).append(member)
        here = room_of_client(client_id)
        found: list[MessageQueue] = []
        for room, here_queues in sorted(rooms.items(), key=lambda item: (item[0] != here, item[0])):
            if room == here:
                found += share(client_id, here_queues, inhabitants[here])
            elif room not in inhabitants:
                found += share(client_id, here_queues, members)
        return found

    return allocate


def _room(room: str, of: object) -> str:
    if not room:
        raise ConfigError(f"no machine room for {of}; the function of the strategy has to name one")
    return room


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": _by_place(averagely), "AVG_BY_CIRCLE": _by_place(in_turn), "CONSISTENT_HASH": consistent_hash}
"""Strategies by the names of RocketMQ."""


def strategy_of(strategy: Strategy | str) -> Strategy:
    """Return the strategy with a name, or the given function. Raises ConfigError."""
    if callable(strategy):
        return strategy
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r} is not one of {', '.join(STRATEGIES)}, nor a function")
    return STRATEGIES[strategy]
