"""A request has one answer and one effect, whether it is a frame or carries its header in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig, FlushDiskType, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.names import MSG_REGION, TRACE_ON
from tailrace.formats.remoting import (
    RemotingCommand,
    RequestCode,
    SerializeType,
    decode_frame,
    encode,
)
from tailrace.formats.requests import message_headers as headers
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.kernels.properties import encode_properties
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel, InProcessConnection
from tailrace.testing import SimClock, SimScheduler

PEER = ("10.0.0.1", 5)
STORE = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 1_000, max_hash_slot_num=100,
    max_index_num=400, commit_log_allocate_step=1 << 16, mapped_file_size_timer_log=52 * 100)


class Transport(asyncio.Transport):
    """Keeps what a channel writes."""

    def __init__(self):
        super().__init__()
        self.written = b""

    def get_extra_info(self, name, default=None):
        return PEER if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += bytes(data)


class Broker:
    """A broker whose requests come as frames of an encoding; None: as headers."""

    def __init__(self, path: Path, encoding: SerializeType | None, flush: FlushDiskType) -> None:
        self.encoding = encoding
        self.clock = SimClock()
        self.scheduler = SimScheduler(self.clock, SeededEntropy(1))
        self.store = MessageStore.open(path, config=replace(STORE, flush_disk_type=flush), parts=StoreParts(
            clock=self.clock, scheduler=self.scheduler, entropy=SeededEntropy(2)))
        self.controller = BrokerController(
            self.store, BrokerConfig(), clock=self.clock, scheduler=self.scheduler, entropy=SeededEntropy(3))
        self.broker = self.controller.broker
        self.broker.transactions.load()
        self.broker.topics.update_all([TopicConfig(topic_name="t", read_queue_nums=1, write_queue_nums=1)])
        self.broker.groups.update_all([SubscriptionGroupConfig(group_name="g")])
        server = self.controller.in_process()
        self.transport = Transport()
        self.channel = Channel(server)
        self.channel.connection_made(self.transport)
        self.connection = InProcessConnection(server, PEER)

    async def ask(self, code: RequestCode, header: CustomHeader, body: bytes = b"") -> RemotingCommand:
        if self.encoding is None:
            call = self.connection.call(code, header, body)
            await self._until(call.done)
            answer = call.result()
        else:
            self.channel.data_received(encode(RemotingCommand(
                code, header.to_ext(), body, opaque=1, serialize_type=self.encoding)))
            await self._until(lambda: self.transport.written)
            answer, end = decode_frame(self.transport.written, 0, len(self.transport.written))
            assert end == len(self.transport.written)
            self.transport.written = b""
        self.scheduler.run(5)
        return answer

    async def _until(self, is_answered) -> None:
        """Let services work until there is an answer, such as one that waits for the disk; no time passes."""
        async with asyncio.timeout(20):
            while not is_answered():
                self.scheduler.run(0)
                await asyncio.sleep(0)

    def effects(self) -> dict[str, object]:
        """Everything that the requests have changed."""
        traffic = self.broker.traffic
        log = b"".join(file.read_bytes() for file in sorted((Path(self.store.path) / "commitlog").iterdir()))
        return {
            "log": log, "came in": {key: vars_of(flow) for key, flow in traffic.came_in.items()},
            "went out": {key: vars_of(flow) for key, flow in traffic.went_out.items()},
            "went back": {key: vars_of(flow) for key, flow in traffic.went_back.items()},
            "dead letters": dict(traffic.dead_letters), "put latency": traffic.put_latency.counts[:],
            "offsets": sorted(self.broker.offsets.entries()), "topics": sorted(self.broker.topics.table)}


def vars_of(flow):
    return [getattr(flow, name) for kind in type(flow).__mro__ for name in getattr(kind, "__slots__", ())]


def send(*, topic="t", **properties: str) -> CustomHeader:
    return headers.SendMessageRequestHeaderV2(
        "group", topic, "no topic", 4, -1, 0, 1_700_000_000_000, 0, encode_properties(properties).decode(), 0)


async def requests(broker: Broker) -> list[RemotingCommand]:
    """Return the answers to one request of each kind that gRPC makes, and of some that are refused."""
    code, ask = RequestCode, broker.ask
    now = broker.clock.now_ms()
    answers = [
        await ask(code.SEND_MESSAGE_V2, send(UNIQ_KEY="a", KEYS="k"), b"1"),
        await ask(code.SEND_MESSAGE_V2, send(UNIQ_KEY="b", DELAY="1"), b"2"),
        await ask(code.SEND_MESSAGE_V2, send(UNIQ_KEY="c", TIMER_DELIVER_MS=str(now + 60_000)), b"3"),
        await ask(code.SEND_MESSAGE_V2, send(UNIQ_KEY="d", TRAN_MSG="true", PGROUP="p"), b"4"),
        await ask(code.SEND_MESSAGE_V2, send(), b""),
        await ask(code.SEND_MESSAGE_V2, send(topic="none"), b"5"),
    ]
    timer, half = (answers[n].read(headers.SendMessageResponseHeader) for n in (2, 3))
    at = int(half.msg_id[-16:], 16)
    end = headers.EndTransactionRequestHeader("p", half.queue_offset, at, 8, "d", "t", transaction_id="d")
    answers += [
        await ask(code.END_TRANSACTION, end),
        await ask(code.END_TRANSACTION, headers.EndTransactionRequestHeader("other", half.queue_offset, at, 8, "d")),
        await ask(code.RECALL_MESSAGE, headers.RecallMessageRequestHeader("t", timer.recall_handle or "")),
        await ask(code.RECALL_MESSAGE, headers.RecallMessageRequestHeader("t", "no handle")),
    ]
    pop = headers.PopMessageRequestHeader("g", "t", -1, 8, 60_000, 0, now, 0)
    answers.append(await ask(code.POP_MESSAGE, pop))
    found = answers[-1].read(headers.PopMessageResponseHeader)
    start = int((found.start_offset_info or "").split(" ")[2])
    receipt = f"{start} {found.pop_time} {found.invisible_time} {found.revive_qid} 0 broker-a 0 {start}"
    change = headers.ChangeInvisibleTimeRequestHeader("g", "t", 0, receipt, start, 30_000)
    answers += [
        await ask(code.CHANGE_MESSAGE_INVISIBLETIME, change),
        await ask(code.ACK_MESSAGE, headers.AckMessageRequestHeader("g", "t", 0, receipt, start)),
        await ask(code.ACK_MESSAGE, headers.AckMessageRequestHeader("g", "t", 0, receipt, 1 << 40)),
        await ask(code.POP_MESSAGE, pop),
        await ask(code.CONSUMER_SEND_MSG_BACK, headers.ConsumerSendMsgBackRequestHeader(
            int(answers[0].read(headers.SendMessageResponseHeader).msg_id[-16:], 16), "g", 0, "a", "t")),
    ]
    return answers


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_request_has_one_answer_and_one_effect_whatever_carries_it(tmp_path, flush):
    async def run(encoding):
        broker = Broker(tmp_path / str(encoding), encoding, flush)
        try:
            answers = await requests(broker)
            for answer in answers:  # for traces of Java clients
                answer.ext = {name: text for name, text in answer.ext.items() if name not in {MSG_REGION, TRACE_ON}}
            return [(one.code, one.remark, one.ext, one.body) for one in answers], broker.effects()
        finally:
            broker.store.close()

    plain = asyncio.run(run(None))
    assert [code for code, *_ in plain[0]].count(0) > 8
    for encoding in SerializeType:
        answers, effects = asyncio.run(run(encoding))
        for number, (one, other) in enumerate(zip(plain[0], answers, strict=True)):
            assert one == other, (encoding, number)
        for what, effect in effects.items():
            assert plain[1][what] == effect, (encoding, what)
