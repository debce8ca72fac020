"""Processes, machines and a network between them in one loop of virtual time, below real servers and clients.

A `Life` is one life of a process: its tasks, timers and connections end with it, as by a kill. `NodeLoop` gives the
real code what asyncio gives it: `create_server`, `create_connection` and timers. A connection keeps the order of its
bytes; bytes of different connections overtake each other. A partition delays bytes until it has ended, as TCP sends
them again. A connection that has fallen silent in a direction loses them for ever, and neither end is notified.

Every random number belongs to one connection or one service, so that a seed gives the same run in every process.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import socket
from collections import deque

from fake_brokers import VirtualLoop

from tailrace.env.scheduler import period_of
from tailrace.errors import FatalStorageError
from tailrace.testing import SimulatedCrash

LIFE = contextvars.ContextVar("LIFE", default=None)
BASE_MS = 1_700_000_000_000
STEP_S = 2e-6
"""Least time that a turn of the loop takes, so that code which waits for the rest of an interval gets there."""
AGAIN_S = 0.5
"""Until a connect through a partition is tried again."""


class Life:
    """A process at ``ip`` from its start to its end."""

    def __init__(self, ip):
        self.ip = ip
        self.alive = True
        self.slow_s = 0.0
        """Longest delay of the work that needs its disk, s."""
        self.tasks = {}
        self.context = contextvars.Context()
        self.context.run(LIFE.set, self)

    def end(self):
        """Run nothing of it any more."""
        self.alive = False
        for task in list(self.tasks):
            task.cancel()
        self.tasks.clear()


class NodeLoop(VirtualLoop):
    """A loop whose connections are those of ``network``, and whose timers end with their process."""

    network = None

    def __init__(self):
        super().__init__()
        self.set_task_factory(_task)

    def pass_time(self, seconds):
        super().pass_time(max(seconds, STEP_S))

    def call_at(self, when, callback, *args, context=None):
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is not None:
            callback, args = _if_alive, (life, callback, args)
        return super().call_at(when, callback, *args, context=context)

    def after(self, seconds, callback, *args, context):
        """Call back whether the process lives or not."""
        return super().call_at(self.time() + seconds, callback, *args, context=context)

    def start(self, coroutine, life):
        """Return a new task of a process."""
        return self.create_task(coroutine, context=life.context)

    async def getaddrinfo(self, host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_connection(self, factory, host, port, **_):
        return await self.network.connect(factory, host, port)

    async def create_server(self, factory, host, port, **_):
        return Listener(self.network, factory, host, port)


def _if_alive(life, callback, args):
    if life.alive:
        callback(*args)


def _task(loop, coroutine, *, context=None, **options):
    task = asyncio.Task(coroutine, loop=loop, context=context, **options)
    life = LIFE.get() if context is None else context.get(LIFE)
    if life is not None:
        if not life.alive:
            task.cancel()
        life.tasks[task] = None
        task.add_done_callback(lambda done: life.tasks.pop(done, None))
    return task


class NodeClock:
    """The clocks of a machine: the wall clock is wrong by ``ahead_ms`` and by ``drift``."""

    def __init__(self, loop, ahead_ms, drift=0.0):
        self._loop = loop
        self.ahead_ms, self._drift = ahead_ms, drift
        self._origin_ns = (1 + ahead_ms % 1000) * 10**9

    def now_ms(self):
        return BASE_MS + self.ahead_ms + int(self._loop.time() * 1000 * (1 + self._drift))

    def monotonic_ns(self):
        return self._origin_ns + int(self._loop.time() * 1e9)


class _Service:
    def __init__(self, scheduler, name, period_ms, step):
        self.name = name
        self._scheduler, self._period_ms, self._step = scheduler, period_ms, step
        self._timer, self._soon, self._stopped = None, False, False
        self._runs = self._again = False
        self._at(period_of(period_ms) / 1000)

    def _at(self, seconds):
        if self._timer is not None:
            self._timer.cancel()
        scheduler = self._scheduler
        self._timer = scheduler.loop.call_at(
            scheduler.loop.time() + seconds, self._run, context=scheduler.life.context)

    def _run(self):
        self._soon, self._runs, self._again = False, True, False
        again = False
        try:
            again = bool(self._step())
        except FatalStorageError:
            self.stop()
        except Exception as error:
            self._scheduler.failed(self.name, error)
        finally:
            self._runs = False
        if not self._stopped:
            self._soon = again or self._again
            self._at(self._scheduler.soon_s() if self._soon else period_of(self._period_ms) / 1000)

    def wake(self):
        if self._runs:
            self._again = True
        elif not self._soon and not self._stopped:
            self._soon = True
            self._at(self._scheduler.soon_s())

    hurry = wake

    def stop(self):
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()


class LoopScheduler:
    """A Scheduler whose steps are callbacks of the loop, each a little late, so that their order varies."""

    def __init__(self, loop, life, rng, failed):
        """``failed`` gets the name of a service and the error of a step."""
        self.loop, self.life, self.failed = loop, life, failed
        self._rng = rng
        self._services = []

    def soon_s(self):
        return self._rng.random() * (0.002 + self.life.slow_s)

    def every(self, name, period_ms, step, *, rest_ms=0):
        service = _Service(self, name, period_ms, step)
        self._services.append(service)
        return service

    def stop_all(self):
        while self._services:
            self._services.pop().stop()


class Listener:
    """A listening port; also the socket of it."""

    def __init__(self, network, factory, host, port):
        assert port, "the system chooses no ports here"
        if (host, port) in network.listeners:
            raise OSError(98, "Address already in use")
        self.network, self.factory, self.place = network, factory, (host, port)
        self.life = LIFE.get()
        network.listeners[self.place] = self

    @property
    def sockets(self):
        return [self]

    def getsockname(self):
        return self.place

    def close(self):
        if self.network.listeners.get(self.place) is self:
            del self.network.listeners[self.place]


DATA, FIN, RST = "data", "fin", "rst"


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network, life, name, port, number):
        super().__init__()
        self._network, self._loop = network, network.loop
        self.life, self.name, self.port, self.number = life, name, port, number
        self.rng = random.Random(f"{network.seed} {number} {name}")
        self.peer = None
        self.protocol = None
        self.silent = False
        """Nothing that it sends arrives."""
        self.closing = False
        self._lost = self._paused = self._reads_not = self._ended = False
        self._high = 64 << 10
        self._unsent = 0
        self._due = 0.0
        self._held = deque()
        self._inbox = deque()

    # --- the transport

    def get_extra_info(self, name, default=None):
        if name == "peername":
            return self.peer.life.ip, self.port if self.name == "client" else 40_000 + self.number
        return default

    def set_write_buffer_limits(self, high=None, low=None):
        self._high = 64 << 10 if high is None else high

    def get_write_buffer_size(self):
        return self._unsent

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        return self.closing

    def is_reading(self):
        return not self._reads_not

    def pause_reading(self):
        self._reads_not = True

    def resume_reading(self):
        if self._reads_not:
            self._reads_not = False
            self._loop.call_soon(self._read, context=self.life.context)

    def write(self, data):
        if self.closing or self._ended or not self.life.alive:
            return
        data = bytes(data)
        self._unsent += len(data)
        if self._unsent > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
        cuts = sorted(int(len(data) * self.rng.random()) for _ in range(self.rng.randrange(3)))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if begin < end:
                self._send(DATA, data[begin:end])

    def can_write_eof(self):
        return True

    def write_eof(self):
        if not self.closing and not self._ended:
            self._ended = True
            self._send(FIN)

    def close(self):
        if not self.closing:
            if not self._ended:
                self._ended = True
                self._send(FIN)
            self._close(None)

    def abort(self):
        if not self.closing:
            self._send(RST)
            self._close(None)

    def _close(self, error):
        if not self.closing:
            self.closing = True
            self._inbox.clear()
            if self.life.alive:
                self._loop.call_soon(self._tell_lost, error, context=self.life.context)

    def _tell_lost(self, error):
        if not self._lost and self.life.alive:
            self._lost = True
            self._network.ends.pop(self, None)
            self.protocol.connection_lost(error)

    # --- the way to the other end

    def _send(self, kind, data=b""):
        delay = self._network.way_s(self.rng)
        self._due = max(self._due + 1e-6, self._loop.time() + delay)
        self._loop.after(self._due - self._loop.time(), self._arrive, kind, data, context=self.peer.life.context)

    def _arrive(self, kind, data):
        if self.silent or self._network.is_dark(self.peer.life.ip):
            return
        if self._held or self._network.is_blocked(self, self.peer):
            self._held.append((kind, data))
            return
        self.peer.take(kind, data)

    def send_again(self):
        """Send what a partition has held back."""
        if self._held:
            self._loop.after(self.rng.random(), self._all_again, context=self.peer.life.context)

    def _all_again(self):
        while self._held and not self._network.is_blocked(self, self.peer):
            kind, data = self._held.popleft()
            if not self.silent and not self._network.is_dark(self.peer.life.ip):
                self.peer.take(kind, data)

    def taken(self, size):
        """The other end has read bytes."""
        self._unsent -= size
        if self._paused and self._unsent <= self._high // 4 and not self.closing and self.life.alive:
            self._paused = False
            self._loop.call_soon(self.protocol.resume_writing, context=self.life.context)

    # --- what arrives; in the context of this end

    def take(self, kind, data):
        if kind == RST:
            self._close(ConnectionResetError(104, "Connection reset by peer"))
        elif not self.life.alive or self.closing:
            if kind == DATA:  # it is not read
                self._network.refuse(self.peer)
        else:
            self._inbox.append((kind, data))
            self._read()

    def _read(self):
        while self._inbox and not self._reads_not and not self.closing:
            kind, data = self._inbox.popleft()
            if kind == FIN:
                if not self.protocol.eof_received():
                    self.close()
                return
            self.peer.taken(len(data))
            try:
                self._give(data)
            except Exception as error:
                self._network.failed(f"{type(self.protocol).__name__}", error)
                self.abort()

    def _give(self, data):
        protocol = self.protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data and not self.closing:
            buffer = protocol.get_buffer(len(data))
            part = data[: len(buffer)]
            buffer[: len(part)] = part
            protocol.buffer_updated(len(part))
            data = data[len(part) :]


class Network:
    """Machines by their address, and the ways between them."""

    def __init__(self, loop, seed, failed):
        """``failed`` gets the name of a protocol that raised, and the error."""
        self.loop, self.seed, self.failed = loop, seed, failed
        self.listeners = {}
        self.ends = {}
        """Ends of open connections, in the order of their connects."""
        self.dark = set()
        """Addresses of machines without power."""
        self.blocked = set()
        """Pairs of addresses, or of addresses and a port, from the sender to the receiver."""
        self.slow_s = 0.002
        self.loss = 0.0
        """Share of the pieces that arrive only after they are sent again."""
        self.opened = 0
        loop.network = self

    def way_s(self, rng):
        if rng.random() < self.loss:
            return 0.2 + rng.random()
        return 0.0002 + (rng.random() * self.slow_s if rng.random() < 0.2 else 0.0)

    def is_dark(self, ip):
        return ip in self.dark

    def is_blocked(self, sender, receiver):
        return self._blocks(sender.life.ip, receiver.life.ip, sender.port)

    def _blocks(self, sender, receiver, port):
        return (sender, receiver) in self.blocked or (sender, receiver, port) in self.blocked

    def block(self, *ways):
        self.blocked.update(ways)

    def heal(self):
        """Open all ways; connections that have fallen silent stay so."""
        self.blocked.clear()
        for end in list(self.ends):
            end.send_again()

    async def connect(self, factory, host, port):
        life = LIFE.get()
        self.opened += 1
        number = self.opened
        rng = random.Random(f"{self.seed} connect {number}")
        while True:
            await asyncio.sleep(self.way_s(rng) + 0.0002)
            if host not in self.dark and not self._blocks(life.ip, host, port) and not self._blocks(
                host, life.ip, port
            ):
                break
            await asyncio.sleep(AGAIN_S)
        listener = self.listeners.get((host, port))
        if listener is None or not listener.life.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        here, there = End(self, life, "client", port, number), End(self, listener.life, "server", port, number)
        here.peer, there.peer = there, here
        self.ends[here] = self.ends[there] = None
        here.protocol = factory()
        self.loop.call_soon(self._accept, there, listener, context=listener.life.context)
        here.protocol.connection_made(here)
        return here, here.protocol

    @staticmethod
    def _accept(end, listener):
        if listener.life.alive:
            end.protocol = listener.factory()
            end.protocol.connection_made(end)

    def refuse(self, end):
        """Answer bytes for a connection that the receiver does not have any more."""
        if not end.closing and end.life.alive and not self.is_dark(end.life.ip):
            end._close(ConnectionResetError(104, "Connection reset by peer"))

    def end_life(self, life, *, dark):
        """End a process. With ``dark`` its machine has lost its power, and no peer is notified."""
        if dark:
            self.dark.add(life.ip)
        for place in [place for place, one in self.listeners.items() if one.life is life]:
            del self.listeners[place]
        for end in [end for end in self.ends if end.life is life]:
            if not dark and not end.closing:
                end._send(RST)
            end.closing = True
            self.ends.pop(end, None)
        life.end()

    def ends_between(self, port=None):
        """Both ends of each open connection at a port, or at all."""
        return [end for end in self.ends if end.name == "client" and (port is None or end.port == port)
                and not end.closing and not end.peer.closing]


def is_crash(context):
    """Whether what a loop reports comes from a machine that has stopped."""
    return isinstance(context.get("exception"), SimulatedCrash)
