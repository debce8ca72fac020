"""Quotas of users."""

from __future__ import annotations

import gc

import pytest

from tailrace.auth import quotas
from tailrace.auth.quotas import UserQuotas, request_size
from tailrace.auth_settings import AuthConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand
from tailrace.testing import SimClock


class Connection:
    closed = False


class World:
    def __init__(self, **settings):
        self.clock = SimClock()
        self.quotas = UserQuotas(self.clock, AuthConfig(**settings))
        self.connection = Connection()

    def sends(self, user="ann", size=100, code=310, connection=None):
        """Return an empty text, or why a request was refused."""
        try:
            self.quotas.take(user, connection or self.connection, size, code)
        except RefusalError as refusal:
            assert refusal.code == (215 if code == 11 else 2)
            return refusal.remark
        return ""

    def many(self, count, **request):
        return sum(not self.sends(**request) for _ in range(count))


def test_without_settings_there_is_no_quota():
    assert not UserQuotas(SimClock(), AuthConfig()).enabled


def test_requests_of_a_second(caplog):
    world = World(user_requests_per_second=10)
    assert world.quotas.enabled
    assert world.many(30) == 10
    assert world.sends() == "User:ann sends more than 10 requests a second (userRequestsPerSecond); try again later"
    assert world.sends(code=11).endswith("try again later")
    assert world.many(5, user="bob") == 5, "another user has a quota of its own"
    world.clock.advance(500)
    assert world.many(30) == 5
    world.clock.advance(60_000)
    assert world.many(30) == 10, "what was not used does not add up"
    assert world.quotas.refused["requests"] == 20 + 2 + 25 + 20
    assert [record.getMessage().split(" user=")[0] for record in caplog.records] == ["user over quota"] * 2


def test_bytes_of_a_second():
    world = World(user_request_bytes_per_second=1_000)
    assert world.many(30) == 10
    assert world.sends() == "User:ann sends more than 1000 bytes a second (userRequestBytesPerSecond); try again later"
    world.clock.advance(1_000)
    assert world.sends(size=5_000) == "", "a longer request is served, and paid for later"
    world.clock.advance(3_900)
    assert world.sends() != ""
    world.clock.advance(200)
    assert world.sends() == ""


def test_connections_of_a_user():
    world = World(user_connections_max=2)
    other, third = Connection(), Connection()
    assert world.many(3) == 3
    assert world.sends(connection=other) == ""
    why = world.sends(connection=third)
    assert why == "User:ann has more connections than 2 (userConnectionsMax); try again later"
    assert world.sends(connection=third, user="bob") == ""
    assert world.many(3) == 3
    other.closed = True
    assert world.sends(connection=third) == ""
    del third
    gc.collect()
    assert world.sends(connection=Connection()) == ""


def test_users_are_bounded(monkeypatch):
    monkeypatch.setattr(quotas, "USERS_MAX", 3)
    world = World(user_requests_per_second=1)
    for number in range(20):
        assert world.sends(user=f"u{number}") == ""
        assert len(world.quotas._usage) <= 3


def test_the_size_of_a_request():
    assert request_size(RemotingCommand(310, {"topic": "orders", "a": "1"}, b"12345")) == 5 + 11 + 2


@pytest.mark.parametrize(("setting", "quota"), [
    ("user_requests_per_second", "requests"), ("user_request_bytes_per_second", "bytes"),
    ("user_connections_max", "connections")])
def test_each_quota_is_one_of_its_own(setting, quota):
    world = World(**{setting: 1})
    other = Connection()
    assert world.sends(size=1) == ""
    assert world.sends(size=1, connection=other) != ""
    assert {name: n for name, n in world.quotas.refused.items() if n} == {quota: 1}
