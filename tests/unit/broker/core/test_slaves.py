"""The port for slaves of a whole broker: who may connect, and what name servers and requests say about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct

import pytest
from broker_kit import wired

from tailrace import MessageStore, StoreConfig
from tailrace.broker import wiring
from tailrace.broker.controller import BrokerController
from tailrace.broker.messages.end_transaction import TransactionEnds
from tailrace.broker.pop.requests import PopRequests
from tailrace.config import BrokerConfig, BrokerRole
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats.requests.message_headers import (
    EndTransactionRequestHeader,
    PopMessageRequestHeader,
)
from tailrace.formats.requests.name_server_headers import RegisterBrokerRequestHeader
from tailrace.ha.members import allowed_hosts, members_in
from tailrace.remoting.client import RemotingClient
from tailrace.requests.caller import RemotingCaller

SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 10_000, "max_hash_slot_num": 16,
         "max_index_num": 64, "timer_wheel_enable": False}
MASTER = {"broker_role": BrokerRole.ASYNC_MASTER}


@pytest.fixture
def broker_of_kit(store, loop, kit):
    return kit.make_broker(store, loop)


@contextlib.asynccontextmanager
async def broker(path, broker_config=None, **settings):
    config = broker_config or BrokerConfig()
    store = MessageStore.open(path, config=StoreConfig(**SIZES, **settings), broker_config=config)
    controller = BrokerController(store, config)
    client = RemotingClient()
    try:
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        controller.client = client
        yield controller
    finally:
        await client.close()
        await controller.stop()
        await asyncio.get_running_loop().run_in_executor(None, store.close)


async def invoke(controller, code, address=None, body=b"", **ext):
    return await controller.client.invoke(address or controller.broker_address, code, ext, body)


async def register_slave(controller, address="127.0.0.1:1", number=1):
    header = RegisterBrokerRequestHeader(
        "broker-a", address, "DefaultCluster", "127.0.0.1:2", number, enable_acting_master=False)
    body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1}, "topicConfigTable": {}}}).encode()
    return await controller.client.invoke(controller.namesrv_address, 103, header.to_ext(), body)


async def first_bytes(address, report=0):
    """What a slave gets after its first report; None if it is not let in."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(struct.pack(">q", report))
        async with asyncio.timeout(5):
            return await reader.read(12) or None
    except ConnectionError:
        return None
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_a_broker_without_a_role_has_no_port_for_slaves(tmp_path):
    async def main():
        async with broker(tmp_path) as one:
            assert one.broker.addresses.ha == ""
            answer = await invoke(one, 906)
            assert answer.code == 1
            assert "haListenPort" in answer.remark

    asyncio.run(main())


def test_members_of_the_group_may_connect_and_others_may_not(tmp_path):
    async def main():
        async with broker(tmp_path, **MASTER) as one:
            assert await first_bytes(one.broker.addresses.ha) is None
            answer = await register_slave(one)
            assert answer.code == 0
            assert answer.ext["haServerAddr"] == one.broker.addresses.ha
            assert answer.ext["masterAddr"] == one.broker_address
            await asyncio.sleep(1.1)  # a name server is asked for an unknown host once a second
            one.broker.store.topics.ensure_system_topics()
            from tailrace.model import MessageExtBrokerInner
            one.broker.store.put_inner(MessageExtBrokerInner("t", 0, b"x"))
            assert await first_bytes(one.broker.addresses.ha) is not None
            assert one.broker.replicas.closed["host is not allowed"] == 1
            group = await invoke(one, 901, one.namesrv_address, clusterName="DefaultCluster", brokerName="broker-a")
            assert json.loads(group.body)["brokerMemberGroup"]["brokerAddrs"] == {
                "0": one.broker_address, "1": "127.0.0.1:1"}

    asyncio.run(main())


@pytest.mark.parametrize("answer", [
    b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:1",1:"127.0.0.1:2"},"brokerName":"b","cluster":"c"}}',
    b'{"brokerMemberGroup":{"brokerAddrs":{"0":"127.0.0.1:1","1":"127.0.0.1:2"},"brokerName":"b","cluster":"c"}}',
], ids=["RocketMQ", "Tailrace"])
def test_the_members_of_a_group_are_known_from_name_servers_of_both_kinds(answer):
    assert members_in(answer) == {0: "127.0.0.1:1", 1: "127.0.0.1:2"}


@pytest.mark.parametrize("answer", [b"", b"[", b"[1]", b'{"brokerMemberGroup":{"brokerAddrs":[1]}}', b"{0:", b"\xff"])
def test_an_answer_without_a_table_of_members_is_refused(answer):
    with pytest.raises(ValueError, match=r"."):
        members_in(answer)


def test_a_registration_never_replaces_the_broker_of_the_process(tmp_path):
    async def main():
        async with broker(tmp_path, **MASTER) as one:
            assert (await register_slave(one, number=0)).code == 1
            assert (await register_slave(one, address=one.broker_address)).code == 1
            cluster = json.loads((await invoke(one, 106, one.namesrv_address)).body)
            assert cluster["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": one.broker_address}

    asyncio.run(main())


def test_allowed_hosts_may_connect_and_906_and_907_are_answered(tmp_path):
    async def main():
        async with broker(tmp_path, ha_allowed_hosts="10.0.0.0/8; 127.0.0.1", **MASTER) as one:
            from tailrace.model import MessageExtBrokerInner
            until = one.broker.store.put_inner(MessageExtBrokerInner("t", 0, b"x")).until
            host, _, port = one.broker.addresses.ha.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(struct.pack(">q", 0))
            await reader.readexactly(12 + until)
            writer.write(struct.pack(">q", until))
            await asyncio.sleep(0.1)
            status = json.loads((await invoke(one, 907)).body)
            assert status["inSyncSlaveNums"] == 1
            assert status["haConnectionInfo"][0]["slaveAckOffset"] == until
            writer.close()
            answer = await invoke(one, 906)
            assert answer.ext == {
                "masterHaAddress": one.broker.addresses.ha, "masterFlushOffset": "0",
                "masterAddress": one.broker_address}
            refused = await invoke(one, 906, masterHaAddress="127.0.0.1:5")
            assert refused.code == 1
            assert "is a master" in refused.remark

    asyncio.run(main())


def test_a_host_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"haAllowedHosts: .*'10\.0\.0\.0/99'"):
        allowed_hosts("10.0.0.1;10.0.0.0/99")


def next_port_taken():
    """A free port that the system has chosen, and a socket that listens on the port after it."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as chosen, contextlib.suppress(OSError):
            port = chosen.getsockname()[1]
            return port, socket.create_server(("127.0.0.1", port + 1))
    raise AssertionError("the port after each chosen one is in use")


def test_the_port_is_the_next_one_and_a_taken_one_is_named(tmp_path):
    async def main():
        config = BrokerConfig()
        store = MessageStore.open(tmp_path, config=StoreConfig(**SIZES, **MASTER), broker_config=config)
        port, taken = next_port_taken()
        controller = BrokerController(store, config)
        try:
            with pytest.raises(OSError, match=f"127.0.0.1:{port + 1} for slaves .brokerIP2 and haListenPort"):
                await controller.start(("127.0.0.1", port), None)
        finally:
            taken.close()
            await controller.stop()
            await asyncio.get_running_loop().run_in_executor(None, store.close)

    asyncio.run(main())


def test_a_slave_refuses_pops_and_ends_of_transactions_whatever_the_protocol(broker_of_kit, kit, channel):
    """A call of gRPC reaches the services, and not the processors that a slave replaces."""
    broker_of_kit.slave = object()
    caller = RemotingCaller(channel, kit.request(200_050, {}))
    broker_of_kit.pop_requests = wired(PopRequests, broker_of_kit)
    pops, ends = wiring.pop_consumption(broker_of_kit).service, wired(TransactionEnds, broker_of_kit)
    with pytest.raises(RefusalError, match="this broker is a slave"):
        pops.pop(PopMessageRequestHeader("g", "t", -1, 8, 60_000, 0, 0, 0), caller)
    for state in (0, 8, 12):
        with pytest.raises(RefusalError, match="a slave does not end transactions"):
            ends.end(EndTransactionRequestHeader("g", 0, 0, state, "id"), caller)
