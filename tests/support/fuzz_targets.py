"""What is fuzzed: each target takes any bytes and raises only if it found a fault.

A fault is an exception that the called function does not declare, or a broken rule that the target itself checks (two
readers of one format differ, a text changes on its way). A hang and too much memory are found by the fuzzer
(tools/fuzz.py) and, for the inputs that are kept, by the limits of tests/unit/test_fuzz_targets.py.
"""

import asyncio
import dataclasses
import functools
import importlib.util
import itertools
import json
import logging
import math
import struct
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import numpy as np
from fuzz_lanes import lane_seeds, lanes

from tailrace import Message, MessageStore, StoreConfig
from tailrace.auth.accesses import Accesses
from tailrace.broker.consumers.consumer_checks import read_heartbeat
from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import (
    ConfigError,
    CorruptionError,
    FilterExpressionError,
    MessageIllegalError,
    RefusalError,
    RemotingFrameError,
    StoreError,
)
from tailrace.filters.sql_grammar import parse_sql
from tailrace.formats import fastjson
from tailrace.formats.checkpoint import CHECKPOINT
from tailrace.formats.commitlog import (
    decode_batch,
    decode_message,
    decode_properties,
    decompress_body,
    is_damaged_header,
    plausible_size,
    sizes_inside,
)
from tailrace.formats.inner_batch import unwrapped
from tailrace.formats.remoting import (
    RemotingCommand,
    RequestCode,
    decode_binary_header,
    decode_frame,
    encode,
)
from tailrace.formats.requests.table import REQUESTS, Role
from tailrace.kernels import hashes, header, record
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.in_process import InProcessConnection
from tailrace.testing import CrashFileSystem, SimClock
from tailrace.timer.timer_message_store import TimerMessageStore

ROOT = "/store"
WHEEL_SLOTS = 512
_WORLD_MS = 1_700_000_000_000
BODY_MAX = 1 << 20
SIZES = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096)

LMQ_SIZES = dataclasses.replace(SIZES, enable_lmq=True, enable_multi_dispatch=True)


class FoundError(AssertionError):
    """A rule is broken."""


def check(holds, *what):
    if not holds:
        raise FoundError(*what)


# --- frames and their headers


def frame(data):
    """A frame: its header in both encodings, the typed fields of its code, and what access control reads of it."""
    try:
        command, end = decode_frame(data, 0, len(data))
    except RemotingFrameError:
        return
    if command is None:
        check(end == 0, "an incomplete frame moves the position")
        return
    check(8 <= end <= len(data), "the end of the frame", end)
    if data[4] == 1:
        _compare_headers(data, end)
    again, _ = decode_frame(encoded := encode(command), 0, len(encoded)) if command.code < 0x8000 else (command, 0)
    check(again is not None and again.ext == {k: v for k, v in command.ext.items() if v or data[4] == 0},
          "fields change when they are encoded", command.ext, again and again.ext)
    request = REQUESTS.get(command.code)
    if request is not None and request.header is not None:
        try:
            command.read(request.header)
        except RefusalError:
            pass
    try:
        _accesses().of(command)
    except (ConfigError, RefusalError):
        pass


@functools.cache
def _accesses():
    return Accesses("DefaultCluster")


def _compare_headers(data, end):
    """The kernel and the Python code read the same header, or both refuse it."""
    until = 8 + (struct.unpack_from(">I", data, 4)[0] & 0xFFFFFF)
    found = []
    for read, refused in ((decode_binary_header, RemotingFrameError), (header.decode_header, ValueError)):
        try:
            found.append(read(data[:end], 8, until))
        except refused:
            found.append(None)
    check(found[0] == found[1], "two readers of one header differ", *found)


# --- JSON


def json_text(data):
    """A text of a body: fastjson's reader, its bounded form, and a heartbeat."""
    values = []
    for read in (partial(fastjson.loads, nodes_max=10_000),
                 partial(fastjson.loads_bounded, values_max=1_000)):
        try:
            values.append(read(data))
        except ValueError:
            continue
    for value in values:
        written = fastjson.dumps(value) if _is_plain(value) else None
        check(written is None or fastjson.loads(written) == json.loads(written), "a written text reads differently")
    try:
        read_heartbeat(RemotingCommand(RequestCode.HEART_BEAT, {}, data))
    except (MessageIllegalError, RefusalError):
        pass


def _is_plain(value):
    """Whether json.dumps of a value is read back as the same: no keys that are not texts, no odd numbers."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and k != "$ref" for k in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return -(1 << 63) <= value < 1 << 64
    return not isinstance(value, float) or math.isfinite(value)


# --- SQL92


VALUES = (None, "", "a", "1", "-7", "1.5", "1e308", "0x1f", "true", "TRUE", "9" * 40, "NaN", "\ud7ff", " 1")


def sql(data):
    """An expression: compiled, and evaluated for many values of its properties."""
    text = data.decode("utf-8", "replace")
    try:
        expression = parse_sql(text)
    except FilterExpressionError:
        return
    for number, value in enumerate(VALUES):
        values = [VALUES[(number + place) % len(VALUES)] if place else value for place in range(len(expression.names))]
        try:
            found = expression.evaluate(values)
        except (ValueError, ArithmeticError):
            found = None  # as `matches`, which refuses the message
        check(found in {True, False, None}, "an expression without a truth value", found)
        check(expression.matches(values) in {True, False}, "a message that neither matches nor does not")


# --- gRPC


def grpc(data):
    """A message of a SendMessage call and the settings of a client: what is stored, and what is answered."""
    from google.protobuf.message import DecodeError
    from rocketmq.grpc_protocol import definition_pb2 as definition

    from tailrace.proxy.conversion import to_message
    from tailrace.proxy.protocol import GrpcError
    from tailrace.proxy.settings import check_settings, merged

    activity, broker = _grpc_parts()
    try:
        message = definition.Message.FromString(data)
    except DecodeError:
        pass
    else:
        try:
            properties = activity.checked(SimpleNamespace(peer=("127.0.0.1", 1), client_id="c"), "t", message)
        except GrpcError:
            pass
        else:
            _stays_the_same(properties)
    try:
        settings = definition.Settings.FromString(data)
        check_settings(broker.groups, settings)
        merged(broker.groups, settings)
    except (DecodeError, GrpcError):
        pass
    try:
        to_message(decode_message(data), "t").SerializeToString()
    except CorruptionError:
        pass


def _stays_the_same(properties):
    """Properties are read as they were given: no text of a client adds another property."""
    try:
        stored = encode_properties(properties)
    except (MessageIllegalError, ValueError):
        return
    check(decode_properties(stored) == {k: v for k, v in properties.items() if v is not None},
          "properties change when they are stored", properties, decode_properties(stored))


@functools.cache
def _grpc_parts():
    from tailrace.broker.statistics.traffic import Traffic
    from tailrace.node.subscription_group import SubscriptionGroupConfig
    from tailrace.proxy.send import SendMessageActivity

    broker = SimpleNamespace(
        clock=SimClock(), traffic=Traffic(), store=SimpleNamespace(config=SIZES, topics=SimpleNamespace(
            select=lambda name: SimpleNamespace(attributes={"message.type": "MIXED"}))),
        groups=SimpleNamespace(select=lambda name: SubscriptionGroupConfig(group_name=name),
                               may_create=lambda name: True))
    return SendMessageActivity(broker.clock, broker.store, None, broker.traffic, None, None, None), broker


# --- records


def log_record(data):
    """A part of a CommitLog: the scan, the record, its batch, its body, and what may be inside a damaged one."""
    checks = C.CHECK_BODY_CRC | C.CHECK_PHY_OFFSET | C.CHECK_PROP_CRC
    rows = np.zeros((4, C.COLUMNS), np.int64)
    count, stop, _ = record.scan(data, 0, len(data), 0, checks, rows)
    check(0 <= count <= 4 and 0 <= stop <= len(data), "a scan leaves its buffer", count, stop)
    at = 0
    for _ in range(count):
        size = struct.unpack_from(">i", data, at)[0]
        _read_message(data[at : at + size], must=True)
        at += size
    _read_message(data, must=False)
    if len(data) >= 48:
        plausible_size(data[:48], 0)
        is_damaged_header(data[:48], 0, length_is_right=bool(data[0] & 1))
    for size in itertools.islice(sizes_inside(data), 100):
        check(size > 0, "a record without a size")
    try:
        items = decode_batch(data)
        check(sum(len(body) + len(properties) for _, body, properties in items) <= len(data), "a batch grows")
    except (CorruptionError, MessageIllegalError, ValueError):
        pass


def _read_message(data, *, must):
    """``must``: the scan has found the record valid, so it can be read; no checksum says that its topic is a text."""
    try:
        message = decode_message(data)
    except CorruptionError as error:
        check(not must or "UTF-8" in str(error), "a valid record cannot be read", error)
        return
    try:
        inner = list(itertools.islice(unwrapped(message), 1_000))
        check(all(len(one.body) <= len(data) for one in inner), "a member is larger than its batch")
    except CorruptionError:
        pass
    try:
        check(len(decompress_body(message.body, message.sys_flag, BODY_MAX)) <= BODY_MAX, "a body over its limit")
    except (CorruptionError, ValueError):
        pass


# --- files of a store


def store_file(data):
    """Changed bytes in a file of a store that was killed: it opens and reads, or says what is wrong.

    The first byte chooses the file, and each further group of five bytes is a place and what is written there.
    """
    files = _patched(_stopped(), data)
    if files is None:
        return
    opened = None
    try:
        opened = _open(files)
        for topic, queue_id, low, high in list(opened.queues()):
            _read_queue(opened, topic, queue_id, low, min(high, low + 50))
        opened.query_records("orders", "k1")
    except StoreError:
        pass
    finally:
        if opened is not None:
            try:
                opened.close()
            except StoreError:
                pass


def timer_file(data):
    """The same for a store with messages that wait for their time: they are delivered, or what is wrong is said."""
    files = _patched(_waiting(), data)
    if files is None:
        return
    try:
        world = _world_class()(files, SimClock(_WORLD_MS))
        world.run(30_000, step=1_000)
        for topic in ("T", "rmq_sys_wheel_timer"):
            world.records(topic)
    except StoreError:
        pass


def _patched(image, data):
    """A copy of files in which bytes are changed; None if ``data`` is too short to say how."""
    if len(data) < 6:
        return None
    files = image.killed()
    names = _names(image)
    path = names[data[0] % len(names)]
    size = files.stat(path).size
    for start in range(1, min(len(data) - 4, 121), 5):
        place, value = struct.unpack_from(">HH", data, start)
        kind = data[start + 4]
        if kind == 255:
            files.open(path, writable=True).truncate(place % (size + 1))
        else:
            patch = (struct.pack(">H", value), struct.pack(">q", value - 32768), b"\xff" * 4, bytes(20))[kind % 4]
            files.open(path, writable=True).pwrite(patch, place % max(1, size))
    return files


def _read_queue(store, topic, queue_id, low, high):
    while low < high:
        result = store.get_message(topic, queue_id, low, 32)
        for stored in result.records:
            check(decode_message(stored).topic == topic, "a record of another topic is served")
        check(result.next_begin_offset > low, "a reader does not move on", topic, queue_id, low)
        low = result.next_begin_offset


def _open(files, config=SIZES):
    """Open a store with a small timer wheel."""
    with mock.patch("tailrace.node.timers.TimerMessageStore", partial(TimerMessageStore, slots_total=WHEEL_SLOTS)):
        return MessageStore.open(
            ROOT, config=config,
            parts=StoreParts(services=False, clock=SimClock(), file_system=files, entropy=SeededEntropy(5)))


@functools.cache
def _stopped():
    """The files of a store with messages and keys, as a kill leaves them."""
    files = CrashFileSystem()
    with _open(files) as store:
        for number in range(40):
            store.put(Message(topic="orders", body=b"%03d" % number * 9, tags="t", keys=[f"k{number}"]),
                      queue_id=number % 2)
        store.wait_dispatched()
    files.open(f"{ROOT}/abort", writable=True, create=True)
    return files


@functools.cache
def _world_class():
    path = Path(__file__).parents[1] / "unit" / "timer" / "world.py"
    spec = importlib.util.spec_from_file_location("timer_world", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return partial(module.World, slots=WHEEL_SLOTS)


@functools.cache
def _waiting():
    """The files of a store with timers, recalled ones and delay levels among them, as a kill leaves them."""
    files = CrashFileSystem()
    world = _world_class()(files, SimClock(_WORLD_MS))
    keys = [world.send(TIMER_DELAY_MS=5_000 + 700 * number)[0] for number in range(20)]
    world.send(DELAY=2)
    world.run(2_000, step=500)
    world.recall(keys[3])
    world.run(4_000, step=500)
    world.flush()
    return files


@functools.cache
def _names(files):
    found, pending = [], [ROOT]
    while pending:
        folder = pending.pop()
        for name in files.list(folder):
            path = f"{folder}/{name}"
            if files.stat(path).is_dir:
                pending.append(path)
            elif name != "lock" and files.stat(path).size:
                found.append(path)
    check(len(found) > 4, "the store has too few files", found)
    return sorted(found)


def checkpoint(data):
    """Numbers of a checkpoint, and the hashes of an index: any bytes are numbers."""
    if len(data) >= CHECKPOINT.size:
        check(CHECKPOINT.pack(*CHECKPOINT.unpack_from(data)) == data[: CHECKPOINT.size], "a checkpoint changes")
    check(0 <= hashes.index_hash(data[:20], data[20:]) < 1 << 31, "a hash outside its slots")


# --- requests of a broker


class UndeclaredError(AssertionError):
    """A request ended with an error that is not declared: its line in the log has a traceback."""


class _Failures(logging.Handler):
    """Keeps the tracebacks of lines."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.found = []

    def emit(self, line):
        if line.exc_text and len(self.found) < 5:
            self.found.append(f"{line.getMessage()}\n{line.exc_text}")


class _Broker:
    """A broker without ports on files in memory; it is made again after some requests, so that it stays small."""

    LIFE = 2_000
    CODES = sorted(code for code, request in REQUESTS.items() if request.role is not Role.CLIENT)

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.failures = _Failures()
        logging.getLogger("tailrace").addHandler(self.failures)
        self.store, self.left = None, 0

    def ask(self, code, ext, body):
        if self.store is None or self.left == 0:
            self._begin()
        self.left -= 1
        self.failures.found.clear()
        self.loop.run_until_complete(self._ask(code, ext, body))
        if self.failures.found:
            raise UndeclaredError(self.failures.found[0])

    async def _ask(self, code, ext, body):
        for server in self.controller.servers:
            connection = InProcessConnection(server, ("127.0.0.1", 1))
            answer = connection.call(code, ext, body)
            for _ in range(3):
                await asyncio.sleep(0)
            connection.close()
            if answer.done():
                answer.exception()
            else:
                answer.cancel()

    def _begin(self):
        self.end()
        self.store = _open(CrashFileSystem(), LMQ_SIZES)
        self.loop.run_until_complete(self._start())
        self.left = self.LIFE

    async def _start(self):
        self.controller = BrokerController(self.store, BrokerConfig(enable_property_filter=True))
        await self.controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))

    def end(self):
        if self.store is not None:
            self.loop.run_until_complete(self.controller.stop())
            self.store.close()
            self.store = None

    def close(self):
        """Stop the broker and its event loop."""
        self.end()
        self.loop.close()
        logging.getLogger("tailrace").removeHandler(self.failures)


@functools.cache
def _broker():
    return _Broker()


def request(data):
    """A request to a broker and to a name server: it is served or refused with a declared error.

    The first byte is the code; then come fields (`name=value`, one a line) up to an empty line, and the body.
    """
    if not data:
        return
    codes = _Broker.CODES
    head, _, body = data[1:].partition(b"\n\n")
    ext = dict(line.partition("=")[::2] for line in head.decode("utf-8", "replace").split("\n") if line)
    _broker().ask(codes[data[0] % len(codes)], ext, body)


TARGETS = {
    "frame": frame, "json": json_text, "sql": sql, "grpc": grpc, "record": log_record, "store": store_file,
    "timer": timer_file, "checkpoint": checkpoint, "request": request, "lanes": lanes}


# --- what the corpora begin with


def seeds(target):
    """Return inputs to begin with, made from the code itself."""
    return _SEEDS[target]()


def _fields(of):
    if of.header is None:
        return {}
    return {field.encode_name: "1" for field in msgspec.structs.fields(of.header)}


def _frames():
    made = []
    for code, of in REQUESTS.items():
        for kind in (0, 1):
            made.append(encode(RemotingCommand(code, _fields(of), b'{"topic":"t"}', serialize_type=kind)))
    return made[::6]


def _jsons():
    beat = {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [{
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "subscriptionDataSet": [
            {"topic": "t", "subString": "a||b", "tagsSet": ["a"], "codeSet": [97], "subVersion": 1}]}]}
    return [json.dumps(beat).encode(), b'{1:{"a":[1,2.5,null,true]},"b":{"$ref":"$.a"}}', b"[-1e9,'x',\"\\u0041\"]",
            b'{"a":{"$ref":".."},"b":[{"$ref":"@"}]}', b'{"@type":"x","a":1L}']


def _sqls():
    return [text.encode() for text in (
        "a > 5 AND b = 'x' OR NOT c IS NULL", "a BETWEEN 1 AND 2.5", "a IN ('x','y') OR b NOT IN ('z')",
        "a CONTAINS 'x' AND b NOT STARTSWITH 'y' OR c ENDSWITH 'z'", "TRUE", "(a <> -1) AND (b >= 1e3)",
        "a = 9223372036854775807", "'it''s' = a")]


def _grpcs():
    from rocketmq.grpc_protocol import definition_pb2 as definition

    system = definition.SystemProperties(
        tag="t", keys=["k"], message_id="id", message_group="g", born_host="h", trace_context="c", lite_topic="l")
    message = definition.Message(
        topic=definition.Resource(name="t"), body=b"x", user_properties={"a": "b"}, system_properties=system)
    settings = definition.Settings(
        client_type=definition.ClientType.PUSH_CONSUMER, subscription=definition.Subscription(
            group=definition.Resource(name="g"), subscriptions=[definition.SubscriptionEntry(
                topic=definition.Resource(name="t"), expression=definition.FilterExpression(
                    type=definition.FilterType.SQL, expression="a > 1"))]))
    return [message.SerializeToString(), settings.SerializeToString(), *_records()]


def _records():
    files = _stopped()
    data = files.open(f"{ROOT}/commitlog/{0:020d}", writable=False).pread(2_000, 0)
    size = struct.unpack_from(">i", data)[0]
    return [data[:size], data[: 3 * size], data[size : 2 * size]]


def _patches(image):
    return [bytes([number, 0, 8, 1, 2, 3, 0, 0, 0, 9, 0]) for number in range(len(_names(image())))]


def _checkpoints():
    return [bytes(range(48)), bytes(48)]


def _requests():
    made = []
    for number, code in enumerate(_Broker.CODES):
        head = "\n".join(f"{name}={value}" for name, value in _fields(REQUESTS[code]).items())
        made.append(bytes([number]) + head.encode() + b'\n\n{"topic":"t","group":"g"}')
    return made


_SEEDS = {
    "frame": _frames, "json": _jsons, "sql": _sqls, "grpc": _grpcs, "record": _records,
    "store": partial(_patches, _stopped), "timer": partial(_patches, _waiting), "checkpoint": _checkpoints,
    "request": _requests, "lanes": lane_seeds}
