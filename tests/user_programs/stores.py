"""What type checkers make of programs with stores, transactions, strategies and the pytest plugin; nothing runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from tailrace import (
    AsyncProducer,
    FlushDiskType,
    Message,
    MessageExt,
    MessageQueue,
    MessageStore,
    Producer,
    PushConsumer,
    PutMessageResult,
    StoreConfig,
)
from tailrace.client.telemetry import Telemetry
from tailrace.errors import MessageIllegalError, RemotingError
from tailrace.pytest_plugin import TailraceBroker


def stored(path: str) -> None:
    with MessageStore.open(path, config=StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        store.create_topic("t", 4)
        assert_type(store.put(Message(topic="t", body=b"1")), PutMessageResult)
        assert_type(store.put_many([Message(topic="t", body=b"2", delay=3)]), Sequence[PutMessageResult])
        for message in store.read("t", queue_id=0, offset=0):
            assert_type(message, MessageExt)
        assert_type(store.query_message("t", "k"), list[MessageExt])
        assert_type([timer.due_ms for timer in store.timers()], list[int])
        store.recall("handle")
        store.put(b"body")  # type: ignore[arg-type]


def checked(half: MessageExt) -> bool | None:
    return half.body == b"1" or None


def transaction() -> None:
    with Producer(namesrv="n:1", check=checked, telemetry=Telemetry(), trace=True) as producer:
        sent = producer.send_in_transaction(Message(topic="t", body=b"1"), lambda message: bool(message.body))
        assert_type(sent.msg_id, str)
        producer.send_oneway(Message(topic="t", body=b"1"))
        producer.send_batch([Message(topic="t", body=b"1")])


async def asked() -> None:
    async with AsyncProducer(namesrv="n:1") as producer:
        try:
            assert_type(await producer.request(Message(topic="t", body=b""), timeout_ms=1), MessageExt)
        except (MessageIllegalError, RemotingError) as error:
            print(error)


def by_turns(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    return list(queues[members.index(me) :: len(members)])


def consumer() -> PushConsumer:
    return PushConsumer("g", lambda message: None, namesrv="n:1", topics="t", strategy=by_turns)


def crash(broker: TailraceBroker) -> None:
    client = broker.client()
    client.send("t", b"1")
    broker.kill()
    broker.start()
    assert_type(broker.namesrv, str)
    assert_type(client.wait_for("t", 1)[0], MessageExt)
