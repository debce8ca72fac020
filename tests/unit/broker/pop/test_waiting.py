"""Pops and notifications that wait, what wakes them, polling info and peeks."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from patience import until

from tailrace.broker.messages.long_polling import LongPolling, PollResult, Waiter
from tailrace.broker.pop.polling import PopLongPollingService
from tailrace.broker.statistics.traffic import CountedArrivals, Traffic
from tailrace.config import BrokerConfig
from tailrace.filters.message_filters import EVERYTHING, MessageFilter
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.reply import Reply


@pytest.fixture
def waiting_pop(world):
    def waits(**changes):
        assert world.pop_answer(pollTime=15_000, **changes) is None
        return world.request.opaque

    return waits


def arrive(world, **more):
    world.send(**more)
    queue_id = more.get("queue_id", 0)
    world.pop_part.arriving(
        more.get("topic", "orders"), queue_id, world.store.queue_of("orders", queue_id).max,
        [more.get("code", 0)], 100)


def test_a_pop_waits_for_an_arrival_in_any_queue(world, waiting_pop, turns):
    opaque = waiting_pop()
    assert world.channel.held == 1
    arrive(world, body=b"now", queue_id=1)
    turns()
    answer, = world.channel.sent
    assert (answer.opaque, answer.code) == (opaque, 0)
    assert (world.channel.held, world.channel.held_bytes) == (0, 0)
    assert len(world.pop_part.polling) == 0


def test_an_arrival_wakes_one_pop_of_each_group(world, waiting_pop, turns):
    first, _ = waiting_pop(), waiting_pop()
    other = waiting_pop(consumerGroup="h", queueId=0)
    waiting_pop(consumerGroup="h", queueId=1)
    arrive(world)
    until(lambda: turns() or len(world.channel.sent) == 2)  # a page that the kernel has evicted is read in a thread
    assert {answer.opaque for answer in world.channel.sent} == {first, other}
    assert len(world.pop_part.polling) == 2


@pytest.mark.parametrize("closes", ["before", "while it is woken"])
def test_an_arrival_is_not_spent_on_a_pop_of_a_closed_connection(world, waiting_pop, loop, turns, closes):
    gone = world.channel
    waiting_pop()
    gone.closed = closes == "before"
    world.channel = world.kit.FakeChannel()
    waits = waiting_pop()
    arrive(world)
    loop.call_soon(setattr, gone, "closed", True)
    turns()
    assert gone.sent == []
    assert [answer.opaque for answer in world.channel.sent] == [waits]
    world.pop_part.polling.closed(gone)
    assert (gone.held, world.channel.held, len(world.pop_part.polling)) == (0, 0, 0)


def test_a_pop_waits_on_if_the_tag_is_another_one(world, waiting_pop, turns):
    waiting_pop(exp="a")
    arrive(world, code=97 + 1, TAGS="b")
    turns()
    assert world.channel.sent == []
    arrive(world, code=97, TAGS="a")
    turns()
    assert [answer.code for answer in world.channel.sent] == [0]


def test_what_comes_back_wakes_a_pop_of_its_group_only(world, waiting_pop, turns):
    world.send()
    world.pop()
    world.store.set_message_arriving_listener(world.pop_part)
    waiting_pop(consumerGroup="h", topic="orders", queueId=1)
    back = waiting_pop(bornTime=world.clock.now_ms() + 14_000)
    world.run(14_000)
    turns()
    assert [(answer.opaque, answer.code) for answer in world.channel.sent] == [(back, 0)]


def test_a_message_that_came_before_the_pop_was_parked_is_not_missed(world, loop, turns, monkeypatch):
    world.store.set_message_arriving_listener(CountedArrivals(world.broker.traffic))
    polling = world.pop_part.polling
    poll = polling.poll

    def late(*arguments):
        world.send()
        return poll(*arguments)

    monkeypatch.setattr(polling, "poll", late)
    assert world.pop_answer(pollTime=15_000) is None
    turns()
    assert [answer.code for answer in world.channel.sent] == [0]


def test_a_pop_is_answered_when_its_time_is_over(world, loop):
    assert world.pop_answer(pollTime=100) is None

    async def wait():
        while not world.channel.sent:
            world.clock.advance(20)
            await asyncio.sleep(0.01)

    loop.run_until_complete(asyncio.wait_for(wait(), 10))
    assert (world.channel.sent[0].code, world.channel.sent[0].remark) == (210, "NO_MESSAGE_IN_QUEUE")


def test_no_more_pops_wait_than_are_allowed(open_world):
    world = open_world(broker_config=BrokerConfig(pop_polling_size=2, max_pop_polling_size=3))
    for queue_id, code in ((0, None), (0, None), (0, 209), (1, None), (1, 209)):
        answer = world.pop_answer(pollTime=15_000, queueId=queue_id)
        assert (answer and answer.code) == code
    info = world.ask(
        world.pop_part.inspect.polling_info, {"consumerGroup": "g", "topic": "orders", "queueId": 0}, code=200_055)
    assert info.ext == {"pollingNum": "2"}
    world.channel.closed = True
    world.pop_part.polling.closed(world.channel)
    assert (len(world.pop_part.polling), world.channel.held, world.channel.held_bytes) == (0, 0, 0)
    assert world.pop_part.polling._of_key == world.pop_part.polling._readers == {}


def test_a_stop_gives_up_all_that_wait(world, waiting_pop):
    opaques = {waiting_pop(), waiting_pop(queueId=1)}
    assert {waiting.request.opaque for waiting in world.pop_part.release_all()} == opaques
    assert world.channel.held == 0


def test_many_woken_pops_take_turns_with_other_requests(loop, kit):
    served = []
    polling = LongPolling(loop, lambda waiter: served.append(waiter), on_wait=lambda: began.append(len(polling)))
    channel, began = kit.FakeChannel(), []
    for _ in range(1000):
        waiter = Waiter(Reply(channel, RemotingCommand(1)), ("t", "g", -1), EVERYTHING)
        found = polling.poll(waiter, 60_000, lambda: True)
        assert found is PollResult.WAITS
    loop.run_until_complete(asyncio.sleep(0))
    assert 0 < len(served) <= 256
    assert len(began) == 1000
    assert min(began) == 1, "the request counts when it is told that it waits"


def test_a_notification_looks_at_blocked_queues_in_turns(world, loop, monkeypatch):
    world.broker.groups.find_or_create("g")
    monkeypatch.setattr(world.pop_part.order, "is_blocked", lambda *_: True)
    turns, times = [], itertools.count()

    async def run():
        assert world.ask(world.pop_part.inspect.notification, {
            "consumerGroup": "g", "topic": "orders", "queueId": -1, "pollTime": 0, "bornTime": 0, "order": "true"},
            code=200_054) is None
        while not world.channel.sent:
            turns.append(None)
            await asyncio.sleep(0)

    monkeypatch.setattr(loop, "time", lambda: next(times))
    loop.run_until_complete(run())
    assert len(turns) >= 2, "a turn for each queue of the topic"


@pytest.fixture
def notify(world):
    def asked(**changes):
        ext = {"consumerGroup": "g", "topic": "orders", "queueId": -1, "pollTime": 0, "bornTime": 0, **changes}
        answer = world.ask(world.pop_part.inspect.notification, ext, code=200_054)
        return answer and (answer.code, answer.ext)

    return asked


def test_a_notification_tells_whether_messages_are_there(world, notify, turns):
    assert notify() == (0, {"hasMsg": "false", "pollingFull": "false"})
    assert notify(pollTime=15_000) is None
    arrive(world)
    turns()
    assert world.channel.sent[0].ext["hasMsg"] == "true"
    assert notify() == (0, {"hasMsg": "true", "pollingFull": "false"})
    assert notify(queueId=1)[1]["hasMsg"] == "false"
    world.pop()
    assert notify()[1]["hasMsg"] == "false"
    world.run(14_000)
    assert notify()[1]["hasMsg"] == "true"


def test_a_peek_hands_out_nothing(world):
    for n in range(3):
        world.send(b"%d" % n, queue_id=n % 2)

    def peek(**changes):
        return world.ask(world.pop_part.inspect.peek, {
            "consumerGroup": "g", "topic": "orders", "queueId": -1, "maxMsgNums": 32, **changes}, code=200_052)

    for _ in range(2):
        answer = peek()
        assert (answer.code, answer.ext["restNum"], answer.ext["popTime"]) == (0, "3", "0")
    assert decode_message(answer.body[: int.from_bytes(answer.body[:4], "big")]).body == b"0"
    assert peek(maxMsgNums=1).ext["restNum"] == "3"
    assert len(world.pop()) == 3
    assert peek().code == 19
    with pytest.raises(Exception, match="maxMsgNums"):
        peek(maxMsgNums=33)


def test_a_pop_of_what_is_not_in_the_page_cache_is_read_in_a_thread(world, loop, monkeypatch):
    world.send(b"cold")
    real = world.store.get_message

    class Cold:
        def __getattr__(self, name):
            return getattr(world.store, name)

        def get_message(self, *arguments, only_cached=False, **more):
            result = real(*arguments, **more)
            if only_cached and result.message_count:
                result.is_cold, result.record_count, result.data = True, 0, b""
            return result

    monkeypatch.setattr(world.pop_part.service, "_store", Cold())

    async def pop():
        assert world.pop_answer() is None
        while not world.channel.sent:
            await asyncio.sleep(0.001)
        await world.broker.cold_reads.stop()

    loop.run_until_complete(asyncio.wait_for(pop(), 10))
    answer = world.channel.sent[0]
    assert (answer.code, answer.ext["msgOffsetInfo"]) == (0, "0 0 0")
    assert world.broker.offsets.query("g", "orders", 0) == 1


def test_a_group_that_is_missing_is_created_by_a_pop(world, loop):
    assert world.broker.groups.select("g") is None

    async def pop():
        world.send()
        assert world.pop_answer() is None
        while not world.channel.sent:
            await asyncio.sleep(0.001)

    loop.run_until_complete(asyncio.wait_for(pop(), 10))
    assert world.channel.sent[0].code == 0
    assert world.broker.groups.select("g") is not None


def test_topics_with_many_queues_are_popped_from_different_ones(world):
    world.store.topics.update(TopicConfig(topic_name="wide", read_queue_nums=8, write_queue_nums=8))
    for queue_id in range(8):
        world.send(b"%d" % queue_id, topic="wide", queue_id=queue_id)
    firsts = {world.pop(topic="wide", consumerGroup=f"g{n}", maxMsgNums=1)[0].body for n in range(40)}
    assert len(firsts) > 4


def test_pops_and_notifications_that_wait_are_answered_when_their_topic_is_deleted(world, waiting_pop, turns):
    world.store.topics.create_if_missing("others", 2)
    waiting_pop()
    waiting_pop(queueId=1, consumerGroup="h")
    kept = waiting_pop(topic="others")
    assert world.ask(world.pop_part.inspect.notification, {
        "consumerGroup": "g", "topic": "orders", "queueId": -1, "pollTime": 15_000,
        "bornTime": world.clock.now_ms()}, code=200_054) is None
    world.store.topics.create_if_missing("new", 2)
    turns()
    assert world.channel.sent == []
    world.store.topics.delete("orders")
    turns()
    assert [answer.code for answer in world.channel.sent] == [17, 17, 17]
    assert (world.channel.held, len(world.pop_part.polling)) == (1, 1)
    world.send(topic="others")
    world.pop_part.arriving("others", 0, 1, [0], 100)
    turns()
    assert world.channel.sent[-1].opaque == kept


class NotReading:
    """A connection whose client does not read its answers until `reads`."""

    def __init__(self, channel):
        self._channel = channel
        self.later = []

    def __getattr__(self, name):
        return getattr(self._channel, name)

    def is_reading(self):
        return False

    def when_reading(self, answer):
        self.later.append(answer)

    def reads(self):
        for answer in self.later:
            answer()


def test_a_client_that_does_not_read_passes_the_wake_on(world, waiting_pop, turns):
    slow = world.channel = NotReading(world.kit.FakeChannel())
    first = waiting_pop()
    world.channel = world.kit.FakeChannel()
    second = waiting_pop()
    arrive(world, body=b"now")
    turns()
    assert [(answer.opaque, decode_message(answer.body).body) for answer in world.channel.sent] == [(second, b"now")]
    arrive(world, body=b"later")
    slow.reads()  # it runs only then
    assert [(answer.opaque, decode_message(answer.body).body) for answer in slow.sent] == [(first, b"later")]


@pytest.mark.caught
def test_a_pop_whose_run_fails_holds_up_no_other(world, waiting_pop, turns, monkeypatch):
    polling = world.pop_part.polling
    broken, _ = waiting_pop(), waiting_pop(consumerGroup="h")
    run_again = polling._run_again

    def runs(waiter):
        if waiter.reply.request.opaque == broken:
            raise OSError(5, "input/output error")
        return run_again(waiter)

    monkeypatch.setattr(polling, "_run_again", runs)
    arrive(world)
    turns()
    assert [answer.code for answer in world.channel.sent] == [1, 0], "the one whose run fails gets the error"
    waiting_pop(consumerGroup="h")
    arrive(world)
    turns()
    assert [answer.code for answer in world.channel.sent] == [1, 0, 0]


@pytest.mark.caught
def test_a_look_that_fails_wakes_the_request(world, loop, turns, monkeypatch):
    """It runs again, and is answered with the error if that is still there."""
    ran = []

    def fails(*_, **options):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(world.store, "get_message", fails)
    polling = PopLongPollingService(
        loop, world.broker_config, world.store, lambda waiter: ran.append(waiter.reply.request.opaque))
    sql = MessageFilter(properties=object())
    for opaque, group in ((1, "g"), (2, "h")):
        reply = Reply(world.channel, RemotingCommand(200_050, {}, opaque=opaque))
        polling.poll(Waiter(reply, ("orders", group, -1), sql), 9_000, lambda: False)
    polling.arriving("orders", 0, 1, [0], 10)
    turns()
    assert ran == [1, 2]


@pytest.mark.caught
def test_a_listener_that_fails_leaves_the_others_awake():
    heard = []

    class Fails:
        def arriving(self, *arrival):
            raise RuntimeError("odd")

    class Hears:
        def arriving(self, *arrival):
            heard.append(arrival)

    CountedArrivals(Traffic(), Fails(), Hears()).arriving("orders", 0, 1, [0], 10)
    assert heard == [("orders", 0, 1, [0], 10)]
