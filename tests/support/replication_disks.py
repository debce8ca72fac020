"""What happens to the disks of a `World`.

Files of the log are deleted on one side and not on the other. A disk is full for a while: nothing that is there can
grow, and the store deletes files before their time. A disk is slow: the work that needs it is delayed by up to 2 s. A
disk returns errors for some reads, also while its broker starts. The log of a slave is lost, and its queues are not.
"""

from __future__ import annotations

import asyncio
import errno
import random

from replication_places import ROOT

from tailrace.errors import DiskFullError, StoreError, StoreNotWritableError
from tailrace.testing import SimulatedCrash
from tailrace.testing.sent import ViolationError

GROWING = {"create", "allocate", "truncate", "pwrite", "rename", "mkdir"}
"""Operations that need room."""
SLOW_S = 2.0


READS = {"pread", "map", "map to read", "data_ranges"}
FAILING = tuple(f"{ROOT}/{name}/" for name in ("commitlog", "consumequeue", "index", "timerlog"))
"""Where reads fail."""


def is_of_disk(error):
    """Whether an error says that a disk has no room, or that a read has failed."""
    return isinstance(error, (DiskFullError, StoreNotWritableError)) or (
        isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EIO})


class Disks:
    """The actions, and what must hold for where logs begin."""

    def draw_disks(self, expires, fills, fails, loses):
        """Choose what the disks of this run do; the seed chooses what is None."""
        rng = random.Random(f"{self.seed} disks")
        self.disk_rng = random.Random(f"{self.seed} what disks do")
        self.expires = rng.random() < 0.4 if expires is None else expires
        self.fills = rng.random() < 0.4 if fills is None else fills
        self.fails = rng.random() < 0.3 if fails is None else fails
        self.loses = rng.random() < 0.2 if loses is None else loses
        self.expired_to = 0
        """Largest position at which the log of a node has begun."""
        self.master_began = 0
        """The same of a node that was the master then: its slaves continue from the progress that it had."""
        self.delivered = set()
        """Numbers of the delayed messages whose delivery was in the log of a master."""
        self.given_up = set()
        """Numbers of the delayed messages that a full disk has lost: their file must go, and nothing can be written."""

    def disk_actions(self):
        """Return (action, weight) of this run."""
        return [
            *([(self._expire, 6)] if self.expires else []),
            *([(self._fill, 5), (self._slow_disk, 4), (self._heal_disks, 5)] if self.fills else []),
            *([(self._fail_reads, 6), (self._heal_disks, 3)] if self.fails else []),
            *([(self._lose_log, 3)] if self.loses else [])]

    async def _fill(self):
        node = self.disk_rng.choice(self.nodes)
        node.fill(is_full=True)
        node.expires = True  # until its next start, because a pass that has begun continues when there is room again
        self.counts["full disks"] += 1
        self.note(f"the disk of {node.name} is full")

    async def _slow_disk(self):
        node = self.disk_rng.choice(self.nodes)
        node.slow_down(SLOW_S)
        self.counts["slow disks"] += 1
        self.note(f"the disk of {node.name} is slow")

    async def _fail_reads(self):
        node = self.disk_rng.choice(self.nodes)
        node.fail_reads(self.disk_rng.choice((0.02, 0.2, 1.0)))
        self.counts["read faults"] += 1
        self.note(f"{node.read_faults:.0%} of the reads at {node.name} fail")

    async def _lose_log(self):
        """Remove the log of a slave, and leave everything else."""
        if not self.slaves:
            return
        node = self.disk_rng.choice(self.slaves)
        if node.life is not None and node.ready:
            await self._stop(node)
        if node.life is not None:
            return
        directory = f"{ROOT}/commitlog"
        for path in [path for path in node.files.paths() if path.startswith(f"{directory}/")]:
            node.files.remove(path)
        if node.files.exists(directory):
            node.files.sync_dir(directory)
        self.begins_empty(node)
        self.counts["lost logs"] += 1
        self.note(f"the log of {node.name} is lost")

    def begins_empty(self, node):
        """Note that the log of a slave is gone: what it had is no longer on as many brokers as the mode promises."""
        node.cut_at, node.low, node.same_until, node.frozen, node.damaged = 0, -1, 0, None, False
        node.emptied_s = self.loop.time()
        self.replicated.clear()

    async def _heal_disks(self):
        self.heal_disks()

    def heal_disks(self):
        """Let all disks have room, be fast, and return what they have."""
        for node in self.nodes:
            node.fail_reads(0.0)
            node.fill(is_full=False)
            node.slow_down(0.0)

    async def _expire(self):
        """Delete the oldest files of one node, as its age or a full disk would do."""
        running = [node for node in self.nodes if node.ready]
        if not running:
            return
        node, rng = self.disk_rng.choice(running), self.disk_rng
        size = self.sizes["mapped_file_size_commit_log"]
        await self.run_on(node, self._free, node, rng.choice((1, size, 4 * size, 100 * size)))

    async def run_on(self, node, do, *arguments):
        """Call a function in the process of a node, which may crash within; return whether it has not."""
        life = node.life

        async def run():
            do(*arguments)

        task = self.loop.start(run(), life)
        await asyncio.wait([task])
        if node.life is not life:
            return False
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, (SimulatedCrash, StoreError)) and not is_of_disk(error):
            raise ViolationError(f"{do.__name__} fails at {node.name}: {error!r}") from error
        return True

    def _free(self, node, wanted):
        if node.store.read_only:
            return  # its disk was full at its start: the request is refused
        expires, node.expires = node.expires, True
        found = node.store.retention.free_now(wanted)
        self.check_begin(node)
        node.expires = expires
        self.counts["deleted files"] += len(found.files)
        if found.files:
            self.note(f"{node.name} has deleted {len(found.files)} files, its log begins at {node.low}")

    # --- checks

    def check_begin(self, node):
        """Only a deletion moves the begin of a log that has bytes; this one notes it."""
        begin = node.store.min_phy_offset
        if node.low >= 0 <= begin != node.low and not (node.expires and begin > node.low):
            raise ViolationError(f"I1: the log of {node.name} began at {node.low}, and begins at {begin} now")
        if begin > node.low >= 0 and node.store.retention.clean_commit_log.lost_timers:
            lost = {sent.number for sent in self.sent if sent.due_ms and sent.phy_offset < begin}
            self.given_up |= lost - self._delivered_in(node)
            self.timers_lost_s = self.loop.time()
        node.low = begin
        self.expired_to = max(self.expired_to, begin)
        if node.is_master:
            self.master_began = max(self.master_began, begin)

    def _delivered_in(self, node):
        """Numbers of the delayed messages whose delivery a node has: a slave may not have all of its master's log."""
        if node is self.master:
            return self.delivered
        end, places = node.end, self.records.delivered
        return {number for number in self.delivered if places.get(b"%08d" % number, 0) <= end}

    def is_expired(self, sent, node):
        """Whether the log of a node begins after a message. A delayed one must have been delivered before."""
        if sent.number in self.given_up:
            return True
        return sent.phy_offset < node.low and (not sent.due_ms or sent.number in self.delivered)

    def note_deliveries(self):
        """Note what the master has delivered, before its file may be deleted."""
        if (self.expires or self.fills) and self.master.ready:
            self.records.read()
            self.delivered.update(map(int, self.records.delivered))
            if self.records.has_missed:
                self.records.has_missed = False
                self.delivered.update(sent.number for sent in self.sent if sent.due_ms)
