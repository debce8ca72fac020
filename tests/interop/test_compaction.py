"""Directories with compacted topics go from the reference to us and back."""

from __future__ import annotations

import asyncio
import time

import pytest
from java_peer import SIZES, java_broker

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.errors import RemotingError
from tailrace.formats.commitlog import decode_message
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop]
CREATE_TOPIC, PULL = 17, 11
SMALL = {
    "compactionMappedFileSize": 9200, "compactionCqMappedFileSize": 46 * 30, "compactionScheduleInternal": 1,
    "flushIntervalConsumeQueue": 100, "flushConsumeQueueLeastPages": 0}
CONFIG = StoreConfig.from_properties({name: str(value) for name, value in {
    **SIZES, **SMALL, "maxMessageSize": 4000}.items()})
KEYS = 7
START_S = 90


def wanted(found):
    return {key: body for _, key, body in found}


def asked(address, ask):
    """What ``ask`` returns, with a client; asked again until the broker takes requests."""
    async def run():
        client = RemotingClient()
        try:
            return await ask(client)
        finally:
            await client.close()

    until = time.monotonic() + START_S
    while True:
        try:
            return asyncio.run(run())
        except (RemotingError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.3)


def create(address):
    async def ask(client):
        answer = await client.invoke(address, CREATE_TOPIC, {
            "topic": "C", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "attributes": "+cleanup.policy=COMPACTION"}, b"", timeout_ms=20_000)
        if answer.code:
            raise RemotingError(answer.remark)
    asked(address, ask)


def java_sees(address):
    """(queue offset, key, body) of all that a pull from 0 shows."""
    async def ask(client):
        found, at = [], 0
        while True:
            answer = await client.invoke(address, PULL, {
                "consumerGroup": "G", "topic": "C", "queueId": "0", "queueOffset": str(at), "maxMsgNums": "32",
                "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                "subVersion": "0", "expressionType": "TAG"}, b"", timeout_ms=20_000)
            body = answer.body
            while body:
                size = int.from_bytes(body[:4], "big")
                one = decode_message(body[:size])
                found.append((one.queue_offset, one.keys[0], one.body))
                body = body[size:]
            if int(answer.ext["nextBeginOffset"]) <= at:
                return found
            at = int(answer.ext["nextBeginOffset"])
    return asked(address, ask)


def send(address, first, count):
    with Producer(broker=address) as producer:
        for number in range(first, first + count):
            producer.send(Message(topic="C", body=b"%d" % number, keys=[f"k{number % KEYS}"]))


def until_compacted(address):
    until = time.monotonic() + 60
    while True:
        found = java_sees(address)
        if found and found[0][0] > 0:
            time.sleep(1.5)
            return java_sees(address)
        assert time.monotonic() < until, found[:3]
        time.sleep(0.3)


def we_see(store):
    store.wait_dispatched()
    return [(m.queue_offset, m.keys[0], m.body) for m in store.read("C", 0)]


def put_ours(store, first, count):
    for number in range(first, first + count):
        store.put(Message(topic="C", body=b"%d" % number, keys=[f"k{number % KEYS}"]), queue_id=0)


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_topic_goes_to_us_and_back(reference, tmp_path, kill):
    path = tmp_path / "s"
    with java_broker(reference, path, SMALL, kill=kill) as address:
        create(address)
        asked(address, lambda _: asyncio.to_thread(send, address, 0, 150))
        compacted = until_compacted(address)
        assert len(compacted) < 100
        send(address, 150, 10)
    expected = {f"k{n % KEYS}": b"%d" % n for n in range(160)}
    store = MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False))
    found = we_see(store)
    assert wanted(found) == expected
    assert len(found) < 100, "all messages are shown, not the compacted ones"
    put_ours(store, 160, 150)
    expected = {f"k{n % KEYS}": b"%d" % n for n in range(310)}
    store.wait_dispatched()
    store.inner.flush()
    store.inner.compaction.step()
    put_ours(store, 310, 5)
    expected |= {f"k{n % KEYS}": b"%d" % n for n in range(310, 315)}
    seen = we_see(store)
    assert len(seen) < 100
    if kill:  # as after a kill: what is put last is not copied, the abort file stays
        store.inner.release()
        store._lock.release()
    else:
        assert store.close()
    slow = {**SMALL, "compactionScheduleInternal": 600_000}
    with java_broker(reference, path, slow) as address:
        again = java_sees(address)
        assert again == seen
        send(address, 315, 3)
        assert java_sees(address)[-1][0] == 317
