"""Push consumers with a broker in memory, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from fake_brokers import FakeRemoting, LoopClock, run
from fake_consumers import broker, consumer, listening, now, until

from tailrace.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    RetryLater,
    instance,
)
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription
from tailrace.errors import ConfigError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode

QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def test_a_consumer_begins_at_the_committed_offset_or_where_it_is_told():
    async def test():
        fake = broker(t=3)
        for queue_id in range(3):
            for number in range(4):
                fake.put("t", queue_id, b"%d" % (10 * queue_id + number))
        fake.committed["g", "t", 0] = 3
        for start, expected in (({"start": "last"}, [3]), ({"start_time_ms": 2}, [3, 12, 13, 22, 23]),
                                ({"start": "first"}, [3, 10, 11, 12, 13, 20, 21, 22, 23])):
            seen = []
            fake.committed = {("g", "t", 0): 3}
            async with consumer(listening(seen), **start):
                # Known to the group immediately: a member that takes over does not begin at a later end.
                assert fake.committed["g", "t", 1] == {"last": 4, "first": 0}.get(start.get("start"), 2)
                await asyncio.sleep(1)
            assert sorted(seen) == expected
            assert all(fake.committed["g", "t", queue_id] == 4 for queue_id in range(3))

    run(test)


def test_queues_that_come_later_are_read_from_their_first_message():
    async def test():
        fake = broker(t=1)
        seen = []
        async with consumer(listening(seen), start="last"):
            fake.put("t", 1, b"5")
            fake.topics["t"] = 2
            await until(lambda: seen == [5], 60)

    run(test)


def test_commits_come_once_a_second_and_with_pulls_and_never_without_auto_commit():
    async def test():
        fake = broker(t=1)
        seen = []
        async with consumer(listening(seen)):
            before = fake.count(Code.UPDATE_CONSUMER_OFFSET)
            for number in range(20):
                fake.put("t", 0, b"%d" % number)
                await asyncio.sleep(0.2)
            await asyncio.sleep(10)
            assert fake.committed["g", "t", 0] == 20
            assert fake.count(Code.UPDATE_CONSUMER_OFFSET) - before <= 5
        async with consumer(listening(seen), auto_commit=False) as manual:
            fake.put("t", 0, b"20")
            await asyncio.sleep(10)
            assert seen[-1] == 20
            assert fake.committed["g", "t", 0] == 20
            await manual.commit()
            assert fake.committed["g", "t", 0] == 21
            fake.put("t", 0, b"21")
            await asyncio.sleep(10)
        assert fake.committed["g", "t", 0] == 21
        async with consumer(listening(seen)):
            await asyncio.sleep(1)
        assert seen[-2:] == [21, 21]

    run(test)


def test_an_offset_passes_no_message_that_is_not_consumed():
    async def test():
        fake = broker(t=1)
        held = asyncio.Event()

        async def listen(message):
            if message.body == b"2":
                await held.wait()

        async with consumer(listen):
            for number in range(6):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(20)
            assert fake.committed["g", "t", 0] == 2
            held.set()
            await asyncio.sleep(2)
            assert fake.committed["g", "t", 0] == 6

    run(test)


@pytest.mark.parametrize("limit", [{"max_cached_messages": 40}, {"max_cached_bytes": 6_000}])
def test_a_slow_listener_bounds_what_is_pulled(limit):
    async def test():
        fake = broker(t=1)
        for number in range(300):
            fake.put("t", 0, b"%d" % number + bytes(50))
        gate, seen = asyncio.Event(), []

        async def listen(message):
            await gate.wait()
            seen.append(message.queue_offset)

        async with consumer(listen, concurrency=2, **limit):
            await asyncio.sleep(60)
            pulled = max(int(ext["queueOffset"]) for code, ext in fake.asked if code == Code.PULL_MESSAGE)
            assert pulled == 32  # two pulls of 32 and then no more
            gate.set()
            await until(lambda: len(seen) == 300, 60)
        assert sorted(seen) == list(range(300))

    run(test)


def test_a_listener_that_takes_too_long_is_cancelled_and_its_message_sent_back():
    async def test():
        fake = broker(t=1)
        async with consumer(lambda message: asyncio.sleep(10_000), consume_timeout_s=60, concurrency=1) as member:
            assert not member.calls_of_listener.is_async
        ended = []

        async def listen(message):
            try:
                await asyncio.sleep(10_000)
            finally:
                ended.append(now())

        async with consumer(listen, consume_timeout_s=60):
            fake.put("t", 0, b"x")
            began = now()
            await asyncio.sleep(70)
            assert fake.count(Code.CONSUMER_SEND_MSG_BACK) == 1
            assert ended[0] - began == pytest.approx(60, abs=1)

    run(test)


def test_close_waits_for_running_listeners_and_commits_what_they_consumed():
    async def test():
        fake = broker(t=1)
        ended = []

        async def listen(message):
            await asyncio.sleep(float(message.body))
            ended.append(message.body)

        member = consumer(listen, close_timeout_s=10, concurrency=3)
        await member.start()
        for body in (b"2", b"5", b"60", b"1"):
            fake.put("t", 0, body)
        await asyncio.sleep(0.5)
        began = now()
        await member.close()
        assert 9 < now() - began < 11
        assert ended == [b"2", b"5"]  # "1" was not begun, "60" not ended
        assert fake.committed["g", "t", 0] == 2
        assert not any(fake.members.values())
        with pytest.raises(RemotingError, match="the consumer is closed"):
            await member.assignment()

    run(test)


def test_a_queue_changes_hands_after_its_running_listener_has_ended():
    async def test():
        fake = broker(t=2)
        first, second, ids = [], [], []

        def strategy(me, queues, members):
            ids.extend(members if len(members) == 1 else ())
            return list(queues if len(members) == 1 else queues[:1] if me == ids[0] else queues[1:])

        def slow(seen):
            async def listen(message):
                await asyncio.sleep(0.2)
                seen.append(int(message.body))
            return listen

        async with consumer(slow(first), concurrency=1, strategy=strategy) as one:
            for number in range(4):
                fake.put("t", 1, b"%d" % number)
            await asyncio.sleep(0.3)  # the second message runs
            async with consumer(slow(second), concurrency=1, strategy=strategy) as two:
                await until(lambda: len(second) == 2, 10)
                assert len(await one.assignment()) == len(await two.assignment()) == 1
        assert (first, second) == ([0, 1], [2, 3])

    run(test)


def test_members_of_one_group_in_one_process_have_connections_of_their_own():
    async def test():
        fake = broker(t=2)
        async with consumer(listening([])), consumer(listening([])):
            assert len(set(fake.members["g"].values())) == 2
        async with AsyncProducer(namesrv="n:1", clock=None) as one, AsyncPullConsumer(namesrv="n:1") as two:
            assert one._share.instance is two._share.instance
            shared = one._share.instance
        assert shared.remoting.closed
        assert id(asyncio.get_running_loop()) not in instance._instances

    run(test)


def test_heartbeats_come_every_half_minute_and_at_once_after_a_lost_connection(caplog):
    async def test():
        fake = broker(t=1)
        seen = []
        async with consumer(listening(seen)):
            await asyncio.sleep(300)
            assert 9 <= fake.count(Code.HEART_BEAT) <= 12
            fake.down = True
            fake.lose_connections()
            await asyncio.sleep(100)
            fake.down = False
            fake.put("t", 0, b"7")
            came_back = now()
            await until(lambda: seen == [7], 40)
            assert fake.members["g"]
            assert min(at for at in fake.when(Code.HEART_BEAT) if at > came_back) - came_back <= 1.1
        lines = [r.getMessage().split(" ")[0:2] for r in caplog.records if r.levelname == "WARNING"]
        assert lines == [["server", "is"], ["server", "is"]]

    run(test)


def test_heartbeats_go_without_the_subscriptions_that_a_broker_has():
    async def test():
        fake = broker(t=1, u=1)

        def beats():
            """Topics of the heartbeats since the last call."""
            found = [(one["withoutSub"], sorted(
                wanted["topic"] for wanted in one["consumerDataSet"][0]["subscriptionDataSet"])) for one in fake.beats]
            assert len({one["heartbeatFingerprint"] for one in fake.beats} - {0}) == 1
            fake.beats.clear()
            return found

        with_t, with_both, without = (False, ["%RETRY%g", "t"]), (False, ["%RETRY%g", "t", "u"]), (True, [])
        async with consumer(listening([])) as one:
            await asyncio.sleep(65)
            assert beats() == [with_t] * 3  # a broker that does not know version 2
            fake.sub_change = False
            await asyncio.sleep(90)
            assert beats() == [with_t, without, without]
            await one.subscribe("u")
            await asyncio.sleep(30)
            assert beats() == [with_both, without]
            fake.sub_change = True
            await asyncio.sleep(30)
            assert beats() == [without, with_both]  # in one go
            await asyncio.sleep(30)
            assert beats() == [with_both]
            fake.sub_change = False
            await asyncio.sleep(60)
            assert beats() == [with_both, without]
            fake.lose_connections()
            await asyncio.sleep(5)
            assert beats() == [with_both]

    run(test)


def test_equal_members_have_equal_fingerprints():
    def member(*topics, group="g", version=1):
        return {"groupName": group, "subscriptionDataSet": [
            Subscription(topic, "a", version=version).to_json() for topic in topics]}

    first = instance._fingerprint([member("t", "u"), member("t", group="h")], [])
    assert first == instance._fingerprint([member("t", group="h", version=7), member("u", "t")], [])
    assert len({first, instance._fingerprint([member("t", "u")], []), instance._fingerprint(
        [member("t", "u"), member("t", group="h")], [{"groupName": "p"}])}) == 3


def test_a_broker_that_forgot_the_group_gets_a_heartbeat_and_nothing_is_lost():
    async def test():
        fake = broker(t=1)
        seen = []
        async with consumer(listening(seen)):
            await asyncio.sleep(1)
            fake.members.clear()
            for number in range(3):
                fake.put("t", 0, b"%d" % number)
                await asyncio.sleep(1)
            assert seen == [0, 1, 2]

    run(test)


def test_a_topic_that_does_not_exist_yet_is_consumed_once_it_does(caplog):
    async def test():
        fake = broker()
        seen = []
        async with consumer(listening(seen), start="last") as member:
            assert await member.assignment() == []
            await asyncio.sleep(30)
            fake.put("t", 0, b"1")
            fake.topics["t"] = 1
            await until(lambda: seen == [1], 40)
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            "topic does not exist, it is looked for again group=g topic=t reason=n:1 has no topic t",
            "topic found, it is consumed now group=g topic=t"]

    run(test)


def test_in_order_a_message_is_tried_until_it_is_consumed_and_those_after_it_wait():
    async def test():
        fake = broker(t=1)
        tries = []

        async def listen(message):
            tries.append((message.body, message.reconsume_times))
            if message.body == b"1" and message.reconsume_times < 3:
                raise RetryLater(after_s=5)

        async with consumer(listen, in_order=True):
            for number in range(3):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(20)
        assert tries == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"1", 3), (b"2", 0)]
        assert not fake.locks  # freed at the close
        assert fake.count(Code.CONSUMER_SEND_MSG_BACK) == 0

    run(test)


def test_in_order_nothing_is_consumed_without_the_lock_and_a_dead_letter_goes_after_its_tries():
    async def test():
        fake = broker(t=1)
        seen = []

        async def listen(message):
            seen.append((message.body, now()))
            return message.body != b"bad"

        fake.locks["t", 0] = "another"
        async with consumer(listen, in_order=True, max_reconsume_times=2) as member:
            fake.put("t", 0, b"0")
            await asyncio.sleep(10)
            assert not seen
            assert await member.assignment() == []
            del fake.locks["t", 0]
            await until(lambda: len(seen) == 1, 3)
            fake.locks["t", 0] = "another"  # as after a restart of the broker
            await asyncio.sleep(25)
            fake.put("t", 0, b"1")
            await asyncio.sleep(30)
            assert len(seen) == 1
            fake.locks.clear()
            await until(lambda: len(seen) == 2, 3)
            fake.put("t", 0, b"bad")
            await asyncio.sleep(5)
            assert [body for body, _ in seen[2:]] == [b"bad"] * 3
            [back] = [ext for code, ext in fake.asked if code == Code.CONSUMER_SEND_MSG_BACK]
            assert back["delayLevel"] == "-1"
            assert (await member.positions())[QUEUE] == 3

    run(test)


def test_a_queue_that_comes_back_while_its_listener_still_runs_is_consumed_again():
    async def test():
        fake = broker(t=1)
        mine, ended = [True], []

        async def listen(message):
            await asyncio.sleep(10 if message.body == b"0" else 0)
            ended.append(message.body)

        async with consumer(listen, in_order=True, strategy=lambda me, queues, _: queues if mine[0] else []):
            fake.put("t", 0, b"0")
            fake.put("t", 0, b"1")
            await asyncio.sleep(1)
            mine[0] = False
            fake.notify("g")
            await asyncio.sleep(2)
            mine[0] = True
            fake.notify("g")
            await asyncio.sleep(20)
        assert ended == [b"0", b"1"]

    run(test)


def test_a_seek_in_order_waits_for_the_running_listener_also_when_the_group_changes():
    async def test():
        fake = broker(t=1)
        ended = []

        async def listen(message):
            await asyncio.sleep(5)
            ended.append(int(message.body))

        async with consumer(listen, in_order=True) as member:
            for number in range(4):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(1)
            seek = asyncio.create_task(member.seek(QUEUE, 3))
            await asyncio.sleep(1)
            fake.notify("g")
            await seek
            await asyncio.sleep(30)
        assert ended == [0, 3]

    run(test)


def test_requests_of_the_broker_reset_ask_and_deliver():
    async def test():
        fake = broker(t=1)
        seen = []

        async def listen(message):
            seen.append(int(message.body))
            if len(seen) > 8:
                raise ValueError("again")

        async with consumer(listen) as member:
            for number in range(4):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(1)
            table = fastjson.object_keyed([({"brokerName": "b", "queueId": 0, "topic": "t"}, 1)])
            fake.say(Code.RESET_CONSUMER_CLIENT_OFFSET,
                     {"group": "g", "topic": "t", "timestamp": "0", "isForce": "false"}, b'{"offsetTable":%b}' % table)
            await asyncio.sleep(1)
            assert seen == [0, 1, 2, 3, 1, 2, 3]
            fake.say(Code.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "g", "topic": "t"})
            fake.say(Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, fake.stored["t", 0][2])
            await asyncio.sleep(1)
            fake.say(Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, fake.stored["t", 0][2])
            fake.say(Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, b"no record")
            fake.say(Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "another"}, b"")
            await asyncio.sleep(1)
            status, done, failed, unreadable = member._share.instance.remoting.answers
            assert list(fastjson.loads(status.body)["messageQueueTable"].values()) == [4]
            assert fastjson.loads(done.body)["consumeResult"] == "CR_SUCCESS"
            assert fastjson.loads(failed.body)["consumeResult"] == "CR_THROW_EXCEPTION"
            assert "ValueError: again" in fastjson.loads(failed.body)["remark"]
            assert unreadable.code == ResponseCode.SYSTEM_ERROR
            assert seen == [0, 1, 2, 3, 1, 2, 3, 2, 2]

    run(test)


def test_a_pull_consumer_that_is_closed_while_it_follows_logs_nothing(caplog):
    async def test():
        fake = broker(t=4)
        reader = AsyncPullConsumer(namesrv="n:1", group="g", clock=LoopClock())
        seen = []

        async def follow():
            async for message in reader.messages("t"):
                seen.append(message.body)

        following = asyncio.create_task(follow())
        fake.put("t", 2, b"1")
        await asyncio.sleep(20)
        assert seen == [b"1"]
        following.cancel()
        await reader.close()
        await asyncio.gather(following, return_exceptions=True)
        assert not [r for r in caplog.records if r.levelname == "WARNING"]

    run(test)


def test_a_strategy_that_raises_changes_nothing_and_is_logged_once(caplog):
    async def test():
        fake = broker(t=1)

        def broken(client_id, queues, members):
            raise KeyError("rack")

        async with consumer(listening([]), strategy=broken) as member:
            await asyncio.sleep(10)
            assert await member.assignment() == []
        assert sum(r.getMessage().startswith("rebalance failed") for r in caplog.records) == 1
        assert fake.count(Code.PULL_MESSAGE) == 0

    run(test)


def test_arguments_that_cannot_work_are_named_all_at_once():
    with pytest.raises(ConfigError) as caught:
        AsyncPushConsumer("", None, namesrv="n:1", start="middle", concurrency=0)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigError, match="either namesrv or broker"):
        AsyncPushConsumer("g", print)
    with pytest.raises(ValueError, match="names no tag"):
        AsyncPushConsumer("g", print, namesrv="n:1", topics={"t": " || "})
