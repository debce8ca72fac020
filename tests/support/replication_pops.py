"""A group of a `World` that pops: it acknowledges most messages, and lets the time of the others end.

The log of a master has all that was handed out and acknowledged: a pop puts a checkpoint there, and an acknowledgement
a record. So the log of the last master says which messages may have been delivered again (I9):
- A message that was acknowledged to its producer is popped at least once (P1).
- A master hands out a place of a queue once in each of its lives, and none below the offsets with which a life began
  that another life has handed out (P2). A promotion may begin with older offsets.
- Each message that a pop in the log has handed out, and that was not acknowledged in time, has a copy in the retry
  topic, one for each pop at most, and no other one has (P3).
- An acknowledgement that was answered is in the log of its master. It is lost as other messages on one disk are.
- In the end the group has no lag.
"""

from __future__ import annotations

import asyncio
import collections
import random

from node_network import BASE_MS
from pop_client import ack_fields, batch_ack_body, changed, pop_fields, popped
from replication_clients import Sent
from replication_places import NAMES, TASKS, WORKERS

from tailrace.broker.consumers.lags import Lag
from tailrace.errors import RemotingError
from tailrace.formats.names import TAGS
from tailrace.formats.pop import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    Ack,
    PopCheckPoint,
    pop_retry_topic,
    revive_topic,
)
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError

RETRY = pop_retry_topic(TASKS, WORKERS)
REVIVE = revive_topic(NAMES[0])
INVISIBLE_MS = (1000, 4000, 8000, 15_000, 25_000)
CLOCKS_MS = 6500
"""How far two clocks may be apart, and some time for a pass of a service."""
DRAIN_S = 300.0
"""Longest time until a group without faults has consumed everything."""


class PopRecords:
    """Pops in the log of a master."""

    def __init__(self):
        self.numbers = {}
        """Number of the message at (topic, queue, offset)."""
        self.copies = collections.Counter()
        """Copies in the retry topic, by number."""
        self.pops = {}
        """The first checkpoints by topic, queue, offset and time of the pop."""
        self.last_ms = 0
        """Latest time at which a checkpoint is due; one that could not be revived is put again for later."""
        self.acks = {}
        """Position, body and time of the first acknowledgement, by the key of its checkpoint and its offset."""

    def take(self, message, position):
        """Take a message of the log."""
        if message.topic in {TASKS, RETRY}:
            place = message.topic, message.queue_id, message.queue_offset
            self.numbers[place] = message.body[:8]
            self.copies[message.body[:8]] += message.topic == RETRY
        elif message.topic == REVIVE or message.properties.get("REAL_TOPIC") == REVIVE:
            tag = message.properties.get(TAGS)
            if tag == CK_TAG:
                checkpoint = PopCheckPoint.decode(message.body, NAMES[1])
                self.last_ms = max(self.last_ms, checkpoint.revive_time)
                for diff in checkpoint.diffs:
                    offset = checkpoint.start_offset + diff
                    pop = checkpoint.topic, checkpoint.queue_id, offset, checkpoint.pop_time
                    self.pops.setdefault(pop, checkpoint)
            elif tag in {ACK_TAG, BATCH_ACK_TAG}:
                ack = Ack.decode(message.body, NAMES[1], batch=tag == BATCH_ACK_TAG)
                for offset in ack.offsets:
                    self.acks.setdefault(
                        (ack.merge_key, offset), (position, message.body, message.store_timestamp))

    def wanted(self):
        """Return the least and the largest number of copies, by number.

        After a restart a place may be handed out again. A copy that comes later than the time of both pops is that of
        both.
        """
        least, most, without = collections.Counter(), collections.Counter(), set()
        for (topic, queue_id, offset, _), checkpoint in self.pops.items():
            place = topic, queue_id, offset
            number = self.numbers.get(place)
            ack = self.acks.get((checkpoint.merge_key, offset))
            if ack is None and place not in without:
                without.add(place)
                least[number] += 1
            most[number] += ack is None or ack[2] + CLOCKS_MS > checkpoint.revive_time
        return least, most


class Poppers:
    """What the group does, and what must hold."""

    def draw_pops(self, pops):
        rng = random.Random(f"{self.seed} pops")
        self.pops = rng.random() < 0.4 if pops is None else pops
        self.popped, self.held = collections.defaultdict(list), []
        """What was popped by its body, and what is not acknowledged yet."""
        self.handed_out = {}
        """Position of the message at (topic, queue, offset) that a master has handed out in a life."""
        self.timers_lost_s = -1.0
        """Last time at which a full disk has lost timers."""
        self.pops_have_holes = False
        """Whether a power loss may have taken some of the records of a master, and left later ones."""

    def poppers(self):
        """Return the coroutines of the producer and of the group."""
        return [self._send_tasks(), self._pop_tasks(), self._acknowledge_tasks()] if self.pops else []

    async def _send_tasks(self):
        rng, client = random.Random(f"{self.seed} tasks"), RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.05, 0.3, 1.0)))
            if self.sends:
                await self.send(client, rng, topic=TASKS)

    async def _pop_tasks(self):
        rng, client = random.Random(f"{self.seed} pops of tasks"), RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.3, 1.5)))
            if self.sends:
                self.held += await self._pop(client, rng.choice(INVISIBLE_MS), 1 + rng.randrange(8))

    async def _acknowledge_tasks(self):
        rng, client = random.Random(f"{self.seed} acknowledgements"), RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.2, 1.0)))
            if not self.held or not self.sends:
                continue
            one = self.held.pop(rng.randrange(len(self.held)))
            choice = rng.random()
            if choice < 0.6:
                await self._acknowledge(client, [one])
            elif choice < 0.75:
                others = [other for other in self.held if other.topic == one.topic]
                self.held = [other for other in self.held if other.topic != one.topic]
                await self._acknowledge(client, [one, *others])
            elif choice < 0.85:
                await self._change(client, one, rng.choice(INVISIBLE_MS))

    async def _pop(self, client, invisible_ms, most):
        """Pop up to ``most`` messages and return them."""
        node, life = self.master, self.master.life
        now_ms = BASE_MS + int(self.loop.time() * 1000)
        try:
            answer = await self.ask(client, node, RequestCode.POP_MESSAGE, pop_fields(
                TASKS, WORKERS, now_ms, invisibleTime=invisible_ms, maxMsgNums=most), timeout_ms=10_000)
        except RemotingError:
            self.counts["pops without an answer"] += 1
            return []
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT}:
            self.counts[f"pops answered with {answer.code}"] += 1
        found = popped(answer, TASKS, NAMES[1], WORKERS)
        for one in found:
            self._note_popped(node, life, one)
        self.counts["popped"] += len(found)
        return found

    def _note_popped(self, node, life, one):
        if one.body not in self.by_body:
            self.wrong.append(f"never sent: {one.message}")
        self.popped[one.body].append(one)
        position = one.message.phy_offset
        first, lives = self.handed_out.setdefault((one.place, position), (self.loop.time(), []))
        if life in lives:
            self.wrong.append(f"P2: {one.body[:8]} is handed out twice by {node.name}, first at {first}: {one.place}")
        if node.life is life and lives and one.place[2] < node.pop_floors.get(one.place[:2], 0):
            self.wrong.append(f"P2: {one.body[:8]} is handed out again by {node.name}: {one.place}")
        lives.append(life)

    async def _acknowledge(self, client, ones):
        node, life, began_s = self.master, self.master.life, self.loop.time()
        try:
            if len(ones) > 1:
                answer = await self.ask(client, node, RequestCode.BATCH_ACK_MESSAGE, {}, batch_ack_body(
                    ones, TASKS, WORKERS, NAMES[1]), timeout_ms=5000)
            else:
                answer = await self.ask(
                    client, node, RequestCode.ACK_MESSAGE, ack_fields(ones[0], WORKERS), timeout_ms=5000)
        except RemotingError:
            self.counts["acknowledgements without an answer"] += 1
            return
        self.counts[f"acknowledgements answered with {answer.code}"] += len(ones)
        if answer.code == ResponseCode.SUCCESS and node.ready and node.life is life and node is self.master:
            try:
                self._acknowledged_pops(node, ones, began_s, is_batch=len(ones) > 1)
            except ViolationError as error:
                self.wrong.append(str(error))

    def _acknowledged_pops(self, node, ones, began_s, *, is_batch):
        """Note the records of an acknowledgement that was answered."""
        self.check_begin(node)
        self.records.read()
        for one in ones:
            info = one.info
            key = one.topic, WORKERS, info.queue_id, info.start_offset, info.pop_time, NAMES[1]
            found = self.records.pops.acks.get((key, info.queue_offset))
            if found is not None:
                made = Sent(len(self.sent), info.queue_id, found[1], REVIVE, at_s=began_s, phy_offset=found[0])
                self.sent.append(made)
                self.acknowledged(node, made, need=1)
            elif not is_batch:  # a batch leaves out messages that the queue does not have
                raise ViolationError(f"P3: an acknowledgement of {one.body[:8]} is not in the log of {node.name}")

    async def _change(self, client, one, invisible_ms):
        try:
            answer = await self.ask(
                client, self.master, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                ack_fields(one, WORKERS, invisibleTime=invisible_ms), timeout_ms=5000)
        except RemotingError:
            return
        self.counts[f"changes answered with {answer.code}"] += 1
        if answer.code == ResponseCode.SUCCESS:
            self.held.append(changed(one, answer))

    # --- at the end

    async def drain_pops(self, client):
        """Pop and acknowledge until nothing is left."""
        until = self.loop.time() + DRAIN_S
        self.held.clear()
        while self.pops:
            found = await self._pop(client, 8000, 32)
            if found:
                for topic in (TASKS, RETRY):
                    if ones := [one for one in found if one.topic == topic]:
                        await self._acknowledge(client, ones)
            elif self._is_popped():
                return
            else:
                await asyncio.sleep(0.5)
            self.check()
            if self.loop.time() > until:
                raise ViolationError(f"I9: the group has a lag: {self._lags()}")

    def _lags(self):
        broker = self.master.controller.broker
        return {pair: lag for pair, lag in broker.lags.sums(Lag).items() if pair[0] == WORKERS}

    def _is_popped(self):
        node = self.master
        self.records.read()
        if node.clock.now_ms() < self.records.pops.last_ms + 3000:
            return False
        revive = node.controller._pop.revive
        return self._timers_are_done() and not revive.pending and not any(
            progress.lag for progress in revive.progress().values()) and not any(
            lag.behind for lag in self._lags().values())

    def check_pops(self):
        """P1 and P3, from the log of the last master."""
        if not self.pops:
            return
        self.records.read()
        for sent in self.sent:
            if sent.topic != TASKS or not sent.need or sent.at_s <= self.timers_lost_s:
                continue
            if sent.body not in self.popped and not any(
                self.is_expired(sent, node) for node in self.nodes  # a master without it moves the group on
            ):
                raise ViolationError(f"P1: {sent.number} is acknowledged and was never popped: {sent}")
        pops = self.records.pops
        self.counts["copies of pops"] += sum(pops.copies.values())
        if self.expired_to:
            return  # the records of some pops have expired
        least, most = pops.wanted()
        for number, count in most.items():
            copies = pops.copies[number]
            if number is not None and (copies < least[number] or (copies > count and not self.pops_have_holes)):
                raise ViolationError(f"P3: {number} has {copies} copies, and {least[number]} to {count} are due")
        self.counts["pops checked"] += len(pops.pops)
