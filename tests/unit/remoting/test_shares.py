"""Shares: no client takes everything, and there is always room for another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.remoting.shares import ADDRESS, ALL, USER, Holder, Shares


def take_all(shares, holder, n=1):
    """Take as much as the holder gets; return how much that is, and whose share ended it."""
    taken = 0
    while not (why := shares.refusal(holder, n)):
        shares.add(holder, n)
        taken += n
    return taken, why


@pytest.mark.parametrize("holders", [
    [Holder("10.0.0.1")],
    [Holder("10.0.0.1", "ann")],
    [Holder("10.0.0.1", "", "c1")],
    [Holder(f"10.0.0.{n}", "ann") for n in range(200)],
    [Holder("10.0.0.1", "", f"c{n}") for n in range(30)],
    [Holder("10.0.0.1", f"u{n}", f"c{n}") for n in range(30)],
    [Holder(f"10.0.0.{n}") for n in range(30)],
    [Holder(f"10.0.0.{n}", "", f"c{n}") for n in range(30)],
])
def test_after_greedy_clients_there_is_room_for_another_one(holders):
    shares = Shares(12_000)
    found = [take_all(shares, holder)[0] for holder in holders]
    assert 1_000 <= found[0] < 6_000
    if 1 in {len({holder.address for holder in holders}), len({holder.user for holder in holders if holder.user})}:
        assert sum(found) < 6_000, "one address or one user has less than half"
    victims = [Holder("10.1.0.1"), Holder("10.1.0.2", "bob", "v")]
    if len({holder.address for holder in holders}) == 1 and holders[0] != Holder("10.0.0.1"):  # of the same address
        victims.append(Holder("10.0.0.1", "eve", "w"))
    for victim in victims:
        for _ in range(16):
            assert not shares.refusal(victim)
            shares.add(victim)


def test_limits_of_an_address_and_of_a_user():
    shares = Shares(100, per_address=60, per_user=40)
    assert take_all(shares, Holder("10.0.0.1", "ann")) == (40, USER)
    assert take_all(shares, Holder("10.0.0.1", "bob")) == (20, ADDRESS)
    assert take_all(shares, Holder("10.0.0.2", "ann")) == (0, USER)
    assert take_all(shares, Holder("10.0.0.2", "bob")) == (20, USER)
    assert take_all(shares, Holder("10.0.0.3")) == (20, ALL)
    assert shares.total == 100


def test_addresses_of_one_ipv6_network_are_one():
    shares = Shares(12, few=1)
    first = take_all(shares, Holder("2001:db8::1"))
    assert first[1] == ADDRESS
    assert take_all(shares, Holder("2001:db8::2")) == (0, ADDRESS)
    assert take_all(shares, Holder("2001:db8:0:1::2"))[0] > 0
    assert shares.refusal(Holder("::ffff:10.0.0.1")) == shares.refusal(Holder("10.0.0.1")) == ""


def test_bytes_are_taken_by_many():
    shares = Shares(10_000, few=100)
    assert take_all(shares, Holder("a", "ann"), 100)[0] < 5_000
    assert not shares.refusal(Holder("a", "bob"), 100)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 4)), max_size=60))
def test_what_is_given_back_leaves_nothing(steps):
    shares, taken = Shares(50, few=2), []
    for address, user, n in steps:
        holder = Holder(f"10.0.0.{address}", f"u{user}" if user else "", f"c{address}")
        if not shares.refusal(holder, n):
            shares.add(holder, n)
            taken.append((holder, n))
        assert 0 <= shares.total == sum(n for _, n in taken) <= 50
    for holder, n in taken:
        shares.add(holder, -n)
    assert shares.total == 0
    assert not shares._taken
