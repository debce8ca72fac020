"""Many messages that are popped and not acknowledged take no memory of the broker."""

from __future__ import annotations

import tracemalloc

import pytest
from long_runs import LONG

from tailrace.config import BrokerConfig, StoreConfig
from tailrace.node.topic_config import TopicConfig

COUNT = 30_000 if LONG else 10_000
QUEUES = 500


@pytest.mark.parametrize(("is_new", "most"), [(True, 2), (False, 1)])
def test_a_pop_looks_a_queue_up_once_and_for_a_new_group_twice(world, monkeypatch, is_new, most):
    """A topic may have 16,384 queues, and a pop asks each of them how many messages are left."""
    world.store.topics.update(TopicConfig(topic_name="wide", read_queue_nums=QUEUES, write_queue_nums=QUEUES))
    world.send(topic="wide")
    if not is_new:
        world.pop(topic="wide")
        world.send(topic="wide")
    found, queue_of = [], world.store.queue_of

    def counted(topic, queue_id):
        found.append(topic)
        return queue_of(topic, queue_id)

    monkeypatch.setattr(world.store, "queue_of", counted)
    assert len(world.pop(topic="wide")) == 1
    assert found.count("wide") <= most * QUEUES
    assert len(found) - found.count("wide") <= 2, "the retry topics of the group do not exist"


@pytest.mark.slow
def test_unacknowledged_messages_take_no_memory_and_all_come_back(open_world):
    world = open_world(
        broker_config=BrokerConfig(),
        config=StoreConfig(
            mapped_file_size_commit_log=1 << 27, max_hash_slot_num=1000, max_index_num=1_000_000,
            commit_log_allocate_step=1 << 24))
    for _ in range(COUNT // 1000):
        for _ in range(1000):
            world.send(b"x")
    world.pop(queueId=0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    popped = 32
    while popped < COUNT:
        world.store.get_message("orders", 0, popped, 32)  # the system may have evicted it: no immediate answer
        popped += int(world.pop_answer(queueId=0, maxMsgNums=32).ext["msgOffsetInfo"].count(",")) + 1
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 35 * COUNT
    world.run(16_000, step=1_000)
    assert world.store.queue_of("%RETRY%g_orders", 0).max == COUNT
    assert world.pop_part.revive.pending == 0
