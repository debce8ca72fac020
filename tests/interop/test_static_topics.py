"""Static topics beside the reference: its mqadmin and clients on our brokers, its brokers beside ours, shared files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time

import pytest
from java_peer import COUNT, SIZES, java_broker, said_by
from static_topics import TOPIC, bodies, item, mapping, pull_ext, send_ext, set_mapping

from tailrace import MessageStore, StoreConfig
from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]

PATIENCE_S = 120
"""A broker that has just started, or whose mapping has just changed, answers as it should within this time."""
RETRY = 20
CONFIG = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})


def mqadmin(reference, namesrv, command, *arguments):
    done = subprocess.run(
        [reference, "admin", command, "-n", namesrv, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert "Exception" not in said, said
    return said


def test_pull_consumers_of_the_reference_use_a_static_topic(reference, tailrace_session_broker):
    """The same as with an ordinary topic: send, pull, offsets, times, long polling, lite pull, assignment."""
    mqadmin(reference, tailrace_session_broker.namesrv, "updateStaticTopic", "-t", "static-pulled", "-qn", 4,
            "-c", "DefaultCluster")
    said = said_by(reference, "pull-clients", tailrace_session_broker, "static-pulled")
    numbers = [str(n) for n in range(COUNT)]
    assert said["queues"] == ["4"]
    assert said["all"] == [f"[{', '.join(numbers)}]"]
    assert (said["max"], said["min"], said["committed"]) == ([str(COUNT)], ["0"], ["true"])
    assert (said["woken"], said["waits"], said["done"]) == (["FOUND [-1]"], ["true"], ["true"])


@pytest.mark.long
def test_push_consumers_of_the_reference_use_a_static_topic(reference, tailrace_session_broker):
    """Shared queues, a member that leaves, order with locks."""
    mqadmin(reference, tailrace_session_broker.namesrv, "updateStaticTopic", "-t", "static-pushed", "-qn", 4,
            "-c", "DefaultCluster")
    names = ("shared", "all", "apart", "takes-over", "alone", "ordered-all", "ordered", "done")
    said = said_by(reference, "push-clients", tailrace_session_broker, "static-pushed")
    assert said == {name: ["true"] for name in names}


class Peer:
    """A broker of either kind."""

    def __init__(self, client, address):
        self.client, self.address = client, address

    async def ask(self, code, ext, body=b"", wanted=(0,)):
        """Ask until the answer has a wanted code."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await self.client.invoke(self.address, code, ext, body, timeout_ms=20_000)
                if answer.code in wanted:
                    return answer
                said = answer.remark
            except RemotingError as error:
                said = str(error)
            assert time.monotonic() < until, said
            await asyncio.sleep(0.2)

    async def send(self, queue_id, body):
        answer = await self.ask(310, send_ext(queue_id), body.encode())
        return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])

    async def all_of(self, queue_id, until, offset=0):
        """Every message of a logical queue, as a consumer gets them that pulls from the offset to another one."""
        seen, give_up = [], time.monotonic() + PATIENCE_S
        while offset < until:
            answer = await self.ask(11, pull_ext(queue_id, offset), wanted=(0, 19, RETRY))
            seen += bodies(answer)
            offset = int(answer.ext["nextBeginOffset"])
            assert time.monotonic() < give_up, (offset, seen)
        return seen

    async def offset(self, code, queue_id, **more):
        answer = await self.ask(code, {"topic": TOPIC, "queueId": str(queue_id), "consumerGroup": "g", **more})
        return int(answer.ext["offset"]) if "offset" in answer.ext else None


@contextlib.asynccontextmanager
async def peer_at(address):
    client = RemotingClient()
    try:
        peer = Peer(client, address)
        await peer.ask(352, {"group": "g"})
        yield peer
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def java_beside(reference, root, settings):
    """A Java broker that starts and stops while the event loop, and a broker on it, continue."""
    loop, stack = asyncio.get_running_loop(), contextlib.ExitStack()
    try:
        address = await loop.run_in_executor(None, lambda: stack.enter_context(java_broker(reference, root, settings)))
        async with peer_at(address) as peer:
            yield peer
    finally:
        await loop.run_in_executor(None, stack.close)


@contextlib.asynccontextmanager
async def own_broker(root, name="broker-a"):
    with MessageStore.open(root, config=CONFIG, broker_config=BrokerConfig(broker_name=name)) as store:
        controller = BrokerController(store, BrokerConfig(broker_name=name))
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        try:
            async with peer_at(controller.broker_address) as peer:
                yield peer, controller
        finally:
            await controller.stop()


@pytest.mark.long
def test_a_directory_with_mappings_goes_from_one_broker_to_the_other_and_back(reference, tmp_path):
    root = tmp_path / "store"
    parts = {0: [item(0, "broker-a", 1)], 1: [item(0, "gone", 0, 0, 7), item(3, "broker-a", 0, 500)]}

    async def on_java(address, step):
        async with peer_at(address) as java:
            await step(java)

    async def created(java):
        await java.ask(513, *set_mapping(mapping("broker-a", parts, epoch=5), 2))
        assert [await java.send(0, f"j{n}") for n in range(3)] == [(0, 0), (0, 1), (0, 2)]
        assert await java.send(1, "j500") == (1, 500)
        await java.offset(15, 0, commitOffset="2")

    with java_broker(reference, root) as address:
        asyncio.run(on_java(address, created))
    theirs = fastjson.loads((root / "config/topicQueueMapping.json").read_bytes())

    async def here():
        async with own_broker(root) as (peer, controller):
            table = controller.broker.topics.mappings
            assert table.to_json()["topicQueueMappingInfoMap"] == theirs["topicQueueMappingInfoMap"]
            assert table.data_version.counter == theirs["dataVersion"]["counter"]
            assert await peer.all_of(0, 3) == [(n, f"j{n}") for n in range(3)]
            assert await peer.all_of(1, 501, 500) == [(500, "j500")]
            assert (await peer.offset(14, 0), await peer.offset(30, 1)) == (2, 501)
            assert await peer.send(1, "t501") == (1, 501)
            await peer.ask(513, *set_mapping(
                mapping("broker-a", {**parts, 2: [item(0, "broker-a", 2)]}, epoch=6), 3))
            assert await peer.send(2, "t0") == (2, 0)
            await peer.offset(15, 1, commitOffset="501")

    asyncio.run(here())

    async def again(java):
        config = await java.ask(351, {"topic": TOPIC, "lo": "true"})
        detail = fastjson.loads(config.body)["mappingDetail"]
        assert detail["hostedQueues"] == {
            str(queue): items for queue, items in {**parts, 2: [item(0, "broker-a", 2)]}.items()}
        assert (detail["epoch"], detail["totalQueues"]) == (6, 3)
        assert await java.all_of(0, 3) == [(n, f"j{n}") for n in range(3)]
        assert await java.all_of(1, 502, 500) == [(500, "j500"), (501, "t501")]
        assert await java.all_of(2, 1) == [(0, "t0")]
        assert await java.offset(14, 1) == 501
        assert await java.send(1, "j502") == (1, 502)

    with java_broker(reference, root) as address:
        asyncio.run(on_java(address, again))


@pytest.mark.long
def test_a_queue_moves_between_a_broker_of_the_reference_and_ours(reference, tmp_path):
    """mqadmin moves it; either broker reads the parts that the other one has."""

    (tmp_path / "java").mkdir()

    async def test():
        async with own_broker(tmp_path / "own") as (own, controller):
            namesrv = controller.namesrv_address
            settings = {"brokerName": "broker-b", "namesrvAddr": namesrv}
            loop = asyncio.get_running_loop()

            def admin(command, *arguments):
                return loop.run_in_executor(None, mqadmin, reference, namesrv, command, "-t", TOPIC, *arguments)

            async with java_beside(reference, tmp_path / "java" / "store", settings) as java:
                await registered(own.client, namesrv, "broker-b")
                await admin("updateStaticTopic", "-qn", 1, "-b", "broker-a")
                assert [await own.send(0, f"a{n}") for n in range(4)] == [(0, n) for n in range(4)]
                await own.offset(15, 0, commitOffset="3")

                await admin("remappingStaticTopic", "-b", "broker-b")
                queue, second = await java.send(0, "b0")
                assert (queue, second > 4) == (0, True)
                expected = [*((n, f"a{n}") for n in range(4)), (second, "b0")]
                assert await java.all_of(0, second + 1) == expected, "theirs reads from ours"
                assert (await java.offset(14, 0), await java.offset(31, 0)) == (3, 0)
                await java.offset(15, 0, commitOffset="4")
                assert controller.broker.offsets.query("g", TOPIC, 0) == 4, "theirs commits at ours"

                await admin("remappingStaticTopic", "-b", "broker-a")
                queue, third = await own.send(0, "c0")
                assert (queue, third > second + 1) == (0, True)
                expected.append((third, "c0"))
                assert await own.all_of(0, third + 1) == expected, "ours reads from theirs"
                assert (await own.offset(31, 0), await own.offset(30, 0)) == (0, third + 1)
                assert await own.offset(29, 0, timestamp="0") == 0
                await own.offset(15, 0, commitOffset=str(second + 1))
                assert await java.offset(14, 0, lo="false") == 1, "ours commits at theirs"

    asyncio.run(test())


async def registered(client, namesrv, name):
    until = time.monotonic() + PATIENCE_S
    while True:
        answer = await client.invoke(namesrv, 106, {})
        if name in json.loads(answer.body)["brokerAddrTable"]:
            return
        assert time.monotonic() < until
        await asyncio.sleep(0.2)
