"""Failures while queues move from one member to another, with a broker in memory, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from fake_brokers import FakeBroker, FakeRemoting, run
from fake_consumers import broker, consumer, listening, until

from tailrace.client import assigned_queues, instance
from tailrace.client.routes import MessageQueue
from tailrace.errors import RemotingError
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode

QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def test_a_queue_is_taken_over_once_although_the_topic_of_another_one_was_deleted(monkeypatch):
    async def test():
        fake = broker(t=1, u=1)
        seen = []
        async with consumer(listening(seen), in_order=True) as member:
            del fake.topics["t"]
            await asyncio.sleep(40)  # the route that was kept is too old
            query = FakeBroker._query_consumer_offset

            async def slow_query(self, remoting, ext, body):
                await asyncio.sleep(2.5 if ext["topic"] == "u" else 0)
                return await query(self, remoting, ext, body)

            monkeypatch.setattr(FakeBroker, "_query_consumer_offset", slow_query)
            await member.unsubscribe("t")
            await member.subscribe("u")
            for number in range(10):
                fake.put("u", 0, b"%d" % number)
            await asyncio.sleep(30)
            assert await member.assignment() == [MessageQueue("u", "b", 0)]
        assert seen == list(range(10))
        assert [ext["topic"] for code, ext in fake.asked if code == Code.QUERY_CONSUMER_OFFSET].count("u") == 1

    run(test)


def test_a_pass_ends_before_the_next_one_when_locks_are_refused(monkeypatch):
    async def test():
        fake = broker(t=2)
        mine, unlocks = [[0]], []
        commit, unlock = FakeBroker._update_consumer_offset, FakeBroker._unlock_batch_mq

        async def slow_commit(self, remoting, ext, body):
            await asyncio.sleep(2.5)
            return await commit(self, remoting, ext, body)

        async def noted_unlock(self, remoting, ext, body):
            unlocks.append(body)
            return await unlock(self, remoting, ext, body)

        def share(me, queues, members):
            return [one for one in queues if one.topic != "t" or one.queue_id in mine[0]]

        async with consumer(listening([]), in_order=True, strategy=share, commit_interval_s=1000) as member:
            monkeypatch.setattr(FakeBroker, "_update_consumer_offset", slow_commit)
            monkeypatch.setattr(FakeBroker, "_unlock_batch_mq", noted_unlock)
            fake.put("t", 0, b"0")
            await asyncio.sleep(1)
            fake.refuse[Code.LOCK_BATCH_MQ] = ResponseCode.SYSTEM_ERROR
            mine[0] = [1]
            fake.notify("g")
            await asyncio.sleep(10)
            assert len(unlocks) == 1
            fake.refuse.clear()
            await until(lambda: fake.locks.keys() >= {("t", 1)}, 10)
            await asyncio.sleep(1)
            assert await member.assignment() == [MessageQueue("t", "b", 1)]

    run(test)


def test_in_order_nothing_is_consumed_when_the_lock_has_expired_and_is_refused():
    async def test():
        fake = broker(t=1)
        seen = []
        async with consumer(listening(seen), in_order=True):
            fake.refuse[Code.LOCK_BATCH_MQ] = ResponseCode.SYSTEM_ERROR
            await asyncio.sleep(60)
            fake.put("t", 0, b"0")
            await asyncio.sleep(10)
            assert not seen
            fake.refuse.clear()
            await until(lambda: seen == [0], 3)

    run(test)


def test_a_seek_in_order_that_is_given_up_or_made_by_the_listener_itself_counts():
    async def test():
        fake = broker(t=1)
        ended = []

        async def listen(message):
            ended.append(int(message.body))
            await asyncio.sleep(5)
            if len(ended) == 2:
                await member.seek(QUEUE, 4)

        async with consumer(listen, in_order=True) as member:
            for number in range(6):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(1)
            for offset in (5, 3):
                seek = asyncio.create_task(member.seek(QUEUE, offset))
                await asyncio.sleep(0.1)
                seek.cancel()
                await asyncio.gather(seek, return_exceptions=True)
            fake.notify("g")
            await asyncio.sleep(12)
            assert ended == [0, 3, 4]
            await asyncio.sleep(20)
            assert (await member.positions())[QUEUE] == fake.committed["g", "t", 0] == 6
        assert ended == [0, 3, 4, 5]

    run(test)


def test_a_queue_that_waits_for_a_seek_and_goes_to_another_member_is_not_taken_back():
    async def test():
        fake = broker(t=1)
        mine, ended = [True], []

        async def listen(message):
            await asyncio.sleep(5)
            ended.append(int(message.body))

        async with consumer(listen, in_order=True, strategy=lambda me, queues, _: queues if mine[0] else []) as member:
            for number in range(3):
                fake.put("t", 0, b"%d" % number)
            await asyncio.sleep(1)
            await member.seek(QUEUE, 2)
            mine[0] = False
            fake.notify("g")
            await asyncio.sleep(20)
            assert await member.assignment() == []
            assert not fake.locks
        assert ended == [0]
        assert fake.committed["g", "t", 0] == 1

    run(test)


def test_an_answer_that_nobody_expected_does_not_stop_its_queue(monkeypatch, caplog):
    async def test():
        fake = broker(t=1)
        seen = []
        once = [KeyError("of an odd answer")]
        decode_all = assigned_queues.BrokerCalls.pull

        async def pull(self, *args, **options):
            found = await decode_all(self, *args, **options)
            if once and found.messages:
                raise once.pop()
            return found

        monkeypatch.setattr(assigned_queues.BrokerCalls, "pull", pull)
        async with consumer(listening(seen)):
            fake.put("t", 0, b"0")
            await until(lambda: seen == [0], 5)
        assert "KeyError('of an odd answer')" in next(
            r.getMessage() for r in caplog.records if "pull failed" in r.getMessage())

    run(test)


def test_a_consumer_that_is_closed_or_did_not_start_says_so():
    async def test():
        fake = broker(t=1)
        fake.down = True
        failed = consumer(listening([]))
        with pytest.raises(RemotingError, match="it is down"):
            await failed.start()
        fake.down = False
        async with consumer(listening([])) as closed:
            pass
        for one in (failed, closed):
            with pytest.raises(RemotingError, match="make a new one"):
                await one.start()

    run(test)


class TwoBrokers(FakeBroker):
    """A second broker of the same topics, which cannot be reached."""

    async def _get_routeinfo_by_topic(self, remoting, ext, body):
        answer = await super()._get_routeinfo_by_topic(remoting, ext, body)
        answer.body = answer.body.replace(b'"brokerDatas":[', (
            b'"brokerDatas":[{"brokerName":"lost","brokerAddrs":{"0":"10.0.0.2:10911"},"cluster":"c"},'))
        return answer


def test_a_broker_that_cannot_be_reached_keeps_no_heartbeat_from_the_others(monkeypatch):
    async def test():
        fake = FakeRemoting.broker = TwoBrokers(t=1)
        invoke = FakeRemoting.invoke

        async def invoke_one(self, address, code, ext, body=b"", *, timeout_ms=3000):
            if address == "10.0.0.2:10911":
                raise RemotingError("it is down")
            return await invoke(self, address, code, ext, body, timeout_ms=timeout_ms)

        monkeypatch.setattr(FakeRemoting, "invoke", invoke_one)
        async with consumer(listening([])):
            before = fake.count(Code.HEART_BEAT)
            await asyncio.sleep(301)
            assert fake.count(Code.HEART_BEAT) - before == pytest.approx(10, abs=1)

    run(test)


def test_a_late_commit_of_the_member_before_does_not_stay():
    async def test():
        fake = broker(t=1)
        seen = []
        for number in range(5):
            fake.put("t", 0, b"%d" % number)
        async with consumer(listening(seen)):
            await until(lambda: fake.committed.get(("g", "t", 0)) == 5, 5)
            fake.committed["g", "t", 0] = 2
            await until(lambda: fake.committed["g", "t", 0] == 5, 35)
            before = fake.count(Code.UPDATE_CONSUMER_OFFSET)
            await asyncio.sleep(100)
            assert fake.count(Code.UPDATE_CONSUMER_OFFSET) - before <= 8  # two queues, with the one of retries

    run(test)


def test_answers_that_cannot_be_read_stop_neither_heartbeats_nor_locks(monkeypatch):
    async def test():
        fake = broker(t=1)
        seen = []
        odd = [False]
        serve = FakeBroker.serve

        async def serve_odd(self, remoting, code, ext, body, timeout_ms):
            answer = await serve(self, remoting, code, ext, body, timeout_ms)
            if odd[0] and code in {Code.GET_ROUTEINFO_BY_TOPIC, Code.LOCK_BATCH_MQ, Code.GET_CONSUMER_LIST_BY_GROUP}:
                answer.body = b"[]"
            return answer

        monkeypatch.setattr(FakeBroker, "serve", serve_odd)
        async with consumer(listening(seen), in_order=True):
            odd[0] = True
            await asyncio.sleep(100)
            odd[0] = False
            fake.put("t", 0, b"0")
            await until(lambda: seen == [0], 60)
            beats, locks = fake.count(Code.HEART_BEAT), fake.count(Code.LOCK_BATCH_MQ)
            await asyncio.sleep(100)
            assert fake.count(Code.HEART_BEAT) - beats >= 3
            assert fake.count(Code.LOCK_BATCH_MQ) - locks >= 4

    run(test)
