"""A broker that serves Lite topics on a real store, with an event loop in virtual time."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from broker_kit import admin_of
from broker_world import Turns, executors_in_place
from pop_client import Popped

from tailrace.broker import wiring
from tailrace.broker.statistics.traffic import CountedArrivals
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import ExtraInfo
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.requests.durable_answers import DurableAnswers
from tailrace.testing import SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 100, max_hash_slot_num=100,
    max_index_num=4_000, commit_log_allocate_step=1 << 18, mapped_file_size_timer_log=52 * 100, enable_lmq=True,
    enable_multi_dispatch=True)
PARENT, GROUP = "parent", "lite"


class Loop(Turns):
    def create_task(self, coroutine):
        super().create_task(coroutine)
        return mock.Mock()


class LiteWorld:
    def __init__(self, path, kit, *, config=CONFIG, **broker):
        self.path, self.kit, self.config = path, kit, config
        self.broker_config = BrokerConfig(**broker)
        self.clock = SimClock()
        self.loop = Loop(self.clock)
        self.opaque = 0
        self.user = ""  # that sends the requests
        self.open()

    def open(self):
        self.store = MessageStore.open(
            self.path, config=self.config, broker_config=self.broker_config,
            parts=StoreParts(services=False, clock=self.clock, entropy=SeededEntropy(7)))
        self.broker = self.kit.make_broker(
            self.store, self.loop, self.broker_config, self.clock, executors_in_place())
        self.connect()
        return self

    def connect(self):
        broker = self.broker
        self.lite = wiring.lite_topics(broker)
        pops = wiring.pop_consumption(broker, lite=self.lite)
        self.inspect = pops.inspect
        self.acks, self.admin = pops.acks, admin_of(broker)
        self.sends = wiring.sends(
            broker, DurableAnswers(self.loop, self.store), wait_durable=False)
        self.store.set_message_arriving_listener(CountedArrivals(broker.traffic, pops, self.lite))
        self.channels = {}
        return self

    def close(self):
        self.broker.offsets.persist_if_changed()
        self.store.close()

    def kill(self):
        """What a killed process leaves."""
        self.store.inner.release()
        self.store._lock.release()

    def turn(self):
        self.store.wait_dispatched()
        self.loop.run()

    def run(self, ms, step=500):
        while ms > 0:
            self.clock.advance(min(step, ms))
            ms -= step
            self.turn()

    # -- requests

    def channel(self, client="c"):
        return self.channels.setdefault(client, self.kit.FakeChannel())

    def ask(self, serve, ext, body=b"", code=0, client="c"):
        """The answer; None if it comes later."""
        self.opaque += 1
        request = RemotingCommand(
            code, {k: str(v) for k, v in ext.items() if v is not None}, body, opaque=self.opaque)
        if self.user:
            request.sender = self.user
        try:
            answer = serve(self.channel(client), request)
        except RefusalError as refusal:
            answer = request.refused(refusal)
        self.turn()
        return self.kit.decoded(answer) if answer is not None else None

    def topic(self, name=PARENT, attributes="+message.type=LITE"):
        return self.ask(self.admin.update_topic, {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "attributes": attributes}, code=17)

    def group(self, name=GROUP, topic=PARENT, **attributes):
        made = {"lite.bind.topic": topic, **{f"lite.{key.replace('_', '.')}": v for key, v in attributes.items()}}
        return self.ask(self.admin.update_group, {}, json.dumps({
            "groupName": name, "attributes": {f"+{key}": value for key, value in made.items()}}).encode(), code=200)

    def send(self, name, body=b"x", topic=PARENT, **properties):
        properties = {"UNIQ_KEY": f"KEY{self.opaque}", **({"__LITE_TOPIC": name} if name else {}), **properties}
        return self.ask(self.sends.send, {
            "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
            "sysFlag": 0, "bornTimestamp": self.clock.now_ms(), "flag": 0,
            "properties": encode_properties(properties).decode()}, body, 10)

    def subscribe(self, *names, client="c", action="PARTIAL_ADD", group=GROUP, topic=PARENT, **more):
        entry = {"action": action, "clientId": client, "group": group, "topic": topic, "liteTopicSet": names,
                 "version": 1, **more}
        return self.ask(
            self.lite.subscriptions.change, {}, json.dumps({"subscriptionSet": [entry]}).encode(), 200_071, client)

    def pop_answer(self, client="c", **changes):
        return self.ask(self.lite.service.pop_lite_message, {
            "clientId": client, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": 32, "invisibleTime": 10_000,
            "pollTime": 0, "bornTime": self.clock.now_ms(), **changes}, code=200_070, client=client)

    def pop(self, client="c", **changes):
        """The messages of a pop; an empty list if there was none."""
        answer = self.pop_answer(client, **changes)
        assert answer.code in {0, 210}, (answer.code, answer.remark)
        return lite_popped(answer, self.broker_config.broker_name)

    def ack(self, one, group=GROUP, **changes):
        return self.ask(self.acks.ack_message, {
            "consumerGroup": group, "topic": one.topic, "queueId": 0, "extraInfo": one.receipt,
            "offset": one.info.queue_offset, "liteTopic": one.message.properties["__LITE_TOPIC"], **changes},
            code=200_051)

    def change(self, one, ms, **changes):
        return self.ask(self.acks.change_invisible_time, {
            "consumerGroup": GROUP, "topic": one.topic, "queueId": 0, "extraInfo": one.receipt,
            "offset": one.info.queue_offset, "liteTopic": one.message.properties["__LITE_TOPIC"],
            "invisibleTime": ms, **changes}, code=200_053)

    def offset(self, name, group=GROUP, topic=PARENT):
        return self.broker.offsets.query(group, f"%LMQ%${topic}${name}", 0)


def lite_popped(answer, broker_name):
    """The messages of an answer with receipts as MQClientAPIImpl.processPopLiteResponse makes them."""
    if answer.code:
        return []
    counts = answer.ext["orderCountInfo"].split(";")
    ones, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        message = decode_message(answer.body[at : at + size])
        at += size
        offset, = message.properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
        message.reconsume_times = int(counts[len(ones)])
        ones.append(Popped(message, ExtraInfo(
            0, int(answer.ext["popTime"]), int(answer.ext["invisibleTime"]), int(answer.ext["reviveQid"]), "0",
            broker_name, 0, int(offset)).encode(), message.topic))
    assert len(counts) == len(ones)
    return ones


@pytest.fixture
def open_world(tmp_path, kit):
    worlds = []

    def opened(**more):
        worlds.append(LiteWorld(tmp_path / "store", kit, **more))
        return worlds[-1]

    yield opened
    for world in worlds:
        world.store.close()


@pytest.fixture
def world(open_world):
    """A broker with the topic ``parent`` and the group ``lite``."""
    world = open_world()
    assert world.topic().code == 0
    assert world.group().code == 0
    return world
