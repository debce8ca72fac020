"""A store that a test steps, and a broker around it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
from types import SimpleNamespace

import pytest

from tailrace import MessageStore
from tailrace.broker.admin.groups import GroupsProcessor
from tailrace.broker.admin.progress import ProgressProcessor
from tailrace.broker.admin.topics import TopicsProcessor
from tailrace.broker.consumers.client_manage import ClientManageProcessor
from tailrace.broker.consumers.offsets import ConsumerOffsetsProcessor
from tailrace.broker.wiring import BrokerParts
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.forwarding import ForwardingFile, ForwardingFileSystem
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.limits import ServerLimits

SIZES = {
    "mapped_file_size_commit_log": 1 << 23, "mapped_file_size_consume_queue": 20 * 500, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 1 << 16, "mapped_file_size_timer_log": 52 * 2000}
SMALL = StoreConfig(**SIZES)


class ManualClock:
    def __init__(self):
        self.ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms

    def monotonic_ns(self):
        return self.ms * 1_000_000


class UnsyncedFile(ForwardingFile):
    __slots__ = ()

    def sync_data(self):
        pass


class UnsyncedFiles(ForwardingFileSystem):
    """Files on the disk without syncs, which a store makes 19 times from its open to its close."""

    def before(self, operation, path):
        pass

    def open(self, path, **options):
        return UnsyncedFile(self._below.open(path, **options), self.before)

    def sync_dir(self, path):
        pass


class SteppedStore:
    """A real store without threads: a put can be read on return, and `sync` makes puts durable for ``durable_later``.

    A test may replace every attribute.
    """

    def __init__(self, path, broker_config=None, config=None, clock=None, files=None):
        self.clock = clock or ManualClock()
        self.real = MessageStore.open(
            path, config=SMALL if config is None else dataclasses.replace(config, **SIZES), broker_config=broker_config,
            parts=StoreParts(
                services=False, clock=self.clock, entropy=SeededEntropy(7),
                file_system=files or UnsyncedFiles(OsFileSystem())))
        self.real.inner.store_host = b"\x7f\0\0\1\0\0*\x9f"
        put_batch = self.real.inner.put_batch
        self.real.inner.put_batch = lambda *arguments: self._dispatched(put_batch(*arguments))
        self.next_status = None
        self.durable_later = False
        self.waiting = []

    def __getattr__(self, name):
        return getattr(self.real, name)

    @property
    def log(self):
        """The records, in the order of the puts."""
        records, at = [], self.real.min_phy_offset
        while 0 <= at < self.real.max_phy_offset:
            record = self.real.select_record(at)
            if record is None:  # the blank record at the end of a file
                at += -at % SIZES["mapped_file_size_commit_log"]
            else:
                records.append(record)
                at += len(record)
        return records

    def put_inner(self, message):
        if self.next_status is not None:
            return PutMessageResult(self.next_status, remark="as the test wants it")
        return self._dispatched(self.real.put_inner(message))

    def _dispatched(self, result):
        self.real.wait_dispatched()
        return result

    def when_durable(self, until, callback):
        if self.durable_later:
            self.waiting.append(callback)
        else:
            self.real.inner.when_durable(until, callback)

    def sync(self, status=PutMessageStatus.PUT_OK):
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(status)


class FakeChannel:
    """A connection that remembers what was sent."""

    def __init__(self, peer="127.0.0.1:50000"):
        self.peer = peer
        self.peer_ip = peer.partition(":")[0]
        self.born_host = b"\x7f\0\0\1\0\0\xc3P"
        self.closed = False
        self.sent = []

    def write(self, data):
        pos = 0
        while pos < len(data):
            command, pos = decode_frame(data, pos, len(data))
            self.sent.append(command)

    def answer(self, request, response):
        if not request.is_oneway:
            self.write(encode(response))

    def request_oneway(self, command):
        command.flag |= 2
        self.write(encode(command))

    def close(self):
        self.closed = True

    def hold(self, n, size=0):
        self.held = getattr(self, "held", 0) + n
        self.held_bytes = getattr(self, "held_bytes", 0) + size

    def is_reading(self):
        return True

    def when_reading(self, answer):
        if not self.closed:
            answer()


def decoded(answer):
    """A processor's answer as a command."""
    if isinstance(answer, bytes):
        command, end = decode_frame(answer, 0, len(answer))
        assert end == len(answer)
        return command
    return answer


class Served:
    """A processor whose refusals are answers, as a connection gives them."""

    def __init__(self, processor):
        self.processor = processor

    def __getattr__(self, name):
        method = getattr(self.processor, name)
        if not callable(method):
            return method
        if (served := getattr(method, "served", None)) and served.in_thread and hasattr(self.processor, "_worker"):
            method = self.processor._worker.in_thread(method)

        @functools.wraps(method)
        def serve(*args, **options):
            try:
                return method(*args, **options)
            except RefusalError as refusal:
                request = args[1]
                return request.answer(refusal.code, refusal.remark, dict(refusal.ext))

        return serve


def make_broker(store, loop, config=None, clock=None, executors=None, control=None):
    broker = BrokerParts(
        loop, clock or store.clock, SeededEntropy(1), store, config or BrokerConfig(), ServerLimits(),
        control=control, executors=executors)
    broker.addresses.broker = "127.0.0.1:10911"
    return broker


def use_control(broker, control):
    """Make the parts of a broker again, with users or with None. Objects that have the former parts keep them."""
    address = broker.addresses.broker
    broker.__init__(
        broker.loop, broker.clock, broker.entropy, broker.store, broker.config, OsFileSystem(), control=control,
        executors=broker.executors)
    broker.addresses.broker = address


def clients_of(broker):
    """What serves heartbeats, offsets and locks."""
    return together(
        wired(kind, broker) for kind in (ClientManageProcessor, ConsumerOffsetsProcessor))


def admin_of(broker):
    """What serves topics, groups and their offsets."""
    return together(wired(kind, broker) for kind in (TopicsProcessor, GroupsProcessor, ProgressProcessor))


def together(parts):
    return SimpleNamespace(**{
        name: getattr(part, name) for part in parts for name in dir(part) if not name.startswith("__")})


def wired(kind, broker, *others, **options):
    """A part of a broker; ``others`` are the parameters that the broker does not have, or that have defaults, in order.
    """
    parameters = inspect.signature(kind).parameters.items()
    lacks = [name for name, one in parameters if name not in options and (
        one.default is not inspect.Parameter.empty or not hasattr(broker, name))]
    assert len(others) <= len(lacks)
    return broker.make(kind, **dict(zip(lacks, others, strict=False)), **options)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def open_store():
    """Opens a `SteppedStore`, which the end of the test closes."""
    with contextlib.ExitStack() as opened:
        def made(*arguments, **options):
            store = SteppedStore(*arguments, **options)
            opened.callback(store.close)
            return store

        yield made


@pytest.fixture
def store(open_store, tmp_path, clock):
    return open_store(tmp_path / "store", clock=clock)


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def broker(store, loop):
    return make_broker(store, loop)


@pytest.fixture
def channel():
    return FakeChannel()


@pytest.fixture
def kit(open_store):
    """What tests need beside the fixtures."""
    return SimpleNamespace(
        open_store=open_store, FakeChannel=FakeChannel, decoded=decoded, make_broker=make_broker,
        request=RemotingCommand, served=Served,
    )
