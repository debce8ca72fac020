"""Requests of the broker whose answers come over a stream, and the writer of a stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.formats.remoting import RemotingCommand
from tailrace.proxy.protocol import Code, GrpcError
from tailrace.proxy.telemetry import ASKED_MAX, TelemetryActivity, _Stream


@pytest.fixture
def clients():
    return SimpleNamespace(on_forget=[], find=lambda client_id: None)


@pytest.fixture
def activity(clients):
    return TelemetryActivity(
        SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), clients, SimpleNamespace(), SimpleNamespace(),
        SimpleNamespace())


def test_requests_of_a_client_are_bounded_and_forgotten_with_it(activity, clients):
    one, other = SimpleNamespace(client_id="one"), SimpleNamespace(client_id="other")
    for _ in range(ASKED_MAX + 5):
        last = activity._ask(one, RemotingCommand(309, {}))
    activity._ask(other, RemotingCommand(309, {}))
    assert {name: len(mine) for name, mine in activity._asked.items()} == {"one": ASKED_MAX, "other": 1}
    assert last in activity._asked["one"]
    for forget in clients.on_forget:
        forget(one)
    assert list(activity._asked) == ["other"]
    activity._reply("one", last, {})  # its answer is too late


@pytest.mark.caught
def test_a_command_that_cannot_be_written_costs_that_command():
    written = []

    async def write(command):
        if command == 1:
            raise ValueError("odd")
        written.append(command)

    async def run():
        stream = _Stream(SimpleNamespace(write=write, peer=lambda: "p"))
        for command in range(4):
            stream.send(command)
        for _ in range(12):
            await asyncio.sleep(0)
        await stream.close()

    asyncio.run(run())
    assert written == [0, 2, 3]


def test_a_refused_stream_is_answered_after_its_first_request():
    """An answer that overtook the request was lost in gRPC's library for Python."""
    seen = []

    async def begin(call, context):
        raise GrpcError(Code.UNAUTHORIZED, "who?")

    async def first_of_refused(context):
        seen.append("waits")

    async def write(command):
        seen.append((command.status.code, command.status.message))

    async def run():
        made = TelemetryActivity(
            SimpleNamespace(now_ms=lambda: 0), SimpleNamespace(), SimpleNamespace(),
            SimpleNamespace(on_forget=[]), SimpleNamespace(), SimpleNamespace(),
            SimpleNamespace(begin=begin, first_of_refused=first_of_refused))
        await made.telemetry(None, SimpleNamespace(write=write))

    asyncio.run(run())
    assert seen == ["waits", (Code.UNAUTHORIZED, "who?")]
