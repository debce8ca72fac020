"""Clients of the brokers of a simulated pair, and a slave's request for the timer checkpoint."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass, field

from node_network import BASE_MS
from replication_places import GROUP, QUEUES, TOPIC

from tailrace.errors import RemotingError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.names import DELAY, KEYS, TIMER_DELIVER_MS, UNIQ_KEY
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.timercheckpoint import TIMER_CHECKPOINT
from tailrace.kernels.properties import encode_properties
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError

LEVELS_MS = (1000, 5000, 10_000)
"""The first delay levels."""
SLACK_MS = 1000
"""A timer that is due this much before a read time is surely in a slot before it."""


@dataclass(eq=False)
class Sent:
    """A message, and what the brokers have said about it."""

    number: int
    queue_id: int
    body: bytes = field(repr=False)
    topic: str = TOPIC
    due_ms: int = 0
    at_s: float = 0.0
    """Time before which no broker has it."""
    phy_offset: int = -1
    need: int = 0
    """Number of copies that its acknowledgement promises; 0 if it is not acknowledged, or forfeited."""
    on: set = field(default_factory=set)
    """Nodes that had it when it was acknowledged and have lost nothing since."""


class Clients:
    """What clients do in a `World`."""

    async def ask(self, client, node, code, ext, body=b"", timeout_ms=3000):
        return await client.invoke(
            node.address, code, {name: str(value) for name, value in ext.items()}, body, timeout_ms=timeout_ms)

    async def produce(self, number):
        rng = random.Random(f"{self.seed} producer {number}")
        client = RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.02, 0.2, 1.0)))
            if self.sends:
                await self.send(client, rng, late=rng.random() < 0.2)
        await client.close()

    async def send(self, client, rng, *, late=False, topic=TOPIC):
        """Send one message; return it if it is acknowledged. With ``late`` a timer, or one with a delay level."""
        number = len(self.sent)
        body = b"%08d" % number + rng.randbytes(rng.randrange(rng.choice((20, 200, 2000))))
        sent = Sent(number, rng.randrange(QUEUES), body, topic, at_s=self.loop.time())
        properties = {KEYS: f"k{number}", UNIQ_KEY: f"U{number:08d}"}
        if late:
            now_ms, level = BASE_MS + int(self.loop.time() * 1000), rng.randrange(len(LEVELS_MS) * 3)
            if level < len(LEVELS_MS):
                sent.due_ms, properties[DELAY] = now_ms + LEVELS_MS[level], str(level + 1)
            else:
                sent.due_ms = now_ms + rng.randrange(2000, rng.choice((4000, 20_000)))
                properties[TIMER_DELIVER_MS] = str(sent.due_ms)
        answer = await self.put(client, sent, {
            "producerGroup": "producers", "topic": topic, "sysFlag": 0,
            "properties": encode_properties(properties).decode()})
        return None if answer is None else sent

    async def put(self, client, sent, fields):
        """Send a message with these fields to the master. Return the answer if the message is acknowledged."""
        node = self.master
        self.sent.append(sent)
        self.by_body[sent.body] = sent
        try:
            answer = await self.ask(client, node, RequestCode.SEND_MESSAGE, fields | {
                "defaultTopic": "TBW102", "defaultTopicQueueNums": QUEUES, "queueId": sent.queue_id,
                "bornTimestamp": BASE_MS, "flag": 0}, sent.body, timeout_ms=15_000)
        except RemotingError:
            self.counts["sends without an answer"] += 1
            return None
        if answer.code != ResponseCode.SUCCESS:
            self.counts[f"sends answered with {answer.code}"] += 1
            return None
        sent.phy_offset = int(answer.ext["msgId"][16:], 16)
        try:
            self.acknowledged(node, sent)
        except ViolationError as error:
            self.wrong.append(str(error))
        return answer

    async def consume(self):
        """Read each queue from the committed offset, at a slave if the master does not answer, and commit."""
        rng = random.Random(f"{self.seed} consumer")
        client = RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * 2)
            for queue_id in range(QUEUES):
                await self.consume_some(client, rng, self.master, queue_id)
                slaves = self.slaves
                if not self.master.ready and slaves:
                    await self.consume_some(client, rng, rng.choice(slaves), queue_id)
        await client.close()

    async def consume_some(self, client, rng, node, queue_id):
        """Consume up to 32 messages. Return the number, -1 without an answer."""
        ext, life = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id}, node.life
        try:
            found = await self.ask(client, node, RequestCode.QUERY_CONSUMER_OFFSET, ext, timeout_ms=1000)
            offset = int(found.ext["offset"]) if found.code == ResponseCode.SUCCESS else 0
            answer = await self.ask(client, node, RequestCode.PULL_MESSAGE, ext | {
                "queueOffset": offset, "maxMsgNums": 1 + rng.randrange(32), "sysFlag": 4, "commitOffset": 0,
                "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}, timeout_ms=2000)
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                answer.body = b""  # it was deleted: continue at the first message that is there
            elif answer.code not in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
                return 0  # the other one has nothing here, and says where to continue: after damage
            # A slave does not know what other slaves have: of more than two copies it shows what only two have.
            count = self._take(answer.body, queue_id, is_replicated=not self.shows_all and (
                node.is_master or self.master_settings.get("in_sync_replicas", 2) < 3))
            until = int(answer.ext["nextBeginOffset"])
            done = await self.ask(client, node, RequestCode.UPDATE_CONSUMER_OFFSET, ext | {
                "commitOffset": until}, timeout_ms=1000)
        except RemotingError:
            return -1
        self.counts["consumed"] += count
        if done.code == ResponseCode.SUCCESS and not node.is_master and node.ready and node.life is life and (
            node.controller._slave.tables._applied is not None  # else it takes what its master has
        ):
            self.counts["committed at a slave"] += 1
            node.floors[queue_id] = max(node.floors.get(queue_id, 0), until)
        return count

    def _take(self, data, queue_id, *, is_replicated):
        at = count = 0
        while at < len(data):
            size = struct.unpack_from(">i", data, at)[0]
            message = decode_message(data[at : at + size])
            if message.body not in self.by_body:
                self.wrong.append(f"never sent: {message}")
            self.consumed[queue_id].add(message.body)
            if is_replicated:
                self.replicated[queue_id].add(message.body)
            at, count = at + size, count + 1
        return count

    async def copy_timer_checkpoint(self, number):
        """Ask for the timer checkpoint as a slave of RocketMQ does, and check that it has the timers before it."""
        rng = random.Random(f"{self.seed} timers {number}")
        node, client, life = self.nodes[number], None, None
        while not self.calm:
            await asyncio.sleep(rng.random())
            master = self.master
            if node is master or node.is_alone or not node.ready or not master.ready:
                continue
            if node.life is not life:
                client, life = RemotingClient(), node.life
            task = self.loop.start(self._checkpoint(client, master), life)
            await asyncio.wait([task])
            if task.cancelled() or not (found := task.result()) or not node.ready or self.master is not master:
                continue
            if master.ready and node.life is life and node.frozen is None:
                self._check_checkpoint(node, master, found)

    @staticmethod
    async def _checkpoint(client, master):
        try:
            answer = await client.invoke(master.address, RequestCode.GET_TIMER_CHECK_POINT, {}, timeout_ms=1000)
        except RemotingError:
            return None
        return TIMER_CHECKPOINT.unpack_from(answer.body) if answer.code == ResponseCode.SUCCESS else None

    def _check_checkpoint(self, node, master, fields):
        """A slave of RocketMQ delivers what is due later, or is enqueued later, after its promotion."""
        self.counts["timer checkpoints"] += 1
        self.check_begin(master)
        self.records.read()
        end = node.end
        read_ms, enqueued = fields.last_read_time_ms, fields.master_timer_queue_offset
        for number, (queue_offset, until, due) in self.records.timers.items():
            if until <= end and queue_offset < enqueued and due < read_ms - SLACK_MS and (
                self.records.delivered.get(number, 1 << 60) > end and int(number) not in self.given_up
            ):
                self.wrong.append(
                    f"H19: {node.name} gets the read time {read_ms}, and has not the delivery of {int(number)}, "
                    f"due at {due}")
