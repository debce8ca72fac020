"""Lite topics of the reference with ours: its client, and directories that are handed over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time

import pytest
from grpc_world import grpc_broker
from java_peer import SIZES, java_broker

from tailrace.formats.commitlog import decode_message
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.mark.long
def test_the_lite_consumer_of_java(reference, tmp_path):
    # The first time this fetches 28 MB, and the time limit below is not meant for that.
    subprocess.run([reference, "lite-setup"], capture_output=True, timeout=900, check=True)
    with grpc_broker(tmp_path, enableLmq=True, enableMultiDispatch=True) as broker:
        broker.create_topic("lite", "LITE")
        for group, more in (("lite-g", {}), ("lite-x", {"+lite.sub.model": "Exclusive"})):
            broker.create_group(group, attributes={"+lite.bind.topic": "lite", **more})
        done = subprocess.run(
            [reference, "lite-clients", broker.grpc_endpoint], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        said = [line for line in done.stdout.splitlines() if line.split(" ")[0] in {"shared", "after", "exclusive"}]
        assert said == [
            "shared a:0/1,a:1/1,a:2/1,a:3/1,b:0/1,b:1/1,b:2/1,b:3/1,early:e0/1",
            "after [a:last/1] of [a, early]", "exclusive [x:1/1] then [x:2/1] left []"]
        assert "Traceback" not in broker.log


PARENT, GROUP = "parent", "lite-group"
LITE = {"enableLmq": "true", "enableMultiDispatch": "true"}


async def ask(address, code, ext, body=b""):
    client = RemotingClient()
    try:
        return await client.invoke(address, code, ext, body, timeout_ms=20_000)
    finally:
        await client.close()


def call(address, code, ext=None, body=None):
    answer = asyncio.run(ask(address, code, ext or {}, json.dumps(body).encode() if body is not None else b""))
    assert answer.code == 0, (code, answer.remark)
    return answer


def set_up(address):
    call(address, 17, {
        "topic": PARENT, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "order": "false", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "attributes": "+message.type=LITE,+lite.topic.expiration=600"})
    call(address, 200, body={"groupName": GROUP, "attributes": {"+lite.bind.topic": PARENT}})


def send(address, name, body):
    properties = {"UNIQ_KEY": f"KEY-{name}-{body}", "__LITE_TOPIC": name}
    answer = asyncio.run(ask(address, 310, {
        "a": "p", "b": PARENT, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)), "h": "0",
        "i": "".join(f"{k}\x01{v}\x02" for k, v in properties.items()), "j": "0", "k": "false", "m": "false"},
        body.encode()))
    assert answer.code == 0, answer.remark


def subscribe(address, *names):
    call(address, 200_071, body={"subscriptionSet": [{
        "action": "COMPLETE_ADD", "clientId": "c", "group": GROUP, "topic": PARENT, "liteTopicSet": names,
        "version": 1}]})


def pop(address, most=32):
    """Bodies and acknowledgements of what a client gets within a second."""
    until, found = time.monotonic() + 20, []
    while not found and time.monotonic() < until:
        answer = asyncio.run(ask(address, 200_070, {
            "clientId": "c", "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": str(most), "invisibleTime": "60000",
            "pollTime": "1000", "bornTime": str(int(time.time() * 1000))}))
        found = records(answer)
    return found


def records(answer):
    found, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        message = decode_message(answer.body[at : at + size])
        at += size
        offset = message.properties["INNER_MULTI_QUEUE_OFFSET"]
        made = [answer.ext[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        found.append((message.body.decode(), {
            "consumerGroup": GROUP, "topic": PARENT, "queueId": "0", "offset": offset,
            "extraInfo": " ".join(["0", *made, "0", "broker-a", "0", offset]),
            "liteTopic": message.properties["__LITE_TOPIC"]}))
    return found


def use(address):
    """Three messages of ``a``, of which one is consumed, and one of ``b``."""
    set_up(address)
    subscribe(address, "a", "b")
    send(address, "a", "a0")
    (body, ack), = pop(address)
    assert body == "a0"
    call(address, 200_051, ack)
    for name, body in (("a", "a1"), ("a", "a2"), ("b", "b0")):
        send(address, name, body)
    assert [body for body, _ in pop(address, 1)] in (["a1"], ["b0"])


@contextlib.contextmanager
def ours(root):
    broker = TailraceBroker(root, settings={**SIZES, **LITE, "brokerName": "broker-a"})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.mark.long
def test_a_directory_with_lite_topics_goes_there_and_back(reference, tmp_path):
    root = tmp_path / "store"
    with java_broker(reference, root, LITE) as java:
        use(java)
    with ours(root) as broker:
        subscribe(broker.broker, "a", "b")
        got = sorted(pop(broker.broker))
        assert [body for body, _ in got] == ["a1", "a2", "b0"]
        for _, ack in got:
            call(broker.broker, 200_051, ack)
        send(broker.broker, "a", "a3")
        send(broker.broker, "c", "c0")
    with java_broker(reference, root, LITE) as java:
        subscribe(java, "a", "b", "c")
        got = pop(java)
        while len(got) < 2:
            got += pop(java)
        assert sorted(body for body, _ in got) == ["a3", "c0"]
