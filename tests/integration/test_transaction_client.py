"""Our producer in transactions, against our broker over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import served_broker

from tailrace import Message
from tailrace.client import AsyncProducer, Producer
from tailrace.config import StoreConfig
from tailrace.errors import MessageIllegalError

pytestmark = pytest.mark.integration

SIZES = {"mapped_file_size_commit_log": 4 << 20, "max_hash_slot_num": 1000, "max_index_num": 40_000}
SOON = {"transaction_check_interval": 50, "transaction_time_out": 0}
LATER = {"transaction_check_interval": 3_600_000}


@contextlib.asynccontextmanager
async def serving(path, **broker_config):
    async with served_broker.serving(path, StoreConfig(**SIZES), **broker_config) as served:
        yield served.store, served.controller.broker_address


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


async def bodies(store, count):
    """Return what consumers of the topic see, once it has this many messages."""
    while True:
        found = await asyncio.to_thread(messages, store)
        if len(found) >= count:
            return sorted(m.body for m in found)
        await asyncio.sleep(0.01)


def messages(store):
    return [message for queue_id in range(4) for message in store.read("orders", queue_id)]


def never(half):
    raise AssertionError(f"a check of {half.unique_key}")


def test_commit_and_roll_back(tmp_path):
    async def test():
        async with serving(tmp_path / "store", **LATER) as (store, address):
            async with AsyncProducer(broker=address, group="G", check=never) as producer:
                seen = []

                async def commit(half):
                    seen.append((half.body, await bodies(store, 0)))
                    return True

                sent = await producer.send_in_transaction(
                    Message(topic="orders", body=b"paid", tags="t", keys=["k"], properties={"own": "1"}), commit)
                assert (sent.status, sent.decision) == ("SEND_OK", True)
                assert seen == [(b"paid", [])]  # not there before it is committed
                back = await producer.send_in_transaction(
                    Message(topic="orders", body=b"not paid"), lambda _: False)
                assert back.decision is False
            assert await bodies(store, 1) == [b"paid"]
            [message] = await asyncio.to_thread(messages, store)
            assert (message.tags, message.keys, message.properties["own"]) == ("t", ["k"], "1")
            assert message.unique_key == sent.msg_id

    run(test)


def test_the_broker_asks_about_what_is_not_known_yet(tmp_path):
    async def test():
        asked = []

        def check(message):  # a plain function: in a thread, with the message as it was sent
            asked.append((message.topic, message.body, threading.current_thread() is threading.main_thread()))
            return {b"yes": True, b"no": False}.get(message.body)

        async with (
            serving(tmp_path / "store", **SOON) as (store, address),
            AsyncProducer(broker=address, group="G", check=check) as producer,
        ):
            for body in (b"yes", b"no"):
                result = await producer.send_in_transaction(Message(topic="orders", body=body), lambda _: None)
                assert result.decision is None
            assert await bodies(store, 1) == [b"yes"]
            assert {(t, b, main) for t, b, main in asked} >= {("orders", b"yes", False)}

    run(test)


def test_a_local_part_that_raises_leaves_the_decision_to_the_check(tmp_path):
    async def test():
        async def check(message):
            return message.body == b"done before the error"

        async with (
            serving(tmp_path / "store", **SOON) as (store, address),
            AsyncProducer(broker=address, group="G", check=check) as producer,
        ):
            with pytest.raises(ZeroDivisionError):
                await producer.send_in_transaction(
                    Message(topic="orders", body=b"done before the error"), lambda _: 1 // 0)
            assert await bodies(store, 1) == [b"done before the error"]

    run(test)


def test_another_producer_of_the_group_is_asked(tmp_path):
    async def test():
        async with serving(tmp_path / "store", **SOON) as (store, address):
            async with AsyncProducer(broker=address, group="G", check=lambda _: None) as first:
                await first.send_in_transaction(Message(topic="orders", body=b"left behind"), lambda _: None)
            async with AsyncProducer(broker=address, group="G", check=lambda _: True) as second:
                await second.send_in_transaction(Message(topic="orders", body=b"rolled back"), lambda _: False)
                assert await bodies(store, 1) == [b"left behind"]

    run(test)


def test_what_cannot_be_sent_is_refused_before_anything_is(tmp_path):
    async def test():
        async with serving(tmp_path / "store", **LATER) as (store, address):
            async with AsyncProducer(broker=address, group="G") as producer:
                with pytest.raises(ValueError, match="needs the argument check"):
                    await producer.send_in_transaction(Message(topic="orders", body=b"x"), lambda _: True)
            async with AsyncProducer(broker=address, group="G", check=never) as producer:
                with pytest.raises(MessageIllegalError, match="cannot be delayed"):
                    await producer.send_in_transaction(
                        Message(topic="orders", body=b"x", delay=5), lambda _: True)
                with pytest.raises(TypeError, match=r"True, False or None, not by 'commit'"):
                    await producer.send_in_transaction(
                        Message(topic="orders", body=b"x"), lambda _: "commit")
            assert await bodies(store, 0) == []

    run(test)


def test_the_blocking_producer(tmp_path):
    async def test():
        async with serving(tmp_path / "store", **LATER) as (store, address):

            def send():
                with Producer(broker=address, group="G", check=never) as producer:
                    return producer.send_in_transaction(
                        Message(topic="orders", body=b"paid"),
                        lambda half: half.body == b"paid" and threading.current_thread() is not None)

            assert (await asyncio.to_thread(send)).decision is True
            assert await bodies(store, 1) == [b"paid"]

    run(test)
