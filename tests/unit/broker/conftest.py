"""A store in memory with the interface that the broker uses, and a broker around it."""

from __future__ import annotations

import asyncio
import functools
import struct
import zlib
from types import SimpleNamespace

import pytest

from tailrace.broker.client_manager import ConsumerManager, ProducerManager
from tailrace.broker.context import BrokerContext
from tailrace.broker.executors import Executors
from tailrace.broker.filters.consumer_filters import ConsumerFilterManager
from tailrace.broker.filters.message_filters import MessageFilters
from tailrace.broker.pop.revive_log import ReviveLog
from tailrace.broker.rebalance_lock import RebalanceLockManager
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import decode_batch, decode_message, decode_properties, tags_code
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.model import (
    BoundaryType,
    GetMessageResult,
    GetMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    places_of,
)
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.delay_offset import DelayOffsetManager
from tailrace.node.deletion import Deleted
from tailrace.node.left_over_queues import LeftOverQueue
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfigManager
from tailrace.store.append import PutCounts
from tailrace.store.queue_sizes import QueueSize
from tailrace.store.refused_puts import RefusedPuts
from tailrace.store.retention.disk_check import measure
from tailrace.store.running_flags import RunningFlags
from tailrace.testing import SimClock

HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


class ManualClock:
    def __init__(self):
        self.ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms

    def monotonic_ns(self):
        return self.ms * 1_000_000


class Retention:
    """The disks of a store, whose trash is empty."""

    def __init__(self, store):
        self.disk, self.trash = self, SimpleNamespace(bytes_of=lambda path: 0)
        self._store = store

    def follow_groups(self, offsets):
        pass

    def measure(self):
        return measure(
            self._store.file_system, [f"{self._store.path}/commitlog"], f"{self._store.path}/consumequeue",
            self.trash.bytes_of)


class FakeStore:
    """Messages in lists; durable immediately, or when `sync` is called for ``durable_later``."""

    def __init__(self, path, broker_config=None, config=None, clock=None):
        self.path = str(path)
        self.file_system = OsFileSystem()
        self.read_only = self.lost_lock = ""
        self.is_writeable = True
        self.retention = Retention(self)
        self.refused_puts = RefusedPuts(SimClock(), PutCounts(), RunningFlags())
        self.config = config or StoreConfig()
        self.config_dir = f"{self.path}/config"
        self.file_system = OsFileSystem()
        self.inner = self  # the store below has the methods of this one
        self.deletion = SimpleNamespace(delete_group=self.delete_group)
        self.lives = SimpleNamespace(deleted_up_to=lambda topic: 0)
        self.clock = clock or ManualClock()
        self.topics = TopicConfigManager(
            OsFileSystem(), self.config_dir, broker_config or BrokerConfig(), self.clock
        )
        self.timer_services = SimpleNamespace(
            delay_offsets=DelayOffsetManager(OsFileSystem(), self.config_dir, self.clock),
            progress=lambda: (0, self.clock.now_ms()), schedule=SimpleNamespace(progress=lambda: [(3, 5, 7)]))
        self.store_host = b"\x7f\0\0\1\0\0*\x9f"
        self.queues_of = {}
        self.log = []
        self.max_phy_offset = 0
        self.min_phy_offset = 0
        self.dispatch_behind_bytes = 0
        self.next_status = None
        self.durable_later = False
        self.waiting = []
        self.listener = None

    @property
    def flushed_where(self):
        return self.max_phy_offset

    def wall_time_of(self, message):
        return message.store_timestamp

    def put_inner(self, m):
        if self.next_status is not None:
            return PutMessageResult(self.next_status, remark="as the test wants it")
        if len(m.body) > self.config.max_message_size:
            return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, remark="body too long")
        if len(m.properties) > 32767:
            return PutMessageResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, remark="properties")
        queue = self.queues_of.setdefault((m.topic, m.queue_id), [])
        topic = m.topic.encode()
        size = 91 + len(m.body) + len(topic) + len(m.properties)
        phy = self.max_phy_offset
        record = HEAD.pack(
            size, 0xDAA320A7, zlib.crc32(m.body) & 0x7FFFFFFF, m.queue_id, m.flag, len(queue), phy,
            m.sys_flag, m.born_timestamp, m.born_host, self.clock.now_ms(), self.store_host,
            m.reconsume_times, 0, len(m.body),
        ) + m.body + bytes([len(topic)]) + topic + struct.pack(">h", len(m.properties)) + m.properties
        code = tags_code(decode_properties(m.properties).get("TAGS"))
        queue.append((record, code))
        self.log.append(record)
        self.max_phy_offset += size
        if self.listener is not None:
            self.listener.arriving(m.topic, m.queue_id, len(queue), [code], size)
        return PutMessageResult(
            PutMessageStatus.PUT_OK, phy, phy + size, m.queue_id, len(queue) - 1,
            self.clock.now_ms(), 1, (phy,),
        )

    def put_batch(self, m, body):
        results = []
        for flag, item, props in decode_batch(body):
            inner = type(m)(
                m.topic, m.queue_id, item, props, flag, m.sys_flag, m.born_timestamp, m.born_host
            )
            results.append(self.put_inner(inner))
        first, last = results[0], results[-1]
        return PutMessageResult(
            first.status, first.phy_offset, last.until, m.queue_id, first.queue_offset,
            first.store_timestamp, len(results), [r.phy_offset for r in results],
        )

    def wait_dispatched(self, timeout_ms=10_000):
        return True

    def when_durable(self, until, callback):
        if self.durable_later:
            self.waiting.append(callback)
        else:
            callback(PutMessageStatus.PUT_OK)

    def sync(self, status=PutMessageStatus.PUT_OK):
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(status)

    def get_message(self, topic, queue_id, offset, max_msg_nums, *, max_bytes=1 << 30, codes=None, **_):
        queue = self.queues_of.get((topic, queue_id))
        if queue is None:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)
        end = len(queue)
        if offset == end:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, 0, end)
        if offset > end:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, end, 0, end)
        if offset < 0:
            return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 0, 0, end)
        units = queue[offset : offset + max_msg_nums]
        found = [(offset + i, r) for i, (r, c) in enumerate(units) if codes is None or c in codes]
        status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(
            status, offset + len(units), 0, end, b"".join(r for _, r in found), len(found),
            places_of([r for _, r in found], [o for o, _ in found]))

    def read(self, topic, queue_id=0, offset=None, *, max_count=None):
        for record, _ in self.queues_of.get((topic, queue_id), [])[offset or 0 :][:max_count]:
            yield decode_message(record)

    def look_message_by_offset(self, phy):
        record = self.select_record(phy)
        return decode_message(record) if record is not None else None

    def flush(self):
        pass

    def is_in_memory(self, phy):
        return True

    def select_record(self, phy):
        return next((r for r in self.log if struct.unpack_from(">q", r, 28)[0] == phy), None)

    def query_records(self, topic, key, max_num=64, begin=0, end=2**63 - 1, index_type="K"):
        found = []
        for record in self.log:
            message = decode_message(record)
            if message.topic == topic and (key in message.keys or key == message.unique_key):
                found.append(record)
        return found[:max_num]

    @property
    def queue_offsets(self):
        return self

    def by_time(self, topic, queue_id, timestamp, boundary=BoundaryType.LOWER):
        return 0 if timestamp <= self.clock.now_ms() else self.max(topic, queue_id)

    def min(self, topic, queue_id):
        return 0

    def bounds(self, topic, queue_id):
        return self.min(topic, queue_id), self.max(topic, queue_id)

    def max(self, topic, queue_id, *, committed=True):
        return len(self.queues_of.get((topic, queue_id), ()))

    def queue_size(self, topic, queue_id):
        return QueueSize(100 * len(self.queues_of.get((topic, queue_id), ())), is_exact=True)

    def left_over_queues(self, topics):
        found = {}
        for (topic, queue_id), queue in sorted(self.queues_of.items()):
            if queue and queue_id >= topics.get(topic, queue_id + 1):
                found.setdefault(topic, []).append(LeftOverQueue(queue_id, 0, len(queue)))
        return found

    def store_timestamp(self, topic, queue_id, offset):
        return decode_message(self.queues_of[topic, queue_id][offset][0]).store_timestamp

    def earliest_message_time(self):
        return -1

    def delete_topics(self, topics, *, missing_ok=False):
        self.deletion.state.forget(topics, lambda: [self.topics.delete(topic) for topic in topics])
        for key in [k for k in self.queues_of if k[0] in topics]:
            del self.queues_of[key]
        self.deletion.state.forgotten(topics)
        return Deleted(sorted(topics), [])

    def delete_group(self, group, also):
        also()
        return Deleted([], [])

    def begin_of_life(self, topic, queue_id):
        return 0

    def stats(self):
        return {}

    def set_message_arriving_listener(self, listener):
        self.listener = listener


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

        @functools.wraps(method)
        def serve(*args, **options):
            try:
                return method(*args, **options)
            except RefusalError as refusal:
                request = args[1]
                return request.answer(refusal.code, refusal.remark, dict(refusal.ext))

        return serve


def make_broker(store, loop, config=None, clock=None, executors=None):
    config = config or BrokerConfig()
    clock, files = clock or store.clock, OsFileSystem()
    groups = SubscriptionGroupManager(files, store.config_dir, config, clock)
    groups.load()
    store.topics.ensure_system_topics()
    groups.ensure_system_groups()
    filters = ConsumerFilterManager(files, store.config_dir, config, clock)
    revive_log = ReviveLog(store, config, clock)
    return BrokerContext(
        loop=loop, clock=clock, entropy=SeededEntropy(1), store=store, config=config,
        topics=store.topics, groups=groups,
        revive_log=revive_log,
        offsets=ConsumerOffsetManager(files, store.config_dir, clock, before_write=revive_log.sync),
        consumers=ConsumerManager(clock, config.channel_expired_ms, lambda group: True, filters),
        producers=ProducerManager(clock, config.channel_expired_ms),
        locks=RebalanceLockManager(clock), filters=MessageFilters(config, filters),
        address="127.0.0.1:10911", boot_ms=clock.now_ms(), executors=executors or Executors(),
    )


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    return FakeStore(tmp_path, clock=clock)


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
def kit():
    """What tests need beside the fixtures."""
    return SimpleNamespace(
        FakeStore=FakeStore, FakeChannel=FakeChannel, decoded=decoded, make_broker=make_broker,
        request=RemotingCommand, served=Served,
    )
