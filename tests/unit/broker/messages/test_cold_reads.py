"""Pulls whose messages are not in the page cache are read in threads, the groups in turn."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from broker_kit import Served
from patience import until_async

from tailrace.broker import wiring
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.model import GetMessageResult, GetMessageStatus, MessageExtBrokerInner, places_of
from tailrace.node.topic_config import TopicConfig
from tailrace.requests import worker
from tailrace.requests.reply import Reply, memory_of

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
            data = bytes(10)
            return GetMessageResult(
                GetMessageStatus.FOUND, data=data, record_count=1, places=places_of([data], [0]))

        return read


def cold(channel, read, answer=print, group="g", body=b""):
    """The arguments of `RequestWorker.submit`."""
    return Reply(channel, RemotingCommand(11, EXT, body)), read, answer, group


def service_of():
    return worker.cold_reads(asyncio.get_running_loop())


def test_groups_and_connections_take_turns_and_the_loop_goes_on(kit):
    async def test():
        service, gate, answers = service_of(), Gate(), []
        many, other, few = kit.FakeChannel(), kit.FakeChannel(), kit.FakeChannel()
        for number in range(6):
            service.submit(*cold(many, gate.of(f"many{number}"), answers.append))
        service.submit(*cold(other, gate.of("other"), answers.append))
        service.submit(*cold(few, gate.of("few"), answers.append, group="few"))
        assert (service.pending, answers, gate.read, many.held) == (8, [], [], 4)
        gate.open.set()
        await until_async(lambda: len(answers) == 8)
        assert gate.read.index("few") <= 3, "two were being read when it came, then it was its turn"
        assert gate.read.index("other") <= 4, "then it was the turn of its connection within the group"
        assert (service.pending, service.count, service.bytes) == (0, 8, 80)
        assert [(c.held, c.held_bytes) for c in (many, other, few)] == [(0, 0)] * 3
        await service.stop()

    asyncio.run(test())


def test_an_error_is_the_answer_and_closed_connections_are_not_read_for(kit):
    async def test():
        service, gate, answers = service_of(), Gate(), []
        gate.open.set()
        gone = kit.FakeChannel()
        gone.closed = True
        service.submit(*cold(gone, gate.of("gone"), answers.append))
        failing = kit.FakeChannel()
        service.submit(*cold(failing, gate.of("bad", OSError(5, "no")), answers.append))
        await until_async(lambda: failing.sent)
        assert [(answer.code, answer.remark) for answer in failing.sent] == [(1, "OSError: [Errno 5] no")]
        assert answers == []
        assert (gate.read, service.pending) == (["bad"], 0)
        await service.stop()

    asyncio.run(test())


@pytest.mark.caught
def test_an_answer_that_fails_does_not_stop_the_others(kit):
    async def test():
        service, gate, answers = service_of(), Gate(), []
        failed = []

        def fail(result):
            failed.append(result)
            raise ValueError

        for _ in range(5):
            service.submit(*cold(kit.FakeChannel(), gate.of("bad"), fail))
        service.submit(*cold(kit.FakeChannel(), gate.of("good"), answers.append))
        gate.open.set()
        await until_async(lambda: answers)
        assert [answer.record_count for answer in answers] == [1]
        await until_async(lambda: len(failed) == 5)
        assert (sorted(gate.read), service.pending) == (["bad"] * 5 + ["good"], 0)
        await service.stop()

    asyncio.run(test())


def test_nothing_is_read_for_a_client_that_does_not_read(kit, monkeypatch):
    async def test():
        service, gate, answers, later = service_of(), Gate(), [], []
        gate.open.set()
        paused = kit.FakeChannel()
        monkeypatch.setattr(paused, "when_reading", later.append)
        for number in range(4):
            service.submit(*cold(paused, gate.of(f"paused{number}"), answers.append))
        service.submit(*cold(kit.FakeChannel(), gate.of("other"), answers.append))
        await until_async(lambda: answers)
        assert (gate.read, service.pending, len(later)) == (["other"], 4, 4), "they wait, and count"
        monkeypatch.undo()
        for go_on in later:
            go_on()
        await until_async(lambda: len(answers) == 5)
        assert (sorted(gate.read[1:]), service.pending) == ([f"paused{n}" for n in range(4)], 0)
        await service.stop()

    asyncio.run(test())


def test_a_connection_that_closes_leaves_nothing(kit, monkeypatch):
    async def test():
        service, gate, answers = service_of(), Gate(), []
        channel, other, paused = kit.FakeChannel(), kit.FakeChannel(), kit.FakeChannel()
        for number in range(5):
            service.submit(*cold(channel, gate.of(number), answers.append))
        service.submit(*cold(other, gate.of("other"), answers.append))
        monkeypatch.setattr(paused, "when_reading", lambda go_on: None)
        service.submit(*cold(paused, gate.of("paused"), answers.append))
        assert service.pending == 7
        for one in (channel, paused):
            one.closed = True
            service.closed(one)
        assert (service.pending, paused.held, channel.held) == (3, 0, 0), "two are being read, one waits"
        gate.open.set()
        await until_async(lambda: service.pending == 0)
        assert (len(answers), sorted(map(str, gate.read))) == (1, ["0", "1", "other"])
        gone = [weakref.ref(one) for one in (channel, paused)]
        monkeypatch.undo()
        del channel, paused, one
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
        await service.stop()

    asyncio.run(test())


def taken(service, pull):
    """Whether the service takes the pull."""
    try:
        service.submit(*pull)
    except RefusalError as refusal:
        assert refusal.code == ResponseCode.SYSTEM_BUSY
        return False
    return True


@pytest.mark.parametrize(("limit", "accepted"), [
    ("READS_MAX", [True] * 5 + [False] * 3), ("READS_OF_CHANNEL_MAX", [True] * 5 + [False] * 3)])
def test_too_many_are_refused(kit, monkeypatch, limit, accepted):
    monkeypatch.setattr(worker, limit, 3)

    async def test():
        service, gate, channel = service_of(), Gate(), kit.FakeChannel()
        assert [taken(service, cold(channel, gate.of(n))) for n in range(8)] == accepted, "two are being read"
        assert taken(service, cold(kit.FakeChannel(), gate.of("other"))) is (limit != "READS_MAX")
        gate.open.set()
        await until_async(lambda: service.pending == 0)
        assert taken(service, cold(channel, gate.of("again")))
        await service.stop()

    asyncio.run(test())


def test_the_bytes_of_the_requests_are_bounded(kit, monkeypatch):
    """A pull needs no body, but may have one of 16 MB."""
    monkeypatch.setattr(worker, "WAITING_BYTES_MAX", 1_000_000)

    async def test():
        service, gate, channel = service_of(), Gate(), kit.FakeChannel()
        pulls = [cold(channel, gate.of(n), body=bytes(400_000)) for n in range(6)]
        assert [taken(service, pull) for pull in pulls] == [True] * 4 + [False] * 2
        assert (channel.held, channel.held_bytes) == (2, 2 * pulls[0][0].size)
        assert pulls[0][0].size > 400_000
        gate.open.set()
        await service.stop()

    asyncio.run(test())


def test_a_stop_gives_back_those_that_wait_and_ends_after_those_that_are_read(kit):
    async def test():
        service, gate, answers, channel = service_of(), Gate(), [], kit.FakeChannel()
        pulls = [cold(channel, gate.of(n), answers.append) for n in range(5)]
        for pull in pulls:
            service.submit(*pull)
        assert set(service.release_all()) == {reply for reply, *_ in pulls[2:]}
        assert not taken(service, cold(channel, gate.of("late")))
        stopping = asyncio.ensure_future(service.stop())
        await asyncio.sleep(0.01)
        assert (service.pending, stopping.done()) == (2, False)
        gate.open.set()
        await stopping
        assert (len(answers), sorted(gate.read), service.pending, channel.held) == (2, [0, 1], 0, 0)

    asyncio.run(test())


class Cold:
    """Makes every read of a store cold, and holds the reads in threads until they are let through."""

    def __init__(self, store, monkeypatch, error=None):
        self.real, self.error, self.calls = store.get_message, error, []
        self.open = threading.Event()
        monkeypatch.setattr(store, "get_message", self.get_message)

    def get_message(self, *arguments, only_cached=False, **keywords):
        self.calls.append((only_cached, threading.current_thread()))
        if only_cached:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, 0, 0, 1, is_cold=True)
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return self.real(*arguments, **keywords)


@pytest.fixture
def processor(broker, store, kit):
    broker.topics.update(TopicConfig(topic_name="orders"))
    store.put_inner(MessageExtBrokerInner("orders", 0, b"body", b""))
    return kit.served(wiring.pulls(broker))


def answered(broker, channel, request, source, meanwhile=lambda: None):
    """The answer to a pull that waits for the disk; ``meanwhile`` is called before it was read."""

    async def test():
        broker.cold_reads = worker.cold_reads(asyncio.get_running_loop())
        processor = Served(wiring.pulls(broker))
        assert processor.pull(channel, request) is None
        meanwhile()
        source.open.set()
        await until_async(lambda: channel.sent)
        await broker.cold_reads.stop()

    asyncio.run(test())
    (answer,) = channel.sent
    return answer


def test_a_cold_pull_is_answered_later_and_the_same(broker, store, processor, channel, kit, monkeypatch):
    warm = processor.pull(channel, kit.request(11, EXT, opaque=4))
    source = Cold(store, monkeypatch)
    answer = answered(broker, channel, kit.request(11, EXT, opaque=5), source)
    assert [cached for cached, _ in source.calls] == [True, False]
    assert source.calls[1][1] is not threading.main_thread()
    assert (answer.code, answer.opaque, answer.body, answer.ext) == (0, 5, warm.body, warm.ext)
    assert warm.body


def test_a_failed_read_is_answered_with_its_error(broker, store, processor, channel, kit, monkeypatch):
    processor.pull(channel, kit.request(11, EXT, opaque=4))
    source = Cold(store, monkeypatch, OSError(5, "Input/output error"))
    answer = answered(broker, channel, kit.request(11, EXT, opaque=5), source)
    assert (answer.code, answer.remark) == (1, "OSError: [Errno 5] Input/output error")


def test_what_changes_during_the_read_counts(broker, store, processor, channel, kit, monkeypatch):
    """A reset, a topic that is deleted, and an offset that the consumer has committed since."""
    request = kit.request(11, {**EXT, "sysFlag": "5"}, opaque=5)
    processor.pull(channel, request)
    source = Cold(store, monkeypatch)

    def commit():
        broker.offsets.commit("g", "orders", 0, 1)

    assert answered(broker, channel, request, source, commit).code == 0
    assert broker.offsets.query("g", "orders", 0) == 1, "the offset of the pull was committed once, before"
    channel.sent.clear()

    def reset():
        broker.offsets.assign_reset("g", "orders", {0: 0})

    answer = answered(broker, channel, request, source, reset)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    channel.sent.clear()

    def delete():
        broker.topics.delete("orders")

    answer = answered(broker, channel, request, source, delete)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_pull_that_is_one_too_many_is_told_to_come_back(broker, store, processor, channel, kit, monkeypatch):
    processor.pull(channel, kit.request(11, EXT, opaque=4))
    source = Cold(store, monkeypatch)
    monkeypatch.setattr(worker, "READS_MAX", 1)

    async def test():
        broker.cold_reads = worker.cold_reads(asyncio.get_running_loop())
        processor = kit.served(wiring.pulls(broker))
        answers = [processor.pull(channel, kit.request(11, EXT, opaque=n)) for n in range(5, 9)]
        assert answers[:3] == [None] * 3
        size = memory_of(kit.request(11, EXT))
        assert (answers[3].code, answers[3].remark) == (
            ResponseCode.SYSTEM_BUSY,
            f"1 pulls from the disk with {size} bytes wait already, 1 of them of the same connection; try again later")
        source.open.set()
        await until_async(lambda: len(channel.sent) == 3)
        await broker.cold_reads.stop()

    asyncio.run(test())


def test_pulls_that_are_released_are_not_read_and_the_others_are(kit):
    async def test():
        service, gate, answers = service_of(), Gate(), []
        for place in range(2):  # both threads
            service.submit(*cold(kit.FakeChannel(), gate.of(f"busy {place}"), answers.append, group="other"))
        channel = kit.FakeChannel()
        pulls = [cold(channel, gate.of(str(number)), answers.append) for number in range(4)]
        for pull in pulls:
            service.submit(*pull)
        gone = {pulls[0][0].request, pulls[2][0].request}
        assert {pull.request for pull in service.release(lambda _, request: request in gone)} == gone
        gate.open.set()
        await until_async(lambda: len(answers) == 4)
        assert sorted(gate.read) == ["1", "3", "busy 0", "busy 1"]
        assert service.pending == 0
        await service.stop()

    asyncio.run(test())


def test_a_pull_that_is_released_while_its_client_does_not_read_is_not_read_later(kit):
    async def test():
        service, gate, later = service_of(), Gate(), []
        channel = kit.FakeChannel()
        channel.when_reading = later.append
        service.submit(*cold(channel, gate.of("0")))
        assert len(service.release(lambda *_: True)) == 1
        later.pop()()
        assert (service.pending, gate.read) == (0, [])
        await service.stop()

    asyncio.run(test())
