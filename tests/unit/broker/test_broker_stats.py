"""Rates and counts of the last minute, hour and day: requests 202, 208, 315 and 317."""

from __future__ import annotations

import json

import pytest

from tailrace.broker.broker_stats import BrokerStatsManager
from tailrace.broker.processors.admin_topics import AdminTopicsProcessor
from tailrace.broker.processors.stats import StatsProcessor
from tailrace.broker.runtime_info import RuntimeInfo
from tailrace.broker.traffic import CountedArrivals
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.node.topic_config import TopicConfig


class Heard:
    def __init__(self):
        self.calls = []

    def arriving(self, *arguments):
        self.calls.append(arguments)


@pytest.fixture
def stats(broker):
    return broker.stats


@pytest.fixture
def processor(broker):
    return StatsProcessor(broker)


def seen(processor, channel, kit, name, key):
    answer = processor.view(channel, kit.request(315, {"statsName": name, "statsKey": key}))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json.loads(answer.body)


def after(clock, stats, seconds):
    """Let the service sample, as it does every 10 s."""
    for _ in range(seconds // 10):
        clock.ms += 10_000
        stats.step()


def test_a_rate_is_that_of_the_last_minute(broker, stats, clock, processor, channel, kit):
    stats.step()
    broker.traffic.arrived("orders", 60, 6_000)
    after(clock, stats, 10)
    found = seen(processor, channel, kit, "TOPIC_PUT_NUMS", "orders")
    assert found["statsMinute"] == {"sum": 60, "tps": 6.0, "avgpt": 1.0}
    assert found["statsHour"] == found["statsDay"] == {"sum": 0, "tps": 0.0, "avgpt": 0.0}
    size = seen(processor, channel, kit, "TOPIC_PUT_SIZE", "orders")
    assert size["statsMinute"] == {"sum": 6_000, "tps": 600.0, "avgpt": 100.0}
    after(clock, stats, 60)
    assert seen(processor, channel, kit, "TOPIC_PUT_NUMS", "orders")["statsMinute"]["sum"] == 0


def test_an_hour_has_six_samples_and_a_day_has_24(broker, stats, clock, processor, channel, kit):
    stats.step()
    for _ in range(26):
        broker.traffic.arrived("orders", 10, 1_000)
        after(clock, stats, 3_600)
    found = seen(processor, channel, kit, "TOPIC_PUT_NUMS", "orders")
    assert found["statsMinute"]["sum"] == 0
    assert found["statsHour"]["sum"] == 10
    assert found["statsDay"]["sum"] == 240
    assert found["statsDay"]["tps"] == pytest.approx(240 / 86_400)


def test_what_a_consumer_took_is_counted_by_topic_and_group(
    broker, stats, clock, processor, channel, kit
):
    broker.traffic.hand_out("orders", "stock", 32, 3_200)
    broker.traffic.hand_out("orders", "stock", 8, 800)
    broker.traffic.sent_back("orders", "stock")
    after(clock, stats, 10)
    nums = seen(processor, channel, kit, "GROUP_GET_NUMS", "orders@stock")["statsMinute"]
    assert nums == {"sum": 40, "tps": 4.0, "avgpt": 20.0}
    assert seen(processor, channel, kit, "GROUP_GET_SIZE", "orders@stock")["statsMinute"]["sum"] == 4_000
    back = seen(processor, channel, kit, "SNDBCK_PUT_NUMS", "orders@stock")["statsMinute"]
    assert back["sum"] == 1
    cluster = broker.config.broker_cluster_name
    assert seen(processor, channel, kit, "BROKER_GET_NUMS", cluster)["statsMinute"]["sum"] == 40


def test_totals_leave_system_topics_out_where_the_name_says_so(
    broker, stats, clock, processor, channel, kit
):
    broker.traffic.arrived("orders", 3, 300)
    broker.traffic.arrived("rmq_sys_wheel_timer", 4, 400)
    after(clock, stats, 10)
    cluster = broker.config.broker_cluster_name
    for name, count in (("BROKER_PUT_NUMS", 7), ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", 3)):
        found = seen(processor, channel, kit, name, cluster)["statsMinute"]
        assert found == {"sum": count, "tps": count / 10, "avgpt": 0.0}


@pytest.mark.parametrize(("name", "key"), [
    ("TOPIC_PUT_NUMS", "nothing"), ("NO_SUCH_NAME", "orders"), ("GROUP_GET_NUMS", "orders"),
    ("GROUP_GET_NUMS", "orders@"), ("BROKER_PUT_NUMS", "other-cluster"), ("", ""),
])
def test_statistics_that_do_not_exist_are_named(broker, processor, channel, kit, name, key):
    broker.traffic.arrived("orders", 3, 300)
    answer = processor.view(channel, kit.request(315, {"statsName": name, "statsKey": key}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The stats <{name}> <{key}> not exist"


def test_a_deleted_topic_or_group_leaves_the_statistics(broker, stats, clock, processor, channel, kit):
    traffic = broker.traffic
    for topic in ("orders", "bills"):
        traffic.arrived(topic, 1, 100)
        for group in ("stock", "audit"):
            traffic.hand_out(topic, group, 1, 100)
    traffic.sent_back("orders", "stock")
    after(clock, stats, 10)
    traffic.forget_topic("orders")
    traffic.forget_group("stock")
    left = [(name, key) for name, key in (
        ("TOPIC_PUT_NUMS", "orders"), ("TOPIC_PUT_NUMS", "bills"), ("GROUP_GET_NUMS", "orders@audit"),
        ("GROUP_GET_NUMS", "bills@stock"), ("GROUP_GET_NUMS", "bills@audit"),
        ("SNDBCK_PUT_NUMS", "orders@stock"),
    ) if stats.view(name, key) is not None]
    assert left == [("TOPIC_PUT_NUMS", "bills"), ("GROUP_GET_NUMS", "bills@audit")]
    traffic.arrived("orders", 5, 500)  # created again: its first minute has nothing of before
    after(clock, stats, 10)
    assert seen(processor, channel, kit, "TOPIC_PUT_NUMS", "orders")["statsMinute"]["sum"] == 5


def test_a_wall_clock_that_steps_back_makes_no_rate_wrong(broker, kit):
    class Stepping:
        wall, ns = 1_700_000_000_000, 0

        def now_ms(self):
            return self.wall

        def monotonic_ns(self):
            return self.ns

    clock = Stepping()
    stats = BrokerStatsManager(clock, broker.traffic, "cluster")
    broker.traffic.arrived("orders", 10, 1_000)
    stats.step()
    clock.wall -= 3_600_000
    broker.traffic.arrived("orders", 10, 1_000)
    clock.ns += 10_000_000_000
    stats.step()
    minute = stats.view("TOPIC_PUT_NUMS", "orders").minute
    assert (minute.sum, minute.tps) == (20, 1.0)


def test_202_208_and_317_report_the_rates(broker, store, stats, clock, channel, kit):
    broker.topics.update(TopicConfig(topic_name="orders"))
    broker.groups.find_or_create("stock")
    broker.offsets.commit("stock", "orders", 0, 0)
    topics = AdminTopicsProcessor(broker)
    broker.traffic.arrived("orders", 50, 5_000)
    broker.traffic.hand_out("orders", "stock", 20, 2_000)
    after(clock, stats, 10)
    status = fastjson.loads(topics.topic_stats(channel, kit.request(202, {"topic": "orders"})).body)
    assert status["topicPutTps"] == 5.0
    progress = fastjson.loads(
        topics.consume_stats(channel, kit.request(208, {"consumerGroup": "stock"})).body)
    assert progress["consumeTps"] == 2.0
    listed = fastjson.loads(topics.broker_consume_stats(channel, kit.request(317, {})).body)
    (rates,) = [s["consumeTps"] for e in listed["consumeStatsList"] for s in e.get("stock", ())]
    assert rates == 2.0


def test_runtime_figures_count_from_midnight(broker, store, stats, clock):
    runtime = RuntimeInfo(broker, OsFileSystem())
    stats.step()
    broker.traffic.arrived("orders", 7, 700)
    broker.traffic.hand_out("orders", "stock", 5, 500)

    def today(kind):
        table = runtime.table()
        return [int(table[f"msg{kind}Total{when}"]) for when in (
            "YesterdayMorning", "TodayMorning", "TodayNow")]

    assert (today("Put"), today("Get")) == ([0, 0, 7], [0, 0, 5])
    after(clock, stats, 86_400)
    broker.traffic.arrived("orders", 1, 100)
    assert (today("Put"), today("Get")) == ([0, 7, 8], [0, 5, 5])
    after(clock, stats, 86_400)
    assert (today("Put"), today("Get")) == ([7, 8, 8], [5, 5, 5])


def test_arrivals_are_counted_and_passed_on(broker):
    heard = Heard()
    CountedArrivals(broker.traffic, heard).arriving("orders", 2, 9, [0, 0, 0], 300)
    assert heard.calls == [("orders", 2, 9, [0, 0, 0], 300)]
    assert broker.traffic.by_topic["orders"].messages == 3
    assert broker.traffic.by_topic["orders"].throughput == 300


def test_light_queues_count_as_one_topic_and_one_group(broker, stats, clock):
    for device in range(3):
        broker.traffic.arrived(f"%LMQ%{device}", 1, 100)
        broker.traffic.hand_out(f"%LMQ%{device}", f"%LMQ%g{device}", 1, 100)
    after(clock, stats, 10)
    assert stats.view("TOPIC_PUT_NUMS", "%LMQ%").minute.sum == 3
    assert stats.view("GROUP_GET_NUMS", "%LMQ%@%LMQ%").minute.sum == 3
    assert list(broker.traffic.by_topic) == ["%LMQ%"]
