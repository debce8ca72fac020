"""Transactions of a `World`: a producer ends some of them, and leaves the others to the checks of the brokers.

TX1 to TX3 must hold over restarts and promotions (I8). A half message, or a commit, that an operator has given up
counts no more. In the end no half message is open: a master checks each one that it has found in its log.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
from dataclasses import dataclass

from replication_clients import Sent
from replication_places import DEALERS, DEALS, QUEUES

from tailrace.errors import RemotingError
from tailrace.formats.commitlog import SysFlag, decode_message
from tailrace.formats.names import HALF_TOPIC, KEYS, PGROUP, TRAN_MSG, UNIQ_KEY
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.kernels.properties import encode_properties
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError

SETTINGS = {
    "transaction_time_out": 2000, "transaction_check_interval": 2500, "transaction_check_max": 10_000,
    "transaction_op_batch_interval": 1500}
CHECKS_S = 120.0
"""Longest time until no half message is open when nothing fails any more."""


@dataclass(eq=False)
class Deal:
    """A transaction."""

    half: Sent
    commits: bool
    """What its producer decides."""
    is_left: bool
    """Whether its producer waits for a check."""
    offset: int = -1
    """Of its half message in the half topic."""
    ends: int = 0
    checks: int = 0
    commit: Sent | None = None
    """Its committed message, once the commit was acknowledged."""


class Dealers:
    """What the producer does, and what must hold."""

    def draw_deals(self, transactions):
        rng = random.Random(f"{self.seed} deals")
        self.transactions = rng.random() < 0.4 if transactions is None else transactions
        self.deals = {}
        """By the body of the message."""

    def dealers(self):
        """Return the coroutines of the producer."""
        if not self.transactions:
            return []
        client = RemotingClient()
        client.on_request = lambda address, request: self._is_asked(client, address, request)
        return [self._begin_deals(client), self._end_deals(client), self._beat(client)]

    async def _beat(self, client):
        """Send heartbeats to the master, over the connection that its checks come by."""
        body = json.dumps({
            "clientID": "dealer", "consumerDataSet": [], "producerDataSet": [{"groupName": DEALERS}]}).encode()
        while True:
            with contextlib.suppress(RemotingError):
                await self.ask(client, self.master, RequestCode.HEART_BEAT, {}, body, timeout_ms=1000)
            await asyncio.sleep(1)

    async def _begin_deals(self, client):
        rng = random.Random(f"{self.seed} dealer")
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.05, 0.5, 2.0)))
            if self.sends:
                await self._begin_deal(client, rng)

    async def _begin_deal(self, client, rng):
        number = len(self.sent)
        body = b"%08d" % number + rng.randbytes(rng.randrange(rng.choice((20, 200, 2000))))
        half = Sent(number, rng.randrange(QUEUES), body, HALF_TOPIC, at_s=self.loop.time())
        deal = self.deals[body] = Deal(half, commits=rng.random() < 0.6, is_left=rng.random() < 0.4)
        properties = {
            KEYS: f"k{number}", UNIQ_KEY: f"U{number:08d}", TRAN_MSG: "true", PGROUP: DEALERS}
        answer = await self.put(client, half, {
            "producerGroup": DEALERS, "topic": DEALS, "sysFlag": SysFlag.TRANSACTION_PREPARED,
            "properties": encode_properties(properties).decode()})
        if answer is not None:
            deal.offset = int(answer.ext["queueOffset"])
            self.counts["half messages"] += 1

    async def _end_deals(self, client):
        rng = random.Random(f"{self.seed} ends")
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.05, 0.5)))
            again = rng.random() < 0.1
            found = [deal for deal in self.deals.values()
                     if deal.offset >= 0 and not deal.is_left and (deal.ends > 0) == again]
            if found and self.sends:
                deal = rng.choice(found[-20:])
                deal.ends += 1
                await self._end_deal(client, self.master, deal, deal.offset, deal.half.phy_offset)

    async def _end_deal(self, client, node, deal, offset, position, *, is_check=False):
        life = node.life
        flag = SysFlag.TRANSACTION_COMMIT if deal.commits else SysFlag.TRANSACTION_ROLLBACK
        name = f"U{deal.half.number:08d}"
        try:
            answer = await self.ask(client, node, RequestCode.END_TRANSACTION, {
                "producerGroup": DEALERS, "tranStateTableOffset": offset, "commitLogOffset": position,
                "commitOrRollback": int(flag), "fromTransactionCheck": str(is_check).lower(), "msgId": name,
                "transactionId": name})
        except RemotingError:
            self.counts["ends without an answer"] += 1
            return
        if answer.code != ResponseCode.SUCCESS:
            self.counts[f"ends answered with {answer.code}"] += 1
            return
        self.counts["commits" if deal.commits else "rollbacks"] += 1
        if deal.commits and deal.commit is None and node.ready and node.life is life and node is self.master:
            try:
                self._committed(node, deal)
            except ViolationError as error:
                self.wrong.append(str(error))

    def _committed(self, node, deal):
        """Note the committed message of an acknowledged commit."""
        self.check_begin(node)
        self.records.read()
        number = deal.half.body[:8]
        if number in self.records.committed:
            half = deal.half
            deal.commit = Sent(
                len(self.sent), half.queue_id, half.body, DEALS, at_s=half.at_s,  # perhaps of an earlier end
                phy_offset=self.records.committed[number])
            self.sent.append(deal.commit)
            self.acknowledged(node, deal.commit, need=1)
        elif not self.is_expired(deal.half, node):
            raise ViolationError(f"TX1: the commit of {deal.half.number} is acknowledged and not at {node.name}")

    # --- checks of the brokers

    def _is_asked(self, client, address, request):
        assert request.code == RequestCode.CHECK_TRANSACTION_STATE, request
        deal = self.deals[decode_message(request.body).body]
        node = next(node for node in self.nodes if node.address == address)
        self.counts["checks of transactions"] += 1
        deal.checks += 1
        if deal.is_left and deal.checks == 1 and deal.half.number % 3 == 0:
            return  # the producer does not know it yet
        offset, position = (int(request.ext[name]) for name in ("tranStateTableOffset", "commitLogOffset"))
        task = self.loop.create_task(self._end_deal(client, node, deal, offset, position, is_check=True))
        self.answers.add(task)
        task.add_done_callback(self.answers.discard)

    # --- what must hold

    def check_deals(self, node, *, final=False):
        """Compare the messages of a node that has everything with the decisions of the producer."""
        if not self.transactions:
            return
        found = self._everything(node.store, DEALS)
        counts = collections.Counter(body for bodies in found.values() for body in bodies)
        for body, count in counts.items():
            deal = self.deals[body]
            if not deal.commits:
                raise ViolationError(f"TX2: {deal.half.number} is rolled back, and is at {node.name}: {deal}")
            if count > 1 or body not in found[deal.half.queue_id]:
                raise ViolationError(f"TX1: {deal.half.number} is {count} times at {node.name}: {deal}")
        for body, deal in self.deals.items():
            known = [deal.commit] if deal.commit is not None else []
            # A master without the file of a half message has passed it, although another one may still have it.
            known += [deal.half] if final and deal.commits and deal.half.phy_offset >= self.master_began else []
            for sent in known:
                if sent.need and not counts[body] and not self.is_expired(sent, node) and (
                    final or node in sent.on
                ):
                    raise ViolationError(f"TX1: {deal.half.number} is acknowledged and not at {node.name}: {deal}")
        self.counts["messages of transactions"] += sum(counts.values())

    async def settle_deals(self):
        """TX3: wait until the master has no open half message."""
        until = self.loop.time() + CHECKS_S
        while self.transactions and (open_ := self.master.controller.broker.transactions.queue.pending):
            if self.loop.time() > until:
                raise ViolationError(f"TX3: {open_} half messages stay open at {self.master.name}")
            await asyncio.sleep(0.5)
            self.check()
