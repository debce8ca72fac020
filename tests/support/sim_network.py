"""A network in memory below the real remoting client: bytes take time, connections end or fall silent, hosts die.

Everything runs in virtual time on one loop (`NetworkLoop`) and draws from one generator, so a seed gives the same run.
A connection is a `Wire`; each of its directions keeps the order of its bytes and splits frames at random places.
"""

from __future__ import annotations

import asyncio

from fake_brokers import VirtualLoop

from tailrace.formats.remoting import decode_frame, encode

UNSENT_MAX = 64 << 10
"""Bytes on the way above which the writer has to wait, as by a socket."""


class NetworkLoop(VirtualLoop):
    """A loop whose connections are those of ``network``."""

    network = None

    async def create_connection(self, factory, host, port, **_):
        return await self.network.connect(factory, f"{host}:{port}")


class Wire(asyncio.Transport):
    """A connection of a client to a host; the client's transport, and the host's end of it."""

    def __init__(self, network, host, protocol):
        super().__init__()
        self._network = network
        self._loop = network.loop
        self.host = host
        self.protocol = protocol
        self.number = next(network.numbers)
        self.silent = False
        """Nothing comes through any more, and neither side is notified (a half-open connection)."""
        self.open = True
        """Whether the client has it open."""
        self._due = {"to host": 0.0, "to client": 0.0}
        self._unsent = 0
        self._paused = False
        self._received = bytearray()

    # --- the client's end

    def write(self, data):
        if not self.open:
            return
        data = bytes(data)
        self._unsent += len(data)
        if self._unsent > UNSENT_MAX and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
        self._later("to host", self._arrive, data)

    def is_closing(self):
        return not self.open

    def can_write_eof(self):
        return True

    def write_eof(self):
        self._later("to host", self._end_of_requests)

    def close(self):
        self._end(None)

    def abort(self):
        self._end(None)

    def _end(self, error):
        if not self.open:
            return
        self.open = False
        self._network.wires.pop(self.number, None)
        self._network.note("closed", self.number)
        self._loop.call_soon(self.protocol.connection_lost, error)
        self._later("to host", self.host.lost, self)

    # --- the way

    def _later(self, direction, step, *arguments):
        """Run a step after the bytes before it; never, if the connection falls silent before."""
        due = self._due[direction] = max(self._due[direction] + 1e-6, self._loop.time() + self._network.way_s())
        self._loop.call_at(due, self._unless_silent, step, arguments)

    def _unless_silent(self, step, arguments):
        if not self.silent and not self.host.dark:
            step(*arguments)

    def _arrive(self, data):
        self._unsent -= len(data)
        if self._paused and self._unsent < UNSENT_MAX // 2 and self.open:
            self._paused = False
            self.protocol.resume_writing()
        self._received += data
        at = 0
        while True:
            command, at = decode_frame(bytes(self._received), at, len(self._received))
            if command is None:
                break
            self.host.arrived(self, command)
        del self._received[:at]

    def _end_of_requests(self):
        self.host.lost(self)
        self.reset(gently=True)

    # --- the host's end

    def on_request(self, address, command):
        """Send a request of the broker."""
        self.send(command)

    def send(self, command, *, first=None):
        """Send a frame in pieces; with ``first`` only this share of it."""
        data = encode(command)
        end = len(data) if first is None else max(1, int(len(data) * first))
        rng = self._network.rng
        cuts = sorted(int(end * rng.random()) for _ in range(rng.randrange(3)))  # shares: a length may differ by a run
        for begin, until in zip([0, *cuts], [*cuts, end], strict=True):
            self._later("to client", self._give, data[begin:until])

    def _give(self, data):
        if self.open and data:
            self.protocol.data_received(data)

    def reset(self, *, gently=False):
        """End the connection; the client is notified."""
        self._later("to client", self._end, None if gently else ConnectionResetError(104, "connection reset by peer"))


class Host:
    """A server at an address. ``serve(wire, command)`` is a coroutine function that gives the answer, or None."""

    def __init__(self, network, address):
        self._network = network
        self.address = address
        self.up = True
        self.dark = False
        """Nothing gets to it or from it, and neither side is notified: a machine without power."""
        self.stalled_until = 0.0
        """It reads, and answers nothing before."""
        self.wires = {}
        self._tasks = set()
        self.cut = None
        """How the next answer ends: (share of the frame, whether the connection is reset after it)."""
        self.strike = None
        """Called with moment ("before" or "after" the request is served), and the command; True ends its service."""
        network.hosts[address] = self

    async def serve(self, wire, command):
        raise NotImplementedError

    def forget(self, wire):
        """Note the end of a connection."""

    def lost(self, wire):
        if self.wires.pop(wire.number, None) is not None:
            self.forget(wire)

    def arrived(self, wire, command):
        if wire.number not in self.wires or command.is_response:
            return
        task = asyncio.create_task(self._answer(wire, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, wire, command):
        if self.strike is not None and self.strike("before", command):
            return
        answer = await self.serve(wire, command)
        if self.strike is not None and self.strike("after", command):
            return
        await asyncio.sleep(self._network.service_s())  # answers overtake each other
        while (left := self.stalled_until - self._network.loop.time()) > 0:
            await asyncio.sleep(left)
        if command.is_oneway or answer is None or wire.number not in self.wires:
            return
        found = command.answer(answer.code, answer.remark, body=answer.body)
        found.ext = answer.ext
        cut, self.cut = self.cut, None
        if cut is None:
            wire.send(found)
            return
        share, told = cut
        wire.send(found, first=share)
        self.wires.pop(wire.number, None)
        self.forget(wire)
        if told:
            wire.reset()

    def kill(self, *, silently):
        """End the process (connections are reset), or the machine (no client is notified)."""
        self.up = False
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        lost, self.wires = list(self.wires.values()), {}
        for wire in lost:
            if silently:
                wire.silent = True
            else:
                wire.reset()
        self.dark = silently

    def start(self):
        self.up, self.dark, self.cut = True, False, None

    @property
    def tasks(self):
        return set(self._tasks)


class Network:
    """All hosts, and the connections to them."""

    def __init__(self, loop, rng):
        self.loop = loop
        self.rng = rng
        self.hosts = {}
        self.wires = {}
        """What clients have open, by number."""
        self.opened = 0
        self.slow_s = 0.01
        """Longest time of a piece on its way; a tenth of them take that, at random."""
        self.trace = []
        self.numbers = iter(range(1, 1 << 60))
        loop.network = self

    def note(self, *what):
        self.trace.append((round(self.loop.time(), 6), *what))

    def way_s(self):
        return self.rng.random() * self.slow_s if self.rng.random() < 0.1 else 0.0005

    def service_s(self):
        return self.rng.random() * self.slow_s if self.rng.random() < 0.3 else 0.0

    async def connect(self, factory, address):
        host = self.hosts[address]
        await asyncio.sleep(0.001 + self.way_s())
        while host.dark:  # SYNs are sent again
            await asyncio.sleep(1.0)
        if not host.up:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        wire = Wire(self, host, protocol)
        host.wires[wire.number] = self.wires[wire.number] = wire
        self.opened += 1
        self.note("opened", wire.number, address)
        protocol.connection_made(wire)
        return wire, protocol
