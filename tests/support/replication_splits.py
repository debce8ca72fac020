"""Two masters in a `World`: a slave is promoted while its old master still runs, cut off from all other brokers.

I10 must hold. A master that needs a slave acknowledges nothing after it was cut off. One that needs none acknowledges,
and the promotion has given up those messages. Name servers of the other side name the new master only. The old master
does not start as a second master where the new one answers. It follows after a repair.
"""

from __future__ import annotations

import asyncio
import random

from node_network import BASE_MS
from replication_clients import Sent
from replication_places import NAMES, NAMESRV_PORT, QUEUES, TOPIC

from tailrace.errors import RemotingError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.ha.members import members_in
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError


class Splits:
    """The actions of the operator, and a client that still sends to the old master."""

    def draw_splits(self, splits):
        rng = random.Random(f"{self.seed} splits")
        self.split_rng = random.Random(f"{self.seed} what splits do")
        self.splits = rng.random() < 0.25 if splits is None else splits

    def split_actions(self):
        """Return (action, weight) of this run."""
        return [(self._split, 5), (self._heal, 3)] if self.splits else []

    @property
    def alone(self):
        """Old masters that run, and are cut off."""
        return [node for node in self.nodes if node.is_alone]

    async def _split(self):
        """Cut the master off, and promote a slave."""
        master = self.master
        if self.alone or not master.ready or not self.has_copy or not all(
            node.ready and node.frozen is None and not node.was_master for node in self.slaves
        ):
            return
        self.network.block(*(
            way for node in self.nodes if node is not master
            for way in ((master.ip, node.ip), (node.ip, master.ip))))
        master.crash_at = -1
        self.counts["splits"] += 1
        self.note(f"{master.name} is cut off, and runs")
        await self._promote_best(master)

    async def send_alone(self):
        """Send to masters that are cut off, as a client with an old route does."""
        rng, client = random.Random(f"{self.seed} old route"), RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.1, 1.0)))
            for node in self.alone:
                if node.ready:
                    await self._send_alone(client, node, rng)

    async def _send_alone(self, client, node, rng):
        number = len(self.sent)
        body = b"%08d" % number + rng.randbytes(rng.randrange(200))
        sent = Sent(number, rng.randrange(QUEUES), body, at_s=self.loop.time())
        self.sent.append(sent)
        self.by_body[body] = sent
        try:
            answer = await self.ask(client, node, RequestCode.SEND_MESSAGE, {
                "producerGroup": "producers", "topic": TOPIC, "sysFlag": 0, "properties": "", "defaultTopic": "TBW102",
                "defaultTopicQueueNums": QUEUES, "queueId": sent.queue_id, "bornTimestamp": BASE_MS, "flag": 0},
                body, timeout_ms=15_000)
        except RemotingError:
            return
        self.counts[f"sends to an old master answered with {answer.code}"] += 1
        if answer.code == ResponseCode.SUCCESS and self.need > 1:
            self.wrong.append(f"I10: {number} is acknowledged by {node.name}, which is cut off")

    async def ask_names(self):
        """Ask the name server of the new master for the master."""
        client = RemotingClient()
        while not self.calm:
            await asyncio.sleep(1)
            master, lives = self.master, self.master.lives
            if not self.alone or not master.ready:
                continue
            try:
                answer = await client.invoke(
                    f"{master.ip}:{NAMESRV_PORT}", RequestCode.GET_BROKER_MEMBER_GROUP,
                    {"clusterName": NAMES[0], "brokerName": NAMES[1]}, timeout_ms=1000)
            except RemotingError:
                continue
            if self.master is not master or master.lives != lives or not self.alone:
                continue
            found = members_in(answer.body).get(0)
            self.counts["names of masters"] += 1
            if found != master.address:
                self.wrong.append(f"I10: the name server of {master.name} names {found}")

    async def end_splits(self):
        """Stop the old masters. Then the network is well again, and they are refused as second masters."""
        ended = self.alone
        for node in ended:
            if node.ready:
                await self._stop(node)
            elif node.life is not None:
                node.stop(power=False)
        self.network.heal()
        if ended:
            self.network.slow_s, self.network.loss = 0.002, 0.0
        for node in ended:
            if node.life is None and self.master.ready and self.split_rng.random() < 0.7:
                await self._start_second(node)

    async def _start_second(self, node):
        """Start an old master with its old settings."""
        master, life = self.master, self.master.life
        node.is_second, node.crash_at = True, -1
        await node.start()
        node.is_second = False
        if not node.ready:
            self.counts["second masters refused"] += 1
            return
        if master.life is life and master.ready and not master.slow_s and not master.read_faults:
            raise ViolationError(f"I10: {node.name} starts as a second master besides {master.name}")
        node.stop(power=False)
