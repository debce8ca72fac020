"""Two valid passwords of a user for a time: rotation without a gap, in both protocols' checks and the console's."""

from __future__ import annotations

import asyncio
import json

import pytest
from access_world import acl, asking, listed, running

from tailrace.auth.check import AccessControl
from tailrace.auth.model import PREVIOUS_MAX_S, User, user_of
from tailrace.auth.signature import Credentials, Signer, sign
from tailrace.auth_settings import AuthConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand
from tailrace.formats.remoting import RequestCode as Code
from tailrace.kernels import signatures
from tailrace.node.access import UserManager
from tailrace.testing import SimClock

OLD, NEW = Credentials("ann", "old-secret"), Credentials("ann", "new-secret")


class Peer:
    peer_ip, user, authenticated = "127.0.0.1", "", False

    def __init__(self):
        self.users = {}
        self.proof = None


class World:
    def __init__(self, **settings):
        self.clock = SimClock()
        self.user = User("ann", "new-secret", is_super=True, previous_password="old-secret",
                         previous_until_ms=self.clock.now_ms() + 60_000)
        self.control = AccessControl(
            self.clock, AuthConfig(authentication_enabled=True, authorization_enabled=True, **settings), "c",
            {"ann": self.user}.get, {}.get)

    def remoting(self, password, peer=None):
        ext = sign({}, b"", Credentials("ann", password), MQ_VERSION)
        self.control.check(peer or Peer(), RemotingCommand(26, ext))

    def grpc(self, password):
        return self.control.prove("::1", "Heartbeat", "ann", b"now", signatures.digest(Signer(password).key, b"now"))

    def console(self, password):
        return self.control.log_in("::1", "console", "ann", password)


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("way", ["remoting", "grpc", "console"])
def test_both_passwords_are_valid_until_the_old_one_ends(world, way):
    prove = getattr(world, way)
    prove("new-secret")
    prove("old-secret")
    for wrong in ("other", " ", "old-secretnew-secret"):
        with pytest.raises(RefusalError):
            prove(wrong)
    world.clock.advance(60_000)
    with pytest.raises(RefusalError):
        prove("old-secret")
    prove("new-secret")


def test_a_connection_knows_which_password_its_user_has_used(world):
    peer = Peer()
    world.remoting("old-secret", peer)
    old = peer.users["ann"]
    assert not world.control.has_left(old)
    world.remoting("new-secret", peer)
    new = peer.users["ann"]
    world.clock.advance(60_000)
    assert (world.control.has_left(old), world.control.has_left(new)) == (True, False)
    assert "secret" not in repr((old, new))


def test_a_change_of_the_password_keeps_the_one_before_if_it_is_asked_for():
    ann = User("ann", "a" * 16)
    both = user_of({"username": "ann", "password": "b" * 16, "previousPasswordUntil": 5}, ann)
    assert (both.password, both.previous_password, both.previous_until_ms) == ("b" * 16, "a" * 16, 5)
    third = user_of({"username": "ann", "password": "c" * 16, "previousPasswordUntil": 9}, both)
    assert (third.previous_password, third.previous_until_ms) == ("b" * 16, 9)
    assert user_of({"username": "ann", "password": "d" * 16}, third).previous_password == ""
    assert user_of({"username": "ann", "userStatus": "disable"}, third).previous_password == "b" * 16
    assert user_of({"username": "ann", "previousPasswordUntil": 0}, third).previous_password == ""
    assert user_of({"username": "ann", "previousPasswordUntil": 7}, third).previous_until_ms == 7
    assert user_of({"username": "ann", "password": "a" * 16, "previousPasswordUntil": 5}, ann).previous_password == ""
    for wrong in ("x", -1, True, 1.5, [1]):
        with pytest.raises(ConfigError, match="previousPasswordUntil"):
            user_of({"username": "ann", "password": "b" * 16, "previousPasswordUntil": wrong}, ann)


def test_the_file_has_both_and_a_reader_that_knows_one_finds_it(tmp_path):
    users = UserManager(OsFileSystem(), str(tmp_path))
    users.change(users.creation(User("ann", "a" * 16)))
    users.change(users.update({"username": "ann", "password": "b" * 16, "previousPasswordUntil": 5}))
    (written,) = json.loads((tmp_path / "tailrace-users.json").read_text())["users"]
    assert {name: written[name] for name in ("username", "password", "userType", "userStatus")} == {
        "username": "ann", "password": "b" * 16, "userType": "Normal", "userStatus": "enable"}
    again = UserManager(OsFileSystem(), str(tmp_path))
    again.load()
    assert again.get("ann") == users.get("ann")
    assert again.get("ann").previous_password == "a" * 16


def test_an_administrator_rotates_a_password_and_ends_the_old_one(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await root.codes(
                (Code.AUTH_CREATE_USER, {"password": OLD.secret_key}, {"username": "ann"}),
                (Code.AUTH_CREATE_ACL, acl({"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}), {}))
            async with asking(controller, OLD) as old, asking(controller, NEW) as new:
                assert (await old.ask(Code.GET_BROKER_CONFIG)).code == 0
                assert (await new.ask(Code.GET_BROKER_CONFIG)).code == 16
                await new.client.close()
                connection = old.client._connections[old.address]
                for seconds in (-1, PREVIOUS_MAX_S + 1, "x"):
                    answer = await root.ask(Code.AUTH_UPDATE_USER, {
                        "password": NEW.secret_key, "previousPasswordSeconds": seconds}, username="ann")
                    assert (answer.code, "(30 days)" in answer.remark) == (16, True)
                assert (await root.ask(Code.AUTH_UPDATE_USER, {
                    "password": NEW.secret_key, "previousPasswordSeconds": 3600}, username="ann")).code == 0
                assert (await old.ask(Code.GET_BROKER_CONFIG)).code == 0
                assert old.client._connections[old.address] is connection, "nothing was closed"
                (shown,) = [u for u in listed(await root.ask(Code.AUTH_LIST_USER)) if u["username"] == "ann"]
                left_ms = shown["previousPasswordUntil"] - controller.broker.clock.now_ms()
                assert 3_500_000 < left_ms <= 3_600_000
                assert "previousPassword" not in shown
                async with asking(controller, NEW) as now:
                    assert (await now.ask(Code.GET_BROKER_CONFIG)).code == 0
                    assert (await root.ask(
                        Code.AUTH_UPDATE_USER, {"previousPasswordSeconds": 0}, username="ann")).code == 0
                    assert (await now.ask(Code.GET_BROKER_CONFIG)).code == 0
                await old.client.close()
            async with asking(controller, OLD) as old:
                assert (await old.ask(Code.GET_BROKER_CONFIG)).code == 16

    asyncio.run(scenario())


def test_connections_of_the_old_password_end_when_its_time_is_over(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await root.codes(
                (Code.AUTH_CREATE_USER, {"password": OLD.secret_key}, {"username": "ann"}),
                (Code.AUTH_CREATE_ACL, acl({"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}), {}))
            await root.ask(Code.AUTH_UPDATE_USER, {
                "password": NEW.secret_key, "previousPasswordSeconds": 1}, username="ann")
            async with asking(controller, OLD) as old, asking(controller, NEW) as new:
                assert (await old.ask(Code.GET_BROKER_CONFIG)).code == 0
                assert (await new.ask(Code.GET_BROKER_CONFIG)).code == 0
                connections = controller.servers[0].channels
                mine = {channel.users["ann"].password: channel for channel in connections if "ann" in channel.users}
                departures = controller.access.departures
                async with asyncio.timeout(20):
                    while not mine[OLD.secret_key].closed:
                        departures.end_old_passwords(controller.broker.clock.now_ms())
                        await asyncio.sleep(0.05)
                assert not mine[NEW.secret_key].closed

    asyncio.run(scenario())
