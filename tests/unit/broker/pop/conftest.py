"""A broker that serves POP on a real store, whose time and services a test moves."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from tailrace.broker.pop.service import PopConsumption
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import ExtraInfo, revive_topic
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.testing import SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 5000, max_hash_slot_num=1000,
    max_index_num=40_000, commit_log_allocate_step=1 << 20, mapped_file_size_timer_log=52 * 2000)


class Popped:
    """A popped message with its receipt, as a Java client makes it."""

    def __init__(self, message, receipt, topic):
        self.body = message.body
        self.message = message
        self.receipt = receipt
        self.topic = topic
        """The topic that an acknowledgement names."""

    @property
    def reconsume_times(self):
        return self.message.reconsume_times


class PopWorld:
    def __init__(self, path, kit, *, broker_config=None, clock=None, loop=None, config=CONFIG):
        self.path, self.kit, self.config = path, kit, config
        self.broker_config = broker_config or BrokerConfig()
        self.clock = clock or SimClock()
        self.loop = loop
        self.channel = kit.FakeChannel()
        self.opaque = 0
        self.open()

    def open(self):
        self.store = MessageStore.open(
            self.path, config=self.config, broker_config=self.broker_config, services=False, clock=self.clock,
            entropy=SeededEntropy(7))
        self.broker = self.kit.make_broker(self.store, self.loop, self.broker_config, self.clock)
        self.broker.offsets.load()
        self.pop_part = PopConsumption(self.broker, self.store.file_system)
        self.store.topics.create_if_missing("orders", 2)
        return self

    def close(self):
        self.broker.offsets.persist_if_changed()
        self.pop_part.persist()
        self.store.close()

    def kill(self):
        """What a killed process leaves: files as they are, state files as they were last written."""
        self.store._store.release()
        self.store._lock.release()

    # -- time

    def steps(self):
        timers = self.store._timers.messages
        for _ in range(2):
            self.store.wait_dispatched()
            while timers.enqueue_step():
                pass
            while timers.dequeue_step():
                pass
        self.store.wait_dispatched()
        while self.pop_part.revive.step():
            pass
        self.store.wait_dispatched()

    def run(self, ms, step=500):
        while ms > 0:
            self.clock.advance(min(step, ms))
            ms -= step
            self.steps()

    # -- requests

    def send(self, body=b"x", topic="orders", queue_id=0, **properties):
        self.opaque += 1
        result = self.store.put_inner(MessageExtBrokerInner(
            topic, queue_id, body, encode_properties({"UNIQ_KEY": f"KEY{self.opaque}", **properties}),
            born_timestamp=self.clock.now_ms()))
        assert result.status.appended
        self.store.wait_dispatched()
        return result

    def ask(self, serve, ext, body=b"", code=200_050):
        self.opaque += 1
        self.request = RemotingCommand(
            code, {k: str(v) for k, v in ext.items() if v is not None}, body, opaque=self.opaque)
        answer = serve(self.channel, self.request)
        return self.kit.decoded(answer) if answer is not None else None

    def pop_request(self, **changes):
        return {"consumerGroup": "g", "topic": "orders", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 10_000,
                "pollTime": 0, "bornTime": self.clock.now_ms(), "initMode": 0, **changes}

    def pop_answer(self, **changes):
        return self.ask(self.pop_part.pops.pop, self.pop_request(**changes))

    def pop(self, **changes):
        """Messages of a pop; an empty list if there was none."""
        asked = self.pop_request(**changes)
        answer = self.pop_answer(**changes)
        assert answer.code in {0, 210}, (answer.code, answer.remark)
        return popped(answer, asked["topic"], self.broker_config.broker_name, asked["consumerGroup"])

    def ack(self, one, group="g", **changes):
        info = ExtraInfo.decode(one.receipt)
        return self.ask(self.pop_part.acks.ack, {
            "consumerGroup": group, "topic": one.topic, "queueId": info.queue_id, "extraInfo": one.receipt,
            "offset": info.queue_offset, **changes}, code=200_051)

    def ack_all(self, ones, group="g", **changes):
        acks = {}
        for one in ones:
            info = ExtraInfo.decode(one.receipt)
            key = info[:7]
            entry = acks.setdefault(key, {
                "c": group, "t": "orders", "r": info.flag, "so": info.start_offset, "q": info.queue_id,
                "rq": info.revive_queue_id, "pt": info.pop_time, "it": info.invisible_time, "bits": 0, **changes})
            entry["bits"] |= 1 << (info.queue_offset - info.start_offset)
        for entry in acks.values():
            bits = entry.pop("bits")
            entry.setdefault("b", base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode())
        body = {"brokerName": self.broker_config.broker_name, "acks": list(acks.values())}
        return self.ask(self.pop_part.acks.ack_batch, {}, json.dumps(body).encode(), code=200_151)

    def change(self, one, invisible_time, group="g", **changes):
        """Change the time of a message; the answer, and the message with its new receipt."""
        info = ExtraInfo.decode(one.receipt)
        answer = self.ask(self.pop_part.acks.change, {
            "consumerGroup": group, "topic": one.topic, "queueId": info.queue_id, "extraInfo": one.receipt,
            "offset": info.queue_offset, "invisibleTime": invisible_time, **changes}, code=200_053)
        if not answer.code:
            new = info._replace(
                start_offset=info.queue_offset, pop_time=int(answer.ext["popTime"]),
                invisible_time=int(answer.ext["invisibleTime"]), revive_queue_id=int(answer.ext["reviveQid"]))
            one = Popped(one.message, new.encode(), one.topic)
        return answer, one

    def records(self, topic=None):
        """Messages of a topic (the revive topic) in all queues."""
        name = topic or revive_topic(self.broker_config.broker_cluster_name)
        return [m for t, q, _, _ in self.store.queues() if t == name for m in self.store.read(t, q)]


def popped(answer, topic, broker_name, group):
    """The messages of an answer with receipts as MQClientAPIImpl.processPopResponse makes them."""
    if answer.code:
        return []
    ext = answer.ext
    starts, offsets = {}, {}
    for part in ext["startOffsetInfo"].split(";"):
        flag, queue_id, start = part.split(" ")
        assert (flag, queue_id) not in starts
        starts[flag, queue_id] = int(start)
    for part in ext["msgOffsetInfo"].split(";"):
        flag, queue_id, found = part.split(" ")
        offsets[flag, queue_id] = [int(offset) for offset in found.split(",")]
    ones, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        message = decode_message(answer.body[at : at + size])
        at += size
        assert message.topic == topic
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            key = "0", str(message.queue_id)
            assert message.queue_offset in offsets[key]
            receipt = ExtraInfo(
                starts[key], int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), "0", broker_name,
                message.queue_id, message.queue_offset).encode()
        flag = ExtraInfo.decode(receipt).flag
        real = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[flag]
        ones.append(Popped(message, receipt, real))
    return ones


@pytest.fixture
def open_world(tmp_path, kit, loop):
    worlds = []

    def opened(**more):
        worlds.append(PopWorld(tmp_path / "store", kit, loop=loop, **more))
        return worlds[-1]

    yield opened
    for world in worlds:
        world.store.close()


@pytest.fixture
def world(open_world):
    return open_world()


def turn(loop):
    """Let the event loop do what is ready."""
    loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def turns(loop):
    def some():
        for _ in range(4):
            turn(loop)

    return some
