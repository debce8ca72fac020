"""Every request of the table is answered once, whoever answers it, and what it took is given back once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tailrace.broker import BrokerController
from tailrace.broker.core.listeners import Listeners
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.formats.remoting import (
    VERSION_V5_3_1,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_frame,
    encode,
)
from tailrace.formats.requests.table import REQUESTS
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.remoting.server import Channel
from tailrace.requests.reply import Reply, WaitingRequests

pytestmark = pytest.mark.caught

VALUES = {
    "topic": "orders", "b": "orders", "defaultTopic": "TBW102", "c": "TBW102", "d": "4", "group": "g",
    "consumerGroup": "g", "producerGroup": "p", "clientID": "c", "clientId": "c", "maxMsgNums": "4", "perm": "6",
    "readQueueNums": "2", "writeQueueNums": "2", "topicFilterType": "SINGLE_TAG", "invisibleTime": "60000",
    "queueId": "0", "e": "0", "queueOffset": "0", "offset": "0", "commitOrRollback": "8", "sysFlag": "4", "f": "0",
    "i": "UNIQ_KEY\x01u\x02", "subscription": "*", "suspendTimeoutMillis": "0", "pollTime": "0", "bornTime": "0",
    "expType": "TAG", "exp": "*", "expressionType": "TAG", "liteTopic": "", "isLiteConsumer": "false",
    "order": "false"}
UNANSWERED = {RequestCode.END_TRANSACTION}
"""With the state "unknown" it has no answer, as in RocketMQ."""


class Transport(asyncio.Transport):
    """Keeps what a connection writes."""

    def __init__(self):
        super().__init__()
        self.written, self.is_closed = bytearray(), False

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += data

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.is_closed = True

    abort = close

    def answers(self):
        """How often each request was answered."""
        data, pos, opaques = bytes(self.written), 0, Counter()
        while pos < len(data):
            command, pos = decode_frame(data, pos, len(data))
            opaques[command.opaque] += command.is_response
        return opaques


def fields(row):
    """Values that the request may have, so that it does some work."""
    header = row.header
    names = () if header is None else header.__struct_encode_fields__
    return {name: VALUES.get(name, "1") for name in names}


def requests(codes):
    """Requests of each code: without fields, with values, and with values and a body."""
    return [
        RemotingCommand(code, dict(ext), body) for code in sorted(codes)
        for ext, body in (({}, b""), (fields(REQUESTS[code]), b""), (fields(REQUESTS[code]), b"{}"))]


@pytest.fixture
def replies(monkeypatch):
    """All replies and all bounds that are made."""
    made = {Reply: [], WaitingRequests: []}
    for kind, all_of_it in made.items():
        def init(self, *arguments, _kind=kind, _init=kind.__init__, _all=all_of_it, **options):
            _init(self, *arguments, **options)
            _all.append(self)

        monkeypatch.setattr(kind, "__init__", init)
    return made


async def served(path, test):
    with MessageStore.open(path, config=StoreConfig(mapped_file_size_commit_log=1 << 22)) as store:
        store.put(Message(topic="orders", body=b"x", properties={"TAGS": "a"}), queue_id=0)
        controller = BrokerController(store, BrokerConfig())
        listeners = Listeners("", limits=controller.limits, high_water=1 << 18)
        await listeners.start(("127.0.0.1", 0), ("127.0.0.1", 0), vip=False)
        await controller.serve_on(listeners)
        try:
            for server in (listeners.broker, listeners.namesrv):
                await test(server, controller)
        finally:
            await controller.stop()


def connected(server):
    channel, transport = Channel(server), Transport()
    channel.connection_made(transport)
    return channel, transport


async def ask(channel, commands, *, oneway=False):
    for opaque, command in enumerate(commands, 1):
        command.opaque, command.flag = opaque, 2 * oneway
        channel.data_received(encode(command))
        await asyncio.sleep(0)


async def settled(is_done):
    """Wait until it is done, and a little longer, for second answers."""
    for _ in range(1000):
        if is_done():
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


def check_given_back(channel, replies):
    assert [reply.request.code for reply in replies[Reply] if not reply._has_ended] == []
    assert [(bounds.count, bounds.size_bytes) for bounds in replies[WaitingRequests] if bounds.count] == []
    assert (channel._held, channel._held_bytes) == (0, 0)


def test_each_code_is_answered_once(tmp_path, replies):
    async def test(server, controller):
        channel, transport = connected(server)
        commands = requests(set(server.processors) & set(REQUESTS))
        await ask(channel, commands)
        waits = [c for c in commands if c.code not in UNANSWERED]
        await settled(lambda: all(transport.answers()[command.opaque] for command in waits))
        answers = transport.answers()
        wrong = [
            (RequestCode(command.code).name, command.opaque % 3, answers[command.opaque]) for command in commands
            if answers[command.opaque] != 1 and (command.code not in UNANSWERED or answers[command.opaque])]
        assert wrong == []
        check_given_back(channel, replies)

    asyncio.run(served(tmp_path, test))


def test_a_oneway_request_of_each_code_is_not_answered(tmp_path, replies):
    async def test(server, controller):
        channel, transport = connected(server)
        await ask(channel, requests(set(server.processors) & set(REQUESTS)), oneway=True)
        await settled(lambda: all(reply._has_ended for reply in replies[Reply]))
        assert transport.answers().total() == 0
        check_given_back(channel, replies)

    asyncio.run(served(tmp_path, test))


def test_what_a_connection_that_closes_has_asked_is_given_back(tmp_path, replies):
    async def test(server, controller):
        channel, transport = connected(server)
        await ask(channel, [
            RemotingCommand(command.code, {**command.ext, "suspendTimeoutMillis": "60000", "pollTime": "60000",
                                           "sysFlag": "6", "queueOffset": "1"}, command.body)
            for command in requests(set(server.processors) & set(REQUESTS))])
        channel.connection_lost(None)
        await settled(lambda: all(reply._has_ended for reply in replies[Reply]))
        check_given_back(channel, replies)

    asyncio.run(served(tmp_path, test))


def test_what_waits_is_answered_once_when_the_broker_stops(tmp_path, replies):
    asked = []

    async def test(server, controller):
        if RequestCode.PULL_MESSAGE not in server.processors:
            return
        channel, transport = connected(server)
        await ask(channel, [
            RemotingCommand(code, {**fields(REQUESTS[code]), "suspendTimeoutMillis": "60000", "pollTime": "60000",
                                   "sysFlag": "6", "queueId": "1"}, version=VERSION_V5_3_1 + 1)
            for code in (RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION)])
        await settled(lambda: controller.broker.waiting_pulls() > 1)
        assert not transport.answers(), transport.written
        asked.append((channel, transport))

    asyncio.run(served(tmp_path, test))
    (channel, transport), = asked
    assert transport.answers() == {1: 1, 2: 1, 3: 1}
    data = bytes(transport.written)
    assert decode_frame(data, 0, len(data))[0].code == ResponseCode.GO_AWAY
    check_given_back(channel, replies)
