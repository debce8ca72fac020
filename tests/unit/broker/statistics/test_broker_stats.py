"""Rates and counts of the last minute, hour and day: requests 202, 208, 315 and 317."""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest
from broker_kit import admin_of, clients_of, wired

from tailrace.broker.admin.admin import RuntimeInfo
from tailrace.broker.controller import BrokerController
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.broker.statistics.broker_stats import BrokerStatsManager
from tailrace.broker.statistics.traffic import CountedArrivals, Counters, Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.model import MessageExtBrokerInner
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
def processor(broker, kit):
    return kit.served(broker.stats)


def seen(processor, channel, kit, name, key):
    answer = processor.answer(channel, kit.request(315, {"statsName": name, "statsKey": key}))
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
    answer = processor.answer(channel, kit.request(315, {"statsName": name, "statsKey": key}))
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
    traffic.forget_deleted({"orders"}, {"stock"})
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
    topics = kit.served(admin_of(broker))
    broker.traffic.arrived("orders", 50, 5_000)
    broker.traffic.hand_out("orders", "stock", 20, 2_000)
    after(clock, stats, 10)
    status = fastjson.loads(topics.topic_stats(channel, kit.request(202, {"topic": "orders"})).body)
    assert status["topicPutTps"] == 5.0
    progress = fastjson.loads(
        topics.consume_stats(channel, kit.request(208, {"consumerGroup": "stock"})).body)
    assert progress["consumeTps"] == 2.0
    listed = fastjson.loads(topics.broker_consume_stats(channel, kit.request(317, {"isOrder": "false"})).body)
    (rates,) = [s["consumeTps"] for e in listed["consumeStatsList"] for s in e.get("stock", ())]
    assert rates == 2.0


def test_runtime_figures_count_from_midnight(broker, store, stats, clock):
    runtime = wired(RuntimeInfo, broker)
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


def test_queues_and_latencies_are_counted_under_the_keys_of_the_reference(
    broker, stats, clock, processor, channel, kit
):
    stats.step()
    traffic = broker.traffic
    CountedArrivals(traffic, Heard()).arriving("orders", 2, 9, [0, 0, 0], 300)
    CountedArrivals(traffic, Heard()).arriving("SCHEDULE_TOPIC_XXXX", 2, 9, [0, 0, 0], 300)
    traffic.hand_out("orders", "stock", 4, 400, 2, 7_900_000)
    traffic.hand_out("orders", "stock", 1, 100, 2, 2_000_000)
    traffic.put_took("orders", 2, 3_500_000)
    after(clock, stats, 10)

    def minute(name, key):
        found = seen(processor, channel, kit, name, key)["statsMinute"]
        return found["sum"], found["avgpt"]

    assert minute("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2") == (3, 1.0)
    assert minute("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2") == (300, 100.0)
    assert minute("GROUP_GET_LATENCY", "2@orders@stock") == (9, 4.5)
    assert minute("TOPIC_PUT_LATENCY", "2@orders") == (3, 3.0)
    traffic.forget_deleted(set(), {"stock"})
    assert stats.view("GROUP_GET_LATENCY", "2@orders@stock") is None
    assert stats.view("TOPIC_PUT_LATENCY", "2@orders") is not None
    traffic.forget_deleted({"orders"}, set())
    assert list(traffic.counters.flows) == [("QUEUE_PUT", "SCHEDULE_TOPIC_XXXX@2")]


def test_without_detail_there_are_no_queues_in_the_keys(clock):
    traffic = Traffic(by_queue=False)
    traffic.arrived("SCHEDULE_TOPIC_XXXX", 1, 100, 2)
    traffic.hand_out("orders", "stock", 1, 100, 2, 4_000_000)
    assert list(traffic.counters.flows) == [("GROUP_GET_LATENCY", "orders@stock")]
    traffic.forget_deleted({"orders"}, set())
    assert not traffic.counters.flows


def test_counters_are_bounded_and_idle_ones_are_dropped_after_a_day(broker, clock):
    counters = Counters(most=2)
    for key in ("a", "b", "c", "x" * 601):
        counters.add("CHANNEL_ACTIVITY", key, 1)
    assert [key for _, key in counters.flows] == ["a", "b"]
    broker.traffic.counters = counters
    stats = broker.stats
    stats.step()
    for _ in range(24):
        counters.add("CHANNEL_ACTIVITY", "a", 1)
        after(clock, stats, 3_600)
    assert [key for _, key in counters.flows] == ["a"]
    counters.add("CHANNEL_ACTIVITY", "c", 1)
    assert [key for _, key in counters.flows] == ["a", "c"]


def test_registrations_and_dead_letters_are_counted(broker, kit, channel, store, clock, stats):
    clients = clients_of(broker)
    beat = {"clientID": "c1", "producerDataSet": [{"groupName": "p"}],
            "consumerDataSet": [{"groupName": "stock"}]}
    clients.heartbeat(channel, kit.request(34, body=fastjson.dumps(beat)))
    broker.topics.update(TopicConfig(topic_name="orders"))
    store.put_inner(MessageExtBrokerInner("orders", 0, b"x", b""))
    back = {"offset": "0", "group": "stock", "delayLevel": "-1", "originTopic": "orders", "unitMode": "false",
            "originMsgId": "x", "maxReconsumeTimes": "3"}
    assert kit.served(wired(SendBackProcessor, broker)).send_back(channel, kit.request(36, back)).code == 0
    cluster = broker.config.broker_cluster_name
    after(clock, stats, 10)
    for name, key in (
        ("CONSUMER_REGISTER_TIME", cluster), ("PRODUCER_REGISTER_TIME", cluster),
        ("SNDBCK2DLQ_TIMES", "null@orders@stock@SEND_BACK_TO_DLQ"),
    ):
        assert stats.view(name, key) is not None, name
    assert stats.view("SNDBCK2DLQ_TIMES", "null@orders@stock@SEND_BACK_TO_DLQ").minute.sum == 1


def test_connections_of_a_running_broker_are_counted(tmp_path, kit):
    async def test():
        controller = BrokerController(kit.open_store(tmp_path, clock=SystemClock()), BrokerConfig())
        await controller.start(("127.0.0.1", 0), None)
        flows = controller.broker.traffic.counters.flows
        try:
            host, _, port = controller.broker_address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\xff\xff\xff\xff not a frame")
            assert await reader.read() == b""  # the broker closes it
            writer.close()
            assert flows["CHANNEL_ACTIVITY", "CONNECT"].messages == 1
        finally:
            await controller.stop()
        assert flows["CHANNEL_ACTIVITY", "CLOSE"].messages == 1

    asyncio.run(test())


def test_208_and_317_show_topics_that_a_group_has_consumed(broker, store, channel, kit):
    for name in ("orders", "bills", "left"):
        broker.topics.update(TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1))
    broker.groups.find_or_create("stock")
    for topic in ("orders", "left"):
        broker.offsets.commit("stock", topic, 0, 0)
    for _ in range(3):
        store.put_inner(MessageExtBrokerInner("orders", 0, b"x", b""))
    broker.offsets.commit_pull("stock", "orders", 0, 2)
    broker.clients.consumers.register(kit.FakeChannel(), kit.request(34), "c1", {
        "groupName": "stock", "subscriptionDataSet": [{"topic": "orders"}, {"topic": "bills"}]})
    topics = admin_of(broker)

    def shown(**more):
        answer = topics.consume_stats(channel, kit.request(208, {"consumerGroup": "stock", **more}))
        return sorted(fastjson.loads(key)["topic"] for key in fastjson.loads(answer.body)["offsetTable"])

    assert shown() == ["orders"]
    assert shown(topic="bills") == ["bills"]
    assert shown(topic="left") == []
    assert shown(topicList="left;bills;nothing") == ["bills", "left"]
    body = fastjson.loads(topics.broker_consume_stats(channel, kit.request(317, {"isOrder": "false"})).body)
    (tables,) = [e["stock"] for e in body["consumeStatsList"] if "stock" in e]
    assert len(tables) == 1
    assert (body["totalDiff"], body["totalInflightDiff"]) == (3, 2)
    assert {"TOOLS_CONSUMER": []} in body["consumeStatsList"]


def test_sizes_are_written_for_people(broker):
    OsFileSystem().makedirs(f"{broker.store.path}/commitlog")
    table = wired(RuntimeInfo, broker).table()
    assert table["remainHowManyDataToFlush"] == "0 B"
    assert re.fullmatch(r"Total : [0-9.]+ [KMGT]iB, Free : [0-9.]+ [KMGT]iB\.", table["commitLogDirCapacity"])
    used = os.statvfs(broker.store.path)
    ratio = (used.f_blocks - used.f_bfree) / (used.f_blocks - used.f_bfree + used.f_bavail)
    assert ratio - 0.02 <= float(table["commitLogDiskRatio"]) <= ratio + 0.03
