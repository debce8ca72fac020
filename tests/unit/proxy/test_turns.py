"""Calls of several users begin in turns."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.proxy import turns
from tailrace.proxy.turns import CallTurns


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


class Users:
    """Calls of users, and the order in which they begin."""

    def __init__(self):
        self.turns, self.begun, self.calls = CallTurns(), [], []

    async def call(self, *users):
        """Make a call of each user; return when those have begun that need not wait."""
        for user in users:
            self.calls.append(asyncio.create_task(self._call(user)))
        await asyncio.sleep(0)

    async def _call(self, user):
        await self.turns.wait(user)
        self.begun.append(user)

    async def all(self):
        await asyncio.gather(*self.calls)


def test_a_user_alone_never_waits():
    async def test():
        users = Users()
        await users.call(*["ann"] * 500)
        assert len(users.begun) == 500
        assert not users.turns._waiting

    run(test)


def test_few_calls_of_several_users_begin_at_once():
    async def test():
        users = Users()
        await users.call(*["ann", "bob", "eve"] * turns.CALLS)
        assert len(users.begun) == 3 * turns.CALLS

    run(test)


def test_a_user_with_very_many_calls_waits_and_others_do_not(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1_000)

    async def test():
        users = Users()
        await users.call("bob", *["eve"] * 50)
        assert users.begun == ["bob"] + ["eve"] * turns.CALLS
        users.begun.clear()
        await users.call("bob")
        assert users.begun == ["bob"]
        await users.all()
        assert users.begun == ["bob"] + ["eve"] * (50 - turns.CALLS)
        assert not users.turns._waiting

    run(test)


def test_two_users_with_very_many_calls_take_turns(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1_000)

    async def test():
        users = Users()
        await users.call("bob", *["eve"] * 20, *["bob"] * 20)
        await users.all()
        for first in range(turns.CALLS * 2, 32, turns.CALLS * 2):
            assert users.begun[first : first + turns.CALLS * 2].count("eve") == turns.CALLS

    run(test)


def test_calls_that_keep_arriving_do_not_put_off_the_next_turn(monkeypatch):
    monkeypatch.setattr(turns, "QUIET_S", 1_000)

    async def test():
        users = Users()
        await users.call("bob", *["eve"] * 20)
        await users.all()
        assert users.begun.count("eve") == 20

    run(test)


def test_calls_that_were_cancelled_while_they_waited_take_no_turn(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1_000)

    async def test():
        users = Users()
        await users.call("bob", *["eve"] * 20)
        for call in users.calls[5:-1]:
            call.cancel()
        await users.calls[-1]
        assert users.begun.count("eve") == turns.CALLS + 1

    run(test)


@pytest.mark.parametrize("quiet", [0.6, 2.0])
def test_a_user_is_alone_again_when_the_others_have_stopped(monkeypatch, quiet):
    async def test():
        users = Users()
        now = [100.0]
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now[0])
        await users.call("bob", "eve")
        for _ in range(2):
            now[0] += quiet
            await users.call("eve")
        users.begun.clear()
        await users.call(*["eve"] * 100)
        assert len(users.begun) == 100

    run(test)
