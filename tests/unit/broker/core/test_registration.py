"""A broker registers at the name servers of other processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from tailrace.broker import BrokerController
from tailrace.broker.core import registration
from tailrace.broker.core.listeners import is_own_address
from tailrace.broker.core.registration import (
    Registration,
    name_server_addresses,
    registered_elsewhere,
)
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.errors import ConfigError, StoreError
from tailrace.formats import fastjson
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting.client import RemotingClient

TOPIC_NOT_EXIST = 17
PATIENCE_S = 20


@contextlib.asynccontextmanager
async def running(path, kit, config=None, namesrv=("127.0.0.1", 0)):
    store = kit.open_store(path, broker_config=config, clock=SystemClock())
    controller = BrokerController(store, config or BrokerConfig())
    await controller.start(("127.0.0.1", 0), namesrv)
    try:
        yield controller, store
    finally:
        await controller.stop()


async def route(client, namesrv, topic, wanted):
    """The answer to a request for a route, once its code is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await client.invoke(namesrv, 105, {"topic": topic})
            if (answer.code == 0) == wanted:
                return json.loads(answer.body) if wanted else answer.code
            await asyncio.sleep(0.02)


@pytest.fixture
def client():
    return RemotingClient()


async def scenario(tmp_path, kit, client):
    async with running(tmp_path / "near", kit) as (near, _):
        config = BrokerConfig(broker_name="far", namesrv_addr=near.namesrv_address)
        async with running(tmp_path / "far", kit, config, None) as (far, store):
            assert far.namesrv_address == near.namesrv_address
            found = await route(client, near.namesrv_address, "far", True)
            assert found["brokerDatas"][0]["brokerAddrs"] == {"0": far.broker_address}
            async with asyncio.timeout(PATIENCE_S):  # the answer comes after the entry in the table
                while far.broker.name_servers.states() != {near.namesrv_address: True}:
                    await asyncio.sleep(0.01)
            store.topics.update(TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=2))
            found = await route(client, near.namesrv_address, "orders", True)
            assert found["queueDatas"] == [{
                "brokerName": "far", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0,
                "writeQueueNums": 2}]
        assert await route(client, near.namesrv_address, "orders", False) == TOPIC_NOT_EXIST
    await client.close()


def test_a_second_master_of_a_name_does_not_start_while_the_first_one_answers(tmp_path, kit, client):
    async def main():
        async with running(tmp_path / "near", kit) as (near, _):
            config = BrokerConfig(broker_name="far", namesrv_addr=near.namesrv_address)
            async with running(tmp_path / "far", kit, config, None) as (far, _):
                await route(client, near.namesrv_address, "far", True)
                with pytest.raises(StoreError, match=f"broker far with brokerId=0 is {far.broker_address} at name"):
                    async with running(tmp_path / "second", kit, config, None):
                        pass
            async with running(tmp_path / "third", kit, config, None) as (third, _):
                assert third.broker_address != far.broker_address
        await client.close()

    asyncio.run(main())


def test_a_broker_is_known_elsewhere_until_it_stops(tmp_path, kit, client):
    asyncio.run(scenario(tmp_path, kit, client))


async def unreachable(tmp_path, kit, client, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    config = BrokerConfig(broker_name="far", namesrv_addr=f"127.0.0.1:{port}")
    async with running(tmp_path / "far", kit, config, None) as (far, store):
        async with asyncio.timeout(PATIENCE_S):
            while "cannot register at a name server" not in caplog.text:
                await asyncio.sleep(0.02)
        assert far.broker.name_servers.states() == {f"127.0.0.1:{port}": False}
        store.topics.update(TopicConfig(topic_name="first"))
        async with running(tmp_path / "near", kit, None, ("127.0.0.1", port)) as (near, _):
            store.topics.update(TopicConfig(topic_name="second"))
            await route(client, near.namesrv_address, "first", True)
            await route(client, near.namesrv_address, "second", True)
            await client.close()
    assert caplog.text.count("cannot register at a name server") == 1


def test_a_name_server_that_comes_later_is_found_and_said_once(tmp_path, kit, client, caplog):
    asyncio.run(unreachable(tmp_path, kit, client, caplog))


def test_a_name_server_that_comes_later_is_found_soon(tmp_path, kit, client, monkeypatch):
    async def main():
        asked, register = [], Registration._register

        async def noted(self, address, body):
            asked.append(address)
            await register(self, address, body)

        monkeypatch.setattr(registration, "AGAIN_S", 0.3)
        monkeypatch.setattr(Registration, "_register", noted)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        async with running(tmp_path / "first", kit) as (first, _):
            config = BrokerConfig(broker_name="far", namesrv_addr=f"{first.namesrv_address};127.0.0.1:{port}")
            async with running(tmp_path / "far", kit, config, None) as (far, _):
                await route(client, first.namesrv_address, "far", True)
                await asyncio.sleep(1)
                async with running(tmp_path / "late", kit, None, ("127.0.0.1", port)) as (late, _):
                    found = await route(client, late.namesrv_address, "far", True)
                    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": far.broker_address}
                assert asked.count(first.namesrv_address) == 1  # it has accepted the registration
        await client.close()

    asyncio.run(main())


def test_many_topics_are_encoded_in_parts_between_which_the_event_loop_works(broker, monkeypatch):
    broker.topics.update_all([TopicConfig(topic_name=f"t{number}") for number in range(20)])
    parts, dumps = [], fastjson.orjson.dumps
    monkeypatch.setattr(fastjson, "_PART", 50)
    monkeypatch.setattr(fastjson.orjson, "dumps", lambda *some, **more: parts.append(dumps(*some, **more)) or parts[-1])
    body = Registration(
        broker.loop, broker.config, broker.topics, broker.addresses, broker.outgoing, broker.executors.background,
        [])._body()
    assert len(parts) > 5
    assert max(map(len, parts)) < len(body) / 2
    topics = json.loads(body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert topics.keys() >= {f"t{number}" for number in range(20)}


def test_addresses_are_read_and_wrong_ones_all_named():
    assert name_server_addresses(" a:1; b:2;;a:1") == [("a", 1), ("b", 2)]
    assert name_server_addresses("") == []
    with pytest.raises(ConfigError) as caught:
        name_server_addresses("a;b:x;c:0;:9;d:1")
    assert caught.value.problems == tuple(
        f"namesrvAddr={text} is not HOST:PORT" for text in ("a", "b:x", "c:0", ":9"))


def test_the_name_server_of_this_process_is_not_elsewhere():
    assert registered_elsewhere("localhost:9876;127.0.0.1:9877;192.0.2.1:9876", "127.0.0.1:9876") == [
        "127.0.0.1:9877", "192.0.2.1:9876"]
    assert registered_elsewhere("localhost:9876;[::2]:1", "") == ["localhost:9876", "[::2]:1"]


def test_an_address_of_this_machine():
    assert is_own_address("127.0.0.1")
    assert is_own_address("localhost")
    assert not is_own_address("192.0.2.77")  # for documents, never a machine's
    assert not is_own_address("no such host")
    assert not is_own_address("a." * 200)
