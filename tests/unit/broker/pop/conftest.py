"""A broker that serves POP on a real store, whose time and services a test moves."""

from __future__ import annotations

import asyncio

import pytest
from pop_client import ack_fields, batch_ack_body, changed, pop_fields, popped

from tailrace.broker import wiring
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.pop import revive_topic
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing import SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 22, mapped_file_size_consume_queue=20 * 5000, max_hash_slot_num=1000,
    max_index_num=40_000, commit_log_allocate_step=1 << 20, mapped_file_size_timer_log=52 * 2000)


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
            self.path, config=self.config, broker_config=self.broker_config,
            parts=StoreParts(services=False, clock=self.clock, entropy=SeededEntropy(7)))
        self.broker = self.kit.make_broker(self.store, self.loop, self.broker_config, self.clock)
        self.broker.offsets.load()
        self.pop_part = wiring.pop_consumption(self.broker)
        self.store.topics.create_if_missing("orders", 2)
        return self

    def close(self):
        self.persist()
        self.store.close()

    def persist(self):
        self.broker.offsets.persist_if_changed()
        self.pop_part.prepare()
        self.pop_part.write_prepared()

    def kill(self):
        """What a killed process leaves: files as they are, state files as they were last written."""
        self.store.inner.release()
        self.store._lock.release()

    # -- time

    def steps(self):
        timers = self.store.timer_services.messages
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
        return pop_fields("orders", "g", self.clock.now_ms(), **changes)

    def pop_answer(self, **changes):
        return self.ask(self.pop_part.service.pop_message, self.pop_request(**changes))

    def pop(self, **changes):
        """Messages of a pop; an empty list if there was none."""
        asked = self.pop_request(**changes)
        answer = self.pop_answer(**changes)
        assert answer.code in {0, 210}, (answer.code, answer.remark)
        return popped(answer, asked["topic"], self.broker_config.broker_name, asked["consumerGroup"])

    def ack(self, one, group="g", **changes):
        return self.ask(self.pop_part.acks.ack_message, ack_fields(one, group, **changes), code=200_051)

    def ack_all(self, ones, group="g", **changes):
        body = batch_ack_body(ones, "orders", group, self.broker_config.broker_name, **changes)
        return self.ask(self.pop_part.acks.ack_messages, {}, body, code=200_151)

    def change(self, one, invisible_time, group="g", **changes):
        """Change the time of a message; the answer, and the message with its new receipt."""
        answer = self.ask(
            self.pop_part.acks.change_invisible_time,
            ack_fields(one, group, invisibleTime=invisible_time, **changes), code=200_053)
        return answer, one if answer.code else changed(one, answer)

    def records(self, topic=None):
        """Messages of a topic (the revive topic) in all queues."""
        name = topic or revive_topic(self.broker_config.broker_cluster_name)
        return [m for t, q, _, _ in self.store.queues() if t == name for m in self.store.read(t, q)]


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
