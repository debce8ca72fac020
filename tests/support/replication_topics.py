"""A topic that is deleted and created again in a `World`, while links, processes and roles fail."""

from __future__ import annotations

import asyncio
import collections
import random
from typing import NamedTuple

from replication_places import PASSING, QUEUES

from tailrace.errors import RemotingError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError


class Deletion(NamedTuple):
    """A deletion that a master has answered."""

    node: object
    position: int
    """All messages of the ended life are before this position of its log."""


class PassingTopic:
    """What happens to the topic, and what must hold for its messages."""

    async def pass_topic(self):
        rng = random.Random(f"{self.seed} passing")
        client = RemotingClient()
        while not self.calm:
            await asyncio.sleep(rng.random() * rng.choice((0.02, 0.3, 2.0)))
            if not self.sends:
                continue
            if rng.random() < 0.15:
                await self._delete(client)
            if rng.random() < 0.1:
                await self._create(client)
            await self.send(client, rng, topic=PASSING)
        await client.close()

    async def _delete(self, client):
        node, life = self.master, self.master.life
        try:
            answer = await self.ask(client, node, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": PASSING})
        except RemotingError:
            self.note("the deletion has no answer")
            return
        if answer.code != ResponseCode.SUCCESS:
            self.counts[f"deletions answered with {answer.code}"] += 1
        elif node.life is life and node.ready and self.master is node:
            self.counts["deletions"] += 1
            self.deletion = Deletion(node, node.store.inner.lives.deleted_up_to(PASSING))
            self.note(f"{node.name} has deleted the topic up to {self.deletion.position}")

    async def _create(self, client):
        try:
            await self.ask(client, self.master, RequestCode.UPDATE_AND_CREATE_TOPIC, {
                "topic": PASSING, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES,
                "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"})
        except RemotingError:
            self.note("the creation has no answer")

    # --- checks

    def check_deletion(self, master):
        """Check that a master that starts again has what it has deleted; a promoted one may not have it."""
        deletion = self.deletion
        has = master.store.inner.lives.deleted_up_to(PASSING)
        if deletion is not None and deletion.node is master and has < min(deletion.position, master.end):
            raise ViolationError(f"I7: {master.name} has deleted up to {deletion.position}, and knows {has} now")
        if deletion is not None:
            self.deletion = Deletion(master, has)
        self.note_ended(has)
        lives, end = master.store.inner.lives, master.store.inner.lives.end

        def noted(ended):
            end(ended)
            self.note_ended(lives.deleted_up_to(PASSING))

        lives.end = noted

    def note_ended(self, position):
        """Note where a master has ended a life, even if its answer was lost."""
        self.most_ended = max(self.most_ended, position)

    @staticmethod
    def knows_deletions(node, master):
        """Whether a slave has ended the lives that its master has ended."""
        ended, wanted = (one.store.inner.lives.deleted_up_to(PASSING) for one in (node, master))
        return ended >= wanted

    def check_passing(self, node):
        """Check the messages of a node that has everything."""
        if not self.passes:
            return
        ended, found = node.store.inner.lives.deleted_up_to(PASSING), self._everything(node.store, PASSING)
        if ended > self.most_ended:
            raise ViolationError(f"I7: {node.name} has ended the topic at {ended}, its masters at {self.most_ended}")
        counts = collections.Counter(body for bodies in found.values() for body in bodies)
        for sent in self.sent:
            if sent.topic != PASSING:
                continue
            count, past = counts[sent.body], 0 <= sent.phy_offset < ended
            if count > 1:
                raise ViolationError(f"I7: {node.name} has {sent.number} {count} times: {sent}")
            if count and sent.body not in found[sent.queue_id]:
                raise ViolationError(f"I7: {sent.number} is in another queue at {node.name}")
            if not past and sent.need and not count and sent.phy_offset >= node.low:
                raise ViolationError(f"I7: {sent.number} is acknowledged and not at {node.name}, after {ended}: {sent}")
            if past and sent.need and count:
                raise ViolationError(f"I7: {sent.number} was deleted, and is at {node.name}, before {ended}: {sent}")
        self.counts["messages of the passing topic"] += sum(counts.values())
