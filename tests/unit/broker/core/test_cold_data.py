"""How much groups read from the disk is counted and limited."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.broker import wiring
from tailrace.broker.core import cold_data
from tailrace.broker.core.cold_data import ColdDataFlowControl
from tailrace.broker.messages import pull_service as pull_module
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.model import GetMessageResult, GetMessageStatus, MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.reply import Reply
from tailrace.requests.worker import cold_reads

EXT = {
    "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}
LIMITED = {"cold_data_flow_control_enable": True, "cg_cold_read_threshold": 100, "global_cold_read_threshold": 1000}


def test_a_group_over_its_threshold_is_limited_until_the_period_ends(clock):
    control = ColdDataFlowControl(clock, BrokerConfig(**LIMITED))
    control.count("g", 99)
    assert not control.is_over("g")
    control.count("g", 1)
    assert control.is_over("g")
    assert not control.is_over("other")
    clock.ms += cold_data.PERIOD_MS
    assert not control.is_over("g")
    assert control.to_json()["runtimeTable"]["g"]["coldAcc"] == 0
    clock.ms += cold_data.FORGET_MS
    assert control.to_json()["runtimeTable"] == {}


def test_all_groups_together_have_a_threshold_for_those_that_read(clock):
    control = ColdDataFlowControl(clock, BrokerConfig(**LIMITED))
    control.count("one", 1)
    for n in range(10):
        control.count(f"g{n}", 99)
    assert not control.is_over("one")
    control.count("g1", 9)
    assert control.is_over("one")
    assert not control.is_over("has read nothing")
    control.count("CID_RMQ_SYS_X", 5000)
    assert not control.is_over("CID_RMQ_SYS_X")


def test_a_clock_set_back_begins_a_period(clock):
    control = ColdDataFlowControl(clock, BrokerConfig(**LIMITED))
    control.count("g", 100)
    clock.ms -= 1
    assert not control.is_over("g")


def test_without_the_setting_reads_are_counted_and_nothing_is_limited(clock):
    control = ColdDataFlowControl(clock, BrokerConfig(cg_cold_read_threshold=1))
    control.count("g", 100)
    assert not control.is_over("g")
    assert control.to_json()["globalAcc"] == 100


def test_a_group_may_have_a_threshold_of_its_own(clock, monkeypatch):
    control = ColdDataFlowControl(clock, BrokerConfig(**LIMITED))
    control.set_thresholds({"g": "500", "h": "0"})
    control.count("g", 499)
    assert not control.is_over("g")
    control.count("h", 0)
    assert control.is_over("h")
    for text, said in (("x", "not a whole number: 'x'"), ("-1", "outside 0 to 2")):
        with pytest.raises(RefusalError, match=said) as refused:
            control.set_thresholds({"new": "1", "g": text})
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert control.thresholds == {"g": 500, "h": 0}, "all or none"
    monkeypatch.setattr(cold_data, "THRESHOLDS_MAX", 2)
    with pytest.raises(RefusalError, match="2 groups have a threshold, the limit is 2"):
        control.set_thresholds({"i": "1"})
    control.set_thresholds({"h": "7"})


class Cold:
    """Makes every read of a store cold; notes how many messages a read in the thread may return."""

    def __init__(self, store, monkeypatch):
        self.real, self.wanted = store.get_message, []
        monkeypatch.setattr(store, "get_message", self.get_message)

    def get_message(self, *arguments, only_cached=False, **keywords):
        if only_cached:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, 0, 0, 1, is_cold=True)
        self.wanted.append(arguments[3])
        return self.real(*arguments, **keywords)


@pytest.mark.parametrize("kind", ["CONSUME_PASSIVELY", "CONSUME_ACTIVELY", ""])
def test_a_push_consumer_is_refused_and_a_pull_consumer_waits_for_one_message(
    broker, store, kit, monkeypatch, channel, kind
):
    broker.config = BrokerConfig(**{**LIMITED, "cg_cold_read_threshold": 150})
    broker.topics.update(TopicConfig(topic_name="orders"))
    for _ in range(3):
        store.put_inner(MessageExtBrokerInner("orders", 0, b"body", b""))
    source = Cold(store, monkeypatch)
    monkeypatch.setattr(pull_module, "LIMITED_DELAY_S", 0.05)

    async def test():
        loop = asyncio.get_running_loop()
        broker.cold_reads, broker.cold_data = cold_reads(loop), ColdDataFlowControl(broker.clock, broker.config)
        processor = kit.served(wiring.pulls(broker))
        if kind:
            broker.groups.find_or_create("g")
            broker.clients.consumers.register(
                channel, kit.request(34), "c1", {"groupName": "g", "consumeType": kind, "subscriptionDataSet": []})

        async def answer(opaque):
            channel.sent.clear()
            begun = loop.time()
            now = processor.pull(channel, kit.request(11, EXT, opaque=opaque))
            if now is not None:
                return now, 0.0
            while not channel.sent:
                await asyncio.sleep(0.005)
            return channel.sent[0], loop.time() - begun

        first, _ = await answer(1)
        assert first.code == 0
        second, took_s = await answer(2)
        if kind == "CONSUME_PASSIVELY":
            assert (second.code, source.wanted) == (ResponseCode.SYSTEM_BUSY, [32])
            assert "flow control" in second.remark
        else:
            assert (second.code, source.wanted) == (0, [32, 1])
            assert took_s >= 0.04
            assert len(second.body) < len(first.body)
        broker.clock.ms += cold_data.PERIOD_MS
        third, _ = await answer(3)
        assert (third.code, source.wanted[-1]) == (0, 32)
        await broker.cold_reads.stop()

    asyncio.run(test())


@pytest.mark.parametrize("leaves", [True, False])
def test_a_delayed_pull_that_was_given_up_is_not_read(kit, leaves):
    async def test():
        service, channel, read = cold_reads(asyncio.get_running_loop()), kit.FakeChannel(), []
        pull = Reply(channel, RemotingCommand(11, EXT))
        service.submit(pull, lambda: read.append(1), print, "g", 0.02)
        assert (service.pending, channel.held) == (1, 1)
        if leaves:
            service.closed(channel)
        else:
            assert service.release_all() == [pull]
        assert (service.pending, channel.held) == (0, 0)
        await asyncio.sleep(0.05)
        assert (read, service.pending) == ([], 0)
        await service.stop()

    asyncio.run(test())
