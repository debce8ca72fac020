"""A machine with a broker on simulated files, and what makes a whole broker run in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import random
import struct
import threading
from functools import partial
from unittest import mock

from node_network import LIFE, Life, LoopScheduler, NodeClock
from replication_deals import SETTINGS as DEAL_SETTINGS
from replication_disks import FAILING, GROWING, READS, is_of_disk
from replication_places import DEALS, NAMESRV_PORT, PORT, ROOT, TOPIC, WORKERS
from replication_pops import PopRecords

from tailrace.broker.controller import BrokerController
from tailrace.broker.core import registration
from tailrace.broker.statistics import latencies
from tailrace.config import BrokerConfig, BrokerRole, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import CorruptionError, RemotingError, StoreError
from tailrace.formats.commitlog import PLAUSIBLE_LENGTH, decode_message, plausible_size
from tailrace.formats.names import TIMER_OUT_MS, TIMER_TOPIC
from tailrace.ha import metadata_copy, slave
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient
from tailrace.requests.executors import BoundedExecutor
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.testing import CrashFileSystem, SimulatedCrash
from tailrace.testing.sent import ViolationError
from tailrace.timer.timer_message_store import TimerMessageStore

WHEEL_SLOTS = 512
SKEW_MS = 3000
"""How far a wall clock may be wrong, in either direction."""


class Node:
    """A machine with a broker: its files, its clocks, and at most one process."""

    def __init__(self, world, index):
        self.world, self.index = world, index
        self.ip = f"192.0.2.{index + 1}"
        self.name = "abc"[index]
        rng = random.Random(f"{world.seed} node {index}")
        self.clock = NodeClock(
            world.loop, rng.randrange(-SKEW_MS, SKEW_MS), rng.choice((0.0, 0.0, 1e-4, -1e-4)))
        self.files = CrashFileSystem(clock=self.clock)
        self.rng, self.lives = rng, 0
        silence_ms = rng.choice((1500, 3000, 6000))
        self.settings = {"ha_housekeeping_interval": silence_ms, "ha_send_heartbeat_interval": 500}
        self.is_master = index == 0
        self.was_master = False
        """Whether it has not been compared with the new master since another one was promoted."""
        self.is_alone = False
        """Whether it still runs as a master, cut off, after another one was promoted."""
        self.is_second = False
        """Whether it is started as a master although there is another one."""
        self.life = self.store = self.controller = None
        self.ready = False
        """Whether its broker serves."""
        self.crash_at = -1
        self.power_lost_s = self.emptied_s = -1.0
        """When it lost its power, and when its log was removed, the last time."""
        self.damaged = False
        """Whether it does not start: as a slave it has got a gap that its master has after a power loss."""
        self.lost_power = False
        """Whether it has lost its power since its last start."""
        self.cut_at = 1 << 60
        """Where a repair has cut its log since the last start."""
        self.low = -1
        """Where its log begins; -1 if it is empty or not known."""
        self.expires = False
        """Whether its oldest files may be deleted now."""
        self.same_until = 0
        """Position up to which its log was compared with its master's."""
        self.frozen = None
        """End of its log if it has other bytes than its master; nothing may be added to it."""
        self.may_differ = False
        self.is_full = False
        """Whether its disk has no room."""
        self.read_faults = 0.0
        """Share of the reads of its log, queues, index and timer log that fail."""
        self.slow_s = 0.0
        """Longest time that something waits for its disk, s."""
        self.floors = {}
        """Offsets that were committed here and that its master has not passed."""
        self.pop_floors = {}
        """Offsets with which the life began, of the group that pops, by topic and queue."""

    # --- settings

    def configs(self):
        world = self.world
        settings = world.settings | world.sizes | self.settings
        is_master = self.is_master or self.is_second
        if is_master:
            settings |= world.master_settings
            role = BrokerRole.SYNC_MASTER if world.need > 1 else BrokerRole.ASYNC_MASTER
        else:
            role = BrokerRole.SLAVE
        return StoreConfig(**settings, broker_role=role), BrokerConfig(
            broker_id=0 if is_master else self.index + 1, broker_ip1=self.ip, slave_read_enable=True,
            namesrv_addr=";".join(f"{node.ip}:{NAMESRV_PORT}" for node in world.nodes),
            register_name_server_period=10_000, flush_consumer_offset_interval=2000, revive_queue_num=1,
            **(DEAL_SETTINGS if world.transactions else {}))

    # --- its disk

    def fill(self, *, is_full):
        """Let its disk have no room, or some again."""
        self.is_full = is_full
        usage = self.files.usage
        usage.free = usage.usable = 0 if is_full else usage.total // 2

    def fail_reads(self, share):
        """Let a share of its reads fail."""
        self.read_faults = share
        files, rng = self.files, self.world.disk_rng
        files.cold = share > 0  # else most bytes are read through mappings, where nothing fails

        def before_read(_number, name, path, _pos, _n):
            if name in READS and path.startswith(FAILING) and rng.random() < share:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        files.before_read = before_read if share else None

    def slow_down(self, slow_s):
        """Delay the work that needs its disk by up to ``slow_s``."""
        self.slow_s = slow_s
        if self.life is not None:
            self.life.slow_s = slow_s

    # --- life

    @property
    def address(self):
        return f"{self.ip}:{PORT}"

    async def start(self):
        """Start its process. Return whether it serves; a crash may come before."""
        assert self.life is None
        world = self.world
        self.lives += 1
        if self.is_full and world.disk_rng.random() < 0.5:
            world.counts["starts on a full disk"] += 1
        else:
            self.fill(is_full=False)  # the operator makes room before a start
        life = self.life = Life(self.ip)
        life.slow_s = self.slow_s
        world.network.dark.discard(self.ip)
        files = self.files
        files.operations = 0
        self.fail_reads(self.read_faults)

        def before(number, name, path):
            if not life.alive:
                raise SimulatedCrash
            if 0 <= self.crash_at <= number:
                world.note(f"{self.name} stops before {name} {path}")
                self.crash_at = -1
                self.stop(power=self.rng.random() < 0.5)
                raise SimulatedCrash
            if self.is_full and name in GROWING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        files.before = before
        task = world.loop.start(self._serve(life, files), life)
        await asyncio.wait([task])
        if not self.ready or self.life is not life:
            if life.alive:
                error = None if task.cancelled() else task.exception()
                if isinstance(error, CorruptionError) and not self.is_master and not world.is_sync:
                    world.note(f"{self.name} does not start: {error}")
                    self.damaged = True
                    self._end(files.killed(), dark=False)
                    return False
                if self.is_second and isinstance(error, StoreError) and "stop it first" in str(error):
                    world.note(f"{self.name} does not start: {error}")
                    self._end(files.killed(), dark=False)
                    return False
                if self.is_full and is_of_disk(error):
                    world.note(f"{self.name} does not start: {error}")
                    world.counts["starts that a full disk refuses"] += 1
                    self._end(files.killed(), dark=False)
                    self.fill(is_full=False)
                    return False
                if self.read_faults and isinstance(error, OSError) and error.errno == errno.EIO:
                    world.note(f"{self.name} does not start: {error}")
                    self._end(files.killed(), dark=False)
                    self.read_faults = 0.0  # the operator sees to it
                    return False
                raise ViolationError(f"{self.name} does not start: {error!r}") from error
            return False
        if not self.is_second:
            world.started(self)
        return True

    async def _serve(self, life, files):
        store_config, broker_config = self.configs()
        seed = self.rng.randrange(1 << 30)
        scheduler = LoopScheduler(
            self.world.loop, life, random.Random(f"{seed} services"), partial(self.world.failed, self.name))
        self.store = MessageStore.open(
            ROOT, config=store_config, broker_config=broker_config, parts=StoreParts(
                clock=self.clock, file_system=files, scheduler=scheduler, entropy=SeededEntropy(seed)))
        self.controller = BrokerController(
            self.store, broker_config, clock=self.clock, scheduler=scheduler, entropy=SeededEntropy(seed + 1))
        self.pop_floors = {
            (topic, queue_id): offset for topic, group, queue_id, offset in self.controller.broker.offsets.entries()
            if group == WORKERS}
        self.scheduler = scheduler
        serves_names = self.is_master or self.is_second
        await self.controller.start((self.ip, PORT), (self.ip, NAMESRV_PORT) if serves_names else None)
        self.ready = True

    def stop(self, *, power):
        """Kill the process, or take the power of the machine."""
        self._end(self.image(power=power), dark=power)

    def image(self, *, power):
        """Return the files after a kill or a power loss."""
        world = self.world
        image = self.files.killed()
        if power:
            keep = self.rng.choice((0, 0, 25, 50, 75, 100))
            world.note(f"{self.name} loses its power, {keep} % of what was not synced is kept")
            image = image.power_lost(SeededEntropy(self.rng.randrange(1 << 30)), keep)
            self.power_lost_s, self.lost_power = world.loop.time(), True
        else:
            world.note(f"{self.name} is killed")
        world.counts["power losses" if power else "kills"] += 1
        return image

    def _end(self, image, *, dark):
        life, self.life = self.life, None
        self.world.network.end_life(life, dark=dark)
        self.ready, self.store, self.controller = False, None, None
        self.crash_at, self.floors, self.is_alone = -1, {}, False
        self.files = image

    async def close(self):
        """Stop the process as SIGTERM does."""
        life, store, controller = self.life, self.store, self.controller

        async def close():
            await controller.stop()
            store.close()

        task = self.world.loop.start(close(), life)
        await asyncio.wait([task])
        if self.life is not life:
            return  # it has crashed
        if not task.cancelled() and task.exception() is not None:
            raise ViolationError(f"{self.name} does not stop: {task.exception()!r}") from task.exception()
        self.world.note(f"{self.name} is closed")
        self.world.counts["closes"] += 1
        self.files.before = None
        self._end(self.files.killed(), dark=False)

    # --- its log

    @property
    def end(self):
        return self.store.inner.commit_log.max_offset

    @property
    def slave(self):
        """What follows the master, None while it does not run."""
        return self.controller.broker.slave if self.ready else None

    def raw(self, start, until):
        """Bytes of its log, from the files; those of files that are not there are missing."""
        size, found = self.world.sizes["mapped_file_size_commit_log"], []
        while start < until:
            data = self.files._files.get(f"{ROOT}/commitlog/{start - start % size:020d}")
            if data is None:
                break
            at = start % size
            part = bytes(data.volatile[at : at + min(until - start, size - at)])
            if not part:
                break
            found.append(part)
            start += len(part)
        return b"".join(found)

    def has(self, sent, until=1 << 60):
        """Whether its log has a message, below a position."""
        head = self.raw(sent.phy_offset, sent.phy_offset + 4)
        size = struct.unpack(">i", head)[0] if len(head) == 4 else 0
        if size <= 0 or sent.phy_offset + size > until:
            return False
        try:
            return decode_message(self.raw(sent.phy_offset, sent.phy_offset + size)).body == sent.body
        except CorruptionError:
            return False


class Records:
    """The messages of a master's log, read as it grows."""

    def __init__(self, node):
        self._node, self._at = node, 0
        self.has_missed = False
        """Whether a part of the log was deleted before it was read here."""
        self.timers = {}
        """Offset in the timer queue, end of the record, and due time of a timer, by its number.

        A delay level is due by the clock of the master that has put it.
        """
        self.delivered = {}
        """End of the record of a message in its own topic, by its number."""
        self.committed = {}
        """Position of the committed message of a transaction, by the number of its half message."""
        self.pops = PopRecords()

    def read(self):
        node, size = self._node, self._node.world.sizes["mapped_file_size_commit_log"]
        end = node.end
        if node.store.min_phy_offset > self._at:
            self._at, self.has_missed = node.store.min_phy_offset, True
            for number in self.timers:  # its delivery may have been in what was deleted
                self.delivered.setdefault(number, 0)
        while self._at + PLAUSIBLE_LENGTH <= end:
            data = node.raw(self._at, min(end, self._at - self._at % size + size))
            length = plausible_size(data[:PLAUSIBLE_LENGTH], self._at)
            try:
                message = decode_message(data[:length]) if length <= len(data) else None
            except CorruptionError:
                # The end of a file, or a gap of a master that has lost its power. Most turns are ends of files.
                self._at += next(
                    (at for at in range(8, len(data)) if plausible_size(
                        data[at : at + PLAUSIBLE_LENGTH], self._at + at)), len(data))
                continue
            if message is None:
                return
            number = message.body[:8]
            self.pops.take(message, self._at)
            if message.topic == TIMER_TOPIC:
                due = message.properties.get(TIMER_OUT_MS)  # None if it is torn after its body, to be sealed
                if message.properties.get("REAL_TOPIC") == TOPIC and due is not None:
                    self.timers.setdefault(number, (message.queue_offset, self._at + length, int(due)))
            elif message.topic == TOPIC:
                self.delivered.setdefault(number, self._at + length)
            elif message.topic == DEALS:
                self.committed.setdefault(number, self._at)
            self._at += length


class DirectClient:
    """A client for a program in a thread, whose requests the loop of the world sends."""

    def __init__(self, asked, answers):
        self._asked, self._answers = asked, answers

    async def invoke(self, address, code, ext, body=b"", *, timeout_ms=3000):
        self._asked.put((address, code, ext, body, timeout_ms))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    ask = RemotingClient.ask

    async def close(self):
        """Nothing is open."""


async def in_thread(client, program):
    """Run ``program(direct)``, which has a loop of its own, and send the requests of its client ``direct``.

    Either the program runs or the loop, never both. Return what it returns or raises.
    """
    asked, answers = queue.Queue(), queue.Queue()

    def run():
        try:
            made = program(DirectClient(asked, answers))
        except BaseException as error:
            made = error
        asked.put([made])

    thread = threading.Thread(target=run)
    thread.start()
    while isinstance(found := asked.get(), tuple):
        try:
            answers.put(await client.invoke(*found[:4], timeout_ms=found[4]))
        except (RemotingError, OSError) as error:
            answers.put(error)
    thread.join()
    return found[0]


def _in_place(executor, function, *arguments):
    """`BoundedExecutor.run` in this thread, a moment later."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def run():
        if future.cancelled():
            return
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)

    slow_s = LIFE.get().slow_s
    loop.call_later(0.0003 + (loop.disk_rng.random() * slow_s if slow_s else 0.0), run)
    return future


def _dispatched(store, timeout_ms):
    """`DefaultMessageStore.wait_dispatched` in this thread."""
    until = store.commit_log.max_offset
    if store._shows_replicated_only:
        until = min(until, store.replication.replicated_where)
    if store.sync_flush and not store.flush_commit_log.failed:
        store.flush_commit_log.flush()
    while store.reput.step():
        pass
    return store.reput.has_dispatched(until)


@contextlib.contextmanager
def simulated():
    """One thread instead of several, small files, and short periods, for everything within."""
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (BoundedExecutor, "run", _in_place), (DefaultMessageStore, "wait_dispatched", _dispatched),
            (latencies, "TICK_S", 3600.0), (metadata_copy, "PERIOD_S", 4.0), (metadata_copy, "_TICK_S", 1.0),
            (registration, "is_own_address", lambda host: host == LIFE.get().ip),
            (slave, "AGAIN_S", 1.0), (slave, "STOPPED_S", 8.0),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(mock.patch(
            "tailrace.node.timers.TimerMessageStore", partial(TimerMessageStore, slots_total=WHEEL_SLOTS)))
        yield
