"""Producers and a group of consumers on a simulated network with brokers that fail; all of it from one seed.

:These rules must hold, whatever the network does::
- each message whose send was acknowledged is in the store of a broker, and is consumed at least once;
- a committed offset never passes a message that no listener has consumed;
- in order, a listener gets a message of a queue only after the one before was consumed;
- acknowledged messages of an ordering key are in the order of their sends in each queue;
- no call takes longer than its timeout allows, and there are not more connections than clients and servers;
- when the network is well again, all is consumed and committed; closed clients leave no task and no connection.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import random

from fake_brokers import LockingBroker, LoopClock
from sim_network import Host, Network, NetworkLoop

from tailrace.client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    RetryLater,
    broker_calls,
    instance,
    request_reply,
    sender,
)
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.model import Message

NAME_SERVER = "10.0.0.9:9876"
TIMEOUT_S = 3.0
KINDS = ("push", "in order", "pull")
QUEUES = 3
KEYS = ("one", "two")
PERSISTED_S = 5.0
"""Between two times at which a broker writes offsets to its disk."""
REGISTERED_S = 8.0
"""Longest time until the name server knows that a broker is gone or back."""
PHASES = (
    RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ,
    RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.PULL_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT)
"""Requests of a rebalance, from the first heartbeat of a member to its end."""


class Broker(LockingBroker):
    """The store of a broker, which a crash keeps, and the rest, which a crash loses."""

    def __init__(self, world, number):
        super().__init__(t=QUEUES)
        self.world = world
        self.number = number
        self.places = {}
        """Queue and offset of a message, by its physical offset; no two brokers have the same."""
        self.physical = collections.defaultdict(list)
        self.checked = collections.Counter()
        self.persisted = {}
        self.delayed = 0
        """Messages that were sent back and are not in a queue yet; a crash also keeps them."""
        self._next_physical = itertools.count(1000 + number, 1000)

    def put(self, topic, queue_id, body, reconsume_times=0, **properties):
        place = topic, queue_id
        physical = next(self._next_physical)
        self._phy = iter([physical])
        self.places[physical] = place, len(self.stored.get(place, ()))
        self.physical[place].append(physical)
        super().put(topic, queue_id, body, reconsume_times, **properties)

    def crash(self):
        self.members.clear()
        self.locks.clear()
        self.connections.clear()
        self.committed = dict(self.persisted)

    async def serve(self, remoting, code, ext, body, timeout_ms):
        answer = await super().serve(remoting, code, ext, body, timeout_ms)
        self.asked.clear()
        self.times.clear()
        for (_, topic, queue_id), committed in self.committed.items():
            place = topic, queue_id
            for offset in range(self.checked[place], committed):
                if self.physical[place][offset] not in self.world.finished:
                    self.world.wrong.append(f"broker {self.number}: offset {offset} of {place} is skipped")
            self.checked[place] = max(self.checked[place], committed)
        return answer

    async def _heart_beat(self, remoting, ext, body):
        answer = await super()._heart_beat(remoting, ext, body)
        self.beats.clear()
        return answer

    async def _send_message_v2(self, remoting, ext, body):
        if ext["b"].startswith("%RETRY%"):  # a message that could not be sent back, as a new one
            self.world.finished.update(
                physical for physical, (_, data) in self.world.content.items() if data == body)
        return await super()._send_message_v2(remoting, ext, body)

    async def _consumer_send_msg_back(self, remoting, ext, body):
        physical = int(ext["offset"])
        self.world.finished.add(physical)
        times, data = self.world.content[physical]
        self.delayed += 1
        asyncio.get_running_loop().call_later(1.0, self._deliver, f"%RETRY%{ext['group']}", data, times + 1)
        return RemotingCommand(0)

    def _deliver(self, topic, data, times):
        self.delayed -= 1
        self.put(topic, 0, data, times, RETRY_TOPIC="t")


class BrokerHost(Host):
    """A broker on the network."""

    def __init__(self, network, address, broker):
        super().__init__(network, address)
        self.broker = broker
        self.registered = True

    async def serve(self, wire, command):
        return await self.broker.serve(wire, command.code, command.ext, command.body, 0)

    def forget(self, wire):
        self.broker.connections.pop(wire, None)
        for group, members in self.broker.members.items():
            if members.pop(wire, None):
                self.broker.notify(group)

    def kill(self, *, silently):
        super().kill(silently=silently)
        self.broker.crash()


class SlaveHost(Host):
    """The slave of a broker: the same messages, and offsets of its own."""

    def __init__(self, network, address, master):
        super().__init__(network, address)
        self.registered = True
        self.master = master
        self.broker = LockingBroker()
        self.broker.topics, self.broker.stored = master.topics, master.stored
        self.pulls = []
        """Flags of each pull."""
        self.moved = False
        """Whether it says of each offset that it is not there, as a slave that is late."""

    async def serve(self, wire, command):
        if command.code in {RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK}:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="only a master stores messages")
        if command.code == RequestCode.PULL_MESSAGE:
            self.pulls.append(int(command.ext["sysFlag"]))
            if self.moved:
                return RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, {
                    "suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "1", "nextBeginOffset": "0"})
        return await self.broker.serve(wire, command.code, command.ext, command.body, 0)

    def forget(self, wire):
        for group, members in self.broker.members.items():
            if members.pop(wire, None):
                self.broker.notify(group)

    def kill(self, *, silently):
        super().kill(silently=silently)
        self.broker.members.clear()
        self.broker.locks.clear()
        self.broker.connections.clear()


class NameServerHost(Host):
    """The route of each topic that a broker has."""

    slaves = ()

    brokers = ()

    async def serve(self, wire, command):
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return RemotingCommand(0, body=fastjson.dumps({"topicList": [
                topic for one in self.brokers for topic in one.broker.topics]}))
        topic = command.ext["topic"]
        having = [one for one in self.brokers if topic in one.broker.topics and self.addresses(one)]
        if not having:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST)
        return RemotingCommand(0, body=fastjson.dumps({
            "brokerDatas": [{"brokerName": f"b{one.broker.number}", "brokerAddrs": self.addresses(one), "cluster": "c"}
                            for one in having],
            "queueDatas": [{"brokerName": f"b{one.broker.number}", "perm": 6, "topicSysFlag": 0, "readQueueNums":
                            one.broker.topics[topic], "writeQueueNums": one.broker.topics[topic]} for one in having]}))

    def addresses(self, broker):
        """Return the addresses of a broker and its slave by id."""
        found = {"0": broker.address} if broker.registered else {}
        for number, one in enumerate(self.slaves, 1):
            if one.master is broker.broker and one.registered:
                found[str(number)] = one.address
        return found


class Polling:
    """A pull consumer as a member of the group: it polls, and consumes what it gets before it polls again."""

    def __init__(self, world):
        self._world = world
        self._consumer = AsyncPullConsumer(group="g", namesrv=NAME_SERVER, clock=LoopClock())
        self._task = None

    async def start(self):
        await self._consumer.subscribe("t")
        self._task = asyncio.create_task(self._poll())

    async def _poll(self):
        while True:
            for message in await self._world.timed("a poll", 1.1, self._consumer.poll()):
                self._world.consume(message)

    async def close(self):
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._world.wrong.append(f"a poll ended with {self._task.exception()!r}")
        await self._consumer.close()


class World:
    """One run; ``kind`` is "push", "in order" or "pull"."""

    def __init__(self, seed, kind, *, messages=300, members=3, brokers=2, faults=True, strike=None, slaves=False):
        self.rng = random.Random(seed)
        self.kind = kind
        self.in_order = kind == "in order"
        self.messages = messages
        self.members_most = members
        self.broker_count = brokers
        self.faults = faults
        self.slaves = slaves
        """Whether each broker has a slave, to which it refers readers at random."""
        self.strike = strike
        """Code and moment of the request at which a broker dies, and how: (code, moment, silently)."""
        self.wrong = []
        self.finished = set()
        """Physical offsets that a listener has consumed, or that were sent back."""
        self.content = {}
        """Number of deliveries and body by physical offset, of messages that a listener got."""
        self.consumed = collections.Counter()
        self.acknowledged = set()
        self.counts = collections.Counter()
        self.members = []
        self.clients = 0
        self.sent_all = self.calm = self.armed = False

    # --- what clients do

    async def timed(self, what, seconds, call):
        """Await a call; it is wrong that it takes longer."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await call
        finally:
            if loop.time() - began > seconds:
                self.wrong.append(f"{what} took {loop.time() - began:.1f} s of {seconds:.1f} s")

    def consume(self, message):
        self.counts["calls"] += 1
        self.content[message.phy_offset] = message.reconsume_times, message.body
        self.finished.add(message.phy_offset)
        self.consumed[message.body] += 1

    async def listen(self, message):
        broker = self.brokers[message.phy_offset % 1000].broker
        (topic, queue_id), offset = broker.places[message.phy_offset]
        before = broker.physical[topic, queue_id][offset - 1] if offset else None
        if self.in_order and before is not None and before not in self.finished:
            self.wrong.append(f"{offset} of queue {queue_id} of broker {broker.number} comes before the one before it")
        self.content[message.phy_offset] = message.reconsume_times, message.body
        if self.rng.random() < 0.05:
            await asyncio.sleep(self.rng.random())
        if self.rng.random() < 0.02:
            self.counts["listener failures"] += 1
            raise RetryLater(after_s=0.2)
        self.consume(message)

    def consumer(self):
        self.clients += 2 if self.kind == "pull" else 1
        if self.kind == "pull":
            return Polling(self)
        return AsyncPushConsumer(
            "g", self.listen, namesrv=NAME_SERVER, topics="t", start="first", clock=LoopClock(),
            in_order=self.in_order, concurrency=4, suspend_s=0.2)

    async def produce(self, producer, number, key):
        body = b"%d" % number
        # A try takes a route from the name server, and one request.
        try:
            await self.timed("a send", 3 * (TIMEOUT_S + TIMEOUT_S) + 0.5, producer.send(
                Message(topic="t", body=body), ordering_key=key))
        except RemotingError:
            self.counts["failed sends"] += 1
        else:
            self.acknowledged.add(body)

    async def produce_in_turn(self, producer, key):
        """Send the messages of an ordering key."""
        for number in itertools.count(1_000_000 * (1 + KEYS.index(key))):
            await self.produce(producer, number, key)
            await asyncio.sleep(self.rng.random() * 5)
            if self.sent_all:
                return

    async def produce_all(self):
        self.clients += 1
        async with AsyncProducer(namesrv=NAME_SERVER, timeout_ms=3001, clock=LoopClock()) as producer:
            in_turn = [asyncio.create_task(self.produce_in_turn(producer, key)) for key in KEYS]
            sends = []
            for number in range(self.messages):
                sends.append(asyncio.create_task(self.produce(producer, number, None)))
                if self.rng.random() < 0.2:
                    await asyncio.sleep(self.rng.random() * 4)
            self.sent_all = True
            await asyncio.gather(*sends, *in_turn)
            self.calm = True
        self.clients -= 1

    async def join(self):
        one = self.consumer()
        try:
            await self.timed("a start", 60, one.start())
        except RemotingError:
            await self.timed("a close", 60, one.close())
            self.counts["failed starts"] += 1
            self._gone()
            return
        self.members.append(one)
        self.counts["joins"] += 1

    def _gone(self):
        self.clients -= 2 if self.kind == "pull" else 1

    async def leave(self):
        one = self.members.pop(self.rng.randrange(len(self.members)))
        await self.timed("a close", 60, one.close())
        self._gone()
        self.counts["leaves"] += 1

    async def churn(self):
        while not self.calm:
            if self.members and (len(self.members) >= self.members_most or self.rng.random() < 0.4):
                await self.leave()
            else:
                await self.join()
            await asyncio.sleep(self.rng.choice((0.1, 1.0, 5.0, 20.0)))

    # --- what goes wrong

    def look(self):
        most = self.clients * (len(self.network.hosts))
        if len(self.network.wires) > most:
            self.wrong.append(f"{len(self.network.wires)} connections of {self.clients} clients")

    async def weather(self):
        kinds = ("reset", "fall_silent", "kill", "stall", "cut", "name_server", "slow", *(["refer"] * self.slaves))
        while not self.calm:
            await asyncio.sleep(self.rng.random() * 6)
            self.look()
            kind = self.rng.choice(kinds)
            self.counts[kind] += 1
            self.network.note(kind)
            getattr(self, f"_{kind}")()

    def _wire(self):
        wires = self.network.wires
        return wires[self.rng.choice(sorted(wires))] if wires else None

    def _reset(self):
        if (wire := self._wire()) is not None:
            wire.host.wires.pop(wire.number, None)
            wire.host.forget(wire)
            wire.reset()

    def _fall_silent(self):
        """End it for the host, after a time, and not for the client."""
        if (wire := self._wire()) is not None:
            wire.silent = True
            asyncio.get_running_loop().call_later(self.rng.random() * 120, wire.host.lost, wire)

    def _kill(self):
        self.kill(self.rng.choice([*self.brokers, *self.name_server.slaves]), silently=self.rng.random() < 0.5)

    def kill(self, host, *, silently, for_s=None):
        if not host.up:
            return
        self.network.note("kill", host.address, silently)
        host.kill(silently=silently)
        loop = asyncio.get_running_loop()
        back_s = self.rng.choice((0.2, 2.0, 10.0, 60.0)) if for_s is None else for_s
        loop.call_later(back_s, host.start)
        gone_s = self.rng.random() * REGISTERED_S
        if gone_s < back_s:
            loop.call_later(gone_s, setattr, host, "registered", False)
            loop.call_later(back_s + self.rng.random() * REGISTERED_S, setattr, host, "registered", True)

    def _stall(self):
        host = self.rng.choice(self.brokers)
        host.stalled_until = asyncio.get_running_loop().time() + self.rng.choice((0.5, 2.9, 4.0, 20.0))

    def _cut(self):
        self.rng.choice(self.brokers).cut = self.rng.random(), self.rng.random() < 0.5

    def _name_server(self):
        if self.name_server.up:
            self.name_server.kill(silently=self.rng.random() < 0.5)
            asyncio.get_running_loop().call_later(self.rng.random() * 20, self.name_server.start)

    def _refer(self):
        for host in (*self.brokers, *self.name_server.slaves):
            host.broker.suggested = self.rng.randrange(2)

    def _slow(self):
        self.network.slow_s = self.rng.choice((0.01, 0.01, 0.3, 2.0))

    def _strikes(self, host):
        """Let a host die at the first request of a kind after the group is at work."""
        code, moment, silently = self.strike

        def now(when, command):
            if not self.armed or when != moment or command.code != code:
                return False
            self.armed = False
            self.counts["strikes"] += 1
            self.kill(host, silently=silently, for_s=5.0)
            return True

        return now

    # --- a run

    async def persist(self):
        while True:
            await asyncio.sleep(PERSISTED_S)
            for host in self.brokers:
                if host.up:
                    host.broker.persisted = dict(host.broker.committed)

    def all_committed(self):
        return not any(host.broker.delayed for host in self.brokers) and all(
            len(stored) == host.broker.committed.get(("g", *place), 0)
            for host in self.brokers for place, stored in host.broker.stored.items())

    async def until(self, condition, seconds, what):
        end = asyncio.get_running_loop().time() + seconds
        while not condition():
            if self.wrong:
                return
            if asyncio.get_running_loop().time() > end:
                self.wrong.append(f"{what} after {seconds} s")
                return
            await asyncio.sleep(0.05)

    def own_tasks(self):
        """Tasks of clients, and of the run itself."""
        hosts = set().union(*(host.tasks for host in self.network.hosts.values()))
        return {task for task in asyncio.all_tasks() if task not in hosts}

    def set_up(self):
        """Make the network and its hosts, in the running loop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.wrong.append(str(context)))
        self.network = Network(loop, self.rng)
        self.name_server = NameServerHost(self.network, NAME_SERVER)
        self.brokers = [
            BrokerHost(self.network, f"10.0.0.{n + 1}:10911", Broker(self, n)) for n in range(self.broker_count)]
        self.name_server.brokers = self.brokers
        if self.slaves:
            self.name_server.slaves = [
                SlaveHost(self.network, f"10.0.1.{one.broker.number + 1}:10911", one.broker) for one in self.brokers]

    async def run(self):
        self.set_up()
        disk = asyncio.create_task(self.persist())
        before = len(self.own_tasks())
        if self.strike:
            await self._rebalance_with_strike()
        else:
            work = [self.produce_all(), self.churn(), *([self.weather()] if self.faults else [])]
            await asyncio.gather(*work)
        await self.heal()
        while not self.members and not self.wrong:
            await self.join()
        await self.until(self.all_committed, 300, f"{self._left()} messages are not committed")
        self.look()
        self._look_at_tasks(before)
        while self.members:
            await self.leave()
        await self.until(lambda: len(self.own_tasks()) <= before, 5, "tasks of closed clients run")
        if self.network.wires:
            self.wrong.append(f"{len(self.network.wires)} connections of closed clients")
        disk.cancel()
        self._look_at_messages()
        self.counts["connections"] += self.network.opened
        assert not self.wrong, f"{self.wrong[:3]}"

    def _left(self):
        return sum(len(stored) for host in self.brokers for stored in host.broker.stored.values()) - sum(
            committed for host in self.brokers for committed in host.broker.committed.values())

    async def heal(self):
        """Mend hosts and the network; connections that have fallen silent stay so."""
        self.calm = True
        self.network.slow_s = 0.01
        await asyncio.sleep(70)  # those that were killed are back by then
        for host in self.network.hosts.values():
            assert host.up
            host.cut, host.stalled_until = None, 0.0

    def _look_at_tasks(self, before):
        most = before + sum(4 + 12 + QUEUES * len(self.brokers) + 2 for _ in self.members)
        if len(self.own_tasks()) > most:
            self.wrong.append(f"{len(self.own_tasks())} tasks of {len(self.members)} members")

    def _look_at_order(self):
        """Look at the first copies of the messages of each key."""
        for host in self.brokers:
            for place, stored in host.broker.physical.items():
                firsts = collections.defaultdict(list)
                for number in dict.fromkeys(int(self.content[one][1]) for one in stored if one in self.content):
                    if b"%d" % number in self.acknowledged:
                        firsts[number // 1_000_000].append(number)
                if place[0] == "t" and any(found != sorted(found) for key, found in firsts.items() if key):
                    self.wrong.append(f"messages of a key are not in order in {place} of broker {host.broker.number}")

    def _look_at_messages(self):
        self._look_at_order()
        bodies = collections.Counter(
            self.content[physical][1] for host in self.brokers for physical in host.broker.places
            if physical in self.content)
        if lost := self.acknowledged - set(bodies):
            self.wrong.append(f"acknowledged, and not in a store or not consumed: {sorted(lost)[:5]}")
        if lost := self.acknowledged - set(self.consumed):
            self.wrong.append(f"acknowledged, and not consumed: {sorted(lost)[:5]}")
        self.counts["acknowledged"] += len(self.acknowledged)
        self.counts["consumed again"] += sum(self.consumed.values()) - len(self.consumed)

    async def _rebalance_with_strike(self):
        """A member joins one that is at work, and one leaves, while a broker dies at a given request."""
        for host in self.brokers:
            host.strike = self._strikes(host)
        self.armed = self.strike[0] == RequestCode.GET_MIN_OFFSET  # only the first member of a group asks for it
        await self.join()
        work = asyncio.create_task(self.produce_all())
        await asyncio.sleep(3)
        self.armed |= not self.counts["strikes"]
        await self.join()
        await asyncio.sleep(25)
        if self.members:
            await self.leave()
        await asyncio.sleep(25)
        self.armed = False
        await work


def play(seed, kind, **options):
    """Run a world; return it. Raises AssertionError with the seed."""
    world = World(seed, kind, **options)
    entropy = SeededEntropy(seed)
    patched = [(module, module.SystemEntropy) for module in (instance, broker_calls, sender, request_reply)]
    for module, _ in patched:
        module.SystemEntropy = lambda: entropy
    try:
        with asyncio.Runner(loop_factory=NetworkLoop) as runner:
            runner.run(asyncio.wait_for(world.run(), 100_000))
    except BaseException as error:
        raise AssertionError(f"SEED={seed} {kind} {options}: {error}") from error
    finally:
        for module, original in patched:
            module.SystemEntropy = original
    return world
