"""Clients on a simulated network: what holds from seeds, and what the network has taught, one by one.

``SEED`` is the first seed; `make sim` plays many.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys

import client_world
import pytest
from client_world import KINDS, NAME_SERVER, PHASES, TIMEOUT_S, play
from fake_brokers import LoopClock
from sim_network import Host, Network, NetworkLoop

from tailrace.client import AsyncPullConsumer
from tailrace.client.process_queue import ProcessQueue
from tailrace.errors import (
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.remoting import RemotingClient
from tailrace.remoting.client import _Connection

FIRST = int(os.environ.get("SEED", "1"))
SERVER = "10.0.0.1:10911"


@pytest.fixture(autouse=True)
def loop_kind():
    """In virtual time one loop is like another."""


# --- from seeds


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_skipped_or_held_up_whatever_the_network_does(kind, seed):
    counts = play(seed, kind, slaves=seed % 3 == 0).counts
    assert counts["acknowledged"] > 20
    assert counts["calls"] > 20


@pytest.mark.parametrize(("kind", "code"), [
    pytest.param(kind, code, id=f"{kind}-{code.name.lower()}") for kind in ("push", "in order") for code in PHASES
    if kind == "in order" or "LOCK" not in code.name])
def test_a_broker_may_die_in_each_phase_of_a_rebalance(kind, code):
    for moment, silently in (("before", False), ("after", False), ("after", True)):
        counts = play(FIRST, kind, messages=40, strike=(code, moment, silently)).counts
        assert counts["strikes"] == 1
        assert counts["acknowledged"] >= 40


def test_a_seed_gives_the_same_run_in_every_process():
    program = (
        "import hashlib\n"
        "from client_world import play\n"
        "print(hashlib.md5(repr(play(11, 'in order', messages=40).network.trace).encode()).hexdigest())")
    support = os.path.dirname(client_world.__file__)
    seen = {subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": support}).stdout.strip() for seed in ("1", "2")}
    here = play(11, "in order", messages=40).network.trace
    assert seen == {hashlib.md5(repr(here).encode()).hexdigest()}


def finds(kind, most=20):
    for seed in range(1, most + 1):
        try:
            play(seed, kind, messages=60)
        except AssertionError:
            return True
    return False


def connections_are_never_given_up(monkeypatch):
    monkeypatch.setattr(_Connection, "timed_out", lambda *_: None)


def what_was_pulled_counts_as_consumed(monkeypatch):
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(lambda self: self.next_offset))


def answers_are_given_to_any_request(monkeypatch):
    received = _Connection.data_received

    def mixed(self, data):
        if len(self.waiting) > 1:
            first, last = min(self.waiting), max(self.waiting)
            self.waiting[first], self.waiting[last] = self.waiting[last], self.waiting[first]
        received(self, data)

    monkeypatch.setattr(_Connection, "data_received", mixed)


@pytest.mark.parametrize(
    "plant", [connections_are_never_given_up, what_was_pulled_counts_as_consumed, answers_are_given_to_any_request])
def test_a_planted_fault_is_found(monkeypatch, plant):
    plant(monkeypatch)
    assert finds("push")


# --- one by one


class Server(Host):
    """Answers requests of code 10, and those of code 11 after the seconds in ``after``."""

    async def serve(self, wire, command):
        await asyncio.sleep(float(command.ext.get("after", 0)))
        return RemotingCommand(0, body=command.body)


def on_network(test):
    """Run a test with a server and a client of it, in virtual time."""
    async def given():
        network = Network(asyncio.get_running_loop(), random.Random(FIRST))
        client = RemotingClient()
        await test(network, Server(network, SERVER), client)
        await client.close()
        assert not network.wires
        assert asyncio.all_tasks() - {asyncio.current_task()} <= network.hosts[SERVER].tasks

    with asyncio.Runner(loop_factory=NetworkLoop) as runner:
        runner.run(given())


def now():
    return asyncio.get_running_loop().time()


def test_a_connection_that_fell_silent_is_replaced_after_one_timeout():
    async def test(network, server, client):
        await client.invoke(SERVER, 10, {})
        [wire] = network.wires.values()
        wire.silent = True
        poll = asyncio.create_task(client.invoke(SERVER, 11, {"after": "15"}, timeout_ms=18_000))
        with pytest.raises(RemotingTimeoutError):
            await client.invoke(SERVER, 10, {})
        assert now() < 3.1
        with pytest.raises(RemotingError, match="closed"):
            await poll  # now, and not after its own 18 s
        assert now() < 3.1
        assert (await client.invoke(SERVER, 10, {}, b"x")).body == b"x"
        assert network.opened == 2

    on_network(test)


def test_a_broker_that_stops_in_the_middle_of_a_frame_gets_a_new_connection():
    async def test(network, server, client):
        server.cut = 0.5, False
        with pytest.raises(RemotingTimeoutError):
            await client.invoke(SERVER, 10, {}, bytes(1000))
        with pytest.raises(RemotingTimeoutError):  # bytes had come, so the first timeout has proved nothing
            await client.invoke(SERVER, 10, {}, bytes(1000))
        assert (await client.invoke(SERVER, 10, {}, bytes(1000))).body == bytes(1000)
        assert network.opened == 2

    on_network(test)


def test_short_timeouts_of_a_busy_server_do_not_cost_its_connection():
    async def test(network, server, client):
        for _ in range(9):
            with pytest.raises(RemotingTimeoutError):
                await client.invoke(SERVER, 11, {"after": "0.2"}, timeout_ms=100)
        with pytest.raises(RemotingTimeoutError):  # others are answered in this time
            await asyncio.gather(client.invoke(SERVER, 11, {"after": "9"}), *(
                client.invoke(SERVER, 11, {"after": str(seconds)}) for seconds in (1, 2)))
        assert network.opened == 1

    on_network(test)


def test_short_timeouts_find_a_dead_connection_together():
    async def test(network, server, client):
        await client.invoke(SERVER, 10, {})
        next(iter(network.wires.values())).silent = True
        while network.opened == 1:
            try:
                await client.invoke(SERVER, 10, {}, timeout_ms=100)
            except RemotingError:
                assert now() < 1.5

    on_network(test)


def test_requests_to_a_machine_that_is_down_wait_for_one_connection_together():
    async def test(network, server, client):
        server.kill(silently=True)
        calls = [client.invoke(SERVER, 10, {}, timeout_ms=2000) for _ in range(50)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in found} == {RemotingConnectError}
        assert now() == pytest.approx(2.0, abs=0.01)
        assert str(found[0]).endswith("no answer in 2000 ms")
        late = asyncio.create_task(client.invoke(SERVER, 10, {}, timeout_ms=60_000))
        with pytest.raises(RemotingConnectError, match="no answer in 3000 ms"):
            await late
        server.start()
        assert (await client.invoke(SERVER, 10, {})).code == 0

    on_network(test)


def test_closing_ends_what_waits_for_a_connection():
    async def test(network, server, client):
        server.kill(silently=True)
        calls = [asyncio.create_task(client.invoke(SERVER, 10, {})) for _ in range(3)]
        given_up = asyncio.create_task(client.invoke(SERVER, 10, {}))
        await asyncio.sleep(0.1)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled()
        await client.close()
        for one in await asyncio.gather(*calls, return_exceptions=True):
            assert str(one) == "the client is closed"
        assert now() < 0.2

    on_network(test)


def test_a_oneway_request_waits_for_its_timeout_and_no_longer():
    async def test(network, server, client):
        await client.invoke(SERVER, 10, {})
        next(iter(network.wires.values())).silent = True
        await client.invoke_oneway(SERVER, 10, {}, bytes(100_000))  # as much as fits into the buffers of a socket
        with pytest.raises(RemotingTimeoutError):
            await client.invoke_oneway(SERVER, 10, {}, b"")
        await client.invoke_oneway(SERVER, 10, {}, b"")
        assert network.opened == 2
        server.kill(silently=True)
        next(iter(network.wires.values())).abort()
        with pytest.raises(RemotingConnectError):
            await client.invoke_oneway(SERVER, 10, {}, b"", timeout_ms=100)

    on_network(test)


def with_brokers(test):
    """Run a test with two brokers that have a topic of three queues each, in virtual time."""
    async def given():
        world = client_world.World(FIRST, "pull", faults=False)
        world.set_up()
        for host in world.brokers:
            for number in range(9):
                host.broker.put("t", number % 3, b"%d" % (9 * host.broker.number + number))
        await test(world)

    with asyncio.Runner(loop_factory=NetworkLoop) as runner:
        runner.run(given())


@pytest.mark.parametrize("gone", [1, 2], ids=["one broker", "all brokers"])
def test_polls_go_on_while_a_broker_is_gone_from_the_name_server(gone):
    async def test(world):
        seen = []

        async def poll(seconds):
            end = now() + seconds
            while now() < end:
                seen.extend(int(one.body) for one in await reader.poll())

        async with AsyncPullConsumer(group="g", namesrv=NAME_SERVER, clock=LoopClock()) as reader:
            await reader.subscribe("t")
            await poll(5)
            for host in world.brokers[:gone]:
                host.kill(silently=False)
                host.registered = False
            await poll(40)
            for host in world.brokers[:gone]:
                host.start()
                host.registered = True
            for host in world.brokers:
                host.broker.put("t", 0, b"100")
            await poll(60)
        assert set(seen) == {*range(18), 100}

    with_brokers(test)


def test_polls_end_with_the_refusal_of_a_broker():
    async def test(world):
        async with AsyncPullConsumer(group="g", namesrv=NAME_SERVER, clock=LoopClock()) as reader:
            await reader.subscribe("t")
            await reader.poll()
            for host in world.brokers:
                host.broker.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.NO_PERMISSION
                host.broker.put("t", 0, b"100")

            async def poll():
                while now() < 60:
                    await reader.poll()

            with pytest.raises(RemotingCommandError) as error:
                await poll()
            assert error.value.code == ResponseCode.NO_PERMISSION
            assert now() < TIMEOUT_S + 20

    with_brokers(test)
