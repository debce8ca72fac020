"""Metrics of POP, and the limit of messages in flight."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.config import BrokerConfig
from tailrace.observe.exposition import Exposition


def shown(world):
    exposition = Exposition("DefaultCluster", "broker-a")
    exposition.broker = world.broker
    text = exposition.text()
    base = {"cluster", "node_type", "node_id"}
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in base)): sample.value
        for family in text_string_to_metric_families(text.decode()) for sample in family.samples
        if "pop" in sample.name or sample.name.startswith("rocketmq_consumer_")}


def test_records_of_the_revive_topic_are_counted(world):
    for _ in range(3):
        world.send()
    ones = world.pop()
    world.ack(ones[0])
    found = shown(world)
    assert found["rocketmq_pop_revive_in_message_total", "g", "PUT_OK", "CK", "orders"] == 1
    assert found["rocketmq_pop_revive_in_message_total", "g", "PUT_OK", "ACK", "orders"] == 1
    assert found["rocketmq_consumer_inflight_messages", "g", "false", "false", "orders"] == 2
    assert found["rocketmq_consumer_lag_messages", "g", "false", "false", "orders"] == 2
    world.run(14_000)
    found = shown(world)
    out = {key[3:]: n for key, n in found.items() if key[0] == "rocketmq_pop_revive_out_message_total"}
    assert sorted(key[-2] for key in out) == ["ACK", "CK"]
    assert set(out.values()) == {1}
    assert found["rocketmq_pop_revive_retry_messages_total", "g", "PUT_OK", "orders"] == 2
    assert found["rocketmq_consumer_inflight_messages", "g", "false", "false", "orders"] == 0
    lags = {k: n for k, n in found.items() if k[0].startswith("rocketmq_pop_revive_la")}
    assert len(lags) == 2 * world.broker_config.revive_queue_num
    assert set(lags.values()) == {0}
    assert found["rocketmq_pop_checkpoint_buffer_size",] == 0


def test_a_revive_queue_that_is_not_read_shows_its_lag(world):
    world.send()
    world.pop()
    timers = world.store.timer_services.messages
    for _ in range(28):
        world.clock.advance(500)
        world.store.wait_dispatched()
        while timers.enqueue_step() or timers.dequeue_step():
            pass
    world.store.wait_dispatched()
    world.clock.advance(3_000)
    lags = {q: p for q, p in world.pop_part.revive.progress().items() if p.lag}
    (progress,) = lags.values()
    assert (progress.lag, progress.latency_ms >= 3_000) == (1, True)


def test_deleted_groups_and_topics_are_forgotten(world):
    world.send()
    world.pop()
    metrics = world.broker.pop_metrics
    assert metrics.in_flight("orders", "g", 0) == 1
    metrics.forget_deleted({"other"}, set())
    assert metrics.records_put
    metrics.forget_deleted(set(), {"g"})
    assert (metrics.in_flight("orders", "g", 0), metrics.records_put) == (0, {})


def test_another_time_keeps_a_message_in_flight_and_a_second_acknowledgement_counts_none_below_zero(world):
    world.send()
    (one,) = world.pop()
    _, one = world.change(one, 60_000)
    metrics = world.broker.pop_metrics
    assert metrics.in_flight("orders", "g", 0) == 1
    world.ack(one)
    world.ack(one)
    assert metrics.in_flight("orders", "g", 0) == 0


@pytest.fixture
def limited(open_world):
    return open_world(broker_config=BrokerConfig(enable_pop_message_threshold=True, pop_inflight_message_threshold=2))


def test_a_queue_is_not_popped_while_too_many_messages_are_in_flight(limited, turns, caplog):
    for _ in range(6):
        limited.send()
    with caplog.at_level(logging.WARNING):
        ones = limited.pop(maxMsgNums=3)
        answer = limited.pop_answer()
        assert (answer.code, answer.ext["restNum"]) == (210, "3")
        assert limited.pop_answer(pollTime=15_000) is None
        turns()
    assert limited.channel.sent == []  # it waits, and does not run repeatedly
    assert sum("pop is stopped" in record.getMessage() for record in caplog.records) == 1
    assert shown(limited)["tailrace_pop_stopped_queues",] == 1
    limited.ack(ones[0])
    turns()
    assert [answer.code for answer in limited.channel.sent] == [0]
    assert shown(limited)["tailrace_pop_stopped_queues",] == 0


def test_messages_that_came_back_are_not_in_flight_any_more(limited):
    for _ in range(4):
        limited.send()
    limited.pop(maxMsgNums=3)
    assert limited.pop() == []
    limited.run(14_000)
    assert len(limited.pop()) == 4  # three from the retry topic
