"""Static topics on one and on two brokers: a logical queue keeps its number and its offsets when it moves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import datetime

import pytest
import served_broker
from static_topics import TOPIC, bodies, item, mapping, pull_ext, send_ext, set_mapping

from tailrace.broker.controller import BrokerController
from tailrace.broker.static_topics.cleaning import MappingCleaner
from tailrace.config import BrokerConfig
from tailrace.formats import fastjson
from tailrace.formats.remoting import ResponseCode
from tailrace.node.message_store import MessageStore

pytestmark = pytest.mark.integration

SET, CONFIG, GROUP, DELETE, STATS = 513, 351, 352, 215, 208
QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST = 14, 15, 29, 30, 31, 32
NOT_LEADER, MOVED, RETRY, NOT_FOUND = (
    ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_NOT_FOUND)


class Node:
    """A broker and a connection to it."""

    def __init__(self, controller, store, client):
        self.controller, self.store, self.client = controller, store, client

    async def ask(self, code, ext, body=b"", expected=0):
        answer = await self.client.ask(code, ext, body)
        assert answer.code == expected, (code, ext, answer)
        return answer

    async def set(self, detail, queues, expected=0, **more):
        return await self.ask(SET, *set_mapping(detail, queues, **more), expected=expected)

    async def send(self, queue_id, body, expected=0):
        """Send a message; return the queue and the offset that the answer names."""
        answer = await self.ask(310, send_ext(queue_id), body.encode(), expected)
        return None if expected else (int(answer.ext["queueId"]), int(answer.ext["queueOffset"]))

    async def pull(self, queue_id, offset, expected=0, **more):
        return await self.ask(11, pull_ext(queue_id, offset, **more), expected=expected)

    async def offset(self, code, queue_id, expected=0, **more):
        answer = await self.ask(code, {
            "topic": TOPIC, "queueId": str(queue_id), "consumerGroup": "g", **more}, expected=expected)
        return int(answer.ext["offset"]) if "offset" in answer.ext else None


@contextlib.asynccontextmanager
async def cluster(path, *names):
    """Brokers by name; the first one has the name server."""
    async with contextlib.AsyncExitStack() as stack:
        nodes, namesrv = [], ""
        for name in names:
            store = stack.enter_context(MessageStore.open(path / name, broker_config=BrokerConfig(broker_name=name)))
            controller = BrokerController(store, BrokerConfig(broker_name=name, namesrv_addr=namesrv))
            await controller.start(("127.0.0.1", 0), None if namesrv else ("127.0.0.1", 0))
            stack.push_async_callback(controller.stop)
            client = await served_broker.Client.connect(controller.broker_address)
            stack.callback(client.writer.close)
            nodes.append(Node(controller, store, client))
            await nodes[-1].ask(GROUP, {"group": "g"})  # which creates it
            namesrv = namesrv or controller.namesrv_address
        server = await served_broker.Client.connect(namesrv)
        stack.callback(server.writer.close)
        yield *nodes, server


async def route_of(server, wanted=lambda route: True):
    """The route of the topic as soon as it is as wanted."""
    async with asyncio.timeout(20):
        while True:
            answer = await server.ask(105, {"topic": TOPIC})
            if answer.code == 0 and wanted(route := json.loads(answer.body)):
                return route
            await asyncio.sleep(0.02)


def test_one_broker_serves_logical_queues(tmp_path):
    """Logical queue 0 is physical queue 1, and the other way around."""

    async def test():
        async with cluster(tmp_path, "a") as (a, server):
            swapped = {0: [item(0, "a", 1)], 1: [item(0, "a", 0)]}
            await a.set(mapping("a", swapped), 2)
            assert (await route_of(server))["topicQueueMappingByBroker"]["a"]["currIdMap"] == {"0": 1, "1": 0}
            assert [await a.send(0, f"m{n}") for n in range(3)] == [(0, 0), (0, 1), (0, 2)]
            a.store.wait_dispatched()
            assert a.store.queue_of(TOPIC, 1).max == 3
            queue, _ = await a.send(-1, "any")
            assert queue in {0, 1}
            assert await a.send(2, "x", NOT_LEADER) is None
            a.store.wait_dispatched()

            pulled = await a.pull(0, 1)
            assert bodies(pulled)[:2] == [(1, "m1"), (2, "m2")]
            assert int(pulled.ext["maxOffset"]) >= 3
            await a.pull(5, 0, NOT_LEADER)
            assert (await a.offset(MAX, 0), await a.offset(MIN, 0)) == (4 - queue, 0)
            assert await a.offset(MAX, 1, lo="false") == 4 - queue, "physical"
            assert await a.offset(SEARCH, 0, timestamp="0") == 0
            assert int((await a.ask(EARLIEST, {"topic": TOPIC, "queueId": "0"})).ext["timestamp"]) > 0

            assert await a.offset(UPDATE, 0, commitOffset="2") is None
            assert await a.offset(QUERY, 0) == 2
            assert a.controller.broker.offsets.query("g", TOPIC, 1) == 2
            assert await a.offset(QUERY, 9, NOT_LEADER) is None

            detail = json.loads((await a.ask(CONFIG, {"topic": TOPIC, "lo": "true"})).body)["mappingDetail"]
            assert detail["hostedQueues"]["0"][0]["queueId"] == 1
            assert "mappingDetail" not in json.loads((await a.ask(CONFIG, {"topic": TOPIC})).body)
            stats = json.loads(fixed((await a.ask(STATS, {"consumerGroup": "g", "topic": TOPIC})).body))
            assert sorted(stats.values()) == [-1, 2], "no offset in the other part is told as -1"
            await a.ask(DELETE, {"topic": TOPIC})
            assert a.store.topics.mappings.table == {}
        with MessageStore.open(tmp_path / "a", broker_config=BrokerConfig(broker_name="a")) as store:
            assert store.topics.mappings.table == {}

    asyncio.run(test())


def fixed(body):
    """Consumer offsets by queue, of a table whose keys are objects."""
    table = fastjson.loads(body)["offsetTable"]
    return json.dumps({key: value["consumerOffset"] for key, value in table.items()})


def test_a_logical_queue_moves_to_another_broker_and_back_and_keeps_its_offsets(tmp_path):
    """The steps of mqadmin remappingStaticTopic; consumers read the old parts through the new leader."""

    async def test():
        async with cluster(tmp_path, "a", "b") as (a, b, server):
            parts = [item(0, "a", 0)]
            await a.set(mapping("a", {0: parts}, epoch=1), 1)
            await b.set(mapping("b", {}, epoch=1, total=1), 0)
            for n in range(5):
                assert await a.send(0, f"a{n}") == (0, n)
            assert await a.offset(UPDATE, 0, commitOffset="3") is None

            # b may be written to before the offsets of its part are known; then a is not written to any more.
            undecided = [*parts, item(1, "b", 0, -1)]
            await b.set(mapping("b", {0: undecided}, epoch=2), 1)
            await a.set(mapping("a", {0: undecided}, epoch=2), 1)
            await a.send(0, "late", NOT_LEADER)
            assert await b.send(0, "b0") == (0, -1)
            parts = [parts[0], item(1, "b", 0, 10_000)]
            await b.set(mapping("b", {0: parts}, epoch=2), 1)
            assert await b.send(0, "b1") == (0, 10_001)
            await route_of(server, lambda r: r["topicQueueMappingByBroker"].get("b", {}).get("currIdMap"))
            a.store.wait_dispatched()
            b.store.wait_dispatched()

            await a.pull(0, 0, NOT_LEADER)
            first = await b.pull(0, 1, most=3)
            assert bodies(first) == [(1, "a1"), (2, "a2"), (3, "a3")], "read from a, through b"
            assert (first.ext["nextBeginOffset"], first.ext["maxOffset"]) == ("4", "10000")
            step = await b.pull(0, 5, RETRY, wait_ms=20_000)
            assert step.ext["nextBeginOffset"] == "10000", "what a has ends there: the pull does not wait"
            rest = await b.pull(0, 10_000)
            assert (bodies(rest), rest.ext["nextBeginOffset"]) == ([(10_000, "b0"), (10_001, "b1")], "10002")
            assert (await b.pull(0, 7_000, RETRY)).ext["nextBeginOffset"] == "10000"
            assert (await b.pull(0, -3, MOVED)).ext["nextBeginOffset"] == "0"

            assert (await b.offset(MIN, 0), await b.offset(MAX, 0)) == (0, 10_002)
            assert await b.offset(SEARCH, 0, timestamp="0") == 0
            assert await b.offset(SEARCH, 0, timestamp=str(1 << 50)) == 10_002
            assert int((await b.ask(EARLIEST, {"topic": TOPIC, "queueId": "0"})).ext["timestamp"]) > 0
            assert await b.offset(QUERY, 0) == 3, "the group has its offset on a"
            assert await b.offset(UPDATE, 0, commitOffset="4") is None
            assert (await b.offset(QUERY, 0), a.controller.broker.offsets.query("g", TOPIC, 0)) == (4, 4)
            assert await b.offset(UPDATE, 0, commitOffset="10001") is None
            assert (await b.offset(QUERY, 0), b.controller.broker.offsets.query("g", TOPIC, 0)) == (10_001, 1)
            assert await b.offset(QUERY, 0, ResponseCode.QUERY_NOT_FOUND, consumerGroup="none") is None

            # Back to a, in a new queue of it. The middle part is read from b.
            parts = [*parts, item(2, "a", 1, 20_000)]
            await a.set(mapping("a", {0: parts}, epoch=3), 2)
            await b.set(mapping("b", {0: parts}, epoch=3), 1)
            assert await a.send(0, "c0") == (0, 20_000)
            a.store.wait_dispatched()
            await b.send(0, "late", NOT_LEADER)
            seen, offset = [], 0
            while offset < 20_001:
                answer = await a.client.ask(11, pull_ext(0, offset))
                assert answer.code in {0, RETRY}, answer
                seen += bodies(answer)
                assert int(answer.ext["nextBeginOffset"]) > offset
                offset = int(answer.ext["nextBeginOffset"])
            assert seen == [*((n, f"a{n}") for n in range(5)), (10_000, "b0"), (10_001, "b1"), (20_000, "c0")]

    asyncio.run(test())


def test_a_pull_waits_at_the_end_of_a_logical_queue_and_is_woken(tmp_path):
    async def test():
        async with cluster(tmp_path, "a") as (a, _):
            await a.set(mapping("a", {0: [item(0, "a", 1)], 3: [item(1, "a", 0, 500)]}), 2)
            assert await a.send(3, "m0") == (3, 500)
            a.store.wait_dispatched()
            other = await served_broker.Client.connect(a.controller.broker_address)
            waiting = asyncio.ensure_future(other.ask(11, pull_ext(3, 501, wait_ms=20_000)))
            async with asyncio.timeout(20):
                while not a.controller.broker.waiting_pulls():
                    await asyncio.sleep(0.01)
            assert await a.send(3, "m1") == (3, 501)
            answer = await asyncio.wait_for(waiting, 20)
            assert bodies(answer) == [(501, "m1")]
            # Messages below the first offset are gone; a commit with a pull also names logical offsets.
            assert (await a.pull(3, 10, MOVED)).ext["nextBeginOffset"] == "500"
            await a.pull(3, 501, commit=501)
            assert (await a.offset(QUERY, 3), a.controller.broker.offsets.query("g", TOPIC, 0)) == (501, 1)
            # A reset names physical offsets and is seen with the next pull.
            a.controller.broker.offsets.assign_reset("g", TOPIC, {0: 0})
            assert (await a.pull(3, 501, MOVED)).ext["nextBeginOffset"] == "500"
            other.writer.close()

    asyncio.run(test())


def test_a_broker_that_is_gone_is_named(tmp_path):
    async def test():
        async with cluster(tmp_path, "a") as (a, _):
            await a.set(mapping("a", {0: [item(0, "gone", 0), item(1, "a", 0, 100)]}), 1)
            for code in (MIN, QUERY, SEARCH, EARLIEST):
                answer = await a.ask(
                    code, {"topic": TOPIC, "queueId": "0", "consumerGroup": "g", "timestamp": "0"}, expected=1)
                assert "broker gone, which has a part of the queue, cannot be asked about topic static" in answer.remark
            assert "it is not in the route of the topic" in (await a.pull(0, 5, 1)).remark
            assert await a.offset(MAX, 0) == 100

    asyncio.run(test())


def cleaner_of(broker):
    return MappingCleaner(
        broker.store, broker.forwarder, broker.config.broker_name, broker.clock, broker.executors.files)


def test_parts_that_are_not_needed_are_cleaned(tmp_path):
    """A part without messages by the leader, a list whose leader is another broker by the broker that has it."""

    async def test():
        async with cluster(tmp_path, "a", "b") as (a, b, server):
            await a.set(mapping("a", {0: [item(0, "a", 0)], 1: [item(0, "a", 1)], 2: [item(0, "a", 2)]}), 3)
            await a.send(0, "kept")
            a.store.wait_dispatched()
            queues = {q: [item(0, "a", q), item(1, "b", q, 100)] for q in (0, 1)}
            old = [item(0, "a", 2), item(1, "c", 0, 50)]
            own = [item(0, "b", 4), item(1, "b", 3, 70)]
            await a.set(mapping("a", {**queues, 2: old}, epoch=2, total=4), 3)
            await b.set(mapping("b", {**queues, 2: [*old, item(2, "b", 2, 100)], 3: own}, epoch=2, total=4), 5)
            await route_of(server, lambda r: len(r["topicQueueMappingByBroker"].get("b", {}).get("currIdMap", ())) == 4)
            for node in (a, b):
                await cleaner_of(node.controller.broker).run_pass()
            table = b.store.topics.mappings.table[TOPIC].hosted_queues
            assert [[part.bname for part in table[q]] for q in range(4)] == [
                ["a", "b"], ["b"], ["c", "b"], ["b"]]
            assert sorted(a.store.topics.mappings.table[TOPIC].hosted_queues) == [0, 1]
            assert await b.offset(MIN, 1) == 100
            assert bodies(await b.pull(0, 0)) == [(0, "kept")]

    asyncio.run(test())


def test_a_pass_of_cleaning_begins_in_its_hour_and_names_what_fails(tmp_path, caplog):
    async def test():
        async with cluster(tmp_path, "a") as (a, _):
            cleaner = cleaner_of(a.controller.broker)
            cleaner.start_pass()
            assert cleaner._task is None, "there is no mapping"
            await a.set(mapping("a", {0: [item(0, "gone", 0), item(1, "a", 0, 100)]}), 1)
            now = datetime.now()  # noqa: DTZ005 - local hours
            other = (now.hour + 12) % 24
            for hours, starts in ((str(other), False), (f"{now.hour};{(now.hour + 1) % 24}", True)):
                a.store.config.take({"delete_when": hours})
                cleaner.start_pass()
                assert (cleaner._task is not None) is starts
            async with asyncio.timeout(20):
                while cleaner._task is not None:
                    await asyncio.sleep(0.01)
            assert "static topic not cleaned topic=static reason=broker gone, which has a part" in caplog.text
            assert len(a.store.topics.mappings.table[TOPIC].hosted_queues[0]) == 2
            await cleaner.stop()

    asyncio.run(test())


@pytest.mark.parametrize(("detail", "said"), [
    (mapping("b", {}), "the mapping is of broker b, this one is a"),
    (mapping("a", {}, topic="other"), "the mapping is of topic other, the request of static"),
    (mapping("a", {0: [item(0, "a", 0, -1), item(1, "a", 1, 5)]}), "non-latest item has negative logic offset"),
    (mapping("a", {0: [item(0, "a", -1)]}), "should not be negative"),
    (mapping("a", {0: [item(1, "a", 0), item(1, "a", 1, 5)]}), "gen does not increase"),
    (mapping("a", {0: [item(0, "a", 0, 9), item(1, "a", 1, 5)]}), "base logic offset does not increase"),
    (mapping("a", {0: [item(0, "a", 0, 0, 9), item(1, "a", 1, 5)]}), "max logic offset does not increase"),
    (mapping("a", {"x": []}), "the key 'x'"), (mapping("a", {0: 5}), "queue 0 has not a list"),
    (mapping("a", {0: [item(0, "a", "many")]}), "queueId is not a whole number"),
    ([], "not an object"),
])
def test_a_wrong_mapping_changes_nothing(tmp_path, detail, said):
    async def test():
        async with cluster(tmp_path, "a") as (a, _):
            answer = await a.client.ask(SET, *set_mapping(detail, 1))
            assert answer.code != 0
            assert said in answer.remark
            assert a.store.topics.select(TOPIC) is None
            assert a.store.topics.mappings.table == {}

    asyncio.run(test())


def test_a_mapping_follows_the_present_one_or_is_refused(tmp_path):
    async def test():
        async with cluster(tmp_path, "a") as (a, _):
            await a.set(mapping("a", {0: [item(0, "a", 0)]}, epoch=5), 1)
            for detail, said in (
                (mapping("a", {0: [item(0, "a", 0)]}, epoch=4), "Can't accept data with small epoch 4 < 5"),
                (mapping("a", {0: [item(0, "a", 0)]}, epoch=6, scope="x"), "unmatched scope x != __global__"),
                (mapping("a", {}, epoch=5), "Cannot accept equal epoch with null data"),
                (mapping("a", {0: [item(0, "a", 0), item(1, "b", 0, 5)]}, epoch=5), "new leader is different"),
                (mapping("a", {0: [item(0, "a", 1)]}, epoch=6), "The item of gen 0 must not change"),
                (mapping("a", {0: []}, epoch=6), "The new item list is null or empty"),
            ):
                answer = await a.set(detail, 3, expected=1)
                assert said in answer.remark
            assert a.store.topics.select(TOPIC).write_queue_nums == 1
            await a.set(mapping("a", {1: [item(0, "a", 1)]}, epoch=6), 2)
            assert sorted(a.store.topics.mappings.table[TOPIC].hosted_queues) == [0, 1]
            await a.set(mapping("a", {0: [item(0, "a", 1)]}, epoch=1), 2, force="true")
            assert a.store.topics.mappings.table[TOPIC].hosted_queues[0][0].queue_id == 1

    asyncio.run(test())
