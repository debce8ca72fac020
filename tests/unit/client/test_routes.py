"""Routes of topics: which name server is asked, how often, and for how long an answer counts."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.client.routes import KEPT_MAX, REFRESH_NS, Routes
from tailrace.errors import RemotingCommandError, RemotingConnectError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.remoting.client import RemotingClient
from tailrace.testing import SimClock


class NameServers:
    """Answers requests for routes; ``down`` are the addresses that cannot be reached."""

    ask = RemotingClient.ask

    def __init__(self, *down):
        self.down = set(down)
        self.asked = []
        self.gate = None
        self.queues = 4
        self.missing = set()

    async def invoke(self, address, code, ext, body=b"", **_):
        self.asked.append((address, ext["topic"]))
        queues = self.queues
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if address in self.down:
            raise RemotingConnectError(address, "refused")
        if ext["topic"] in self.missing:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, {}, b"", remark="no route")
        return RemotingCommand(0, {}, fastjson.dumps({
            "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": "broker:1"}}],
            "queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": queues, "writeQueueNums": queues}]}))


def routes_of(servers, namesrv="a:1;b:1;c:1"):
    clock = SimClock()
    return Routes(servers, clock, namesrv, ""), clock


def run(test):
    asyncio.run(asyncio.wait_for(test(), 30))


def test_calls_that_fail_together_do_not_bring_the_server_back_that_is_down():
    async def test():
        servers = NameServers("a:1")
        routes, _ = routes_of(servers)
        await asyncio.gather(*(routes.of(f"t{i}") for i in range(3)))  # moved three times, it would be the first again
        servers.asked.clear()
        await routes.of("later")
        assert servers.asked == [("b:1", "later")]

    run(test)


def test_calls_for_one_topic_share_a_request():
    async def test():
        servers = NameServers()
        routes, clock = routes_of(servers)
        found = await asyncio.gather(*(routes.of("t") for _ in range(50)))
        assert len(servers.asked) == 1
        assert len({id(one) for one in found}) == 1
        clock.advance(REFRESH_NS // 1_000_000)
        await asyncio.gather(*(routes.of("t") for _ in range(50)))
        assert len(servers.asked) == 2

    run(test)


def test_a_topic_that_is_made_by_its_first_send_is_asked_for_once_by_all_senders():
    async def test():
        servers = NameServers()
        servers.missing.add("new")
        routes, _ = routes_of(servers)
        found = await asyncio.gather(*(routes.of("new", for_write=True) for _ in range(20)))
        assert [topic for _, topic in servers.asked] == ["new", "TBW102"]
        assert all(one.write_queues[0].topic == "new" for one in found)
        with pytest.raises(RemotingCommandError):
            await routes.of("new")

    run(test)


def test_a_caller_that_is_cancelled_takes_no_answer_from_the_others():
    async def test():
        servers = NameServers()
        servers.gate = asyncio.Event()
        routes, _ = routes_of(servers)
        first, second = (asyncio.create_task(routes.of("t")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        servers.gate.set()
        assert len((await second).read_queues) == 4
        assert len(servers.asked) == 1

    run(test)


def test_an_answer_on_its_way_when_its_topic_is_forgotten_is_not_kept():
    async def test():
        servers = NameServers()
        servers.gate = asyncio.Event()
        routes, _ = routes_of(servers)
        before = asyncio.create_task(routes.of("t"))
        await asyncio.sleep(0.01)
        routes.forget("t")
        servers.queues = 8
        after = asyncio.create_task(routes.of("t"))
        await asyncio.sleep(0.01)
        servers.gate.set()
        assert len((await before).read_queues) == 4
        assert len((await after).read_queues) == len((await routes.of("t")).read_queues) == 8
        assert len(servers.asked) == 2

    run(test)


def test_routes_are_dropped_that_are_too_old_or_too_many():
    async def test():
        servers = NameServers()
        routes, clock = routes_of(servers)
        for i in range(KEPT_MAX + 20):
            await routes.of(f"t{i}")
        assert len(routes._kept) == KEPT_MAX
        clock.advance(REFRESH_NS // 1_000_000)
        for i in range(KEPT_MAX // 4):
            await routes.of(f"u{i}")
        assert len(routes._kept) == KEPT_MAX // 4

    run(test)


def test_a_name_server_without_a_broker_is_an_error_for_those_who_ask_for_all_brokers():
    # A topic that was created on no broker would look like one that exists.
    class Empty:
        ask = RemotingClient.ask

        async def invoke(self, address, code, ext, body=b"", **_):
            if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, {}, b"", remark="no route")
            return RemotingCommand(0, {}, fastjson.dumps({"brokerAddrTable": {
                "pair": {"brokerAddrs": {"1": "slave:1"}, "brokerName": "pair"}}, "clusterAddrTable": {}}))

    async def test():
        routes, _ = routes_of(Empty(), "a:1")
        with pytest.raises(RemotingError, match="no master broker is registered at the name server a:1"):
            await routes.brokers("t")

    run(test)
