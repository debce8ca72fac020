"""A group whose members join, leave and are killed while the network is slow: beside a broker in memory, from seeds.

Nothing is lost: a committed offset never passes a message that no listener has consumed. In order, a queue has one
listener at a time, and each message comes after the one before. ``SEED`` is the first seed.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from fake_brokers import FakeRemoting, LockingBroker, LoopClock, run
from fake_consumers import until

from tailrace.client import AsyncPushConsumer, RetryLater, instance
from tailrace.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from tailrace.formats.remoting import RemotingCommand
from tailrace.formats.remoting import RequestCode as Code

FIRST = int(os.environ.get("SEED", "1"))
QUEUES = 6
MEMBERS_MAX = 6
PAUSES = (0.0, 0.05, 0.3, 1.0, 5.0, 30.0)
"""Between two members that come or go."""
SAFE = (Code.UPDATE_CONSUMER_OFFSET, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.HEART_BEAT,
        Code.QUERY_CONSUMER_OFFSET, Code.GET_CONSUMER_LIST_BY_GROUP, Code.PULL_MESSAGE, Code.GET_ROUTEINFO_BY_TOPIC)
"""Requests whose answer may get lost."""


class Remoting(FakeRemoting):
    """A network that is slow at random and loses some answers; after `kill` nothing comes through."""

    def __init__(self, **options):
        super().__init__(**options)
        self.killed = False
        self._sending = asyncio.Lock()

    async def invoke(self, address, code, ext, body=b"", *, timeout_ms=3000):
        rng = self.broker.rng
        answer = await super().invoke(address, code, ext, body, timeout_ms=timeout_ms)
        await self._way(rng)
        if code in SAFE and rng.random() < self.broker.loses:
            raise RemotingTimeoutError(address, timeout_ms)
        return answer

    async def travel(self):
        # A connection keeps the order of requests, even of two whose timers would end in the same moment.
        async with self._sending:
            await self._way(self.broker.rng)
            await super().travel()

    async def _way(self, rng):
        if rng.random() < 0.1:
            await asyncio.sleep(rng.random() * self.broker.slow_s)
        if self.killed:
            await self.broker.over.wait()
            raise RemotingConnectError("10.0.0.1:10911", "this member was killed")


class Broker(LockingBroker):
    """A look at each commit."""

    def __init__(self, rng, slow_s, loses, **topics):
        super().__init__(**topics)
        self.rng = rng
        self.slow_s = slow_s
        self.loses = loses
        self.consumed = [set() for _ in range(QUEUES)]
        """Offsets that a listener has consumed, or that were sent back, by queue."""
        self.checked = [0] * QUEUES
        self.over = asyncio.Event()
        self.wrong = []
        """What must not be; an exception here would be one of the network."""
        self.places = {}

    def put_one(self, queue_id):
        self.places[str(1000 * (len(self.places) + 1))] = queue_id, len(self.stored.get(("t", queue_id), ()))
        self.put("t", queue_id, b"")

    async def serve(self, remoting, code, ext, body, timeout_ms):
        answer = await super().serve(remoting, code, ext, body, timeout_ms)
        for queue_id in range(QUEUES):
            committed = self.committed.get(("g", "t", queue_id), 0)
            for offset in range(self.checked[queue_id], committed):
                if offset not in self.consumed[queue_id]:
                    self.wrong.append(f"offset {offset} of queue {queue_id} is skipped")
            self.checked[queue_id] = max(self.checked[queue_id], committed)
        self.asked.clear()
        self.times.clear()
        return answer

    async def _consumer_send_msg_back(self, remoting, ext, body):
        queue_id, offset = self.places[ext["offset"]]
        self.consumed[queue_id].add(offset)
        return RemotingCommand(0)


class Churn:
    """One run."""

    def __init__(self, seed, messages, *, in_order, kills=True, slow_s=0.5, loses=0.02, pauses=PAUSES):
        self.rng = random.Random(seed)
        self.messages = messages
        self.in_order = in_order
        self.slow_s = slow_s
        self.kills = kills
        self.pauses = pauses
        self.broker = FakeRemoting.broker = Broker(self.rng, slow_s, loses, t=QUEUES)
        self.members = []
        self.running = {}
        """In order: the member whose listener has a message of a queue."""
        self.last = {}
        """In order: offset of the last call, by queue."""
        self.calls = self.retries = 0
        self.done = False

    def u64(self):
        return self.rng.getrandbits(64)

    def listener(self, member):
        async def listen(message):
            queue_id, offset = message.queue_id, message.queue_offset
            if member.killed:
                await self.broker.over.wait()
            self.calls += 1
            if self.in_order:
                self.begins(member, queue_id, offset)
            try:
                if self.rng.random() < 0.02:
                    await asyncio.sleep(self.rng.random() * self.slow_s)
                if member.killed:
                    await self.broker.over.wait()
                    return
                if self.rng.random() < 0.005:
                    self.retries += self.in_order  # otherwise it is sent back, and comes in another topic
                    raise RetryLater(after_s=0.2)
            finally:
                if self.running.get(queue_id) is member:
                    del self.running[queue_id]
            self.broker.consumed[queue_id].add(offset)

        return listen

    def begins(self, member, queue_id, offset):
        other = self.running.get(queue_id)
        if other is not None and not other.killed:
            self.broker.wrong.append(f"queue {queue_id} has two listeners at a time")
        self.running[queue_id] = member
        last = self.last.get(queue_id, -1)
        if offset > last + 1:
            self.broker.wrong.append(f"queue {queue_id}: {offset} comes after {last}")
        self.last[queue_id] = offset

    def make(self):
        member = type("Member", (), {"killed": False, "started": asyncio.Event()})()
        member.consumer = AsyncPushConsumer(
            "g", self.listener(member), namesrv="n:1", topics="t", start="first", clock=LoopClock(),
            in_order=self.in_order, concurrency=8, suspend_s=0.2)
        self.members.append(member)
        return member

    async def join(self, member):
        try:
            await member.consumer.start()
        except RemotingError:  # the answer to its first heartbeat was lost
            if member in self.members:
                self.members.remove(member)
        member.started.set()

    async def leave(self, member):
        await member.started.wait()
        await member.consumer.close()

    def kill(self):
        member = self.members.pop(self.rng.randrange(len(self.members)))
        remoting = member.consumer._share.instance.remoting
        member.killed = remoting.killed = True
        self.broker.connections.pop(remoting, None)
        if self.broker.members.get("g", {}).pop(remoting, None):
            self.broker.notify("g")

    async def churn(self):
        steps = {}
        while not self.done:
            kinds = ["join"] * (MEMBERS_MAX - len(self.members)) + ["leave"] * len(self.members)
            if self.kills and self.members:
                kinds += ["kill"] * 2
            kind = self.rng.choice(kinds)
            if kind == "kill":
                self.kill()
            else:
                member = self.make() if kind == "join" else self.members.pop(self.rng.randrange(len(self.members)))
                steps[asyncio.create_task(getattr(self, kind)(member))] = member
            await asyncio.sleep(self.rng.choice(self.pauses))
        await asyncio.gather(*(task for task, member in steps.items() if not member.killed))

    async def put(self):
        left = self.messages
        while left:
            some = min(left, self.rng.randrange(1, 200))
            for _ in range(some):
                self.broker.put_one(self.rng.randrange(QUEUES))
            left -= some
            await asyncio.sleep(self.rng.random() * 2)

    def all_committed(self):
        return all(len(stored) == self.broker.committed.get(("g", *place))
                   for place, stored in self.broker.stored.items())

    async def run(self):
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        churning = asyncio.create_task(self.churn())
        await self.put()
        self.done = True
        await churning
        while not self.members:
            await self.join(self.make())
        await until(lambda: self.all_committed() or self.broker.wrong, 600)
        for member in self.members:
            await member.consumer.close()
        self.broker.over.set()
        assert not self.broker.wrong
        assert not failures
        assert sum(map(len, self.broker.consumed)) == self.messages


def churned(monkeypatch, seed, messages, **options):
    async def test():
        made = Churn(seed, messages, **options)
        monkeypatch.setattr(instance, "SystemEntropy", lambda: made)
        await made.run()
        return made

    monkeypatch.setattr(instance, "RemotingClient", Remoting)
    try:
        return run(test)
    except BaseException as error:
        raise AssertionError(f"SEED={seed} in_order={options['in_order']}: {error!r}") from error


@pytest.fixture(autouse=True)
def loop_kind():
    """In virtual time one loop is like another."""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
def test_nothing_is_lost_while_members_join_leave_and_are_killed(monkeypatch, in_order, seed):
    churned(monkeypatch, seed, 2_000, in_order=in_order)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 2))
@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
def test_members_that_only_join_and_leave_consume_each_message_once(monkeypatch, in_order, seed):
    # Without locks a member that takes a queue over waits half a second for the last commit of the one before.
    made = churned(
        monkeypatch, seed, 2_000, in_order=in_order, kills=False, loses=0.0,
        **({"slow_s": 1.0} if in_order else {"slow_s": 0.02, "pauses": PAUSES[-2:]}))
    assert made.calls == 2_000 + made.retries


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
@pytest.mark.parametrize("in_order", [False, True], ids=["concurrent", "in order"])
def test_nothing_is_lost_of_100_000_messages(monkeypatch, in_order, seed):
    churned(monkeypatch, seed, 100_000, in_order=in_order)
