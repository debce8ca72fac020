"""What the operator of a `World` does with a slave that cannot follow: its log is made a part of its master's.

The repair is a program of its own. Its machine may lose power in it, its process may be killed, and the disk may be
full or return errors, as for a broker. Then the slave is repaired again, or it starts before that and stops.
"""

from __future__ import annotations

import errno
import os
import random

from replication_disks import GROWING, is_of_disk
from replication_node import in_thread
from replication_places import NAMES, ROOT

from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RemotingError, ReplicationError
from tailrace.ha.log_gaps import SEAL
from tailrace.ha.slave_repair import Repaired, follow_master
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient
from tailrace.testing import CrashFileSystem, SimulatedCrash
from tailrace.testing.sent import ViolationError

FAULTS_MAX = 4
"""Most repairs of a run that have faults."""


class Repairs:
    """The repairs, and what they may not take."""

    def draw_repairs(self):
        self.repair_rng = random.Random(f"{self.seed} repairs")

    async def _repair(self, node):
        """Run ``repair --follow-master`` on a stopped slave."""
        if node.damaged or any(text in node.slave.why for text in ("dispatch stopped", SEAL)):
            await self._seal(node)
        master = self.master
        if node.life is not None:
            self.note(f"repair of {node.name}: {node.slave and node.slave.why}")
            await self._stop(node)
        if node.life is not None or not master.ready:
            return
        self.counts["repairs"] += 1
        node.files.before_read = None  # the operator sees to the disk
        with_faults = self.counts["repairs with faults"] < FAULTS_MAX and self.repair_rng.random() < 0.5
        if with_faults and not await self._repair_with_faults(node, master):
            return
        self._repaired(node, master, await self._follow(node, master))

    async def _follow(self, node, master, *, plan=False):
        client = RemotingClient()
        found = await in_thread(
            client, lambda direct: follow_master(
                node.clock, node.files, ROOT, node.configs()[0], NAMES, lambda: direct, master.address, plan=plan))
        await client.close()
        return found

    async def _repair_with_faults(self, node, master):
        """Repair a slave while its machine fails. Return whether a repair without faults follows."""
        planned = await self._follow(node, master, plan=True)
        node.files = node.files.killed()
        if not isinstance(planned, Repaired):
            return True
        self.counts["repairs with faults"] += 1
        crash_at = self.repair_rng.randrange(self.repair_rng.choice((4, 20, 60)))

        def before(number, name, path):
            if number >= crash_at:
                raise SimulatedCrash
            if node.is_full and name in GROWING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        node.files.before, node.files.operations = before, 0
        node.fail_reads(node.read_faults)
        node.cut_at = min(node.cut_at, planned.phy_offset)
        found = await self._follow(node, master)
        node.same_until, node.frozen, node.may_differ = 0, None, True
        if isinstance(found, SimulatedCrash):
            self.counts["repairs that stop in the middle"] += 1
            self.note(f"the repair of {node.name} stops at {crash_at}, to cut at {planned.phy_offset}")
            node.files = node.image(power=self.repair_rng.random() < 0.5)
            self._check_cut(node, master)
            return self.repair_rng.random() < 0.5
        if isinstance(found, BaseException) and is_of_disk(found):
            self.counts["repairs that a disk stops"] += 1
            self.note(f"the repair of {node.name} fails: {found}")
            node.files = node.files.killed()
            node.fill(is_full=False)
            node.fail_reads(0.0)
            self._check_cut(node, master)
            return self.repair_rng.random() < 0.5
        self._repaired(node, master, found)
        return False

    def _repaired(self, node, master, found):
        """Take what a repair has returned or raised."""
        node.files = node.files.killed()
        if isinstance(found, RemotingError):
            return  # the master is away: later
        if isinstance(found, ReplicationError):
            self.note(f"{node.name} begins again: {found}")
            self.counts["new copies"] += 1
            node.files = CrashFileSystem(clock=node.clock)
            self.begins_empty(node)
        elif isinstance(found, BaseException):
            raise ViolationError(f"the repair of {node.name} fails: {found!r}") from found
        else:
            self.note(f"{node.name} is repaired: {found}")
            node.cut_at = min(node.cut_at, found.phy_offset)
        node.same_until, node.frozen, node.may_differ, node.damaged = 0, None, True, False
        self._check_cut(node, master)

    async def _seal(self, node):
        """Run ``repair --seal-damage`` on the master: it has lost its power, and a slave does not pass its gap."""
        master = self.master
        self.note(f"{master.name} has a gap that stops {node.name}")
        self.counts["gaps"] += 1
        await self._stop(master)
        store_config, broker_config = master.configs()
        MessageStore.open(ROOT, config=store_config, broker_config=broker_config, parts=StoreParts(
            clock=master.clock, file_system=master.files, services=False, rebuild=True, seal_damage=True,
            entropy=SeededEntropy(1))).close()
        master.files = master.files.killed()
        for other in self.slaves:
            other.may_differ, other.same_until = True, 0
        while not master.ready:
            await master.start()

    def _check_cut(self, node, master):
        """A repair may not take what the master still has."""
        low = max(master.low, master.store.inner.commit_log.min_offset) if master.ready else 0  # a full disk moves it
        for sent in self.sent:
            if node in sent.on and sent.need and sent.phy_offset >= node.cut_at and not node.has(sent):
                sent.on.discard(node)
                if master.ready and sent.phy_offset >= low and not master.has(sent, master.end):
                    raise ViolationError(f"I2: the repair has taken {sent.number}, which is acknowledged")
