"""Topics that were deleted and created again go from Tailrace to a Java broker and back, with their offsets."""

from __future__ import annotations

import asyncio
import time

import pytest
from java_peer import java_broker, patiently, tailrace

from tailrace import Message, MessageStore
from tailrace.client import Producer, PullConsumer
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient
from tailrace.store.directory import StoreDirectory
from tailrace.store.verification import Verification

pytestmark = [pytest.mark.slow, pytest.mark.interop]
TOPIC = "ended"


def ask(address, code, **ext):
    async def once():
        client = RemotingClient()
        try:
            return await client.invoke(address, code, {name: str(value) for name, value in ext.items()})
        finally:
            await client.close()

    answer = asyncio.run(once())
    assert answer.code == 0, answer.remark
    return answer


def bounds(address):
    return tuple(int(ask(address, code, topic=TOPIC, queueId=0).ext["offset"]) for code in (31, 30))


def create(address):
    def step():
        with Producer(broker=address) as producer:
            producer.create_topic(TOPIC, 1)

    patiently(step)


def send(address, *bodies):
    def step(body):
        with Producer(broker=address, timeout_ms=10_000) as producer:
            return producer.send(Message(topic=TOPIC, body=body.encode())).queue_offset

    return [patiently(lambda body=body: step(body)) for body in bodies]


def read(address, count):
    """The bodies of the topic; waits until there are ``count``."""
    def all_of():
        with PullConsumer(broker=address, group="reader") as consumer:
            return [m.body.decode() for m in consumer.messages(TOPIC, start="first", follow=False)]

    until = time.monotonic() + 30
    while len(found := patiently(all_of)) < count and time.monotonic() < until:
        time.sleep(0.5)
    return found


def delete(address):
    ask(address, 215, topic=TOPIC)


def findings(root):
    return list(Verification(StoreDirectory(str(root), raw=True)).findings())


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_new_life_goes_to_a_java_broker_and_back(reference, tmp_path, kill):
    root = tmp_path / "s"
    with tailrace(root, kill=kill) as address:
        create(address)
        assert send(address, "a0", "a1") == [0, 1]
        delete(address)
        create(address)
        begin = send(address, "b0")[0]
        assert begin > 2
        assert send(address, "b1") == [begin + 1]
        assert read(address, 2) == ["b0", "b1"]
        time.sleep(2)  # a kill finds the queue in its file
    with java_broker(reference, root, {}, kill=kill) as address:
        assert send(address, "c0") == [begin + 2]
        assert read(address, 3) == ["b0", "b1", "c0"]
        assert bounds(address) == (begin, begin + 3)
    with tailrace(root, kill=False) as address:
        assert send(address, "d0") == [begin + 3]
        assert read(address, 4) == ["b0", "b1", "c0", "d0"]
        assert bounds(address) == (begin, begin + 4)
    assert findings(root) == []


@pytest.mark.long
def test_a_queue_that_a_java_broker_began_again_keeps_its_messages(reference, tmp_path):
    root = tmp_path / "s"
    with tailrace(root, kill=False) as address:
        create(address)
        send(address, "a0", "a1", "a2")
        delete(address)
        create(address)
        second = send(address, "b0")[0]
        delete(address)
    with java_broker(reference, root, {}) as address:
        create(address)
        first = send(address, "c0", "c1")[0]
        assert first < second, "it does not know of the deletion, and may have built the old queue again from the log"
    for rebuild in (False, True):
        with MessageStore.open(root, parts=StoreParts(rebuild=rebuild)) as store:
            assert [(m.queue_offset, m.body) for m in store.read(TOPIC)] == [(first, b"c0"), (first + 1, b"c1")]
    with tailrace(root, kill=False) as address:
        assert send(address, "d0") == [first + 2]
        assert read(address, 3) == ["c0", "c1", "d0"]
        delete(address)
        create(address)
        assert send(address, "e0")[0] > second, "no offset of any life before is used again"
        assert read(address, 1) == ["e0"]
    assert findings(root) == []
