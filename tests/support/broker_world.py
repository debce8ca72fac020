"""A whole broker without sockets on a simulated machine: virtual time, files that can crash, one thread.

Processors, transactions, POP and their services are the real ones. The event loop is `Turns`, which runs
callbacks one by one and lets a SimulatedCrash through.
"""

from __future__ import annotations

import heapq
import itertools
from functools import partial
from types import SimpleNamespace
from unittest import mock

from tailrace.broker import wiring
from tailrace.broker.controller import BrokerController
from tailrace.broker.messages.proven import ProvenTopics
from tailrace.broker.messages.transaction_checks import TransactionChecks
from tailrace.broker.wiring import BrokerParts
from tailrace.config import BrokerConfig, FlushDiskType, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_frame,
    encode,
)
from tailrace.kernels.properties import encode_properties
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.limits import ServerLimits
from tailrace.requests.executors import BoundedExecutor, Executors
from tailrace.timer.timer_message_store import TimerMessageStore

ROOT = "/store"
QUEUE_FILE_UNITS = 20
_SIZES = {
    "mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 20 * QUEUE_FILE_UNITS,
    "max_hash_slot_num": 64, "max_index_num": 512, "commit_log_allocate_step": 1 << 13,
    "mapped_file_size_timer_log": 52 * 40, "timer_max_delay_sec": 400}
SMALL_SIZES = _SIZES | {
    "mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 20 * 6, "commit_log_allocate_step": 4096,
    "mapped_file_size_timer_log": 52 * 8, "max_message_size": 2000, "max_open_files": 3}
"""Segments that are soon full, and few open files, so that most reads are calls."""
WHEEL_SLOTS = 512
TOPIC, GROUP, PRODUCERS, QUEUES = "orders", "g", "PG", 2


class _Handle:
    def __init__(self, call):
        self.call = call

    def cancel(self):
        self.call = None


class InPlace:
    """A pool of threads that calls in place, so that a crash comes at the same operation again."""

    running = waiting = refused = 0

    def __init__(self, name="in place"):
        self.name = name

    def run(self, function, *args):
        async def call():
            return function(*args)

        return call()

    def stop(self):
        pass


def executors_in_place():
    found = Executors()
    for name in [name for name, pool in vars(found).items() if isinstance(pool, BoundedExecutor)]:
        setattr(found, name, InPlace(name))
    return found


class Turns:
    """An event loop in virtual time."""

    def __init__(self, clock):
        self._clock = clock
        self._ready = []
        self._later = []
        self._number = itertools.count()
        self._coroutines = []
        self.tolerates = False
        """True while reads fail: an error ends the call that it comes in, as in a real loop, and no other."""

    def serve(self, call):
        """Call something that a scheduler or a loop calls."""
        try:
            return call()
        except (OSError, StoreError):
            if not self.tolerates:
                raise
            return None

    def is_running(self):
        return False

    def time(self):
        return self._clock.monotonic_ns() / 1e9

    def call_soon(self, call, *args):
        self._ready.append(_Handle(partial(call, *args)))
        return self._ready[-1]

    call_soon_threadsafe = call_soon

    def call_later(self, seconds, call, *args):
        handle = _Handle(partial(call, *args))
        heapq.heappush(self._later, (self.time() + seconds, next(self._number), handle))
        return handle

    def create_task(self, coroutine):
        self._coroutines.append(coroutine)

        def drive():
            self._coroutines.remove(coroutine)
            try:
                coroutine.send(None)
            except StopIteration:
                return
            raise AssertionError("a coroutine waits for something that is not simulated")

        self.call_soon(drive)
        return object()

    def stop(self):
        """Drop what did not run."""
        for coroutine in self._coroutines:
            coroutine.close()

    def run(self):
        """Run what is ready, and what that makes ready."""
        while True:
            while self._later and self._later[0][0] <= self.time():
                self._ready.append(heapq.heappop(self._later)[2])
            if not self._ready:
                return
            handle = self._ready.pop(0)
            if handle.call is not None:
                self.serve(handle.call)


class Connection:
    """A connection of a client: answers by the number of their request, and requests of the broker."""

    def __init__(self):
        self.peer, self.peer_ip, self.born_host = "127.0.0.1:50000", "127.0.0.1", b"\x7f\0\0\1\0\0\xc3P"
        self.closed = self.paused = False
        self.answers = {}
        self.asked = []

    def write(self, data):
        at = 0
        while at < len(data):
            command, at = decode_frame(data, at, len(data))
            if command.is_response:
                assert command.opaque not in self.answers, "a request is answered twice"
                self.answers[command.opaque] = command
            else:
                self.asked.append(command)

    def answer(self, request, response):
        if not request.is_oneway:
            self.write(encode(response))

    def request_oneway(self, command):
        command.flag |= 2
        self.write(encode(command))

    def hold(self, n, size=0):
        pass

    def close(self):
        self.closed = True

    def is_reading(self):
        return True

    def when_reading(self, answer):
        if not self.closed:
            answer()


class BrokerWorld:
    """A broker on ``files``; one object is one life of a process."""

    def __init__(self, files, clock, *, sync=True, broker_config=None, entropy=None, sizes=None):
        self.files, self.clock = files, clock
        self.config = broker_config or BrokerConfig(
            transaction_op_batch_interval=2_000, revive_queue_num=2, transaction_time_out=3_000)
        store_config = StoreConfig(
            **(sizes or _SIZES), flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH)
        with mock.patch(
            "tailrace.node.timers.TimerMessageStore", partial(TimerMessageStore, slots_total=WHEEL_SLOTS)
        ):
            self.store = store = MessageStore.open(
                ROOT, config=store_config, broker_config=self.config,
                parts=StoreParts(services=False, clock=clock, file_system=files, entropy=entropy or SeededEntropy(7)))
        self.loop = Turns(clock)
        self.connection = Connection()
        self.opaque = 0
        self._connect(store, entropy or SeededEntropy(9))

    def _connect(self, store, entropy):
        """What `BrokerController` does with the parts that are here, in its order."""
        self.broker = broker = BrokerParts(
            self.loop, self.clock, entropy, store, self.config, ServerLimits(),
            executors=executors_in_place())
        sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        durable = broker.durable if sync else None
        proven = ProvenTopics(store.topics)
        self.sends = wiring.sends(broker, broker.durable, wait_durable=sync, proven=proven)
        self.sends.set_store_host(store.inner.store_host)
        self.lane = wiring.send_lane(broker, self.sends, proven, wait_durable=sync)
        self.lane.register(server := SimpleNamespace(lanes={}))
        self.has_lane = bool(server.lanes)
        self.pop_part = wiring.pop_consumption(broker, durable)
        self.ends = wiring.ends_of_transactions(broker, durable)
        self.checks = broker.make(TransactionChecks)
        assert store.wait_dispatched()
        BrokerController._correct_offsets(SimpleNamespace(_broker=broker, _store=store))
        broker.transactions.load()
        store.set_message_arriving_listener(self.pop_part)
        store.topics.create_if_missing(TOPIC, QUEUES)
        broker.clients.producers.register(
            self.connection, RemotingCommand(RequestCode.HEART_BEAT, {}), "client", PRODUCERS)

    def persist(self):
        """As `BrokerController._persist_offsets`, which continues after an error. Return False if a read has failed."""
        def write_orders():
            self.pop_part.prepare()
            self.pop_part.write_prepared()

        done = []
        for write in (self.broker.offsets.persist_if_changed, write_orders):
            self.loop.serve(lambda write=write: done.append(write()))
        return len(done) == 2

    def persisted_offsets(self):
        """(topic, group, queue) to offset, as they are now."""
        return {(topic, group, queue): offset for topic, group, queue, offset in self.broker.offsets.entries()}

    def close(self):
        self.broker.transactions.write_operations()
        self.persist()
        self.store.close()

    # -- services, one step each

    def dispatch(self):
        self.loop.serve(self.store.wait_dispatched)

    def timers(self):
        timers = self.store.timer_services.messages
        self.dispatch()
        while self.loop.serve(timers.enqueue_step):
            pass
        while self.loop.serve(timers.dequeue_step):
            pass

    def revive(self):
        while self.loop.serve(self.pop_part.revive.step):
            pass

    def check_pass(self):
        self.loop.serve(self.checks.start_pass)
        self.loop.run()

    def operations(self):
        self.loop.serve(self.broker.transactions.write_operations_if_due)

    def flush_timers(self):
        self.loop.serve(self.store.timer_services.messages.flush_step)

    def flush_log(self):
        self.loop.serve(self.store.flush)

    def flush_queues(self):
        self.loop.serve(lambda: self.store.inner.flush_consume_queue.flush(0))

    def steps(self):
        """Every service that something waits for, in an order in which all comes through."""
        for _ in range(2):
            self.timers()
        self.dispatch()
        self.revive()
        self.dispatch()
        self.operations()
        self.loop.run()

    def run(self, ms, step=500):
        while ms > 0:
            self.clock.advance(min(step, ms))
            ms -= step
            self.steps()

    # -- requests

    def ask(self, serve, code, ext, body=b""):
        """Send a request; its number. The answer comes to the connection, now or later."""
        self.opaque += 1
        request = RemotingCommand(
            code, {name: str(value) for name, value in ext.items() if value is not None}, body, opaque=self.opaque)
        try:
            answer = serve(self.connection, request)
        except RefusalError as refusal:
            answer = request.answer(refusal.code, refusal.remark, dict(refusal.ext))
        except (OSError, StoreError) as error:
            if not self.loop.tolerates:
                raise
            answer = request.answer(ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(answer, bytes):
            self.connection.write(answer)
        elif answer is not None:
            self.connection.answer(request, answer)
        return request.opaque

    def answer(self, number):
        return self.connection.answers.get(number)

    def send(self, body, queue_id=0, *, half=False, key=None):
        properties = {"UNIQ_KEY": key or f"U{body.decode()}"}
        if half:
            properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        ext = {
            "producerGroup": PRODUCERS, "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 2,
            "queueId": queue_id, "sysFlag": 4 if half else 0, "bornTimestamp": self.clock.now_ms(), "flag": 0,
            "properties": encode_properties(properties).decode()}
        if self._take(RequestCode.SEND_MESSAGE, ext, body):
            return self.opaque
        return self.ask(self.sends.send, RequestCode.SEND_MESSAGE, ext, body)

    def _take(self, code, ext, body):
        """Return whether the lane has served a request, as a server has it do first."""
        if not self.has_lane:
            return False
        frame = encode(RemotingCommand(
            code, {name: str(value) for name, value in ext.items()}, body, opaque=self.opaque + 1))
        end, answer = self.lane.take(self.connection, frame, 0, 1 << 18)
        if not end:
            return False
        assert end == len(frame)
        self.opaque += 1
        self.connection.write(answer)
        return True

    def end_transaction(self, queue_offset, phy_offset, *, commit, check=False, name=None):
        return self.ask(self.ends.end_transaction, RequestCode.END_TRANSACTION, {
            "producerGroup": PRODUCERS, "tranStateTableOffset": queue_offset, "commitLogOffset": phy_offset,
            "commitOrRollback": 8 if commit else 12, "msgId": "x", "fromTransactionCheck": str(check).lower(),
            "transactionId": name})
