"""Strategies distribute queues as the reference's do: members of both kinds have to agree."""

from __future__ import annotations

import pytest

from tailrace.client import MessageQueue
from tailrace.client.allocation import (
    by_configuration,
    by_machine_room,
    near_machine_room,
    strategy_of,
)
from tailrace.errors import ConfigError


def queues_of(count, names=("broker-a", "broker-b")):
    return sorted(MessageQueue("orders", names[i % len(names)], i // len(names)) for i in range(count))


def shares(strategy, queues, members):
    """Numbers of the queues of each member."""
    return " ".join(
        "".join(str(queues.index(queue)) for queue in strategy(member, queues, members)) for member in members
    ).strip()


# Printed by the classes of RocketMQ 5.5.0.
@pytest.mark.parametrize(("name", "queues", "members", "expected"), [
    ("AVG", 4, 1, "0123"),
    ("AVG", 4, 3, "01 2 3"),
    ("AVG", 8, 3, "012 345 67"),
    ("AVG", 3, 4, "0 1 2"),
    ("AVG", 9, 4, "012 34 56 78"),
    ("AVG_BY_CIRCLE", 4, 1, "0123"),
    ("AVG_BY_CIRCLE", 4, 3, "03 1 2"),
    ("AVG_BY_CIRCLE", 8, 3, "036 147 25"),
    ("AVG_BY_CIRCLE", 3, 4, "0 1 2"),
    ("AVG_BY_CIRCLE", 9, 4, "048 15 26 37"),
    ("CONSISTENT_HASH", 4, 1, "0123"),
    ("CONSISTENT_HASH", 4, 3, "3 0 12"),
    ("CONSISTENT_HASH", 8, 3, "57 023 146"),
    ("CONSISTENT_HASH", 3, 4, "0 2 1"),
    ("CONSISTENT_HASH", 9, 4, "68 04 57 123"),
])
def test_named_strategies_share_as_the_reference_does(name, queues, members, expected):
    ids = [f"10.0.0.{i}@7#x" for i in range(members)]
    assert shares(strategy_of(name), queues_of(queues), ids) == expected


def test_machine_rooms_share_as_the_reference_does():
    queues, members = queues_of(9, ("r0@b", "r1@b", "r2@b")), ["c0", "c1", "c2", "c3"]
    assert shares(by_machine_room({"r1", "r2"}), queues, members) == "37 48 5 6"
    near = near_machine_room("AVG", lambda q: q.broker_name.split("@")[0], lambda c: f"r{int(c[1]) % 2}")
    assert shares(near, queues, members) == "016 347 28 5"
    nowhere = near_machine_room("AVG", lambda q: "", lambda c: "r0")
    with pytest.raises(ConfigError, match="no machine room for"):
        nowhere("c0", queues, members)


def test_a_member_may_be_given_its_queues():
    queues = queues_of(4)
    assert by_configuration(queues[1:3])("any", queues, ["any", "other"]) == queues[1:3]


def test_an_unknown_strategy_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match="AVG, AVG_BY_CIRCLE, CONSISTENT_HASH"):
        strategy_of("RANDOM")
