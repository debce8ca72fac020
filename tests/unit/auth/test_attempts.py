"""Guessing is slowed down for its address, and no other client is."""

import pytest
from auth_world import ANN, SEND, WRONG, Peer, World

from tailrace.auth import attempts
from tailrace.auth.attempts import Attempts
from tailrace.auth.check import TOO_MANY_ATTEMPTS, WRONG_PASSWORD, WRONG_SIGNATURE
from tailrace.auth.model import User
from tailrace.auth.signature import Credentials, Signer
from tailrace.errors import RefusalError
from tailrace.testing import SimClock

BAD, GOOD = Peer("10.0.0.66"), "10.0.0.5"


def by_remoting(world, number, address):
    return world.remark(by=Credentials("ann", f"guess-{number}"), peer=Peer(address))


def by_names(world, number, address):
    return world.remark(by=Credentials(f"user-{number}", "x"), peer=Peer(address))


def by_grpc(world, number, address):
    try:
        world.control.prove(address, "SendMessageRequest", "ann", b"20261126T120000Z", b"%020d" % number)
    except RefusalError as error:
        return error.remark
    return ""


def by_console(world, number, address):
    try:
        world.control.log_in(address, "console", "ann", f"guess-{number}")
    except RefusalError as error:
        return error.remark
    return ""


WAYS = [by_remoting, by_names, by_grpc, by_console]


@pytest.mark.parametrize("guess", WAYS)
def test_a_thousand_guesses_take_more_than_a_minute(guess):
    world = World()
    made = 0
    for step in range(3_000):  # ten a second
        remark = guess(world, made, "10.0.0.66")
        made += remark in {WRONG_SIGNATURE, WRONG_PASSWORD} or world.control.denied["attempts"] == 0
        assert remark
        world.clock.advance(100)
        if step == 600:
            assert made < 20
            assert world.remark(by=ANN, peer=Peer(GOOD)) == ""
    assert made < 1_000
    assert sum(world.control.denied[reason] for reason in ("signature", "user", "password")) < 30


@pytest.mark.parametrize("guess", WAYS)
def test_the_right_user_elsewhere_is_served_and_its_address_may_fail_as_often(guess):
    world = World()
    for number in range(50):
        guess(world, number, "10.0.0.66")
    assert world.remark(by=ANN, peer=Peer("10.0.0.66")) == TOO_MANY_ATTEMPTS
    assert world.remark(by=ANN, peer=Peer(GOOD)) == ""
    assert world.remark(by=WRONG, peer=Peer(GOOD)) == WRONG_SIGNATURE


def test_times_double_up_to_a_minute_and_end():
    world = World()
    for number in range(10):
        refusal = world.refusal(by=WRONG, peer=BAD)
        assert refusal.closes == (number == 9)
        assert refusal.remark == (TOO_MANY_ATTEMPTS if number == 9 else WRONG_SIGNATURE)
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        world.clock.advance(seconds * 1_000 - 1)
        refusal = world.refusal(by=ANN, peer=Peer("10.0.0.66"))
        assert (refusal.remark, refusal.closes) == (TOO_MANY_ATTEMPTS, False)
        world.clock.advance(1)
        assert world.refusal(by=WRONG, peer=BAD).closes
    world.clock.advance(60_000)
    assert world.remark(by=ANN, peer=Peer("10.0.0.66")) == ""
    world.clock.advance(600_000)
    assert [world.refusal(by=WRONG, peer=BAD).closes for _ in range(10)] == [False] * 9 + [True]


def test_few_failures_a_minute_refuse_nothing():
    world = World()
    for _ in range(20):
        for _ in range(9):
            assert world.remark(by=WRONG, peer=BAD) == WRONG_SIGNATURE
        world.clock.advance(60_000)


def test_users_that_share_an_address_with_one_that_guesses_are_served():
    """The address may be that of a gateway."""
    world = World(resource="Topic:*")
    old, new = Peer(), Peer()
    assert world.remark(by=ANN, peer=old) == ""
    for number in range(100):
        world.remark(by=Credentials("root", f"guess-{number}"), peer=Peer())
    assert world.remark(by=Credentials("root", "r"), peer=Peer()) == TOO_MANY_ATTEMPTS
    assert world.remark(by=ANN, peer=old) == ""
    assert world.remark(by=ANN, peer=new) == ""


def test_a_user_that_is_guessed_at_from_its_own_address_keeps_its_connections():
    world = World()
    old = Peer()
    assert world.remark(by=ANN, peer=old) == ""
    for _ in range(100):
        world.remark(by=WRONG, peer=Peer())
    assert world.control.denied["signature"] < 30
    assert world.remark(by=ANN, peer=Peer()) == TOO_MANY_ATTEMPTS
    assert world.remark(by=ANN, peer=old) == ""


def test_a_proven_connection_is_no_place_for_guesses():
    world = World()
    peer = Peer()
    assert world.remark(by=Credentials("root", "r"), peer=peer) == ""
    for number in range(100):
        world.remark(by=Credentials("ann", f"guess-{number}"), peer=peer)
    assert world.control.denied["signature"] == 10


def test_a_connection_of_an_old_password_is_no_place_for_guesses():
    world = World()
    peer = Peer()
    assert world.remark(by=ANN, peer=peer) == ""
    for number in range(100):
        world.remark(by=Credentials("ann", f"guess-{number}"), peer=peer)
    assert world.control.denied["signature"] == 10


def test_a_proof_between_guesses_does_not_reset_their_count():
    """A recorded request of the user may be the proof."""
    world = World()
    for number in range(100):
        world.remark(by=ANN, peer=Peer())
        world.remark(by=Credentials("ann", f"guess-{number}"), peer=Peer())
    assert world.control.denied["signature"] == 10


def test_remarks_are_the_same_whether_or_not_a_user_exists():
    told = []
    for name in ("ann", "nobody", "gone"):
        world = World()
        world.users["gone"] = User("gone", "secret", enabled=False)
        assert world.remark(by=ANN) == ""
        told.append([world.remark(by=Credentials(name, "x"), peer=Peer()) for _ in range(30)])
        for way in (by_grpc, by_console):
            told[-1].append(way(world, 1, "10.1.1.1"))
    assert told[0] == told[1] == told[2]
    assert set(told[0]) == {WRONG_SIGNATURE, WRONG_PASSWORD, TOO_MANY_ATTEMPTS}


def test_an_unknown_user_costs_a_hash_as_well(monkeypatch):
    hashed = []
    world = World()
    for way in ("has_signed", "has_signed_bytes"):
        real = getattr(Signer, way)
        monkeypatch.setattr(Signer, way, lambda *given, real=real: hashed.append(1) or real(*given))
    for name in ("ann", "nobody"):
        hashed.clear()
        world.remark({**SEND, "AccessKey": name, "Signature": "x"})
        assert hashed == [1]
        with pytest.raises(RefusalError):
            world.control.prove("10.1.1.1", "call", name, b"now", None)
        assert hashed == [1, 1]


def test_an_ipv6_client_has_one_network_and_not_many_addresses():
    world = World()
    for number in range(40):
        world.remark(by=WRONG, peer=Peer(f"2001:db8::{number:x}:1"))
    assert world.control.denied["signature"] == 10
    assert world.remark(by=ANN, peer=Peer("2001:db8:0:1::1")) == ""


def test_zero_switches_it_off():
    world = World(authentication_failures_max=0)
    assert {world.remark(by=WRONG, peer=BAD) for _ in range(100)} == {WRONG_SIGNATURE}


def test_the_tables_are_bounded(monkeypatch):
    monkeypatch.setattr(attempts, "ADDRESSES_MAX", 20)
    monkeypatch.setattr(attempts, "PAIRS_MAX", 20)
    clock = SimClock()
    found = Attempts(clock, 10)
    for number in range(100):
        found.failed(f"10.0.0.{number}", "x" * 900_000)
        found.proved(f"10.0.0.{number}", "ann")
    assert len(found._addresses) == len(found._pairs) == 20
    assert not any("x" in str(key) for table in (found._addresses, found._pairs) for key in table)
