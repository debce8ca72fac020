"""What goes wrong in a consumer is logged once and passed to ``on_error``; in virtual time unless threads take part."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_brokers import FakeRemoting, LoopClock, record, run
from fake_consumers import broker, consumer, listening, until

from tailrace import Message, PushConsumer
from tailrace.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerFailure,
    RetryLater,
    instance,
)
from tailrace.client import failures as module
from tailrace.client.failures import Failures
from tailrace.client.trace import MessageTrace
from tailrace.errors import ConfigError, RemotingClosedError, RemotingCommandError, RemotingError
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


def warnings(caplog, *beginnings):
    found = [r.getMessage() for r in caplog.records if r.levelname in {"WARNING", "ERROR"}]
    return [line for line in found if line.startswith(beginnings)] if beginnings else found


def collecting(seen):
    async def on_error(failure):
        seen.append(failure)
    return on_error


def raising(message):
    raise KeyError("price")


def test_a_listener_that_raises_is_passed_on_with_its_message(caplog):
    async def test():
        fake, failed = broker(t=1), []
        fake.put("t", 0, b"7", KEYS="42")

        async def listen(message):
            raise KeyError("price")

        async with consumer(listen, on_error=collecting(failed)):
            await until(lambda: failed, 10)
        [failure] = failed
        assert isinstance(failure, ConsumerFailure)
        assert isinstance(failure.error, KeyError)
        assert (failure.tried, failure.group, failure.topic) == ("listener", "g", "t")
        assert [message.body for message in failure.messages] == [b"7"]
        [line] = warnings(caplog)
        assert line == (
            "listener failed, the message is delivered again group=g topic=t queue=0 offset=0 key=42 "
            "reason=KeyError('price')")
        assert "KeyError: 'price'" in caplog.text

    run(test)


def test_a_listener_that_asks_for_a_retry_has_not_failed(caplog):
    async def test():
        fake, failed, calls = broker(t=1), [], []
        fake.put("t", 0, b"7")

        async def listen(message):
            calls.append(message)
            if len(calls) == 1:
                raise RetryLater
            return False

        async with consumer(listen, on_error=collecting(failed)):
            await until(lambda: calls, 10)
            await asyncio.sleep(1)
        assert (failed, warnings(caplog)) == ([], [])

    run(test)


def test_a_listener_that_takes_too_long_is_a_timeout():
    async def test():
        fake, failed = broker(t=1), []
        fake.put("t", 0, b"7")

        async def listen(message):
            await asyncio.sleep(100)

        async with consumer(listen, on_error=collecting(failed), consume_timeout_s=5.0):
            await until(lambda: failed, 20)
        assert failed[0].tried == "listener"
        assert isinstance(failed[0].error, TimeoutError)

    run(test)


def test_the_last_delivery_says_that_the_message_is_a_dead_letter(caplog):
    async def test():
        fake, failed = broker(t=1), []
        fake.put("t", 0, b"7", 16, KEYS="42")

        async def listen(message):
            raise KeyError("price")

        async with consumer(listen, on_error=collecting(failed)):
            await until(lambda: len(failed) == 2, 20)
        assert [failure.tried for failure in failed] == ["listener", "dead letter"]
        assert warnings(caplog, "message is") == [
            "message is a dead letter now group=g topic=t queue=0 offset=0 key=42 deliveries=17"]

    run(test)


def test_a_topic_that_does_not_exist_is_named_once_with_the_nearest_name(caplog):
    async def test():
        fake, failed, seen = broker(orders=1, invoices=1), [], []
        async with consumer(listening(seen), topics="ordres", on_error=collecting(failed)):
            assert warnings(caplog) == [  # after the first attempt, which `start` waits for
                ("topic does not exist, it is looked for again group=g topic=ordres "
                 "reason=n:1 has no topic ordres; is orders meant?")]
            await asyncio.sleep(300)
            assert len(warnings(caplog)) == 1
            [failure] = failed
            assert (failure.tried, failure.topic) == ("topic", "ordres")
            assert isinstance(failure.error, RemotingCommandError)
            assert failure.error.code == ResponseCode.TOPIC_NOT_EXIST
            assert fake.count(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == 1
            fake.topics["ordres"] = 1
            fake.put("ordres", 0, b"7")
            await until(lambda: seen == [7], 30)
        assert warnings(caplog)[1:] == ["topic found, it is consumed now group=g topic=ordres"]

    run(test)


def test_a_topic_named_as_a_kind_of_failure_does_not_hide_that_failure(caplog):
    async def test():
        fake, failed = broker(t=1), []
        fake.refuse[Code.UPDATE_CONSUMER_OFFSET] = ResponseCode.NO_PERMISSION
        async with consumer(listening([]), topics=["t", "commit"], on_error=collecting(failed)):
            fake.put("t", 0, b"7")
            await asyncio.sleep(5)
        assert {failure.tried for failure in failed} == {"topic", "commit"}

    run(test)


def test_names_that_are_not_given_to_this_client_or_too_many_suggest_nothing(caplog):
    async def test():
        fake = broker(**{f"orders{number}": 1 for number in range(6_000)})
        async with consumer(listening([]), topics="ordres"):
            pass
        fake = broker(orders=1)
        fake.refuse[Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = ResponseCode.NO_PERMISSION
        async with consumer(listening([]), topics="ordres"):
            pass
        assert [line.partition(" reason=")[2] for line in warnings(caplog)] == ["n:1 has no topic ordres"] * 2

    run(test)


def test_a_lost_connection_is_said_once_and_its_end_too(caplog):
    async def test():
        fake, failed, seen = broker(t=4, u=4), [], []
        async with consumer(listening(seen), topics=["t", "u"], on_error=collecting(failed)):
            await asyncio.sleep(5)
            fake.down = True
            fake.lose_connections()
            await asyncio.sleep(60)
            assert warnings(caplog) == [
                ("server is not available, it is tried again address=10.0.0.1:10911 "
                 "reason=the connection to 10.0.0.1:10911 was closed")]
            [failure] = failed
            assert (failure.tried, failure.topic, failure.messages) == ("connect", "", ())
            assert isinstance(failure.error, RemotingClosedError)
            fake.down = False
            fake.put("t", 0, b"7")
            await until(lambda: seen == [7], 60)
            await asyncio.sleep(60)
        assert len(failed) == 1
        [_, back] = warnings(caplog)
        assert back.startswith("server is available again address=10.0.0.1:10911 seconds=6")

    run(test)


def test_a_consumer_reads_soon_after_a_long_outage(caplog):
    async def test():
        fake, seen = broker(t=4), []
        async with consumer(listening(seen)):
            await asyncio.sleep(5)
            fake.down = True
            fake.lose_connections()
            await asyncio.sleep(62)
            fake.down = False
            fake.put("t", 0, b"7")
            await until(lambda: seen == [7], 6)
        assert not warnings(caplog, "pull failed")  # the broker does not know the group until it has a heartbeat

    run(test)


def test_the_name_server_is_available_again_that_has_answered(caplog):
    async def test():
        fake = broker(t=1)
        async with consumer(listening([]), namesrv="n:1;n:2"):
            fake.gone |= {"n:1", "n:2"}
            await asyncio.sleep(120)
            for answering in ("n:1", "n:2"):
                fake.gone = {"n:1", "n:2"} - {answering}
                await asyncio.sleep(120)
                assert f" address={answering} " in warnings(caplog, "server is available again")[-1]
                fake.gone = {"n:1", "n:2"}
                await asyncio.sleep(120)
            assert len(warnings(caplog, "server is available again")) == 2

    run(test)


def test_a_pull_that_is_refused_is_said_once_for_all_queues_of_its_topic(caplog):
    async def test():
        fake, failed, seen = broker(t=4), [], []
        fake.refuse[Code.PULL_MESSAGE] = ResponseCode.NO_PERMISSION
        async with consumer(listening(seen), on_error=collecting(failed)):
            await asyncio.sleep(300)
            refused = [line for line in warnings(caplog, "pull failed") if "topic=t " in line]
            assert len(refused) == 1
            assert "reason=the user, the topic or the group does not permit this" in refused[0]
            assert [failure.tried for failure in failed if failure.topic == "t"] == ["pull"]
            del fake.refuse[Code.PULL_MESSAGE]
            fake.put("t", 3, b"7")
            await until(lambda: seen == [7], 60)
            await asyncio.sleep(60)
        assert [line for line in warnings(caplog, "pull works again") if "topic=t " in line] == [
            line for line in warnings(caplog)[-2:] if "topic=t " in line]

    run(test)


def test_a_subscription_that_a_broker_never_knows_is_said(caplog):
    async def test():
        fake, failed = broker(t=1), []
        fake.refuse[Code.PULL_MESSAGE] = ResponseCode.SUBSCRIPTION_NOT_EXIST
        async with consumer(listening([]), on_error=collecting(failed)):
            await asyncio.sleep(60)
        [line] = [line for line in warnings(caplog, "pull failed") if "topic=t " in line]
        assert "all members of a group must have the same" in line
        assert "pull" in {failure.tried for failure in failed}

    run(test)


def test_offsets_that_are_refused_are_said_once(caplog):
    async def test():
        fake, failed = broker(t=1), []
        fake.refuse[Code.UPDATE_CONSUMER_OFFSET] = ResponseCode.NO_PERMISSION
        async with consumer(listening([]), on_error=collecting(failed)):
            for number in range(5):
                fake.put("t", 0, b"%d" % number)
                await asyncio.sleep(2)
        assert len(warnings(caplog, "offsets not committed")) == 1
        assert [failure.tried for failure in failed] == ["commit"]

    run(test)


def test_offsets_of_a_pull_consumer_that_are_refused_are_said_too(caplog):
    async def test():
        fake = broker(t=1)
        fake.refuse[Code.UPDATE_CONSUMER_OFFSET] = ResponseCode.NO_PERMISSION
        async with AsyncPullConsumer(namesrv="n:1", group="g") as reader:
            await reader.assign(await reader.queues("t"))
            fake.put("t", 0, b"7")
            assert [message.body for message in await reader.poll()] == [b"7"]
            await reader.poll()
            await asyncio.sleep(10)
            assert len(warnings(caplog, "offsets not committed")) == 1

    run(test)


def test_locks_that_are_refused_are_said_once(caplog):
    async def test():
        fake, failed = broker(t=1), []
        async with consumer(listening([]), in_order=True, on_error=collecting(failed)):
            fake.refuse[Code.LOCK_BATCH_MQ] = ResponseCode.NO_PERMISSION
            await asyncio.sleep(120)
        assert len(warnings(caplog, "queue locks not renewed")) == 1
        assert "lock" in {failure.tried for failure in failed}

    run(test)


def test_heartbeats_that_are_refused_are_said_once(caplog):
    async def test():
        fake, failed = broker(t=1), []
        async with consumer(listening([]), on_error=collecting(failed)):
            fake.refuse[Code.HEART_BEAT] = ResponseCode.NO_PERMISSION
            await asyncio.sleep(120)
        assert len(warnings(caplog, "heartbeat refused")) == 1
        assert [failure.tried for failure in failed] == ["connect"]

    run(test)


def test_an_on_error_that_raises_is_logged_and_the_consumer_continues(caplog):
    async def test():
        fake, calls = broker(t=1), []

        async def on_error(failure):
            calls.append(failure)
            raise SystemExit("no")

        async def listen(message):
            raise KeyError("price")

        async with consumer(listen, on_error=on_error):
            fake.put("t", 0, b"7")
            await until(lambda: len(calls) == 1, 10)
            fake.put("t", 0, b"8")
            await until(lambda: len(calls) == 2, 10)
        failed = warnings(caplog, "on_error failed")
        assert failed == ["on_error failed group=g tried=listener reason=SystemExit('no')"] * 2

    run(test)


def test_an_on_error_cannot_close_its_consumer_and_can_set_an_event(caplog):
    async def test():
        fake, stop = broker(t=1), asyncio.Event()
        fake.put("t", 0, b"7")

        async def on_error(failure):
            stop.set()
            await member.close()

        async def listen(message):
            raise KeyError("price")

        member = consumer(listen, on_error=on_error)
        async with member:
            await stop.wait()
        assert "cannot close its consumer" in warnings(caplog, "on_error failed")[0]

    run(test)


def test_failures_above_a_number_are_only_logged(caplog, monkeypatch):
    monkeypatch.setattr(module, "WAITING_MAX", 3)

    async def test():
        seen, go = [], asyncio.Event()

        async def on_error(failure):
            await go.wait()
            seen.append(str(failure.error))

        failures = Failures(on_error, "g")
        for number in range(9):
            failures.report("pull", KeyError(number))
            await asyncio.sleep(0)
        go.set()
        await failures.close(10)
        assert seen == ["0", "1", "2", "3"]  # the first one is being called, three wait
        assert len(warnings(caplog, "failures are only logged")) == 1

    run(test)


def test_a_close_does_not_wait_for_an_on_error_without_end():
    async def test():
        failures = Failures(lambda failure: asyncio.sleep(10_000), "g")
        failures._pool.shutdown()
        failures._pool = None  # virtual time does not wait for threads
        failures.report("pull", KeyError(1))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await failures.close(30)
        assert asyncio.get_running_loop().time() - began == 30

    run(test)


def test_a_plain_on_error_runs_in_a_thread_one_call_at_a_time():
    async def test():
        threads, running = [], []

        def on_error(failure):
            running.append(failure)
            assert len(running) == 1
            threads.append(threading.current_thread())
            running.pop()

        failures = Failures(on_error, "g")
        for number in range(20):
            failures.report("pull", KeyError(number))
        await failures.close(30)
        assert len(threads) == 20
        [thread] = set(threads)
        assert thread is not threading.current_thread()
        assert thread.name.startswith(failures.thread_prefix)

    asyncio.run(test())


@pytest.mark.parametrize("raised", [KeyError("price"), SystemExit("no")])
def test_a_check_of_a_transaction_that_raises_is_logged_with_its_traceback_and_ends_nothing(caplog, raised):
    async def test():
        fake = broker(t=1)
        calls = []

        async def check(message):
            calls.append(message)
            raise raised

        body = record("t", 0, 0, 1000, b"7", {"UNIQ_KEY": "42", "PGROUP": "shop"})
        ext = {"tranStateTableOffset": "0", "commitLogOffset": "1000"}
        async with AsyncProducer(namesrv="n:1", group="shop", check=check) as producer:
            await producer.send_in_transaction(Message(topic="t", body=b"7"), lambda message: None)
            for number in range(1, 3):
                fake.say(Code.CHECK_TRANSACTION_STATE, ext, body)
                await until(lambda number=number: len(calls) == number, 10)
                await asyncio.sleep(0.1)
        assert warnings(caplog) == [f"check of a transaction failed message=42 reason={raised!r}"] * 2
        assert f"{type(raised).__name__}:" in caplog.text

    run(test)


def test_a_trace_that_cannot_be_sent_is_said_once_for_an_outage(caplog):
    async def test():
        fails = [True]

        async def send(message):
            if fails:
                raise RemotingError("it is down")

        trace = MessageTrace(send, "g", LoopClock(), "traces")
        for _ in range(2):
            for _ in range(20):
                trace.recalled("t", "1", "r")
                await asyncio.sleep(1)
            fails.clear()
            trace.recalled("t", "1", "r")
            await asyncio.sleep(1)
            fails.append(True)
        await trace.close()
        assert len(warnings(caplog, "trace not sent")) == 2

    run(test)


@pytest.mark.parametrize("kind", [PushConsumer, AsyncPushConsumer])
def test_an_on_error_that_is_no_function_is_refused(kind):
    with pytest.raises(ConfigError, match="on_error='mail' is not a function"):
        kind("g", raising, namesrv="n:1", topics="t", on_error="mail")
