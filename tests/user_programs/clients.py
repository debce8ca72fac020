"""What a type checker makes of programs that use the clients: `make check` has mypy read it, nothing runs it.

An `ignore` that is not needed is also an error, so each says that a wrong call is found.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import assert_type

from tailrace import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    SendResult,
    Sql,
)


def plain(message: MessageExt) -> bool | None:
    if message.reconsume_times > 3:
        raise RetryLater(delay_level=1, after_s=2.5)
    return bool(message.body)


async def awaited(message: MessageExt) -> None:
    assert_type(message.keys, list[str])


def together(messages: list[MessageExt]) -> None:
    assert_type(messages[0].tags, str | None)


def wrong(message: str) -> None: ...


def blocking_program() -> None:
    with Producer(namesrv="n:1", group="g", linger_ms=5, compression="zlib") as producer:
        message = Message(topic="t", body=b"b", keys=["k"])
        assert_type(producer.send(message, ordering_key="k"), SendResult)
        assert_type(producer.send_async(message), Future[SendResult])
        assert_type(producer.request(message, timeout_ms=10), MessageExt)
        assert_type(producer.recall("t", "handle"), str)
        assert_type(producer.queues("t"), list[MessageQueue])
        producer.send(message, queue="1")  # type: ignore[call-arg]
        producer.send("text")  # type: ignore[arg-type]
    Producer(namesrv="n:1", linger="5")  # type: ignore[call-arg]
    Producer(namesrv=7)  # type: ignore[arg-type]
    with PushConsumer("g", plain, namesrv="n:1", topics={"t": Sql("a > 1"), "u": "x || y"}) as consumer:
        assert_type(consumer.positions(), dict[MessageQueue, int])
        consumer.seek("t", 1)  # type: ignore[arg-type]
        consumer.wait()
    PushConsumer("g", together, namesrv="n:1", batch_size=10)
    PushConsumer("g", wrong, namesrv="n:1")  # type: ignore[arg-type]
    PushConsumer("g", plain, namesrv="n:1", concurency=3)  # type: ignore[call-arg]
    with PullConsumer(namesrv="n:1") as reader:
        for found in reader.messages("t"):
            assert_type(found, MessageExt)
        assert_type(reader.poll(), list[MessageExt])
        assert_type(reader.committed(MessageQueue("t", "b", 0)), int | None)
        reader.poll(timeout="1")  # type: ignore[call-arg]


async def asynchronous_program() -> None:
    async with AsyncProducer(namesrv="n:1") as producer:
        assert_type(await producer.send(Message(topic="t", body=b"b")), SendResult)
    async with AsyncPushConsumer("g", awaited, namesrv="n:1", topics=["t"]) as consumer:
        assert_type(await consumer.assignment(), list[MessageQueue])
        await consumer.wait()
    async with AsyncPullConsumer(namesrv="n:1") as reader:
        async for found in reader.messages("t"):
            assert_type(found, MessageExt)
