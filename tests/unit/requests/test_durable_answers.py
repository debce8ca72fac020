"""Answers that wait until their message is durable: one that fails costs one answer."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.model import PutMessageStatus
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.requests.reply import Reply

pytestmark = pytest.mark.caught


class Store:
    def __init__(self):
        self.waits = []
        self.error = None

    def when_durable(self, until, callback):
        if self.error:
            raise self.error
        self.waits.append((until, callback))


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def answers(store, loop):
    made = DurableAnswers(loop, store)
    yield made
    assert made.pending == 0


@pytest.fixture
def turn(loop):
    def some():
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))

    return some


def add(answers, channel, opaque, until, then=None, *, answer=None, flag=0):
    request = RemotingCommand(310, {}, opaque=opaque, flag=flag)
    answers.add(Reply(channel, request), encode(request.answer()) if answer is None else answer, until, then)


def raising(error):
    def then(status):
        raise error

    return then


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), ValueError("odd"), KeyError("k")])
def test_one_failing_answer_costs_one_answer(answers, store, kit, turn, error):
    channels = [kit.FakeChannel() for _ in range(2)]
    for opaque in range(6):
        add(answers, channels[opaque % 2], opaque, 10 + opaque, raising(error) if opaque == 2 else None)
    turn()
    (until, done), = store.waits
    assert until == 15
    add(answers, channels[0], 6, 20)
    turn()
    done(PutMessageStatus.PUT_OK)
    store.waits[1][1](PutMessageStatus.PUT_OK)  # a batch after the one with the error
    turn()
    codes = {sent.opaque: sent.code for channel in channels for sent in channel.sent}
    assert codes == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0}
    told = next(sent.remark for sent in channels[0].sent if sent.opaque == 2)
    assert told == f"{type(error).__name__}: {error}"


def test_an_answer_that_cannot_be_read_costs_one_answer(answers, store, kit, turn):
    a, b, c = (kit.FakeChannel() for _ in range(3))
    add(answers, a, 1, 10)
    add(answers, b, 2, 11, raising(OSError(28, "no space")), answer=b"no frame at all")
    add(answers, c, 3, 12)
    turn()
    store.waits[0][1](PutMessageStatus.PUT_OK)
    turn()
    assert [[sent.opaque for sent in channel.sent] for channel in (a, b, c)] == [[1], [2], [3]]
    assert answers.pending == 0


def test_a_connection_that_cannot_be_written_costs_its_own_answers(answers, store, kit, turn):
    broken, whole = kit.FakeChannel(), kit.FakeChannel()

    def fails(data):
        raise OSError(32, "broken pipe")

    broken.write = fails
    add(answers, broken, 1, 5)
    add(answers, whole, 2, 6)
    turn()
    store.waits[0][1](PutMessageStatus.PUT_OK)
    turn()
    assert [sent.opaque for sent in whole.sent] == [2]
    assert broken.closed


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), RuntimeError("odd")])
def test_a_store_that_cannot_wait_is_an_answer_to_each(answers, store, kit, turn, error):
    channel = kit.FakeChannel()
    store.error = error
    for opaque in range(3):
        add(answers, channel, opaque, 5)
    turn()
    assert [(sent.opaque, sent.code) for sent in channel.sent] == [(0, 14), (1, 14), (2, 14)]


def test_a_failure_of_a_oneway_request_sends_nothing(answers, store, kit, turn):
    channel = kit.FakeChannel()
    add(answers, channel, 1, 5, raising(ValueError("x")), answer=b"", flag=2)
    add(answers, channel, 2, 5)
    turn()
    store.waits[0][1](PutMessageStatus.PUT_OK)
    turn()
    assert [sent.opaque for sent in channel.sent] == [2]


def test_a_coroutine_gets_the_status_of_the_sync(answers, store, turn):
    first, second, cancelled = answers.status(10), answers.status(20), answers.status(30)
    turn()
    assert answers.pending == 3
    cancelled.cancel()
    (until, durable), = store.waits
    assert until == 30
    durable(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    turn()
    assert first.result() is second.result() is PutMessageStatus.FLUSH_DISK_TIMEOUT


def test_a_status_of_two_syncs_is_that_of_the_second(answers, store, turn, loop):
    seen = []
    future = answers.status(10, lambda status: seen.append(status) or 20)
    alone = answers.status(5)
    turn()
    until, synced = store.waits.pop()
    assert until == 10
    synced(PutMessageStatus.PUT_OK)
    turn()
    assert (seen, future.done(), alone.result()) == ([PutMessageStatus.PUT_OK], False, PutMessageStatus.PUT_OK)
    until, synced = store.waits.pop()
    assert until == 20
    synced(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    turn()
    assert future.result() is PutMessageStatus.FLUSH_DISK_TIMEOUT
