"""What a recorded request is worth with each value of `authenticationBinding`."""

import pytest
from auth_world import ANN, SEND, STATEFUL, Peer, World
from hypothesis import given
from hypothesis import strategies as st

from tailrace.auth import binding
from tailrace.auth.binding import (
    BINDING,
    BINDING_MISSING,
    Binder,
    Row,
    _Key,
    _Session,
)
from tailrace.auth.check import AccessControl
from tailrace.auth.model import User
from tailrace.auth.signature import ACCESS_KEY, SIGNATURE, Credentials, sign
from tailrace.auth_settings import AuthConfig
from tailrace.formats.remoting import MQ_VERSION
from tailrace.formats.requests.table import ADMINISTRATION

ROOT = Credentials("root", "r")
MINE = Peer().own_address
ROUTE = {"acceptStandardJsonOnly": "true", "topic": "orders"}


def recorded(world, code, ext, body=b"", *, by=ROOT, server=MINE, row=None):
    """Return the fields of a bound request as a client sends them."""
    ext = {**ext, ACCESS_KEY: by.access_key}
    ext[BINDING] = Binder(world.clock, by.secret_key).value(row or Row(server, 7), code, ext, body)
    return sign(ext, body, by, MQ_VERSION)


def required(**settings):
    return World(authentication_binding="required", **settings)


def test_a_bound_request_is_served_once():
    world = required()
    request = recorded(world, 105, ROUTE)
    assert world.remark(request, b"", code=105) == ""
    assert world.remark(request, b"", code=105) == "the request was sent before."
    assert world.remark(request, b"", code=105, peer=Peer("10.9.9.9")) == "the request was sent before."
    assert world.control.denied["binding"] == 2


def test_a_recorded_question_for_a_route_is_no_deletion():
    for mode in ("accept", "superUsers", "required"):
        world = World(authentication_binding=mode)
        assert world.remark(recorded(world, 105, ROUTE), b"", code=215) == "the binding of the request is wrong."


def test_a_recorded_question_without_a_binding_is_worth_nothing():
    question = sign(ROUTE, b"", ROOT, MQ_VERSION)
    assert required().remark(question, b"", code=215) == BINDING_MISSING
    assert World(authentication_binding="superUsers").remark(question, b"", code=215) == BINDING_MISSING
    assert World().remark(question, b"", code=215) == ""  # as RocketMQ
    world = World(authentication_binding="superUsers", resource="Topic:*")
    assert world.remark(by=ANN) == ""
    assert required().remark(by=ANN) == BINDING_MISSING


@pytest.mark.parametrize("old", ["topic", "acceptStandardJsonOnly", BINDING, ACCESS_KEY])
def test_a_renamed_field_is_noticed(old):
    world = required()
    request = recorded(world, 105, ROUTE)
    changed = {name + "x" if name == old else name: value for name, value in request.items()}
    assert world.remark(changed, b"", code=105)


def test_a_field_is_not_signed_twice_with_other_borders():
    """The values one after the other are the same text, so RocketMQ's signature is valid."""
    world = required()
    request = recorded(world, 17, {"a": "xy", "b": "z"})
    changed = {**request, "a": "x", "b": "yz"}
    assert world.remark(changed, b"", code=17) == "the binding of the request is wrong."
    moved = {name: value for name, value in request.items() if name != "b"}
    assert world.remark(moved, b"z", code=17) in {"check signature failed.", "the binding of the request is wrong."}
    assert world.remark(request, b"", code=17) == ""


def test_an_old_request_is_refused():
    world = required(authentication_binding_max_age=300)
    request = recorded(world, 105, ROUTE)
    late = recorded(world, 105, ROUTE)
    world.clock.advance(300_000)
    assert world.remark(late, b"", code=105) == ""
    world.clock.advance(1)
    assert world.remark(request, b"", code=105).startswith("the request was bound 300 s ago by the clocks of both")
    ahead = World().clock
    ahead.advance(700_000)
    world.clock, now = ahead, world.clock
    early = recorded(world, 105, ROUTE)
    world.clock = now
    assert world.remark(early, b"", code=105).startswith("the request was bound -40")


def test_a_request_for_another_server_is_refused():
    world = required(authentication_binding_addresses="192.0.2.1:10911, [2001:db8::1]:9876")
    assert world.remark(recorded(world, 105, ROUTE, server="10.6.6.6:10911"), b"", code=105) == (
        "the request is bound to the server 10.6.6.6:10911, see authenticationBindingAddresses.")
    for number, server in enumerate((MINE, "192.0.2.1:10911", "[2001:db8::1]:9876")):
        row = Row(server, number)
        assert world.remark(recorded(world, 105, ROUTE, row=row), b"", code=105) == ""
    world.control.bindings.advertised.add("198.51.100.1:10911")
    assert world.remark(recorded(world, 105, ROUTE, row=Row("198.51.100.1:10911", 9)), b"", code=105) == ""
    world = required(authentication_binding_addresses="*")
    assert world.remark(recorded(world, 105, ROUTE, server="10.6.6.6:10911"), b"", code=105) == ""


def test_an_unknown_address_is_only_logged_if_no_binding_is_needed(caplog):
    world = World()
    for number in range(3):
        row = Row("10.6.6.6:10911", number)
        assert world.remark(recorded(world, 105, ROUTE, row=row), b"", code=105) == ""
    assert [record.getMessage() for record in caplog.records] == [
        "request is bound to another address user='root' address=10.6.6.6:10911 count=1"]


def test_a_request_from_before_a_restart_is_refused():
    world = required()
    request = recorded(world, 105, ROUTE)
    world.clock.advance(5_000)
    world.control = AccessControl(
        world.clock, AuthConfig(authentication_enabled=True, authentication_binding="required"), "DefaultCluster",
        world.users.get, world.acls.get)
    assert world.remark(request, b"", code=105) == "the request was bound before the server started."


def test_a_binding_does_not_replace_the_signature():
    world = required()
    request = recorded(world, 105, ROUTE)
    assert world.remark({**request, SIGNATURE: "x"}, b"", code=105) == "check signature failed."
    del request[SIGNATURE]
    assert world.remark(request, b"", code=105) == "check signature failed."


def test_a_proven_connection_needs_bindings_as_well():
    world = required(authentication_strategy=STATEFUL)
    peer, row = Peer(), Row(MINE, 3)
    assert world.remark(recorded(world, 105, ROUTE, row=row), b"", code=105, peer=peer) == ""
    assert world.remark(sign(ROUTE, b"", ROOT, MQ_VERSION), b"", code=215, peer=peer) == BINDING_MISSING
    assert world.remark(recorded(world, 105, ROUTE, row=row), b"", code=215, peer=peer)
    assert world.remark(recorded(world, 105, ROUTE, row=row), b"", code=105, peer=peer) == ""


def test_off_ignores_the_field():
    world = World(authentication_binding="off")
    request = recorded(world, 105, ROUTE)
    assert [world.remark(request, b"", code=105) for _ in range(2)] == ["", ""]


@pytest.mark.parametrize("value", ["", "1", "2;1;1;1;1;1", "x" * 900_000, "1;9;0000000000000007;1;a:1;" + "0" * 63])
def test_a_field_that_is_no_binding_is_refused(value):
    world = World()
    remark = world.remark(sign({**ROUTE, BINDING: value}, b"", ROOT, MQ_VERSION), b"", code=105)
    assert remark == "the binding of the request cannot be read."


def test_a_new_password_and_a_deleted_user():
    world = required()
    assert world.remark(recorded(world, 105, ROUTE), b"", code=105) == ""
    new = Credentials("root", "a new one")
    world.users["root"] = User("root", new.secret_key, is_super=True)
    world.control.changed()
    assert world.remark(recorded(world, 105, ROUTE, row=Row(MINE, 8), by=new), b"", code=105) == ""
    assert world.control.bindings._count == 2
    del world.users["root"]
    world.control.changed()
    assert world.control.bindings._count == 0
    assert not world.control.bindings._sessions


def test_connections_are_bounded_and_forgotten_after_their_time(monkeypatch):
    monkeypatch.setattr(binding, "SESSIONS_MAX", 5)
    world = required(resource="Topic:*")
    for number in range(5):
        assert world.remark(recorded(world, 105, ROUTE, row=Row(MINE, number)), b"", code=105) == ""
    full = "too many connections have sent bound requests; try again later."
    assert world.remark(recorded(world, 105, ROUTE, row=Row(MINE, 9)), b"", code=105) == full
    ann = recorded(world, 310, SEND, row=Row(MINE, 9), by=ANN)
    assert world.remark(ann, b"", code=310) == ""
    monkeypatch.setattr(binding, "ALL_SESSIONS_MAX", 6)
    bob = recorded(world, 310, SEND, row=Row(MINE, 10), by=ANN)
    assert world.remark(bob, b"", code=310) == full
    world.clock.advance(600_001)
    assert world.remark(recorded(world, 310, SEND, row=Row(MINE, 10), by=ANN), b"", code=310) == ""
    assert [len(found) for found in world.control.bindings._sessions.values()] == [5, 1]
    assert world.control.bindings._count == 6


@given(st.lists(st.integers(0, 3_000), max_size=200))
def test_no_number_is_taken_twice(numbers):
    session, taken = _Session(), set()
    for number in numbers:
        number += 1
        if session.take(number):
            assert number not in taken
            taken.add(number)
        else:
            assert number in taken or max(taken) - number >= binding.WINDOW
    assert session.seen < 1 << binding.WINDOW


FIELDS = st.dictionaries(st.text("ab:1", max_size=3), st.text("ab:1\n", max_size=4), max_size=4)


@given(FIELDS, FIELDS, st.binary(max_size=3), st.binary(max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_requests_that_differ_have_other_digests(one, other, body, its_body, code, its_code):
    key = _Key("secret")
    same = (one, body, code) == (other, its_body, its_code)
    assert (key.digest("h", code, one, body) == key.digest("h", its_code, other, its_body)) == same


def test_what_clients_bind_without_being_asked():
    assert {17, 25, 215, 3001, 3006, 100, 103, 329_001} <= ADMINISTRATION
    assert not {10, 310, 320, 11, 361, 15, 34, 36, 37, 105} & ADMINISTRATION
