"""A master with one or two slaves on a simulated network, from a seed: whole brokers, in one thread and virtual time.

Brokers are real (`BrokerController` on a `MessageStore`): registration, comparison of logs, sender, receiver, copy of
the tables, timers, group commit. Simulated are the files, which may lose their power, the network, the clocks, which
disagree, and the order in which services run. An operator restarts what has stopped, promotes a slave, and makes a
slave whose log is another one follow again.

These invariants hold after each step and at the end:
  I1  The log of a slave is a prefix of its master's. Only a master that has lost its power, or a promotion, may leave a
      slave with other bytes, and then nothing is added to them until an operator has decided.
  I2  An acknowledged message is in the logs of as many slaves as the mode promises, and stays there.
  I3  Queues and index of a slave are those that its log gives.
  I4  No consumer offset of a slave is past the end of its queue, and none that was committed at it goes back.
  I5  After a promotion each acknowledged message is in its queue once, each timer is delivered once, and no consumer
      has skipped a message. With readReplicatedOnly nothing that was consumed is lost.
  I6  A slave that cannot follow says why.
  I7  A topic that was deleted and created again has the acknowledged messages of its present life once, and none of the
      life before. Only a promotion may undo a deletion. No slave ends a life where no master has ended it.
  I8  A transaction is in its topic once if it is committed, and never if it is rolled back. A new master asks for those
      that are open.
  I9  A message for a group that pops comes at least once, and again only if it was not acknowledged in time, or if a
      promotion began with older offsets.
  I10 A master that was cut off before a promotion acknowledges nothing that needs a slave, and does not start as a
      second one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import random
from functools import partial

from node_network import Life, Network, NodeLoop, is_crash
from replication_checks import Checks
from replication_clients import Clients
from replication_deals import Dealers
from replication_disks import Disks, is_of_disk
from replication_node import SKEW_MS, Node, simulated
from replication_places import DEALS, GROUP, HA_PORT, PORT, QUEUES, TASKS, TOPIC
from replication_pops import Poppers
from replication_repairs import Repairs
from replication_splits import Splits
from replication_topics import PassingTopic

from tailrace.config import FlushDiskType
from tailrace.env.supervision import FAILURES
from tailrace.formats.ha import REPORT
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.ha.slave import SlaveState
from tailrace.remoting.client import RemotingClient
from tailrace.testing import SimulatedCrash
from tailrace.testing.sent import ViolationError

FOLLOWS_S = 90.0
"""Longest time until all slaves follow when nothing fails any more."""


class World(Clients, PassingTopic, Dealers, Poppers, Splits, Disks, Repairs, Checks):
    """One run. The seed chooses what is None.

    ``slaves`` is 1 or 2, ``need`` the number of copies, ``sync`` SYNC_FLUSH; with ``passes`` a topic is deleted and
    created again, with ``expires`` nodes delete their oldest files, with ``fills`` disks are full or slow for a while,
    with ``fails`` some reads fail, with ``loses`` the log of a slave is removed, with ``transactions`` a producer sends
    half messages, with ``pops`` a group pops, with ``splits`` a slave is promoted while its
    master runs.
    """

    def __init__(self, seed, *, slaves=None, need=None, sync=None, passes=None, expires=None, fills=None,
                 fails=None, loses=None, transactions=None, pops=None,
                 splits=None, steps=40):
        self.seed, self.steps = seed, steps
        self.rng = rng = random.Random(f"{seed} world")
        self.loop = None
        self.trace, self.wrong = [], []
        self.counts = collections.Counter()
        self.slave_count = slaves or 1 + (rng.random() < 0.5)
        self.is_sync = rng.random() < 0.5 if sync is None else sync
        drawn = 1 if rng.random() < 0.1 else 2 + (self.slave_count == 2 and rng.random() < 0.5)
        self.need = drawn if need is None else need
        self.sizes = {
            "mapped_file_size_commit_log": rng.choice((1 << 14, 1 << 16)),
            "mapped_file_size_consume_queue": rng.choice((20 * 10, 20 * 100)), "max_hash_slot_num": 64,
            "max_index_num": 256, "commit_log_allocate_step": 1 << 13, "mapped_file_size_timer_log": 52 * 40,
            "timer_max_delay_sec": 400}
        self.settings = {
            "flush_disk_type": FlushDiskType.SYNC_FLUSH if self.is_sync else FlushDiskType.ASYNC_FLUSH,
            "enabled_append_prop_crc": rng.random() < 0.3}
        self.master_settings = {
            "slave_timeout": rng.choice((500, 2000, 5000, 12_000)),
            "ha_transfer_batch_size": rng.choice((300, 4096, 32_768))}
        if rng.random() < 0.5:
            self.master_settings["ha_allowed_hosts"] = "192.0.2.0/24"
        if self.need > 1:
            self.master_settings["in_sync_replicas"] = self.need
            self.master_settings["read_replicated_only"] = rng.random() < 0.4
        self.sent, self.by_body = [], {}
        self.consumed = collections.defaultdict(set)
        self.replicated = collections.defaultdict(set)
        """What was consumed while only replicated messages could be: a master shows after its start all that it has."""
        self.shows_all = not self.master_settings.get("read_replicated_only")
        self.calm = False
        self.sends = True
        self.passes = random.Random(f"{seed} passes").random() < 0.5 if passes is None else passes
        self.deletion, self.most_ended = None, 0
        self.draw_disks(expires, fills, fails, loses)
        self.draw_deals(transactions)
        self.draw_pops(pops)
        self.draw_splits(splits)
        self.draw_repairs()
        self.answers = set()
        """Tasks that answer requests of brokers."""
        self.failures = FAILURES.copy()

    # --- notes

    def note(self, text):
        self.trace.append(f"{self.loop.time():9.3f} {text}")

    def failed(self, where, name, error):
        """Take the error of a step of a service or of a protocol."""
        if not isinstance(error, SimulatedCrash) and not is_of_disk(error):  # the step is repeated
            self.wrong.append(f"{where}: {name} raises {error!r}")

    def _in_loop(self, _loop, context):
        if not is_crash(context):
            self.wrong.append(str(context.get("exception") or context))

    # --- what a client knows

    @property
    def master(self):
        return next(node for node in self.nodes if node.is_master)

    @property
    def slaves(self):
        return [node for node in self.nodes if not node.is_master and not node.is_alone]

    # --- what goes wrong, and what an operator does

    async def weather(self):
        actions = [
            (self._stop_a_node, 6), (self._plan_crash, 3), (self._part, 5), (self._cut, 3), (self._fall_silent, 6),
            (self._slow, 2), (self._step_clock, 1), (self._lie, 2), (self._operate, 8), (self._heal, 4),
            (self._promote, 2), (self._lose_a_reset, 4)]
        names = [action for action, _ in actions]
        weights = [self.rng.randrange(weight + 1) if weight < 8 else weight for _, weight in actions]
        for action, weight in (*self.disk_actions(), *self.split_actions()):
            names.append(action)
            weights.append(weight)
        for _ in range(self.steps):
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.2, 2.0, 5.0)))
            self.check()
            await self.rng.choices(names, weights)[0]()
            self.check()

    async def _stop_a_node(self):
        running = [node for node in self.nodes if node.ready]
        if running:
            await self._stop(self.rng.choice(running))

    async def _stop(self, node):
        how = self.rng.choice(("close", "kill", "power"))
        if how == "close":
            await node.close()
        else:
            node.stop(power=how == "power")

    async def _plan_crash(self):
        node = self.rng.choice(self.nodes)
        if node.ready:
            node.crash_at = node.files.operations + self.rng.randrange(self.rng.choice((5, 40, 200)))

    async def _part(self):
        one, other = self.rng.sample(self.nodes, 2)
        port = self.rng.choice((None, None, PORT, HA_PORT))
        ways = [(one.ip, other.ip), (other.ip, one.ip)]
        if self.rng.random() < 0.4:
            ways.pop()
        self.network.block(*(way if port is None else (*way, port) for way in ways))
        self.counts["partitions"] += 1
        self.note(f"partition {ways} {port}")

    async def _heal(self):
        await self.end_splits()

    async def _cut(self):
        ends = self.network.ends_between(self.rng.choice((None, HA_PORT)))
        if ends:
            end = self.rng.choice(ends)
            self.counts["cuts"] += 1
            self.note(f"cut {end.life.ip} {end.peer.life.ip} {end.port}")
            self.rng.choice((end, end.peer)).abort()

    async def _fall_silent(self):
        ends = self.network.ends_between(HA_PORT)
        if ends:
            end = self.rng.choice(ends)
            for one in self.rng.choice(((end,), (end.peer,), (end, end.peer), (end, end.peer))):
                one.silent = True
            self.counts["silences"] += 1
            self.note(f"silence {end.life.ip} {end.silent} {end.peer.silent}")

    async def _lose_a_reset(self):
        """A slave loses its connection, and its master does not learn that, while the other slave gets nothing."""
        ends = self.network.ends_between(HA_PORT)
        if not ends:
            return
        end = self.rng.choice(ends)
        for node in self.slaves:
            if node.ip != end.life.ip:
                self.network.block((self.master.ip, node.ip, HA_PORT))
        await asyncio.sleep(self.rng.random())
        self.note(f"{end.life.ip} loses its connection, and {end.peer.life.ip} does not learn that")
        self.counts["lost resets"] += 1
        end.silent = end.peer.silent = True
        end.abort()
        await asyncio.sleep(self.rng.random() * 3)

    async def _slow(self):
        self.network.slow_s = self.rng.choice((0.002, 0.05, 0.5))
        self.network.loss = self.rng.choice((0.0, 0.0, 0.05, 0.2))

    async def _step_clock(self):
        node = self.rng.choice(self.nodes)
        node.clock.ahead_ms = self.rng.randrange(-SKEW_MS, SKEW_MS)
        self.note(f"the clock of {node.name} is wrong by {node.clock.ahead_ms} ms")

    async def _lie(self):
        """Report a position that the master does not have, from the host of a slave."""
        if not self.slaves:
            return
        node = self.rng.choice(self.slaves)
        life = Life(node.ip)
        self.note(f"a liar at {node.ip}")
        task = self.loop.start(self._lies(self.master), life)
        await asyncio.wait([task], timeout=3)
        self.network.end_life(life, dark=False)
        self.counts["lies"] += 1

    async def _lies(self, master):
        with contextlib.suppress(OSError):
            async with asyncio.timeout(1):
                end, _ = await self.loop.create_connection(asyncio.Protocol, master.ip, HA_PORT)
            end.write(REPORT.pack(self.rng.choice((10_000_000, 1 << 40))))
            await asyncio.sleep(1.5)

    async def _operate(self):
        """Start one that has stopped, or repair a slave that has another log."""
        stopped = [node for node in self.nodes if node.life is None]
        if stopped:
            node = self.rng.choice(stopped)
            if not node.damaged:
                await node.start()
            elif self.master.ready:
                await self._repair(node)
            return
        for node in self.slaves:
            if node.slave is not None and node.slave.state is SlaveState.STOPPED and self.master.ready:
                await self._repair(node)
                return

    async def _promote(self):
        """Make the slave with the longest log the master, after the master was stopped."""
        master, slaves = self.master, self.slaves
        if self.alone or any(node.frozen is not None or node.damaged or node.was_master for node in slaves):
            return
        if master.life is not None:
            if not master.ready:
                return
            await self._stop(master)
        for node in slaves:
            while not node.ready and not node.damaged:
                if node.life is None:
                    await node.start()
        if master.ready or any(node.damaged for node in slaves) or not self.has_copy:
            return
        await self._promote_best(master)

    @property
    def has_copy(self):
        """Whether a slave has a log. The operator promotes none that has just begun again: all would be lost."""
        return any(node.ready and node.end for node in self.slaves)

    async def _promote_best(self, master):
        """Promote the slave with the longest log. The old master has stopped, or is cut off."""
        slaves = self.slaves
        best = max(slaves, key=lambda node: node.end)
        claimed = [sent for sent in self.sent if sent.need and any(node in sent.on for node in slaves)]
        self.note(f"{best.name} is promoted, log to {best.end}")
        self.counts["promotions"] += 1
        for sent in claimed:
            if sent.phy_offset >= best.low and not best.has(sent, best.end):
                raise ViolationError(
                    f"I5: {sent.number} at {sent.phy_offset} is acknowledged and on "
                    f"{sorted(node.name for node in sent.on)}, and {best.name} with {best.end} does not have it")
        best.crash_at = -1
        if self.rng.random() < 0.5:
            await best.close()
        else:
            best.stop(power=False)
        master.is_master, best.is_master, master.is_alone = False, True, master.life is not None
        master.was_master = True
        for node in self.nodes:
            node.may_differ = node is not best
        while best.life is None:
            await best.start()

    # --- a run

    async def run(self):
        """Play the run. Raises ViolationError."""
        self.loop = loop = asyncio.get_running_loop()
        loop.disk_rng = self.disk_rng
        loop.set_exception_handler(self._in_loop)
        self.network = Network(loop, self.seed, partial(self.failed, "network"))
        self.nodes = [Node(self, index) for index in range(1 + self.slave_count)]
        self.note(f"{'SYNC' if self.is_sync else 'ASYNC'}_FLUSH, {self.need} copies, {self.slave_count} slaves, "
                  f"{self.settings} {self.master_settings} {self.sizes}")
        for node in self.nodes:
            await node.start()
        for topic in (TOPIC, *([DEALS] if self.transactions else []), *([TASKS] if self.pops else [])):
            await self._make_topic(topic)
        await self._all_follow()
        work = [asyncio.create_task(one) for one in (
            self.produce(1), self.produce(2), self.consume(), *([self.pass_topic()] if self.passes else []),
            *self.dealers(), *self.poppers(),
            *([self.send_alone(), self.ask_names()] if self.splits else []),
            *map(self.copy_timer_checkpoint, range(len(self.nodes))))]
        try:
            await self.weather()
            await self._finish()
        finally:
            self.calm = True
            work += self.answers
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            for node in self.nodes:
                if node.life is not None:
                    node.life.end()
        self.check()

    client_life = None

    async def _make_topic(self, topic):
        client = RemotingClient()
        answer = await self.ask(client, self.master, RequestCode.UPDATE_AND_CREATE_TOPIC, {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await client.close()

    async def _heal_all(self):
        self.heal_disks()
        await self.end_splits()
        self.network.slow_s, self.network.loss = 0.002, 0.0
        for node in self.nodes:
            node.crash_at = -1
        for node in sorted(self.nodes, key=lambda one: not one.is_master):
            while not node.ready:
                if node.damaged:
                    await self._repair(node)
                elif node.life is None:
                    await node.start()

    async def _all_follow(self):
        """Wait until each slave has what its master has; repair those that say that they cannot."""
        until = self.loop.time() + FOLLOWS_S
        sent_until = self.sends
        self.sends = False
        while True:
            self.check()
            await self._heal_all()
            master = self.master
            if all(self._follows(node, master) and self.knows_deletions(node, master) for node in self.slaves):
                break
            for node in self.slaves:
                if node.slave is not None and node.slave.state is SlaveState.STOPPED:
                    assert node.slave.why, "I6"
                    await self._repair(node)
            if self.loop.time() > until:
                raise ViolationError("I6: " + "; ".join(
                    f"{node.name} {node.end} of {master.end}: {node.slave.state.value} {node.slave.why}"
                    if node.ready and master.ready else f"{node.name} or its master does not serve"
                    for node in self.slaves))
            await asyncio.sleep(0.25)
        self.sends = sent_until

    @staticmethod
    def _follows(node, master):
        """Whether a slave has the log and the tables of its master."""
        if not node.ready or not node.slave.is_connected or node.end < master.end:
            return False
        if not master.store.inner.reput.has_dispatched(master.end):
            return False
        return node.store.inner.reput.has_dispatched(node.end) and node.controller._slave.tables.copies > 0 and (
            node.store.topics.select(TOPIC) is not None)

    async def _finish(self):
        self.note("the end begins")
        await self._all_follow()
        for node in self.slaves:
            self._check_derived(node)
            self._check_same_units(node, self.master)
        for node in self.nodes:
            self.check_passing(node)
            self.check_deals(node)
        await self._promote()
        await self._all_follow()
        self.sends = False
        client = RemotingClient()
        rng = random.Random(f"{self.seed} end")
        for _ in range(3):
            await self.send(client, rng)
        await self.drain_pops(client)
        await self._drain(client, rng)
        await client.close()
        await self.settle_deals()
        self._check_messages()
        self.check_pops()
        self.check_deals(self.master, final=True)
        for node in self.nodes:
            self.check_passing(node)

    async def _drain(self, client, rng):
        """Let all timers become due, and consume everything."""
        last_ms = max([sent.due_ms for sent in self.sent], default=0)
        while self.master.clock.now_ms() < last_ms + 3000:
            await asyncio.sleep(1)
            self.check()
        while not self._timers_are_done():
            await asyncio.sleep(0.5)
            self.check()
        for queue_id in range(QUEUES):
            for _ in itertools.count():
                count = await self.consume_some(client, rng, self.master, queue_id)
                if self._is_consumed(queue_id):
                    break
                if count <= 0:
                    await asyncio.sleep(0.1)
                if self.loop.time() > 5000:
                    raise ViolationError(f"queue {queue_id} is not consumed")

    def _timers_are_done(self):
        timers = self.master.store.timer_services.messages
        return not timers.due.slots and self.master.store.inner.reput.has_dispatched(self.master.end)

    def _is_consumed(self, queue_id):
        committed = self.master.controller.broker.offsets.query(GROUP, TOPIC, queue_id)
        return committed >= self.master.store.queue_of(TOPIC, queue_id).max


def play(seed, **options):
    """Run a world; return it. Raises ViolationError with the seed; the world is its ``world``."""
    world = World(seed, **options)
    world.client_life = Life("192.0.2.100")
    try:
        with simulated(), asyncio.Runner(loop_factory=NodeLoop) as runner:
            runner.run(world.run(), context=world.client_life.context)
    except Exception as error:
        made = ViolationError(f"SEED={seed} {options or ''}: {type(error).__name__}: {error}")
        made.world = world
        raise made from error
    return world
