"""Pulls whose messages are not in the page cache are read in threads, the groups in turn."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailrace.broker import cold_reads
from tailrace.broker.cold_reads import ColdRead, ColdReadService
from tailrace.broker.long_polling import PullRequestHoldService
from tailrace.broker.processors.pull import PullMessageProcessor
from tailrace.model import GetMessageResult, GetMessageStatus, MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig

EXT = {
    "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}


class Gate:
    """Reads that wait until they are let through; notes who was read."""

    def __init__(self):
        self.open = threading.Event()
        self.read = []

    def of(self, name, error=None):
        def read():
            assert self.open.wait(10)
            self.read.append(name)
            if error is not None:
                raise error
            return GetMessageResult(GetMessageStatus.FOUND, data=b"x" * 10, ends=[10], queue_offsets=[0])

        return read


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within ten seconds")


def test_groups_take_turns_and_the_loop_goes_on(kit):
    async def test():
        service, gate, answers = ColdReadService(asyncio.get_running_loop()), Gate(), []
        channel = kit.FakeChannel()
        for number in range(6):
            assert service.submit("many", ColdRead(channel, gate.of(f"many{number}"), answers.append))
        assert service.submit("few", ColdRead(channel, gate.of("few"), answers.append))
        assert (service.pending, answers, gate.read) == (7, [], [])
        gate.open.set()
        await until(lambda: len(answers) == 7)
        assert gate.read.index("few") <= 3, "two were being read when it came, then it was its turn"
        assert (service.pending, service.count, service.bytes) == (0, 7, 70)
        service.stop()

    asyncio.run(test())


def test_an_error_is_the_answer_and_closed_connections_are_not_read_for(kit):
    async def test():
        service, gate, answers = ColdReadService(asyncio.get_running_loop()), Gate(), []
        gate.open.set()
        gone = kit.FakeChannel()
        gone.closed = True
        service.submit("g", ColdRead(gone, gate.of("gone"), answers.append))
        service.submit("g", ColdRead(kit.FakeChannel(), gate.of("bad", OSError(5, "no")), answers.append))
        await until(lambda: answers)
        assert [type(answer) for answer in answers] == [OSError]
        assert (gate.read, service.pending) == (["bad"], 0)
        service.stop()

    asyncio.run(test())


def test_nothing_is_read_for_a_client_that_does_not_read(kit, monkeypatch):
    async def test():
        service, gate, answers, later = ColdReadService(asyncio.get_running_loop()), Gate(), [], []
        gate.open.set()
        paused = kit.FakeChannel()
        monkeypatch.setattr(paused, "when_reading", later.append)
        for number in range(4):
            service.submit("g", ColdRead(paused, gate.of(f"paused{number}"), answers.append))
        service.submit("g", ColdRead(kit.FakeChannel(), gate.of("other"), answers.append))
        await until(lambda: answers)
        assert (gate.read, service.pending, len(later)) == (["other"], 0, 4)
        for go_on in later:
            go_on()
        await until(lambda: len(answers) == 5)
        assert (sorted(gate.read[1:]), service.pending) == ([f"paused{n}" for n in range(4)], 0)
        service.stop()

    asyncio.run(test())


def test_too_many_are_refused(kit, monkeypatch):
    monkeypatch.setattr(cold_reads, "WAITING_MAX", 3)

    async def test():
        service, gate = ColdReadService(asyncio.get_running_loop()), Gate()
        channel = kit.FakeChannel()
        assert [service.submit("g", ColdRead(channel, gate.of(n), print)) for n in range(5)] == [
            True, True, True, False, False]
        service.stop()
        gate.open.set()

    asyncio.run(test())


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
def test_a_cold_pull_is_answered_later_and_the_same(broker, store, channel, kit, monkeypatch, error):
    broker.topics.update(TopicConfig(topic_name="orders"))
    store.put_inner(MessageExtBrokerInner("orders", 0, b"body", b""))
    real, calls = store.get_message, []

    def get_message(*arguments, only_cached=False, **keywords):
        calls.append((only_cached, threading.current_thread()))
        if only_cached:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, 0, 0, 1, is_cold=True)
        if error is not None:
            raise error
        return real(*arguments, **keywords)

    processor = PullMessageProcessor(broker)
    processor.hold = PullRequestHoldService(broker.loop, store.max_offset_in_queue, processor.run_again)
    warm = processor.pull(channel, kit.request(11, EXT, opaque=4))
    monkeypatch.setattr(store, "get_message", get_message)
    answers = []

    async def test():
        broker.cold_reads = ColdReadService(asyncio.get_running_loop())
        monkeypatch.setattr(channel, "answer", lambda request, answer: answers.append(answer))
        assert processor.pull(channel, kit.request(11, EXT, opaque=5)) is None
        await until(lambda: answers)
        broker.cold_reads.stop()

    asyncio.run(test())
    assert [cached for cached, _ in calls] == [True, False]
    assert calls[1][1] is not threading.main_thread()
    if error is None:
        assert (answers[0].code, answers[0].body, answers[0].ext) == (0, warm.body, warm.ext)
    else:
        assert (answers[0].code, answers[0].remark) == (1, "OSError: [Errno 5] Input/output error")
