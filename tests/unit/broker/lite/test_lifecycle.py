"""Lite topics are deleted after their expiration, with what belongs to them, and stay deleted."""

from __future__ import annotations

import shutil

import pytest

from tailrace.doctor.verify import verify

QUEUE = "%LMQ%$parent$a"
HOUR_MS = 3_600_000


@pytest.fixture
def expiring(open_world):
    """Lite topics of ``parent`` live for an hour."""
    world = open_world()
    world.topic(attributes="+message.type=LITE,+lite.topic.expiration=60")
    world.group()
    return world


def verified(world):
    """What `tailrace verify` finds in the directory."""
    *findings, _ = verify(str(world.path))
    return findings


def names(world):
    return sorted({topic for topic, *_ in world.store.queues() if topic.startswith("%LMQ%")})


def step(world):
    world.lite.lifecycle.step()
    world.turn()


def consume(world, name, body=b"x"):
    world.send(name, body)
    world.subscribe(name)
    for one in world.pop():
        world.ack(one)


def test_a_lite_topic_without_messages_is_deleted(expiring):
    world = expiring
    consume(world, "a")
    world.clock.advance(HOUR_MS // 2)
    world.send("b")
    world.clock.advance(HOUR_MS // 2 + 1_000)
    step(world)
    assert names(world) == ["%LMQ%$parent$b"]
    assert world.offset("a") == -1
    assert world.lite.registry.of_client("c").queues == set()
    assert [m.body for m in world.store.read("parent", 0)] == [b"x", b"x"]


def test_not_before_the_broker_has_run_for_a_while(expiring):
    world = expiring
    world.send("a")
    world.clock.advance(2 * HOUR_MS)
    world.lite.lifecycle._boot_ms = world.clock.now_ms() - world.broker_config.min_lite_ttl + 1
    step(world)
    assert names(world) == [QUEUE]


@pytest.mark.parametrize("attributes", ["+message.type=LITE", "+message.type=LITE,+lite.topic.expiration=0"])
def test_without_an_expiration_it_stays(open_world, attributes):
    world = open_world()
    world.topic(attributes=attributes)
    world.send("a")
    world.clock.advance(1_000 * HOUR_MS)
    step(world)
    assert names(world) == [QUEUE]


def test_it_starts_again_with_the_next_message(expiring):
    world = expiring
    for n in range(3):
        consume(world, "a", b"%d" % n)
    world.clock.advance(HOUR_MS + 1_000)
    step(world)
    world.send("a", b"new")
    assert [m.body for m in world.store.read(QUEUE)] == [b"new"]
    world.subscribe("a")
    assert [one.body for one in world.pop()] == [b"new"]


@pytest.mark.parametrize("lost", ["", "consumequeue"])
@pytest.mark.parametrize("new", [0, 1, 3])
def test_a_restart_or_a_rebuild_does_not_bring_it_back(expiring, lost, new):
    world = expiring
    for n in range(3):
        consume(world, "a", b"%d" % n)
    world.send("b")
    world.clock.advance(HOUR_MS + 1_000)
    world.send("b")
    step(world)
    for n in range(new):
        world.send("a", b"new%d" % n)
    world.close()
    assert verified(world) == []
    if lost:
        shutil.rmtree(world.path / lost)
    world.open()
    assert names(world) == ([QUEUE] if new else []) + ["%LMQ%$parent$b"]
    if new:
        assert [m.body for m in world.store.read(QUEUE)] == [b"new%d" % n for n in range(new)]
    world.subscribe("a")
    assert [one.body for one in world.pop()] == [b"new%d" % n for n in range(new)]


def test_a_queue_that_gets_a_message_in_the_meantime_stays(expiring, monkeypatch):
    world = expiring
    consume(world, "a", b"1")
    world.clock.advance(HOUR_MS + 1_000)
    expired = world.lite.lifecycle._expired()
    assert expired == {QUEUE: 1}
    monkeypatch.setattr(world.lite.lifecycle, "_expired", lambda: expired)
    world.send("a", b"2")
    step(world)
    assert [m.body for m in world.store.read(QUEUE)] == [b"1", b"2"]
    assert world.offset("a") == 1
    assert [one.body for one in world.pop()] == [b"2"]
    world.close()
    world.open()
    assert [m.body for m in world.store.read(QUEUE)] == [b"1", b"2"]


def test_a_deletion_that_cannot_be_written_deletes_nothing(expiring, monkeypatch):
    world = expiring
    consume(world, "a")
    world.clock.advance(HOUR_MS + 1_000)

    def fails(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr(world.broker.offsets, "remove_topics", fails)
    step(world)
    assert (names(world), world.offset("a")) == ([QUEUE], 1)


def test_with_the_parent_its_lite_topics_are_deleted(expiring):
    world = expiring
    world.topic("parent2")
    consume(world, "a")
    world.send("a", topic="parent2")
    assert world.ask(world.admin.delete_topic, {"topic": "parent"}, code=215).code == 0
    assert names(world) == ["%LMQ%$parent2$a"]
    assert (world.offset("a"), world.lite.registry.count) == (-1, 0)
    world.close()
    assert names(world.open()) == ["%LMQ%$parent2$a"]


def test_with_a_lite_group_its_offsets_are_deleted(expiring):
    world = expiring
    consume(world, "a")
    assert world.offset("a") == 1
    assert world.ask(world.admin.delete_group, {"groupName": "lite", "cleanOffset": "false"}, code=207).code == 0
    assert world.offset("a") == -1
