"""POP at a master that shows messages only after a slave has them."""

from __future__ import annotations

import pytest
from broker_world import SMALL_SIZES, TOPIC, BrokerWorld
from pop_client import ack_fields, pop_fields, popped

from tailrace.config import BrokerRole
from tailrace.formats.pop import pop_retry_topic
from tailrace.formats.remoting import RequestCode
from tailrace.testing import CrashFileSystem, SimClock

GROUP = "g"
SETTINGS = SMALL_SIZES | {
    "broker_role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "read_replicated_only": True}


@pytest.fixture
def world():
    clock = SimClock()
    made = BrokerWorld(CrashFileSystem(clock=clock), clock, sync=False, sizes=SETTINGS)
    yield made
    made.close()


def replicated(world, position=None):
    """Let the slave have the log up to a position, by default all."""
    inner = world.store.inner
    inner.replication.update(1, [inner.commit_log.max_offset if position is None else position])
    inner.replicated()
    world.dispatch()


def pop_one(world):
    number = world.ask(world.pop_part.service.pop_message, RequestCode.POP_MESSAGE, pop_fields(
        TOPIC, GROUP, world.clock.now_ms(), invisibleTime=8000))
    world.loop.run()
    return popped(world.answer(number), TOPIC, world.config.broker_name, GROUP)


def serve(world, seconds, *, replicates):
    for _ in range(seconds):
        world.clock.advance(1000)
        world.timers()
        world.revive()
        world.loop.run()
        if replicates:
            replicated(world)


@pytest.mark.parametrize("held_s", [3, 7, 8, 12])
def test_an_acknowledgement_counts_that_no_slave_has_yet(world, held_s):
    """The slave is away ``held_s`` seconds after the pop, so that the log is not dispatched any more."""
    world.send(b"one")
    replicated(world)
    ones = pop_one(world)
    assert [one.body for one in ones] == [b"one"]
    serve(world, min(held_s, 5), replicates=True)
    number = world.ask(world.pop_part.acks.ack_message, RequestCode.ACK_MESSAGE, ack_fields(ones[0], GROUP))
    world.loop.run()
    assert world.answer(number).code == 0
    serve(world, held_s - min(held_s, 5), replicates=True)
    serve(world, 20, replicates=False)
    serve(world, 5, replicates=True)
    assert world.pop_part.revive.revived == 0
    assert world.pop_part.revive.pending == 0
    assert world.store.queue_of(pop_retry_topic(TOPIC, GROUP), 0).max == 0


def test_a_message_comes_back_when_a_slave_has_the_rest(world):
    world.send(b"one")
    replicated(world)
    assert len(pop_one(world)) == 1
    serve(world, 20, replicates=False)
    assert world.pop_part.revive.revived == 0
    serve(world, 5, replicates=True)
    assert world.pop_part.revive.revived == 1
