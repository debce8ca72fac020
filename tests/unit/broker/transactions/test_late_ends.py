"""Ends of transactions that come while checks run: an answer of the producer settles the half message."""

from __future__ import annotations

import pytest
from broker_world import TOPIC, BrokerWorld

from tailrace.env.entropy import SeededEntropy
from tailrace.testing import CrashFileSystem, SimClock


@pytest.fixture
def world():
    clock = SimClock()
    made = BrokerWorld(CrashFileSystem(clock=clock), clock, sync=False)
    yield made
    made.close()


def passes(world, count):
    for _ in range(count):
        world.clock.advance(4_000)
        world.dispatch()
        world.check_pass()


def asked(world):
    """Queue offset and position in the latest question to the producer."""
    fields = world.connection.asked[-1].ext
    return int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])


def check_during_the_search(world, monkeypatch, count):
    """Let checks come between the search for a half message and its end."""
    look = world.ends.service._look

    def slow(part):
        found = look(part)
        for _ in range(count):
            world.clock.advance(4_000)
            world.dispatch()
            with pytest.raises(StopIteration):
                world.checks.run_pass().send(None)
        return found

    monkeypatch.setattr(world.ends.service, "_look", slow)


def bodies(world):
    world.dispatch()
    return [m.body for m in world.store.read(TOPIC, 0)]


def test_many_ends_wait_for_the_dispatch_once(world, monkeypatch):
    for number in range(20):
        world.send(b"%d" % number, half=True)
    passes(world, 2)
    ends = [(int(asked.ext["tranStateTableOffset"]), int(asked.ext["commitLogOffset"]))
            for asked in world.connection.asked[-20:]]
    waits, wait = [], world.store.wait_dispatched
    monkeypatch.setattr(world.store, "wait_dispatched", lambda: waits.append(1) or wait())
    answers = [world.end_transaction(*one, commit=True, check=True) for one in ends]
    world.loop.run()
    assert [world.answer(number).code for number in answers] == [0] * 20
    assert len(waits) == 1
    assert sorted(bodies(world)) == sorted(b"%d" % number for number in range(20))


def test_the_checks_of_many_half_messages_wait_for_the_dispatch_once(world, monkeypatch):
    for number in range(20):
        world.send(b"%d" % number, half=True)
    world.clock.advance(7_000)
    world.dispatch()
    waits, wait = [], world.store.wait_dispatched
    monkeypatch.setattr(world.store, "wait_dispatched", lambda: waits.append(1) or wait())
    world.check_pass()
    assert len(world.connection.asked) == 20
    assert len(waits) == 1


def test_ends_are_refused_while_the_dispatch_is_not_complete(world, monkeypatch):
    world.send(b"half", half=True)
    passes(world, 2)
    monkeypatch.setattr(world.store, "wait_dispatched", lambda: False)
    refused = world.end_transaction(*asked(world), commit=True, check=True)
    world.loop.run()
    assert "not built yet" in world.answer(refused).remark
    monkeypatch.undo()
    number = world.end_transaction(*asked(world), commit=True, check=True)
    world.loop.run()
    assert world.answer(number).code == 0
    assert bodies(world) == [b"half"]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_no_check_asks_about_a_half_message_whose_answer_waits(world, monkeypatch, count):
    world.send(b"half", half=True)
    passes(world, 2)
    questions = len(world.connection.asked)
    check_during_the_search(world, monkeypatch, count)
    number = world.end_transaction(*asked(world), commit=True, check=True)
    world.loop.run()
    assert world.answer(number).code == 0
    assert bodies(world) == [b"half"]
    assert len(world.connection.asked) == questions
    assert not world.broker.transactions.ending


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("commit", [True, False])
def test_a_late_answer_settles_the_newest_copy(world, monkeypatch, count, commit):
    world.send(b"half", half=True)
    passes(world, 1)
    late = asked(world)
    passes(world, 2)
    check_during_the_search(world, monkeypatch, count)
    number = world.end_transaction(*late, commit=commit, check=True)
    world.loop.run()
    assert world.answer(number).code == 0
    assert bodies(world) == ([b"half"] if commit else [])
    world.end_transaction(*asked(world), commit=True, check=True)
    passes(world, 3)
    assert bodies(world) == ([b"half"] if commit else [])
    assert world.broker.transactions.queue.pending == 0
    assert not world.broker.transactions._copies


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("checks", [0, 1])
def test_an_end_does_not_settle_another_half_message_at_its_place(commit, checks):
    """A power loss, or a promotion, has taken the half message that the producer means, and a later one is there."""
    files, clock = CrashFileSystem(), SimClock()
    lost = BrokerWorld(files, clock, sync=False)
    lost.flush_log()
    answer = lost.answer(lost.send(b"lost", half=True))
    place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
    lost.loop.stop()
    made = BrokerWorld(files.power_lost(SeededEntropy(1), 0), clock, sync=False)
    answer = made.answer(made.send(b"kept", half=True))
    assert place == (int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16))
    passes(made, 2 * checks)
    refused = made.end_transaction(*place, commit=commit, name="Ulost")
    made.loop.run()
    assert "transaction" in made.answer(refused).remark
    assert made.broker.transactions.queue.pending == 1
    number = made.end_transaction(*place, commit=True, name="Ukept")
    made.loop.run()
    assert made.answer(number).code == 0
    assert bodies(made) == [b"kept"]
    made.close()
