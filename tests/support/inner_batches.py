"""Requests with inner batches to a broker, ours or a Java broker."""

from __future__ import annotations

import asyncio

from patience import until

from tailrace.client import MessageQueue, PullConsumer
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.kernels.properties import encode_properties
from tailrace.remoting.client import RemotingClient

TOPIC = "Batches"


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    """The answer of a broker to one request."""

    async def once() -> RemotingCommand:
        client = RemotingClient()
        try:
            return await client.invoke(address, code, ext, body)
        finally:
            await client.close()

    return asyncio.run(once())


def send_batch(address: str, first: int, count: int, *, topic: str = TOPIC, **properties: str) -> RemotingCommand:
    """A batch as a Java client sends it, with a unique key for the whole."""
    body = encode_batch([
        (0, b"%d" % number, encode_properties({"UNIQ_KEY": f"m{number}"})) for number in range(first, first + count)])
    names = encode_properties({"UNIQ_KEY": f"batch{first}", "WAIT": "true", **properties}).decode()
    return ask(address, RequestCode.SEND_BATCH_MESSAGE, {
        "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": names, "j": "0",
        "k": "false", "l": "16", "m": "true"}, body)


def read_when(address: str, count: int) -> list[int]:
    """The bodies of queue 0, when it has ``count`` or more: a send is answered before its dispatch."""
    with PullConsumer(broker=address, group="g") as consumer:
        until(lambda: consumer.max_offset(MessageQueue(TOPIC, address, 0)) >= count)
    return read_all(address)


def read_all(address: str, topic: str = TOPIC) -> list[int]:
    """The bodies of queue 0; queue offsets are checked."""
    queue, at, found = MessageQueue(topic, address, 0), 0, []
    with PullConsumer(broker=address, group="g") as consumer:
        end = consumer.max_offset(queue)
        while at < end:
            result = consumer.pull(queue, at, max_count=4)
            assert [one.queue_offset for one in result.messages] == list(range(at, result.next_begin_offset))
            found += [int(one.body) for one in result.messages]
            at = result.next_begin_offset
        middle = end // 2  # in a batch: the messages before the offset are not shown again
        assert consumer.pull(queue, middle).messages[0].queue_offset == middle
    return found
