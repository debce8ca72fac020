"""When users are copied from a master, and what is said when they are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from tailrace.auth.binding import BINDING, BINDING_MISSING
from tailrace.auth.model import user_of
from tailrace.auth_settings import AuthConfig
from tailrace.broker.admin.access import AccessProcessor
from tailrace.broker.core.access import Access
from tailrace.errors import RefusalError, RemotingCommandError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.ha.user_copy import COPIED, copy_users, is_inside_machine
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting.client import RemotingClient
from tailrace.testing import CrashFileSystem, SimClock

ANN = {"username": "ann", "password": "ann-secret", "userType": "Super", "userStatus": "enable"}
ENTRIES = {"subject": "User:ann", "policies": [{"policyType": "Custom", "entries": [
    {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:t"}]}]}


class Master:
    """A client of a slave, with the answer of its master."""

    def __init__(self, *, signs=True, uses_tls=True, code=0, remark=None, body=b""):
        self.signs, self.uses_tls, self.asked = signs, uses_tls, 0
        self._answer = RemotingCommand(code=code, remark=remark, body=body)

    ask = RemotingClient.ask

    async def invoke(self, address, code, ext, *_, **__):
        assert code == RequestCode.GET_SLAVE_USERS
        self.asked += 1
        return self._answer


@pytest.fixture
def tables():
    files = CrashFileSystem()
    made = SimpleNamespace(users=UserManager(files, "/c"), acls=AclManager(files, "/c"))
    made.users.change(made.users.creation(user_of({"username": "own", "password": "own-secret"})))
    return made


def copied(master, tables, address="10.0.0.1:10911"):
    async def run(call):
        return call()

    return asyncio.run(copy_users(master, address, tables, run))


def test_the_tables_of_the_master_replace_those_of_the_slave(tables):
    master = Master(body=fastjson.dumps({"users": [ANN], "acls": [ENTRIES]}))
    assert copied(master, tables) == COPIED
    assert [one.to_json() for one in tables.users.values()] == [ANN]
    assert tables.acls.get("ann").to_json() == ENTRIES


@pytest.mark.parametrize(("answers", "address", "why"), [
    ({"signs": False}, "10.0.0.1:1", "innerClientAuthenticationCredentials is not set here"),
    ({"uses_tls": False}, "10.0.0.1:1", "over TLS only: set tls.client.enable=true here"),
    ({"code": 3}, "10.0.0.1:1", "a master of RocketMQ does not send them"),
    ({"code": 16, "remark": "authenticationEnabled is not true"}, "10.0.0.1:1", "authenticationEnabled is not true"),
])
def test_users_that_cannot_be_copied_stay_and_the_reason_is_returned(tables, answers, address, why):
    master = Master(**answers)
    assert why in copied(master, tables, address)
    assert master.asked == ("code" in answers), "without TLS the slave does not ask"
    assert tables.users.get("own") is not None


def test_inside_of_a_machine_no_tls_is_needed(tables):
    master = Master(uses_tls=False, body=fastjson.dumps({"users": [ANN], "acls": []}))
    assert copied(master, tables, "127.0.0.1:10911") == COPIED
    assert [is_inside_machine(host) for host in ("::1", "127.8.0.1", "10.0.0.1", "a.example.com")] == [
        True, True, False, False]


@pytest.mark.parametrize(("answer", "error"), [
    ({"code": 1, "remark": "busy"}, RemotingCommandError), ({"body": b"[]"}, TypeError),
    ({"body": b'{"users": [], "acls": 7}'}, TypeError), ({"body": b'{"acls": []}'}, KeyError),
    ({"body": fastjson.dumps({"users": [{"username": "x y"}], "acls": []})}, StoreError)])
def test_an_answer_that_is_wrong_changes_nothing(tables, answer, error):
    with pytest.raises(error):
        copied(Master(**answer), tables)
    assert [one.name for one in tables.users.values()] == ["own"]


def asked(*, user="root", bound=True, tls=True, peer="10.0.0.2", **settings):
    """The answer of a master to its slave."""
    auth = AuthConfig(**{
        "authentication_enabled": True, "init_authentication_user": fastjson.dumps(
            {"username": "root", "password": "root-secret"}).decode(), **settings})
    access = Access(SimClock(), CrashFileSystem(), "/c", auth, "DefaultCluster")
    access.users.change(access.users.creation(user_of({"username": "app", "password": "app-secret"})))
    request = RemotingCommand(RequestCode.GET_SLAVE_USERS, {BINDING: "checked before"} if bound else {})
    request.sender = user
    return AccessProcessor(access, None, "", int).slave_users(SimpleNamespace(is_tls=tls, peer_ip=peer), request)


def test_a_super_user_with_a_binding_gets_users_with_passwords_over_tls_or_inside_of_a_machine():
    for place in ({}, {"tls": False, "peer": "127.0.0.1"}):
        found = fastjson.loads(asked(**place).body)
        assert [one["password"] for one in found["users"]] == ["app-secret", "root-secret"]
        assert found["acls"] == []


@pytest.mark.parametrize(("who", "why"), [
    ({"user": "app"}, "only super users have it"), ({"bound": False}, BINDING_MISSING),
    ({"tls": False}, "over TLS only"), ({"authentication_enabled": False}, "authenticationEnabled is not true"),
    ({"authentication_binding": "off"}, "authenticationBinding=off")])
def test_nobody_else_gets_them(who, why):
    with pytest.raises(RefusalError, match=why):
        asked(**who)
